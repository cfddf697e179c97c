"""Bounds: the most frames that are held at once, known before an epoch is planned. Pure integers.

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
from dataclasses import replace
from math import gcd

import numpy as np

from seqrecord.clips import ClipSpec, IntArray
from seqrecord.sampling.blocks import BlockSizes
from seqrecord.sampling.facts import ClipFacts, GroupFacts
from seqrecord.sampling.settings import PlanSettings
from seqrecord.sampling.windows import Window

__all__ = ["cursor_bounds", "resident_bounds"]


def cursor_bounds(
    facts: ClipFacts, settings: PlanSettings, *, longest: int | None = None
) -> list[int]:
    """The most frames of each group that one cursor can hold at once, in any part of any epoch.

    With `settings.rotate_phase`, whatever the phase of the clips. No cursor counts more than
    `longest` frames, where that is known.
    """
    if not facts.num_clips:
        return [0] * len(facts.groups)
    regular = not facts.irregular and facts.window == Window.of(facts.spec) and not facts.repeats
    exact = facts.leading if regular else None
    if settings.order == "sequences":
        return [
            _of_one_regular_clip(facts, settings) if i == exact else _of_one_clip(facts, group)
            for i, group in enumerate(facts.groups)
        ]
    blocks = BlockSizes.of(facts, settings)
    if longest is not None:
        blocks = replace(blocks, full=min(blocks.full, longest))
    return [
        _of_regular_chunks(facts, blocks, settings, longest)
        if i == exact
        else _of_any_chunks(facts, blocks, group)
        for i, group in enumerate(facts.groups)
    ]


def resident_bounds(facts: ClipFacts, settings: PlanSettings) -> list[int]:
    """The most frames of each group held at once in any part of any epoch.

    With `rotate_phase`, of the epochs of every phase that has clips of the same episodes. Where a
    part has less than a block for each cursor, it may be a stride more for each.
    """
    return [settings.cursors * bound for bound in cursor_bounds(facts, settings)]


def _of_one_clip(facts: ClipFacts, group: GroupFacts) -> int:
    """The most frames of a group that a cursor needs for one clip, to the end of a chunk."""
    window, tail = group.window, group.largest_chunk - 1
    longest = -(-facts.longest_episode // window.frame_step)
    return min(-(-(window.span + tail) // window.frame_step), longest)


def _of_one_regular_clip(facts: ClipFacts, settings: PlanSettings) -> int:
    """As `_of_one_clip`, where it is known where in a chunk clips begin."""
    phase = None if settings.rotate_phase else facts.spec.phase
    each = zip(facts.chunks.tolist(), facts.longest.tolist(), strict=True)
    return max(
        _in_one_run(0, size, size, length, spec=facts.spec, phase=phase) for size, length in each
    )


def _of_any_chunks(facts: ClipFacts, blocks: BlockSizes, group: GroupFacts) -> int:
    """The most frames that a block needs of a group whose chunks lie anywhere.

    A block's clips have their counted places within `place` frames, for its begin and its end move
    by less than a line. They are in some stretches, in each of which a clip begins every stride:
    runs, or parts of one between which a gap counts.
    """
    stride, clip, gap = facts.spec.stride, blocks.clip, blocks.gap
    span, step, tail = group.window.span, group.window.frame_step, group.largest_chunk - 1
    place = blocks.full + blocks.line - 1
    if facts.repeats:  # of the clip at which the next block begins, this one may have some copies
        place += clip
    clips = -(-place // clip)
    # Each clip holds, at most, what it uses and the rest of a chunk …
    single = clips * -(-(span + tail) // step)
    # … and a stretch, from its first start on, what all of it uses and the rest of a chunk. At a
    # run's end that rest is not loaded; between two parts of one run it may be.
    counted = -(-(place + clip - 1) * stride // clip)
    most = max(1, min(clips, (place + clip - 1 + gap) // (clip + gap)))
    whole = -(-facts.longest_episode // step)  # more than that is in no stretch

    def held(number: int) -> int:
        tails = number if facts.parted else 1
        frames = counted - (number - 1) * gap * stride // clip + number * (span - stride)
        return -(-(frames + tails * tail) // step) + (number - 1) * (step > 1)

    # `held` rises with the number of stretches or falls with it; how many frames they have rises.
    if held(most) >= held(1):
        return max(1, min(single, held(most), most * whole))
    number = 1 + bisect_left(range(1, most), True, key=lambda n: n * whole >= held(n))
    return max(1, min(single, max(min(held(number), number * whole), (number - 1) * whole)))


def _of_regular_chunks(
    facts: ClipFacts, blocks: BlockSizes, settings: PlanSettings, longest: int | None
) -> int:
    """The most frames that a cursor can hold of regular episodes, of which clips are loaded whole.

    `blocks.full` is at most `longest` already.
    """
    spec, full = facts.spec, blocks.full
    chunk, line, step = int(facts.chunks.max()), blocks.line, spec.frame_step
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
