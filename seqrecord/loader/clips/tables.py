"""Enumerates the clips of a dataset as integers, without I/O.

A clip of `length` 3 and `dilation` 3 uses the frames marked `f` and skips those marked `x`::

    frame       0 1 2 3 4 5 6 7 8
    start 0     f x x f x x f            span 7
    start 1       f x x f x x f
    start 2         f x x f x x f

If frame 4 is missing, only start 1 is dropped: the other two do not use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import gcd

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.frames import (
    FAR,
    MOST_COPIES,
    ClipKeys,
    MissingFrames,
    merged_intervals,
)
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import ChunkGrid, IntArray, distinct, frame_keys, split_keys

__all__ = [
    "ClipTable",
    "EpisodeLayout",
    "IntArray",
    "MissingFrames",
    "enumerate_clips",
    "missing_from_bitmaps",
]

_BITMAP_ROWS = 1 << 16  # expanded to one byte per frame together
_WORD_BITS = 16  # a chunk has fewer than 2^16 words of bits


@dataclass(frozen=True, eq=False)
class EpisodeLayout:
    """Integers of an index for clips and plans.

    Episode `e` has `num_frames[e]` frames, int64[episodes]. `groups` are the chunk grids of groups
    with requested features, in ascending order. An epoch is cut at chunks of `groups[leading]`.
    """

    num_frames: IntArray
    groups: tuple[ChunkGrid, ...]
    leading: int = 0

    @property
    def leading_grid(self) -> ChunkGrid:
        """Chunks of the leading group."""
        return self.groups[self.leading]

    def with_leading(self, leading: int, selected: IntArray) -> EpisodeLayout:
        """The table with another leading group, for an epoch of the `selected` episodes.

        The chunk size of a single-chunk episode is unknown. It is taken from the next larger chunk
        size of the `selected` episodes, or from the longest single-chunk one, so that an epoch of
        many short episodes has one chunk size.
        """
        lead = self.groups[leading]
        size = lead.chunk_frames[selected]
        single = (size >= self.num_frames[selected]) & (size > 0)
        if not single.any():
            return replace(self, leading=leading)
        chunk_sizes = distinct(size[~single & (size > 0)])
        lengths = size[single]
        place = np.searchsorted(chunk_sizes, lengths)
        nominal = np.append(chunk_sizes, lengths.max())[place]
        chunk_frames = lead.chunk_frames.copy()
        chunk_frames[selected[single]] = nominal
        groups = list(self.groups)
        groups[leading] = replace(lead, chunk_frames=chunk_frames)
        return EpisodeLayout(self.num_frames, tuple(groups), leading)

    def __len__(self) -> int:
        return len(self.num_frames)

    def __repr__(self) -> str:
        return f"EpisodeLayout({len(self)} episodes, {int(self.num_frames.sum())} frames)"


@dataclass(frozen=True, eq=False)
class ClipTable:
    """Clips of selected episodes in canonical order: by episode, then by start.

    Run `i` contains `count[i]` clips of `episode[i]`, which start at `first_start[i]` and every
    `spec.stride` frames after it; int64[runs] each. Their samples are `first_sample[i]` and every
    `sample_step` after it, see `ClipKeys`: `samples`, ascending, or by default rows counted from 0.

    `selected`, int64, are the selected episodes in ascending order. `num_short_episodes` of them
    are too short for a clip. `num_incomplete` clips were dropped because a frame lacks a requested
    feature, `num_outside` because a window extends beyond the episode.
    """

    spec: ClipSpec
    selected: IntArray
    episode: IntArray
    first_start: IntArray
    count: IntArray
    num_short_episodes: int = 0
    num_incomplete: int = 0
    num_outside: int = 0
    samples: IntArray | None = None
    sample_step: int = MOST_COPIES
    offsets: IntArray = field(init=False)  # position of each run's first clip
    first_sample: IntArray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "offsets", np.cumsum(self.count) - self.count)
        first_sample = self.offsets * MOST_COPIES if self.samples is None else self.samples
        object.__setattr__(self, "first_sample", first_sample)

    @cached_property
    def num_clips(self) -> int:
        return int(self.count.sum())

    @property
    def repeats(self) -> bool:
        """Whether the table contains duplicates."""
        last_start = self.first_start + (self.count - 1) * self.spec.stride
        is_repeat = (self.first_start[1:] <= last_start[:-1]) & (
            self.episode[1:] == self.episode[:-1]
        )
        return bool(is_repeat.any())

    def __len__(self) -> int:
        return self.num_clips

    def __repr__(self) -> str:
        return (
            f"ClipTable({self.num_clips} clips of {len(np.unique(self.episode))} episodes, "
            f"{self.num_short_episodes} episodes too short, {self.num_incomplete} incomplete)"
        )

    @classmethod
    def union(cls, tables: Sequence[ClipTable]) -> ClipTable:
        """Union of tables with one spec and selection, without duplicates."""
        if len(tables) == 1:
            return tables[0]
        spec = tables[0].spec
        numbers = [  # consecutive clips have consecutive numbers
            frame_keys(table.episode, (table.first_start - spec.phase) // spec.stride)
            for table in tables
        ]
        counts = [table.count for table in tables]
        begin, stop = np.concatenate(numbers), np.concatenate(numbers) + np.concatenate(counts)
        begin, stop = merged_intervals(begin, stop)
        episode, number = split_keys(begin)
        num_starts = max(table.num_clips + table.num_incomplete for table in tables)
        return cls(
            spec,
            tables[0].selected,
            episode,
            spec.phase + number * spec.stride,
            stop - begin,
            num_short_episodes=min(table.num_short_episodes for table in tables),
            num_incomplete=num_starts - int((stop - begin).sum()),
            num_outside=min(table.num_outside for table in tables),
        )

    @classmethod
    def concatenated(cls, tables: Sequence[ClipTable]) -> ClipTable:
        """Concatenate tables with one spec and disjoint selections."""
        if len(tables) == 1:
            return tables[0]
        columns = (
            np.concatenate([getattr(table, name) for table in tables])
            for name in ("episode", "first_start", "count")
        )
        episode, first_start, count = columns
        order = np.argsort(episode, kind="stable")
        return cls(
            tables[0].spec,
            np.sort(np.concatenate([table.selected for table in tables])),
            episode[order],
            first_start[order],
            count[order],
            num_short_episodes=sum(table.num_short_episodes for table in tables),
            num_incomplete=sum(table.num_incomplete for table in tables),
            num_outside=sum(table.num_outside for table in tables),
        )

    def with_runs(
        self, episode: IntArray, start: IntArray, count: IntArray, sample: IntArray
    ) -> ClipTable:
        """Return the table with these runs, int64[n] each, in canonical order; joins neighbours."""
        is_break = start[1:] != (start + count * self.spec.stride)[:-1]
        is_break |= (sample[1:] != (sample + count * self.sample_step)[:-1]) | (
            episode[1:] != episode[:-1]
        )
        run_starts = np.flatnonzero(np.append(True, is_break)[: len(start)])
        return replace(
            self,
            episode=episode[run_starts],
            first_start=start[run_starts],
            count=np.add.reduceat(count, run_starts) if len(run_starts) else count,
            samples=sample[run_starts],
        )

    def has(self, episode: IntArray, start: IntArray) -> npt.NDArray[np.bool_]:
        """Whether clips are in the table, by episode rows and starts; [n] each.

        The table must be in canonical order, without duplicates.
        """
        if not len(self.count):
            return np.zeros(len(start), np.bool_)
        run = np.maximum(self._run_of(episode, start), 0)
        number, remainder = np.divmod(start - self.first_start[run], self.spec.stride)
        is_member: npt.NDArray[np.bool_] = (
            (self.episode[run] == episode)
            & (number >= 0)
            & (number < self.count[run])
            & (remainder == 0)
        )
        return is_member

    def locate(self, positions: IntArray) -> ClipKeys:
        """The clips at canonical positions, int64[n], which are their places too.

        Raises `IndexError` for a position outside `[0, num_clips)`.
        """
        if len(positions) and not (positions.min() >= 0 and positions.max() < self.num_clips):
            raise IndexError(f"position of a clip outside [0, {self.num_clips})")
        run = np.searchsorted(self.offsets, positions, side="right") - 1
        step = positions - self.offsets[run]
        start = self.first_start[run] + step * self.spec.stride
        sample = self.first_sample[run] + step * self.sample_step
        return ClipKeys(self.episode[run], start, sample, positions)

    def pieces(self, run: IntArray, begin: IntArray, end: IntArray) -> ClipTable:
        """The clips `[begin, end)` of runs, int64[n] each, in canonical order."""
        is_filled = end > begin
        run, begin, count = run[is_filled], begin[is_filled], (end - begin)[is_filled]
        return replace(
            self,
            episode=self.episode[run],
            first_start=self.first_start[run] + begin * self.spec.stride,
            count=count,
            samples=self.first_sample[run] + begin * self.sample_step,
        )

    def with_stride(self, stride: int, phase: int = 0) -> ClipTable:
        """The clips whose starts are `phase` plus a multiple of `stride`, with their samples."""
        spec = self.spec
        divisor = gcd(spec.stride, stride)
        clip_step = stride // divisor  # in clips
        inverse = pow(spec.stride // divisor, -1, clip_step)
        begin = (phase - self.first_start) // divisor % clip_step * inverse % clip_step
        first_clip = (phase - spec.phase) // divisor % clip_step * inverse % clip_step
        spec = replace(
            spec, stride=spec.stride * clip_step, phase=spec.phase + first_clip * spec.stride
        )
        count = -(-np.maximum(self.count - begin, 0) // clip_step)
        runs = np.flatnonzero(count * ((phase - self.spec.phase) % divisor == 0))
        return replace(
            self,
            spec=spec,
            episode=self.episode[runs],
            first_start=(self.first_start + begin * self.spec.stride)[runs],
            count=count[runs],
            samples=(self.first_sample + begin * self.sample_step)[runs],
            sample_step=self.sample_step * clip_step,
        )

    def first_starts(self, episode: IntArray, start: IntArray) -> IntArray:
        """First start of each clip's run; int64[n] each."""
        starts: IntArray = self.first_start[self._run_of(episode, start)]
        return starts

    def _run_of(self, episode: IntArray, start: IntArray) -> IntArray:
        """Index of the last run at or before each clip."""
        return np.searchsorted(self._run_keys, frame_keys(episode, start), side="right") - 1

    @cached_property
    def _run_keys(self) -> IntArray:
        return frame_keys(self.episode, self.first_start)


