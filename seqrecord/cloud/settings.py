"""Settings of this package in `storage_options`, apart from the client's options."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from seqrecord.cloud.retrying import DEADLINE_SECONDS, MAX_RETRY_AFTER, Quota, Retrier
from seqrecord.errors import LocationError
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.storage.parallel import MAX_REQUESTS
from seqrecord.store.text import repr_of
from seqrecord.store.units import parse_flag, parse_size


@dataclass(frozen=True)
class StorageSettings:
    """Settings of this package in `storage_options`.

    Attributes:
        backend: client for reading: `urllib3`, `blobfile` (Azure), or `fsspec`, which also writes.
        mount: whether a local path is a mount of remote storage; by default from the kernel's mount
            table.
        deadline: seconds during which a failing request of a URL or mount is retried.
        max_retry_after: maximum delay in seconds that a server may ask for; more is an error.
        max_requests: maximum number of concurrent requests.
        requests_per_second: rate limit of a process's threads together. By default there is
            only a limit per file, 400.
        bandwidth: maximum bytes read per second by all threads of a process together.
    """

    backend: str | None = None
    mount: bool | None = None
    deadline: float = DEADLINE_SECONDS
    max_retry_after: float = MAX_RETRY_AFTER
    max_requests: int = MAX_REQUESTS
    requests_per_second: float | None = None
    bandwidth: float | None = None

    @cached_property
    def quota(self) -> Quota | None:
        """Rate limits shared by all requests of the storage; `None` without limits."""
        if self.requests_per_second is None and self.bandwidth is None:
            return None
        return Quota(self.requests_per_second or math.inf, self.bandwidth or math.inf)

    def retrier(self) -> Retrier:
        """Make a `Retrier` with these settings."""
        return Retrier(self.deadline, quota=self.quota, max_retry_after=self.max_retry_after)

    def changed_names(self) -> list[str]:
        """Names of the settings that differ from their defaults."""
        return [
            setting.name
            for setting in fields(self)
            if getattr(self, setting.name) != setting.default
        ]


def split_options(options: Mapping[str, Any], shown: str) -> tuple[StorageSettings, dict[str, Any]]:
    """Split options into ours and the client's; raises `LocationError` for an invalid value.

    Values may be text from the command line.
    """
    client_options = dict(options)
    setting_values = {
        setting.name: client_options.pop(setting.name)
        for setting in fields(StorageSettings)
        if setting.name in client_options
    }
    settings: dict[str, Any] = {}
    for name, value in setting_values.items():
        if value is None:
            continue
        read, expected = _KINDS[name]
        with suppress(ValueError, TypeError, LookupError, ArithmeticError):
            settings[name] = read(value)
        if name not in settings:
            raise LocationError(
                f"storage option {name}", file=shown, expected=expected, got=repr_of(value, 80)
            )
    return StorageSettings(**settings), client_options


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


_KINDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "backend": (_name, "a name"),
    "mount": (parse_flag, "true or false"),
    "deadline": (_positive, "a number above 0"),
    "max_retry_after": (_positive, "a number of seconds above 0"),
    "max_requests": (_count, "a whole number of at least 1"),
    "requests_per_second": (_positive, "a number above 0"),
    "bandwidth": (lambda value: _positive(parse_size(value)), "bytes a second, such as 100MB"),
}
