"""Where batches are filled, and wait for the consumer."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from time import perf_counter

from seqrecord.engine.batches import Batch, OpenBatch
from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError

__all__ = ["Channel", "ClosedError"]

_ENDED = "this iteration was ended: another one has begun"


class ClosedError(Exception):
    """The channel was closed; not for users."""


class Channel:
    """From the runs of plans, which fill batches together, to one consumer.

    At most `slots` batches are being filled or wait. A run opens a batch, by number, and says when
    it has filled slots of it; a batch is delivered when all of its slots are filled, and those
    before it are delivered. `close`, from any thread, makes `open` and `check_open` raise
    `ClosedError`. The time that the consumer waits is counted in `stats`.

    Args:
        begin: a batch to fill, of this number. They come in the order of their numbers.
        first: the number of the first one.
        num_runs: how many runs there are.
    """

    def __init__(
        self,
        slots: int,
        stats: EngineStats,
        begin: Callable[[int], OpenBatch],
        first: int = 0,
        num_runs: int = 1,
    ) -> None:
        # Its lock is reentrant: `close` may be called by a finalizer, inside any other method.
        self._lock = threading.RLock()
        self._opened = threading.Condition(self._lock)  # or may be: what runs wait for
        self._filled = threading.Condition(self._lock)  # what the consumer waits for
        self._slots = slots
        self._stats = stats
        self._begin = begin
        self._next = first  # the batch to open next
        self._num_runs = num_runs  # that have not ended
        self._open: deque[OpenBatch] = deque()
        self._ready: deque[Batch] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._interrupted = False

    def open(self, number: int) -> OpenBatch:
        """A batch to fill, which is not delivered yet, once the consumer has taken enough of those
        before it."""
        with self._lock:
            while number >= self._next:
                self._opened.wait_for(
                    lambda: number < self._next or self._slots or self._closed or self._interrupted
                )
                self.check_open()
                if self._interrupted:
                    raise ClosedError
                if number >= self._next:
                    self._open.append(self._begin(self._next))
                    self._next += 1
                    self._slots -= 1
                    self._opened.notify_all()
            self.check_open()
            return self._open[number - self._next]  # counted from the end

    def fill(self, batch: OpenBatch, count: int) -> None:
        """So many more slots of an open batch are filled; deliver what is whole."""
        with self._lock:
            batch.missing -= count
            while self._open and not self._open[0].missing:
                self._ready.append(self._open.popleft().finish())
                self._filled.notify()

    def take(self, process: int) -> Batch:
        """The next batch, as soon as it is there; its slot is free again.

        For users, whose iteration began in the process of this number. Raises a run's error once,
        after the batches before it; `StopIteration` after the end; and `ClipError` in another
        process, which was forked, and when the channel was closed.
        """
        if os.getpid() != process:
            raise ClipError("an iteration cannot continue in a forked process: begin another")
        begin = perf_counter()
        try:
            return self._take()
        except ClosedError:
            raise ClipError(_ENDED) from None
        finally:
            end = perf_counter()
            self._stats.add(waiting_for_batches_seconds=end - begin)
            self._stats.trace.add("wait for batch", begin, end)

    def _take(self) -> Batch:
        with self._lock:
            self._filled.wait_for(lambda: self._ready or self._ended or self._closed)
            self.check_open()
            if self._ready:
                self._slots += 1
                self._opened.notify_all()
                return self._ready.popleft()
            error, self._error = self._error, None
        if error is None:
            raise StopIteration
        try:
            if isinstance(error, StopIteration):  # of a user's function: it would look like the end
                raise ClipError("StopIteration was raised where no iterator ends") from error
            raise error
        finally:
            del error  # its traceback refers to this frame

    def end(self, error: BaseException | None = None) -> None:
        """A run has ended: after the last one, or one with an error, nothing follows."""
        with self._lock:
            self._num_runs -= 1
            if not self._ended and (error is not None or not self._num_runs):
                self._ended = True
                self._error = None if self._closed else error
                self._begin = _no_batch  # it refers to memory
                self._filled.notify_all()

    def close(self) -> None:
        """Drop what waits, and let both sides know."""
        with self._lock:
            self._closed, self._error = True, None
            self._ready.clear()
            self._open.clear()
            self._opened.notify_all()
            self._filled.notify_all()

    def interrupt(self) -> None:
        """No more batches are opened: `open` raises `ClosedError`."""
        with self._lock:
            self._interrupted = True
            self._opened.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise `ClosedError` when the channel is closed."""
        if self.is_closed:
            raise ClosedError


def _no_batch(number: int) -> OpenBatch:
    raise ClosedError(number)
