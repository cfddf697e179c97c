"""Runs of clips, the frames that clips reach, and the shards of an epoch. Pure integers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import MOST_COPIES, Reach
from seqrecord.loader.clips.tables import ClipTable, IntArray
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.tables.grids import (
    MAX_OWNERS,
    distinct,
    frame_keys,
    ragged_arange,
)


@dataclass(frozen=True)
class Window:
    """The frames of a group that clips use, relative to their starts.

    A clip at frame `s` uses `length` of the frames `s + offset`, `s + offset + frame_step`, …,
    which span `span` frames from the first to the last. Frames outside the episode count as its
    first or last frame; with such windows `frame_step` is 1. From these frames, clips may look back
    by `back` further frames, and ahead by `ahead`, which `offset` and `span` include. `length` is 0
    if frames are not evenly spaced, or differ between features. With `whole`, clips may use any
    frame of their episode, which is not cut. `solid` or more clips, `stride` apart, use all frames
    from their first to their last, `frame_step` apart; `None` if they may leave out some. Clips of
    an episode use at most `most_frames` of its frames, if this is known; then only these have rows.
    Clips use no frames but those at `offsets` from their starts, if these are known.
    """

    offset: int
    span: int
    frame_step: int
    length: int
    back: int = 0
    ahead: int = 0
    whole: bool = False
    solid: int | None = field(default=None, compare=False)
    most_frames: int | None = field(default=None, compare=False)
    offsets: tuple[int, ...] | None = field(default=None, compare=False)

    @classmethod
    def of(cls, spec: ClipSpec) -> Window:
        """The window of whole clips."""
        return cls(0, spec.span, spec.frame_step, spec.length)

    @classmethod
    def around(
        cls,
        reaches: Sequence[Reach],
        stride: int,
        *,
        dilations: Sequence[int] = (1,),
        pads: bool,
        draws: bool = False,
    ) -> Window:
        """The window of features that reach so far.

        Args:
            reaches: of each feature.
            stride: frames between clip starts.
            dilations: factors of the offsets that clips may have.
            pads: whether clips may use frames outside their episode.
            draws: whether clips draw dilations, directions or positions.
        """
        offsets, back, ahead, are_all_used, whole = list[IntArray](), 0, 0, True, False
        for reach in reaches:
            offsets += [reach.offsets * factor for factor in dilations]
            back, ahead = max(back, reach.back), max(ahead, reach.ahead)
            are_all_used &= reach.uses_all
            whole |= reach.is_whole
        union, solid = distinct(np.concatenate(offsets)), None
        begin, end = int(union[0]) - back, int(union[-1]) + ahead
        used = tuple(union.tolist()) if are_all_used and not (back or ahead or whole) else None
        has_step = are_all_used and not pads
        step = int(np.gcd.reduce(union - begin, initial=stride)) if has_step else 1
        if are_all_used and not draws:
            solid = _solid_clips((union - begin) // step, stride // step)
        if not has_step:
            of_window = begin, end - begin + 1, 1, 0, back, ahead, whole
            return cls(*of_window, solid=solid, offsets=used)
        even = np.arange(len(offsets[0])) * (union[1] - union[0] if len(union) > 1 else 1) + begin
        is_even = all(np.array_equal(window_offsets, even) for window_offsets in offsets)
        length = len(even) if is_even else 0
        return cls(begin, end - begin + 1, step, length, solid=solid, offsets=used)

    def begin(self, start: IntArray, last: IntArray) -> IntArray:
        """The first frame that each clip uses, int64[n], by its start and its episode's last."""
        if not self.offset and not self.back:
            return start
        begins: IntArray = np.clip(start + (self.offset + self.back), 0, last)
        return np.maximum(begins - self.back, 0) if self.back else begins

    def stop(self, start: IntArray, last: IntArray) -> IntArray:
        """The frame behind the last that each clip uses, like `begin`."""
        stops: IntArray = np.clip(start + (self.offset + self.span - self.ahead), 1, last + 1)
        return np.minimum(stops + self.ahead, last + 1) if self.ahead else stops


