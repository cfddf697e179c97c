"""Files of decoded frames in a cache folder: few, sparse, each with the frames of many chunks.

A file has chunks of one place (everything that determines decoded frames, beside pages) and one
record file, up to 1 GiB. Integers are little-endian::

    │ head │ table of chunks │ CRC32C of each slot, 0 if absent │ slots │

    head    magic, bytes of a slot, number of slots and of entries in the table, CRC32C
    chunk   identity (32 bytes), first slot, number of slots, CRC32C; the first one of zeros ends
            the table, one without slots closes the file for further chunks
    slot    a frame; its CRC32C covers the place, the chunk's identity and its number in the chunk

A chunk is appended to the table, under the folder's lock, when its first frame is added. Its slots
are its own for good: a slot that another process maps is never written with other bytes. The parts
begin at multiples of 4 KiB. The size of a file never changes; blocks are allocated for the slots
that are added, under the lock, so that a scan counts the blocks of all writers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import StorageError
from seqrecord.loader.reading.mapped_files import STATE_NUMBERS, MappedFiles
from seqrecord.store.checksum import Buffer, crc32c
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.storage.cache_folder import (
    READ,
    WRITE,
    Bools,
    CacheFolder,
    Protected,
    Usage,
    bytes_on_disk,
    is_folder,
    open_entry,
    read_only_errors,
    remove_entry,
    write_at,
)
from seqrecord.store.tables.grids import IntArray, run_bounds

_MAGIC = b"SQFRAMES"
_HEAD = struct.Struct("<8sQQQI")
_CHUNK = struct.Struct("<32sQQ12xI")
_BLOCK = 4096
_MAX_BYTES = 1 << 30  # of the slots of a file: what is evicted together
_LIMIT_SHARE = 16  # a file has at most this part of the limit
_MAX_CHUNKS = 1 << 16  # of a file
_CREATED_BYTES = 8 * _BLOCK  # for a new file and its folder, and blocks that slots begin and end in
_USE_SECONDS = 1.0  # between questions to a mapped file that loads use
_NOTE_SECONDS = 60.0  # between notes of its use, of all processes
_EXTENT_SHARE = 10  # bits: for the file system's own blocks of a file


class FrameEntry(NamedTuple):
    """The frames of a chunk in a cache.

    Its place, an identity of 32 bytes that is unique there, bytes and number of its slots, 16
    hexadecimal digits for its record file, and the number of frames in that.
    """

    place: str
    identity: bytes
    slot_bytes: int
    num_slots: int
    tag: str
    file_slots: int


class _FrameFile:
    """A valid file: its offsets, and the part of its table that has been read."""

    def __init__(self, path: str, slot_bytes: int, num_slots: int, max_chunks: int) -> None:
        self.path, self.slot_bytes, self.num_slots = path, slot_bytes, num_slots
        self.max_chunks = max_chunks
        self.sums_start = _aligned(_BLOCK + max_chunks * _CHUNK.size)
        self.slots_start = _aligned(self.sums_start + 4 * num_slots)
        self.size = self.slots_start + num_slots * slot_bytes
        self.num_chunks = self.used_slots = 0
        self.map: _FileMap | None = None
        self.is_mappable = True
        # Closed for further chunks, or damaged: some of its slots may be in use unknown to us.
        self.is_closed = self.is_damaged = False

    def has_room(self, num_slots: int) -> bool:
        """Whether a chunk of so many slots fits, before the entry that closes the table."""
        fits = self.used_slots + num_slots <= self.num_slots
        return fits and self.num_chunks < self.max_chunks - 1


class _FileMap:
    """A mapped file, and marks of the slots that this process has checked: the version of the file
    then, uint16 [num_slots].
    """

    def __init__(self, files: MappedFiles, num_slots: int, changes: IntArray) -> None:
        self._changes = changes  # not its owner: maps end with their last reference
        self.files, self.marks = files, np.zeros(num_slots, np.uint16)
        self.start = files.memory.ctypes.data + int(files.places[0])
        self.asked = 0.0  # when its use was noted, or it was asked for changes
        self._state = np.zeros(STATE_NUMBERS, np.int64)
        files.check(0, self._state)

    @property
    def version(self) -> int:
        """The version of the file at the last call of `check`."""
        return int(self._state[-1])

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """See `MappedFiles`."""
        return self.files.memory

    def check(self) -> None:
        """Find a new version: somebody may have written to the file.

        Other processes that add slots or note their use are somebody, too: then checksums are
        compared once more. Raises `StorageError` if the file has become shorter.
        """
        if self.version != self.files.check(0, self._state):
            self._changes[0] += 1

    def is_used_before(self, seconds: float) -> bool:
        """Whether the last use that any process has noted is longer ago; of the last `check`."""
        return not self.asked or time.time_ns() - int(self._state[0]) > seconds * 1e9

    def take_times(self) -> None:
        """Take the times of the file after a change of one's own, in the same version."""
        state = self._state.copy()
        self.files.check(0, state)
        self._state[:-1] = state[:-1]

    def bytes(self, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Bytes of the file, uint8 [n], which were touched."""
        place = int(self.files.places[0])
        return self.files.memory[place + start : place + stop]


class MappedSlots(NamedTuple):
    """Addresses of consecutive frames in a mapped file, 0 for absent ones; int64 [n]."""

    addresses: IntArray
    file: _FileMap


class _Spot(NamedTuple):
    """The place of a chunk in a file. `label` is where the checksums of its slots start."""

    file: _FrameFile
    first_slot: int
    num_slots: int
    label: int

    def sums_offset(self, slot: int) -> int:
        """Where the checksum for a slot of the chunk begins."""
        return self.file.sums_start + 4 * (self.first_slot + slot)

    def offset(self, slot: int) -> int:
        """Where a slot of the chunk begins."""
        return self.file.slots_start + (self.first_slot + slot) * self.file.slot_bytes

    def checksums(self, slot: int, data: memoryview) -> npt.NDArray[np.uint32]:
        """The checksums of consecutive slots from `slot` on, never 0."""
        size = self.file.slot_bytes
        sums = [
            crc32c(number.to_bytes(8, "little"), data[begin : begin + size], start=self.label) or 1
            for number, begin in enumerate(range(0, len(data), size), slot)
        ]
        return np.array(sums, "<u4")


class FrameFiles:
    """Frames of chunks in a cache folder. Errors are counted, never raised; see `CacheFolder`.

    Safe for threads, processes and forks; picklable.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self.folder = folder
        self._tables: dict[tuple[str, str], _Tables] = {}  # by place and tag
        self._listings: dict[str, _Listing] = {}  # by place
        self._changes = np.zeros(1, np.int64)
        self._lock = PerProcess(threading.Lock)
        # Threads of a process would poll for the folder's lock.
        self._adding = PerProcess(threading.Lock)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.folder,)

    def read(self, entry: FrameEntry, slot: int, out: memoryview) -> Bools:
        """Fill `out` with consecutive frames of a chunk from `slot` on, as far as they are there.

        Returns which were there, bool[slots]. Damaged ones count as absent. The bytes of absent
        frames in `out` are undefined afterwards.
        """
        hits = np.zeros(len(out) // entry.slot_bytes, np.bool_)
        return self.folder.attempt(partial(self._read, entry, slot, out, hits), np.zeros_like(hits))

    def locate(self, entry: FrameEntry, slot: int, count: int) -> MappedSlots | None:
        """Locate consecutive frames of a chunk from `slot` on, in a mapped file.

        They are touched, and their checksums compared, once per process. `None` if the file is
        missing or cannot be mapped.
        """
        return self.folder.attempt(partial(self._locate, entry, slot, count), None)

    def find_changes(self) -> None:
        """Find new versions of all mapped files; of shorter ones, copies raise the error."""
        with self._lock.get():
            files = [file for tables in self._tables.values() for file in tables.files.values()]
        for file in files:
            if file is not None and file.map is not None:
                with contextlib.suppress(StorageError):
                    file.map.check()

    @property
    def num_changes(self) -> int:
        """How often a mapped file has had a new version."""
        return int(self._changes[0])

    def covers(self, entry: FrameEntry, slot: int, count: int) -> bool:
        """Whether a chunk's frames are all there, without a look at them."""

        def covers() -> bool:
            with self._open_slots(entry, slot, count) as (_, _, sums):
                return bool(sums.all())

        return self.folder.attempt(covers, otherwise=False)

    def add(
        self, entry: FrameEntry, slot: int, data: memoryview, protected: Protected | None = None
    ) -> None:
        """Add consecutive frames of a chunk from `slot` on, if they fit.

        `protected` entries are not evicted for them.
        """
        add = partial(self._add, entry, slot, data, protected)
        self.folder.attempt(add, None, is_adding=True)

    def _read(self, entry: FrameEntry, slot: int, out: memoryview, hits: Bools) -> Bools:
        self.folder.trim()
        with self._open_slots(entry, slot, len(hits)) as (fd, spot, sums):
            if spot is None or not sums.any():
                return hits
            _fill(fd, out, spot.offset(slot))
            hits |= (sums != 0) & (spot.checksums(slot, out) == sums)
            if damaged := np.count_nonzero(sums) - np.count_nonzero(hits):
                self.folder.count(damaged=int(damaged))
            with contextlib.suppress(OSError):  # read-only disk
                self.folder.note_use(fd)
        return hits

    def _locate(self, entry: FrameEntry, slot: int, count: int) -> MappedSlots | None:
        self.folder.trim()
        if (spot := self._spot(entry)) is None or not spot.file.is_mappable:
            return None
        file, begin = spot.file, spot.first_slot + slot
        try:
            if (file_map := file.map or self._map(file)) is None:
                return None
            self._note_use(file_map, file.path)
            marks, version = file_map.marks[begin : begin + count], file_map.version
            checked = marks == version
            if not checked.all():
                self._check(spot, file_map, slot, checked)
                marks[checked] = version
        except StorageError:  # of the disk, or a file that became shorter: reading says which
            file.is_mappable = False
            return None
        places = np.arange(count) * file.slot_bytes + (file_map.start + spot.offset(slot))
        return MappedSlots(np.where(checked, places, 0), file_map)

    def _note_use(self, file_map: _FileMap, path: str) -> None:
        """At most once a second, look for a new version of a file; note its use if nobody has done
        that for a minute. A note is a new version for all other processes.
        """
        if time.monotonic() - file_map.asked > _USE_SECONDS:
            with self._lock.get(), contextlib.suppress(OSError):  # read-only disk, or evicted
                file_map.check()
                if file_map.is_used_before(_NOTE_SECONDS):
                    self.folder.note_use(path)
                    file_map.take_times()
            file_map.asked = time.monotonic()

    def _map(self, file: _FrameFile) -> _FileMap | None:
        """Map a file; `None` if that is not possible here."""
        with self._lock.get():
            if file.map is None:
                files = MappedFiles.reserve([file.size])
                if files is None:
                    file.is_mappable = False
                    return None
                files.map(0, file.path)
                file.map = _FileMap(files, file.num_slots, self._changes)
            return file.map

    def _check(self, spot: _Spot, file_map: _FileMap, slot: int, checked: Bools) -> None:
        """Compare checksums of slots that are there and not `checked`, which is changed."""
        size, start = spot.file.slot_bytes, spot.sums_offset(slot)
        file_map.files.touch(0, start, stop := start + 4 * len(checked))
        sums = file_map.bytes(start, stop).view("<u4")
        is_new = (sums != 0) & ~checked
        # Not the slots between them: on a tmpfs, absent ones would take memory.
        for begin, end in pairwise(run_bounds(constant=is_new)):
            if is_new[begin]:
                start = spot.offset(slot + begin)
                file_map.files.touch(0, start, stop := start + (end - begin) * size)
                data = file_map.bytes(start, stop).data
                is_right = spot.checksums(slot + begin, data) == sums[begin:end]
                checked[begin:end] = is_right
                if not is_right.all():
                    self.folder.count(damaged=int(np.count_nonzero(~is_right)))

    def _spot(self, entry: FrameEntry) -> _Spot | None:
        """Where a chunk is, if it is there."""
        tables = self._tables_of(entry)
        if (spot := tables.spots.get(entry.identity)) is None:
            with self._lock.get():
                spot = tables.refresh(self._names(entry)).get(entry.identity)
        return None if spot is None or spot.num_slots != entry.num_slots else spot

    @contextlib.contextmanager
    def _open_slots(
        self, entry: FrameEntry, slot: int, count: int
    ) -> Iterator[tuple[int, _Spot | None, npt.NDArray[np.uint32]]]:
        """Descriptor of a chunk's file, its spot there, and the checksums of some slots.

        0 for absent slots.
        """
        sums = np.zeros(count, "<u4")
        if (spot := self._spot(entry)) is None:
            yield -1, None, sums
            return
        if (fd := open_entry(spot.file.path, READ)) is None:  # evicted
            with self._lock.get():
                self._tables_of(entry).forget(spot.file)
            yield -1, None, sums
            return
        try:
            _fill(fd, sums.view(np.uint8).data, spot.sums_offset(slot))
            yield fd, spot, sums
        finally:
            os.close(fd)

    def _add(
        self, entry: FrameEntry, slot: int, data: memoryview, protected: Protected | None
    ) -> None:
        folder, nbytes = self.folder, len(data) + _CREATED_BYTES
        with read_only_errors(folder.path), self._adding.get(), folder.locked() as usage:
            with self._lock.get():
                tables = self._tables_of(entry)
                names = self._names(entry, is_locked=True)
                spot = tables.refresh(names, is_locked=True).get(entry.identity)
            extent_bytes = folder.limit >> _EXTENT_SHARE
            if not folder.make_room(usage, nbytes + extent_bytes, protected):
                folder.pause_adding()
                return
            if spot is None:
                with self._lock.get():
                    spot = self._claim(entry, tables, usage)
            if spot.num_slots != entry.num_slots:
                return
            if (fd := open_entry(spot.file.path, WRITE)) is None:  # evicted
                return
            try:
                with _counting(usage, fd):
                    os.posix_fallocate(fd, spot.offset(slot), len(data))
                    sums_bytes = 4 * (len(data) // entry.slot_bytes)
                    os.posix_fallocate(fd, spot.sums_offset(slot), sums_bytes)
            except BaseException:
                os.close(fd)
                raise
        try:
            write_at(fd, data, spot.offset(slot))
            write_at(fd, spot.checksums(slot, data).view(np.uint8).data, spot.sums_offset(slot))
            folder.note_use(fd)
        finally:
            os.close(fd)

    def _claim(self, entry: FrameEntry, tables: _Tables, usage: Usage) -> _Spot:
        """Append a chunk to the table of a file that has room, or of a new one.

        The lock must be held.
        """
        max_bytes = min(_MAX_BYTES, self.folder.limit // _LIMIT_SHARE)
        num_slots = min(entry.file_slots, max_bytes // entry.slot_bytes)
        for file in tables.files.values():
            if file is not None and not (file.is_closed or file.is_damaged):
                if file.has_room(entry.num_slots):
                    return tables.append(file, usage, entry.identity, entry.num_slots)
                if entry.num_slots <= num_slots:
                    tables.append(file, usage, bytes(32), 0)
        num_slots = max(num_slots, entry.num_slots)
        name = f"{self.folder.folder_of(entry.place)}/{entry.tag}-{secrets.token_hex(12)}"
        file = _FrameFile(name, entry.slot_bytes, num_slots, min(num_slots + 2, _MAX_CHUNKS))
        head = _HEAD.pack(_MAGIC, file.slot_bytes, num_slots, file.max_chunks, 0)[:-4]
        fd = self.folder.create(usage, entry.place, file.path, file.size)
        try:
            usage.bytes += bytes_on_disk(_BLOCK)
            checksum = crc32c(head, start=tables.label).to_bytes(4, "little")
            write_at(fd, memoryview(head + checksum), 0)
        finally:
            os.close(fd)
        tables.files[file.path] = file
        return tables.append(file, usage, entry.identity, entry.num_slots)

    def _tables_of(self, entry: FrameEntry) -> _Tables:
        key = entry.place, entry.tag
        if (tables := self._tables.get(key)) is None:
            tables = self._tables.setdefault(key, _Tables(entry.place, entry.slot_bytes))
        return tables

    def _names(self, entry: FrameEntry, *, is_locked: bool = False) -> list[str]:
        """Paths of the files with an entry's place and tag."""
        folder = self.folder.folder_of(entry.place)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if not is_folder(folder):
                return []  # a link: what it points to is not of this cache
            listing, modified = self._listings.get(folder), os.lstat(folder).st_mtime_ns
            if listing is None or listing.modified != modified or is_locked:
                listing = _Listing(modified, {})
                with os.scandir(folder) as children:
                    for child in children:
                        if len(child.name) == 41:
                            listing.names.setdefault(child.name[:16], []).append(child.path)
                self._listings[folder] = listing
            return listing.names.get(entry.tag, [])
        return []


class _Listing(NamedTuple):
    """The files of a place by tag, and when it was modified, in nanoseconds."""

    modified: int
    names: dict[str, list[str]]


class _Tables:
    """The tables of files with a place and tag: where chunks are, by identity.

    Callers hold the lock of `FrameFiles`.
    """

    def __init__(self, place: str, slot_bytes: int) -> None:
        self.label, self._slot_bytes = crc32c(place.encode()), slot_bytes
        self.files: dict[str, _FrameFile | None] = {}  # by path; `None` is invalid
        self.spots: dict[bytes, _Spot] = {}

    def refresh(self, paths: list[str], *, is_locked: bool = False) -> dict[bytes, _Spot]:
        """Read what is new in the files at these paths; returns the spots.

        Invalid files are removed if the folder's lock is held: no other process is creating them.
        """
        for path in self.files.keys() - paths:
            if (file := self.files[path]) is not None:
                self.forget(file)
            self.files.pop(path, None)
        for path in paths:
            file = self.files.get(path)
            if file is not None and file.is_closed:
                continue  # nothing is appended any more
            fd = open_entry(path, READ)
            try:
                if file is None and fd is not None:
                    self.files[path] = file = self._parse(path, fd)
                if file is not None and fd is not None:
                    self._read_table(file, fd)
                elif is_locked:
                    with contextlib.suppress(OSError):
                        remove_entry(path)
            finally:
                if fd is not None:
                    os.close(fd)
        return self.spots

    def forget(self, file: _FrameFile) -> None:
        """Forget a file that was removed."""
        self.files.pop(file.path, None)
        self.spots = {key: spot for key, spot in self.spots.items() if spot.file is not file}

    def append(self, file: _FrameFile, usage: Usage, identity: bytes, num_slots: int) -> _Spot:
        """Append a chunk to a file's table; the folder's lock must be held."""
        entry = _CHUNK.pack(identity, file.used_slots, num_slots, 0)[:-4]
        number, spot = file.num_chunks, self._spot(file, identity, file.used_slots, num_slots)
        if (fd := open_entry(file.path, WRITE)) is not None:
            try:
                checksum = self._checksum(number, entry).to_bytes(4, "little")
                with _counting(usage, fd):
                    write_at(fd, memoryview(entry + checksum), _BLOCK + number * _CHUNK.size)
            finally:
                os.close(fd)
        self._note(file, identity, spot)
        return spot

    def _parse(self, path: str, fd: int) -> _FrameFile | None:
        """Read the head of a file; `None` if it is invalid."""
        head, size = os.pread(fd, _HEAD.size, 0), os.fstat(fd).st_size
        if len(head) < _HEAD.size:
            return None
        magic, slot_bytes, num_slots, max_chunks, checksum = _HEAD.unpack(head)
        if magic != _MAGIC or crc32c(head[:-4], start=self.label) != checksum:
            return None
        file = _FrameFile(path, slot_bytes, num_slots, max_chunks)
        return file if (file.slot_bytes, file.size) == (self._slot_bytes, size) else None

    def _read_table(self, file: _FrameFile, fd: int) -> None:
        """Read the new entries of a table, all of them: the next one is appended behind the last.

        At first the whole table, in which entries may be lost; then a block at a time.
        """
        is_full = True
        while is_full:
            count = file.max_chunks - file.num_chunks
            if file.num_chunks:  # entries that other processes have appended
                count = min(count, _BLOCK // _CHUNK.size)
            data = np.zeros(count * _CHUNK.size, np.uint8)
            _fill(fd, data.data, _BLOCK + file.num_chunks * _CHUNK.size)
            entries = data.reshape(count, _CHUNK.size)
            [numbers] = entries.any(axis=1).nonzero()
            num_entries = int(numbers[-1]) + 1 if len(numbers) else 0
            is_full = 0 < count == num_entries
            for entry in entries[:num_entries]:
                identity, first_slot, num_slots, checksum = _CHUNK.unpack(entry.data)
                if self._checksum(file.num_chunks, entry[:-4].data) == checksum:
                    self._note(file, identity, self._spot(file, identity, first_slot, num_slots))
                else:
                    file.num_chunks, file.is_damaged = file.num_chunks + 1, True

    def _note(self, file: _FrameFile, identity: bytes, spot: _Spot) -> None:
        file.num_chunks += 1
        file.used_slots = max(file.used_slots, spot.first_slot + spot.num_slots)
        file.is_closed |= not spot.num_slots
        if spot.num_slots > 0 and file.used_slots <= file.num_slots:
            self.spots[identity] = spot

    def _checksum(self, number: int, entry: Buffer) -> int:
        return crc32c(number.to_bytes(8, "little"), entry, start=self.label)

    def _spot(self, file: _FrameFile, identity: bytes, first_slot: int, num_slots: int) -> _Spot:
        return _Spot(file, first_slot, num_slots, crc32c(identity, start=self.label))


@contextlib.contextmanager
def _counting(usage: Usage, fd: int) -> Iterator[None]:
    """Count the blocks that a file is given."""
    num_blocks = os.fstat(fd).st_blocks
    yield
    usage.bytes += 512 * (os.fstat(fd).st_blocks - num_blocks)


def _aligned(offset: int) -> int:
    return -(-offset // _BLOCK) * _BLOCK


def _fill(fd: int, out: memoryview, offset: int) -> None:
    """Read bytes of a file, as far as it reaches."""
    num_read, count = 0, -1
    while count and num_read < len(out):
        count = os.preadv(fd, [out[num_read:]], offset + num_read)
        num_read += count
