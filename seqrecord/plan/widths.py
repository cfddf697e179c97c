"""How wide blocks are, and how much a cursor holds. Pure integers.

A cursor advances by one *block* a round: the next stretch of its lane, which may hold clips of
several runs. Blocks are measured in frames that have to be held, so that none is larger than
another can be: a clip counts as `stride` frames, and between two runs `gap` frames are counted for
what the second needs besides. Blocks end where chunks do, or nest in them::

    chunks of 4     |       |       |       |
    block of 8      |               |
    clip starts     s s s s s s s s               8 starts, stride 1
    frames          f f f f f f f f f f f         clips of 4: the last start needs 3 frames more
    loaded          f f f f f f f f f f f f       whole chunks

Blocks begin small and at most double from one to the next (the *ramp*), so that an epoch's first
batches need not wait for a large round.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

import numpy as np

from seqrecord.clips import ClipSpec, ClipTable, EpisodeTable
from seqrecord.order import IntArray
from seqrecord.plan.settings import PlanSettings

__all__ = ["Widths", "cursor_bound"]


@dataclass(frozen=True, eq=False)
class Widths:
    """The widths of a lane's blocks: `ramp`, then always `width`, in frames that are counted.

    `clip` frames count for a clip, and at most `gap` between two runs. The first `free` blocks end
    at any clip, the others at a line of the episode's grid: with chunks of `sizes[i]` frames, every
    `lines[i]` frames.
    """

    width: int
    ramp: tuple[int, ...]
    clip: int
    gap: int
    free: int
    sizes: IntArray
    lines: IntArray
    before: IntArray = field(init=False)  # frames of so many first blocks of the ramp

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", np.cumsum(np.array((0, *self.ramp), np.int64)))

    @classmethod
    def of(cls, table: ClipTable, episodes: EpisodeTable, settings: PlanSettings) -> Widths:
        """For blocks of about `settings.block_frames`."""
        spec, sizes = table.spec, np.unique(episodes.chunk_frames[table.selected])
        chunk = int(sizes.max(initial=1))
        # What lies between clips that are far apart is not loaded, but for the rest of a chunk.
        clip = min(spec.stride, spec.span + 2 * chunk)
        block = max(settings.block_frames, clip)
        fits = sizes <= block
        if fits.any():
            block = int((block // sizes[fits] * sizes[fits]).min())
        lines = np.array(
            [s if s <= block else _divisor(s, block) for s in sizes.tolist()], np.int64
        )
        if not fits.any():
            block = int(lines.min(initial=block))
        block = max(block, clip)
        line = int(lines.max(initial=1))
        if spec.stride > spec.span:  # clips of their own, wherever they lie
            lines, line = np.ones_like(lines), 1
        ramp, width = [], max(settings.first_block_frames, clip)
        width = width // line * line or width
        while settings.shuffle and width < block:
            ramp.append(width)
            width *= 2
        room = -(-(block + spec.span - 1) // chunk) * chunk
        free = sum(width + line + spec.span + chunk - 3 <= room for width in ramp)
        gap = min(max(0, spec.span - spec.stride) + line + chunk, max(block, line))
        return cls(block, tuple(ramp), clip, gap, free, sizes, lines)

    def grid(self, chunk_frames: IntArray) -> IntArray:
        """How far apart the lines are in episodes with such chunks; int64[n]."""
        return self.lines[np.searchsorted(self.sizes, chunk_frames)]

    def rounds(self, length: int) -> int:
        """How many blocks it takes for a lane of so many counted frames."""
        if length <= self.before[-1]:
            return int(np.searchsorted(self.before, length))
        return len(self.ramp) - int((int(self.before[-1]) - length) // self.width)

    def places(self, lengths: IntArray, rounds: IntArray, num_rounds: int) -> IntArray:
        """Where the blocks of each of `rounds` begin in lanes of so many frames; [rounds, lanes].

        No block is wider than it may be in lanes that take `num_rounds` rounds, or are shorter.
        Those after the ramp are equally wide, and so are those of all lanes, in proportion.
        """
        ramp, rest = len(self.ramp), num_rounds - len(self.ramp)
        known = self.before[np.minimum(rounds, ramp)][:, None]
        if rest < 2:  # the ramp shrinks, so that the last block is no smaller than others
            whole = int(self.before[min(num_rounds, ramp)]) + max(0, rest) * self.width
            return _share(
                lengths, known + np.maximum(rounds - ramp, 0)[:, None] * self.width, whole
            )
        begun = np.minimum(lengths, int(self.before[-1]))
        after = np.maximum(rounds - ramp, 0)[:, None]
        first = _share(begun, known, int(self.before[-1]))
        return np.add(first, _share(lengths - begun, after, rest), dtype=np.int64)


def _share(length: IntArray, part: IntArray, whole: int) -> IntArray:
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


def cursor_bound(
    table: ClipTable,
    episodes: EpisodeTable,
    settings: PlanSettings,
    *,
    longest: int | None = None,
) -> int:
    """The most frames that one cursor can hold at once, in any split of any epoch.

    With `settings.rotate_phase`, whatever the phase of the table's clips. No lane counts more than
    `longest` frames, where that is known.
    """
    spec = table.spec
    if not len(table.episode):
        return 0
    num_frames, chunk_frames = episodes.num_frames[table.episode], episodes.chunk_frames
    widths = Widths.of(table, episodes, settings)
    chunk, line, step = int(widths.sizes.max()), int(widths.lines.max()), spec.frame_step
    width = widths.width if longest is None else min(widths.width, longest)
    single = spec.stride > spec.span
    most = 0
    for size, nested in zip(widths.sizes.tolist(), widths.lines.tolist(), strict=True):
        length = int(num_frames[chunk_frames[table.episode] == size].max(initial=0))
        if length:
            block = 1 if single else -(-width // nested) * nested
            phase = None if settings.rotate_phase else spec.phase
            most = max(most, _in_one_run(block, size, nested, length, spec=spec, phase=phase))
    if single:
        clips = -(-width // widths.clip)
        frames = width + widths.clip + 2 * chunk + spec.span
        return min(clips * most, -(-frames // step) + clips)
    if widths.free:
        ramp = widths.ramp[widths.free - 1]
        if longest is not None:
            ramp = min(ramp, longest)
        ramp += line + spec.span + chunk - 3
        most = max(most, -(-min(ramp, int(num_frames.max())) // step))
    runs = (width + widths.gap) // (widths.clip + widths.gap)
    if runs > 1:
        rest = max(0, spec.span - spec.stride)
        most = max(most, -(-(width + rest) // step) + runs * (step > 1))
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
    edges = np.arange(0, chunk if single else max(block, chunk), grid if single else block)
    high = low if single else low + (block - 1 - low) // grid * grid
    first, last = (np.add.outer(edges, ends).ravel() for ends in (low, high))
    return first, last, np.tile(low if phase is None else np.full_like(low, phase), len(edges))
