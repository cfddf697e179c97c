"""Byte ranges of stored files, kept on disk within a limit: the least recently used go first.

Space is taken in the index before a file is written, and entries make room before that, so the
folder never takes more than its limit. A kill leaves at most an entry that is half written, whose
space stays taken until the next process opens the cache, or needs the space.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from seqrecord.ranges import ByteRange
from seqrecord.storage.cache.entry import CacheKey, cut, read_entry, size_on_disk, write_entry
from seqrecord.storage.cache.folder import CacheBusyError, CacheFolder
from seqrecord.storage.cache.index import CacheIndex, Entry

__all__ = ["MIN_LIMIT", "CacheStore"]

MIN_LIMIT = 1 << 20
_SPARE_BYTES = 64 << 10  # for the tag, and for what one change adds to the index
_MAX_ENTRY_BYTES = 16 << 20
_MIN_ENTRY_BYTES = 64 << 10
_NOTE_NS = 10**9  # how long uses are remembered before they are written down
_TRIM_SECONDS = 10.0  # from one attempt to trim the cache to the next

_T = TypeVar("_T")


@dataclass
class _Piece:
    """What becomes an entry."""

    range: ByteRange
    data: Sequence[memoryview]
    id: int = 0
    name: str = ""
    fd: int = -1


class CacheStore:
    """The entries of the cache in `folder`, which may fill it up to `limit` bytes on disk.

    Others may use the folder with another limit: each keeps to its own, from its first look on.
    Where the folder is on a read-only disk, what it holds is found, and nothing changes.

    Safe to use from many threads, processes, and after a fork. Methods raise `OSError` and
    `sqlite3.Error` when the disk fails, and `CacheBusyError`, an `OSError`, where another process
    does not let go of the cache; then nothing has changed but what may be missing. `patience` is
    how many seconds it is waited for.
    """

    def __init__(self, folder: Path, limit: int, *, patience: float | None = None) -> None:
        self.limit = limit
        self._folder = CacheFolder(folder, patience=patience)
        self._used: dict[int, int] = {}  # of entries, not in the index yet
        self._noted = self._now = 0
        self._trim_due = 0.0  # seconds of the monotonic clock
        self._ignored: set[str] = set()  # names of entries to be dropped, which could not be
        # Smaller ones in a small cache, so that it is not one entry that goes or stays.
        self._entry_bytes = min(_MAX_ENTRY_BYTES, max(_MIN_ENTRY_BYTES, limit // 8))

    def find(self, key: CacheKey, ranges: Sequence[ByteRange]) -> list[list[Entry]]:
        """For each range, the entries that hold some of it, in order. They count as used now."""
        if time.monotonic() >= self._trim_due:
            self._trim()
        with self._folder.session(exclusive=False) as index:
            found = [
                [entry for entry in index.overlapping(key, item) if entry.name not in self._ignored]
                for item in ranges
            ]
            if not self._folder.is_read_only:
                now = self._clock()
                self._used.update((entry.id, now) for entries in found for entry in entries)
            due = bool(self._used) and self._now - self._noted > _NOTE_NS
        if due:  # or later, if it is not free
            with self._folder.try_session() as free:
                if free is not None:
                    with free.transaction():
                        self._note(free)
        return found

    def read(self, key: CacheKey, entry: Entry, wanted: ByteRange, out: memoryview) -> bool:
        """Fill `out` with a part of an entry's range; false if it has gone.

        Raises `DamagedError` for an entry that is not as it was written.
        """
        try:
            fd = self._folder.open_entry(entry.name)
        except FileNotFoundError:
            return False  # another process needed the room
        try:
            read_entry(fd, key, entry.range, wanted, out)
        finally:
            os.close(fd)
        return True

    def add(self, key: CacheKey, parts: Sequence[tuple[ByteRange, memoryview]]) -> int:
        """Keep ranges of a file, as far as they fit; how many entries had to make room.

        What is kept already, or is about to be by another thread or process, is left as it is.
        """
        if self._folder.is_read_only:
            return 0
        pieces = [
            _Piece(ByteRange(at, stop), cut(data, at - item.start, stop - item.start))
            for item, data in _joined(parts)
            for at in range(item.start, item.stop, self._entry_bytes)
            for stop in [min(at + self._entry_bytes, item.stop)]
        ]
        try:
            with self._folder.session(exclusive=True) as index, index.transaction():
                pieces, evicted = self._begin(index, key, pieces)
            for piece in pieces:
                write_entry(piece.fd, key, piece.range, piece.data)
            with self._folder.session(exclusive=True) as index, index.transaction():
                for piece in pieces:
                    if not index.finish(piece.id):
                        self._folder.unlink(piece.name)  # dropped while it was written
        except BaseException as error:
            self._give_up(pieces, patience=0 if isinstance(error, CacheBusyError) else None)
            raise
        finally:
            for piece in pieces:
                if piece.fd >= 0:
                    os.close(piece.fd)
        return evicted

    def drop(self, entries: Sequence[Entry]) -> None:
        """Remove entries. Those that cannot be removed are not found here any more."""
        self._ignored.update(entry.name for entry in entries)
        with self._folder.session(exclusive=True) as index, index.transaction():
            self._remove(index, entries)
        self._ignored.difference_update(entry.name for entry in entries)

    def forget(self, key: CacheKey, ranges: Sequence[ByteRange] | None = None) -> int:
        """Drop what is held of a file, or of ranges of it; how many entries that were."""
        with self._folder.session(exclusive=False) as index:
            if ranges is None:
                entries = index.of_file(key)
            else:
                entries = [entry for item in ranges for entry in index.overlapping(key, item)]
        entries = [entry for entry in entries if entry.name not in self._ignored]
        if entries:
            with contextlib.suppress(OSError):
                self.drop(entries)
        return len(entries)

    def clear(self, url: str | None = None) -> None:
        """Remove what is held of one storage, or everything."""
        if url is None:
            self._folder.clear()
            return
        with self._folder.session(exclusive=True) as index, index.transaction():
            self._remove(index, index.of_storage(url))
            index.forget_files()

    def ask(self, question: Callable[[CacheIndex], _T]) -> _T:
        """What the index answers."""
        with self._folder.session(exclusive=False) as index:
            return question(index)

    def own_bytes(self) -> int:
        """Bytes on disk of all that is no entry."""
        with self._folder.session(exclusive=False):
            return self._folder.own_bytes()

    def close(self) -> None:
        """Close the index; it is opened again when it is needed."""
        with (
            contextlib.suppress(OSError, sqlite3.Error),
            self._folder.try_session() as index,
        ):
            if index is not None and self._used:
                with index.transaction():
                    self._note(index)
        self._folder.close()

    def _trim(self) -> None:
        """Make the cache as small as its limit, which another one may not have kept to."""
        try:
            with self._folder.session(exclusive=True) as index, index.transaction():
                self._make_room(index, [])
        except CacheBusyError:
            self._trim_due = time.monotonic() + _TRIM_SECONDS
            return
        except OSError:
            if not self._folder.is_read_only:
                raise
        self._trim_due = math.inf

    def _begin(
        self, index: CacheIndex, key: CacheKey, pieces: list[_Piece]
    ) -> tuple[list[_Piece], int]:
        """Those pieces that will be kept, with their space taken, and how many were evicted."""
        self._note(index)
        pieces = [piece for piece in pieces if not index.overlapping(key, piece.range, ready=False)]
        count, evicted = self._make_room(index, [size_on_disk(p.range.length) for p in pieces])
        for piece in pieces[:count]:
            piece.name, piece.fd = self._folder.create()
            size = size_on_disk(piece.range.length)
            piece.id = index.add(key, piece.range, size, piece.name, self._clock())
        return pieces[:count], evicted

    def _make_room(self, index: CacheIndex, sizes: Sequence[int]) -> tuple[int, int]:
        """Of entries of these sizes, how many may be added; and how many made room for them."""
        room = self.limit - _SPARE_BYTES - self._folder.own_bytes()
        held = [index.held_bytes(ready=ready) for ready in (False, True)]
        if held[0] and sum(held) + sum(sizes) > room:  # of a kill's before anyone's
            left = [e for e in index.being_written() if self._folder.is_abandoned(e.name)]
            self._remove(index, left)
        taken = index.held_bytes(ready=False)
        count = 0
        while count < len(sizes) and taken + sizes[count] <= room:
            taken += sizes[count]
            count += 1
        excess = index.held_bytes(ready=True) + taken - room
        victims: list[Entry] = []
        if excess > 0:
            for entry in index.oldest():
                victims.append(entry)
                excess -= entry.size
                if excess <= 0:
                    break
        self._remove(index, victims)
        return count, len(victims)

    def _remove(self, index: CacheIndex, entries: Sequence[Entry]) -> None:
        # The file first: after a kill between the two, its space is not taken twice.
        for entry in entries:
            self._folder.unlink(entry.name)
            self._used.pop(entry.id, None)
        index.remove(entry.id for entry in entries)

    def _give_up(self, pieces: Sequence[_Piece], *, patience: float | None) -> None:
        with (
            contextlib.suppress(OSError, sqlite3.Error),  # the first error counts
            self._folder.session(exclusive=True, patience=patience) as index,
            index.transaction(),
        ):
            for piece in pieces:
                if piece.name:
                    self._folder.unlink(piece.name)
            index.remove(piece.id for piece in pieces)

    def _note(self, index: CacheIndex) -> None:
        index.touch(self._used)
        self._used.clear()
        self._noted = self._clock()

    def _clock(self) -> int:
        """Nanoseconds since 1970, each later than the one before."""
        self._now = max(time.time_ns(), self._now + 1)
        return self._now


def _joined(
    parts: Sequence[tuple[ByteRange, memoryview]],
) -> list[tuple[ByteRange, list[memoryview]]]:
    """The parts in order, those that follow each other as one, and nothing twice."""
    joined: list[tuple[ByteRange, list[memoryview]]] = []
    for item, data in sorted(parts, key=lambda part: part[0]):
        if joined and item.start <= joined[-1][0].stop:
            (start, stop), before = joined[-1]
            if item.stop > stop:
                joined[-1] = (ByteRange(start, item.stop), [*before, data[stop - item.start :]])
        else:
            joined.append((item, [data]))
    return joined
