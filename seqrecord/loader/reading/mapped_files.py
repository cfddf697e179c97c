"""Local files mapped read-only, side by side in one reserved range of addresses.

`MappedFiles` is for files that never change while they are mapped: record files, and entries of a
cache that are replaced by new files. The range is one array, so that one call copies frames of all
files, and a frame's place in it is an integer::

    memory     | zeros | file 0      | file 1    | not mapped | file 3  |
    places             ^ places[0]   ^ places[1]

Use::

    if not can_map(path):                            # network file systems, FUSE, other systems
        …
    files = MappedFiles.reserve([size, …])           # takes no memory; None: no room
    files.map(number, path)                          # in the loading thread; keeps no descriptor
    files.read_ahead(number, start, stop)            # optional; does not wait
    files.touch(number, start, stop)                 # in the loading thread, before the first copy
    version = files.check(number, state)             # before copies: no file became shorter
    files.memory[files.places[number] + start :][: stop - start]

A read of mapped bytes that a disk cannot deliver, or that lie behind the end of a file that another
process has shortened, kills the process (SIGBUS). `touch` and `check` raise `StorageError` instead.
A file that is replaced or deleted stays readable. `check` also says whether another program may
have written to a file in place: marks of bytes whose checksums were compared are versions of it.
After a fork, parent and child have maps of their own. Maps and addresses are freed with the last
reference to `memory` or a view of it. A process has at most a quarter of Linux's limit of maps
(65,530 by default) here, and no open descriptor.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import sys
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import StorageError
from seqrecord.store.storage.base import short_read
from seqrecord.store.storage.local import find_remote_mount
from seqrecord.store.storage.local_upload import local_errors
from seqrecord.store.storage.open_files import Handle
from seqrecord.store.storage.ranges import ByteRange

_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # `mmap` has no names for these of Linux
MADV_POPULATE_READ = 22  # since Linux 5.14
_POPULATED_AT_ONCE = 64 << 20  # bytes; other threads may map meanwhile
_READ_AT_ONCE = 1 << 20
_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
_DEFAULT_MAP_COUNT = 65_530
_PROT_NONE = 0

_reserved_maps: dict[int, int] = {}
"""The most maps of each `MappedFiles` of this process."""
_tokens = itertools.count()


class _Source(NamedTuple):
    """A mapped file, as it was when it was mapped."""

    path: str
    device: int
    inode: int
    size: int


STATE_NUMBERS = 3
"""Numbers of a file's state, see `MappedFiles.check`."""
MAX_VERSION = (1 << 16) - 1
"""The version after it is 1 again."""


