"""Memory: derives an epoch's settings from clips, frame sizes and a memory limit. Pure integers.

The limit covers batches, chunks being read, and decoded frames. The bytes for frames determine the
cursors and their blocks, and these settings determine the order of clips. So they depend on the
arguments only: not on the machine's cores, nor on the processes that share them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from seqrecord.errors import MemoryLimitError
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings, cursor_bounds, resident_bounds
from seqrecord.loader.sampling.orders import find_order
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

# Figures: cases of benchmarks.tartanair.default_mixing, with the value and without it or with the
# other one. "Episodes" are those of a batch, compared with a full shuffle of the shard.
LEAST_CURSORS = 2  # 1: 33 % of the episodes for 60 % (video, GOP 50, 8 shards, batches of 4)
ENOUGH_CURSORS = 12  # for a batch, or as many as it has clips. 1: 95 % of the episodes for 119 %
ENOUGH_EPISODES = 0.95  # 0: 13 episodes in a batch for 32 (400 short ones, 8 shards)
ENOUGH_OF_ALL = 0.85  # … of the dataset in a batch of a shard whose frames stay; else it is logged
MOST_OF_A_BLOCK = 8  # clips of a batch, which dealing keeps apart. 32: 7.3 episodes for 8.0
CLOSE = 1.15  # clips of a batch for each cursor, from which on blocks must be long enough for them.
# 1.0: 7.9 episodes for 8.9 (ten episodes, batches of 32, 1,000 frames in memory)
REREAD_BY_CURSORS = 0.031  # fraction of frames that dividing the epoch among cursors may read twice
REREAD = 0.035  # … and cuts of runs. Without cuts 52 % of the pairs of a batch come together again
# in the next epoch, for 7 % (one episode of 20,000 frames; by chance 2.6 %)
MOST_REREAD = 0.10  # by cursors, where a batch needs more. 0.031: 3.8 episodes for 7.6
MOST_REREAD_IN_MANY = 0.20  # … in many shards. 0.10: 7.2 episodes for 14.9 (256 shards)
MANY_SHARDS = 64
CUTS_PER_CLIP = 3  # of runs in a shard whose frames stay. 1: 6.2 episodes for 6.7 (50, 8 shards)
LEAST_BLOCK = 32  # clips of an unshuffled round. 1: five times the CPU time of tiny single clips
FIRST_ROUND = 256  # clips of an epoch's first round. Without: 15,348 before the first batch
MOST_CLIPS = 1 << 17  # of a round, which is planned at once: 9 MB. Without: 136 MB for a million

_FACTORS = [1, 2, 3, *(factor << i for i in range(40) for factor in (4, 5, 6, 7))]  # of a block


@dataclass(frozen=True)
class FrameSizes:
    """Sizes in bytes.

    Attributes:
        frames: a frame of each group in its arena.
        chunk: the largest chunk of any group during a read.
        batch: a batch.
        staying: a frame of each group if all frames stay.
        whole_chunk: a load if all frames stay, which decodes whole chunks.
    """

    frames: tuple[int, ...]
    chunk: int
    batch: int
    staying: tuple[int, ...] = ()
    whole_chunk: int = 0

    @property
    def of_staying(self) -> FrameSizes:
        """The sizes if all frames stay."""
        chunk = max(self.chunk, self.whole_chunk)
        return replace(self, frames=self.staying or self.frames, chunk=chunk)

    def held(self, frames: Sequence[int]) -> int:
        """The bytes of `frames` frames of each group."""
        return sum(n * size for n, size in zip(frames, self.frames, strict=True))

    def beside_arena(self, prefetch: int, loads: int) -> int:
        """The bytes of all batches in use and of chunks being read."""
        return (prefetch + CONSUMER) * self.batch + loads * self.chunk

    def ways_to_spend(
        self, memory_limit: int, held: int, what: str, url: str
    ) -> list[tuple[int, int, int, int]]:
        """Ways to divide a memory limit, best first: batches to prefetch, chunks to read at a time,
        bytes of arenas, and greatest bytes of frames in use; the rest of the arenas is for loads
        ahead.

        Raises `MemoryLimitError` if no way leaves `held` bytes for frames.
        """
        affordable = memory_limit // LOADS_SHARE // max(1, self.chunk)
        loads = max(1, min(MAX_LOADS, affordable))
        ways = [
            (prefetch, loads, ahead) for ahead in (AHEAD, 1) for prefetch in range(PREFETCH, 0, -1)
        ]
        found = []
        ways += [(1, max(1, loads >> i), 1) for i in range(1, MAX_LOADS.bit_length())]
        for prefetch, loads, ahead in ways:
            arena = memory_limit - self.beside_arena(prefetch, loads)
            if int(arena / ahead) >= held:
                found.append((prefetch, loads, arena, int(arena / ahead)))
        if found:
            return found
        least = held + self.beside_arena(1, 1)
        raise MemoryLimitError(
            f"memory_limit is too small for {what}",
            file=url,
            expected=(
                f"at least {least} bytes ({format_size(least)}): {format_size(held)} of frames, "
                f"{1 + CONSUMER} batches and a chunk"
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

    def nbytes(self, memory: Memory) -> int:
        """The greatest number of bytes that an epoch needs with this memory."""
        loads = memory.max_loads + memory.max_read_ahead
        return self.sizes.held(memory.num_rows) + self.sizes.beside_arena(memory.prefetch, loads)

    def clips_at_once(self, memory: Memory, most: int) -> int:
        """The number of batches that fit at once into the bytes that `memory` leaves, at most
        `most`.
        """
        left = self.max_arena - self.sizes.held(memory.num_rows)
        left -= memory.max_read_ahead * self.sizes.chunk
        more = left // max(1, (memory.prefetch + CONSUMER) * self.sizes.batch)
        return max(1, min(most, 1 + more))

    def memory(self, frames: Sequence[int]) -> Memory:
        """The limits for a plan with at most `frames` frames of each group in memory.

        Arenas have room for the loads of the next round, which are at most as many.
        """
        if self.in_memory is not None:
            return self.in_memory
        held = tuple(frames)
        if self.resident is not None:  # an epoch of less than a block may need a little more
            held = tuple(map(max, held, self.resident))
        nbytes = max(1, self.sizes.held(held))
        most = max(nbytes, min(self.max_arena, 2 * nbytes))
        rows = tuple(number * most // nbytes for number in held)
        ahead = (self.max_arena - self.sizes.held(rows)) // max(1, self.sizes.chunk)
        return Memory(rows, self.prefetch, self.max_loads, max(0, min(MAX_LOADS, ahead)))

    def with_all(self, frames: Sequence[int]) -> MemoryPlan:
        """A copy with a row for each of `frames` frames of each group, which then stay in memory.

        Reduces the number of loads at a time if necessary. Unchanged if the frames do not fit.
        """
        if not any(frames):
            return self
        sizes, rows = self.sizes.of_staying, tuple(max(1, count) for count in frames)
        left = self.max_arena - sizes.held(rows) - _STAYING * sum(rows)
        left += self.max_loads * self.sizes.chunk
        loads = min(self.max_loads, left // max(1, sizes.chunk))
        if loads < 1:
            return self
        return replace(self, sizes=sizes, in_memory=Memory(rows, self.prefetch, loads, 0))


def usual_limit(wanted: int, num_workers: int = 1) -> int:
    """The default memory limit of each worker of a rank, in bytes.

    `wanted` bytes, at least `USUAL_LIMIT`; all workers together at most `MOST_OF_RANK`.
    """
    return min(MOST_OF_RANK // num_workers, max(USUAL_LIMIT, wanted))


@dataclass(frozen=True, eq=False)
class MemoryRequest:
    """The memory needs of clips, in each of `num_shards` shards of an epoch.

    Chooses the last six of `settings`, with `num_cursors` and `shuffle_buffer` as bounds unless
    `None`. `frames_in_memory` frames of each group may stay in memory if they all fit. Errors have
    `url`, and `what` as the user of the memory.
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

    def plan_memory(self, memory_limit: int) -> MemoryPlan:
        """The best settings within `memory_limit` bytes for arenas, batches and chunks in flight.

        Raises `MemoryLimitError` with the smallest sufficient limit.
        """
        order = find_order(self.settings.order)
        if values := order.settings(self.settings.batch_size or 1, self.stats.spec.stride):
            given, what = replace(self.settings, **values), self.what.replace("clips", order.name)
            return self.plan_given(given, memory_limit, what)
        best: MemoryPlan | None = None
        ways = self.sizes.ways_to_spend(memory_limit, self.least_held, self.what, self.url)
        for prefetch, loads, arena, max_held in ways:
            found = MemoryPlan(self.settings, self.sizes, arena, prefetch, loads).with_all(
                self.frames_in_memory
            )
            stats = replace(self.stats, in_memory=found.in_memory is not None)
            request = replace(self, stats=stats)
            fitted = request.default_settings(max_held, arena)
            if stats.in_memory and self.num_shards > 1 and fitted.shuffle:
                fitted = replace(fitted, run_frames=self._run_of_shards, num_shares=1)
            limited, of_memory = None, False
            if self.num_cursors is None:
                limited, of_memory = replace(request, settings=fitted).mixing_limit(max_held)
            if best is None or fitted.num_cursors > best.settings.num_cursors or not of_memory:
                resident = tuple(resident_bounds(stats, fitted)) if stats.any_clips else None
                best = replace(
                    found, settings=fitted, resident=resident, limited=limited, of_memory=of_memory
                )
            if not of_memory:
                break
        assert best is not None
        return best

    def plan_given(
        self, settings: PlanSettings, memory_limit: int, what: str = "the order of the saved state"
    ) -> MemoryPlan:
        """The memory for explicit settings, such as the settings of a saved state.

        Raises `MemoryLimitError` with the smallest sufficient limit.
        """
        resident = tuple(resident_bounds(self.stats, settings))
        held = self.sizes.held(resident)
        ways = self.sizes.ways_to_spend(memory_limit, held, what, self.url)
        prefetch, loads, arena, _ = ways[0]
        most = resident if self.stats.any_clips else None
        return MemoryPlan(settings, self.sizes, arena, prefetch, loads, most).with_all(
            self.frames_in_memory
        )

    @property
    def least_limit(self) -> int:
        """The smallest memory limit for which `plan_memory` finds settings, in bytes."""
        return self.least_held + self.sizes.beside_arena(1, 1)

    @property
    def limit_to_mix(self) -> int:
        """The smallest memory limit that mixes batches well, in bytes."""
        return min(self._held_to_mix) + self.sizes.beside_arena(1, 1)

    @property
    def limit_to_stay(self) -> int:
        """A memory limit with which `frames_in_memory` frames stay, in bytes."""
        sizes = self.sizes.of_staying
        beside = self.sizes.beside_arena(PREFETCH, 0) + sizes.chunk
        return sizes.held(self.frames_in_memory) + _STAYING * sum(self.frames_in_memory) + beside

    @property
    def wanted_limit(self) -> int:
        """A memory limit that mixes batches well and prefetches `PREFETCH` of them, in bytes.

        It has as many cursors as `MOST_OF_RANK` allows.
        """
        chunk, beside = self.sizes.chunk, self.sizes.beside_arena(PREFETCH, 0)
        found = []
        for held in self._held_to_mix:
            nbytes = ceil(held * AHEAD) + beside
            loads = max(chunk, min(MAX_LOADS * chunk, nbytes // (LOADS_SHARE - 1)))
            found.append(nbytes + loads)
        return next((limit for limit in found if limit <= MOST_OF_RANK), min(found))

    @property
    def least_held(self) -> int:
        """The smallest number of bytes of frames: of one cursor or, shuffled, of `num_cursors`."""
        return self._by_cursor(1) * (self.num_cursors or 1 if self.settings.shuffle else 1)

    def default_settings(self, max_held: int, max_arena: int) -> PlanSettings:
        """The settings, with the last five derived from the size of an arena.

        First the cursors: two for each clip of a batch, so that the next batch comes from other
        ones, as far as `max_held` bytes of frames allow, and as repeated reads at cuts stay below
        `REREAD_BY_CURSORS` of the epoch. If this mixes batches badly, repeated reads may reach
        `MOST_REREAD`. There are always at least `LEAST_CURSORS`, or as many as episodes of one
        length. An explicit `num_cursors` is kept. If frames stay, extra cursors inside the shares
        cost nothing.

        If such a batch would have fewer episodes than in a full shuffle of the shard, the shard is
        one round of a single cursor, if it fits.

        Then blocks as long as `shuffle_buffer` clips per round (`None`: any number) and `max_held`
        allow, with room in `max_arena` bytes for the loads of the next round. The first round has
        at most `FIRST_ROUND` clips, or as many as a batch needs to be mixed.

        A shard of at most `FIRST_ROUND` clips is also one round, which reads nothing twice.
        `max_held` is at least `least_held`.
        """
        stats, settings, given = self.stats, self.settings, self.num_cursors
        if not settings.shuffle:
            return self._unshuffled(max_held)
        block, share = stats.whole_block(self.num_shards), -(-stats.num_clips // self.num_shards)
        buffer = min(self.shuffle_buffer or MOST_CLIPS, MOST_CLIPS)  # clips of a round
        fits = share <= buffer and self._by_cursor(block) <= max_held
        if given is None and fits and share <= FIRST_ROUND:
            return _one_cursor(settings, block)
        cursors = self._default_cursors(buffer, max_held) if given is None else given
        # A round of a whole shard reads nothing twice, and has more episodes than too few cursors.
        if given is None and fits and cursors < self._episodes_per_shard:
            return _one_cursor(settings, block)
        return self._shuffled(cursors, buffer, max_held, max_arena)

    def _unshuffled(self, max_held: int) -> PlanSettings:
        """The settings without a shuffle: one cursor, in blocks of `LEAST_BLOCK` clips or more."""
        sizes, least = _block_sizes(self.stats), max(self.settings.batch_size or 1, LEAST_BLOCK)
        enough = bisect_left(sizes, least * self.stats.spec.stride)
        tried = sizes[: enough + 1][::-1]  # the sufficient one, then smaller ones
        block = next((n for n in tried if self._by_cursor(n) <= max_held), 1)
        return _one_cursor(self.settings, block)

    def _default_cursors(self, buffer: int, max_held: int) -> int:
        """The number of cursors; see `default_settings`."""
        stats, spec, span = self.stats, self.stats.spec, self.stats.window.span
        shortest = _block_sizes(stats)[0]
        wanted = min(2 * max(self.settings.batch_size or 1, ENOUGH_CURSORS), buffer)
        if spec.stride >= span:  # else chunks wait for clips of later rounds
            wanted = min(wanted, max(LEAST_CURSORS, buffer * spec.stride // shortest))
        wanted = max(1, min(wanted, max_held // self._by_cursor(shortest)))
        if stats.in_memory:  # anywhere, but not closer to each other than two clips
            share = -(-stats.num_clips // self.num_shards)
            return max(1, min(wanted, share * spec.stride // (2 * span)))
        cursors = min(wanted, self._affordable_cursors(wanted))
        # Where a batch has several clips of a cursor, rather fewer cursors with longer blocks.
        for fewer, _ in self._ways_to_mix:
            number = min(cursors, fewer)
            length = self._block_to_mix(number)
            if number * self._by_cursor(length) <= max_held:
                return max(number, cursors if length == shortest else 0)
        return cursors

    def _shuffled(self, cursors: int, buffer: int, max_held: int, max_arena: int) -> PlanSettings:
        """The settings for a number of cursors: blocks and runs; see `default_settings`."""
        stats, num_shards, stride = self.stats, self.num_shards, self.stats.spec.stride
        share = -(-stats.num_clips // num_shards)
        usual = -(-share * stride // cursors) + stats.window.span  # frames that a cursor walks
        longest = -(-stats.whole_block() // (num_shards * cursors))
        apart = self._apart(cursors)
        first = max(FIRST_ROUND * stride // cursors, apart)
        if apart > 1 and usual < 2 * first:  # the rest would be too short
            first = max(first, stats.whole_block())

        def has_room(tried: int) -> bool:
            held, needed = self._by_cursor(tried), self._block_to_mix(cursors)
            if cursors * held > max_held or tried <= needed:
                return cursors * held <= max_held
            # Of chunks that are loaded for a few clips, more clips need no more memory.
            return (
                (2 * cursors * held <= max_arena or held <= self._by_cursor(needed))
                and cursors * tried <= buffer * stride
                and tried < 2 * longest
            )

        # The first that does not fit, in steps of which each halves the rest.
        sizes = _block_sizes(stats)
        count = bisect_left(sizes, True, key=lambda tried: not has_room(tried))
        size = sizes[count - 1] if count else 1
        left, run = REREAD - stats.reread(cursors, num_shards), None
        if usual < stats.longest_episode and left > 0:  # else cursors are in different episodes
            cut = stats.cut_frames if stats.reread_by_one(num_shards) else 0
            run = max(usual, round(cut / left))
        return replace(
            self.settings,
            num_cursors=cursors,
            block_frames=size,
            run_frames=run,
            first_block_frames=min(first, size),
            num_shares=1 if stats.in_memory else None,
        )

    def mixing_limit(self, max_held: int) -> tuple[str | None, bool]:
        """The reason why complete settings do not mix batches well, and whether it is memory.

        `(None, False)` if they do.
        """
        stats, settings, num_shards = self.stats, self.settings, self.num_shards
        if not stats.num_clips:  # the rest of a segment that has returned all
            return None, False
        if settings.num_shares is not None and num_shards > 1:
            return self._limit_of_shards, False
        cursors, enough = settings.num_cursors, self._enough_cursors
        in_one_round = settings.first_block_frames >= stats.whole_block(num_shards)
        is_apart = settings.block_frames >= self._apart(cursors)
        if not settings.shuffle or in_one_round or (cursors >= enough and is_apart):
            return None, False
        why = f" where {enough} are wanted"
        if cursors >= enough:
            why = ", which are too close to each other"
        found = f"clips are mixed from {counted(cursors, 'place')} at a time{why}"
        if cursors == 1 < enough:
            found += ", so the epoch is nearly sequential"
        if (needed := min(self._held_to_mix)) > max_held:
            room = f"memory_limit leaves room for {format_size(max_held)} of frames"
            return f"{found}: {room}, {format_size(needed)} are needed", True
        reread = stats.reread(enough, num_shards)
        shards = f"in {num_shards} shards of so short an epoch"
        return f"{found}: {shards} these would read {reread:.0%} of it twice", False

    @property
    def _held_to_mix(self) -> list[int]:
        """Bytes of frames for each affordable way to mix batches well; most cursors first."""
        if not (self.settings.shuffle and find_order(self.settings.order).is_mixed):
            return [self.least_held]
        every = self._ways_to_mix
        ways = [way for way in every if way[0] <= self._affordable_cursors(way[0])]
        whole = self.stats.whole_cursors(self.num_shards)
        if whole >= every[-1][0]:  # these read nothing twice
            ways.append((whole, self._block_to_mix(whole)))
        ways = ways or [(1, self.stats.whole_block(self.num_shards))]
        return [n * self._by_cursor(block) for n, block in ways]

    @property
    def _run_of_shards(self) -> int | None:
        """The number of frames per cut of runs if frames stay in several shards.

        A shard has `CUTS_PER_CLIP` cuts for each clip of a batch, or as many as episodes, as far
        as these decode at most `MOST_REREAD` twice.
        """
        stats, num_shards = self.stats, self.num_shards
        again = max(0, stats.window.span - stats.spec.stride)  # frames that two runs share
        behind = 0 if stats.cuts_anywhere else max(stats.keyframes, stats.largest_chunk) // 2
        left = MOST_REREAD * stats.num_frames - (num_shards - 1) * (again + behind)
        size = self.settings.batch_size or ENOUGH_CURSORS
        cuts = num_shards * min(stats.num_episodes, CUTS_PER_CLIP * size)
        cuts = min(cuts, int(left / again)) if again else cuts
        # Large batches on many shards want more cuts than a small dataset has frames.
        return max(1, stats.num_frames // cuts) if cuts > 0 else None

    @property
    def _limit_of_shards(self) -> str | None:
        """The reason if batches of shards whose frames stay have few of all episodes."""
        stats, num_shards, size = self.stats, self.num_shards, self.settings.batch_size
        size, run = size or ENOUGH_CURSORS, self.settings.run_frames or stats.num_frames
        runs = stats.num_episodes + stats.num_frames // max(run, stats.keyframes, 1)
        some = min(stats.num_episodes, max(1, runs // num_shards))
        found, full = (_episodes_in_batch(number, size) for number in (some, stats.num_episodes))
        if found >= ENOUGH_OF_ALL * full:
            return None
        return (
            f"each of {num_shards} shards has clips of about {some} of {stats.num_episodes} "
            f"episodes: {found:.1f} in a batch of {size}, where a shuffle of all has {full:.1f}"
        )

    @property
    def _episodes_per_shard(self) -> float:
        """Expected number of episodes in a batch of a fully shuffled shard."""
        episodes = 1 + (self.stats.num_episodes - 1) / self.num_shards
        return _episodes_in_batch(episodes, self.settings.batch_size or 1)

    @property
    def _enough_cursors(self) -> int:
        """The number of cursors that mix a batch well: about its number of episodes in a full
        shuffle.
        """
        size, episodes = self.settings.batch_size or ENOUGH_CURSORS, max(1, self.stats.num_episodes)
        found = ENOUGH_EPISODES * _episodes_in_batch(episodes, size)
        enough = max(min(size, ENOUGH_CURSORS), ceil(found))
        return min(enough, -(-self.stats.num_clips // self.num_shards))

    @property
    def _ways_to_mix(self) -> list[tuple[int, int]]:
        """Pairs of cursors and block length that mix a batch well; most cursors first.

        Either each clip of a batch comes from another cursor, or blocks are long enough for
        several.
        """
        size, enough = self.settings.batch_size or 1, self._enough_cursors
        each = [max(enough, ceil(size / CLOSE))]
        each += [max(enough, -(-size // number)) for number in range(2, MOST_OF_A_BLOCK + 1)]
        return [(number, self._block_to_mix(number)) for number in dict.fromkeys(each)]

    def _block_to_mix(self, cursors: int) -> int:
        """The block length in frames with which this number of cursors mixes a batch well."""
        return max(_block_sizes(self.stats)[0], self._apart(cursors))

    def _apart(self, cursors: int) -> int:
        """The block length in frames at which a batch's clips of one block do not overlap."""
        size = self.settings.batch_size or 1
        if size <= CLOSE * cursors:
            return 1
        return min(-(-size // cursors), MOST_OF_A_BLOCK) * self.stats.window.span

    def _affordable_cursors(self, wanted: int) -> int:
        """The number of cursors, at most `wanted`, that repeated reads allow."""
        stats, num_shards = self.stats, self.num_shards
        enough = self._enough_cursors
        cost, always = stats.reread_by_one(num_shards), stats.reread_by_shards(num_shards)

        def within(share: float) -> int:
            if cost * wanted + always <= share or not cost:  # more shards cost no less
                return wanted
            return max(0, int((share - always) / cost))

        whole = stats.whole_cursors(num_shards)
        whole = whole if whole <= wanted else 0
        share = MOST_REREAD if num_shards <= MANY_SHARDS else MOST_REREAD_IN_MANY
        if stats.keyframes:  # shorter shares than that could not begin at keyframes
            shortest = 2 * -(-stats.most_keyframes // stats.spec.stride) + 1
            wanted = max(1, min(wanted, stats.num_clips // (num_shards * shortest)))
        affordable = max(within(REREAD_BY_CURSORS), min(enough, within(share)), LEAST_CURSORS)
        return max(affordable, whole, min(wanted, stats.pass_cursors(num_shards)))

    def _by_cursor(self, block_frames: int) -> int:
        """The greatest bytes of frames per cursor with blocks of this length; at least 1."""
        tried = replace(self.settings, block_frames=block_frames, first_block_frames=block_frames)
        return max(1, self.sizes.held(cursor_bounds(self.stats, tried)))


def _episodes_in_batch(episodes: float, size: int) -> float:
    """Expected number of episodes in a batch of `size` clips of episodes of one length."""
    return episodes * (1 - (1 - 1 / episodes) ** size)


def _one_cursor(settings: PlanSettings, block: int) -> PlanSettings:
    """Settings of one cursor with constant blocks and no cuts."""
    return replace(
        settings, num_cursors=1, block_frames=block, run_frames=None, first_block_frames=block
    )


def _block_sizes(stats: ClipStats) -> list[int]:
    """Candidate block lengths in frames, ascending.

    They are multiples of half a clip: shorter steps save little memory, because clips stay whole,
    and in the same memory more cursors beat longer blocks (measured by
    benchmarks/tartanair/shuffle_quality.py). If clips do not overlap: multiples of a chunk, so that
    a round uses whole chunks.
    """
    half = max(1, stats.window.span // 2)
    if stats.spec.stride >= stats.window.span:
        half = max(half, stats.largest_chunk)
    most = max(half, stats.whole_block())
    return [half * n for n in _FACTORS[: bisect_left(_FACTORS, -(-2 * most // half))]]
