"""Base class of object stores: settings, credential, clients; and `WebServer`, the simplest one.

Settings have names in `storage_options`, in environment variables, and in this package.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, ClassVar
from urllib.parse import quote, urlsplit

from seqrecord.cloud.clients import use_obstore
from seqrecord.cloud.objects.http import Fetch, HttpFiles, Signer, without_user
from seqrecord.cloud.requests import MIN_BYTES_PER_SECOND, Version
from seqrecord.cloud.retrying import LONGEST_WAIT, Retrier
from seqrecord.errors import LocationError
from seqrecord.store.storage.ranges import MAX_REQUEST_BYTES
from seqrecord.store.storage.url import Location, named_place

# obstore counts attempts; the time alone ends ours. See
# tests/cloud/test_service_faults.py::test_uploads_survive_a_fault_of_any_request.
_NO_LIMIT = 10_000


@dataclass(frozen=True, kw_only=True)
class Bucket(ABC):
    """A bucket, container or web server, and the path `root` in it (`""` for the whole).

    `config` has the settings and at most one credential, by names of the subclass. `shown` is the
    URL without credentials. Pickles contain the credential; `repr` and messages do not. `versions`
    has those of files that were read, for all clients.
    """

    names: ClassVar[Names]  # of options, with or without `prefix`
    environment: ClassVar[Names]
    prefix: ClassVar[str] = ""
    scheme: ClassVar[str]
    endpoint_option: ClassVar[str] = "endpoint"
    fixed: ClassVar[tuple[str, ...]] = ()  # names of credentials that never change
    is_writable: ClassVar[bool] = True

    bucket: str
    root: str
    shown: str
    config: Mapping[str, Any] = field(repr=False)
    versions: dict[str, Version] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def resolve(
        cls, location: Location, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> Bucket:
        """Resolve a location: settings of its URL and options, then the environment."""
        shown = location.shown
        option_settings = canonical_settings(options, cls.names, shown, prefix=cls.prefix)
        config = cls.configured(
            option_settings, canonical_settings(environ, cls.environment), shown
        )
        if endpoint := config.get(cls.endpoint_option):
            check_endpoint(str(endpoint))
        bucket, _, root = location.root.strip("/").partition("/")
        return cls(bucket=bucket, root=root.strip("/"), shown=shown, config=config)

    @classmethod
    def configured(
        cls, option_settings: dict[str, Any], environment_settings: dict[str, Any], shown: str
    ) -> dict[str, Any]:
        """Make `config` from settings in options (`option_settings`) and in the environment
        (`environment_settings`).
        """
        raise NotImplementedError

    @property
    def is_reread(self) -> bool:
        """Whether a new client reads the credential again from environment, file or function."""
        return not any(self.config.get(name) for name in self.fixed)

    def credential(self) -> Fetch | None:
        """Credential provider; `None` if `config` has a fixed credential, or none is needed."""
        return None

    def fetch(self) -> Fetch | None:
        """Credential provider: that of the options, or ours."""
        return self.config.get("credential_provider") or self.credential()

    def store(self, **settings: Any) -> Any:
        """Create an obstore store for writing and listing; `settings` are passed on."""
        raise NotImplementedError(f"{self.shown} is read-only")

    @abstractmethod
    def signer(self) -> Signer:
        """Create a signer of requests for reading."""

    def http_client(self, timeout: float) -> HttpFiles:
        """Create a client for reading, without retries."""
        follows = not self.is_writable
        return HttpFiles(self.signer(), self.shown, timeout, self.versions, follows=follows)

    @property
    def place(self) -> str:
        """See `Storage.place`."""
        endpoint = self.config.get(self.endpoint_option)
        return named_place(f"{self.scheme}://{self.bucket}/{self.root}", {"endpoint": endpoint})

    def key(self, path: str) -> str:
        """Name of the object for a clean path below the root."""
        return f"{self.root}/{path}" if self.root else path

    def client(self, timeout: float, retrier: Retrier | None = None) -> Any:
        """Create an obstore store; `timeout` is the maximum seconds without receiving a byte.

        Without `retrier` it does not retry, else it retries as long as `retrier`.
        """
        use_obstore(self.shown)
        retry_seconds = retrier.deadline if retrier else 0.0
        settings: dict[str, Any] = {
            "client_options": {
                "allow_http": True,  # if the endpoint is http; tokens are never sent to it
                "connect_timeout": timedelta(seconds=min(10.0, timeout)),
                "read_timeout": timedelta(seconds=timeout),
                "timeout": timedelta(seconds=timeout + MAX_REQUEST_BYTES / MIN_BYTES_PER_SECOND),
            },
            "retry_config": {
                "max_retries": _NO_LIMIT if retry_seconds else 0,
                "retry_timeout": timedelta(seconds=retry_seconds),
                "backoff": {
                    "init_backoff": timedelta(seconds=(retrier or Retrier).first_wait),
                    "max_backoff": timedelta(seconds=LONGEST_WAIT),
                    "base": 2,
                },
            },
        }
        if fetch := self.fetch():
            settings["credential_provider"] = Provider(fetch)
        return self.store(**settings)


class Provider:
    """Credential provider for obstore, called when the last credential has expired.

    obstore converts an exception of `fetch` to text, with secrets; `failure` preserves it.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self.failure: Exception | None = None

    def __call__(self) -> Any:
        self.failure = None
        try:
            return self._fetch()
        except Exception as error:
            self.failure = error
        raise RuntimeError("no credential")


