"""A channel: hands items from one thread to another, and an error after the last one."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

__all__ = ["Channel", "ClosedError"]

_Item = TypeVar("_Item")


class ClosedError(Exception):
    """The channel was closed; not for users."""


class Channel(Generic[_Item]):
    """From one producer to one consumer; at most `slots` items are being made or wait.

    The producer calls `reserve` before it makes an item, `put` when it is made, and `end` at last.
    `close`, from any thread, makes `reserve` and `check_open` raise `ClosedError`.
    """

    def __init__(self, slots: int) -> None:
        # Its lock is reentrant: `close` may be called by a finalizer, inside any other method.
        self._changed = threading.Condition()
        self._slots = slots
        self._ready: deque[_Item] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False

    def reserve(self) -> None:
        """Wait for a slot to make an item in."""
        with self._changed:
            self._changed.wait_for(lambda: self._slots or self._closed)
            self.check_open()
            self._slots -= 1

    def try_reserve(self) -> bool:
        """Take a slot if there is one now."""
        with self._changed:
            self.check_open()
            free = self._slots > 0
            self._slots -= free
            return free

    def put(self, item: _Item) -> None:
        """Hand an item over; dropped when the channel is closed."""
        with self._changed:
            if not self._closed:
                self._ready.append(item)
                self._changed.notify_all()

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
                raise RuntimeError("StopIteration was raised where no iterator ends") from error
            raise error
        finally:
            del error  # its traceback refers to this frame

    def close(self) -> None:
        """Drop what waits, and let both sides know."""
        with self._changed:
            self._closed, self._error = True, None
            self._ready.clear()
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise `ClosedError` when the channel is closed."""
        if self.is_closed:
            raise ClosedError
