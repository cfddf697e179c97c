"""Splits `storage_options` into those of this package and those of the client that serves a URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from seqrecord.errors import LocationError
from seqrecord.storage.parallel import MAX_REQUESTS
from seqrecord.storage.retrying import DEADLINE_SECONDS, REQUESTS_PER_SECOND
from seqrecord.text import repr_of

__all__ = ["StorageSettings", "split_options"]


@dataclass(frozen=True)
class StorageSettings:
    """What this package itself takes from `storage_options`.

    `backend` names the client that reads: `obstore`, a package that reads without it, or for any
    other URL `fsspec`. `mount` says whether a local path is a mount of remote storage; by default
    the kernel's table of mounts says it. For a URL or a mount, a request that fails is tried again
    for `deadline` seconds, at most `max_requests` are in flight, and at most `requests_per_second`
    start for one file.
    """

    backend: str | None = None
    mount: bool | None = None
    deadline: float = DEADLINE_SECONDS
    max_requests: int = MAX_REQUESTS
    requests_per_second: float = REQUESTS_PER_SECOND

    def given(self) -> list[str]:
        """Names of those that differ from their defaults."""
        return [each.name for each in fields(self) if getattr(self, each.name) != each.default]


def split_options(options: Mapping[str, Any], shown: str) -> tuple[StorageSettings, dict[str, Any]]:
    """Ours, and the rest for the client; raises `LocationError` for a value that is not allowed.

    Values may be text, as the command line gives them.
    """
    rest = dict(options)
    ours = {each.name: rest.pop(each.name) for each in fields(StorageSettings) if each.name in rest}
    chosen: dict[str, Any] = {}
    for name, value in ours.items():
        if value is None:
            continue
        read, expected = _KINDS[name]
        with suppress(ValueError, TypeError, LookupError, ArithmeticError):
            chosen[name] = read(value)
        if name not in chosen:
            raise LocationError(
                f"storage option {name}", file=shown, expected=expected, got=repr_of(value, 80)
            )
    return StorageSettings(**chosen), rest


def _positive(value: Any) -> float:
    if not 0 < (number := float(value)) < float("inf"):
        raise ValueError
    return number


def _count(value: Any) -> int:
    if (number := float(value)) < 1 or number % 1:
        raise ValueError
    return int(number)


def _name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


_FLAGS = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(
    ("false", "0", "no", "off"), False
)
_KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "backend": (_name, "a name"),
    "mount": (lambda value: _FLAGS[str(value).lower()], "true or false"),
    "deadline": (_positive, "a number above 0"),
    "max_requests": (_count, "a whole number of at least 1"),
    "requests_per_second": (_positive, "a number above 0"),
}
