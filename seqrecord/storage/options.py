"""Splits `storage_options` into those of this package and those of the client that serves a URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from seqrecord.errors import LocationError
from seqrecord.storage.parallel import MAX_REQUESTS
from seqrecord.storage.retrying import DEADLINE_SECONDS, REQUESTS_PER_SECOND

__all__ = ["StorageSettings", "split_options"]


@dataclass(frozen=True)
class StorageSettings:
    """What this package itself takes from `storage_options`.

    `backend` names the client that reads: of Azure `obstore`, `urllib3`, `adlfs` or `blobfile`, and
    of any other URL `fsspec`. `mount` says that a local path is a mount of remote storage, or that
    it is none; by itself it is looked up. Of a URL or a mount, `deadline` is how many seconds a
    request may fail and be tried again, `max_requests` how many are under way at once, and
    `requests_per_second` how many may start for one file.
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
    """Ours, and the rest for the client; raises `LocationError` for a value that will not do.

    Values may be text, as the command line gives them.
    """
    rest = dict(options)
    ours = {each.name: rest.pop(each.name) for each in fields(StorageSettings) if each.name in rest}
    read = {
        "backend": _text,
        "mount": _flag,
        "deadline": _positive,
        "max_requests": _count,
        "requests_per_second": _positive,
    }
    chosen: dict[str, Any] = {}
    for name, value in ours.items():
        if value is None:
            continue
        try:
            chosen[name] = read[name](value)
        except (ValueError, TypeError) as error:
            expected = str(error)
        else:
            continue
        raise LocationError(
            f"storage option {name}", file=shown, expected=expected, got=repr(value)[:80]
        )
    return StorageSettings(**chosen), rest


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a name")
    return value


def _flag(value: object) -> bool:
    text = str(value).lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise ValueError("true or false")


def _positive(value: Any) -> float:
    number = _number(value)
    if not 0 < number < float("inf"):
        raise ValueError("a number above 0")
    return number


def _count(value: Any) -> int:
    number = _number(value)
    if number < 1 or number != int(number):
        raise ValueError("a whole number of at least 1")
    return int(number)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (ValueError, TypeError, OverflowError):
        return float("nan")
