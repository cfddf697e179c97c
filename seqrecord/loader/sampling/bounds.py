"""Bounds: the greatest number of frames in memory, before an epoch is planned. Pure integers.

They follow from the settings of an epoch and a few numbers about its clips. A cursor advances by a
*block* in each round. The length of a block counts frames that need memory: `stride` frames for a
clip, and `gap` frames between two runs for the extra frames of the second one. So all blocks need
about the same memory. Blocks end at chunk boundaries, or at lines that divide a chunk evenly::

    chunks of 4     |       |       |       |
    block of 8      |               |
    clip starts     s s s s s s s s               8 starts, stride 1
    frames          f f f f f f f f f f f         clips of 4: the last start needs 3 frames more
    loaded          f f f f f f f f f f f f       whole chunks

The first blocks are small, and each is at most twice as long as the one before, so that the first
batches do not wait for a large round.

In each group, a cursor keeps the frames of its block's clips, to the end of the last chunk. The
bound is exact if whole clips of a regular leading group are loaded. Otherwise it assumes the worst
position of a block::

    chunks          |               |               |
    clip starts                  s s s s s
    a clip's frames              f f f f
    in memory                    h h h h h h h h h h        block - 1 + span + chunk - 1
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.sampling.orders import find_order
from seqrecord.loader.sampling.passes import num_passes
from seqrecord.loader.sampling.runs import Window, cut_group, unit_group
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.tables.grids import distinct

LAST_BATCH = ("repeat", "drop", "keep")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Settings of an epoch's plan; `memory.MemoryRequest` chooses the last six.

    Attributes:
        shuffle: shuffled order. Otherwise one cursor follows the canonical order, and no run is
            cut.
        seed: seed of the order.
        batch_size: clips of a batch; `None` for single clips.
        last_batch: all shards have the same number of clips: some "repeat" one of another, or
            "drop" clips that fill no batch. Or "keep" each clip in one shard.
        order: name of an `orders.Order`. If it has rows, there is one cursor for each, and the next
            four numbers are ignored.
        num_cursors: number of cursors in a shard.
        block_frames: approximate length of a block, see `BlockSizes`.
        run_frames: approximate length of a run; `None`: as long as possible.
        first_block_frames: approximate length of a cursor's first block; each next one is at most
            twice as long.
        num_shares: `None`: each cursor has a share of the epoch, far from other cursors of
            its shard, and shares begin at chunks. Otherwise, in several shards, episodes are cut
            and spread over them (see `spreading`), and a shard has so many adjacent shares, which
            begin with runs. The cursors of one share begin anywhere in it: one of several cursors
            has resident frames.
        resident: all frames of a shard are kept in memory: its clips are the same in every epoch,
            and each epoch after the first is a full shuffle, see `fixed_shards`.
    """

    shuffle: bool = True
    seed: int = 0
    batch_size: int | None = None
    last_batch: str = "repeat"
    order: str = "clips"
    num_cursors: int = 32
    block_frames: int = 8
    run_frames: int | None = 512
    first_block_frames: int = 8
    num_shares: int | None = None
    resident: bool = False

    def __post_init__(self) -> None:
        find_order(self.order)
        if self.last_batch not in LAST_BATCH:
            raise ClipError("there is no such last_batch", expected=LAST_BATCH, got=self.last_batch)
        names = ("batch_size", "num_cursors", "block_frames", "run_frames", "first_block_frames")
        for name in (*names, "num_shares"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ClipError(f"{name} is too small", expected="at least 1", got=value)

    @property
    def drops(self) -> bool:
        """Whether clips that fill no batch are dropped."""
        return self.last_batch == "drop"

    @property
    def is_even(self) -> bool:
        """Whether all shards have the same number of clips."""
        return self.last_batch != "keep"

    @property
    def shares(self) -> int:
        """The number of shares in a shard."""
        return min(self.num_shares or self.cursors, self.cursors)

    @property
    def cursors(self) -> int:
        """The number of cursors in a shard: one without shuffling, except for rows."""
        return self.num_cursors if self.shuffle or find_order(self.order).has_rows else 1


@dataclass(frozen=True)
class EpochSegment:
    """A finished segment of an epoch, see `elastic`: the workers of each rank have returned `batch`
    batches of `batch_size` items together, in turn.

    A rank without workers counts as one worker. `settings` are the settings of the plan.
    """

    ranks: int
    workers: int
    batch: int
    batch_size: int
    settings: PlanSettings


@dataclass(frozen=True)
class GroupStats:
    """Window and largest chunk of a group, over episodes with clips."""

    window: Window
    largest_chunk: int


@dataclass(frozen=True, eq=False)
class ClipStats:
    """The numbers of a clip table that determine memory and repeated reads.

    The leading group's regular chunks have `chunks` frames, int64[n], ascending. The longest
    episode with clips and chunks of `chunks[i]` frames has `longest[i]` frames, 0 if there is none.
    The largest irregular chunk has `irregular` frames, 0 if there is none. All numbers concern
    selected episodes.
    """

    spec: ClipSpec
    chunks: IntArray
    longest: IntArray
    irregular: int
    groups: tuple[GroupStats, ...]
    leading: int  # of `groups`
    num_clips: int
    num_rows: int  # of the clip table
    num_episodes: int  # that have clips
    parted: bool  # whether clips between others of an episode may be left out
    num_frames: int  # of these
    longest_episode: int  # frames, of these
    largest_chunk: int  # frames of the leading group's chunks, of these; at least 1
    is_even: bool  # whether they have equally many clips, in one row each
    keyframes: int  # frames of chunks that are decoded in pieces, on the average; 0 for none
    most_keyframes: int  # frames of the largest of them
    any_clips: bool  # whether an epoch may leave out some of the clips
    repeats: bool  # whether any clip is there more than once
    num_passes: int  # of episodes, if so
    cuts_anywhere: bool  # whether a cut of a chunk costs nothing: its frames are read one by one
    uncut: bool  # whether runs are cut only where shards begin
    cut_frames: int  # read twice at a cut: shared chunks, or shared frames of chunks in pieces
    unit_frames: int  # decoded together in the group with the longest units, on the average
    even_episodes: float  # so many of one length have as many distinct ones in pairs of clips
    num_units: int  # where an episode may begin to be decoded and has clips
    shared_frames: int  # decoded twice at the start of a unit, by clips before and behind it

    @classmethod
    def of(
        cls,
        table: ClipTable,
        episodes: EpisodeLayout,
        windows: Sequence[Window] | None = None,
        *,
        any_clips: bool = False,
        repeats: bool = False,
    ) -> ClipStats:
        """Measure a clip table.

        Args:
            windows: each group's window, as in `episodes`. Default: whole clips.
            any_clips: the numbers are valid for all epochs, each of which may lack some clips.
                `table` is then that of `random_order.typical_table`, or has each clip at its
                greatest multiplicity.
            repeats: an epoch may have any clip several times.
        """
        windows = windows or [Window.of(table.spec)] * len(episodes.groups)
        used = table.episode[np.diff(table.episode, prepend=-1) != 0]
        lengths = episodes.num_frames[used]
        sizes = episodes.leading_grid.chunk_frames
        chunks = distinct(sizes[table.selected])
        chunks = chunks[chunks > 0]
        is_regular = sizes[used] > 0
        longest = np.zeros_like(chunks)
        size = np.searchsorted(chunks, sizes[used[is_regular]])
        np.maximum.at(longest, size, lengths[is_regular])
        odd = table.selected[sizes[table.selected] == 0]
        irregular = int(episodes.leading_grid.max_chunk_frames[odd].max(initial=0))
        groups = []
        for window, grid in zip(windows, episodes.groups, strict=True):
            groups.append(GroupStats(window, int(grid.max_chunk_frames[used].max(initial=1))))
        place = cut_group(episodes)
        cut, keyframes, gops = episodes.groups[place], 0, used[:0]
        if cut.stored_grid is not None and len(used):
            gops = cut.stored_grid.max_chunk_frames[used]
            keyframes = round(float(np.average(gops, weights=lengths)))
        largest_chunk = int(chunks[longest > 0].max(initial=1 if is_regular.all() else irregular))
        span, uncut = windows[episodes.leading].span, cut.rows is not None or windows[place].whole
        cuts_anywhere = cut.by_frame and largest_chunk > span
        cut_frames = 0 if uncut else max(0, span - table.spec.stride)
        if not (keyframes or cuts_anywhere):
            cut_frames = -(-cut_frames // largest_chunk) * largest_chunk
        place, units = unit_group(episodes, used)
        unit_span = windows[place].span
        unit_frames = round(float(np.average(units, weights=lengths))) if len(used) else 1
        return cls(
            table.spec,
            chunks,
            longest,
            irregular,
            tuple(groups),
            episodes.leading,
            num_clips=table.num_clips,
            num_rows=len(table.count),
            num_episodes=len(used),
            parted=any_clips or len(used) < len(table.count),
            num_frames=int(lengths.sum()),
            longest_episode=int(lengths.max(initial=0)),
            largest_chunk=largest_chunk,
            is_even=len(used) == len(table.count) and bool((table.count == table.count[:1]).all()),
            any_clips=any_clips,
            repeats=repeats or table.repeats,
            num_passes=num_passes(table),
            keyframes=keyframes,
            most_keyframes=int(gops.max(initial=0)),
            cuts_anywhere=cuts_anywhere,
            uncut=uncut,
            cut_frames=cut_frames,
            unit_frames=unit_frames,
            even_episodes=float(lengths.sum() ** 2 / max(1, (lengths**2).sum())),
            num_units=int((1 + np.maximum(lengths - unit_span, 0) // units).sum()),
            shared_frames=max(0, unit_span - table.spec.stride),
        )

    @property
    def window(self) -> Window:
        """The window of the leading group."""
        return self.groups[self.leading].window

    def whole_block(self, num_shards: int = 1) -> int:
        """The length of a block that contains a whole epoch, including gaps between runs.

        With `num_shards`: a whole shard, if no shard has more than twice as many clip rows as
        others.
        """
        rows = min(self.num_rows, 1 + 2 * self.num_rows // num_shards)
        between = rows * (self.window.span + 3 * self.largest_chunk)
        return max(1, -(-self.num_clips // num_shards) * self.spec.stride + between)

    def reread(self, num_shards: int) -> tuple[float, float]:
        """Fraction of all frames read twice for each cursor of every shard, and for all cursors.

        In each shard but the first, one cursor begins at any frame: behind a keyframe, or inside a
        run.
        """
        frames = max(1, self.num_frames)
        for_all = (self.keyframes // 2) / frames
        if self.uncut:
            for_all = 1 / max(1, self.num_episodes)
        return num_shards * self.cut_frames / frames, (num_shards - 1) * for_all


@dataclass(frozen=True, eq=False)
class BlockSizes:
    """The lengths of a cursor's blocks, in counted frames: `first`, then always `full`.

    A clip counts `clip` frames, the gap between two runs at most `gap`. The first `unaligned`
    blocks end at any clip, the others at a grid line. Chunks of `chunks[i]` frames have a line
    every `lines[i]` frames of an episode. Irregular chunks have one at their start, and then every
    `irregular_line` frames. All chunks belong to the leading group.
    """

    full: int
    first: tuple[int, ...]
    clip: int
    gap: int
    unaligned: int
    chunks: IntArray
    lines: IntArray
    irregular_line: int
    line: int  # the greatest distance of two lines
    before: IntArray  # frames of so many first blocks

    @classmethod
    def of(cls, stats: ClipStats, settings: PlanSettings) -> BlockSizes:
        """Derive the lengths from the settings `block_frames` and `first_block_frames`."""
        spec, sizes, span = stats.spec, stats.chunks, stats.window.span
        chunk = int(sizes.max(initial=max(1, stats.irregular)))
        # Frames between distant clips are not loaded, except the rest of a chunk.
        clip = min(spec.stride, span + 2 * chunk)
        full = max(settings.block_frames, clip)
        fits = sizes[sizes <= full]
        full = int((full // fits * fits).min(initial=full))
        lines, irregular = sizes.copy(), max(1, min(stats.irregular, full))
        for i in np.flatnonzero(sizes > full):  # wider apart, blocks of each round would be empty
            divisors = np.arange(full, 0, -1)
            lines[i] = divisors[sizes[i] % divisors == 0][0]
        full = max(full, clip)
        # Clips share no frames, or frames are read one by one, or stay; or runs are short, and
        # some cursors would have no clip in a round.
        if spec.stride > span or stats.cuts_anywhere or settings.num_shares is not None:
            lines, irregular = np.ones_like(lines), 1
        line = int(lines.max(initial=irregular))
        first_sizes, size = [], max(settings.first_block_frames, clip)
        size = size // line * line or size
        while settings.shuffle and size < full:
            first_sizes.append(size)
            size *= 2
        room = -(-(full + span - 1) // chunk) * chunk
        unaligned = bisect_right(first_sizes, room - (line + span + chunk - 3))
        gap = min(max(0, span - spec.stride) + line + chunk, max(full, line))
        frames_before = np.cumsum(np.array((0, *first_sizes), np.int64))
        ends = line, frames_before
        return cls(full, tuple(first_sizes), clip, gap, unaligned, sizes, lines, irregular, *ends)

    def apart(self, chunk_frames: IntArray) -> IntArray:
        """The distance of lines in episodes with these chunk lengths, 0 for irregular; int64[n]."""
        if not len(self.chunks):
            return np.full_like(chunk_frames, self.irregular_line)
        place = np.searchsorted(self.chunks, chunk_frames)
        return np.where(chunk_frames > 0, self.lines[place], self.irregular_line)

    def rounds(self, length: int) -> int:
        """The number of a cursor's blocks with this many counted frames."""
        if length <= self.before[-1]:
            return int(np.searchsorted(self.before, length))
        return len(self.first) - int((int(self.before[-1]) - length) // self.full)

    def begins(self, lengths: IntArray, rounds: IntArray, num_rounds: int) -> IntArray:
        """The starts of cursors' blocks, in counted frames; int64[rounds, cursors].

        `rounds` is [rounds, cursors] or [rounds, 1]; `lengths` are the counted frames of each
        cursor. In cursors of `num_rounds` rounds or fewer, no block exceeds its nominal length. The
        full blocks of a cursor have the same length, proportional to the cursor's.
        """
        num_small, full = len(self.first), num_rounds - len(self.first)
        frames_before = self.before[np.minimum(rounds, num_small)]
        if full < 2:  # the first blocks shrink, so that the last one is no smaller than others
            whole = int(self.nominal(np.array(num_rounds)))
            return _proportion(lengths, self.nominal(rounds), whole)
        small_part = np.minimum(lengths, int(self.before[-1]))
        frames_before = _proportion(small_part, frames_before, int(self.before[-1]))
        full_rounds = np.maximum(rounds - num_small, 0)
        return np.add(
            frames_before, _proportion(lengths - small_part, full_rounds, full), dtype=np.int64
        )

    def parts(self, lengths: IntArray, num_rounds: int) -> IntArray:
        """The part of `lengths`, int64[cursors], before each of `num_rounds` rounds of nominal
        length and before the end; int64[num_rounds + 1, cursors].
        """
        rounds = np.arange(num_rounds + 1)[:, None]
        return _proportion(lengths, self.nominal(rounds), int(self.nominal(rounds[-1:])[0, 0]))

    def nominal(self, rounds: IntArray) -> IntArray:
        """The counted frames before rounds of nominal lengths, int64 each."""
        num_small = len(self.first)
        before = self.before[np.minimum(rounds, num_small)]
        frames: IntArray = before + np.maximum(rounds - num_small, 0) * self.full
        return frames


def _proportion(length: IntArray, part: IntArray, whole: int) -> IntArray:
    """`length * part // whole`, for products that exceed 64 bits."""
    if not whole:
        return np.zeros(np.broadcast_shapes(length.shape, part.shape), np.int64)
    high = length >> 20
    high_quotient = high * part // whole
    remainder = (high * part - high_quotient * whole << 20) + (length - (high << 20)) * part
    return np.asarray((high_quotient << 20) + remainder // whole, np.int64)


def cursor_bounds(
    stats: ClipStats, settings: PlanSettings, *, longest: int | None = None
) -> list[int]:
    """The most frames that one cursor keeps, by group, in any shard of any epoch.

    `longest` is the greatest counted length of a cursor, if known.
    """
    if not stats.num_clips:
        return [0] * len(stats.groups)
    is_regular = not stats.irregular and stats.window == Window.of(stats.spec) and not stats.repeats
    has_rows, blocks = find_order(settings.order).has_rows, BlockSizes.of(stats, settings)
    if longest is not None:
        blocks = replace(blocks, full=min(blocks.full, longest))
    bounds = []
    for group in stats.groups:
        is_exact = is_regular and group is stats.groups[stats.leading]
        if has_rows:
            bound = _of_one_regular_clip(stats) if is_exact else _of_one_clip(stats, group)
        elif is_exact:
            bound = _of_regular_chunks(stats, blocks, longest)
        else:
            bound = _of_any_chunks(stats, blocks, group)
        bounds.append(bound)
    return bounds


def resident_bounds(stats: ClipStats, settings: PlanSettings) -> list[int]:
    """The most frames in memory, by group, in any shard of any epoch.

    A shard with less than a block per cursor may need a stride more per cursor.
    """
    return [settings.cursors * bound for bound in cursor_bounds(stats, settings)]


def _of_one_clip(stats: ClipStats, group: GroupStats) -> int:
    """The greatest number of a group's frames for one clip, to the end of a chunk."""
    window, tail = group.window, group.largest_chunk - 1
    return min(-(-(window.span + tail) // window.frame_step), _of_one_episode(stats, window))


def _of_one_episode(stats: ClipStats, window: Window) -> int:
    """The greatest number of frames with rows in an episode."""
    longest = -(-stats.longest_episode // window.frame_step)
    return longest if window.most_frames is None else min(longest, window.most_frames)


def _of_one_regular_clip(stats: ClipStats) -> int:
    """Like `_of_one_clip`, for clips at fixed positions in chunks."""
    sizes_and_lengths = zip(stats.chunks.tolist(), stats.longest.tolist(), strict=True)
    return max(
        _in_one_run(0, size, size, length, spec=stats.spec) for size, length in sizes_and_lengths
    )


def _of_any_chunks(stats: ClipStats, blocks: BlockSizes, group: GroupStats) -> int:
    """The greatest number of frames that a block needs of a group with chunks anywhere.

    The counted positions of a block's clips span `place` frames, because its ends move by less than
    a line. They form stretches, runs or parts of a run separated by a counted gap, in each of which
    clips start every stride.
    """
    stride, clip, gap = stats.spec.stride, blocks.clip, blocks.gap
    span, step, tail = group.window.span, group.window.frame_step, group.largest_chunk - 1
    place = blocks.full + blocks.line - 1
    if stats.repeats:  # of the clip at which the next block begins, this one may have some copies
        place += clip
    clips = -(-place // clip)
    # Each clip keeps at most its frames and the rest of a chunk …
    single = clips * -(-(span + tail) // step)
    # … and a stretch, from its first start on, its frames and the rest of a chunk. At a
    # run's end that rest is not loaded; between two parts of one run it may be.
    counted = -(-(place + clip - 1) * stride // clip)
    max_chunks = max(1, min(clips, (place + clip - 1 + gap) // (clip + gap)))
    whole = _of_one_episode(stats, group.window)  # more than that is in no stretch

    def held(number: int) -> int:
        tails = number if stats.parted else 1
        frames = counted - (number - 1) * gap * stride // clip + number * (span - stride)
        return -(-(frames + tails * tail) // step) + (number - 1) * (step > 1)

    # `held` rises with the number of stretches or falls with it; how many frames they have rises.
    if held(max_chunks) >= held(1):
        return max(1, min(single, held(max_chunks), max_chunks * whole))
    number = 1 + bisect_left(range(1, max_chunks), True, key=lambda n: n * whole >= held(n))
    return max(1, min(single, max(min(held(number), number * whole), (number - 1) * whole)))


def _of_regular_chunks(stats: ClipStats, blocks: BlockSizes, longest: int | None) -> int:
    """The greatest number of frames that a cursor keeps of regular episodes with whole clips.

    `blocks.full` is at most `longest`.
    """
    spec, full = stats.spec, blocks.full
    chunk, line, step = int(stats.chunks.max()), blocks.line, spec.frame_step
    single = spec.stride > spec.span
    bound = 0
    for size, apart, length in zip(stats.chunks, blocks.lines, stats.longest, strict=True):
        if length:
            block = 1 if single else -(-full // int(apart)) * int(apart)
            frames_of_run = _in_one_run(block, int(size), int(apart), int(length), spec=spec)
            bound = max(bound, frames_of_run)
    if single:
        clips = -(-full // blocks.clip)
        frames = full + blocks.clip + 2 * chunk + spec.span
        return min(clips * bound, -(-frames // step) + clips)
    if blocks.unaligned:
        size = blocks.first[blocks.unaligned - 1]
        size = size if longest is None else min(size, longest)
        size += line + spec.span + chunk - 3
        bound = max(bound, -(-min(size, int(stats.longest.max())) // step))
    runs = (full + blocks.gap) // (blocks.clip + blocks.gap)
    if runs > 1:
        overlap = max(0, spec.span - spec.stride)
        bound = max(bound, -(-(full + overlap) // step) + runs * (step > 1))
    return bound


def _in_one_run(block: int, chunk: int, line: int, length: int, *, spec: ClipSpec) -> int:
    """The greatest number of frames that a block in one run needs, in an episode of `length`
    frames.

    A cursor keeps every `frame_step`-th frame from its block's first start to the end of the chunk
    in which the block's last clip ends: the maximum over all positions of a block in a chunk.
    """
    is_single = block < spec.stride
    grid = gcd(spec.stride, chunk if is_single else block)
    step = gcd(grid, line)
    low = np.arange(spec.phase % step, grid, step)
    high = low if is_single else low + (block - 1 - low) // grid * grid
    edges = np.arange(0, chunk, grid if is_single else line)  # `line` divides a chunk
    starts, ends = np.add.outer(edges, low), np.add.outer(edges, high)
    chunks = -(-(ends + spec.span) // chunk)
    frames = int((-(-(chunks * chunk - starts) // spec.frame_step)).max())
    return min(frames, -(-(length - spec.phase) // spec.frame_step))
