"""Blocks: how far a cursor advances in a round, and how many frames it then holds. Pure integers.

A block is measured in frames that have to be held: a clip counts as `stride` frames, and between
two runs `gap` frames are counted for what the second one needs besides. So none needs more memory
than another. Blocks end where chunks do, or a whole number of them is a chunk::

    chunks of 4     |       |       |       |
    block of 8      |               |
    clip starts     s s s s s s s s               8 starts, stride 1
    frames          f f f f f f f f f f f         clips of 4: the last start needs 3 frames more
    loaded          f f f f f f f f f f f f       whole chunks

Blocks begin small, and each is at most twice the one before, so that an epoch's first batches need
not wait for a large round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

import numpy as np

from seqrecord.clips import ClipSpec, ClipTable, EpisodeTable, IntArray
from seqrecord.sampling.settings import PlanSettings

__all__ = ["BlockSizes", "ClipFacts", "cursor_bound", "resident_bound"]


@dataclass(frozen=True, eq=False)
class ClipFacts:
    """The few numbers of a clip table that decide how many frames are held, and read twice.

    The selected episodes have chunks of `chunks` frames; int64[n], ascending. The longest episode
    with chunks of `chunks[i]` that has any clip has `longest[i]` frames, or 0 where none has one.
    """

    spec: ClipSpec
    chunks: IntArray
    longest: IntArray
    num_clips: int
    num_rows: int  # of the clip table
    num_episodes: int  # that have clips
    num_frames: int  # of these
    is_even: bool  # whether they have equally many clips, in one row each

    @classmethod
    def of(cls, table: ClipTable, episodes: EpisodeTable) -> ClipFacts:
        used = table.episode[np.diff(table.episode, prepend=-1) != 0]
        chunks = np.unique(episodes.chunk_frames[table.selected])
        longest = np.zeros_like(chunks)
        size = np.searchsorted(chunks, episodes.chunk_frames[used])
        np.maximum.at(longest, size, episodes.num_frames[used])
        return cls(
            table.spec,
            chunks,
            longest,
            num_clips=table.num_clips,
            num_rows=len(table.count),
            num_episodes=len(used),
            num_frames=int(episodes.num_frames[used].sum()),
            is_even=len(used) == len(table.count) and bool((table.count == table.count[:1]).all()),
        )

    @property
    def largest_chunk(self) -> int:
        """Of the episodes that have clips; at least 1."""
        return int(self.chunks[self.longest > 0].max(initial=1))

    @property
    def whole_block(self) -> int:
        """The frames of a block that holds a whole epoch, with all that counts between runs."""
        between = self.num_rows * (self.spec.span + 3 * self.largest_chunk)
        return max(1, self.num_clips * self.spec.stride + between)

    @property
    def cut_frames(self) -> int:
        """Frames that are read twice where a run is cut: of the chunks that both runs need."""
        shared = max(0, self.spec.span - self.spec.stride)
        return -(-shared // self.largest_chunk) * self.largest_chunk

    def reread_by_one(self, num_parts: int) -> float:
        """Share of all frames that each cursor more in every part reads a second time."""
        return num_parts * self.cut_frames / max(1, self.num_frames)

    def reread(self, cursors: int, num_parts: int) -> float:
        """Share of all frames that so many cursors in every part read a second time."""
        if cursors == self.whole_cursors(num_parts):
            return 0.0
        return self.reread_by_one(num_parts) * cursors

    def whole_cursors(self, num_parts: int) -> int:
        """How many cursors of a part walk a whole episode each; 0 where it does not come out."""
        whole, rest = divmod(self.num_episodes, num_parts)
        return whole if self.is_even and not rest else 0


@dataclass(frozen=True, eq=False)
class BlockSizes:
    """How many frames each of a cursor's blocks counts: those of `first`, then always `full`.

    `clip` frames count for a clip, and at most `gap` between two runs. The first `unaligned` blocks
    end at any clip, the others on a grid line: with chunks of `chunks[i]` frames there is one every
    `lines[i]` frames of an episode.
    """

    full: int
    first: tuple[int, ...]
    clip: int
    gap: int
    unaligned: int
    chunks: IntArray
    lines: IntArray
    before: IntArray = field(init=False)  # frames of so many first blocks

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", np.cumsum(np.array((0, *self.first), np.int64)))

    @classmethod
    def of(cls, facts: ClipFacts, settings: PlanSettings) -> BlockSizes:
        """Full blocks have about `settings.block_frames`, the first `first_block_frames`."""
        spec, sizes = facts.spec, facts.chunks
        chunk = int(sizes.max(initial=1))
        # What lies between clips that are far apart is not loaded, but for the rest of a chunk.
        clip = min(spec.stride, spec.span + 2 * chunk)
        full = max(settings.block_frames, clip)
        fits = sizes[sizes <= full]
        full = int((full // fits * fits).min(initial=full))
        lines = np.array([s if s <= full else _divisor(s, full) for s in sizes.tolist()], np.int64)
        full = max(full, clip)
        if spec.stride > spec.span:  # clips have frames of their own, wherever they lie
            lines = np.ones_like(lines)
        line = int(lines.max(initial=1))
        first, size = [], max(settings.first_block_frames, clip)
        size = size // line * line or size
        while settings.shuffle and size < full:
            first.append(size)
            size *= 2
        room = -(-(full + spec.span - 1) // chunk) * chunk
        unaligned = sum(size + line + spec.span + chunk - 3 <= room for size in first)
        gap = min(max(0, spec.span - spec.stride) + line + chunk, max(full, line))
        return cls(full, tuple(first), clip, gap, unaligned, sizes, lines)

    def grid(self, chunk_frames: IntArray) -> IntArray:
        """How far apart the lines are in episodes with such chunks; int64[n]."""
        return self.lines[np.searchsorted(self.chunks, chunk_frames)]

    def rounds(self, length: int) -> int:
        """How many blocks it takes for a cursor of so many counted frames."""
        if length <= self.before[-1]:
            return int(np.searchsorted(self.before, length))
        return len(self.first) - int((int(self.before[-1]) - length) // self.full)

    def begins(self, lengths: IntArray, rounds: IntArray, num_rounds: int) -> IntArray:
        """Where the blocks of each of `rounds` begin for cursors of so many counted frames.

        Returns int64[rounds, cursors]. No block counts more frames than it would in cursors that
        take `num_rounds` rounds, or are shorter. The full blocks of a cursor are equal, and those
        of all cursors in proportion to their lengths.
        """
        first, full = len(self.first), num_rounds - len(self.first)
        known = self.before[np.minimum(rounds, first)][:, None]
        if full < 2:  # the first blocks shrink, so that the last one is no smaller than others
            whole = int(self.before[min(num_rounds, first)]) + max(0, full) * self.full
            known = known + np.maximum(rounds - first, 0)[:, None] * self.full
            return _proportion(lengths, known, whole)
        begun = np.minimum(lengths, int(self.before[-1]))
        known = _proportion(begun, known, int(self.before[-1]))
        after = np.maximum(rounds - first, 0)[:, None]
        return np.add(known, _proportion(lengths - begun, after, full), dtype=np.int64)


def cursor_bound(facts: ClipFacts, settings: PlanSettings, *, longest: int | None = None) -> int:
    """The most frames that one cursor can hold at once, in any part of any epoch.

    With `settings.rotate_phase`, whatever the phase of the clips. No cursor counts more than
    `longest` frames, where that is known.
    """
    if not facts.num_clips:
        return 0
    spec, blocks = facts.spec, BlockSizes.of(facts, settings)
    chunk, line, step = int(facts.chunks.max()), int(blocks.lines.max()), spec.frame_step
    full = blocks.full if longest is None else min(blocks.full, longest)
    single = spec.stride > spec.span
    phase = None if settings.rotate_phase else spec.phase
    most = 0
    for size, apart, length in zip(facts.chunks, blocks.lines, facts.longest, strict=True):
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
        most = max(most, -(-min(size, int(facts.longest.max())) // step))
    runs = (full + blocks.gap) // (blocks.clip + blocks.gap)
    if runs > 1:
        rest = max(0, spec.span - spec.stride)
        most = max(most, -(-(full + rest) // step) + runs * (step > 1))
    return most


def resident_bound(facts: ClipFacts, settings: PlanSettings) -> int:
    """The most frames held at once in any part of any epoch.

    With `rotate_phase`, of the epochs of every phase that has clips of the same episodes.
    """
    return settings.cursors * cursor_bound(facts, settings)


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
    edges = np.arange(0, chunk if single else max(block, chunk), grid if single else block)
    high = low if single else low + (block - 1 - low) // grid * grid
    first, last = (np.add.outer(edges, ends).ravel() for ends in (low, high))
    return first, last, np.tile(low if phase is None else np.full_like(low, phase), len(edges))


def _proportion(length: IntArray, part: IntArray, whole: int) -> IntArray:
    """`length * part // whole`, where the product need not fit into 64 bits."""
    if not whole:
        return np.zeros(np.broadcast_shapes(length.shape, part.shape), np.int64)
    high = length >> 20
    first = high * part // whole
    left = (high * part - first * whole << 20) + (length - (high << 20)) * part
    return np.asarray((first << 20) + left // whole, np.int64)


def _divisor(size: int, least: int) -> int:
    """The least divisor of `size` that is not below `least`."""
    return next(width for width in range(least, size + 1) if size % width == 0)
