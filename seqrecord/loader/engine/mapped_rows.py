"""Rows for frames that are copied from where they lie: in mapped files, or in an arena's memory.

A row has an address. Addresses are multiples of a unit from the lowest one on, so all rows of a
feature are one array whose rows overlap, and one call gathers frames from many files::

    memory      | . . f f f f . . f f f f . . . |
    row 0         r r r r
    row 1           r r r r
    row 2             f f f f                       a frame

`MappedArena` has raw frames in mapped record files. `PlacedRows` are rows of an arena that a load
may place in files of the frame cache instead.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Container, Iterable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.loader.clips.layouts import episode_layout
from seqrecord.loader.engine.frame_readers import RowFile
from seqrecord.loader.reading.mapped_frames import MappedFrames, MappedRecords, mapped_frames
from seqrecord.store.format.pages import ALIGNMENT
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.processes.machine import usable_memory
from seqrecord.store.reading.contents import Contents
from seqrecord.store.schema import Schema
from seqrecord.store.tables.grids import ChunkGrid, IntArray, distinct

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_FEW_FILES = 4
_MAX_NUMBERS = 1 << 62  # of an array whose rows overlap; NumPy and torch count them


class OverlappingRows:
    """All rows that may begin at multiples of a unit in `[start, stop)`; see the module.

    Args:
        owner: keeps the memory.
        start, stop: addresses.
        shape, dtype: of a row.

    Attributes:
        array: the rows, [rows, …]. Nobody may write to them.
    """

    def __init__(
        self, owner: object, start: int, stop: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        nbytes = math.prod(shape) * dtype.itemsize
        self.start, self.stop, self._unit = start, stop, unit_of(nbytes)
        num_rows = (stop - start - nbytes) // self._unit + 1
        rows = np.asarray(_Memory(owner, start, (num_rows, nbytes), (self._unit, 1)))
        self.array: npt.NDArray[Any] = rows.view(dtype).reshape(num_rows, *shape)
        self._words = torch.from_numpy(rows).view(_WORDS[min(self._unit, 16)])

    def find(self, offsets: IntArray) -> IntArray:
        """Rows that begin at these offsets from the start."""
        return offsets // self._unit

    def gather(self, rows: IntArray, out: npt.NDArray[Any]) -> None:
        """Copy rows, int64 [n], to `out` [n, …], which is contiguous. Without the GIL."""
        if not len(rows):
            return
        # Not `numpy.take`: it would first copy an array whose rows overlap.
        target = torch.from_numpy(out.reshape(len(rows), -1).view(np.uint8))
        index = torch.from_numpy(np.ascontiguousarray(rows))
        with _OneThread():
            torch.index_select(self._words, 0, index, out=target.view(self._words.dtype))


def unit_of(nbytes: int) -> int:
    """Distance between rows with so many bytes."""
    return math.gcd(ALIGNMENT, nbytes)


def has_room(span: int, nbytes: int) -> bool:
    """Whether an array can have all rows of `nbytes` in a span of addresses."""
    return span // unit_of(nbytes) * nbytes <= _MAX_NUMBERS


class MappedArena:
    """Rows of mapped frames, see `Arena`: source of copies, and target of loads, which check them.

    Args:
        frames: the frames of a group.
        grid: the chunks of the group.

    Attributes:
        touches: whether loads touch checked frames again: the page cache may drop them.
    """

    num_rows = 0  # with memory

    def __init__(self, frames: MappedFrames, grid: ChunkGrid) -> None:
        self.frames, self.specs = frames, frames.specs
        self.touches = frames.nbytes > usable_memory() // 2
        self._grid, self._first_frame, memory = grid, frames.table.first_frame, frames.memory
        start, stop = memory.ctypes.data, memory.ctypes.data + len(memory)
        self._rows: dict[str, OverlappingRows] = {}
        for name, spec in frames.specs.items():
            shape: tuple[int, ...] = spec.shape  # type: ignore[assignment]
            self._rows[name] = OverlappingRows(memory, start, stop, shape, spec.dtype)

    @property
    def group(self) -> int:
        """The number of the group."""
        return self._grid.group

    @property
    def num_changes(self) -> int:
        """How often somebody may have written to a mapped file."""
        return self.frames.records.num_changes

    @classmethod
    def of_groups(cls, contents: Contents, without: Container[int] = ()) -> dict[int, MappedArena]:
        """Rows of a dataset's mapped frames by group, except groups with too many addresses."""
        arenas = {}
        for grid in episode_layout(contents).groups:
            frames = mapped_frames(contents).get(grid.group)
            if frames is None or grid.group in without:
                continue
            span = len(frames.memory)
            if all(has_room(span, spec.nbytes) for spec in frames.specs.values()):
                arenas[grid.group] = cls(frames, grid)
        return arenas

    def __getitem__(self, feature: str) -> npt.NDArray[Any]:
        """Rows of a feature, [rows, …]. Nobody may write to them."""
        return self._rows[feature].array

    def leaves(self, features: Schema) -> bool:
        """Whether the group has other features than these rows."""
        return any(s.group == self.group and n not in self.specs for n, s in features.items())

    def chunks(self, episode: IntArray, frame: IntArray) -> IntArray:
        """Rows of the chunk table that have frames of episodes; int64, all in one shape."""
        return self._grid.row(episode, self._grid.place(episode, frame))

    def rows(self, feature: str, chunk: IntArray, frame: IntArray) -> IntArray:
        """Rows for frames of episodes, by rows of the chunk table; int64, all in one shape."""
        places = self.frames.places(feature, chunk, frame - self._first_frame[chunk])
        return self._rows[feature].find(places)

    def are_checked(self, chunk: IntArray, frame: IntArray) -> npt.NDArray[np.bool_]:
        """See `MappedFrames`; with frames of episodes."""
        return self.frames.are_checked(chunk, frame - self._first_frame[chunk])

    def load(self, chunk: IntArray, frame: IntArray) -> int:
        """See `MappedFrames`; with frames of episodes."""
        return self.frames.load(chunk, frame - self._first_frame[chunk])

    @staticmethod
    def check(rows_of_features: Iterable[tuple[MappedArena, str, IntArray]]) -> int:
        """Find new versions of the files with rows; returns the number of rows.

        All features at once: a file has several, and is asked once. Raises `StorageError` if one
        has become shorter.
        """
        offsets, count = dict[MappedRecords, list[IntArray]](), 0
        for arena, name, rows in rows_of_features:
            places = rows * unit_of(arena.specs[name].nbytes)
            offsets.setdefault(arena.frames.records, []).append(places)
            count += places.size
        for records, of_features in offsets.items():
            records.check(*of_features)
        return count

    def gather(self, feature: str, rows: IntArray, out: npt.NDArray[Any]) -> None:
        """See `OverlappingRows`."""
        self._rows[feature].gather(rows, out)


