"""Memory: derives an epoch's settings from clips, frame sizes and a memory limit. Pure integers.

The limit covers batches, chunks being read, and decoded frames. The bytes for frames determine the
cursors and their blocks, and these settings determine the order of clips. So they depend on the
arguments only: not on the machine's cores, nor on the processes that share them.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import ceil
from operator import mul
from typing import ClassVar, TypeAlias

import numpy as np

from seqrecord.errors import MemoryLimitError
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings, cursor_bounds, resident_bounds
from seqrecord.loader.sampling.cursors import SLACK
from seqrecord.loader.sampling.interleaving import (
    ENOUGH_CURSORS,
    ENOUGH_OF_ALL,
    FIRST_ROUND,
    LEAST_CURSORS,
    MOST_REREAD,
    REREAD,
    RUNS_PER_CLIP,
    Interleaving,
    episodes_in_batch,
)
from seqrecord.loader.sampling.orders import find_order
from seqrecord.loader.sampling.spreading import Spreading
from seqrecord.store.text import counted
from seqrecord.store.units import format_size

PREFETCH = 2  # batches that are filled or wait: one is ready while the next one is filled. 6 of
# tiny batches: 0.18 ms a batch, as with 2 (0.19)
CONSUMER = 2  # batches that the consumer has: the one in its hands and the one it drops for it
MAX_LOADS = 16  # chunks read and decoded at a time. Without: 302 MiB for 58 (32x32, batches of 1),
LOADS_SHARE = 8  # and at most one part in eight of the limit. A half: blocks of 64 clips for 256
AHEAD = 1.5  # times the frames in use. 1.0: 80 of 100 loads of the next round wait for room, not 0
USUAL_LIMIT = 2 << 30  # bytes of a process, where `memory_limit` is not given, or more to mix well
MOST_OF_RANK = 8 << 30  # … but at most for all workers of a rank together
_STAYING = 3 * 8  # bytes beside a frame that stays: hash, place and number of a clip in a shuffle

LEAST_BLOCK = 32  # clips of an unshuffled round. 1: five times the CPU time of tiny single clips
MOST_CLIPS = 1 << 17  # of a round, which is planned at once: 9 MB. Without: 136 MB for a million

UsedFrames: TypeAlias = Callable[[], tuple[int, ...]]
"""The numbers of frames of each group that samples use."""


@dataclass(frozen=True)
class FrameSizes:
    """Sizes in bytes.

    Attributes:
        frames: a frame of each group in its arena.
        chunk: the largest chunk of any group during a read.
        batch: a batch.
        staying: a frame of each group if all frames are resident.
        whole_chunk: a load if all frames are resident, which decodes whole chunks.
    """

    frames: tuple[int, ...]
    chunk: int
    batch: int
    staying: tuple[int, ...] = ()
    whole_chunk: int = 0

    @property
    def of_staying(self) -> FrameSizes:
        """The sizes if all frames are resident."""
        chunk = max(self.chunk, self.whole_chunk)
        return replace(self, frames=self.staying or self.frames, chunk=chunk)

    def held(self, frames: Sequence[int]) -> int:
        """The bytes of `frames` frames, by group."""
        return sum(map(mul, frames, self.frames))

    def beside_arena(self, prefetch: int, loads: int) -> int:
        """The bytes of all batches in use and of chunks being read."""
        return (prefetch + CONSUMER) * self.batch + loads * self.chunk

    def divisions(
        self, memory_limit: int, held: int, what: str, url: str
    ) -> list[tuple[int, int, int, int]]:
        """Divisions of a memory limit, best first: batches to prefetch, chunks to read at a time,
        bytes of arenas, and greatest bytes of frames in use; the rest of the arenas is for loads
        ahead.

        Raises `MemoryLimitError` if none leaves `held` bytes for frames.
        """
        loads = max(1, min(MAX_LOADS, memory_limit // LOADS_SHARE // max(1, self.chunk)))
        ways = [*product((AHEAD, 1), range(PREFETCH, 0, -1), (loads,))]
        while loads > 1:
            loads //= 2
            ways.append((1, 1, loads))
        divisions = []
        for ahead, prefetch, loads in ways:
            arena = memory_limit - self.beside_arena(prefetch, loads)
            if int(arena / ahead) >= held:
                divisions.append((prefetch, loads, arena, int(arena / ahead)))
        if divisions:
            return divisions
        minimum = held + self.beside_arena(1, 1)
        raise MemoryLimitError(
            f"memory_limit is too small for {what}",
            file=url,
            expected=(
                f"at least {minimum} bytes ({format_size(minimum)}): {format_size(held)} of "
                f"frames, {1 + CONSUMER} batches and a chunk"
            ),
            got=f"{memory_limit} bytes ({format_size(memory_limit)})",
        )


@dataclass(frozen=True)
class Memory:
    """Limits of an engine."""

    num_rows: tuple[int, ...]  # of each group's arena, a frame each
    prefetch: int  # batches that are filled or wait
    max_loads: int  # chunks being read
    max_read_ahead: int  # chunks more that wait as they are stored
    together: int = 1  # batches of one clip that are built at once, and count as one above


@dataclass(frozen=True)
class MemoryPlan:
    """Settings within a memory limit, and the division of the limit."""

    settings: PlanSettings
    sizes: FrameSizes
    max_arena: int  # bytes of all arenas
    prefetch: int
    max_loads: int
    resident: tuple[int, ...] | None = None  # the most frames of any phase, so that all epochs have
    # arenas of one size
    limited: str | None = None  # the reason if batches are not mixed well
    of_memory: bool = False  # whether that is the limit
    in_memory: Memory | None = None  # where frames stay that are loaded: a row for each there is
    notice_level: ClassVar[int] = logging.INFO  # of `limited`, unless memory is the limit

    def nbytes(self, memory: Memory) -> int:
        """The greatest number of bytes that an epoch needs with this memory."""
        loads = memory.max_loads + memory.max_read_ahead
        return self.sizes.held(memory.num_rows) + self.sizes.beside_arena(memory.prefetch, loads)

    def clips_at_once(self, memory: Memory, most: int) -> int:
        """The number of batches that fit at once into the bytes that `memory` leaves, at most
        `most`.
        """
        room = self.max_arena - self.sizes.held(memory.num_rows)
        room -= memory.max_read_ahead * self.sizes.chunk
        extra_clips = room // max(1, (memory.prefetch + CONSUMER) * self.sizes.batch)
        return max(1, min(most, 1 + extra_clips))

    def memory(self, frames: Sequence[int]) -> Memory:
        """The limits for a plan with at most `frames` frames of each group in memory.

        Arenas have room for the loads of the next round, which are at most as many.
        """
        if self.in_memory is not None:
            return self.in_memory
        frame_counts = tuple(frames)
        if self.resident is not None:  # an epoch of less than a block may need a little more
            frame_counts = tuple(map(max, frame_counts, self.resident))
        nbytes = max(1, self.sizes.held(frame_counts))
        max_bytes = max(nbytes, min(self.max_arena, 2 * nbytes))
        rows = tuple(number * max_bytes // nbytes for number in frame_counts)
        ahead = (self.max_arena - self.sizes.held(rows)) // max(1, self.sizes.chunk)
        return Memory(rows, self.prefetch, self.max_loads, max(0, min(MAX_LOADS, ahead)))

    def with_all(self, frames: Sequence[int], used_frames: UsedFrames | None = None) -> MemoryPlan:
        """A copy with rows for `frames` frames, by group, which are then resident.

        Reduces the number of loads at a time if necessary. If the frames do not fit, those that
        `used_frames` counts may; unchanged if neither do.
        """
        if not any(frames):
            return self
        sizes, rows = self.sizes.of_staying, tuple(np.maximum(frames, 1).tolist())
        room = self.max_arena - sizes.held(rows) - _STAYING * sum(rows)
        room += self.max_loads * self.sizes.chunk
        loads = min(self.max_loads, room // max(1, sizes.chunk))
        if loads < 1:
            return self if used_frames is None else self.with_all(used_frames())
        return replace(self, sizes=sizes, in_memory=Memory(rows, self.prefetch, loads, 0))


def usual_limit(nbytes: int, num_workers: int = 1) -> int:
    """The default memory limit of each worker in a rank, in bytes.

    `nbytes`, at least `USUAL_LIMIT`; all workers together at most `MOST_OF_RANK`.
    """
    return min(MOST_OF_RANK // num_workers, max(USUAL_LIMIT, nbytes))


@dataclass(frozen=True, eq=False)
class MemoryRequest:
    """The memory needs of clips, for an epoch with `num_shards` shards.

    Chooses the last six of `settings`, with `num_cursors` and `shuffle_buffer` as bounds unless
    `None`. The first round has at most about `first_round` clips. If batches of lists of frames
    have a budget, all rounds have about `window_frames` frames, as far as memory allows.
    `frames_in_memory` frames of each group, or an upper bound, may stay in memory if they all fit,
    and `stay` if so.
    Errors have `url`, and `what` as the user of the memory.
    """

    stats: ClipStats
    settings: PlanSettings
    sizes: FrameSizes
    num_shards: int = 1
    num_cursors: int | None = None
    shuffle_buffer: int | None = None
    frames_in_memory: tuple[int, ...] = ()
    url: str = ""
    what: str = "these clips"
    stay: bool = False
    first_round: int = FIRST_ROUND
    window_frames: int = 0
    interleaving: Interleaving = field(init=False)

    def __post_init__(self) -> None:
        numbers = Interleaving.of(self.stats, self.settings, self.num_shards, self.stay)
        is_mixed = self.settings.shuffle and find_order(self.settings.order).is_mixed
        if numbers.runs and is_mixed and self.num_cursors is None:  # blocks need other memory
            object.__setattr__(self, "settings", replace(self.settings, num_shares=1))
        else:
            numbers = replace(numbers, runs=0)
        object.__setattr__(self, "interleaving", numbers)

    @property
    def spreading(self) -> Spreading:
        """The cost of cuts that spread episodes over the shards."""
        return Spreading(self.stats, self.num_shards)

    def plan_memory(self, memory_limit: int, used_frames: UsedFrames | None = None) -> MemoryPlan:
        """The best settings within `memory_limit` bytes for arenas, batches and chunks in flight.

        If `frames_in_memory` do not fit, as many as `used_frames` counts may stay.

        Raises `MemoryLimitError` with the smallest sufficient limit.
        """
        order = find_order(self.settings.order)
        if values := order.settings(self.settings.batch_size or 1, self.stats.spec.stride):
            what = self.what.replace("clips", order.name)
            settings = replace(self.settings, **values)
            return self.plan_given(settings, memory_limit, what, used_frames)
        best: MemoryPlan | None = None
        divisions = self.sizes.divisions(memory_limit, self.least_held, self.what, self.url)
        for prefetch, loads, arena, max_held in divisions:
            plan = MemoryPlan(self.settings, self.sizes, arena, prefetch, loads)
            plan, request = plan.with_all(self.frames_in_memory, used_frames), self
            stay = plan.in_memory is not None
            if stay != self.stay:
                request = replace(self, stay=stay, settings=replace(self.settings, num_shares=None))
            settings = request.default_settings(max_held, arena)
            limited, of_memory = None, False
            if self.num_cursors is None:
                limited, of_memory = request.mixing_limit(settings, max_held)
            if best is None or settings.num_cursors > best.settings.num_cursors or not of_memory:
                best = replace(plan, settings=settings, limited=limited, of_memory=of_memory)
            if not of_memory:
                break
        assert best is not None
        if self.stats.any_clips:
            best = replace(best, resident=tuple(resident_bounds(self.stats, best.settings)))
        return best

    def plan_given(
        self,
        settings: PlanSettings,
        memory_limit: int,
        what: str = "the order of the saved state",
        used_frames: UsedFrames | None = None,
    ) -> MemoryPlan:
        """The memory for explicit settings, such as the settings of a saved state.

        Raises `MemoryLimitError` with the smallest sufficient limit.
        """
        resident = tuple(resident_bounds(self.stats, settings))
        frame_bytes = self.sizes.held(resident)
        divisions = self.sizes.divisions(memory_limit, frame_bytes, what, self.url)
        prefetch, loads, arena, _ = divisions[0]
        max_rows = resident if self.stats.any_clips else None
        plan = MemoryPlan(settings, self.sizes, arena, prefetch, loads, max_rows)
        plan = plan.with_all(self.frames_in_memory, used_frames)
        if settings.resident and plan.in_memory is None:
            sizes = self.sizes.of_staying
            minimum = sizes.held(self.frames_in_memory) + sizes.beside_arena(1, 1)
            raise MemoryLimitError(
                f"memory_limit is too small for {what}, in which all frames stay in memory",
                file=self.url,
                expected=f"about {format_size(minimum)} or more",
                got=format_size(memory_limit),
            )
        return plan

    @property
    def least_limit(self) -> int:
        """The smallest memory limit for which `plan_memory` finds settings, in bytes."""
        return self.least_held + self.sizes.beside_arena(1, 1)

    @property
    def limit_to_mix(self) -> int:
        """The smallest memory limit that mixes batches well, in bytes."""
        return min(self._held_to_mix(self.settings)) + self.sizes.beside_arena(1, 1)

    @property
    def limit_to_stay(self) -> int:
        """A memory limit with which `frames_in_memory` frames are resident, in bytes."""
        sizes = self.sizes.of_staying
        beside = self.sizes.beside_arena(PREFETCH, 0) + sizes.chunk
        return sizes.held(self.frames_in_memory) + _STAYING * sum(self.frames_in_memory) + beside

    @property
    def wanted_limit(self) -> int:
        """A memory limit that mixes batches well and prefetches `PREFETCH` of them, in bytes.

        It has as many cursors as `MOST_OF_RANK` allows.
        """
        chunk, limits = self.sizes.chunk, list[int]()
        for frame_bytes in self._held_to_mix(self.settings):
            nbytes = ceil(frame_bytes * AHEAD) + self.sizes.beside_arena(PREFETCH, 0)
            limits.append(nbytes + max(chunk, min(MAX_LOADS * chunk, nbytes // (LOADS_SHARE - 1))))
            if limits[-1] <= MOST_OF_RANK:
                return limits[-1]
        return min(limits)

    @property
    def least_held(self) -> int:
        """The smallest number of bytes for frames: of one cursor or, shuffled, of `num_cursors`."""
        return self.cursor_bytes(1) * (self.num_cursors or 1 if self.settings.shuffle else 1)

    def default_settings(self, max_held: int, max_arena: int) -> PlanSettings:
        """The settings, with the last five derived from the size of an arena.

        First the cursors: two for each clip of a batch, so that the next batch comes from other
        ones, as far as `max_held` bytes of frames allow, and as repeated reads at cuts are below
        `REREAD_BY_CURSORS` of the epoch. If this mixes batches badly, repeated reads may reach
        `MOST_REREAD`. There are always at least `LEAST_CURSORS`, or as many as episodes of one
        length. An explicit `num_cursors` is kept. If frames are resident, extra cursors in a share
        cost nothing.

        If such a batch would have fewer episodes than in a full shuffle of the shard, the shard is
        one round of a single cursor, if it fits.

        Then blocks as long as `shuffle_buffer` clips per round (`None`: any number) and `max_held`
        allow, with room in `max_arena` bytes for the loads of the next round. The first round has
        at most `first_round` clips, or as many as a batch needs to be mixed.

        A shard of at most `first_round` clips is also one round, which reads nothing twice, unless
        cuts give it more episodes.
        `max_held` is at least `least_held`.
        """
        stats, settings, interleaving = self.stats, self.settings, self.interleaving
        if not settings.shuffle:
            return self._unshuffled(max_held)
        cursors, buffer = self.num_cursors, min(self.shuffle_buffer or MOST_CLIPS, MOST_CLIPS)
        if cursors is None:
            block = stats.whole_block(self.num_shards)
            fits = interleaving.num_clips <= buffer and self.cursor_bytes(block) <= max_held
            # Without cuts, shares of cursors have no more episodes, and neighbours in a batch.
            spreads = interleaving.runs and (interleaving.cuts or not fits)
            if fits and interleaving.num_clips <= self.first_round and not spreads:
                settings = replace(settings, num_shares=None)
                return self._resident(_one_cursor(settings, block))
            cursors = self._default_cursors(buffer, max_held)
            if interleaving.runs:
                settings = self._shuffled(cursors, buffer, max_held, max_arena)
                length = self.spreading.run_frames(interleaving.cuts)
                return replace(settings, run_frames=length, num_shares=cursors)
            # A round of a whole shard reads nothing twice, and has more episodes than too few
            # cursors.
            episodes = 1 + (stats.num_episodes - 1) / self.num_shards
            if fits and cursors < episodes_in_batch(episodes, settings.batch_size or 1):
                return self._resident(_one_cursor(settings, block))
        return self._shuffled(cursors, buffer, max_held, max_arena)

    def _unshuffled(self, max_held: int) -> PlanSettings:
        """The settings without a shuffle: one cursor, in blocks of `LEAST_BLOCK` clips or more."""
        min_frames = max(self.settings.batch_size or 1, LEAST_BLOCK) * self.stats.spec.stride
        blocks = self.interleaving.blocks
        tried = blocks[
            : bisect_left(blocks, min_frames) + 1
        ]  # the sufficient one, and smaller ones
        while tried and self.cursor_bytes(tried[-1]) > max_held:
            tried.pop()
        return _one_cursor(self.settings, tried[-1] if tried else 1)

    def _default_cursors(self, buffer: int, max_held: int) -> int:
        """The number of cursors; see `default_settings`."""
        stride, span, interleaving = (
            self.stats.spec.stride,
            self.stats.window.span,
            self.interleaving,
        )
        shortest = interleaving.blocks[0]
        cursors_to_mix = min(2 * max(self.settings.batch_size or 1, ENOUGH_CURSORS), buffer)
        if stride >= span:  # else chunks wait for clips of later rounds
            cursors_to_mix = min(cursors_to_mix, max(LEAST_CURSORS, buffer * stride // shortest))
        cursors_to_mix = max(1, min(cursors_to_mix, max_held // self.cursor_bytes(shortest)))
        if self.stay:  # anywhere, but not closer to each other than two clips
            return max(1, min(cursors_to_mix, interleaving.num_clips * stride // (2 * span)))
        cursors = min(cursors_to_mix, interleaving.affordable(cursors_to_mix))
        # Where a batch has several clips of a cursor, rather fewer cursors with longer blocks.
        for fewer, _ in interleaving.ways:
            number = min(cursors, fewer)
            length = interleaving.block(number)
            if number * self.cursor_bytes(length) <= max_held:
                return max(number, cursors if length == shortest else 0)
        return cursors

    def _shuffled(self, cursors: int, buffer: int, max_held: int, max_arena: int) -> PlanSettings:
        """The settings for a number of cursors: blocks and runs; see `default_settings`."""
        stats, stride, interleaving = self.stats, self.stats.spec.stride, self.interleaving
        if self.window_frames and self.num_cursors is None:
            # Lists are cut at episodes only. For 272 cursors, of which 3 had clips, windows had 7
            # clips: twice as many padded batches. One of its own for each episode, and the parts
            # at a shard's two ends: with one less, a standard deviation of .08 of the correlation
            # of length and batch for .01 (24 episodes, 8 shards).
            cursors = min(cursors, 2 + -(-stats.num_episodes // self.num_shards))
        usual = -(-interleaving.num_clips * stride // cursors) + stats.window.span  # of a cursor
        longest = -(-stats.whole_block() // (self.num_shards * cursors))
        apart = interleaving.apart(cursors)
        first_frames = max(self.first_round * stride // cursors, apart)
        most_frames = buffer * stride // cursors  # of a block
        if self.window_frames:
            window = _window_of_cursor(stats, self.num_shards, cursors, self.window_frames)
            first_frames = max(first_frames, window)
            most_frames = most_frames * stats.num_frames // stats.num_clips
        elif apart > 1 and usual < 2 * first_frames:  # the rest would be too short
            first_frames = max(first_frames, stats.whole_block())
        needed = interleaving.block(cursors)

        def is_too_long(block: int) -> bool:
            block_bytes = self.cursor_bytes(block)
            if cursors * block_bytes > max_held or block <= needed:
                return cursors * block_bytes > max_held
            # Of chunks that are loaded for a few clips, more clips need no more memory.
            has_room = 2 * cursors * block_bytes <= max_arena or block_bytes <= self.cursor_bytes(
                needed
            )
            return not has_room or block > most_frames or block >= 2 * longest

        # The first that does not fit, in steps of which each halves the rest.
        count = bisect_left(interleaving.blocks, True, key=is_too_long)
        size = interleaving.blocks[count - 1] if count else 1
        reread_left, run = REREAD - interleaving.reread(cursors), None
        if (
            usual < stats.longest_episode and reread_left > 0
        ):  # else cursors are in different episodes
            cut = stats.cut_frames if interleaving.reread_by_cursor else 0
            run = max(usual, round(cut / reread_left))
        return self._resident(
            replace(
                self.settings,
                num_cursors=cursors,
                # Rounds of one size: longer ones behind would have other lengths than short first
                # ones, because long lists are at the ends of cursors (by how shares are divided).
                block_frames=min(first_frames, size) if self.window_frames else size,
                run_frames=run,
                first_block_frames=min(first_frames, size),
                num_shares=1 if self.stay else None,
            )
        )

    def _resident(self, settings: PlanSettings) -> PlanSettings:
        """The settings for frames that `stay` in several shards.

        A shard has `RUNS_PER_CLIP` cuts for each clip of a batch, or as many as episodes, as far
        as these decode at most `MOST_REREAD` twice.
        """
        if not self.stay or self.num_shards == 1:
            return settings
        runs = RUNS_PER_CLIP * max(settings.batch_size or 1, ENOUGH_CURSORS)
        cuts = self.spreading.cuts_for(min(self.stats.even_episodes, runs), MOST_REREAD)
        return replace(settings, run_frames=self.spreading.run_frames(cuts), num_shares=1)

    def mixing_limit(self, settings: PlanSettings, max_held: int) -> tuple[str | None, bool]:
        """The reason why complete settings do not mix batches well, and whether it is memory.

        `(None, False)` if they do.
        """
        stats, num_shards, interleaving = self.stats, self.num_shards, self.interleaving
        if not stats.num_clips:  # the rest of a segment that has returned all
            return None, False
        if self.stay and num_shards > 1:
            return self._limit_of_shards(settings), False
        cursors, enough = settings.num_cursors, interleaving.enough
        in_one_round = settings.first_block_frames >= stats.whole_block(num_shards)
        is_apart = settings.block_frames >= interleaving.apart(cursors)
        if not settings.shuffle or in_one_round or (cursors >= enough and is_apart):
            return None, False
        why = f" where {enough} are wanted"
        if cursors >= enough:
            why = ", which are too close to each other"
        reason = f"clips are mixed from {counted(cursors, 'place')} at a time{why}"
        if cursors == 1 < enough:
            reason += ", so the epoch is nearly sequential"
        if (needed := min(self._held_to_mix(settings))) > max_held:
            room = f"memory_limit leaves room for {format_size(max_held)} of frames"
            return f"{reason}: {room}, {format_size(needed)} are needed", True
        if settings.num_shares is not None:
            return self._limit_of_shards(settings), False
        reread = interleaving.reread(enough)
        shards = f"in {num_shards} shards of so short an epoch"
        return f"{reason}: {shards} these would read {reread:.0%} of it twice", False

    def _held_to_mix(self, settings: PlanSettings) -> list[int]:
        """Bytes of frames for each affordable way to mix batches well; most cursors first.

        If `settings` has shares of its own, its blocks may end at any frame, so they hold fewer.
        """
        if not (settings.shuffle and find_order(settings.order).is_mixed):
            return [self.least_held]
        sizes_of_ways, ways = list[int](), self.interleaving.affordable_ways()
        for cursors, block in ways or [(1, self.stats.whole_block(self.num_shards))]:
            sizes_of_ways.append(cursors * self.cursor_bytes(block, settings))
        return sizes_of_ways

    def _limit_of_shards(self, settings: PlanSettings) -> str | None:
        """The reason if batches have few of all episodes, because a shard has few runs."""
        stats, num_shards, size = self.stats, self.num_shards, settings.batch_size
        size = size or ENOUGH_CURSORS
        cuts = stats.num_frames // settings.run_frames if settings.run_frames else 0
        num_runs = min(stats.num_episodes, max(1, round(self.spreading.num_runs(cuts))))
        number, full = min(size, num_runs), episodes_in_batch(stats.num_episodes, size)
        if number >= ENOUGH_OF_ALL * full:
            return None
        remedy = "shorter clips or fewer shards mix better"
        if stats.unit_frames > max(1, stats.shared_frames):
            remedy = f"shorter groups of pictures mix better (gop=), here of {stats.unit_frames}"
        return (
            f"each of {num_shards} shards has clips of about {num_runs} of {stats.num_episodes} "
            f"episodes: {number} in a batch of {size}, where a shuffle of all has {full:.1f}; "
            f"more cuts would decode over {MOST_REREAD:.0%} of the frames twice: {remedy}"
        )

    def cursor_bytes(self, block_frames: int, settings: PlanSettings | None = None) -> int:
        """The greatest bytes of frames per cursor with blocks of this length; at least 1.

        `settings` has the shares of the plan; by default as requested.
        """
        settings = settings or self.settings
        tried = replace(settings, block_frames=block_frames, first_block_frames=block_frames)
        return max(1, self.sizes.held(cursor_bounds(self.stats, tried)))


def _one_cursor(settings: PlanSettings, block: int) -> PlanSettings:
    """Settings of one cursor with constant blocks and no cuts."""
    return replace(
        settings, num_cursors=1, block_frames=block, run_frames=None, first_block_frames=block
    )


def _window_of_cursor(stats: ClipStats, num_shards: int, cursors: int, window_frames: int) -> int:
    """The counted frames of a cursor in a round of `window_frames`, see `Cursors`; the whole shard,
    if it has less than two windows.

    Of the longest cursor, because it decides how many rounds there are: by the mean, windows had 2
    batches where 16 are wanted (episodes of 47 to 2,350 frames), and 44 % more padded batches than
    the sum of costs needs.
    """
    frames = max(1, -(-stats.num_frames // num_shards))
    if frames < 2 * window_frames:
        return stats.whole_block()
    gaps = -(-stats.num_episodes // num_shards) * (stats.window.span + stats.largest_chunk)
    longest = (frames + gaps) // cursors + min(stats.longest_episode, frames)
    return ceil(SLACK * window_frames * longest / frames)
