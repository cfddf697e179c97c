"""What an object store is, to its readers and writers: keys, a credential, clients of two kinds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Protocol, TypeVar
from urllib.parse import urlsplit

from seqrecord.errors import AccessError, StorageError
from seqrecord.storage.failures import call, classify
from seqrecord.storage.per_process import PerProcess
from seqrecord.storage.requests import MAX_REQUEST_BYTES, SLOWEST

__all__ = [
    "Bucket",
    "Client",
    "Clients",
    "Fetch",
    "ObjectSource",
    "Provider",
    "client_settings",
    "place_of",
]

_NO_LIMIT = 10_000

_T = TypeVar("_T")

Fetch = Callable[[], Any]
"""Gives a credential as obstore's credential providers do, with `expires_at` or without."""


@dataclass(frozen=True)
class Client:
    """A store of obstore, and what gives it its credentials where that is a function of ours."""

    store: Any
    provider: Provider | None = None


class ObjectSource(Protocol):
    """A bucket, container or web server. Pickles hold its credential; nothing that it prints does.

    `without_obstore` says how it is read in a process that cannot use obstore. `is_reread` says
    that a new client looks for the credential anew: in the environment, a file or a function.
    """

    @property
    def without_obstore(self) -> str: ...

    @property
    def is_reread(self) -> bool: ...

    @property
    def place(self) -> str:
        """See `Storage.place`."""
        ...

    def key(self, path: str) -> str:
        """The object's name, of a clean path below the root."""
        ...

    def client(self, timeout: float, retry_seconds: float = 0.0) -> Client:
        """A new client; `timeout` is how many seconds may pass without a byte.

        It repeats nothing by itself, or each request for `retry_seconds`.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Bucket(ABC):
    """A bucket or container, and the path `root` in it, `""` for all of it.

    `config` are settings and at most one credential, by the names of the subclass. `shown` is the
    URL without credentials.
    """

    package: ClassVar[str]  # of fsspec's filesystem

    bucket: str
    root: str
    shown: str
    config: Mapping[str, Any] = field(repr=False)
    client_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def without_obstore(self) -> str:
        return f"pip install {self.package}"

    @property
    @abstractmethod
    def is_reread(self) -> bool: ...

    @abstractmethod
    def credential(self) -> Fetch | None:
        """What gives obstore its credential; none where obstore finds it, or needs none."""

    @abstractmethod
    def store(self, **settings: Any) -> Any:
        """A new store of obstore; `settings` go to it."""

    @abstractmethod
    def filesystem(self, timeout: float) -> Any:
        """A new filesystem of fsspec, which repeats nothing by itself."""

    @property
    @abstractmethod
    def place(self) -> str: ...

    def key(self, path: str) -> str:
        return f"{self.root}/{path}" if self.root else path

    @property
    def path(self) -> str:
        """The root as fsspec has it."""
        return f"{self.bucket}/{self.root}".rstrip("/")

    def client(self, timeout: float, retry_seconds: float = 0.0) -> Client:
        fetch = self.config.get("credential_provider") or self.credential()
        settings = client_settings(timeout, self.client_options, retry_seconds)
        if fetch is None:
            return Client(self.store(**settings))
        provider = Provider(fetch, self.shown)
        return Client(self.store(credential_provider=provider, **settings), provider)


class Clients:
    """One client for each process, made when it is first needed."""

    def __init__(self, source: ObjectSource, timeout: float, retry_seconds: float = 0.0) -> None:
        self._source = source
        self._clients = PerProcess(lambda: source.client(timeout, retry_seconds))

    def ask(self, file: str, function: Callable[[Any], _T]) -> _T:
        """`function(store)`, with errors of ours about `file`.

        After a refusal it is called once more with a new client, where that may find another
        credential: one that was renewed in the environment, a file or by a function.
        """
        try:
            return self._ask(file, function)
        except AccessError:
            if not self._source.is_reread:
                raise
        self.close()
        return self._ask(file, function)

    def close(self) -> None:
        self._clients.take()

    def _ask(self, file: str, function: Callable[[Any], _T]) -> _T:
        client = call(file, self._clients.get)

        def ask() -> _T:
            try:
                return function(client.store)
            except Exception:
                failure = client.provider.failure if client.provider else None
                if failure is None:
                    raise
            raise failure

        return call(file, ask)


class Provider:
    """Gives obstore a credential whenever it asks for one, which is when the last has expired.

    obstore makes text of what `fetch` raises, with all that it says; so `failure` keeps what it
    means. `place` is for its message.
    """

    def __init__(self, fetch: Fetch, place: str) -> None:
        self._fetch, self._place = fetch, place
        self.failure: StorageError | None = None

    def __call__(self) -> Any:
        try:
            found = self._fetch()
        except Exception as error:
            self.failure = (
                error if isinstance(error, StorageError) else classify(error, self._place)
            )
        else:
            self.failure = None
            return found
        raise RuntimeError("no credential")


def place_of(endpoint: str, path: str) -> str:
    """A path at an endpoint, without a password or a query that the endpoint may have."""
    parts = urlsplit(endpoint)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path.rstrip('/')}/{path}".rstrip("/")


def client_settings(
    timeout: float, options: Mapping[str, Any], retry_seconds: float = 0.0
) -> dict[str, Any]:
    """Arguments that all stores of obstore have in common; see `ObjectSource.client`."""
    return {
        "client_options": {
            **options,
            "allow_http": True,  # of an endpoint that says so; tokens are kept from it
            "connect_timeout": timedelta(seconds=min(10.0, timeout)),
            "read_timeout": timedelta(seconds=timeout),
            "timeout": timedelta(seconds=timeout + MAX_REQUEST_BYTES / SLOWEST),
        },
        "retry_config": {
            "max_retries": _NO_LIMIT if retry_seconds else 0,
            "retry_timeout": timedelta(seconds=retry_seconds),
            "backoff": {
                "init_backoff": timedelta(seconds=0.25),
                "max_backoff": timedelta(seconds=8),
                "base": 2,
            },
        },
    }
