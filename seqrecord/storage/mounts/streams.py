"""Open handles of files that are best read front to back, each handle by one reader at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from seqrecord.storage.local.upload import Handle

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
        self._streams: list[_Stream] = []  # least recently used first

    @property
    def places(self) -> list[tuple[str, int]]:
        """The file of each handle, and where its reads will end; least recently used first."""
        with self._lock:
            return [(each.path, each.tail) for each in self._streams]

    @contextmanager
    def take(
        self, path: str, start: int, stop: int, open_file: Callable[[], Handle]
    ) -> Iterator[Handle]:
        """A handle to read bytes `[start, stop)` of a file, which nobody else uses meanwhile.

        `open_file` is called where a new one is needed. After an error the handle is not used
        again: a mount that came back may not know it any more.
        """
        ended = threading.Event()
        with self._lock:
            near = [
                each
                for each in reversed(self._streams)
                if each.path == path and 0 <= start - each.tail <= _MAX_GAP
            ]
            stream = max(near, key=lambda each: each.tail, default=None) or _Stream(path)
            self._streams = [each for each in self._streams if each is not stream]
            dropped = self._streams[: max(0, len(self._streams) + 1 - self._limit)]
            self._streams = [*self._streams[len(dropped) :], stream]
            stream.tail = stop
            before, stream.last = stream.last, ended
        del dropped  # closed outside the lock; one that is in use when that is over
        handle: Handle | None = None
        try:
            before.wait()
            handle = stream.handle = stream.handle or open_file()
            yield handle
        except BaseException:
            stream.handle = None
            if handle is not None:
                handle.close()
            with self._lock:
                self._streams = [each for each in self._streams if each is not stream]
            raise
        finally:
            ended.set()

    def drop(self, path: str | None = None) -> None:
        """Forget the handles of a file, or all; those in use are closed when they are done."""
        with self._lock:
            dropped = self._streams
            self._streams = [each for each in dropped if path not in (None, each.path)]
        del dropped


class _Stream:
    """A handle, where its last booked read will end, and what that read waits for."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.handle: Handle | None = None
        self.tail = 0
        self.last = threading.Event()
        self.last.set()