class PlacedRows:
    """The rows of a feature with frames of one shape; see the module.

    Loads set the addresses of rows, which nobody gathers meanwhile. Thread-safe otherwise.

    Args:
        array: the arena's memory, [rows, …].
    """

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self._array, self._nbytes = array, array[0].nbytes
        begin = array.ctypes.data
        self._addresses = begin + self._nbytes * np.arange(len(array))
        self._files: dict[int, RowFile] = {}  # by address; they stay mapped
        self._span = self._rows_between(begin, begin + array.nbytes)
        self._lock = PerProcess(threading.Lock)

    @property
    def nbytes(self) -> int:
        """Bytes of the addresses."""
        return int(self._addresses.nbytes)

    @property
    def are_mapped(self) -> bool:
        """Whether a row has ever been in a mapped file."""
        return bool(self._files)

    def reset(self, rows: IntArray) -> None:
        """Place rows in the arena's memory."""
        self._addresses[rows] = self._array.ctypes.data + self._nbytes * rows

    def place(self, rows: IntArray, addresses: IntArray, file: RowFile) -> bool:
        """Place rows in a mapped file; whether that is possible."""
        start, stop = file.memory.ctypes.data, file.memory.ctypes.data + len(file.memory)
        with self._lock.get():
            span = self._span
            if not (span.start <= start and stop <= span.stop):
                start, stop = min(span.start, start), max(span.stop, stop)
                unit = unit_of(self._nbytes)
                if start % unit != addresses[0] % unit or not has_room(stop - start, self._nbytes):
                    return False
                self._span = self._rows_between(start, stop)
            self._files.setdefault(file.memory.ctypes.data, file)
        self._addresses[rows] = addresses
        return True

    def source(self, rows: IntArray) -> tuple[npt.NDArray[Any], IntArray]:
        """An array, which nobody may write to, and the places of rows in it."""
        span = self._span
        return span.array, span.find(self._addresses[rows] - span.start)

    def gather(self, rows: IntArray, out: npt.NDArray[Any]) -> None:
        """See `OverlappingRows`."""
        span = self._span
        span.gather(span.find(self._addresses[rows] - span.start), out)

    def check(self, rows: IntArray) -> int:
        """Ask the mapped files with any of these rows for changes.

        Returns the number of rows in mapped files. Raises `StorageError` if a file has become
        shorter.
        """
        starts = np.sort(np.fromiter(self._files, np.int64))
        if len(starts) > _FEW_FILES:  # else it takes less time to check all
            numbers = distinct(np.searchsorted(starts, self._addresses[rows], side="right") - 1)
            starts = starts[numbers[numbers >= 0]]
        for start in starts.tolist():
            self._files[start].check()
        return int(np.count_nonzero(self.in_files(rows)))

    def in_files(self, rows: IntArray | slice) -> npt.NDArray[np.bool_]:
        """Whether rows are in mapped files, not in the arena's memory."""
        offsets = self._addresses[rows] - self._array.ctypes.data
        is_mapped: npt.NDArray[np.bool_] = (offsets < 0) | (offsets >= self._array.nbytes)
        return is_mapped

    def _rows_between(self, start: int, stop: int) -> OverlappingRows:
        # Not this object, which has the rows.
        owner = self._array, self._files
        return OverlappingRows(owner, start, stop, self._array.shape[1:], self._array.dtype)


class _Memory:
    """Memory for an array whose rows overlap; the array keeps `owner`."""

    def __init__(
        self, owner: object, address: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self._owner = owner
        self.__array_interface__ = {
            # Not marked as read-only: torch would warn at each tensor.
            "data": (address, False),
            "typestr": "|u1",
            "shape": shape,
            "strides": strides,
            "version": 3,
        }


class _OneThread:
    """Context in which torch starts no threads for a copy in this thread.

    `torch.set_num_threads` would change other threads, too. OpenMP's number is this thread's alone.
    Nothing changes if torch has no OpenMP.
    """

    def __enter__(self) -> None:
        self._num_threads = torch.get_num_threads()  # also sets OpenMP's in a new thread
        if self._num_threads > 1 and (setter := _omp_set_num_threads()) is not None:
            setter(1)

    def __exit__(self, *exception: object) -> None:
        if self._num_threads > 1 and (setter := _omp_set_num_threads()) is not None:
            setter(self._num_threads)


@cache
def _omp_set_num_threads() -> Callable[[int], object] | None:
    # PyDLL: releasing the GIL for it could take milliseconds.
    function: Callable[[int], object] | None
    function = getattr(ctypes.PyDLL(None), "omp_set_num_threads", None)
    return function
