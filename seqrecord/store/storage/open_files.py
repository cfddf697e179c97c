"""Open files: one LRU cache for all storages of a process, limited by the file descriptor limit.

It keeps at most half of the soft limit `RLIMIT_NOFILE` open, and at most 4,096 files. Each open
checks the limit, because it may change. New descriptors have the lowest free number. If that is in
the last quarter below the limit, other code has many descriptors open, and the least recently used
half of the files is closed to leave descriptors for imports, sockets and shared memory. If an open
fails with `EMFILE` or `ENFILE`, the least recently used half is closed and the open is repeated. A
file in use by a thread is closed after its read. A forked child inherits open files, and closes its
own copies.

There is no lock, so neither a fork nor a finalizer can leave one behind. Each change is a single
call of an `OrderedDict` with keys of built-in types, which is atomic. Listing the keys is not: a
garbage collection may close files of another owner meanwhile, and the keys are listed again.
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
from seqrecord.store.storage.base import short_read
from seqrecord.store.storage.ranges import ByteRange

_MOST = 4096

_T = TypeVar("_T")


class Handle:
    """A regular file open for reading; closed when garbage collected."""

    def __init__(self, path: Path, flags: int = 0) -> None:
        self.fd = -1
        # Without O_NONBLOCK, opening a pipe would wait for its other end.
        flags |= os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        self.fd = with_descriptor(lambda: os.open(path, flags))
        if not stat.S_ISREG(os.fstat(self.fd).st_mode):
            raise StorageError("not a regular file", file=str(path))

    def read(self, item: ByteRange, buffer: memoryview, url: str) -> None:
        """Fill `buffer`, of bytes; raises `TransientError` for a read that ends too early."""
        num_read = 0
        while num_read < item.length:
            remainder = buffer[num_read:] if num_read else buffer
            count = os.preadv(self.fd, [remainder], item.start + num_read)
            if count == 0:
                if os.fstat(self.fd).st_size >= item.stop:
                    raise TransientError("a read ended early", file=url, got=num_read)
                raise short_read(url, item, num_read)
            num_read += count

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # a dead mount; the descriptor is closed anyway
                os.close(fd)

    def __del__(self) -> None:
        self.close()


_Key = tuple[int, str | int]  # owner, and a name chosen by the owner
_open: OrderedDict[_Key, Handle] = OrderedDict()  # least recently used first
_numbers = itertools.count()


class OpenFiles:
    """Open files of one owner, by name; closed by `close` or when the owner is collected."""

    def __init__(self) -> None:
        self._owner = next(_numbers)
        weakref.finalize(self, _close_owner, self._owner).atexit = False

    def get(self, name: str | int, open_file: Callable[[], Handle]) -> Handle:
        """The open file of this name, else `open_file()`."""
        key = self._owner, name
        handle = _open.get(key)
        if handle is None:
            handle = _open.setdefault(key, open_file())
            _close_oldest(_max_open(handle.fd))
            return handle
        try:  # noqa: SIM105 - speed: for every read
            _open.move_to_end(key)
        except KeyError:  # another thread closed it
            pass
        return handle

    def close(self, name: str | int | None = None) -> None:
        """Close the file of this name, or all files."""
        if name is None:
            _close_owner(self._owner)
        else:
            _open.pop((self._owner, name), None)


def with_descriptor(function: Callable[[], _T]) -> _T:
    """Call `function`, which opens a file; close cached files and repeat if too many are open."""
    while True:
        try:
            return function()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not _open:
                raise
        _close_oldest(len(_open) // 2)


def descriptor_limit() -> int:
    """This process's soft limit of file descriptors; the largest int32 if unlimited."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (1 << 31) - 1 if limit == resource.RLIM_INFINITY else limit


def _max_open(newest_fd: int) -> int:
    limit = descriptor_limit()
    max_open = min(_MOST, limit // 2)
    # Other code has most descriptors: half of ours are closed before it runs out
    # (test_open_files.py::test_descriptors_for_others).
    if newest_fd >= limit - limit // 4:
        max_open = min(max_open, len(_open) // 2)
    return max(1, max_open)


def _close_oldest(num_left: int) -> None:
    """Close least recently used files until `num_left` remain."""
    while len(_open) > max(0, num_left):
        try:
            _open.popitem(last=False)
        except KeyError:  # another thread emptied it
            return


def _close_owner(owner: int) -> None:
    keys: tuple[_Key, ...] | None = None
    # Repeated, not locked: a finalizer that waits for a lock of its own thread would never end
    # (test_open_files.py::test_a_garbage_collection_closes_files_while_others_are_closed).
    while keys is None:  # until no garbage collection interferes
        with contextlib.suppress(RuntimeError):
            keys = tuple(_open)
    for key in keys:
        if key[0] == owner:
            _open.pop(key, None)
