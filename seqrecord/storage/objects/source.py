"""What an object store is, to its readers and writers: keys, a credential, clients of two kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from seqrecord.storage.objects.plain import Fetch, PlainFiles, Signer
from seqrecord.storage.objects.runtime import use_obstore
from seqrecord.storage.objects.settings import Names, named, split_client_options
from seqrecord.storage.places import named_place
from seqrecord.storage.ranges import MAX_REQUEST_BYTES
from seqrecord.storage.requests import SLOWEST
from seqrecord.storage.retrying import Retrier
from seqrecord.storage.url import Location

__all__ = ["Bucket"]

_NO_LIMIT = 10_000


@dataclass(frozen=True, kw_only=True)
class Bucket(ABC):
    """A bucket, a container or a web server, and the path `root` in it, `""` for all of it.

    `config` are settings and at most one credential, by the names of the subclass. `shown` is the
    URL without credentials. Pickles hold the credential; nothing that this prints does.
    """

    names: ClassVar[Names]  # of options, which may have `prefix` before them
    environment: ClassVar[Names]
    prefix: ClassVar[str] = ""
    scheme: ClassVar[str]
    endpoint_option: ClassVar[str] = "endpoint"
    fixed: ClassVar[tuple[str, ...]] = ()  # credentials that stay as they are
    is_writable: ClassVar[bool] = True

    bucket: str
    root: str
    shown: str
    config: Mapping[str, Any] = field(repr=False)
    client_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def resolve(
        cls, location: Location, options: Mapping[str, Any], environ: Mapping[str, str]
    ) -> Bucket:
        """That of a location: what its URL and options say, then the environment."""
        shown = location.shown
        client_options, rest = split_client_options(options, shown)
        given = named(rest, cls.names, shown, prefix=cls.prefix)
        bucket, _, root = location.root.strip("/").partition("/")
        return cls(
            bucket=bucket,
            root=root.strip("/"),
            shown=shown,
            config=cls.configured(given, named(environ, cls.environment), shown),
            client_options=client_options,
        )

    @classmethod
    def configured(cls, given: dict[str, Any], found: dict[str, Any], shown: str) -> dict[str, Any]:
        """`config`, of settings that options give and those that the environment has."""
        raise NotImplementedError

    @property
    def is_reread(self) -> bool:
        """Whether a new client looks anew: in the environment, a file or a function."""
        return not any(self.config.get(name) for name in self.fixed)

    @abstractmethod
    def credential(self) -> Fetch | None:
        """What gives obstore its credential; none where obstore finds it, or needs none."""

    def fetch(self) -> Fetch | None:
        """What gives the credential: the options' own function, or ours."""
        return self.config.get("credential_provider") or self.credential()

    @abstractmethod
    def store(self, **settings: Any) -> Any:
        """A new store of obstore; `settings` go to it."""

    @abstractmethod
    def signer(self) -> Signer:
        """A new signer of requests, for who reads without obstore."""

    def plain(self, timeout: float) -> PlainFiles:
        """A new client that reads without obstore; it repeats nothing by itself."""
        return PlainFiles(self.signer(), self.shown, timeout, follows=not self.is_writable)

    @property
    def place(self) -> str:
        """See `Storage.place`."""
        endpoint = self.config.get(self.endpoint_option)
        return named_place(f"{self.scheme}://{self.bucket}/{self.root}", {"endpoint": endpoint})

    def key(self, path: str) -> str:
        """The object's name, of a clean path below the root."""
        return f"{self.root}/{path}" if self.root else path

    def client(self, timeout: float, retrier: Retrier | None = None) -> Any:
        """A new store of obstore; `timeout` is how many seconds may pass without a byte.

        It repeats nothing by itself, or each request as often as `retrier` would.
        """
        use_obstore(self.shown)
        retry_seconds = retrier.deadline if retrier else 0.0
        settings: dict[str, Any] = {
            "client_options": {
                **self.client_options,
                "allow_http": True,  # of an endpoint that says so; tokens are kept from it
                "connect_timeout": timedelta(seconds=min(10.0, timeout)),
                "read_timeout": timedelta(seconds=timeout),
                "timeout": timedelta(seconds=timeout + MAX_REQUEST_BYTES / SLOWEST),
            },
            "retry_config": {
                "max_retries": _NO_LIMIT if retry_seconds else 0,
                "retry_timeout": timedelta(seconds=retry_seconds),
                "backoff": {
                    "init_backoff": timedelta(seconds=(retrier or Retrier).first_wait),
                    "max_backoff": timedelta(seconds=8),
                    "base": 2,
                },
            },
        }
        if fetch := self.fetch():
            settings["credential_provider"] = Provider(fetch)
        return self.store(**settings)


class Provider:
    """Gives obstore a credential whenever it asks for one, which is when the last has expired.

    obstore makes text of what `fetch` raises, with all that it says; so `failure` keeps the error.
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
