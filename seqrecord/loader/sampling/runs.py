"""Runs: consecutive clips of one episode; and the shares of cursors. Pure integers.

The clips of an epoch are a sequence of runs. To shuffle them, runs are cut in two and put in
another order::

    episodes            |--------A--------|---B---|----------C----------|
    cut                 |---A---|----A----|---B---|-----C-----|----C----|
    in another order    |----C----|---B---|---A---|-----C-----|----A----|

The sequence is divided into equal shares, one for each cursor of each *shard* (the clips of a rank
and worker). Shares are dealt to the shards in turn, so that the cursors of a shard are far apart,
in different episodes::

    sequence                |-----A-----|--B--|------C------|---D---|-----E-----|
    2 shards of 4 cursors   |-------|-------|-------|-------|-------|-------|-------|-------|
    shard, cursor            0 0     1 0     0 1     1 1     0 2     1 2     0 3     1 3

Runs and shares begin at the first clip that uses no frame before a chunk, so that little is read
twice. This moves clips between shards; only the share of each shard's last cursor begins elsewhere,
to give the shard its exact number of clips. If raw frames are read one by one, and chunks are
longer than clips, shares begin anywhere. If frames are resident, a share may have several cursors,
which begin anywhere in it. Video chunks decoded in pieces count whole: they begin at keyframes, and
a start behind one has to decode all frames in between::

    chunks                              |               |
    clips of frames s to s + 3          f f f f                 begin at the chunk's first frame
    clips of frames s - 1 and s         f s                     begin at its second
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import COPIES, Reach
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of, permutation
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import (
    MAX_FRAMES,
    MAX_OWNERS,
    ChunkGrid,
    distinct,
    frame_keys,
    ragged_arange,
    search_keys,
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

    def users(
        self, first: IntArray, last: IntArray, num_frames: IntArray
    ) -> tuple[IntArray, IntArray]:
        """The least and the greatest start of clips that may use frames in `[first, last]`
        of episodes with `num_frames`; int64[n] each.
        """
        # Windows that extend beyond an episode use its first or last frame, and look around from
        # there.
        begins = first <= self.ahead
        ends = last + self.back >= num_frames - 1
        low = np.where(begins, 0, first - self.offset - self.span + 1)
        return low, np.where(ends, MAX_FRAMES, last - self.offset)


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
class Cuts:
    """Places at which consecutive clips of an episode may be cut into runs.

    A row is a row of the clip table: consecutive clips of one episode. `grid` is the chunk grid of
    each row's episode, and `last`, int64[rows], the last frame of this episode. The first frame of
    a clip is `offset` frames after its start (negative: before it). With `whole`, shares of cursors
    end between runs only. Chunks of more than `uncut_frames` frames are cut at their decoding
    units, see `ChunkGrid`, of `unit` frames; 0: none are.
    """

    grid: ChunkGrid
    last: IntArray
    offset: int = 0
    whole: bool = False
    unit: int | None = None
    uncut_frames: int = 0

    @classmethod
    def of(
        cls,
        episode: IntArray,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        *,
        anywhere: bool = False,
    ) -> Cuts:
        """Cuts of these episodes' rows, int64[rows], with the windows of the table's groups.

        Cutting `anywhere` costs nothing if all loaded frames are resident.
        """
        place = cut_group(episodes)
        grid = episodes.groups[place]
        grid = grid if grid.stored_grid is None else grid.stored_grid
        if grid.by_frame or anywhere:
            size = grid.chunk_frames
            grid = replace(grid, chunk_frames=np.where(size > windows[place].span, 1, size))
        last_frame = episodes.num_frames[episode] - 1
        whole = grid.rows is not None or windows[place].whole
        return cls(grid.take(episode), last_frame, windows[place].offset, whole)

    @classmethod
    def at_units(
        cls,
        episode: IntArray,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        uncut_frames: int,
    ) -> Cuts:
        """Cuts that decode nothing twice but the frames that two clips share.

        They are at the units of the group that is decoded in the longest ones; chunks of at most
        `uncut_frames` frames are not cut, because a cut chunk is read twice.
        """
        place, _ = unit_group(episodes, episode)
        grid = episodes.groups[place].whole_chunks
        last_frame = episodes.num_frames[episode] - 1
        unit, whole = 1 if grid.by_frame else grid.unit_frames, windows[place].whole
        offset = windows[place].offset
        return cls(grid.take(episode), last_frame, offset, whole, unit, uncut_frames)

    @property
    def longest(self) -> int:
        """The greatest span in frames of starts whose clips begin in one chunk."""
        return int(self.grid.max_chunk_frames.max(initial=1)) + max(0, -self.offset)

    def chunks(self, row: IntArray, start: IntArray) -> tuple[IntArray, IntArray]:
        """The range of starts, int64[n] each, half-open, whose clips begin in the same chunk as the
        clips at `start`.
        """
        frame = np.clip(start + self.offset, 0, self.last[row])
        begin, end = self.grid.bounds(row, self.grid.place(row, frame))
        if self.unit:
            is_cut = end - begin > self.uncut_frames
            begin = np.where(is_cut, frame - (frame - begin) % self.unit, begin)
            end = np.where(is_cut, np.minimum(begin + self.unit, end), end)
        # An episode's first chunk has every clip that begins before the second one.
        return np.where(begin > 0, begin - self.offset, 0), end - self.offset


def cut_group(episodes: EpisodeLayout) -> int:
    """The place of the group that limits cuts: the group with the longest chunks decoded in pieces,
    else the leading one.
    """
    longest = [
        0 if grid.stored_grid is None else int(grid.stored_grid.max_chunk_frames.max(initial=0))
        for grid in episodes.groups
    ]
    return int(np.argmax(longest)) if any(longest) else episodes.leading


def unit_group(episodes: EpisodeLayout, selected: IntArray) -> tuple[int, IntArray]:
    """The place of the group with the longest decoding units in the `selected` episodes, and the
    frames in the longest unit of each of them, int64[n]; the leading one, if several have them.
    """
    place, units, longest = episodes.leading, selected, 0
    for number in dict.fromkeys((episodes.leading, *range(len(episodes.groups)))):
        grid = episodes.groups[number].whole_chunks
        unit = 1 if grid.by_frame else grid.unit_frames
        frames = np.full_like(selected, unit) if unit else grid.max_chunk_frames[selected]
        if (most_frames := int(frames.max(initial=1))) > longest:
            place, units, longest = number, frames, most_frames
    return place, units


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
    sample_step: int = COPIES
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

    @property
    def copy(self) -> IntArray:
        """The number of each row's clips among the copies of their samples; int64[n]."""
        return self.first_sample % COPIES

    def __len__(self) -> int:
        return len(self.episode)

    @property
    def run_clips(self) -> IntArray:
        """Each run's number of clips; int64[runs]."""
        return np.bincount(self.run, self.count).astype(np.int64)

    @property
    def last_start(self) -> IntArray:
        """The start of each row's last clip; int64[n]."""
        return self.first_start + (self.count - 1) * self.stride

    @cached_property
    def _last_keys(self) -> IntArray:
        """Keys of each row's run and last start, ascending; int64[n]. Cached: made for each search,
        they took half the time of an epoch's rounds (2.3 million rows).
        """
        return frame_keys(self.run, self.last_start)

    def find(self, clips: IntArray) -> tuple[IntArray, IntArray]:
        """Row and start, int64[n] each, of clips numbered over all rows."""
        row = np.searchsorted(self.first_clip, clips, side="right") - 1
        return row, self.first_start[row] + (clips - self.first_clip[row]) * self.stride

    def clips_from(self, run: IntArray, start: IntArray) -> IntArray:
        """Number of the first clip of each run that starts at `start` or behind it, or else of the
        next run's first clip; int64[n].
        """
        row = np.searchsorted(self._last_keys, search_keys(run, start))
        place = np.minimum(row, len(self) - 1)
        step = -((self.first_start[place] - start) // self.stride)
        first_clip = np.where(row < len(self), self.first_clip[place], self.num_clips)
        is_inside = (row < len(self)) & (self.run[place] == run)
        clips: IntArray = first_clip + np.where(is_inside, np.maximum(step, 0), 0)
        return clips

    def samples(self, row: IntArray, clips: IntArray) -> IntArray:
        """Sample of clips in these rows, numbered over all rows; int64[n] each."""
        samples: IntArray = (
            self.first_sample[row] + (clips - self.first_clip[row]) * self.sample_step
        )
        return samples

    @property
    def all_samples(self) -> IntArray:
        """Sample of each clip, int64[num_clips]."""
        row, offset = ragged_arange(self.count)
        samples: IntArray = self.first_sample[row] + offset * self.sample_step
        return samples

    def snap(self, clips: IntArray, cuts: Cuts) -> IntArray:
        """Move clips back, within their rows, to the first clip that uses no frame before its
        chunk; with decoding units, within their runs.

        `clips` is int64[n], numbered over all rows; `cuts` has the same rows.
        """
        row, start = self.find(clips)
        if cuts.whole:
            episode_starts: IntArray = self.first_clip[np.searchsorted(self.run, self.run[row])]
            return episode_starts
        begin, _ = cuts.chunks(row, start)
        if cuts.unit is not None:  # rows of samples that functions choose may have one clip
            keys = frame_keys(self.run[row], begin)
            row = np.minimum(np.searchsorted(self._last_keys, keys), row)
        step = -(-(begin - self.first_start[row]) // self.stride)
        snapped: IntArray = self.first_clip[row] + np.maximum(step, 0)
        return snapped

    @property
    def begins(self) -> IntArray:
        """The first clip of each run, int64[runs]."""
        begins: IntArray = self.first_clip[np.diff(self.run, prepend=-1) != 0]
        return begins

    def nearest(self, clips: IntArray) -> IntArray:
        """Move clips to the nearest start of a run, or to the end; int64[n]."""
        bounds = np.append(self.begins, self.num_clips)
        edges: IntArray = bounds[np.searchsorted(bounds[:-1] + np.diff(bounds) // 2, clips)]
        return edges

    def share_starts(self, share_begin: IntArray, share_end: IntArray, num_shares: int) -> IntArray:
        """The starts of all shares but the first, which begin with runs; int64[shards, shares - 1].

        The shards are clips `[first, last)`, int64[shards, 1] each. Their shares are about equal,
        and each has a run of its own; if there are fewer runs, the first shares are empty.
        """
        begins = self.begins
        low = np.searchsorted(begins, share_begin, side="right")
        high = np.searchsorted(begins, share_end, side="left")
        number = np.arange(num_shares - 1)
        targets = share_begin + (share_end - share_begin) * (number + 1) // num_shares
        place = np.searchsorted((begins[1:] + begins[:-1]) // 2, targets)
        place = np.maximum.accumulate(np.maximum(place, low) - number, axis=1) + number
        place = np.minimum(place, high - len(number) + number)
        starts: IntArray = np.where(place < low, share_begin, begins[np.maximum(place, 0)])
        return starts

    def cut(self, cuts: IntArray) -> Runs:
        """The same clips with a new run at each of `cuts`: clip numbers, int64, ascending."""
        cuts = cuts[(cuts > 0) & (cuts < self.num_clips)]
        bounds = merged(self.first_clip, cuts)
        row, start = self.find(bounds)
        run = self.run[row] + np.searchsorted(cuts, bounds, side="right")
        count = np.diff(bounds, append=self.num_clips)
        sample = self.samples(row, bounds)
        columns = self.episode[row], start, count, run, sample
        return Runs(self.stride, *columns, self.sample_step)

    def slices(self, starts: IntArray, stops: IntArray) -> tuple[Runs, IntArray]:
        """The clips `[starts[i], stops[i])` as new runs, and the slice of each row.

        `starts` and `stops` are clip numbers, int64[n]; a slice may be empty. Each slice begins a
        run.
        """
        first_row = np.searchsorted(self.first_clip, starts, side="right") - 1
        number = np.searchsorted(self.first_clip, stops, side="left") - first_row
        owner, offset = ragged_arange(np.where(stops > starts, number, 0))
        row = first_row[owner] + offset
        begin = np.maximum(self.first_clip[row], starts[owner])
        end = np.minimum(self.first_clip[row] + self.count[row], stops[owner])
        new = (np.diff(owner, prepend=-1) != 0) | (np.diff(self.run[row], prepend=-1) != 0)
        start = self.first_start[row] + (begin - self.first_clip[row]) * self.stride
        columns = start, end - begin, np.cumsum(new) - 1, self.samples(row, begin)
        return Runs(self.stride, self.episode[row], *columns, self.sample_step), owner

    def ordered(self, number: IntArray) -> Runs:
        """The runs sorted by `number`, int64[runs]."""
        row = np.argsort(number[self.run], kind="stable")
        run = np.cumsum(np.diff(self.run[row], prepend=self.run[row[:1]]) != 0)
        columns = self.episode[row], self.first_start[row], self.count[row]
        return Runs(self.stride, *columns, run, self.first_sample[row], self.sample_step)


def remaining_table(table: ClipTable, remaining: Runs) -> ClipTable:
    """The clips of a table that are in some runs of it, in any order. Adjacent runs are joined."""
    columns = remaining.episode, remaining.first_start, remaining.count, remaining.first_sample
    if remaining.copy.any():  # a clip between two copies of another one
        row, offset = ragged_arange(remaining.count)
        start = remaining.first_start[row] + offset * remaining.stride
        sample = remaining.first_sample[row] + offset * remaining.sample_step
        columns = remaining.episode[row], start, np.ones_like(row), sample
    order = np.argsort(columns[-1])
    return table.with_runs(*(column[order] for column in columns))


def merged(numbers: IntArray, additions: IntArray) -> IntArray:
    """The sorted union of two ascending arrays, without duplicates."""
    both = np.sort(np.concatenate((numbers, additions)), kind="stable")  # which merges them
    union: IntArray = both[np.diff(both, prepend=both[:1] - 1) != 0]
    return union


def shuffle_runs(
    runs: Runs, run_frames: int | None, places: Cuts, key: int, *, num_shares: int
) -> Runs:
    """The same clips in runs of about `run_frames` frames, in an order drawn from `key`.

    Runs are cut at chunks, see `Cuts`, at places that `key` moves by up to a quarter of a run;
    shorter runs are not cut. The order begins inside a run, so that the `num_shares` shares, which
    have fixed bounds, begin elsewhere for another key; with `run_frames=None` only this run is cut.
    It is not cut if each share gets the same number of whole runs.
    """
    total = runs.num_clips
    if not total:
        return runs
    length = total
    if run_frames is not None:
        length = min(total, max(1, run_frames // runs.stride))
    steps = np.arange(-(-total // length))
    hashes = hash64(key_of(Purpose.CUTS, key), np.append(steps, -1))
    moved = (hashes[:-1] % np.uint64(length // 2 + 1)).astype(np.int64) - length // 4
    moved[0] = 0
    targets = (int(hashes[-1] % np.uint64(total)) + steps * length + moved) % total

    row = np.searchsorted(runs.first_clip, targets, side="right") - 1
    run_clips = np.zeros(int(runs.run[-1]) + 1, np.int64)
    np.add.at(run_clips, runs.run, runs.count)
    is_long = run_clips[runs.run[row]] > length
    even = num_shares == 1 or (
        bool((run_clips == run_clips[0]).all()) and len(run_clips) % num_shares == 0
    )
    is_long[0] = not even
    cuts = runs.snap(targets[is_long], places)
    runs = runs.cut(distinct(cuts))

    number = np.empty(int(runs.run[-1]) + 1, np.int64)
    number[permutation(key_of(Purpose.RUN_ORDER, key), len(number))] = np.arange(len(number))
    if not even:
        number[runs.run[np.searchsorted(runs.first_clip, cuts[0])]] = -1
    return runs.ordered(number)


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


class CursorShares(NamedTuple):
    """The shares of some shards' cursors: clips `[start, stop)`, int64[shards, cursors] each.

    A share may be empty. `repeated`, int64[shards], is the number of clips at the end of a shard's
    last share that belong to another shard too.
    """

    start: IntArray
    stop: IntArray
    repeated: IntArray


def shares_of(
    sequence: Runs,
    cuts: Cuts,
    index: IntArray,
    count: int,
    num_cursors: int,
    *,
    fill: bool,
    num_shares: int | None = None,
    begins: IntArray | None = None,
    at_runs: bool = False,
) -> CursorShares:
    """The cursors' shares in shards `index`, int64[shards], of `count`.

    All shards together cover the sequence. Shares begin at chunks, see `Cuts`, unless they are
    shorter than chunks. If runs are not cut, a shard's shares are consecutive, and all but the
    first one begin at runs, as with `at_runs`; or at the clips `begins`, int64[shards, cursors] of
    all shards. If a shard has fewer shares than cursors, the cursors divide them anywhere.
    Shards have the same number of clips, or differ by one. With `fill` all have the same number: a
    shard with one clip less repeats a clip of the next shard::

            8 clips, 3 shards of one cursor 0 1 2 | 2 3 4 | 5 6 7
            without `fill`                  0 1   | 2 3 4 | 5 6 7
            2 clips, 3 shards               0     | 0     | 1
    """
    total, num_shares = sequence.num_clips, num_shares or num_cursors
    start = _equal_bounds(total, count, num_shares, index)
    stop = _equal_bounds(total, count, num_shares, index + 1)
    longest = -(-cuts.longest // sequence.stride)
    if (begins is not None or cuts.whole or at_runs) and total:
        lower, upper = (_equal_bounds(total, count, 1, index + i) for i in range(2))
        if begins is None and at_runs:
            inner = sequence.share_starts(lower, upper, num_shares)
        elif begins is None:
            inner = lower + (upper - lower) * np.arange(1, num_shares) // num_shares
            inner = sequence.nearest(inner)
        else:
            inner, num_shares = begins[index, 1:], num_cursors
        inner = np.clip(inner, lower, upper)
        start, stop = np.hstack((lower, inner)), np.hstack((inner, upper))
    elif total // count // num_shares > longest + 1:
        # A shard gains in one share and loses in others: the moves of its shares' starts and ends
        # have the same sum, that of the first shard's starts.
        equal = _equal_bounds(total, count, num_shares, np.zeros(1, np.int64))
        lower = np.append(0, _snapped(sequence, cuts, equal[:, 1:], 0)[0])
        moved = int((lower - equal).sum())
        is_inner = index > 0
        start[~is_inner] = lower
        start[is_inner] = _snapped(sequence, cuts, start[is_inner], moved, exact=True)
        is_inner = index < count - 1
        stop[~is_inner] = np.append(lower[1:], total)
        stop[is_inner] = _snapped(sequence, cuts, stop[is_inner], moved, exact=True)
    repeated = np.zeros(len(index), np.int64)
    if fill and total:
        repeated = -(-total // count) - (stop - start).sum(axis=1)
        stop[:, -1] += repeated
    return divide_shares(start, stop, repeated, num_cursors)


def divide_shares(
    start: IntArray, stop: IntArray, repeated: IntArray, num_cursors: int
) -> CursorShares:
    """Divide shares, int64[shards, shares], among `num_cursors` cursors of each shard."""
    num_shares = start.shape[1]
    # Cursor `inside[i]` of the `number[share[i]]` of each share.
    number = np.diff(np.arange(num_shares + 1) * num_cursors // num_shares)
    share, offset = ragged_arange(number)
    begin, length, number = start[:, share], (stop - start)[:, share], number[share]
    stop = begin + length * (offset + 1) // number
    return CursorShares(begin + length * offset // number, stop, repeated)


def _equal_bounds(total: int, num_shards: int, num_cursors: int, index: IntArray) -> IntArray:
    """The starts of the shares in shards `index`, or the ends of the shares before them.

    Returns int64[shards, cursors]. Shares are as equal as the shards' numbers of clips allow.
    """
    low, larger = divmod(total, num_shards)
    longer_before = (index * larger // num_shards)[:, None]  # shards before with one clip more
    cursor = np.arange(num_cursors + 1)
    short, long = cursor * low // num_cursors, cursor * (low + 1) // num_cursors
    bounds = short * (num_shards - larger) + long * larger
    lengths = np.diff(short) * (index[:, None] - longer_before) + np.diff(long) * longer_before
    edges: IntArray = np.add(bounds[:-1], lengths, dtype=np.int64)
    return edges


def _snapped(
    sequence: Runs, cuts: Cuts, bounds: IntArray, total_move: int, *, exact: bool = False
) -> IntArray:
    """Move `bounds`, int64[shards, cursors], to chunks.

    The moves of a shard sum to about `total_move`; with `exact` exactly, by a last bound that is
    not at a chunk.
    """
    moved: IntArray = bounds.copy()
    if not len(bounds):
        return moved
    owed = np.full(len(bounds), total_move)
    for i in range(bounds.shape[1] - exact):
        targets = bounds[:, i] + owed
        begin, end = cuts.chunks(*sequence.find(targets))
        half = (end - begin) // (2 * sequence.stride)
        moved[:, i] = sequence.snap(targets + half, cuts)
        owed += bounds[:, i] - moved[:, i]
    if exact:
        moved[:, -1] += owed
    return moved
