"""Rows of frames that stay: one for each frame in intervals of episodes; and frames of clips."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.frames import ClipFrames, ClipKeys
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.sampling.runs import Intervals
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import distinct


class FrameLookup:
    """Frames of clips, and their rows, looked up once for features that share a window."""

    def __init__(self, clips: ClipKeys, clip_frames: ClipFrames, *, checks: bool = True) -> None:
        self._clips, self._clip_frames, self._checks = clips, clip_frames, checks
        self._frames: dict[int, IntArray] = {}  # by the `id` of a window
        self._rows: dict[tuple[int, int], IntArray] = {}  # by those of a table of rows, too

    def of(self, feature: str) -> IntArray:
        """The frames of a feature in the clips, int64[n, T]."""
        window = self._clip_frames.windows[feature]
        if (frames := self._frames.get(id(window))) is None:
            frames = window.find(self._clips, self._clip_frames, checks=self._checks).frames
            self._frames[id(window)] = frames
        return frames

    def rows(self, table: FrameRows, feature: str) -> IntArray:
        """The rows of these frames, int64[n, T]."""
        key = id(table), id(self._clip_frames.windows[feature])
        if (rows := self._rows.get(key)) is None:
            rows = table.find(self._clips.episode[:, None], self.of(feature))
            # A row -1, as tables with gaps have, would be another frame, in silence.
            if table.row_at is not None and rows.size:
                assert rows.min() >= 0, "a clip has a frame without a row"
            self._rows[key] = rows
        return rows


def first_rows(num_frames: IntArray, selected: IntArray) -> IntArray:
    """Row of the first frame of each selected episode, int64[episodes]; 0 for other episodes.

    `num_frames`, int64[episodes], are the lengths of all episodes; `selected` ascends.
    """
    lengths = num_frames[selected]
    first = np.zeros(len(num_frames), np.int64)
    first[selected] = np.cumsum(lengths) - lengths
    return first


class FrameRows:
    """Rows of the frames in intervals of episodes, in their order.

    Args:
        intervals: disjoint and ascending.
        num_frames: length of each episode, int64[episodes].
        fills_gaps: whether loads also contain the frames with rows between the frames of a chunk
            that an epoch uses. Later epochs may use them, and they cost little beside the others.
    """

    def __init__(
        self, intervals: Intervals, num_frames: IntArray, *, fills_gaps: bool = False
    ) -> None:
        self.fills_gaps = fills_gaps
        selected = distinct(intervals.episode)
        self._first_place = first_rows(num_frames, selected)  # among all frames of these episodes
        self.row_at: npt.NDArray[np.int32] | None = None  # each place's, -1 for none; `None`: all
        self.num_rows = intervals.num_frames
        if self.num_rows < (num_places := int(num_frames[selected].sum())):
            self.row_at = np.full(num_places, -1, np.int32)
            self.row_at[self._places(*intervals.frames)] = np.arange(self.num_rows, dtype=np.int32)

    @classmethod
    def of_episodes(cls, num_frames: IntArray, selected: IntArray) -> FrameRows:
        """Rows of all frames in `selected` episodes; `num_frames` has all episodes."""
        intervals = Intervals(selected, np.zeros_like(selected), num_frames[selected])
        return cls(intervals, num_frames)

    @cached_property
    def digest(self) -> str:
        """Digest of the frames with rows."""
        digest = hashlib.sha256(np.ascontiguousarray(self._first_place, "<i8").data)
        if self.row_at is not None:
            digest.update(np.ascontiguousarray(self.row_at, "<i4").data)
        return digest.hexdigest()

    def find(self, episode: IntArray | int, frame: IntArray) -> IntArray:
        """Rows of frames, -1 for a frame without a row; int64 arrays that broadcast."""
        places = self._places(episode, frame)
        return places if self.row_at is None else self.row_at[places].astype(np.int64)

    def _places(self, episode: IntArray | int, frame: IntArray) -> IntArray:
        places: IntArray = self._first_place[episode] + frame
        return places


def used_rows(used: Intervals, rows: FrameRows) -> npt.NDArray[np.bool_]:
    """Rows of the frames in some intervals; bool[rows]."""
    is_used = np.zeros(rows.num_rows, np.bool_)
    is_used[rows.find(*used.frames)] = True
    return is_used
