"""Memory: from clips, the sizes of frames and a memory limit to the settings of an epoch.

The limit is spent on batches, on chunks that are being read, and on frames that are held. From the
bytes for frames follow the cursors and their blocks. The order of clips follows from these
settings, so they depend on nothing but the arguments: not on the cores of the machine, nor on how
many processes share them. Pure integers, and no file is looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from seqrecord.errors import MemoryLimitError
from seqrecord.sampling.bounds import ClipFacts, PlanSettings, cursor_bounds, resident_bounds
from seqrecord.sampling.plan import Plan
from seqrecord.sampling.sequences import sequence_settings
from seqrecord.units import format_size

__all__ = [
    "Fit",
    "FrameSizes",
    "Memory",
    "default_settings",
    "fit",
    "fit_given",
    "held_bytes",
    "least_held",
    "least_limit",
    "limit_to_mix",
    "mixing_limit",
    "usual_limit",
    "wanted_limit",
]

PREFETCH = 2  # batches that are filled or wait, where memory allows
MOST_PREFETCH = 6  # … of small ones
MORE_SHARE = 8  # one part in eight of the arenas' bytes for what are more than `PREFETCH`,
MORE_BYTES = 256 << 20  # and no more than so many: an epoch's first batches are fresh memory
CONSUMER = 2  # batches that the consumer has: the one in its hands and the one it drops for it
MAX_LOADS = 16  # chunks read and decoded at a time, where they take no more than
LOADS_SHARE = 8  # one part in eight of the limit
AHEAD = 1.5  # times the frames held, so that loads of the next round have room too
MOST_AHEAD = 2.0  # … where memory is left: then all of the next round's loads may begin, which
# `default_settings` leaves room for where it chooses larger blocks than the smallest
STAYING = 8  # bytes beside a frame that stays: whether it is there, and which clip is the first
USUAL_LIMIT = 2 << 30  # bytes of a process, where `memory_limit` is not given, or more to mix well
MOST_OF_RANK = 8 << 30  # … but no more for a rank, all of its workers together

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


@dataclass(frozen=True)
class FrameSizes:
    """Bytes: of a frame of each group in its arena, of the largest chunk of any group while it is
    read, of a batch."""

    frames: tuple[int, ...]
    chunk: int
    batch: int

    def beside_arena(self, prefetch: int, loads: int) -> int:
        """Bytes of all batches in use, and of chunks being read."""
        return (prefetch + CONSUMER) * self.batch + loads * self.chunk


@dataclass(frozen=True)
class Memory:
    """What an engine may have at a time."""

    num_rows: tuple[int, ...]  # of each group's arena, a frame each
    prefetch: int  # batches that are filled or wait
    max_loads: int  # chunks being read
    max_ahead: int  # chunks more that wait as they are stored
    together: int = 1  # batches of one clip that are built at once, and count as one above


@dataclass(frozen=True)
class Fit:
    """Settings within a memory limit."""

    settings: PlanSettings
    sizes: FrameSizes
    max_arena: int  # bytes of all arenas
    prefetch: int
    max_loads: int
    resident: tuple[int, ...] | None = None  # the most frames of any phase, so that all epochs have
    # arenas of one size
    limited: str | None = None  # what keeps batches from being mixed well, in words
    of_memory: bool = False  # whether that is the limit
    staying: Memory | None = None  # where frames stay that are loaded: a row for each there is

    def nbytes(self, memory: Memory) -> int:
        """The most bytes that an epoch takes with it."""
        loads = memory.max_loads + memory.max_ahead
        beside = self.sizes.beside_arena(memory.prefetch, loads)
        return held_bytes(self.sizes.frames, memory.num_rows) + beside

    def together(self, memory: Memory, most: int) -> int:
        """How many batches can be built at once with what `memory` leaves, up to `most`."""
        taken = held_bytes(self.sizes.frames, memory.num_rows)
        taken += (memory.prefetch - self.prefetch) * self.sizes.batch
        left = self.max_arena - taken - memory.max_ahead * self.sizes.chunk
        more = left // max(1, (memory.prefetch + CONSUMER) * self.sizes.batch)
        return max(1, min(most, 1 + more))

    def memory(self, plan: Plan, *, fixed: bool) -> Memory:
        """What the limit leaves for a plan; `fixed`: frames of fixed shapes, in host memory."""
        return self.memory_of([group.max_resident_frames for group in plan.groups], fixed=fixed)

    def memory_of(self, frames: Sequence[int], *, fixed: bool) -> Memory:
        """As `memory`, for a plan that holds at most so many frames of each group."""
        if self.staying is not None:
            return self.staying
        sizes, held = self.sizes.frames, tuple(frames)
        if self.resident is not None:  # an epoch of less than a block may need a little more
            held = tuple(map(max, held, self.resident))
        nbytes = max(1, held_bytes(sizes, held))
        left = self.max_arena - int(nbytes * AHEAD)
        more = self._more_batches(left) if fixed else 0
        least = min(self._divide(held, nbytes, 0)[1], MAX_LOADS // 2)
        while more and self._divide(held, nbytes, more)[1] < least:
            more -= 1
        rows, ahead = self._divide(held, nbytes, more)
        return Memory(rows, self.prefetch + more, self.max_loads, ahead)

    def with_all(self, num_frames: int) -> Fit:
        """The same with rows for so many frames of each group, which then stay once they were
        loaded; without, where they do not all fit."""
        sizes = tuple(nbytes + STAYING for nbytes in self.sizes.frames)
        rows = (max(1, num_frames),) * len(sizes)
        left = self.max_arena - held_bytes(sizes, rows)
        if not num_frames or left < 0:
            return self
        prefetch = self.prefetch + self._more_batches(left)
        return replace(self, staying=Memory(rows, prefetch, self.max_loads, 0))

    def _divide(self, held: Sequence[int], nbytes: int, more: int) -> tuple[tuple[int, ...], int]:
        """Rows of arenas that hold so many frames, which take `nbytes`, and chunks that are read
        ahead, beside `more` batches."""
        max_arena = self.max_arena - more * self.sizes.batch
        most = max(nbytes, min(max_arena, int(nbytes * MOST_AHEAD)))
        rows = tuple(number * most // nbytes for number in held)
        left = max_arena - held_bytes(self.sizes.frames, rows)
        return rows, max(0, min(MAX_LOADS, left // max(1, self.sizes.chunk)))

    def _more_batches(self, left: int) -> int:
        """How many batches may be filled or wait beside `prefetch`, where so many bytes are left of
        what arenas may take."""
        room = min(self.max_arena // MORE_SHARE, left, MORE_BYTES)
        most = room // max(1, self.sizes.batch) if self.prefetch >= PREFETCH else 0
        return max(0, min(MOST_PREFETCH - self.prefetch, most))


def fit(
    facts: ClipFacts,
    settings: PlanSettings,
    sizes: FrameSizes,
    *,
    memory_limit: int,
    shuffle_buffer: int | None,
    num_cursors: int | None,
    num_parts: int,
    url: str,
    what: str = "these clips",
    may_stay: int = 0,
) -> Fit:
    """The best settings whose arenas, batches and chunks in flight take at most `memory_limit`.

    There are `may_stay` frames that may stay in memory, if they all fit.

    Raises `MemoryLimitError`, which names `url` and the least that would do, where nothing fits.
    """
    if settings.order == "sequences":  # these follow from the batches alone
        given = sequence_settings(settings, facts.spec.stride)
        what = what.replace("clips", "sequences")
        limits: dict[str, Any] = {"memory_limit": memory_limit, "may_stay": may_stay}
        return fit_given(facts, given, sizes, **limits, url=url, what=what)
    least = least_held(facts, settings, sizes.frames, num_cursors)
    best: Fit | None = None
    for prefetch, loads, arena, max_held in _ways_to_spend(sizes, memory_limit, least, what, url):
        found = Fit(settings, sizes, arena, prefetch, loads).with_all(may_stay)
        facts = replace(facts, stay=found.staying is not None)
        fitted = default_settings(
            facts,
            settings,
            shuffle_buffer=shuffle_buffer,
            max_held=max_held,
            max_arena=arena,
            frame_bytes=sizes.frames,
            num_cursors=num_cursors,
            num_parts=num_parts,
        )
        limited, of_memory = None, False
        if num_cursors is None:
            limited, of_memory = mixing_limit(
                facts, fitted, max_held=max_held, num_parts=num_parts, frame_bytes=sizes.frames
            )
        if best is None or fitted.num_cursors > best.settings.num_cursors or not of_memory:
            resident = tuple(resident_bounds(facts, fitted)) if facts.any_clips else None
            best = replace(
                found, settings=fitted, resident=resident, limited=limited, of_memory=of_memory
            )
        if not of_memory:
            break
    assert best is not None
    return best


def usual_limit(wanted: int, num_workers: int = 1) -> int:
    """The memory limit of each worker of a rank where none is given: the `wanted` bytes, at least
    `USUAL_LIMIT`, but all workers together have `MOST_OF_RANK`."""
    return min(MOST_OF_RANK // num_workers, max(USUAL_LIMIT, wanted))


def wanted_limit(facts: ClipFacts, settings: PlanSettings, sizes: FrameSizes) -> int:
    """A memory limit with which batches of one part are mixed well, and `PREFETCH` of them wait."""
    held = _held_to_mix(facts, settings, sizes.frames, 1)
    nbytes = ceil(held * AHEAD) + sizes.beside_arena(PREFETCH, 0)
    return nbytes + max(sizes.chunk, min(MAX_LOADS * sizes.chunk, nbytes // (LOADS_SHARE - 1)))


def limit_to_mix(
    facts: ClipFacts, settings: PlanSettings, sizes: FrameSizes, *, num_parts: int
) -> int:
    """The least memory limit with which batches are mixed well."""
    return _held_to_mix(facts, settings, sizes.frames, num_parts) + sizes.beside_arena(1, 1)


def least_limit(
    facts: ClipFacts, settings: PlanSettings, sizes: FrameSizes, num_cursors: int | None
) -> int:
    """The least memory limit with which `fit` finds settings, in bytes."""
    return least_held(facts, settings, sizes.frames, num_cursors) + sizes.beside_arena(1, 1)


def fit_given(
    facts: ClipFacts,
    settings: PlanSettings,
    sizes: FrameSizes,
    *,
    memory_limit: int,
    url: str,
    what: str = "the order of the saved state",
    may_stay: int = 0,
) -> Fit:
    """Memory for settings that are given, those of a saved state: they are the order's.

    `may_stay` is that of `fit`.

    Raises `MemoryLimitError`, which says the least that would do, where they do not fit.
    """
    resident = tuple(resident_bounds(facts, settings))
    least = held_bytes(sizes.frames, resident)
    prefetch, loads, arena, _ = _ways_to_spend(sizes, memory_limit, least, what, url)[0]
    most = resident if facts.any_clips else None
    return Fit(settings, sizes, arena, prefetch, loads, most).with_all(may_stay)


def _ways_to_spend(
    sizes: FrameSizes, memory_limit: int, held: int, what: str, url: str
) -> list[tuple[int, int, int, int]]:
    """The numbers of batches to prefetch and of chunks to read at a time, bytes of the arenas, and
    of frames to hold at most, which leaves the others to loads ahead. The best way comes first.

    Raises `MemoryLimitError` where no way leaves the bytes of frames that have to be held.
    """
    affordable = memory_limit // LOADS_SHARE // max(1, sizes.chunk)
    loads = max(1, min(MAX_LOADS, affordable))
    ways = [(prefetch, loads, ahead) for ahead in (AHEAD, 1) for prefetch in range(PREFETCH, 0, -1)]
    found = []
    ways += [(1, max(1, loads >> i), 1) for i in range(1, MAX_LOADS.bit_length())]
    for prefetch, loads, ahead in ways:
        arena = memory_limit - sizes.beside_arena(prefetch, loads)
        if int(arena / ahead) >= held:
            found.append((prefetch, loads, arena, int(arena / ahead)))
    if found:
        return found
    least = held + sizes.beside_arena(1, 1)
    raise MemoryLimitError(
        f"memory_limit is too small for {what}",
        file=url,
        expected=(
            f"at least {least} bytes ({format_size(least)}): {format_size(held)} of frames, "
            f"{1 + CONSUMER} batches and a chunk"
        ),
        got=f"{memory_limit} bytes ({format_size(memory_limit)})",
    )


def held_bytes(frame_bytes: Sequence[int] | None, frames: Sequence[int]) -> int:
    """The bytes of so many frames of each group; with `None` a frame of each is one byte."""
    return sum(n * size for n, size in zip(frames, frame_bytes or [1] * len(frames), strict=True))


def least_held(
    facts: ClipFacts,
    settings: PlanSettings,
    frame_bytes: Sequence[int] | None = None,
    num_cursors: int | None = None,
) -> int:
    """The least bytes of frames to hold, with one cursor or, shuffled, so many."""
    cursors = num_cursors or 1 if settings.shuffle else 1
    return _by_cursor(facts, settings, frame_bytes, 1) * cursors


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
    """`settings` with the last five chosen for an arena.

    Cursors first: two for each clip of a batch, so that it and the next come from different ones,
    as far as `max_held` bytes of frames allow and as reading some frames twice at the cuts stays
    below `REREAD_BY_CURSORS` of the epoch. Where that is not enough to mix a batch, up to
    `MOST_REREAD`. Whatever that reads twice, there are `LEAST_CURSORS`, or as many as episodes of
    one length. A given `num_cursors` is kept. Where frames stay, cursors more that begin inside the
    shares of these cost nothing.

    Then blocks as large as `shuffle_buffer` clips a round allow (`None`: any number) and as
    `max_held` does, with room in `max_arena` bytes for all that the next round loads (by default
    `AHEAD` times `max_held`). A frame of each group takes `frame_bytes` (`None`: 1 each). The
    first round has `FIRST_ROUND` clips at most, or as many as a batch takes to be mixed.

    A part of so few clips is one round of a single cursor if it fits, which is shuffled as a whole
    and reads nothing twice. With `rotate_phase` all that holds for the clips of any phase.
    `max_held` is at least `least_held`.
    """
    given = num_cursors if settings.shuffle else None
    spec, span, sizes, whole = (
        facts.spec,
        facts.window.span,
        _block_sizes(facts),
        facts.whole_block(),
    )
    if not settings.shuffle:
        wanted = max(settings.batch_size or 1, _clips_in_order(facts, frame_bytes))
        enough = bisect_left(sizes, wanted * spec.stride)
        tried = sizes[: enough + 1][::-1]  # the one that is enough, then smaller ones
        fits = (n for n in tried if _by_cursor(facts, settings, frame_bytes, n) <= max_held)
        return _one_cursor(settings, next(fits, 1))
    buffer = min(shuffle_buffer or MOST_CLIPS, MOST_CLIPS)
    share = -(-facts.num_clips // num_parts)
    if given is None and share <= min(FIRST_ROUND, buffer):
        for block in (whole, facts.whole_block(num_parts)):
            single = _one_cursor(settings, block)
            if held_bytes(frame_bytes, cursor_bounds(facts, single)) <= max_held:
                return single

    cursors = shares = given or 1
    if given is None:
        wanted = min(max(2 * (settings.batch_size or 1), USUAL_CURSORS), buffer)
        if spec.stride >= span:  # else chunks are held for clips of later rounds
            wanted = min(wanted, max(LEAST_CURSORS, buffer * spec.stride // sizes[0]))
        fitting = max_held // _by_cursor(facts, settings, frame_bytes, sizes[0])
        wanted = max(1, min(wanted, fitting))
        cursors = shares = min(wanted, _affordable_cursors(facts, settings, wanted, num_parts))
        # Where a batch has several clips of a cursor, rather fewer cursors with longer blocks.
        for fewer, _ in _ways_to_mix(facts, settings, num_parts):
            number = min(cursors, fewer)
            block = max(sizes[0], _apart(facts, settings, number))
            if number * _by_cursor(facts, settings, frame_bytes, block) <= max_held:
                cursors = shares = max(number, cursors if block == sizes[0] else 0)
                break
        if facts.stay:  # … not closer to each other than two clips
            shares = 1 if num_parts == 1 else shares
            most = min(wanted, share * spec.stride // (2 * span))
            cursors = shares * max(1, most // shares)

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
    left, cut = REREAD - facts.reread(shares, num_parts), facts.reread_by_one(num_parts) > 0
    run = max(LEAST_RUN_FRAMES, round(cut * facts.cut_frames / left)) if left > 0.001 else None
    return replace(
        settings,
        num_cursors=cursors,
        block_frames=size,
        run_frames=run,
        first_block_frames=min(first, size),
        num_shares=shares if facts.stay else None,
    )


def mixing_limit(
    facts: ClipFacts,
    settings: PlanSettings,
    *,
    max_held: int,
    num_parts: int,
    frame_bytes: Sequence[int] | None = None,
) -> tuple[str | None, bool]:
    """What keeps chosen settings from mixing a batch well, in words, and whether that is memory;
    `None` if nothing does."""
    cursors, enough = settings.num_cursors, _enough_cursors(facts, settings, num_parts)
    in_one_round = settings.first_block_frames >= facts.whole_block(num_parts)
    is_apart = settings.block_frames >= _apart(facts, settings, cursors)
    if not settings.shuffle or in_one_round or (cursors >= enough and is_apart):
        return None, False
    why = f" where {enough} are wanted"
    if cursors >= enough:
        why = ", which lie too close to each other"
    found = f"clips are mixed from {cursors} places at a time{why}"
    needed = _held_to_mix(facts, settings, frame_bytes, num_parts)
    if needed > max_held:
        room = f"memory_limit leaves room for {format_size(max_held)} of frames"
        return f"{found}: {room}, {format_size(needed)} are needed", True
    reread = facts.reread(enough, num_parts)
    parts = f"in {num_parts} parts of so short an epoch"
    return f"{found}: {parts} these would read {reread:.0%} of it twice", False


def _held_to_mix(
    facts: ClipFacts, settings: PlanSettings, frame_bytes: Sequence[int] | None, num_parts: int
) -> int:
    """The least bytes of frames to hold with which batches are mixed well, if reading allows it."""
    if settings.order == "sequences" or not settings.shuffle:
        return least_held(facts, settings, frame_bytes)
    every = _ways_to_mix(facts, settings, num_parts)
    ways = [
        (number, block)
        for number, block in every
        if number <= _affordable_cursors(facts, settings, number, num_parts)
    ]
    if (whole := facts.whole_cursors(num_parts)) >= every[-1][0]:  # these read nothing twice
        ways.append((whole, max(_block_sizes(facts)[0], _apart(facts, settings, whole))))
    return min(n * _by_cursor(facts, settings, frame_bytes, block) for n, block in ways or every)


def _enough_cursors(facts: ClipFacts, settings: PlanSettings, num_parts: int) -> int:
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
    size, enough = settings.batch_size or 1, _enough_cursors(facts, settings, num_parts)
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
    enough = max(_enough_cursors(facts, settings, num_parts), in_share)
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
    most = max(half, facts.whole_block())
    factors = sorted({factor << i for factor in (4, 5, 6, 7) for i in range(40)})
    return [half * n for n in [1, 2, 3, *factors] if half * n < 2 * most]
