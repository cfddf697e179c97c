"""Defaults: how an epoch is walked, for so much memory. Pure integers, and no file is looked at.

The order of clips follows from these settings, so they depend on nothing but the arguments: not on
the cores of the machine, nor on how many processes share them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from seqrecord.errors import ClipError, MemoryLimitError
from seqrecord.sampling.bounds import cursor_bounds
from seqrecord.sampling.facts import ClipFacts
from seqrecord.sampling.settings import PlanSettings
from seqrecord.units import format_size

__all__ = [
    "AHEAD",
    "default_settings",
    "enough_cursors",
    "held_bytes",
    "held_to_mix",
    "least_held",
    "mixing_limit",
]

AHEAD = 1.5  # times the frames held, so that loads of the next round have room too

USUAL_CURSORS = 32
LEAST_CURSORS = 2  # whatever that reads twice: with one, a batch is of one episode
ENOUGH_CURSORS = 12  # for a batch to be mixed, or as many as it has clips
ENOUGH_SHARE = 16 / 7  # … or, in a larger batch, one for so many of its clips
ENOUGH_EPISODES = 0.95  # … of those that a full shuffle of the epoch would give a batch
MOST_OF_A_BLOCK = 8  # clips of a batch, which dealing keeps apart
CLOSE = 1.15  # clips of a batch for each cursor, from which on blocks must be long enough for them
REREAD_BY_CURSORS = 0.031  # of all frames: what sharing out the epoch to cursors may read twice
REREAD = 0.035  # and what further cuts of runs may read twice besides
MOST_REREAD = 0.10  # by cursors, where a batch needs more of them
MOST_REREAD_ALONE = 0.045  # … but by more than `ENOUGH_CURSORS` where there is one part
MOST_REREAD_IN_MANY = 0.20  # … in more parts than
MOST_DECODED = 0.045  # … where what is read twice is video that has to be decoded from a keyframe
MANY_PARTS = 64
LEAST_RUN_FRAMES = 512
LEAST_BLOCK = 32  # clips of an unshuffled epoch, so that a round is worth its trouble
IN_ORDER_BYTES = 16 << 20  # … or more, of so many bytes of frames: a round takes as long with few
MOST_IN_ORDER = 1 << 12  # … but no more clips, of tiny frames
FIRST_ROUND = 256  # clips of an epoch's first round
MOST_CLIPS = 1 << 17  # of a round, which is planned at once


def held_bytes(frame_bytes: Sequence[int] | None, frames: Sequence[int]) -> int:
    """The bytes of so many frames of each group; with `None` a frame of each is one byte."""
    return sum(n * size for n, size in zip(frames, frame_bytes or [1] * len(frames), strict=True))


def least_held(
    facts: ClipFacts,
    settings: PlanSettings,
    frame_bytes: Sequence[int] | None = None,
    num_cursors: int | None = None,
) -> int:
    """The least bytes of frames to hold, for these clips and so many cursors (one for `None`)."""
    return _by_cursor(facts, settings, frame_bytes, 1) * (num_cursors or 1)


def default_settings(
    facts: ClipFacts,
    settings: PlanSettings,
    *,
    shuffle_buffer: int | None,
    max_held: int,
    max_arena: int | None = None,
    frame_bytes: Sequence[int] | None = None,
    num_cursors: int | None = None,
    num_parts: int = 1,
) -> PlanSettings:
    """`settings` with the last four chosen for an arena.

    Cursors first: two for each clip of a batch, so that it and the next come from different ones,
    as far as `max_held` bytes of frames allow and as reading some frames twice at the cuts stays
    below `REREAD_BY_CURSORS` of the epoch. Where that is not enough to mix a batch, up to
    `MOST_REREAD`. Whatever that reads twice, there are `LEAST_CURSORS`, or as many as episodes of
    one length. A given `num_cursors` is kept.

    Then blocks as large as `shuffle_buffer` clips a round allow (`None`: any number) and as
    `max_held` does, with room in `max_arena` bytes for all that the next round loads (by default
    `AHEAD` times `max_held`). A frame of each group takes `frame_bytes` (`None`: 1 each). The
    first round has `FIRST_ROUND` clips at most, or as many as a batch takes to be mixed.

    A part of so few clips is one round of a single cursor if it fits, which is shuffled as a whole
    and reads nothing twice. With `rotate_phase` all that holds for the clips of any phase.

    Raises `MemoryLimitError` when `max_held` is below `least_held`, `ClipError` for a
    `shuffle_buffer` below 1.
    """
    if shuffle_buffer is not None and shuffle_buffer < 1:
        raise ClipError("shuffle_buffer is too small", expected="at least 1", got=shuffle_buffer)
    given = num_cursors if settings.shuffle else None
    least = least_held(facts, settings, frame_bytes, given)
    if max_held < least:
        raise MemoryLimitError(
            "not enough memory for the frames of these clips",
            expected=f"at least {least} bytes",
            got=max_held,
        )
    spec, span, sizes, whole = facts.spec, facts.window.span, _block_sizes(facts), facts.whole_block
    if not settings.shuffle:
        wanted = max(settings.batch_size or 1, _clips_in_order(facts, frame_bytes))
        enough = bisect_left(sizes, wanted * spec.stride)
        tried = sizes[: enough + 1][::-1]  # the one that is enough, then smaller ones
        fits = (n for n in tried if _by_cursor(facts, settings, frame_bytes, n) <= max_held)
        return _one_cursor(settings, next(fits, 1))
    buffer = min(shuffle_buffer or MOST_CLIPS, MOST_CLIPS)
    share = -(-facts.num_clips // num_parts)
    if given is None and share <= min(FIRST_ROUND, buffer):
        single = _one_cursor(settings, whole)
        if held_bytes(frame_bytes, cursor_bounds(facts, single)) <= max_held:
            return single

    cursors = given
    if cursors is None:
        wanted = min(max(2 * (settings.batch_size or 1), USUAL_CURSORS), buffer)
        if spec.stride >= span:  # else chunks are held for clips of later rounds
            wanted = min(wanted, max(LEAST_CURSORS, buffer * spec.stride // sizes[0]))
        fitting = max_held // _by_cursor(facts, settings, frame_bytes, sizes[0])
        wanted = max(1, min(wanted, fitting))
        cursors = min(wanted, _affordable_cursors(facts, settings, wanted, num_parts))
        # Where a batch has several clips of a cursor, rather fewer cursors with longer blocks.
        for fewer, _ in _ways_to_mix(facts, settings, num_parts):
            number = min(cursors, fewer)
            block = max(sizes[0], _apart(facts, settings, number))
            if number * _by_cursor(facts, settings, frame_bytes, block) <= max_held:
                cursors = max(number, cursors if block == sizes[0] else 0)
                break

    arena = int(AHEAD * max_held) if max_arena is None else max_arena
    usual = -(-share * spec.stride // cursors) + span  # frames that a cursor walks
    longest = -(-whole // (num_parts * cursors))
    apart = _apart(facts, settings, cursors)
    first = max(FIRST_ROUND * spec.stride // cursors, apart)
    if apart > 1 and usual < 2 * first:  # what is left would be too short
        first = max(first, whole)

    def has_room(tried: int) -> bool:
        held = _by_cursor(facts, settings, frame_bytes, tried)
        ahead = _brought(facts, _most_ahead(first, tried, usual))
        return cursors * held <= max_held and (
            tried == sizes[0]
            or (
                cursors * (held + held_bytes(frame_bytes, ahead)) <= arena
                and cursors * tried <= buffer * spec.stride
                and tried < 2 * longest
            )
        )

    # The first that does not fit, in steps of which each halves the rest.
    count = bisect_left(sizes, True, key=lambda tried: not has_room(tried))
    size = sizes[count - 1] if count else 1
    left = REREAD - facts.reread(cursors, num_parts)
    run = max(LEAST_RUN_FRAMES, round(facts.cut_frames / left)) if left > 0.001 else None
    return replace(
        settings,
        num_cursors=cursors,
        block_frames=size,
        run_frames=run,
        first_block_frames=min(first, size),
    )


def held_to_mix(
    facts: ClipFacts,
    settings: PlanSettings,
    *,
    num_parts: int,
    frame_bytes: Sequence[int] | None = None,
) -> int:
    """The least bytes of frames to hold with which batches are mixed well, if reading allows it."""
    ways = _ways_to_mix(facts, settings, num_parts)
    return min(cursors * _by_cursor(facts, settings, frame_bytes, n) for cursors, n in ways)


def mixing_limit(
    facts: ClipFacts,
    settings: PlanSettings,
    *,
    max_held: int,
    num_parts: int,
    frame_bytes: Sequence[int] | None = None,
) -> tuple[str, bool] | None:
    """What keeps chosen settings from mixing a batch well, in words, and whether that is memory;
    `None` if nothing does."""
    cursors, enough = settings.num_cursors, enough_cursors(facts, settings, num_parts)
    in_one_round = settings.first_block_frames >= facts.whole_block
    is_apart = settings.block_frames >= _apart(facts, settings, cursors)
    if not settings.shuffle or in_one_round or (cursors >= enough and is_apart):
        return None
    found = f"clips are mixed from {cursors} places at a time where {enough} are wanted"
    if cursors >= enough:
        found = (
            f"clips are mixed from {cursors} places at a time, which lie too close to each other"
        )
    needed = held_to_mix(facts, settings, num_parts=num_parts, frame_bytes=frame_bytes)
    if needed > max_held:
        room = f"memory_limit leaves room for {format_size(max_held)} of frames"
        return f"{found}: {room}, {format_size(needed)} are needed", True
    reread = facts.reread(enough, num_parts)
    parts = f"in {num_parts} parts of so short an epoch"
    return f"{found}: {parts} these would read {reread:.0%} of it twice", False


def enough_cursors(facts: ClipFacts, settings: PlanSettings, num_parts: int) -> int:
    """How many cursors mix a batch well: about as many as it would have episodes, if all clips
    were shuffled."""
    size, episodes = settings.batch_size or ENOUGH_CURSORS, max(1, facts.num_episodes)
    found = ENOUGH_EPISODES * episodes * (1 - (1 - 1 / episodes) ** size)
    enough = max(min(size, ENOUGH_CURSORS), ceil(found))
    return min(enough, -(-facts.num_clips // num_parts))


def _ways_to_mix(facts: ClipFacts, settings: PlanSettings, num_parts: int) -> list[tuple[int, int]]:
    """Numbers of cursors, and the blocks with which so many mix a batch well; most cursors first.

    Either each clip of a batch comes from another cursor, or a block is long enough for several.
    """
    size, enough = settings.batch_size or 1, enough_cursors(facts, settings, num_parts)
    each = [max(enough, ceil(size / CLOSE))]
    each += [max(enough, -(-size // number)) for number in range(2, MOST_OF_A_BLOCK + 1)]
    smallest = _block_sizes(facts)[0]
    return [(n, max(smallest, _apart(facts, settings, n))) for n in dict.fromkeys(each)]


def _apart(facts: ClipFacts, settings: PlanSettings, cursors: int) -> int:
    """The frames that a block must have so that the clips that a batch has of it do not overlap."""
    size = settings.batch_size or 1
    if size <= CLOSE * cursors:
        return 1
    return min(-(-size // cursors), MOST_OF_A_BLOCK) * facts.window.span


def _one_cursor(settings: PlanSettings, block: int) -> PlanSettings:
    """One cursor with blocks of so many frames, from the first one on, and no cuts."""
    return replace(
        settings, num_cursors=1, block_frames=block, run_frames=None, first_block_frames=block
    )


def _clips_in_order(facts: ClipFacts, frame_bytes: Sequence[int] | None) -> int:
    """How many clips a round of an unshuffled epoch has, a few more or less.

    Their order is the same whatever that is. A batch waits for its own loads only, not for a round.
    Where frames of video are decoded a round takes little time beside that, and holds few.
    """
    if frame_bytes is None or facts.keyframes:
        return LEAST_BLOCK
    most = IN_ORDER_BYTES // max(1, sum(frame_bytes) * facts.spec.stride)
    return min(max(LEAST_BLOCK, most), MOST_IN_ORDER)


def _affordable_cursors(
    facts: ClipFacts, settings: PlanSettings, wanted: int, num_parts: int
) -> int:
    """How many of the wanted cursors to have: enough to mix a batch if that is not too much."""
    in_share = int((settings.batch_size or 1) / ENOUGH_SHARE)
    enough = max(enough_cursors(facts, settings, num_parts), in_share)
    cost, always = facts.reread_by_one(num_parts), facts.reread_by_parts(num_parts)

    def within(share: float) -> int:
        if cost * wanted + always <= share or not cost:  # what parts cost, fewer would cost too
            return wanted
        return max(0, int((share - always) / cost))

    share = MOST_REREAD if num_parts <= MANY_PARTS else MOST_REREAD_IN_MANY
    if facts.keyframes:  # shorter shares than that could not begin at keyframes
        share = MOST_DECODED
        shortest = 2 * -(-facts.most_keyframes // facts.spec.stride) + 1
        wanted = max(1, min(wanted, facts.num_clips // (num_parts * shortest)))
    most = within(share)
    if num_parts == 1:
        most = max(min(most, ENOUGH_CURSORS), within(min(share, MOST_REREAD_ALONE)))
    affordable = max(within(REREAD_BY_CURSORS), min(enough, most), LEAST_CURSORS)
    whole = facts.whole_cursors(num_parts)
    return max(affordable, whole if whole <= wanted else 0)


def _most_ahead(first: int, size: int, usual: int) -> int:
    """The most frames that a block brings while the largest one is held.

    Of a cursor that walks `usual` frames, with a first block of `first` and full ones of `size`
    frames. The full blocks are equally large; where there is only one, one before it is held.
    """
    width, before = first, 0
    while width < size:
        before, width = before + width, 2 * width
    if usual <= before + size:
        return width // 2
    return -(-(usual - before) // -(-(usual - before) // size))


def _brought(facts: ClipFacts, block_frames: int) -> list[int]:
    """How many frames of each group a block of so many frames brings.

    The leading group's chunks end where blocks do; of the others the last one may reach further.
    """
    return [
        (block_frames + (0 if i == facts.leading else group.largest_chunk))
        // group.window.frame_step
        for i, group in enumerate(facts.groups)
    ]


def _by_cursor(
    facts: ClipFacts, settings: PlanSettings, frame_bytes: Sequence[int] | None, block_frames: int
) -> int:
    """The most bytes of frames that a cursor holds with blocks of this size; at least 1."""
    tried = replace(settings, block_frames=block_frames, first_block_frames=block_frames)
    return max(1, held_bytes(frame_bytes, cursor_bounds(facts, tried)))


def _block_sizes(facts: ClipFacts) -> list[int]:
    """Sizes of block to try, in frames, in ascending order.

    They are multiples of half a clip: smaller ones save little memory, since a clip must be held
    whole, and in the same memory more cursors beat larger blocks (measured by
    benchmarks/tartanair/shuffle_quality.py). Where clips do not overlap, of a chunk, so that all of
    its frames are used in one round.
    """
    half = max(1, facts.window.span // 2)
    if facts.spec.stride >= facts.window.span:
        half = max(half, facts.largest_chunk)
    most = max(half, facts.whole_block)
    factors = sorted({factor << i for factor in (4, 5, 6, 7) for i in range(40)})
    return [half * n for n in [1, 2, 3, *factors] if half * n < 2 * most]
