"""What an object store is, to a reader: a key for each path, and clients of two kinds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from seqrecord.errors import LocationError, StorageError
from seqrecord.storage.failures import classify
from seqrecord.storage.requests import MAX_REQUEST_BYTES, SLOWEST

__all__ = [
    "Client",
    "ObjectSource",
    "Provider",
    "client_settings",
    "named",
    "split_client_options",
]

# Of obstore's client_options, those that are someone's wish and not ours.
_CLIENT_OPTIONS = (
    "allow_invalid_certificates",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "root_certificate",
    "user_agent",
)


@dataclass(frozen=True)
class Client:
    """A store of obstore, and what gives it its credentials where that is a function of ours."""

    store: Any
    provider: Provider | None = None


class ObjectSource(Protocol):
    """A bucket, container or web server. Pickles hold its credential; nothing that it prints does.

    `without_obstore` says how it is read in a process that cannot use obstore.
    """

    @property
    def without_obstore(self) -> str: ...

    def key(self, path: str) -> str:
        """The object's name, of a clean path below the root."""
        ...

    def client(self, timeout: float) -> Client:
        """A new client; `timeout` is how many seconds may pass without a byte."""
        ...


class Provider:
    """Gives obstore a credential whenever it asks for one, which is when the last has expired.

    obstore makes text of what `fetch` raises, with all that it says; so `failure` keeps what it
    means. `place` is for its message.
    """

    def __init__(self, fetch: Callable[[], Any], place: str) -> None:
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


def client_settings(
    timeout: float, endpoint: str | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Arguments that all stores of obstore have in common; it repeats nothing by itself."""
    return {
        "client_options": {
            **options,
            "allow_http": (endpoint or "").startswith("http://"),
            "connect_timeout": timedelta(seconds=min(10.0, timeout)),
            "read_timeout": timedelta(seconds=timeout),
            "timeout": timedelta(seconds=timeout + MAX_REQUEST_BYTES / SLOWEST),
        },
        "retry_config": {"max_retries": 0},
    }


def split_client_options(
    options: Mapping[str, Any], shown: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """obstore's `client_options` among storage options, by themselves or in a dict, and the rest.

    `root_certificate` and `proxy_ca_certificate` may be the path of a PEM file.
    """
    rest = dict(options)
    chosen = dict(rest.pop("client_options", None) or {})
    chosen |= {name: rest.pop(name) for name in _CLIENT_OPTIONS if name in rest}
    if unknown := sorted(set(chosen) - set(_CLIENT_OPTIONS)):
        raise LocationError(
            "unknown client_options",
            file=shown,
            expected=f"some of {', '.join(_CLIENT_OPTIONS)}",
            got=", ".join(unknown),
        )
    for name in ("root_certificate", "proxy_ca_certificate"):
        text = chosen.get(name)
        if isinstance(text, str) and "-----BEGIN" not in text:
            try:
                chosen[name] = Path(text).read_text()
            except OSError:
                raise LocationError(f"{name} cannot be read", file=shown, got=text) from None
    if isinstance(allow := chosen.get("allow_invalid_certificates"), str):
        chosen["allow_invalid_certificates"] = allow.lower() in ("true", "1", "yes")
    return chosen, rest


def named(
    values: Mapping[str, Any],
    names: Mapping[str, tuple[str, ...]],
    shown: str,
    *,
    strict: bool = True,
) -> dict[str, Any]:
    """Settings by our name for them, of values under any of their names, without the empty ones.

    `strict`: a name that nobody knows is a `LocationError`.
    """
    known = {name for each in names.values() for name in each}
    if strict and (unknown := sorted(set(values) - known)):
        raise LocationError(
            "an unknown storage option",
            file=shown,
            expected=f"some of {', '.join(sorted(known))}",
            got=", ".join(unknown),
        )
    found: dict[str, Any] = {}
    for ours, theirs in names.items():
        for name in theirs:
            value = values.get(name)
            if ours not in found and value is not None and value != "":
                found[ours] = value
    return found