@dataclass(frozen=True, eq=False)
class ClipUse:
    """Frames that clips use of some features: `start + offsets`, int64[T]; and missing frames."""

    offsets: IntArray
    gaps: MissingFrames


@dataclass(frozen=True, eq=False)
class Starts:
    """Possible starts of clips: `num_starts` in each selected episode, int64[selected].

    Starts are numbered consecutively over the selected episodes.
    """

    first_start: int
    stride: int
    selected: IntArray
    num_frames: IntArray  # of the selected episodes
    num_starts: IntArray

    def number(self, owner: IntArray, frame: IntArray) -> IntArray:
        """Number of possible starts before these frames of the selected episodes `owner`."""
        rank = -((self.first_start - frame) // self.stride)
        base = (np.cumsum(self.num_starts) - self.num_starts)[owner]
        return np.clip(rank, 0, self.num_starts[owner]) + base


def offset_range(offsets: Iterable[IntArray]) -> tuple[int, int]:
    """Number of frames required before and after a clip's start for all these offsets."""
    frame_offsets = np.concatenate([np.zeros(1, np.int64), *offsets])
    return -int(frame_offsets.min()), int(frame_offsets.max())


def excluded_intervals(starts: Starts, uses: Sequence[ClipUse]) -> tuple[IntArray, IntArray]:
    """Intervals of possible clips that use a missing frame, numbered over all selected episodes.

    Missing frames `[a, b)` exclude the starts `[a - offset, b - offset)` for each offset: separate
    intervals if the run is shorter than the distance of offsets, else one. The first frame of an
    episode also represents the frames before it, and the last one those after it, if clips are
    padded.
    """
    selected, owners, firsts, stops = starts.selected, [], [], []
    for use in uses:
        place = np.searchsorted(selected, use.gaps.episode)
        is_selected = place < len(selected)
        is_selected[is_selected] = selected[place[is_selected]] == use.gaps.episode[is_selected]
        place, start = place[is_selected], use.gaps.start[is_selected]
        if not len(place):
            continue
        stop = use.gaps.stop[is_selected]
        length = stop - start
        start = np.where(start == 0, -FAR, start)
        stop = np.where(stop == starts.num_frames[place], FAR, stop)
        for offset, step, count in _progressions(use.offsets):
            is_long = length >= step
            owners += [place[is_long], np.tile(place[~is_long], count)]
            use_offsets = offset + np.arange(count)[:, None] * step
            firsts += [
                start[is_long] - (offset + (count - 1) * step),
                (start[~is_long] - use_offsets).ravel(),
            ]
            stops += [stop[is_long] - offset, (stop[~is_long] - use_offsets).ravel()]
    if not owners:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    owner, first_frame, stop = map(np.concatenate, (owners, firsts, stops))
    return starts.number(owner, first_frame), starts.number(owner, stop)


def _progressions(offsets: IntArray) -> list[tuple[int, int, int]]:
    """Split offsets into arithmetic progressions: first offset, step and count of each."""
    values, progressions = np.unique(offsets).tolist(), []
    while values:
        step = values[1] - values[0] if len(values) > 1 else 1
        count = next((i for i in range(1, len(values)) if values[i] - values[i - 1] != step), None)
        count = len(values) if count is None else count
        progressions.append((values[0], step, count))
        values = values[count:]
    return progressions


def enumerate_clips(
    spec: ClipSpec,
    episodes: EpisodeLayout,
    selected: IntArray,
    gaps: MissingFrames | None = None,
    *,
    uses: Sequence[ClipUse] | None = None,
    pads: tuple[bool, bool] = (False, False),
) -> ClipTable:
    """Enumerate the complete clips inside selected episodes.

    `selected`, int64[k], are rows of `episodes` in ascending order. `gaps` may include other
    episodes. A clip is incomplete only if a frame that it uses is missing.

    `uses` replaces `spec.length` frames of all features. `pads`: whether clips are padded
    before the first and after the last frame of an episode.

    Raises `IndexError` for a selection that is not ascending or not in the table.
    """
    if len(selected) and not (
        selected[0] >= 0 and selected[-1] < len(episodes) and (np.diff(selected) > 0).all()
    ):
        raise IndexError(f"selected episodes are not ascending rows in [0, {len(episodes)})")
    has_windows = uses is not None
    if uses is None:
        offsets = np.arange(spec.length) * spec.dilation
        uses = [ClipUse(offsets, gaps or MissingFrames.none())]
    num_frames = episodes.num_frames[selected]
    frames_before, frames_after = offset_range([use.offsets for use in uses])
    frames_before, frames_after = 0 if pads[0] else frames_before, 0 if pads[1] else frames_after
    first_start = spec.phase + max(0, -((spec.phase - frames_before) // spec.stride)) * spec.stride
    num_starts = _num_starts(num_frames - frames_after - first_start, spec.stride)
    num_phases = _num_starts(num_frames - spec.phase, spec.stride)
    num_outside = int((num_phases - num_starts).sum())
    # Possible clips are numbered over all selected episodes. Missing frames exclude intervals of
    # these numbers; the runs are the gaps between the intervals.
    stops = np.cumsum(num_starts)
    starts = Starts(first_start, spec.stride, selected, num_frames, num_starts)
    excluded_start, excluded_stop = merged_intervals(*excluded_intervals(starts, uses))
    begins = np.sort(np.concatenate((stops - num_starts, excluded_stop)))
    ends = np.sort(np.concatenate((stops, excluded_start)))
    is_filled = ends > begins
    first_number, count = begins[is_filled], (ends - begins)[is_filled]
    owner = np.searchsorted(stops, first_number, side="right")
    return ClipTable(
        spec,
        selected,
        selected[owner],
        first_start + (first_number - (stops - num_starts)[owner]) * spec.stride,
        count,
        num_short_episodes=int((num_starts == 0).sum()),
        num_incomplete=int((excluded_stop - excluded_start).sum()),
        num_outside=num_outside if has_windows else 0,
    )


def missing_from_bitmaps(
    episodes: EpisodeLayout,
    groups: Sequence[tuple[IntArray, IntArray, npt.NDArray[np.uint64]]],
    hidden: Sequence[IntArray] | None = None,
) -> MissingFrames:
    """Frames that are missing in at least one bitmap.

    For each group in `episodes.groups`: `chunk`, rows of its chunk table, in any order and with
    repetitions (one per feature, for example); `word`; int64[m] each; and `present`, uint64[m]. Bit
    `i` of `present` is set if frame `64 * word + i` of the chunk has the feature. Bits of frames
    outside the episode are ignored. `hidden`, int64[m] for each group, is the number of the chunk's
    frames before a trimmed episode.
    """
    batches = [
        batch
        for number, (grid, bitmaps) in enumerate(zip(episodes.groups, groups, strict=True))
        for hidden_frames in [np.zeros_like(bitmaps[0]) if hidden is None else hidden[number]]
        for batch in _missing_of_group(episodes.num_frames, grid, *bitmaps, hidden_frames)
    ]
    if not batches:
        return MissingFrames.none()
    return MissingFrames.of(*(np.concatenate(column) for column in zip(*batches, strict=True)))


def _missing_of_group(
    num_frames: IntArray,
    grid: ChunkGrid,
    chunk: IntArray,
    word: IntArray,
    present: npt.NDArray[np.uint64],
    hidden: IntArray,
) -> list[tuple[IntArray, IntArray, IntArray]]:
    """Runs of missing frames in batches: episode, start and stop, int64[n] each."""
    place = (chunk << _WORD_BITS) + word
    by_place = np.argsort(place, kind="stable")
    words, first_bitmap = np.unique(place[by_place], return_index=True)
    if not len(words):
        return []
    gap_bits = np.bitwise_or.reduceat(~present[by_place], first_bitmap)
    rows, word = words >> _WORD_BITS, words & ((1 << _WORD_BITS) - 1)
    episodes_with_frames = np.flatnonzero(num_frames > 0)  # empty episodes have no chunk
    first_chunk = grid.first_chunk[episodes_with_frames]
    episode = episodes_with_frames[np.searchsorted(first_chunk, rows, side="right") - 1]
    start, stop = grid.bounds(episode, rows - grid.first_chunk[episode])
    base = start - hidden[by_place][first_bitmap] + 64 * word
    length = np.minimum(stop, num_frames[episode]) - base
    return [
        _runs_of_bits(gap_bits[part], episode[part], base[part], length[part])
        for part in (slice(i, i + _BITMAP_ROWS) for i in range(0, len(rows), _BITMAP_ROWS))
    ]


def _runs_of_bits(
    bits: npt.NDArray[np.uint64], episode: IntArray, base: IntArray, length: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Episode, start and stop for each run of set bits. Runs end at the end of their chunk."""
    octets = bits.astype("<u8").view(np.uint8).reshape(len(bits), 8)
    flags = np.zeros((len(bits), 66), np.int8)
    flags[:, 1:65] = np.unpackbits(octets, axis=1, bitorder="little")
    flags[:, 1:65] *= (np.arange(64) < length[:, None]) & (np.arange(64) >= -base[:, None])
    edges = np.diff(flags, axis=1)
    row, start = np.nonzero(edges == 1)
    _, stop = np.nonzero(edges == -1)
    return episode[row], base[row] + start, base[row] + stop


def _num_starts(room: IntArray, stride: int) -> IntArray:
    """Number of starts, `stride` apart, in `room` frames; 0 if negative."""
    count: IntArray = -(-np.maximum(room, 0) // stride)
    return count
