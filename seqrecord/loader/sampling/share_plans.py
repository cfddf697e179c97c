"""`order="shares"`: the order of `share_orders`, executed as plans of cursors.

A temporary adapter, undocumented: the engine executes a `Plan`, until it executes rows. The pieces
of a shard are the runs of a plan, the rounds of `CursorRounds` are its rounds, and rows its clips::

    share_orders        pieces     rows before each round     rows in emitted order
                          |                   |                         |
    plan                 runs        first clips of blocks            clips
                          |___________________|
                      loads and frees, see `cursors`

Frames that stay in memory are read in this order in epoch 0, and their rows are permuted in later
epochs; those of small frames in each epoch. With `last_batch="repeat"`, a shard with one row less
than others repeats its last one.

`PlanSettings` have the settings of shares: `block_frames` is the rows of a block, `num_shares` the
number of the group, from 1, whose units begins align with, and `run_frames` how many of 2^20 begins
do, from 1. They are `None` if each epoch is a permutation of its rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from seqrecord.errors import ClipError, MemoryLimitError, StateError
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.rules import Rule
from seqrecord.loader.sampling.bounds import EpochSegment, PlanSettings
from seqrecord.loader.sampling.budgets import ClipCosts
from seqrecord.loader.sampling.cursor_shares import leading
from seqrecord.loader.sampling.cursors import Blocks, CursorSchedule
from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.epoch import check_drop_last
from seqrecord.loader.sampling.fixed_shards import ShuffledPlan, num_shuffled_rounds
from seqrecord.loader.sampling.memory import Memory, MemoryPlan, MemoryRequest
from seqrecord.loader.sampling.plan import Clips, MakePlan, Plan, PlannedOrder
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.loader.sampling.runs import Runs, Shard, Window
from seqrecord.loader.sampling.shard_batches import BatchDraws
from seqrecord.loader.sampling.share_orders import (
    EpochKey,
    PermutedOrder,
    RowOrder,
    SharedOrder,
    order_of_shard,
)
from seqrecord.loader.sampling.share_rounds import CursorRounds
from seqrecord.loader.sampling.share_settings import MOST_REREAD, ShareRequest, ShareSettings
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import ragged_arange
from seqrecord.store.text import counted, repr_of
from seqrecord.store.units import format_size

_ALIGNED_PARTS = 1 << 20
_BLOCKS_AT_ONCE = 1 << 18  # whose frames are counted together
_SPARE = 8  # one part in so many of epoch 0's frames: other epochs may need a little more
_ENOUGH_EPISODES = 0.85  # of a full shuffle's
_MUCH_REREAD = 0.1  # of frames that are decoded twice
_COUNTED_BATCHES = 32


class SharesPlan(Plan):
    """The plan of one shard in one epoch, whose cursors read shares of it."""

    def _lay_out(self, table: ClipTable, segment: int) -> None:
        groups = frame_groups(self._episodes, self._windows)
        self._table, order = _rows_of(self, table, segment, groups)
        self._share_rounds = order.rounds if isinstance(order, SharedOrder) else None
        cursor = none = np.zeros(0, np.int64)
        runs = Runs(table.spec.stride, none, none, none, none, none)
        if self._share_rounds is not None:
            runs = _runs_of(self._table, self._share_rounds)
            cursor = self._share_rounds.pieces.cursor[runs.run]
        place = self._episodes, self._windows
        self._cursors: _ShareCursors = _ShareCursors(runs, cursor, *place, self._share_rounds)
        self.num_cursors = self._cursors.count
        of_rows = self.num_clips - self.num_repeated
        before = np.minimum(self._cursors.clips_before_rounds(), of_rows)
        self.num_rounds = int(np.searchsorted(before, of_rows))
        self._before = before[: self.num_rounds + 1]
        self._before[-1] = self.num_clips
        self._cursors.end_before(self.num_rounds)
        self._resident_of_cursors = self._cursors.most_frames()
        self._resident = self._resident_of_cursors.sum(axis=1).tolist()

    def _in_order(self, blocks: Blocks) -> tuple[Blocks, IntArray]:
        order = np.lexsort((blocks.cursor, blocks.round))
        return blocks.take(order), blocks.cursor[order]

    def _clips(self, blocks: Blocks, position: IntArray) -> Clips:  # noqa: ARG002
        if self._share_rounds is None or not len(blocks):
            return Clips(*[np.zeros(0, np.int64)] * 9)
        start, stop = int(blocks.round[0]), int(blocks.round[-1]) + 1
        emitted = self._share_rounds.rows(start, stop)
        number = np.arange(self._before[start], self._before[stop])
        # Without the rows that are dropped, or with the last one once more.
        index = np.minimum(number - self._before[start], len(emitted) - 1)
        row, piece = emitted.row[index], emitted.piece[index]
        pieces = self._share_rounds.pieces
        of_runs = pieces.cursor[piece], piece, *self._table.locate(row)
        of_batches = *self.batches.find(number), self._places(number)
        in_cursors = pieces.begins[piece] + row - pieces.first[piece]
        return Clips(*of_runs, *of_batches, self._table.samples(row), in_cursors)


class PermutedSharesPlan(ShuffledPlan):
    """The plan of one shard in one epoch that is a permutation of rows; see `ShuffledPlan`."""

    def _lay_out(self, table: ClipTable, segment: int) -> None:
        groups = frame_groups(self._episodes, self._windows)
        rows, self._order_of_rows = _rows_of(self, table, segment, groups)
        of_runs = rows.episode, rows.start, rows.count, rows.owner, rows.sample
        self._mine = Runs(rows.stride, *of_runs, rows.sample_step)
        self.num_rounds = num_shuffled_rounds(self.num_clips)
        self.num_cursors = min(1, self.num_clips)
        self._resident = [0] * len(self._windows)

    @cached_property
    def _order(self) -> IntArray:
        order = self._order_of_rows
        number = np.minimum(np.arange(self.num_clips), order.num_rows - 1)
        return order.rows(0, order.num_rows)[number]


class _ShareCursors(CursorSchedule):
    """The cursors of a shard, whose blocks are those of `rounds`; `None` without clips."""

    def __init__(
        self,
        runs: Runs,
        cursor: IntArray,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        rounds: CursorRounds | None,
    ) -> None:
        super().__init__(runs, cursor, episodes, windows)
        self._rounds = rounds
        self.num_rounds = 0 if rounds is None else rounds.num_rounds

    def first_clips(self, rounds: IntArray) -> IntArray:
        """See `CursorSchedule`."""
        if self._rounds is None:
            return np.zeros((len(rounds), 0), np.int64)
        clips: IntArray = self.begin + self._rounds.emitted(rounds[:, 0])
        return np.minimum(clips, self.end)

    def end_before(self, index: int) -> None:
        """Remove the rounds from `index` on."""
        self.end = self.first_clips(np.array([[index]]))[0]
        self._end_runs(np.minimum(self._run_last_clip, self.end[self._cursor] - 1))
        self.num_rounds = index

    def most_frames(self) -> IntArray:
        """The most frames of each group that each cursor has in a round, int64[groups, cursors]."""
        most = np.zeros((len(self._windows), self.count), np.int64)
        width = max(1, _BLOCKS_AT_ONCE // max(1, self.count))
        for start in range(0, self.num_rounds, width):
            stop = min(start + width, self.num_rounds)
            for group, blocks in enumerate(self.blocks(start, stop)):
                step = self._windows[group].frame_step
                block = (blocks.round - start) * self.count + blocks.cursor
                frames = -((blocks.loaded_before - blocks.loaded) // step)
                # The first row of a block begins with frames of the block before.
                is_first = np.diff(block, prepend=-1) != 0
                frames -= np.where(is_first, (blocks.held - blocks.loaded_before) // step, 0)
                sums = np.bincount(block, frames, (stop - start) * self.count)
                of_rounds = sums.reshape(stop - start, self.count).astype(np.int64)
                most[group] = np.maximum(most[group], of_rounds.max(axis=0))
        return most


def _rows_of(
    plan: Plan, table: ClipTable, segment: int, groups: Sequence[FrameGroup]
) -> tuple[RowTable, RowOrder]:
    """The rows of an epoch, and their order in a plan's shard; sets the plan's numbers of clips."""
    from torch.utils.data import get_worker_info

    settings, shard, total = plan.settings, plan.shard, table.num_clips
    if shard.workers > 1 or get_worker_info() is not None:
        raise ClipError(
            'order="shares" is for pipes without DataLoader workers',
            expected="num_workers=0: a pipe has threads of its own",
            got=f"{shard.workers} workers",
        )
    if not segment:
        check_drop_last(total, settings, shard.count)
    if settings.last_batch == "repeat" and 0 < total < shard.count:
        raise ClipError(
            'order="shares" has no clip for some ranks',
            expected=f'at least {shard.count} clips; or last_batch="keep"',
            got=f"{total} clips",
        )
    rows, size = RowTable.of(table), settings.batch_size or 1
    key = EpochKey(settings.seed, plan.epoch, segment)
    order: RowOrder = PermutedOrder(0, 0)
    if total:
        place = (settings.num_shares or 1) - 1
        group = groups[place]
        shares = _shares_of(settings)
        order = order_of_shard(rows, [group], shares, key, shard.index, shard.count, size)
    plan.num_repeated = 0
    plan.num_clips = order.num_rows
    if settings.last_batch == "repeat":
        plan.num_repeated = -(-total // shard.count) - order.num_rows
        plan.num_clips += plan.num_repeated
    elif settings.drops:
        plan.num_clips = total // shard.count // size * size
    plan.num_dropped = max(0, order.num_rows - plan.num_clips)
    plan.num_batches = plan.batches.count(plan.num_clips)
    return rows, order


def _runs_of(table: RowTable, rounds: CursorRounds) -> Runs:
    """The pieces of a shard as runs, a row for each run of the table in a piece."""
    pieces, ends = rounds.pieces, np.cumsum(table.count)
    stop = pieces.first + pieces.count
    low = np.searchsorted(ends, pieces.first, side="right")
    high = np.searchsorted(ends, stop - 1, side="right")
    piece, offset = ragged_arange(high - low + 1)
    run = low[piece] + offset
    first = np.maximum(pieces.first[piece], ends[run] - table.count[run])
    count = np.minimum(stop[piece], ends[run]) - first
    of_rows = *table.locate(first), count, piece, table.samples(first)
    return Runs(table.stride, *of_rows, table.sample_step)


def frame_groups(
    episodes: EpisodeLayout, windows: Sequence[Window], nbytes: Sequence[int] | None = None
) -> list[FrameGroup]:
    """The groups of a plan, whose frames have `nbytes` bytes each."""
    sizes = [1] * len(windows) if nbytes is None else nbytes
    return [
        FrameGroup(
            window.offset + np.arange(0, window.span, window.frame_step),
            episodes.num_frames,
            size,
            grid,
        )
        for window, grid, size in zip(windows, episodes.groups, sizes, strict=True)
    ]


def _shares_of(settings: PlanSettings) -> ShareSettings:
    parts = settings.run_frames
    return ShareSettings(
        settings.num_cursors,
        settings.block_frames,
        1.0 if parts is None else (parts - 1) / _ALIGNED_PARTS,
        is_resident=settings.resident,
        is_permuted=parts is None,
    )


@dataclass(frozen=True)
class _SharesMemory(MemoryPlan):
    """Memory of shares, which an epoch whose frames need more than the limit does not exceed."""

    notice_level: ClassVar[int] = logging.WARNING

    def memory(self, frames: Sequence[int]) -> Memory:
        """See `MemoryPlan`. Raises `MemoryLimitError` for too many frames."""
        if self.in_memory is None and (held := self.sizes.held(frames)) > self.max_arena:
            raise MemoryLimitError(
                "memory_limit is too small for the clips of this epoch",
                expected=f"{format_size(held - self.max_arena)} more",
                got=f"{format_size(self.max_arena)} for frames",
            )
        return super().memory(frames)


@dataclass(frozen=True, eq=False)
class _Fit:
    """The choice of settings for a memory limit; see `PlannedOrder.fit`."""

    request: MemoryRequest
    table: ClipTable
    episodes: EpisodeLayout
    windows: Sequence[Window]
    make_plan: MakePlan

    @cached_property
    def rows(self) -> RowTable:
        return RowTable.of(self.table)

    @cached_property
    def groups(self) -> list[FrameGroup]:
        return frame_groups(self.episodes, self.windows, self.request.sizes.frames)

    def plan_memory(self, limit: int, saved: PlanSettings | None, *, are_small: bool) -> MemoryPlan:
        """The settings with most cursors of all divisions of the limit."""
        best: MemoryPlan | None = None
        request, least = self.request, 0
        if limit <= request.sizes.beside_arena(1, 1):
            least = request.sizes.held(self._frames(self._settings(ShareSettings(1, 1))))
        for prefetch, loads, arena, _ in request.sizes.divisions(limit, least, *self._user):
            of_request = request.settings, request.sizes
            memory = _SharesMemory(*of_request, arena, prefetch, loads).with_all(
                request.frames_in_memory
            )
            if saved is not None:
                chosen = replace(memory, settings=saved)
            elif memory.in_memory is not None and are_small:
                settings = replace(request.settings, num_cursors=1, run_frames=None)
                chosen = replace(memory, settings=settings)
            else:
                chosen = self._chosen(memory)
            if chosen.in_memory is None:
                if _stay(chosen.settings):
                    least = request.limit_to_stay
                    continue
                frames = self._frames(chosen.settings)
                if request.sizes.held(frames) > arena:
                    least = request.sizes.held(frames)
                    continue
                chosen = replace(chosen, resident=frames)
            if best is None or chosen.settings.num_cursors > best.settings.num_cursors:
                best = chosen
            if not best.of_memory:
                break
        if best is None:
            request.sizes.divisions(limit, least, *self._user)  # raises
        assert best is not None
        return replace(best, of_memory=False)  # the notice has the limit that suffices

    @property
    def _user(self) -> tuple[str, str]:
        return self.request.what, self.request.url

    def _chosen(self, memory: MemoryPlan) -> MemoryPlan:
        """The settings for the arenas of a division."""
        sizes, stays, room = self.request.sizes, memory.in_memory is not None, memory.max_arena
        while True:
            shares = self._choice(room, stays=stays)
            settings = self._settings(shares, stays=stays)
            if stays or shares.round_rows == 1:
                break
            # Chunks that are loaded whole, and cursors with most frames at different times, need
            # more than the cursor that was walked.
            held = sizes.held(self._frames(settings))
            if held <= memory.max_arena:
                break
            room = min(room * memory.max_arena // held, room - 1 - room // 16)
        most = self._choice(1 << 62, stays=stays)
        of_memory = most.num_cursors > shares.num_cursors
        limited = None
        if self.request.num_cursors is None and self.request.shuffle_buffer is None:
            limited = self._notice(shares, settings, most if of_memory else None, memory.max_arena)
        return replace(memory, settings=settings, limited=limited, of_memory=of_memory)

    def _choice(self, room: int, *, stays: bool) -> ShareSettings:
        request = self.request
        wanted = ShareRequest(
            self.rows,
            self.groups,
            request.settings.batch_size or 1,
            request.num_shards,
            room=room,
            keeps_frames=stays,
            max_cursors=request.num_cursors,
            max_round_rows=request.shuffle_buffer,
        )
        try:
            return wanted.choose()
        except MemoryLimitError:  # the engine needs other memory, which is checked
            return ShareSettings(1, 1)

    def _settings(self, shares: ShareSettings, *, stays: bool = False) -> PlanSettings:
        return replace(
            self.request.settings,
            num_cursors=shares.num_cursors,
            block_frames=shares.block_rows,
            first_block_frames=shares.block_rows,
            run_frames=1 + round(shares.aligned * _ALIGNED_PARTS),
            num_shares=1 + self.groups.index(leading(self.groups)),
            # Several shards would keep theirs, whose frames today's planner does not count.
            resident=stays and self.request.num_shards == 1,
        )

    def _frames(self, settings: PlanSettings) -> tuple[int, ...]:
        """The frames of each group in memory: those of all shards in epoch 0, and some more.

        Of a single row in memory, the most that any has.
        """
        count = self.request.num_shards
        if settings.num_cursors * settings.block_frames == 1:
            groups = self.request.stats.groups
            spans = [(one.window.span + one.largest_chunk - 1, one.window) for one in groups]
            return tuple(-(-span // window.frame_step) for span, window in spans)
        plans = (self.make_plan(settings, Shard(index, count)) for index in range(count))
        frames = [[group.max_resident_frames for group in plan.groups] for plan in plans]
        return tuple(most + -(-most // _SPARE) for most in np.max(frames, axis=0).tolist())

    def _notice(
        self, shares: ShareSettings, settings: PlanSettings, most: ShareSettings | None, room: int
    ) -> str | None:
        """The reason if batches have few of all episodes, or many frames are decoded twice; `most`
        are settings with enough memory, if these have more cursors than those for `room` bytes.
        """
        size, rows, count = settings.batch_size or 1, self.rows, self.request.num_shards
        group = self.groups[(settings.num_shares or 1) - 1]
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
        if number >= _ENOUGH_EPISODES * full:
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
            room = max(room, 1)
            while self._choice(room, stays=False).num_cursors < most.num_cursors:
                room *= 2
            nbytes = room + self.request.sizes.beside_arena(1, 1)
            why = f"memory_limit leaves no room for {most.num_cursors} places"
            remedy = f"about {format_size(nbytes)}, or shorter clips, mix better"
        elif unit_frames > max(1, group.span - rows.stride):
            remedy = f"shorter groups of pictures mix better (gop=), here of {unit_frames}"
        return (
            f"clips are mixed from {counted(shares.num_cursors, 'place')} at a time in each of "
            f"{counted(count, 'shard')}: {number:.1f} episodes in a batch of {size}, where a "
            f"shuffle of all has {full:.1f}; {why}: {remedy}"
        )


def _stay(settings: PlanSettings) -> bool:
    """Whether plans need frames that stay in memory."""
    return settings.resident or settings.run_frames is None


class SharesOrder(PlannedOrder):
    """`order="shares"`: equal shares of a shuffled sequence of episodes."""

    name = "shares"
    keeps_shards = is_for_mixes = False
    is_for_pipes = is_cursor_bound = True
    rules: ClassVar[tuple[Rule[Any], ...]] = (
        Rule(
            lambda options: not options.shuffle,
            'order="shares" is a shuffled order',
            'shuffle=True; or order="clips"',
        ),
        Rule(
            lambda options: options.budget is not None or options.draws is not None,
            'order="shares" has batches of one size',
            "an integer batch_size and clip_len",
            lambda options: f"clip_len={options.clip_len}, batch_size={options.batch_size}",
        ),
        Rule(
            lambda options: options.draws_sizes,
            'order="shares" takes no BatchResize',
            "Resize",
            lambda options: repr_of(options.clip_transform, 100),
        ),
        Rule(
            lambda options: options.lists_frames,
            'order="shares" takes no lists of frames',
            "samples with a column start",
        ),
    )

    def plan_class(self, settings: PlanSettings, epoch: int, segment: int) -> type[Plan]:
        """See `PlannedOrder`."""
        is_permuted = settings.run_frames is None or (settings.resident and epoch and not segment)
        return PermutedSharesPlan if is_permuted else SharesPlan

    def fit(
        self,
        request: MemoryRequest,
        limit: int,
        saved: PlanSettings | None,
        table: ClipTable,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        make_plan: MakePlan,
        *,
        are_small: bool,
    ) -> MemoryPlan:
        """See `PlannedOrder`."""
        if not request.settings.shuffle:
            raise ClipError(
                'order="shares" is a shuffled order', expected='shuffle=True; or order="clips"'
            )
        if any(window.whole or window.most_frames is not None for window in windows):
            raise ClipError(
                'order="shares" takes no windows that reach through their episode',
                expected="offsets and seconds",
            )
        choice = _Fit(request, table, episodes, windows, make_plan)
        return choice.plan_memory(limit, saved, are_small=are_small)

    def returned(
        self,
        table: ClipTable,  # noqa: ARG002
        episodes: EpisodeLayout,  # noqa: ARG002
        windows: Sequence[Window],  # noqa: ARG002
        segment: EpochSegment,
        place: tuple[int, int],  # noqa: ARG002
        draws: BatchDraws | None,  # noqa: ARG002
        costs: ClipCosts | None,  # noqa: ARG002
    ) -> tuple[Runs, Iterable[slice | IntArray]]:
        """See `PlannedOrder`."""
        raise StateError(
            'order="shares" continues an epoch on the same ranks, with the same batch_size, only',
            expected=f"{segment.ranks} ranks; or a state of the end of an epoch",
        )


SHARES = SharesOrder()
