"""Assigns rows to frames of calls by number: rows for loads, and rows of clips.

A `CallStore` has a policy for each group of features. `ResidentFrames` has a row for each frame
that samples use, interval by interval. A row is looked up, nothing is freed, and each frame is
loaded once::

    intervals     |    a    |   b   |      c      |
    rows          x x x . . x x . . . . x x x x x       x: loaded
    loads               - -     - -                     of a call: missing frames

`FileFrames` are copied from mapped files: they have no rows in an arena, and loads check them. The
frames of a call itself have rows of their own; see `random_access`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from seqrecord.loader.clips.frames import ClipFrames
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.batches import ClipRows
from seqrecord.loader.engine.frame_rows import FrameLookup, FrameRows
from seqrecord.loader.engine.frame_store import FrameCheck
from seqrecord.loader.engine.loads import CallLoad, RowLoad
from seqrecord.loader.engine.mapped_rows import MappedArena
from seqrecord.loader.sampling.plan import Clips
from seqrecord.store.tables.grids import distinct, frame_keys, split_keys

_NO_KEYS = np.empty(0, np.int64)


class FramesOfCalls(ABC):
    """Policy of a `CallStore` for features of one group."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of resident frames and of loads in progress."""

    @abstractmethod
    def find(self, clips: Clips, frames: FrameLookup) -> Iterator[ClipRows[Any]]:
        """Yield the rows of clips, for each set of features with equal windows."""

    @abstractmethod
    def lacking(self, clips: Clips, frames: FrameLookup) -> IntArray:
        """Keys of frames in a call's clips that loads must bring first, ascending."""

    @abstractmethod
    def assign(self, call: CallLoad) -> RowLoad:
        """Assign rows to a call's frames, except those that need no load."""


class _ArenaFrames:
    """An arena, as part of policies."""

    def __init__(self, clip_frames: ClipFrames, arena: Any) -> None:
        self._arena, self._clip_frames = arena, clip_frames
        self._feature_sets = clip_frames.by_window(arena.specs)
        self._frame_nbytes: int = sum(spec.nbytes for spec in arena.specs.values())


class CallStore:
    """The frames of a call.

    Args:
        policies: by group number; features of a group may have several, and groups whose rows are
            assigned together may share one.
        clip_frames: windows of the features.
    """

    def __init__(
        self, policies: Mapping[int, Sequence[FramesOfCalls]], clip_frames: ClipFrames
    ) -> None:
        self._policies, self._clip_frames = policies, clip_frames
        self._all = [*dict.fromkeys(chain.from_iterable(policies.values()))]

    def find(self, clips: Clips, frames: FrameLookup) -> list[ClipRows[Any]]:
        """Find the rows of clips, for each set of features with equal windows."""
        sources: list[ClipRows[Any]] = []
        for policy in self._all:
            sources += policy.find(clips, frames)
        return sources

    def check_again(self, clips: Clips, check: FrameCheck) -> None:
        """Check frames of clips whose mapped file somebody may have written to since their load.

        After new versions of the files were looked for, before the frames are copied. Raises as
        loads do.
        """
        for policy in self._all:
            if isinstance(policy, FileFrames) and policy.has_new_versions:
                policy.check_again(clips, FrameLookup(clips.keys, self._clip_frames), check)

    def lacking(self, clips: Clips, frames: FrameLookup) -> IntArray:
        """Keys of frames in a call's clips that loads must bring first, ascending."""
        keys = [policy.lacking(clips, frames) for policy in self._all]
        return keys[0] if len(keys) == 1 else distinct(np.concatenate(keys))

    def assign(self, call: CallLoad) -> list[RowLoad]:
        """Assign rows to a call's frames, for each policy."""
        return [policy.assign(call) for policy in self._policies[call.group]]


