"""Batches that are being gathered, several at a time, and delivered in their order.

One thread begins them and says what to copy; others copy. The thread that makes a batch's last copy
delivers it, if those before it are delivered::

    scheduler       begin 0  begin 1  begin 2
    copying              0 0 0 1 | 1 2 …
                         0 0 1 1 | 2 2 …
    delivered                 0    1
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter

from seqrecord.engine.batches import Copy
from seqrecord.engine.copying import CopyThreads

__all__ = ["Gathering", "Gathers"]


class Gathers:
    """The batches of one thread that begins them.

    Args:
        threads: make the copies.
        num_threads: for how many of them the work should do.
        failed: called when a copy has raised, or a delivery: no batch from there on is delivered.
        clock: seconds.
    """

    def __init__(
        self,
        threads: CopyThreads,
        num_threads: int,
        failed: Callable[[], object],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._threads, self._failed, self._clock = threads, failed, clock
        self.num_threads = num_threads
        self._changed = threading.Condition()
        self._open: deque[Gathering] = deque()  # not delivered yet
        self._copying = 0  # copies that are not made yet
        self._since = 0.0  # up to when the time was counted
        self._seconds = 0.0

    def begin(self) -> Gathering:
        """The next batch: what copies for it are asked of."""
        gathering = Gathering(self)
        with self._changed:
            self._open.append(gathering)
        return gathering

    def wait(self) -> None:
        """Until all copies are made that were asked for; raises what the first batch has raised."""
        with self._changed:
            self._changed.wait_for(lambda: not self._copying)
        self.check()

    def check(self) -> None:
        """Raise what has kept a batch from being delivered, if anything has, once."""
        with self._changed:
            error = next((item.error for item in self._open if item.error is not None), None)
            if error is None:
                return
            self._open.clear()
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def leave(self) -> None:
        """Deliver nothing more. Batches refer to this, which must not refer to them for ever."""
        with self._changed:
            self._open.clear()

    def lap(self) -> float:
        """For how many seconds copies have been made since the last call."""
        with self._changed:
            self._count()
            seconds, self._seconds = self._seconds, 0.0
        return seconds

    def add(self, gathering: Gathering, copies: Iterable[Copy]) -> None:
        """Have copies made for a batch."""
        asked = list(copies)
        with self._changed:
            self._count()
            self._copying += len(asked)
            gathering.missing += len(asked)
        self._threads.begin(asked, gathering.note)

    def note(self, gathering: Gathering, error: BaseException | None, *, copies: int) -> None:
        """A batch misses one thing less; `copies` of it is a copy, or none."""
        with self._changed:
            if copies:
                self._count()
                self._copying -= copies
            gathering.missing -= 1
            gathering.error = gathering.error or error
            while error is None and self._open and not self._open[0].missing:
                if (error := self._open[0].error) is None:
                    error = self._open[0].error = self._open[0].try_deliver()
                if error is None:
                    self._open.popleft()
            if error is not None:
                self._failed()
            del error
            if not self._copying:
                self._changed.notify_all()

    def _count(self) -> None:
        """Count the time if copies are being made."""
        now = self._clock()
        if self._copying:
            self._seconds += now - self._since
        self._since = now


class Gathering:
    """A batch that is being gathered: `Copiers` that do not wait for its copies."""

    def __init__(self, gathers: Gathers) -> None:
        self.num_threads = gathers.num_threads
        self.missing = 1  # copies that are not made, and that more may come
        self.error: BaseException | None = None
        self._gathers = gathers
        self._deliver: Callable[[], object] = lambda: None

    def copy(self, copies: Iterable[Copy]) -> None:
        """Have copies made for this batch, by other threads."""
        self._gathers.add(self, copies)

    def finish(self, deliver: Callable[[], object]) -> None:
        """Nothing more is copied: `deliver` is called by the thread that makes the last copy."""
        self._deliver = deliver
        self._gathers.note(self, None, copies=0)

    def note(self, error: BaseException | None) -> None:
        """One of its copies is made, or has raised an error."""
        self._gathers.note(self, error, copies=1)

    def try_deliver(self) -> BaseException | None:
        """Deliver the batch; what that raises."""
        deliver, self._deliver = self._deliver, lambda: None
        try:
            deliver()
        except BaseException as error:
            return error
        finally:
            del deliver
        return None
