"""Entries of a file cache: each has the slots of a block.

Slots have the same size; the last one may be shorter. Integers are little-endian::

    │ slots │ CRC32C of each slot, with the entry's place and name and its number; 0 if absent │

The name of an entry's file is a digest of its name. An entry takes its whole space when its first
slot is added. One of another size is replaced by a new file.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.store.checksum import Buffer, crc32c
from seqrecord.store.storage.cache_folder import (
    READ,
    WRITE,
    Bools,
    CacheFolder,
    bytes_on_disk,
    hash_of_place,
    is_failure,
    open_entry,
    read_only_errors,
    write_at,
)

_FOLDERS_BYTES = 3 * 4096  # reserve for folders that grow


class CacheEntry(NamedTuple):
    """An entry: the place of a storage, a name that is unique there, and the bytes of a slot."""

    place: str
    name: str
    slot_bytes: int

    @property
    def label(self) -> int:
        """Where the checksums of slots start."""
        text = f"{self.place}\0{self.name}"
        return crc32c(text.encode("utf-8", "surrogateescape"))  # a mount may have any bytes

    def checksum(self, label: int, number: int, *parts: Buffer) -> int:
        """Return the checksum of slot `number`, never 0; `label` is the entry's."""
        return crc32c(number.to_bytes(8, "little"), *parts, start=label) or 1


class CacheEntries(CacheFolder):
    """The entries of a cache; errors are counted, never raised. See `CacheFolder`."""

    def __init__(self, path: Path, limit: int, **options: Any) -> None:
        super().__init__(path, limit, **options)
        self._ignored: set[str] = set()  # damaged entries that could not be removed or replaced

    def read(self, entry: CacheEntry, start: int, out: memoryview) -> Bools:
        """Fill `out` with the bytes of an entry from `start` on, as far as they are cached.

        Returns which of the slots were there, bool[slots]. Damaged ones count as absent. The bytes
        of absent slots in `out` are undefined afterwards.
        """
        first_slot, stop = start // entry.slot_bytes, start + len(out)
        hits = np.zeros(-(-stop // entry.slot_bytes) - first_slot, np.bool_)
        read = functools.partial(self._read, entry, start, out, hits)
        return self.attempt(read, np.zeros_like(hits))

    def add(self, entry: CacheEntry, size: int, slots: Mapping[int, memoryview]) -> None:
        """Write slots by their numbers into an entry of `size` bytes, if it fits."""
        self.attempt(functools.partial(self._add, entry, size, slots), None, is_adding=True)

    def forget(self, entries: Iterable[CacheEntry]) -> int:
        """Remove damaged entries, or ignore them from now on; returns their number."""
        count = 0
        for path in {self._path(entry) for entry in entries} - self._ignored:
            try:
                Path(path).unlink()
            except FileNotFoundError:
                continue
            except OSError:
                self._ignored.add(path)
            count += 1
        self.count(damaged=count)
        return count

    def _read(self, entry: CacheEntry, start: int, out: memoryview, hits: Bools) -> Bools:
        self.trim()
        length, stop, damaged = entry.slot_bytes, start + len(out), 0
        first_slot = start // length
        with self._open_slots(entry, first_slot, len(hits)) as (fd, size, sums):
            if stop > size or not sums.any():
                return hits
            label, low = entry.label, first_slot * length
            high = min(size, low + len(hits) * length)
            # Unwanted bytes of the first and last slot go to temporary buffers.
            head, tail = bytearray(start - low), bytearray(high - stop)
            _fill(fd, (memoryview(head), out, memoryview(tail)), low)
            for i, checksum in enumerate(sums.tolist()):
                if checksum:
                    slot_start = low + i * length
                    parts: list[Buffer] = [
                        head if slot_start < start else b"",
                        out[max(slot_start, start) - start : slot_start + length - start],
                        tail if slot_start + length > stop else b"",
                    ]
                    hits[i] = entry.checksum(label, first_slot + i, *parts) == checksum
                    damaged += not hits[i]
            if damaged:
                self.count(damaged=damaged)
            with contextlib.suppress(OSError):  # read-only disk
                self.note_use(fd)
        return hits

    def _add(
        self,
        entry: CacheEntry,
        size: int,
        slots: Mapping[int, memoryview],
    ) -> None:
        if (path := self._path(entry)) in self._ignored:
            return
        try:
            fd = self._create(entry, size + 4 * -(-size // entry.slot_bytes))
        except OSError as error:
            if not is_failure(error):
                self._ignored.add(path)
            raise
        if fd is None:
            self.pause_adding()
            return
        try:
            label = entry.label
            for number, slot in slots.items():
                checksum = entry.checksum(label, number, slot).to_bytes(4, "little")
                write_at(fd, slot, number * entry.slot_bytes)
                write_at(fd, memoryview(checksum), size + 4 * number)
            self.note_use(fd)
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def _open_slots(
        self, entry: CacheEntry, first_slot: int, count: int
    ) -> Iterator[tuple[int, int, npt.NDArray[np.uint32]]]:
        """Descriptor and size of an entry, and the checksums of some slots, 0 for absent ones."""
        path = self._path(entry)
        fd = None if path in self._ignored else open_entry(path, READ)
        if fd is None:
            fd = os.open(os.devnull, READ)
        try:
            file_size = os.fstat(fd).st_size
            size = file_size - 4 * -(-file_size // (entry.slot_bytes + 4))
            sums = np.zeros(count, "<u4")
            os.preadv(fd, [sums.view(np.uint8).data], size + 4 * first_slot)
            yield fd, size, sums
        finally:
            os.close(fd)

    def _create(self, entry: CacheEntry, size: int) -> int | None:
        """Open an entry, created with a file of `size` bytes if needed; `None` if it cannot fit."""
        path = self._path(entry)
        with read_only_errors(self.path):
            if (fd := _open_sized(path, size)) is not None:
                return fd
            with self.locked() as usage:
                if (fd := _open_sized(path, size)) is not None:  # by another process
                    return fd
                if not self.make_room(usage, bytes_on_disk(size) + _FOLDERS_BYTES):
                    return None
                fd = self.create(usage, entry.place, path, size)
                usage.bytes += bytes_on_disk(size)
                return fd

    def _path(self, entry: CacheEntry) -> str:
        return f"{self.folder_of(entry.place)}/{hash_of_place(entry.name)}"


def _fill(fd: int, buffers: Iterable[memoryview], offset: int) -> None:
    """Read into buffers one after the other, as far as the file reaches."""
    for buffer in buffers:
        num_read = 0
        count = -1
        while count and num_read < len(buffer):
            count = os.preadv(fd, [buffer[num_read:]], offset + num_read)
            num_read += count
        offset += num_read


def _open_sized(path: str, size: int) -> int | None:
    """Open a regular file for writing; `None` if there is none of this size."""
    if (fd := open_entry(path, WRITE)) is None or os.fstat(fd).st_size == size:
        return fd
    os.close(fd)
    return None
