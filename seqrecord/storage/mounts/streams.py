"""Open handles of files that are best read front to back, each handle by one reader at a time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Streams"]

_MAX_GAP = 64 << 20


class Streams:
    """Handles of files, at most `limit` while fewer are in use.

    What fetches a file for its readers looks at each handle by itself: it reads ahead where a
    handle goes on where it was, and gives that up after jumps. So a read takes the handle that was
    last nearest below it, or a new one where none is; and reads of one handle wait for their turn,
    in the order in which they asked for it.

    ::

        handle 1   [chunk 3][chunk 4][chunk 5]…
        handle 2                                [chunk 70][chunk 71]…

    Safe to use from many threads; a forked child makes its own.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._streams: OrderedDict[_Stream, None] = OrderedDict()  # least recently used first

    @contextmanager
    def take(self, path: str, start: int, stop: int, open_file: Callable[[], int]) -> Iterator[int]:
        """A descriptor to read bytes `[start, stop)` of a file, which nobody else uses meanwhile.

        `open_file` is called where a new handle is needed. After an error the handle is not used
        again: a mount that came back may not know it any more.
        """
        stream, turn, dropped = self._book(path, start, stop)
        _close(dropped)
        try:
            stream.wait(turn)
            try:
                if stream.fd < 0:
                    stream.fd = open_file()
                yield stream.fd
            except BaseException:
                with self._lock:
                    self._streams.pop(stream, None)
                stream.close()
                raise
        finally:
            stream.end(turn)
            with self._lock:
                stream.users -= 1
                is_last = not stream.users and stream not in self._streams
            if is_last:
                stream.close()

    def drop(self, path: str | None = None) -> None:
        """Forget the handles of a file, or all; those in use are closed when they are done."""
        with self._lock:
            chosen = [each for each in self._streams if path is None or each.path == path]
            for stream in chosen:
                del self._streams[stream]
            idle = [each for each in chosen if not each.users]
        _close(idle)

    def _book(self, path: str, start: int, stop: int) -> tuple[_Stream, int, list[_Stream]]:
        """The handle for a read, the read's turn there, and handles that are too many."""
        dropped: list[_Stream] = []
        with self._lock:
            near = [
                each
                for each in self._streams
                if each.path == path and 0 <= start - each.tail <= _MAX_GAP
            ]
            stream = max(reversed(near), key=lambda each: each.tail, default=None)
            if stream is None:
                stream = _Stream(path)
                idle = [each for each in self._streams if not each.users]
                dropped = idle[: max(0, len(self._streams) + 1 - self._limit)]
                for each in dropped:
                    del self._streams[each]
            self._streams[stream] = None
            self._streams.move_to_end(stream)
            stream.tail = stop
            stream.users += 1
            return stream, stream.join(), dropped


class _Stream:
    """A handle, where its last booked read will end, and the queue before it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self.tail = 0
        self.users = 0
        self._turns = 0
        self._now = 0
        self._moved = threading.Condition()

    def join(self) -> int:
        self._turns += 1
        return self._turns - 1

    def wait(self, turn: int) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self._now == turn)

    def end(self, turn: int) -> None:
        with self._moved:
            # Also of a turn that was given up while it waited.
            self._moved.wait_for(lambda: self._now == turn)
            self._now += 1
            self._moved.notify_all()

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # of a dead mount; the descriptor is gone even so
                os.close(fd)

    def __del__(self) -> None:
        self.close()


def _close(streams: list[_Stream]) -> None:
    for stream in streams:
        stream.close()