Names = Mapping[str, tuple[str, ...]]
"""Names of settings: ours, and the aliases of other programs."""

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def canonical_settings(
    values: Mapping[str, Any],
    names: Names,
    shown: str = "",
    *,
    prefix: str | None = None,
) -> dict[str, Any]:
    """Settings under our names, from values under any of their aliases, without empty ones.

    The first alias with a value counts. `prefix` may precede the names of options. With a
    `prefix`, an unknown name raises `LocationError`; without one, it is ignored.
    """
    known_aliases = {alias for aliases in names.values() for alias in aliases}
    alias_values = {
        name if name in known_aliases else name.removeprefix(prefix or ""): value
        for name, value in values.items()
        if value is not None and value != ""
    }
    if prefix is not None and (unknown_names := sorted(set(alias_values) - known_aliases)):
        raise LocationError(
            "an unknown storage option",
            file=shown,
            expected=f"any of {', '.join(sorted(known_aliases))}"
            if known_aliases
            else "none for this server",
            got=", ".join(unknown_names),
        )
    return {
        name: alias_values[alias]
        for name, aliases in names.items()
        for alias in reversed(aliases)  # so that the first alias is the last to be stored
        if alias in alias_values
    }


def one_kind(kinds: tuple[str, ...], settings: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """The credential in settings, by its kind; raises `LocationError` for several kinds."""
    credentials = {name: settings[name] for name in kinds if settings.get(name)}
    if len(credentials) > 1:
        raise LocationError(
            "credentials of more than one kind",
            file=shown,
            expected="one",
            got=", ".join(credentials),
        )
    return credentials


def is_true(value: object) -> bool:
    return str(value).lower() in ("true", "1", "yes")


def check_endpoint(endpoint: str, *, is_bare: bool = False) -> None:
    """Raise `LocationError` unless `endpoint` is `https://[USER@]HOST[:PORT][/PATH][?QUERY]`.

    `is_bare` forbids a user and a query.
    """
    user, query = ("", "") if is_bare else (r"([^/@?#\s\\]*@)?", r"(\?[^#\s]*)?")
    host = r"(\[[0-9A-Fa-f:.]+\]|[^/@?#\s:\[\]\\%]+)(:\d{1,5})?"
    if re.fullmatch(rf"https?://{user}{host}(/[^@?#\s\\]*)?{query}", endpoint, re.I) is None:
        raise LocationError(  # without the value: it may contain a SAS or a password
            "an invalid endpoint",
            expected="https://HOST or http://HOST:PORT/ACCOUNT, without a query",
        )


def check_token_endpoint(endpoint: str | None, shown: str) -> None:
    """Raise `LocationError` if a bearer token would be sent unencrypted over a network."""
    parts = urlsplit(endpoint or "")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise LocationError(
            "a token must not be sent over plain http", file=shown, expected="an https:// endpoint"
        )


@dataclass(frozen=True, kw_only=True)
class WebServer(Bucket):
    """A folder on a web server. Its URL, which may contain a password, is its only setting."""

    is_writable = False
    names: ClassVar[Names] = {}
    environment: ClassVar[Names] = {}

    @classmethod
    def resolve(
        cls, location: Location, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> Bucket:
        server = super().resolve(location, options, environ)
        return replace(server, bucket="", root="", config={"url": location.root.rstrip("/")})

    @classmethod
    def configured(cls, *_: Any) -> dict[str, Any]:
        return {}

    @property
    def place(self) -> str:
        return named_place(self.shown, {})

    def signer(self) -> Signer:
        (url, user), headers = without_user(urlsplit(self.config["url"])), dict[str, str]()
        if user:  # by RFC 7617, as UTF-8; a redirect to another host loses it
            headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
        url = re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", url)  # else urllib3 quotes those of `path`, too
        return lambda _, path: (f"{url}/{quote(path)}", headers)