def _solid_clips(offsets: IntArray, stride: int) -> int | None:
    """The fewest clips, `stride` apart, whose frames at `offsets` from their starts are
    consecutive; `None` if no number of clips uses all frames.

    `offsets` are unique, ascending, and begin with 0.
    """
    is_begun = len(offsets) >= stride and offsets[stride - 1] == stride - 1
    if not is_begun or offsets[-stride] != offsets[-1] - stride + 1:
        return None
    # Clips reach frames of one remainder alone, in steps of a stride: as many as the longest way.
    order = np.lexsort((offsets, offsets % stride))
    ways = np.diff(offsets[order])[np.diff(offsets[order] % stride) == 0]
    return max(1, int(ways.max(initial=0)) // stride)


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs in the order of cursors.

    Row `i` has `count[i]` clips of `episode[i]`, from `first_start[i]` on every `stride` frames, in
    run `run[i]`: the samples from `first_sample[i]` on, see `ClipTable`. A run with incomplete
    clips has several rows, and frames loaded for one row are kept for the next one. Columns are
    int64[n]; `run` is ascending.

    Raises `ClipError` for a run number of 2^31 or more, because it exceeds a frame's key.
    """

    stride: int
    episode: IntArray
    first_start: IntArray
    count: IntArray
    run: IntArray
    first_sample: IntArray
    sample_step: int = MOST_COPIES
    first_clip: IntArray = field(init=False)  # clips before the row
    num_clips: int = field(init=False)

    def __post_init__(self) -> None:
        if len(self.run) and self.run[-1] >= MAX_OWNERS:
            raise ClipError(
                "an epoch of more runs than can be numbered; select fewer episodes or clips",
                expected=f"at most {MAX_OWNERS}",
                got=int(self.run[-1]) + 1,
            )
        object.__setattr__(self, "num_clips", int(self.count.sum()))
        object.__setattr__(self, "first_clip", np.cumsum(self.count) - self.count)

    @classmethod
    def of(cls, table: ClipTable) -> Runs:
        """The clips in canonical order, one run for each episode."""
        run = np.cumsum(np.diff(table.episode, prepend=table.episode[:1]) != 0)
        columns = table.episode, table.first_start, table.count, run, table.first_sample
        return cls(table.spec.stride, *columns, table.sample_step)

    def __len__(self) -> int:
        return len(self.episode)

    @property
    def last_start(self) -> IntArray:
        """The start of each row's last clip; int64[n]."""
        return self.first_start + (self.count - 1) * self.stride

    def find(self, clips: IntArray) -> tuple[IntArray, IntArray]:
        """Row and start, int64[n] each, of clips numbered over all rows."""
        row = np.searchsorted(self.first_clip, clips, side="right") - 1
        return row, self.first_start[row] + (clips - self.first_clip[row]) * self.stride

    def samples(self, row: IntArray, clips: IntArray) -> IntArray:
        """Sample of clips in these rows, numbered over all rows; int64[n] each."""
        samples: IntArray = (
            self.first_sample[row] + (clips - self.first_clip[row]) * self.sample_step
        )
        return samples


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `count`: the clips of an epoch for one rank and worker.

    Shards are numbered rank by rank, with `workers` shards of each rank.
    """

    index: int = 0
    count: int = 1
    workers: int = field(default=1, compare=False)

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ClipError(
                "not a shard of an epoch",
                expected="0 <= index < count",
                got=f"index {self.index} of {self.count}",
            )

    @property
    def rank(self) -> Shard:
        """The shard that the workers of this rank divide."""
        return Shard(self.index // self.workers, self.count // self.workers)

    def divided(self, workers: int) -> list[Shard]:
        """The shards of a rank's workers, this shard."""
        first_index, count = self.index * workers, self.count * workers
        return [Shard(first_index + i, count, workers) for i in range(workers)]


class Intervals(NamedTuple):
    """Frames of episodes, every `step`-th one in `[begin, stop)`; int64[n] each."""

    episode: IntArray
    begin: IntArray
    stop: IntArray
    step: int = 1

    @property
    def counts(self) -> IntArray:
        """The number of frames in each interval, int64[n]."""
        counts: IntArray = -(-(self.stop - self.begin) // self.step)
        return counts

    def include(self, other: Intervals) -> bool:
        """Whether each of other intervals is inside one of these, which are disjoint and
        ascending.
        """
        keys = frame_keys(self.episode, self.begin)
        place = np.searchsorted(keys, frame_keys(other.episode, other.begin), side="right") - 1
        if not len(other.episode) or place.min() < 0:
            return not len(other.episode)
        is_inside = (self.episode[place] == other.episode) & (other.stop <= self.stop[place])
        is_inside &= (other.begin - self.begin[place]) % self.step == 0
        return bool(is_inside.all()) and other.step % self.step == 0

    def take(self, index: npt.NDArray[np.bool_]) -> Intervals:
        """The intervals of a mask, bool[n]."""
        return Intervals(self.episode[index], self.begin[index], self.stop[index], self.step)

    @property
    def num_frames(self) -> int:
        """The number of frames in all intervals."""
        return int(self.counts.sum())

    @property
    def frames(self) -> tuple[IntArray, IntArray]:
        """Episode and number of each frame, int64[frames] each."""
        interval, place = ragged_arange(self.counts)
        return self.episode[interval], self.begin[interval] + place * self.step
