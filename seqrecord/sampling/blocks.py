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

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.sampling.facts import ClipFacts
from seqrecord.sampling.settings import PlanSettings

__all__ = ["BlockSizes"]


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
    def of(cls, facts: ClipFacts, settings: PlanSettings) -> BlockSizes:
        """Full blocks have about `settings.block_frames`, the first `first_block_frames`."""
        spec, sizes, span = facts.spec, facts.chunks, facts.window.span
        chunk = int(sizes.max(initial=max(1, facts.irregular)))
        # What lies between clips that are far apart is not loaded, but for the rest of a chunk.
        clip = min(spec.stride, span + 2 * chunk)
        full = max(settings.block_frames, clip)
        fits = sizes[sizes <= full]
        full = int((full // fits * fits).min(initial=full))
        lines = np.array([s if s <= full else _divisor(s, full) for s in sizes.tolist()], np.int64)
        irregular = max(1, min(facts.irregular, full))
        full = max(full, clip)
        # Clips have frames of their own, wherever they lie, or frames are read one by one, or stay.
        if spec.stride > span or facts.cuts_anywhere or settings.num_shares is not None:
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


def _divisor(size: int, least: int) -> int:
    """The least divisor of `size` that is not below `least`."""
    return next(width for width in range(least, size + 1) if size % width == 0)
