"""Open files: one LRU cache for all storages of a process, sized by the limit on descriptors.

At most half of the soft limit `RLIMIT_NOFILE` stays open, and no more than 4,096 files. The limit
is looked up at each open, because it may change. A new descriptor is the lowest free number: in the
last quarter below the limit it shows that others have many, and the least recently used half is
closed, so that imports, sockets and shared memory find descriptors. If an open fails with `EMFILE`
or `ENFILE`, the least recently used half is closed and the open is repeated. A file in use by a
thread is closed after its read. A forked child inherits open files, and closes its own copies.

There is no lock: each step is one call of an `OrderedDict` with keys of built-in types, which is
atomic. So nothing is left locked by a fork or by a finalizer.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import resource
import stat
import weakref
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from seqrecord.errors import StorageError, TransientError
from seqrecord.storage.base import short_read
from seqrecord.storage.ranges import ByteRange

_MOST = 4096

_T = TypeVar("_T")


class Handle:
    """A regular file that is open for reading; it is closed with its last use."""

    def __init__(self, path: Path, flags: int = 0) -> None:
        self.fd = -1
        # Opening a pipe would otherwise wait for its other end.
        flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        self.fd = with_descriptor(lambda: os.open(path, flags))
        if not stat.S_ISREG(os.fstat(self.fd).st_mode):
            raise StorageError("not a regular file", file=str(path))

    def read(self, item: ByteRange, buffer: memoryview, shown: str) -> None:
        """Fill `buffer`, of bytes. `TransientError` if the file ends before its reported size."""
        done = 0
        while done < item.length:
            rest = buffer[done:] if done else buffer
            count = os.preadv(self.fd, [rest], item.start + done)
            if count == 0:
                if os.fstat(self.fd).st_size >= item.stop:
                    raise TransientError("a read ended early", file=shown, got=done)
                raise short_read(shown, item, done)
            done += count

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # of a dead mount; the descriptor is gone even so
                os.close(fd)

    def __del__(self) -> None:
        self.close()


_Key = tuple[int, str | int]  # owner, and a name that the owner chose
_open: OrderedDict[_Key, Handle] = OrderedDict()  # least recently used first
_numbers = itertools.count()


class OpenFiles:
    """The open files of one owner, by name. They are closed when the owner closes or drops it."""

    def __init__(self) -> None:
        self._owner = next(_numbers)
        weakref.finalize(self, _close_owner, self._owner).atexit = False

    def get(self, name: str | int, open_file: Callable[[], Handle]) -> Handle:
        """The open file of this name; `open_file()` if none is open."""
        key = self._owner, name
        handle = _open.get(key)
        if handle is None:
            handle = _open.setdefault(key, open_file())
            _close_oldest(_most_open(handle.fd))
            return handle
        try:  # noqa: SIM105 - for every read
            _open.move_to_end(key)
        except KeyError:  # another thread closed it
            pass
        return handle

    def close(self, name: str | int | None = None) -> None:
        """Close the file of this name, or all."""
        if name is None:
            _close_owner(self._owner)
        else:
            _open.pop((self._owner, name), None)


def with_descriptor(function: Callable[[], _T]) -> _T:
    """`function()`, which opens a file; repeated with fewer open files if there are too many."""
    while True:
        try:
            return function()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not _open:
                raise
        _close_oldest(len(_open) // 2)


def descriptor_limit() -> int:
    """How many descriptors this process may have; `RLIM_INFINITY` counts as the largest number."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (1 << 31) - 1 if limit == resource.RLIM_INFINITY else limit


def _most_open(newest: int) -> int:
    limit = descriptor_limit()
    most = min(_MOST, limit // 2)
    if newest >= limit - limit // 4:
        most = min(most, len(_open) // 2)
    return max(1, most)


def _close_oldest(left: int) -> None:
    """Close the least recently used files until so many are left."""
    while len(_open) > max(0, left):
        try:
            _open.popitem(last=False)
        except KeyError:  # another thread was faster
            return


def _close_owner(owner: int) -> None:
    for key in tuple(_open):
        if key[0] == owner:
            _open.pop(key, None)
