"""Memory: from clips, the sizes of frames and a memory limit to the settings of an epoch.

The limit is spent on batches, on chunks that are being read, and on frames that are held. From the
number of frames follow the cursors and their blocks. The order of clips follows from these, so they
depend on nothing but the arguments: not on the cores of the machine, nor on how many processes
share them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace

from seqrecord.clips import ClipTable, EpisodeTable
from seqrecord.errors import ClipError, MemoryLimitError
from seqrecord.sampling.blocks import ClipFacts, cursor_bound, resident_bound
from seqrecord.sampling.epoch import EpochPlan
from seqrecord.sampling.settings import PlanSettings
from seqrecord.units import format_size

__all__ = [
    "Fit",
    "FrameSizes",
    "Memory",
    "default_settings",
    "fit",
    "fit_given",
    "least_resident_frames",
    "mixing_limit",
]

PREFETCH = 2  # batches that are filled or wait, where memory allows
CONSUMER = 2  # batches that the consumer has: the one in its hands and the one it drops for it
MAX_LOADS = 16  # chunks read and decoded at a time, where they take no more than
LOADS_SHARE = 8  # one part in eight of the limit
AHEAD = 1.5  # times the frames held, so that loads of the next round have room too
MOST_AHEAD = 2.0  # where memory is left: then all of the next round's loads may begin, which
# `default_settings` leaves room for where it chooses larger blocks than the smallest

USUAL_CURSORS = 32
LEAST_CURSORS = 2  # whatever that reads twice: with one, a batch is of one episode
ENOUGH_CURSORS = 12  # for a batch to be mixed, or as many as it has clips
ENOUGH_SHARE = 16 / 7  # … or, in a larger batch, one for so many of its clips
REREAD_BY_CURSORS = 0.031  # of all frames: what sharing out the epoch to cursors may read twice
REREAD = 0.035  # and what further cuts of runs may read twice besides
MOST_REREAD = 0.10  # by cursors, where a batch needs more of them
MOST_REREAD_IN_MANY = 0.20  # … in more parts than
MANY_PARTS = 64
LEAST_RUN_FRAMES = 512
LEAST_BLOCK = 32  # clips of an unshuffled epoch, so that a round is worth its trouble
FIRST_ROUND = 256  # clips of an epoch's first round
MOST_CLIPS = 1 << 17  # of a round, which is planned at once


@dataclass(frozen=True)
class FrameSizes:
    """Bytes: of a frame in the arena, of the largest chunk while it is read, of a batch."""

    frame: int
    chunk: int
    batch: int

    def beside_arena(self, prefetch: int, loads: int) -> int:
        """Bytes of all batches in use, and of chunks being read."""
        return (prefetch + CONSUMER) * self.batch + loads * self.chunk


@dataclass(frozen=True)
class Memory:
    """What an engine may have at a time."""

    num_rows: int  # of the arena, a frame each; 0 where chunks are loaded straight into batches
    prefetch: int  # batches that are filled or wait
    max_loads: int  # chunks being read
    max_ahead: int  # chunks more that wait as they are stored


@dataclass(frozen=True)
class Fit:
    """Settings within a memory limit."""

    settings: PlanSettings
    sizes: FrameSizes
    max_rows: int  # of the arena
    prefetch: int
    max_loads: int
    resident: int | None = None  # the most of any phase, so that all epochs have one arena's size
    limited: str | None = None  # what keeps batches from being mixed well, in words

    def memory(self, plan: EpochPlan, *, fixed: bool) -> Memory:
        """What the limit leaves for a plan; `fixed`: frames of fixed shapes, in host memory."""
        held = self.resident or plan.max_resident_frames
        rows = max(held, min(self.max_rows, int(held * MOST_AHEAD)))
        spare = (self.max_rows - rows) * self.sizes.frame
        ahead = max(0, min(MAX_LOADS, spare // max(1, self.sizes.chunk)))
        # Where clips do not overlap, the arena's memory is better spent on batches; not where
        # epochs have several phases, for then they would not share their memory.
        if fixed and self.resident is None and plan.is_disjoint:
            prefetch = self.prefetch + rows // (self.sizes.batch // self.sizes.frame)
            if prefetch >= plan.most_batches:
                return Memory(0, prefetch, self.max_loads, ahead)
        return Memory(rows, self.prefetch, self.max_loads, ahead)


def fit(
    table: ClipTable,
    episodes: EpisodeTable,
    settings: PlanSettings,
    sizes: FrameSizes,
    *,
    memory_limit: int,
    shuffle_buffer: int | None,
    num_cursors: int | None,
    num_parts: int,
    url: str,
) -> Fit:
    """The best settings whose arena, batches and chunks in flight take at most `memory_limit`.

    With `rotate_phase` they hold for every epoch, and `table` is that of `phases.typical_table`.

    Raises `MemoryLimitError`, which names `url` and the least that would do, where nothing fits.
    """
    facts = ClipFacts.of(table, episodes)
    least = least_resident_frames(facts, settings, num_cursors if settings.shuffle else None)
    for prefetch, loads, rows, max_frames in _ways_to_spend(sizes, memory_limit):
        if max_frames < least:
            continue
        fitted = default_settings(
            facts,
            settings,
            shuffle_buffer=shuffle_buffer,
            max_frames=max_frames,
            max_rows=rows,
            num_cursors=num_cursors,
            num_parts=num_parts,
        )
        resident = resident_bound(facts, fitted) if settings.rotate_phase else None
        limited = None
        if num_cursors is None:
            limited = mixing_limit(facts, fitted, max_frames=max_frames, num_parts=num_parts)
        return Fit(fitted, sizes, rows, prefetch, loads, resident, limited)
    raise _too_small("these clips", url, sizes, least, memory_limit)


def fit_given(
    table: ClipTable,
    episodes: EpisodeTable,
    settings: PlanSettings,
    sizes: FrameSizes,
    *,
    memory_limit: int,
    url: str,
) -> Fit:
    """Memory for settings that are given, those of a saved state: they are the order's.

    Raises `MemoryLimitError`, which says the least that would do, where they do not fit.
    """
    resident = resident_bound(ClipFacts.of(table, episodes), settings)
    for prefetch, loads, rows, max_frames in _ways_to_spend(sizes, memory_limit):
        if max_frames >= resident:
            most = resident if settings.rotate_phase else None
            return Fit(settings, sizes, rows, prefetch, loads, most)
    raise _too_small("the order of the saved state", url, sizes, resident, memory_limit)


def _ways_to_spend(sizes: FrameSizes, memory_limit: int) -> Iterator[tuple[int, int, int, int]]:
    """The numbers of batches to prefetch, chunks to read at a time, rows of the arena, and frames
    to hold at most, which leaves the other rows to loads ahead. The best way comes first."""
    affordable = memory_limit // LOADS_SHARE // max(1, sizes.chunk)
    loads = max(1, min(MAX_LOADS, affordable))
    ways = [(prefetch, loads, ahead) for prefetch in range(PREFETCH, 0, -1) for ahead in (AHEAD, 1)]
    for prefetch, loads, ahead in (*ways, (1, 1, 1)):
        rows = (memory_limit - sizes.beside_arena(prefetch, loads)) // sizes.frame
        yield prefetch, loads, rows, int(rows / ahead)


def _too_small(
    what: str, url: str, sizes: FrameSizes, least_rows: int, memory_limit: int
) -> MemoryLimitError:
    least = least_rows * sizes.frame + sizes.beside_arena(1, 1)
    return MemoryLimitError(
        f"memory_limit is too small for {what}",
        file=url,
        expected=(
            f"at least {least} bytes ({format_size(least)}): {least_rows} frames, "
            f"{1 + CONSUMER} batches and a chunk"
        ),
        got=f"{memory_limit} bytes ({format_size(memory_limit)})",
    )


def least_resident_frames(
    facts: ClipFacts, settings: PlanSettings, num_cursors: int | None = None
) -> int:
    """The least arena, in frames, for these clips and so many cursors (one for `None`)."""
    return _by_cursor(facts, settings, 1) * (num_cursors or 1)


def default_settings(
    facts: ClipFacts,
    settings: PlanSettings,
    *,
    shuffle_buffer: int | None,
    max_frames: int,
    max_rows: int | None = None,
    num_cursors: int | None = None,
    num_parts: int = 1,
) -> PlanSettings:
    """`settings` with the last four chosen for an arena.

    Cursors first: two for each clip of a batch, so that it and the next come from different ones,
    as far as `max_frames` resident frames allow and as reading some frames twice at the cuts stays
    below `REREAD_BY_CURSORS` of the epoch. Where that is not enough to mix a batch, up to
    `MOST_REREAD`. Whatever that reads twice, there are `LEAST_CURSORS`, or as many as episodes of
    one length. A given `num_cursors` is kept.

    Then blocks as large as `shuffle_buffer` clips a round allow (`None`: any number) and as
    `max_frames` does, with room in `max_rows` rows for all that the next round loads (by default
    `AHEAD` times `max_frames`). The first round has `FIRST_ROUND` clips at most.

    A part of so few clips is one round of a single cursor if it fits, which is a full shuffle and
    reads nothing twice. With `rotate_phase` all that holds for the clips of any phase.

    Raises `MemoryLimitError` when `max_frames` is below `least_resident_frames`, `ClipError` for
    a `shuffle_buffer` below 1.
    """
    if shuffle_buffer is not None and shuffle_buffer < 1:
        raise ClipError("shuffle_buffer is too small", expected="at least 1", got=shuffle_buffer)
    given = num_cursors if settings.shuffle else None
    least = least_resident_frames(facts, settings, given)
    if max_frames < least:
        raise MemoryLimitError(
            "not enough memory for these clips",
            expected=f"room for at least {least} frames",
            got=f"room for {max_frames}",
        )
    spec, sizes, whole = facts.spec, _block_sizes(facts), facts.whole_block
    if not settings.shuffle:
        wanted = max(settings.batch_size or 1, LEAST_BLOCK) * spec.stride
        fits = [size for size in sizes if _by_cursor(facts, settings, size) <= max_frames]
        return _one_cursor(settings, next((s for s in fits if s >= wanted), (fits or [1])[-1]))
    buffer = min(shuffle_buffer or MOST_CLIPS, MOST_CLIPS)
    share = -(-facts.num_clips // num_parts)
    if given is None and share <= min(FIRST_ROUND, buffer):
        single = _one_cursor(settings, whole)
        if resident_bound(facts, single) <= max_frames:
            return single

    cursors = given
    if cursors is None:
        wanted = min(max(2 * (settings.batch_size or 1), USUAL_CURSORS), buffer)
        if spec.stride >= spec.span:  # else chunks are held for clips of later rounds
            wanted = min(wanted, max(LEAST_CURSORS, buffer * spec.stride // sizes[0]))
        affordable = _affordable_cursors(facts, wanted, settings.batch_size, num_parts)
        fitting = max_frames // _by_cursor(facts, settings, sizes[0])
        cursors = max(1, min(wanted, fitting, affordable))

    rows = int(AHEAD * max_frames) if max_rows is None else max_rows
    usual = -(-share * spec.stride // cursors) + spec.span  # frames that a cursor walks
    longest = -(-whole // (num_parts * cursors))
    first = max(1, FIRST_ROUND * spec.stride // cursors)

    def has_room(tried: int) -> bool:
        held = _by_cursor(facts, settings, tried)
        ahead = _most_ahead(first, tried, usual) // spec.frame_step
        return cursors * held <= max_frames and (
            tried == sizes[0]
            or (
                cursors * (held + ahead) <= rows
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


def mixing_limit(
    facts: ClipFacts, settings: PlanSettings, *, max_frames: int, num_parts: int
) -> str | None:
    """What keeps chosen settings from mixing a batch well, in words; `None` if nothing does."""
    enough = min(settings.batch_size or ENOUGH_CURSORS, ENOUGH_CURSORS)
    enough = min(enough, -(-facts.num_clips // num_parts))
    cursors = settings.num_cursors
    in_one_round = settings.first_block_frames >= facts.whole_block
    if not settings.shuffle or cursors >= enough or in_one_round:
        return None
    found = f"clips are mixed from {cursors} places at a time where {enough} are wanted: "
    least = _by_cursor(facts, settings, _block_sizes(facts)[0])
    if (cursors + 1) * least > max_frames:
        room = f"memory_limit leaves room for {max_frames} frames"
        return f"{found}{room}, {enough * least} are needed"
    reread = facts.reread(enough, num_parts)
    parts = f"in {num_parts} parts of so short an epoch"
    return f"{found}{parts} these would read {reread:.0%} of it twice"


def _one_cursor(settings: PlanSettings, block: int) -> PlanSettings:
    """One cursor with blocks of so many frames, from the first one on, and no cuts."""
    return replace(
        settings, num_cursors=1, block_frames=block, run_frames=None, first_block_frames=block
    )


def _affordable_cursors(
    facts: ClipFacts, wanted: int, batch_size: int | None, num_parts: int
) -> int:
    """How many of the wanted cursors to have: enough to mix a batch if that is not too much."""
    enough = ENOUGH_CURSORS
    if batch_size is not None:
        enough = max(min(batch_size, ENOUGH_CURSORS), int(batch_size / ENOUGH_SHARE))
    cost = facts.reread_by_one(num_parts)

    def within(share: float) -> int:
        return wanted if cost * wanted <= share else int(share / cost)

    most = within(MOST_REREAD if num_parts <= MANY_PARTS else MOST_REREAD_IN_MANY)
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


def _by_cursor(facts: ClipFacts, settings: PlanSettings, block_frames: int) -> int:
    """The most frames that a cursor holds with blocks of this size; at least 1."""
    tried = replace(settings, block_frames=block_frames, first_block_frames=block_frames)
    return max(1, cursor_bound(facts, tried))


def _block_sizes(facts: ClipFacts) -> list[int]:
    """Sizes of block to try, in frames, in ascending order.

    They are multiples of half a clip: smaller ones save little memory, since a clip must be held
    whole, and in the same memory more cursors beat larger blocks (measured by
    benchmarks/tartanair/shuffle_quality.py). Where clips do not overlap, of a chunk, so that all of
    its frames are used in one round.
    """
    half = max(1, facts.spec.span // 2)
    if facts.spec.stride >= facts.spec.span:
        half = max(half, facts.largest_chunk)
    most = max(half, facts.whole_block)
    factors = sorted({factor << i for factor in (4, 5, 6, 7) for i in range(40)})
    return [half * n for n in [1, 2, 3, *factors] if half * n < 2 * most]