class MappedFiles:
    """Files mapped read-only in one range; see the module. Thread-safe if each file has one thread
    that maps it.

    Attributes:
        memory: the range, uint8 [nbytes], not writable. Only mapped parts, and the zeros at its
            start, may be read.
        places: the first byte of each file in `memory`, int64 [files]; multiples of a page.
    """

    def __init__(
        self, memory: npt.NDArray[np.uint8], sizes: Sequence[int], zeros: int, populate: int
    ) -> None:
        self.memory = memory
        self._populate = populate
        self._sizes = list(sizes)
        starts = itertools.accumulate(map(_whole_pages, sizes), initial=zeros)
        self.places = np.array(list(starts)[:-1], np.int64)
        self._sources: dict[int, _Source] = {}

    @classmethod
    def reserve(
        cls,
        sizes: Sequence[int],
        zero_bytes: int = 0,
        *,
        max_maps: int | None = None,
        populate: int = MADV_POPULATE_READ,
    ) -> MappedFiles | None:
        """Reserve addresses for files of at most these sizes, behind `zero_bytes` zeros.

        `max_maps` replaces the limit of this process, and `populate` the advice of `touch`.

        Returns `None` if this system cannot map files, or if the process would have too many maps
        or addresses.
        """
        most_maps = 2 * len(sizes) + 2  # a file, and a gap behind it
        if not is_supported() or num_reserved_maps() + most_maps > (
            _max_maps() if max_maps is None else max_maps
        ):
            return None
        zeros = _whole_pages(zero_bytes)
        nbytes = max(zeros + sum(map(_whole_pages, sizes)), mmap.PAGESIZE)
        try:
            # Nobody writes, so no memory is committed, whatever the overcommit mode.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            reserved = mmap.mmap(-1, nbytes, flags=flags, prot=_PROT_NONE)
        except (OSError, OverflowError):  # for example, `ulimit -v`
            return None
        memory = np.frombuffer(reserved, np.uint8)
        if zeros:
            _map_at(memory, 0, zeros, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
        token = next(_tokens)
        _reserved_maps[token] = most_maps
        # Not of this object: views of `memory` may live longer, and keep the maps.
        weakref.finalize(reserved, _reserved_maps.pop, token, None).atexit = False
        return cls(memory, sizes, zeros, populate)

    def map(self, number: int, path: str | os.PathLike[str], *, may_be_short: bool = False) -> None:
        """Map a file at its place. Replaces the file that was mapped there.

        With `may_be_short`, `touch` raises the error of bytes that a shorter file lacks.

        Raises `StorageError` for a file that cannot be read, that is shorter than its size, or that
        is not on a local disk; see `can_map`.
        """
        name, size = os.fspath(path), self._sizes[number]
        with local_errors(name):
            handle = Handle(Path(name))
            try:
                status = os.fstat(handle.fd)
                if not _is_local(status.st_dev, name):
                    raise StorageError("cannot map a file of this file system", file=name)
                if status.st_size < size and not may_be_short:
                    raise short_read(name, ByteRange(0, size), status.st_size)
                if size:
                    place, length = int(self.places[number]), _whole_pages(size)
                    _map_at(self.memory, place, length, mmap.PROT_READ, mmap.MAP_SHARED, handle.fd)
            finally:
                handle.close()
        size = min(size, status.st_size)
        self._sources[number] = _Source(name, status.st_dev, status.st_ino, size)

    def is_mapped(self, number: int) -> bool:
        """Whether a file is mapped."""
        return number in self._sources

    def unmap(self, number: int) -> None:
        """End the map of a file. Nobody may read it any more."""
        if self._sources.pop(number, None) is not None and (size := self._sizes[number]):
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            place = int(self.places[number])
            _map_at(self.memory, place, _whole_pages(size), _PROT_NONE, flags, -1)

    def read_ahead(self, number: int, start: int, stop: int) -> None:
        """Ask the system to read bytes `[start, stop)` of a file into its page cache."""
        begin, length = self._pages(number, start, stop)
        _libc().madvise(self.memory.ctypes.data + begin, length, mmap.MADV_WILLNEED)

    def touch(self, number: int, start: int, stop: int) -> None:
        """Read bytes `[start, stop)` of a file into the page cache and map their pages.

        Copies then wait for no disk, as long as the pages stay there. Without the GIL. Raises
        `StorageError` for bytes that cannot be read, or behind the end of the file.
        """
        begin, length = self._pages(number, start, stop)
        address, end = self.memory.ctypes.data + begin, begin + length
        while begin < end:
            part = min(end - begin, _POPULATED_AT_ONCE)
            if _libc().madvise(address, part, self._populate):
                code = ctypes.get_errno()
                if code in (errno.EINTR, errno.EAGAIN):
                    continue
                self._read_through(number, start, stop)
                if code != errno.EINVAL:  # Linux before 5.14 reads on access
                    raise StorageError(
                        f"cannot read a mapped file: {os.strerror(code)}",
                        file=self._sources[number].path,
                        offset=start,
                    )
                return
            address, begin = address + part, begin + part

    def check(self, number: int, state: npt.NDArray[np.int64]) -> int:
        """The version of a mapped file in `state`: another one if somebody may have written to it
        since the last call with this state.

        `state`, int64 [3], are the file's times of modification and of change, in nanoseconds, and
        its version, 1 to `MAX_VERSION`; zeros before the first call. It belongs beside marks of
        the file's bytes: forks that share these share it. A new version says only that the marks
        are void: programs that keep the time of modification (cp -p, rsync) change the other
        one, and so do links, permissions and file systems whose times are not stable. A file that
        another one has replaced, or that is gone, has a new version in each call: nobody can ask.

        Cheap, one system call: for each batch of copies. Raises `StorageError` if the file has
        become shorter.
        """
        source = self._sources[number]
        status = _status(source)
        if status is not None and status.st_size < source.size:
            raise short_read(source.path, ByteRange(0, source.size), status.st_size)
        modified, changed, version = state.tolist()
        times = (0, 0) if status is None else (status.st_mtime_ns, status.st_ctime_ns)
        if status is None or times != (modified, changed):
            # Before the times: a fork that finds these equal must find the version, too.
            state[2] = version = version % MAX_VERSION + 1
            state[:2] = times
        return int(version)

    def _pages(self, number: int, start: int, stop: int) -> tuple[int, int]:
        """Place in `memory`, and length, of the whole pages with bytes of a file."""
        begin = int(self.places[number]) + start
        place = begin // mmap.PAGESIZE * mmap.PAGESIZE
        return place, _whole_pages(begin + stop - start - place)

    def _read_through(self, number: int, start: int, stop: int) -> None:
        """Read bytes of the file itself: raises its error, if it has one."""
        source = self._sources[number]
        with local_errors(source.path):
            handle = Handle(Path(source.path))
            try:
                buffer = memoryview(bytearray(min(_READ_AT_ONCE, stop - start)))
                for begin in range(start, stop, _READ_AT_ONCE):
                    item = ByteRange(begin, min(begin + _READ_AT_ONCE, stop))
                    handle.read(item, buffer[: item.length], source.path)
            finally:
                handle.close()


def num_reserved_maps() -> int:
    """The most maps that all `MappedFiles` of this process may have."""
    return sum(list(_reserved_maps.values()))


@cache
def is_supported() -> bool:
    """Whether files can be mapped here: on Linux."""
    return sys.platform == "linux"


def can_map(path: str | os.PathLike[str], *, table: str | None = None) -> bool:
    """Whether a file or folder is on a local file system of a system that can map it.

    `table` replaces the table of mounts, see `find_remote_mount`.
    """
    try:
        device = Path(path).stat().st_dev
    except OSError:
        return False
    if table is not None:
        return is_supported() and find_remote_mount(path, table=table) is None
    return is_supported() and _is_local(device, os.fspath(path))


_is_device_local: dict[int, bool] = {}


def _is_local(device: int, path: str) -> bool:
    """Whether a file of a device is on a local disk: the mount table is read once per device."""
    is_local = _is_device_local.get(device)
    if is_local is None:
        is_local = _is_device_local[device] = find_remote_mount(path) is None
    return is_local


def _status(source: _Source) -> os.stat_result | None:
    """Status of a mapped file; `None` if another file, or none, has its name now."""
    try:  # no context managers: before each batch
        status = os.stat(source.path)  # noqa: PTH116 - speed
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        with local_errors(source.path):
            raise
    return status if (status.st_dev, status.st_ino) == (source.device, source.inode) else None


def _max_maps() -> int:
    try:
        limit = int(_MAP_COUNT.read_text())
    except (OSError, ValueError):
        limit = _DEFAULT_MAP_COUNT
    return limit // 4


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


def _map_at(
    memory: npt.NDArray[np.uint8], place: int, length: int, protection: int, flags: int, fd: int
) -> None:
    """Replace a part of reserved memory by another map; `mmap.mmap` cannot choose an address."""
    address = memory.ctypes.data + place
    result = _libc().mmap(address, length, protection, flags | _MAP_FIXED, fd, 0)
    if result != address:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@cache
def _libc() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
        ctypes.c_int64,
    ]
    library.madvise.restype = ctypes.c_int
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
