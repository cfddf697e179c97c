"""Frames that clips are copied from where they lie, in mapped files.

A row of a feature is an address, in units that divide all addresses of its frames. So the rows of a
feature are one array [rows, …], whose rows overlap, and one call gathers frames of many files::

    memory      | . . f f f f . . f f f f . . . |
    row 0         r r r r
    row 1           r r r r
    row 2             f f f f                       a frame
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.loader.engine.batches import ClipRows
from seqrecord.loader.engine.stores import AssignedLoad, GroupFrames, Load, Missing
from seqrecord.loader.sampling.plan import Clips, Frees, Loads
from seqrecord.store.clips.frames import ClipFrames
from seqrecord.store.clips.grids import ChunkGrid, ragged_arange
from seqrecord.store.clips.tables import IntArray
from seqrecord.store.format.pages import ALIGNMENT
from seqrecord.store.reading.mapped_frames import MappedFrames

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
_MAX_NUMBERS = 1 << 62  # of an array whose rows overlap; NumPy and torch count them


class MappedArena:
    """Rows of mapped frames, see `Arena`: source of copies, and target of loads, which check them.

    Args:
        frames: the frames of a group.
        first_frame: first frame of each chunk, int32 [chunks].
    """

    num_rows = 0  # with memory

    def __init__(self, frames: MappedFrames, first_frame: npt.NDArray[np.integer]) -> None:
        self.frames, self.specs = frames, frames.specs
        self._first_frame = first_frame
        self._units = {n: math.gcd(ALIGNMENT, s.nbytes) for n, s in frames.specs.items()}
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._words: dict[str, torch.Tensor] = {}
        for name, spec in frames.specs.items():
            unit = self._units[name]
            num_rows = (len(frames.memory) - spec.nbytes) // unit + 1
            shape: tuple[int, ...] = spec.shape  # type: ignore[assignment]
            rows = np.asarray(_Memory(frames.memory, (num_rows, spec.nbytes), (unit, 1)))
            self._arrays[name] = rows.view(spec.dtype).reshape(num_rows, *shape)
            self._words[name] = torch.from_numpy(rows).view(_WORDS[min(unit, 16)])

    @classmethod
    def of(cls, frames: MappedFrames, first_frame: npt.NDArray[np.integer]) -> MappedArena | None:
        """Rows of these frames; `None` if they have too many addresses."""
        nbytes = max(spec.nbytes for spec in frames.specs.values())
        unit = min(math.gcd(ALIGNMENT, spec.nbytes) for spec in frames.specs.values())
        if len(frames.memory) // unit * nbytes > _MAX_NUMBERS:
            return None
        return cls(frames, first_frame)

    def __getitem__(self, feature: str) -> npt.NDArray[Any]:
        """Rows of a feature, [rows, …]. Nobody may write to them."""
        return self._arrays[feature]

    def rows(self, feature: str, chunk: IntArray, frame: IntArray) -> IntArray:
        """Rows of frames of episodes, in rows of the chunk table; int64 of one shape."""
        places = self.frames.places(feature, chunk, frame - self._first_frame[chunk])
        rows: IntArray = places // self._units[feature]
        return rows

    def are_checked(self, chunk: IntArray, frame: IntArray) -> npt.NDArray[np.bool_]:
        """See `MappedFrames`; with frames of episodes."""
        return self.frames.are_checked(chunk, frame - self._first_frame[chunk])

    def load(self, chunk: IntArray, frame: IntArray) -> int:
        """See `MappedFrames`; with frames of episodes."""
        return self.frames.load(chunk, frame - self._first_frame[chunk])

    def check(self, feature: str, rows: IntArray) -> None:
        """Raise `StorageError` if a file with these rows has become shorter."""
        self.frames.records.check(rows * self._units[feature])

    def gather(self, feature: str, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        """Copy rows, int64 [n], to `out` [n, …], which is contiguous. Without the GIL."""
        if not len(rows):
            return
        # Not `numpy.take`: it would first copy an array whose rows overlap.
        words = self._words[feature]
        target = torch.from_numpy(out.reshape(len(rows), -1).view(np.uint8)).view(words.dtype)
        with _OneThread():
            torch.index_select(words, 0, torch.from_numpy(np.ascontiguousarray(rows)), out=target)


class MappedGroup(GroupFrames):
    """Policy of a store: frames are copied from mapped files, and loads check them.

    Args:
        grid: chunks of the group in the episodes of the index.
        frame_step: distance of the frames of loads.
        touches: whether loads touch checked frames again: the page cache may drop them.
    """

    def __init__(
        self,
        arena: MappedArena,
        clip_frames: ClipFrames,
        grid: ChunkGrid,
        frame_step: int,
        *,
        touches: bool,
    ) -> None:
        self._arena, self._clip_frames, self._grid = arena, clip_frames, grid
        self._frame_step, self._touches = frame_step, touches
        self._feature_sets = clip_frames.by_window(arena.specs)

    @property
    def nbytes(self) -> int:
        return 0

    def missing(self, loads: Loads | None) -> Missing:
        if self._touches:
            return Missing.ROUNDS
        if loads is None:
            return Missing.SOME
        owner, index = ragged_arange(loads.count)
        frame = loads.first[owner] + index * self._frame_step
        _, frame = self._clip_frames.stored_frames(loads.episode[owner], frame)
        is_checked = self._arena.are_checked(loads.chunk[owner], frame).all()
        return Missing.NONE if is_checked else Missing.ROUNDS

    def place(self, waiting: Sequence[Load]) -> tuple[list[AssignedLoad], list[Load]]:
        nbytes = sum(spec.nbytes for spec in self._arena.specs.values())
        assigned = []
        for load in waiting:
            frames = load.frames
            if self._touches or not self._are_checked(load, frames):
                place = load.first_use, load, self._arena, frames, np.arange(len(frames))
                assigned.append(AssignedLoad(*place, len(frames) * nbytes))
        return assigned, []

    def _are_checked(self, load: Load, frames: IntArray) -> bool:
        """Whether all frames of a load were checked."""
        episode, chunk = np.full_like(frames, load.episode), np.full_like(frames, load.chunk)
        _, stored_frames = self._clip_frames.stored_frames(episode, frames)
        return bool(self._arena.are_checked(chunk, stored_frames).all())

    def find(self, clips: Clips) -> Iterator[ClipRows[Any]]:
        for names in self._feature_sets:
            frames = self._clip_frames.find(names[0], clips.keys).frames
            episode, frames = self._clip_frames.stored_frames(clips.episode[:, None], frames)
            episode = np.broadcast_to(episode, frames.shape)
            chunk = self._grid.row(episode, self._grid.place(episode, frames))
            for name in names:
                yield ClipRows(self._arena, self._arena.rows(name, chunk, frames), [name])

    def finish(self, frees: Frees) -> None:
        """See `GroupFrames`: nothing is freed."""


class _Memory:
    """Memory for an array whose rows overlap; the array keeps `owner`."""

    def __init__(
        self, owner: npt.NDArray[np.uint8], shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> None:
        self.owner = owner
        self.__array_interface__ = {
            # Not marked as read-only: torch would warn at each tensor.
            "data": (owner.ctypes.data, False),
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
