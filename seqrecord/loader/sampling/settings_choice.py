"""The settings of an epoch, and the memory that it needs, within a limit. Pure integers.

Settings determine the order of clips, so they depend on the arguments only, not on the machine. Of
all divisions of the limit, the one with most cursors is taken: they mix batches best, see
`share_settings`. Frames that may stay in memory do if all fit; small ones are then permuted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.tables import EpisodeLayout
from seqrecord.loader.sampling.cursor_shares import EpisodeSequence, leading, num_used
from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.epoch_rows import frame_groups
from seqrecord.loader.sampling.frame_sizes import (
    AHEAD,
    MOST_OF_RANK,
    PREFETCH,
    STAYING,
    USUAL_LIMIT,
    FrameSizes,
    MemoryDivision,
)
from seqrecord.loader.sampling.frame_uses import SampleFrames
from seqrecord.loader.sampling.orders import find_order
from seqrecord.loader.sampling.plan_settings import WHOLE, PlanSettings
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Window
from seqrecord.loader.sampling.share_orders import EpochKey, order_of_shard
from seqrecord.loader.sampling.share_settings import (
    MOST_REREAD,
    UNLIMITED,
    CursorWalk,
    ShareRequest,
    ShareSettings,
)
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.text import counted
from seqrecord.store.units import format_size

_ENOUGH_EPISODES = 0.85  # of a full shuffle's
_MUCH_REREAD = 0.1  # of frames that are decoded twice
_COUNTED_BATCHES = 32
_LEAST_BLOCK = 32  # rows of an unshuffled round


@dataclass(frozen=True)
class EpochMemory:
    """The settings of an epoch, and its memory.

    Attributes:
        settings: of the plan.
        division: of the memory limit.
        limited: the reason if batches are not mixed well.
    """

    settings: PlanSettings
    division: MemoryDivision
    limited: str | None = None

    @property
    def stays(self) -> bool:
        """Whether all frames stay in memory."""
        return self.division.in_memory is not None


@dataclass(frozen=True, eq=False)
class SettingsRequest:
    """What the settings and the memory of an epoch, or of its rest, depend on.

    Attributes:
        rows: the rows of the epoch.
        episodes: tables of the groups.
        windows: of the groups.
        finders: functions that find the frames of clips in each group, if clips list theirs.
        settings: the requested settings, of which others than the last seven are kept.
        sizes: of frames, loads and batches.
        num_ranks: number of ranks.
        num_workers: workers of a rank, at least 1.
        num_cursors: upper bound of the number of cursors.
        shuffle_buffer: upper bound of the rows of a round.
        are_small: whether to keep frames costs less than to load them again: then epochs are
            permuted, if the frames fit.
        reads_chunks: whether frames that decode alone are read with their chunk.
        what, url: the user of the memory, for messages.
    """

    rows: RowTable
    episodes: EpisodeLayout
    windows: Sequence[Window]
    finders: Sequence[SampleFrames] | None
    settings: PlanSettings
    sizes: FrameSizes
    num_ranks: int = 1
    num_workers: int = 1
    num_cursors: int | None = None
    shuffle_buffer: int | None = None
    are_small: bool = False
    reads_chunks: bool = False
    what: str = "these clips"
    url: str = ""

    @property
    def num_shards(self) -> int:
        return self.num_ranks * self.num_workers

    @property
    def _has_bounds(self) -> bool:
        return self.num_cursors is not None or self.shuffle_buffer is not None

    @cached_property
    def _groups(self) -> list[FrameGroup]:
        groups = frame_groups(self.episodes, self.windows, self.sizes.frames)
        if self.reads_chunks:
            groups = [replace(group, reads_chunks=True) for group in groups]
        if self.finders is None or not len(self.rows):
            return groups
        first = np.zeros(1, np.int64)
        clips = ClipKeys(*self.rows.locate(first), self.rows.samples(first), first)
        return [
            replace(group, find=find, num_listed=find(clips).shape[1])
            for group, find in zip(groups, self.finders, strict=True)
        ]

    # ---- settings

    def choose(
        self, limit: int, frames: Sequence[int], all_frames: Sequence[int] = ()
    ) -> EpochMemory:
        """The settings and the memory within `limit` bytes; `frames` frames of each group may stay
        in memory, or `all_frames` of all shards.

        Raises `MemoryLimitError` with the smallest sufficient limit.
        """
        best: EpochMemory | None = None
        for division, room in self._divisions(limit):
            chosen, is_limited = self._chosen(division, room, frames, all_frames)
            if best is None or chosen.settings.num_cursors > best.settings.num_cursors:
                best = chosen
            if not is_limited:
                break
        assert best is not None
        return best

    def keep(self, settings: PlanSettings, limit: int, frames: Sequence[int]) -> EpochMemory:
        """The memory for the settings of a saved state. Frames that may not stay in this loader are
        decoded again.

        Raises `MemoryLimitError` with the smallest sufficient limit.
        """
        for division, _ in self._divisions(limit):
            staying = division.with_all(frames)
            if staying.in_memory is not None:
                return EpochMemory(settings, staying)
            if not (settings.keeps_frames and any(frames)):
                return EpochMemory(settings, self._with_frames(division, settings))
        least = self._held_to_stay(frames)
        self.sizes.of_staying.divisions(limit, least, self.what, self.url)  # raises
        raise AssertionError("a limit that suffices")

    def _divisions(self, limit: int) -> list[tuple[MemoryDivision, int]]:
        least = self.sizes.held(self._frames_of_row)
        return self.sizes.divisions(limit, least, self.what, self.url)

    def _chosen(
        self, division: MemoryDivision, room: int, frames: Sequence[int], all_frames: Sequence[int]
    ) -> tuple[EpochMemory, bool]:
        """The settings for a division with `room` bytes of frames, and whether more memory would
        mix better.
        """
        staying, settings = division.with_all(frames), self.settings
        if find_order(settings.order).has_rows:
            settings = replace(settings, num_cursors=settings.batch_size or 1, block_rows=1)
            return self._settled(settings, staying), False
        if not settings.shuffle:
            return self._settled(self._in_order(room), staying), False
        if (permuted := self._permuted(division, all_frames)) is not None:
            return permuted, False
        stays = staying.in_memory is not None
        shares, most = (self._choice(nbytes, stays=stays) for nbytes in (room, UNLIMITED))
        settings, limited = self._settings(shares, stays=stays), None
        is_limited = most.num_cursors > shares.num_cursors
        is_one_block = self.num_shards * shares.num_cursors == 1
        if is_one_block and shares.block_rows >= len(self.rows) and not self._has_bounds:
            # Blocks have few orders. All frames have rows: none is decoded twice.
            return self._settled(replace(settings, is_permuted=True), staying), is_limited
        if not self._has_bounds:
            limited = self._notice(shares, settings, most if is_limited else None)
        return replace(self._settled(settings, staying), limited=limited), is_limited

    def _permuted(self, division: MemoryDivision, all_frames: Sequence[int]) -> EpochMemory | None:
        """The settings of permuted epochs, of small frames that all stay: each shard permutes the
        rows of all.
        """
        if self._has_bounds:
            return None
        of_all = division.with_all(all_frames) if self.are_small else division
        if of_all.in_memory is None:
            return None
        return self._settled(replace(self.settings, is_permuted=True), of_all)

    def _settled(self, settings: PlanSettings, division: MemoryDivision) -> EpochMemory:
        if division.in_memory is None:
            division = self._with_frames(division, settings)
        return EpochMemory(settings, division)

    def _in_order(self, room: int) -> PlanSettings:
        """The settings of an unshuffled epoch: blocks of `_LEAST_BLOCK` rows or a batch, as far as
        memory allows.
        """
        block = max(self.settings.batch_size or 1, _LEAST_BLOCK)
        while block > 1 and self.sizes.held(self._walked(1, block)) > room:
            block //= 2
        return self._settings(ShareSettings(1, block))

    @cached_property
    def _requests(self) -> dict[bool, ShareRequest]:
        """What shares depend on, of frames that are freed and of others."""
        freed = ShareRequest(
            self.rows,
            self._groups,
            self.settings.batch_size or 1,
            self.num_ranks,
            self.num_workers,
            max_cursors=self.num_cursors,
            max_round_rows=self.shuffle_buffer,
        )
        return {False: freed, True: replace(freed, keeps_frames=True)}

    def _choice(self, room: int, *, stays: bool) -> ShareSettings:
        if not len(self.rows):
            return ShareSettings(1, 1)
        return self._requests[stays].choose(room)

    def _settings(self, shares: ShareSettings, *, stays: bool = False) -> PlanSettings:
        return replace(
            self.settings,
            num_cursors=shares.num_cursors,
            block_rows=shares.block_rows,
            aligned=round(shares.aligned * WHOLE),
            rotation=shares.rotation,
            group=self._groups.index(leading(self._groups)),
            is_resident=stays and self.settings.shuffle,
        )

    # ---- frames

    @cached_property
    def _all_frames(self) -> tuple[int, ...]:
        """The frames of each group that rows need, about."""
        if not len(self.rows):
            return (1,) * len(self._groups)
        return tuple(num_used(self.rows, group) for group in self._groups)

    @cached_property
    def _frames_of_row(self) -> tuple[int, ...]:
        """The most frames of each group in one row."""
        frames = []
        for group in self._groups:
            lengths = group.num_frames[self.rows.episode]
            frames.append(int(min(group.row_frames, lengths.max(initial=1))))
        return tuple(frames)

    @cached_property
    def _walks(self) -> list[CursorWalk]:
        """A walk of each group, which counts frames."""
        sequence = EpisodeSequence.in_order(self.rows)
        if self.settings.shuffle:
            sequence = EpisodeSequence.shuffled(self.rows, 0)
        groups = [replace(group, nbytes=1, decoder_bytes=0) for group in self._groups]
        return [CursorWalk(sequence, [group]) for group in groups]

    def _walked(self, num_cursors: int, block: int) -> tuple[int, ...]:
        """The frames of each group that cursors have, with those of chunks that are decoded
        whole.
        """
        if not len(self.rows):
            return (1,) * len(self._groups)
        counts = []
        for group, walk, used in zip(self._groups, self._walks, self._all_frames, strict=True):
            frames = walk.total(num_cursors, block)
            frames += num_cursors * (group.num_together(self.rows.episode) - 1)
            counts.append(max(1, min(frames, used)))
        return tuple(counts)

    def _with_frames(self, division: MemoryDivision, settings: PlanSettings) -> MemoryDivision:
        """The division with the frames of each group that cursors have; with equal parts of them if
        the arenas have fewer bytes.
        """
        sizes, arena = self.sizes, division.max_arena
        frames = self._walked(settings.num_cursors, settings.block_rows)
        if settings.is_permuted:
            frames = tuple(map(max, self._all_frames, frames))
        if sizes.held(frames) > arena:
            least = self._frames_of_row
            room = max(0, arena - sizes.held(least))
            more = [max(0, count - few) for count, few in zip(frames, least, strict=True)]
            held = max(1, sizes.held(more))
            pairs = zip(least, more, strict=True)
            frames = tuple(few + one * room // held for few, one in pairs)
        return replace(division, frames=frames)

    # ---- limits

    @property
    def least_limit(self) -> int:
        """The smallest memory limit for which `choose` finds settings, in bytes."""
        return self.sizes.held(self._frames_of_row) + self.sizes.beside_arena(1, 1)

    @cached_property
    def wanted_limit(self) -> int:
        """A memory limit that mixes batches well and prefetches `PREFETCH` of them, in bytes; as
        many as `MOST_OF_RANK` allows.
        """
        if not self.settings.shuffle or not find_order(self.settings.order).is_mixed:
            return self.least_limit
        beside = self.sizes.beside_arena(PREFETCH, 1)
        nbytes = ceil(self.sizes.held(self._all_frames) * AHEAD) + beside
        if nbytes > USUAL_LIMIT:  # else as good as less
            nbytes = ceil(self._room_of_most * AHEAD) + beside
        return min(MOST_OF_RANK, nbytes)

    @cached_property
    def _room_of_most(self) -> int:
        """The bytes of frames with which cursors are not limited by memory."""
        if not len(self.rows):
            return 0
        most = self._choice(UNLIMITED, stays=False).num_cursors
        return self._requests[False].least_room(most)

    @property
    def limit_to_mix(self) -> int:
        """The smallest memory limit that mixes batches well, in bytes."""
        return self._room_of_most + self.sizes.beside_arena(1, 1)

    def limit_to_stay(self, frames: Sequence[int]) -> int:
        """A memory limit with which `frames` frames of each group stay in memory, in bytes."""
        return self._held_to_stay(frames) + self.sizes.of_staying.beside_arena(PREFETCH, 1)

    def _held_to_stay(self, frames: Sequence[int]) -> int:
        """The bytes of `frames` frames of each group that stay in memory."""
        rows = [max(count, 1) for count in frames]
        return self.sizes.of_staying.held(rows) + STAYING * sum(rows)

    # ---- notices

    def _notice(
        self, shares: ShareSettings, settings: PlanSettings, most: ShareSettings | None
    ) -> str | None:
        """The reason if batches have few of all episodes, or many frames are decoded twice; `most`
        are settings with enough memory, if these have more cursors.
        """
        size, rows, count = settings.batch_size or 1, self.rows, self.num_shards
        if not len(rows):
            return None
        group = self._groups[settings.group]
        key = EpochKey(settings.seed, 0)
        order = order_of_shard(rows, [group], shares, key, 0, count, size)
        whole = order.num_rows // size
        if not whole:
            return None
        begins = np.unique(np.linspace(0, whole - 1, _COUNTED_BATCHES).astype(np.int64)) * size
        numbers = [
            len(np.unique(rows.locate(order.rows(begin, begin + size))[0]))
            for begin in begins.tolist()
        ]
        number = float(np.mean(numbers))
        parts = np.bincount(rows.episode, rows.count) / len(rows)
        full = float((1 - (1 - parts) ** size).sum())
        # More cursors than clips of two batches would not have more episodes.
        if number >= _ENOUGH_EPISODES * full or shares.num_cursors >= 2 * size:
            if shares.reread <= _MUCH_REREAD:
                return None
            return (
                f"{shares.reread:.0%} of the frames are decoded twice, where clips of "
                f"{counted(count, 'shard')} begin: shorter groups of pictures (gop=), shorter "
                "clips or fewer shards decode less"
            )
        why = f"more cuts would decode over {MOST_REREAD:.0%} of the frames twice"
        remedy = "shorter clips or fewer shards mix better"
        begin, stop = group.units(rows.episode, group.first(rows.episode, rows.start))
        unit_frames = int((stop - begin).max())
        if most is not None:
            nbytes = self.limit_to_mix
            why = f"memory_limit leaves no room for {most.num_cursors} places"
            remedy = f"a memory_limit of {nbytes} ({format_size(nbytes)}), or shorter clips"
            remedy += ", would do"
        elif unit_frames > max(1, group.span - rows.stride):
            remedy = f"shorter groups of pictures mix better (gop=), here of {unit_frames}"
        return (
            f"clips are mixed from {counted(shares.num_cursors, 'place')} at a time in each of "
            f"{counted(count, 'shard')}: {number:.1f} episodes in a batch of {size}, where a "
            f"shuffle of all has {full:.1f}; {why}: {remedy}"
        )