class ResidentFrames(_ArenaFrames, FramesOfCalls):
    """Policy with a row for every frame, which stays once a load has ended (see `ChunkLoader`).

    Args:
        rows: the rows of frames.
    """

    def __init__(self, clip_frames: ClipFrames, arena: Any, rows: FrameRows) -> None:
        super().__init__(clip_frames, arena)
        self._frame_rows, self._are_all_read = rows, False

    @property
    def nbytes(self) -> int:
        return int(np.count_nonzero(self._arena.is_read)) * self._frame_nbytes

    @property
    def nbytes_of_rows(self) -> int:
        """Bytes of all rows."""
        nbytes: int = self._arena.nbytes
        return nbytes

    def lacking(self, clips: Clips, frames: FrameLookup) -> IntArray:
        """See `FramesOfCalls`."""
        keys = _NO_KEYS
        for names in () if self._are_all_read else self._feature_sets:
            are_read = self._arena.is_read[frames.rows(self._frame_rows, names[0])]
            if not are_read.all():
                wanted = frame_keys(clips.episode[:, None], frames.of(names[0]))
                keys = np.append(keys, wanted[~are_read])
        return distinct(keys) if len(keys) else keys

    def is_current(self, num_changes: int) -> bool:
        """Whether nobody has written to mapped files with rows, see `forget_placed`."""
        return bool(self._arena.num_changes == num_changes)

    def forget_placed(self, num_changes: int) -> None:
        """See `Arena`."""
        self._arena.forget_placed(num_changes)
        self._are_all_read = False

    def end_loads(self) -> None:
        """Note whether all frames are there, after the loads of a call."""
        self._are_all_read = bool(self._arena.is_read.all())

    def assign(self, call: CallLoad) -> RowLoad:
        rows = self._frame_rows.find(call.episode, call.place)
        # Blocks may have frames that no clip uses, and some that other calls have loaded.
        is_missing = (rows >= 0) & ~self._arena.is_read[rows]
        return call.to_rows(rows, self._arena).take(is_missing)

    def find(self, clips: Clips, frames: FrameLookup) -> Iterator[ClipRows[Any]]:  # noqa: ARG002
        for names in self._feature_sets:
            yield ClipRows(self._arena, frames.rows(self._frame_rows, names[0]), names)


class FileFrames(_ArenaFrames, FramesOfCalls):
    """Policy with frames that are copied from mapped files. Loads check them."""

    def __init__(self, clip_frames: ClipFrames, arena: MappedArena) -> None:
        super().__init__(clip_frames, arena)
        self._touches = arena.touches
        self._num_changes = arena.num_changes

    @property
    def nbytes(self) -> int:
        return 0

    @property
    def has_new_versions(self) -> bool:
        """Whether somebody may have written to a mapped file since this was created."""
        return bool(self._arena.num_changes != self._num_changes)

    def check_again(self, clips: Clips, frames: FrameLookup, check: FrameCheck) -> None:
        """See `FrameStore`."""
        for names in self._feature_sets:
            chunk, stored_frames = self._chunks(clips, frames.of(names[0]))
            is_void = ~self._arena.are_checked(chunk, stored_frames)
            if is_void.any():
                keys = distinct(frame_keys(chunk[is_void], stored_frames[is_void]))
                check(self._arena, *split_keys(keys))

    def assign(self, call: CallLoad) -> RowLoad:
        load = call.to_rows(call.frame, self._arena)
        if self._touches:
            return load
        return load.take(~self._arena.are_checked(call.chunk, call.frame))

    def find(self, clips: Clips, frames: FrameLookup) -> Iterator[ClipRows[Any]]:
        for names in self._feature_sets:
            chunk, stored_frames = self._chunks(clips, frames.of(names[0]))
            for name in names:
                yield ClipRows(self._arena, self._arena.rows(name, chunk, stored_frames), [name])

    def lacking(self, clips: Clips, frames: FrameLookup) -> IntArray:
        """See `FramesOfCalls`."""
        keys = _NO_KEYS
        for names in self._feature_sets:
            frames_of_set = frames.of(names[0])
            is_lacking = np.ones(frames_of_set.shape, np.bool_)
            if not self._touches:
                is_lacking = ~self._arena.are_checked(*self._chunks(clips, frames_of_set))
            if is_lacking.any():
                wanted = frame_keys(clips.episode[:, None], frames_of_set)
                keys = np.append(keys, wanted[is_lacking])
        return distinct(keys) if len(keys) else keys

    def _chunks(self, clips: Clips, frames: IntArray) -> tuple[IntArray, IntArray]:
        """Rows in the chunk table, and stored numbers, of frames of clips; int64 [n, T] each."""
        episode, frames = self._clip_frames.stored_frames(clips.episode[:, None], frames)
        return self._arena.chunks(episode.repeat(frames.shape[1], axis=1), frames), frames
