"""Where finished batches wait for the consumer."""

from __future__ import annotations

import os
import threading
from collections import deque
from time import perf_counter
from typing import Generic, TypeVar

from seqrecord.engine.stats import EngineStats
from seqrecord.errors import ClipError

__all__ = ["Channel", "ClosedError"]

_Item = TypeVar("_Item")

_ENDED = "this iteration was ended: another one has begun"


class ClosedError(Exception):
    """The channel was closed; not for users."""


class Channel(Generic[_Item]):
    """From one producer to one consumer; at most `slots` items are being made or wait.

    The producer calls `reserve` before it makes an item, `put` when it is made, and `end` at last.
    `close`, from any thread, makes `reserve` and `check_open` raise `ClosedError`. The time that
    one side waits for the other is counted in `stats`.
    """

    def __init__(self, slots: int, stats: EngineStats) -> None:
        # Its lock is reentrant: `close` may be called by a finalizer, inside any other method.
        self._changed = threading.Condition()
        self._slots = slots
        self._stats = stats
        self._ready: deque[_Item] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._interrupted = False

    def reserve(self, number: int) -> None:
        """Wait for a slot to make item `number` in: until the consumer has taken enough."""
        begin = perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._slots > 0 or self._closed or self._interrupted)
            self.check_open()
            if self._interrupted:
                raise ClosedError
            self._slots -= 1
        end = perf_counter()
        self._stats.add(waiting_for_consumer_seconds=end - begin)
        self._stats.trace.add("wait for consumer", begin, end, batch=number)

    def try_reserve(self) -> bool:
        """Take a slot if there is one now."""
        with self._changed:
            self.check_open()
            free = self._slots > 0
            self._slots -= free
            return free

    def put(self, item: _Item) -> None:
        """Deliver an item; dropped when the channel is closed."""
        with self._changed:
            if not self._closed:
                self._ready.append(item)
                self._changed.notify_all()

    def take(self, process: int) -> _Item:
        """As `get`, for users, whose iteration began in the process of this number.

        Raises `ClipError` in another process, which was forked, and once the channel was closed.
        """
        self.check_taken(process)
        try:
            return self.get()
        except ClosedError:
            raise ClipError(_ENDED) from None

    def check_taken(self, process: int) -> None:
        """Raise what `take` raises before it waits for an item."""
        if os.getpid() != process:
            raise ClipError("an iteration cannot continue in a forked process: begin another")
        if self._closed:
            raise ClipError(_ENDED)

    def end(self, error: BaseException | None = None) -> None:
        """Nothing follows; after the last item, `get` raises the error once."""
        with self._changed:
            self._ended = True
            self._error = None if self._closed else error
            self._changed.notify_all()

    def get(self) -> _Item:
        """The next item, as soon as it is there; its slot is free again.

        Raises the producer's error, `StopIteration` after the end and `ClosedError` when closed.
        """
        begin = perf_counter()
        try:
            return self._get()
        finally:
            end = perf_counter()
            self._stats.add(waiting_for_batches_seconds=end - begin)
            self._stats.trace.add("wait for batch", begin, end)

    def _get(self) -> _Item:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
            self.check_open()
            if self._ready:
                self._slots += 1
                self._changed.notify_all()
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

    def close(self) -> None:
        """Drop what waits, and let both sides know."""
        with self._changed:
            self._closed, self._error = True, None
            self._ready.clear()
            self._changed.notify_all()

    def interrupt(self) -> None:
        """No more items are made: `reserve` raises `ClosedError`."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise `ClosedError` when the channel is closed."""
        if self.is_closed:
            raise ClosedError
