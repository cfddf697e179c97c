"""Limits the requests a second to each file: a service answers 503 to more."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Pace"]

_BURST_SECONDS = 0.1  # this much of a second's requests may come at once
_MANY = 1024


class Pace:
    """When the next request to a file may go: at most `rate` a second, and a tenth more at once.

    The algorithm is the "virtual scheduling" one of ITU-T I.371. Safe to use from many threads.
    """

    def __init__(self, rate: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        if not rate > 0:
            raise ValueError(f"a rate of {rate} requests a second")
        self._interval = 1 / rate
        self._clock = clock
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}  # when the next request is due, at an even pace

    def __len__(self) -> int:
        """Files that it keeps in mind."""
        return len(self._due)

    def delay(self, path: str) -> float:
        """Seconds that a request to `path` must wait; the turn after it is another's."""
        with self._lock:
            now = self._clock()
            if len(self._due) > _MANY:
                self._due = {name: due for name, due in self._due.items() if due > now}
            due = max(now, self._due.get(path, now))
            self._due[path] = due + self._interval
        return max(0.0, due - now - _BURST_SECONDS)
