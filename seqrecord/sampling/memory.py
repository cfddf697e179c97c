"""Memory: from clips, the sizes of frames and a memory limit to the settings of an epoch.

The limit is spent on batches, on chunks that are being read, and on frames that are held. From the
bytes for frames follow the cursors and their blocks: see `defaults`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from seqrecord.errors import MemoryLimitError
from seqrecord.sampling.bounds import resident_bounds
from seqrecord.sampling.defaults import (
    AHEAD,
    default_settings,
    held_bytes,
    held_to_mix,
    least_held,
    mixing_limit,
)
from seqrecord.sampling.facts import ClipFacts
from seqrecord.sampling.plan import Plan
from seqrecord.sampling.sequences import sequence_settings
from seqrecord.sampling.settings import PlanSettings
from seqrecord.units import format_size

__all__ = [
    "Fit",
    "FrameSizes",
    "Memory",
    "fit",
    "fit_given",
    "least_limit",
    "limit_to_mix",
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
MOST_AHEAD = 2.0  # where memory is left: then all of the next round's loads may begin, which
# `default_settings` leaves room for where it chooses larger blocks than the smallest
STAYING = 8  # bytes beside a frame that stays: whether it is there, and which clip is the first
USUAL_LIMIT = 2 << 30  # bytes of a process, where `memory_limit` is not given, or more to mix well
MOST_OF_RANK = 8 << 30  # … but no more for a rank, all of its workers together
ROUNDS_AHEAD = 16.0  # … where frames are small, in so many bytes
FEW_BYTES = 32 << 20


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
        most = max(int(nbytes * MOST_AHEAD), min(int(nbytes * ROUNDS_AHEAD), FEW_BYTES))
        most = max(nbytes, min(max_arena, most))
        rows = tuple(number * most // nbytes for number in held)
        left = max_arena - held_bytes(self.sizes.frames, rows)
        return rows, max(0, min(MAX_LOADS, left // max(1, self.sizes.chunk)))

    def _more_batches(self, left: int) -> int:
        """How many batches may be filled or wait beside `prefetch`, where so many bytes are left of
        what arenas may take."""
        most = min(self._room(left), MORE_BYTES) // max(1, self.sizes.batch)
        return max(0, min(MOST_PREFETCH - self.prefetch, most))

    def _room(self, left: int) -> int:
        """Bytes for batches beside `prefetch`, where so many are left of what arenas may take."""
        return min(self.max_arena // MORE_SHARE, left) if self.prefetch >= PREFETCH else 0


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
        return fit_given(
            facts,
            given,
            sizes,
            memory_limit=memory_limit,
            url=url,
            what=what,
            may_stay=may_stay,
        )
    cursors = num_cursors if settings.shuffle else None
    least = least_held(facts, settings, sizes.frames, cursors)
    best: Fit | None = None
    for prefetch, loads, arena, max_held in _ways_to_spend(sizes, memory_limit):
        if max_held < least:
            continue
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
            ) or (None, False)
        if best is None or fitted.num_cursors > best.settings.num_cursors or not of_memory:
            resident = tuple(resident_bounds(facts, fitted)) if facts.any_clips else None
            best = replace(
                found, settings=fitted, resident=resident, limited=limited, of_memory=of_memory
            )
        if not of_memory:
            return best
    if best is not None:
        return best
    raise _too_small(what, url, sizes, least, memory_limit)


def usual_limit(wanted: int, num_workers: int = 1) -> int:
    """The memory limit of each worker of a rank where none is given: the `wanted` bytes, at least
    `USUAL_LIMIT`, but all workers together have `MOST_OF_RANK`."""
    return min(MOST_OF_RANK // num_workers, max(USUAL_LIMIT, wanted))


def wanted_limit(facts: ClipFacts, settings: PlanSettings, sizes: FrameSizes) -> int:
    """A memory limit with which batches of one part are mixed well, and `PREFETCH` of them wait."""
    nbytes = ceil(_held_to_mix(facts, settings, sizes, 1) * AHEAD) + sizes.beside_arena(PREFETCH, 0)
    return nbytes + max(sizes.chunk, min(MAX_LOADS * sizes.chunk, nbytes // (LOADS_SHARE - 1)))


def limit_to_mix(
    facts: ClipFacts, settings: PlanSettings, sizes: FrameSizes, *, num_parts: int
) -> int:
    """The least memory limit with which batches are mixed well."""
    return _held_to_mix(facts, settings, sizes, num_parts) + sizes.beside_arena(1, 1)


def _held_to_mix(
    facts: ClipFacts, settings: PlanSettings, sizes: FrameSizes, num_parts: int
) -> int:
    if settings.order == "sequences" or not settings.shuffle:
        return least_held(facts, settings, sizes.frames)
    return held_to_mix(facts, settings, num_parts=num_parts, frame_bytes=sizes.frames)


def least_limit(
    facts: ClipFacts, settings: PlanSettings, sizes: FrameSizes, num_cursors: int | None
) -> int:
    """The least memory limit with which `fit` finds settings, in bytes."""
    cursors = num_cursors if settings.shuffle else None
    least = least_held(facts, settings, sizes.frames, cursors)
    return least + sizes.beside_arena(1, 1)


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
    for prefetch, loads, arena, max_held in _ways_to_spend(sizes, memory_limit):
        if max_held >= least:
            most = resident if facts.any_clips else None
            found = Fit(settings, sizes, arena, prefetch, loads, most)
            return found.with_all(may_stay)
    raise _too_small(what, url, sizes, least, memory_limit)


def _ways_to_spend(sizes: FrameSizes, memory_limit: int) -> Iterator[tuple[int, int, int, int]]:
    """The numbers of batches to prefetch and of chunks to read at a time, bytes of the arenas, and
    of frames to hold at most, which leaves the others to loads ahead. The best way comes first."""
    affordable = memory_limit // LOADS_SHARE // max(1, sizes.chunk)
    loads = max(1, min(MAX_LOADS, affordable))
    ways = [(prefetch, loads, ahead) for ahead in (AHEAD, 1) for prefetch in range(PREFETCH, 0, -1)]
    for prefetch, loads, ahead in (*ways, (1, 1, 1)):
        arena = memory_limit - sizes.beside_arena(prefetch, loads)
        yield prefetch, loads, arena, int(arena / ahead)


def _too_small(
    what: str, url: str, sizes: FrameSizes, held: int, memory_limit: int
) -> MemoryLimitError:
    least = held + sizes.beside_arena(1, 1)
    return MemoryLimitError(
        f"memory_limit is too small for {what}",
        file=url,
        expected=(
            f"at least {least} bytes ({format_size(least)}): {format_size(held)} of frames, "
            f"{1 + CONSUMER} batches and a chunk"
        ),
        got=f"{memory_limit} bytes ({format_size(memory_limit)})",
    )
