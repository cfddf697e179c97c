"""Bounds: the most frames that are held at once, known before an epoch is planned. Pure integers.

They follow from the settings of an epoch and from a few stats about its clips. A cursor advances by
a *block* in a round. A block is measured in frames that have to be held: a clip counts as `stride`
frames, and between two runs `gap` frames are counted for what the second one needs besides. So none
needs more memory than another. Blocks end where chunks do, or on lines that divide a chunk evenly::

    chunks of 4     |       |       |       |
    block of 8      |               |
    clip starts     s s s s s s s s               8 starts, stride 1
    frames          f f f f f f f f f f f         clips of 4: the last start needs 3 frames more
    loaded          f f f f f f f f f f f f       whole chunks

Blocks begin small, and each is at most twice the one before, so that an epoch's first batches need
not wait for a large round.

A cursor holds, of each group, what its block's clips use, and the rest of the chunk in which the
last of them ends. Where whole clips of a regular leading group are loaded the bound is exact. Else
it is that of a block that lies as badly as it can::

    chunks          |               |               |
    clip starts                  s s s s s
    a clip's frames              f f f f
    held                         h h h h h h h h h h        block - 1 + span + chunk - 1
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd

import numpy as np

from seqrecord.clips.tables import ClipSpec, ClipTable, EpisodeTable, IntArray
from seqrecord.errors import ClipError
from seqrecord.sampling.runs import Window, cut_group

ORDERS = ("clips", "sequences")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """How an epoch is walked; `memory.MemoryRequest` chooses the last six.

    In a round each of `num_cursors` cursors advances by a block of about `block_frames` frames (see
    `BlockSizes`). They walk runs of about `run_frames` frames (`None`: as long as can be).
    A cursor's first block has about `first_block_frames` frames, and each of the next ones at most
    twice as many as the one before. The clips of a shard are `num_shares` shares (`None`: one a
    cursor) that begin where chunks do; the cursors of a share begin anywhere in it, for what
    several of them need stays in memory. Without `shuffle` there is one cursor, no run is cut and
    clips come in canonical order.

    With `even_batches` all shards have equally many clips; without it every clip is in exactly one.
    `rotate_phase` says that the clip tables of other epochs have other phases (see
    `random_order.Phases`).

    With `resident` all frames of a shard stay in memory: its clips are the same in every epoch, and
    those after the first are full shuffles of them; see `shards`.

    With the order "sequences" clips of an episode follow each other in a row of the batches, see
    `sequences`. There is a cursor for each row, and the other four numbers have no meaning.
    """

    shuffle: bool = True
    seed: int = 0
    batch_size: int | None = None
    drop_last: bool = False
    even_batches: bool = True
    rotate_phase: bool = False
    order: str = "clips"
    num_cursors: int = 32
    block_frames: int = 8
    run_frames: int | None = 512
    first_block_frames: int = 8
    num_shares: int | None = None
    resident: bool = False

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ClipError("there is no such order", expected=ORDERS, got=self.order)
        names = ("batch_size", "num_cursors", "block_frames", "run_frames", "first_block_frames")
        for name in (*names, "num_shares"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ClipError(f"{name} is too small", expected="at least 1", got=value)

    @property
    def shares(self) -> int:
        """How many shares of the epoch a shard has."""
        return min(self.num_shares or self.cursors, self.cursors)

    @property
    def cursors(self) -> int:
        """How many cursors walk a shard: one where nothing is shuffled, but for sequences."""
        return self.num_cursors if self.shuffle or self.order == "sequences" else 1


@dataclass(frozen=True)
class GroupStats:
    """Of one group: what a clip uses, and the largest chunk of the episodes that have clips."""

    window: Window
    largest_chunk: int


@dataclass(frozen=True, eq=False)
class ClipStats:
    """The few numbers of a clip table that decide how many frames are held, and read twice.

    The regular ones of the selected episodes have chunks of `chunks` frames in the leading group;
    int64[n], ascending. The longest episode with chunks of `chunks[i]` that has any clip has
    `longest[i]` frames, or 0 where none has one. The largest chunk of the irregular ones has
    `irregular` frames, 0 where there is none.
    """

    spec: ClipSpec
    chunks: IntArray
    longest: IntArray
    irregular: int
    longest_irregular: int  # episode that has clips
    groups: tuple[GroupStats, ...]
    leading: int  # of `groups`
    num_clips: int
    num_rows: int  # of the clip table
    num_episodes: int  # that have clips
    parted: bool  # whether clips between others of an episode may be left out
    num_frames: int  # of these
    is_even: bool  # whether they have equally many clips, in one row each
    keyframes: int = 0  # frames of chunks that are decoded in pieces, on the average; 0 for none
    most_keyframes: int = 0  # frames of the largest of them
    any_clips: bool = False  # whether an epoch may leave out some of the clips
    repeats: bool = False  # whether any clip is there more than once
    by_frame: bool = False  # whether frames are read without the rest of their chunk
    in_memory: bool = False  # whether a shard keeps all frames that it has loaded
    uncut: bool = False  # whether runs are cut only where shards begin

    @classmethod
    def of(
        cls,
        table: ClipTable,
        episodes: EpisodeTable,
        windows: Sequence[Window] | None = None,
        *,
        any_clips: bool = False,
    ) -> ClipStats:
        """`windows`, one for each group of `episodes`; by default whole clips of all.

        With `any_clips` they hold for all epochs, of which each may leave out some clips: then
        `table` is that of `random_order.typical_table`, or has each clip as often as it can come.
        """
        windows = windows or [Window.of(table.spec)] * len(episodes.groups)
        used = table.episode[np.diff(table.episode, prepend=-1) != 0]
        sizes = episodes.lead.chunk_frames
        chunks = np.unique(sizes[table.selected])
        chunks = chunks[chunks > 0]
        regular = used[sizes[used] > 0]
        longest = np.zeros_like(chunks)
        size = np.searchsorted(chunks, sizes[regular])
        np.maximum.at(longest, size, episodes.num_frames[regular])
        odd = table.selected[sizes[table.selected] == 0]
        irregular = int(episodes.lead.largest[odd].max()) if len(odd) else 0
        lengths = episodes.num_frames[used]
        cut, keyframes, gops = episodes.groups[cut_group(episodes)], 0, used[:0]
        if cut.whole is not None and len(used):
            gops = cut.whole.largest[used]
            keyframes = round(float(np.average(gops, weights=lengths)))
        return cls(
            table.spec,
            chunks,
            longest,
            irregular,
            int(lengths[sizes[used] == 0].max(initial=0)),
            tuple(
                GroupStats(window, int(grid.largest[used].max(initial=1)))
                for window, grid in zip(windows, episodes.groups, strict=True)
            ),
            episodes.leading,
            num_clips=table.num_clips,
            num_rows=len(table.count),
            num_episodes=len(used),
            parted=any_clips or len(used) < len(table.count),
            num_frames=int(lengths.sum()),
            is_even=len(used) == len(table.count) and bool((table.count == table.count[:1]).all()),
            any_clips=any_clips,
            repeats=table.repeats,
            keyframes=keyframes,
            most_keyframes=int(gops.max(initial=0)),
            by_frame=cut.by_frame,
            uncut=cut.rows is not None,
        )

    @property
    def window(self) -> Window:
        """What clips use of the leading group."""
        return self.groups[self.leading].window

    @property
    def largest_chunk(self) -> int:
        """Of the leading group, in episodes that have clips; at least 1."""
        odd = self.irregular if self.longest_irregular else 1
        return int(self.chunks[self.longest > 0].max(initial=odd))

    @property
    def longest_episode(self) -> int:
        """Frames of the longest episode that has clips."""
        return int(self.longest.max(initial=self.longest_irregular))

    def whole_block(self, num_shards: int = 1) -> int:
        """The frames of a block that holds a whole epoch, with all that counts between runs.

        Or a shard of several, where none has more than twice as many rows of clips as others.
        """
        rows = min(self.num_rows, 1 + 2 * self.num_rows // num_shards)
        between = rows * (self.window.span + 3 * self.largest_chunk)
        return max(1, -(-self.num_clips // num_shards) * self.spec.stride + between)

    @property
    def cuts_anywhere(self) -> bool:
        """Whether to cut a chunk costs nothing: its frames are read one by one."""
        return self.by_frame and self.largest_chunk > self.window.span

    @property
    def cut_frames(self) -> int:
        """Frames that are read twice where a run is cut: of the chunks that both runs need, or what
        both need of one that is decoded in pieces."""
        shared = max(0, self.window.span - self.spec.stride)
        if self.keyframes or self.cuts_anywhere:
            return shared
        return -(-shared // self.largest_chunk) * self.largest_chunk

    def reread_by_one(self, num_shards: int) -> float:
        """Share of all frames that each share more of every shard reads a second time."""
        if self.uncut or (self.in_memory and num_shards == 1):
            return 0.0
        return num_shards * self.cut_frames / max(1, self.num_frames)

    def reread_by_shards(self, num_shards: int) -> float:
        """Share of all frames that are decoded a second time whatever cursors there are: one cursor
        of each shard but the first begins anywhere, behind a keyframe or inside a run."""
        if self.uncut:
            return (num_shards - 1) / max(1, self.num_episodes)
        return (num_shards - 1) * (self.keyframes // 2) / max(1, self.num_frames)

    def reread(self, cursors: int, num_shards: int) -> float:
        """Share of all frames that cursors with so many shares of every shard read twice."""
        if cursors == self.whole_cursors(num_shards):
            return 0.0
        return self.reread_by_one(num_shards) * cursors + self.reread_by_shards(num_shards)

    def whole_cursors(self, num_shards: int) -> int:
        """How many cursors of a shard walk a whole episode each; 0 where it does not come out."""
        whole, rest = divmod(self.num_episodes, num_shards)
        return whole if self.is_even and not rest else 0


@dataclass(frozen=True, eq=False)
class BlockSizes:
    """How many frames each of a cursor's blocks counts: those of `first`, then always `full`.

    `clip` frames count for a clip, and at most `gap` between two runs. The first `unaligned` blocks
    end at any clip, the others on a grid line: with chunks of `chunks[i]` frames there is one every
    `lines[i]` frames of an episode. Chunks of irregular episodes have one at their begins, and from
    there every `irregular_line` frames. All chunks are those of the leading group.
    """

    full: int
    first: tuple[int, ...]
    clip: int
    gap: int
    unaligned: int
    chunks: IntArray
    lines: IntArray
    irregular_line: int = 1
    before: IntArray = field(init=False)  # frames of so many first blocks

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", np.cumsum(np.array((0, *self.first), np.int64)))

    @classmethod
    def of(cls, stats: ClipStats, settings: PlanSettings) -> BlockSizes:
        """Full blocks have about `settings.block_frames`, the first `first_block_frames`."""
        spec, sizes, span = stats.spec, stats.chunks, stats.window.span
        chunk = int(sizes.max(initial=max(1, stats.irregular)))
        # What lies between clips that are far apart is not loaded, but for the rest of a chunk.
        clip = min(spec.stride, span + 2 * chunk)
        full = max(settings.block_frames, clip)
        fits = sizes[sizes <= full]
        full = int((full // fits * fits).min(initial=full))
        lines = np.array([_line(size, full) for size in sizes.tolist()], np.int64)
        irregular = max(1, min(stats.irregular, full))
        full = max(full, clip)
        # Clips have frames of their own, wherever they lie, or frames are read one by one, or stay.
        if spec.stride > span or stats.cuts_anywhere or settings.num_shares is not None:
            lines, irregular = np.ones_like(lines), 1
        line = int(lines.max(initial=irregular))
        first, size = [], max(settings.first_block_frames, clip)
        size = size // line * line or size
        while settings.shuffle and size < full:
            first.append(size)
            size *= 2
        room = -(-(full + span - 1) // chunk) * chunk
        unaligned = sum(size + line + span + chunk - 3 <= room for size in first)
        gap = min(max(0, span - spec.stride) + line + chunk, max(full, line))
        return cls(full, tuple(first), clip, gap, unaligned, sizes, lines, irregular)

    @property
    def line(self) -> int:
        """The most frames between two lines."""
        return int(self.lines.max(initial=self.irregular_line))

    def apart(self, chunk_frames: IntArray) -> IntArray:
        """How far apart the lines are in episodes with such chunks, 0 for irregular; int64[n]."""
        if not len(self.chunks):
            return np.full_like(chunk_frames, self.irregular_line)
        place = np.searchsorted(self.chunks, chunk_frames)
        return np.where(chunk_frames > 0, self.lines[place], self.irregular_line)

    def rounds(self, length: int) -> int:
        """How many blocks it takes for a cursor of so many counted frames."""
        if length <= self.before[-1]:
            return int(np.searchsorted(self.before, length))
        return len(self.first) - int((int(self.before[-1]) - length) // self.full)

    def begins(self, lengths: IntArray, rounds: IntArray, num_rounds: int) -> IntArray:
        """Where the blocks of each of `rounds` begin for cursors of so many counted frames.

        `rounds` is [rounds, cursors], or [rounds, 1]; returns int64[rounds, cursors]. No block
        counts more frames than it would in cursors that take `num_rounds` rounds, or are shorter.
        The full blocks of a cursor are equal, and those of all cursors in proportion to their
        lengths.
        """
        first, full = len(self.first), num_rounds - len(self.first)
        known = self.before[np.minimum(rounds, first)]
        if full < 2:  # the first blocks shrink, so that the last one is no smaller than others
            whole = int(self.before[min(num_rounds, first)]) + max(0, full) * self.full
            known = known + np.maximum(rounds - first, 0) * self.full
            return _proportion(lengths, known, whole)
        begun = np.minimum(lengths, int(self.before[-1]))
        known = _proportion(begun, known, int(self.before[-1]))
        after = np.maximum(rounds - first, 0)
        return np.add(known, _proportion(lengths - begun, after, full), dtype=np.int64)


def _proportion(length: IntArray, part: IntArray, whole: int) -> IntArray:
    """`length * part // whole`, where the product need not fit into 64 bits."""
    if not whole:
        return np.zeros(np.broadcast_shapes(length.shape, part.shape), np.int64)
    high = length >> 20
    first = high * part // whole
    left = (high * part - first * whole << 20) + (length - (high << 20)) * part
    return np.asarray((first << 20) + left // whole, np.int64)


def _line(size: int, block: int) -> int:
    """How far apart lines are in chunks of `size` frames: the largest divisor up to `block`.

    With lines further apart than blocks, some blocks of each round would be empty.
    """
    return size if size <= block else next(n for n in range(block, 0, -1) if size % n == 0)


def cursor_bounds(
    stats: ClipStats, settings: PlanSettings, *, longest: int | None = None
) -> list[int]:
    """The most frames of each group that one cursor can hold at once, in any shard of any epoch.

    With `settings.rotate_phase`, whatever the phase of the clips. No cursor counts more than
    `longest` frames, where that is known.
    """
    if not stats.num_clips:
        return [0] * len(stats.groups)
    regular = not stats.irregular and stats.window == Window.of(stats.spec) and not stats.repeats
    exact = stats.leading if regular else None
    if settings.order == "sequences":
        return [
            _of_one_regular_clip(stats, settings) if i == exact else _of_one_clip(stats, group)
            for i, group in enumerate(stats.groups)
        ]
    blocks = BlockSizes.of(stats, settings)
    if longest is not None:
        blocks = replace(blocks, full=min(blocks.full, longest))
    return [
        _of_regular_chunks(stats, blocks, settings, longest)
        if i == exact
        else _of_any_chunks(stats, blocks, group)
        for i, group in enumerate(stats.groups)
    ]


def resident_bounds(stats: ClipStats, settings: PlanSettings) -> list[int]:
    """The most frames of each group held at once in any shard of any epoch.

    With `rotate_phase`, of the epochs of every phase that has clips of the same episodes. Where a
    shard has less than a block for each cursor, it may be a stride more for each.
    """
    return [settings.cursors * bound for bound in cursor_bounds(stats, settings)]


def _of_one_clip(stats: ClipStats, group: GroupStats) -> int:
    """The most frames of a group that a cursor needs for one clip, to the end of a chunk."""
    window, tail = group.window, group.largest_chunk - 1
    longest = -(-stats.longest_episode // window.frame_step)
    return min(-(-(window.span + tail) // window.frame_step), longest)


def _of_one_regular_clip(stats: ClipStats, settings: PlanSettings) -> int:
    """As `_of_one_clip`, where it is known where in a chunk clips begin."""
    phase = None if settings.rotate_phase else stats.spec.phase
    each = zip(stats.chunks.tolist(), stats.longest.tolist(), strict=True)
    return max(
        _in_one_run(0, size, size, length, spec=stats.spec, phase=phase) for size, length in each
    )


def _of_any_chunks(stats: ClipStats, blocks: BlockSizes, group: GroupStats) -> int:
    """The most frames that a block needs of a group whose chunks lie anywhere.

    A block's clips have their counted places within `place` frames, for its begin and its end move
    by less than a line. They are in some stretches, in each of which a clip begins every stride:
    runs, or parts of one between which a gap counts.
    """
    stride, clip, gap = stats.spec.stride, blocks.clip, blocks.gap
    span, step, tail = group.window.span, group.window.frame_step, group.largest_chunk - 1
    place = blocks.full + blocks.line - 1
    if stats.repeats:  # of the clip at which the next block begins, this one may have some copies
        place += clip
    clips = -(-place // clip)
    # Each clip holds, at most, what it uses and the rest of a chunk …
    single = clips * -(-(span + tail) // step)
    # … and a stretch, from its first start on, what all of it uses and the rest of a chunk. At a
    # run's end that rest is not loaded; between two parts of one run it may be.
    counted = -(-(place + clip - 1) * stride // clip)
    most = max(1, min(clips, (place + clip - 1 + gap) // (clip + gap)))
    whole = -(-stats.longest_episode // step)  # more than that is in no stretch

    def held(number: int) -> int:
        tails = number if stats.parted else 1
        frames = counted - (number - 1) * gap * stride // clip + number * (span - stride)
        return -(-(frames + tails * tail) // step) + (number - 1) * (step > 1)

    # `held` rises with the number of stretches or falls with it; how many frames they have rises.
    if held(most) >= held(1):
        return max(1, min(single, held(most), most * whole))
    number = 1 + bisect_left(range(1, most), True, key=lambda n: n * whole >= held(n))
    return max(1, min(single, max(min(held(number), number * whole), (number - 1) * whole)))


def _of_regular_chunks(
    stats: ClipStats, blocks: BlockSizes, settings: PlanSettings, longest: int | None
) -> int:
    """The most frames that a cursor can hold of regular episodes, of which clips are loaded whole.

    `blocks.full` is at most `longest` already.
    """
    spec, full = stats.spec, blocks.full
    chunk, line, step = int(stats.chunks.max()), blocks.line, spec.frame_step
    single = spec.stride > spec.span
    phase = None if settings.rotate_phase else spec.phase
    most = 0
    for size, apart, length in zip(stats.chunks, blocks.lines, stats.longest, strict=True):
        if length:
            block = 1 if single else -(-full // int(apart)) * int(apart)
            held = _in_one_run(block, int(size), int(apart), int(length), spec=spec, phase=phase)
            most = max(most, held)
    if single:
        clips = -(-full // blocks.clip)
        frames = full + blocks.clip + 2 * chunk + spec.span
        return min(clips * most, -(-frames // step) + clips)
    if blocks.unaligned:
        size = blocks.first[blocks.unaligned - 1]
        size = size if longest is None else min(size, longest)
        size += line + spec.span + chunk - 3
        most = max(most, -(-min(size, int(stats.longest.max())) // step))
    runs = (full + blocks.gap) // (blocks.clip + blocks.gap)
    if runs > 1:
        rest = max(0, spec.span - spec.stride)
        most = max(most, -(-(full + rest) // step) + runs * (step > 1))
    return most


def _in_one_run(
    block: int, chunk: int, line: int, length: int, *, spec: ClipSpec, phase: int | None
) -> int:
    """The most frames that a block in one run needs, in an episode of at most `length` frames.

    `phase=None` stands for any phase. A cursor holds every `frame_step`-th frame from its block's
    first start to the end of the chunk in which the block's last clip ends; that is greatest at
    some place where a block can lie in a chunk.
    """
    first, last, least_phase = _places(block, chunk, line, spec.stride, phase)
    chunks = -(-(last + spec.span) // chunk)
    frames = -(-(chunks * chunk - first) // spec.frame_step)
    return int(np.minimum(frames, -(-(length - least_phase) // spec.frame_step)).max())


def _places(
    block: int, chunk: int, line: int, stride: int, phase: int | None
) -> tuple[IntArray, IntArray, IntArray]:
    """First and last start of a block, counted from a chunk's first frame, wherever it can lie.

    And the least phase of which it can lie there; int64[n] each.
    """
    single = block < stride
    grid = gcd(stride, chunk if single else block)
    step = gcd(grid, line)
    low = np.arange(grid) if phase is None else np.arange(phase % step, grid, step)
    edges = np.arange(0, chunk, grid if single else line)  # `line` divides a chunk
    high = low if single else low + (block - 1 - low) // grid * grid
    first, last = (np.add.outer(edges, ends).ravel() for ends in (low, high))
    return first, last, np.tile(low if phase is None else np.full_like(low, phase), len(edges))
