"""Whether another thread computes in Python: then each wait for the GIL takes milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["GilWatch"]

_LATE = 0.002  # seconds
_EVERY = 0.2  # seconds
_WITHOUT_GIL = 0.0001  # seconds: so long must another thread get it, if one wants it
_TRIES = 3


class GilWatch:
    """Tries now and then how long it takes to get the GIL back. For one thread.

    Args:
        clock: seconds.
        sleep: for so many seconds, without the GIL.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._next = clock()  # when to try
        self._left = 0  # tries that it stays late for

    def is_late(self) -> bool:
        """Whether it took long at one of the last tries: one alone may be lucky."""
        begin = self._clock()
        if begin >= self._next:
            self._sleep(_WITHOUT_GIL)
            end = self._clock()
            self._next = end + _EVERY
            self._left = max(0, self._left - 1)
            if end - begin - _WITHOUT_GIL > _LATE:
                self._left = _TRIES
        return self._left > 0
