"""The plan of an epoch as integers: chunks to load, clips to emit, frames to free.

The clips of an epoch, episode by episode, are *runs*. Runs are cut at places drawn from the seed
and shuffled; the sequence is divided equally among the *cursors* of all shards. In a *round* every
cursor of a shard advances by a *block*::

    runs                |----C----|--A--|-------D-------|---B---|----E----|
    shared out          |--- cursor 0 ---|---- cursor 1 ----|-- cursor 2 --|
    round 0             block of C        block of D         block of B
    round 1             of C and A        the next of D      of B and E
    ...
    one round:  load chunks  ->  emit the blocks' clips, dealt over the cursors  ->  free frames

The plan is a pure function of the selected clips and the settings; other episodes of the dataset
have no effect, and any round can be computed alone. The clips of all rounds form one stream, and
batches are consecutive slices of it.

*Dealing* shuffles the clips of each block and spreads them evenly over the round, from a start that
differs between cursors::

    cursor 0    a . . b . . c . . d . .
    cursor 1    . e . . f . . g . . h .
    cursor 2    . . i . . . . . j . . .
    emitted     a e i b f c g j d h

A batch has several clips of a cursor if it has more clips than there are cursors. To keep these
from overlapping, a block is divided into sections at least a clip long. Consecutive clips come from
different sections, at the same place in each. In narrow sections, places descend from a random one,
so that clips of neighbouring places do not overlap either::

    block of 12, 3 sections     0 1 2 3 | 4 5 6 7 | 8 9 10 11
    in the order                2 6 10    1 5 9     0 4 8       3 7 11

This allows few orders, which is enough if blocks begin at other clips in each epoch. The blocks of
a single cursor do not: its small blocks are shuffled as a whole, and each next clip is the first
that overlaps no other clip of its possible batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import COPIES
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, IntArray
from seqrecord.loader.sampling.bounds import (
    BlockSizes,
    ClipStats,
    PlanSettings,
    cursor_bounds,
    resident_bounds,
)
from seqrecord.loader.sampling.budget_shards import BudgetShards, StreamOf
from seqrecord.loader.sampling.budgets import Arrangement, BudgetUse, ClipCosts, Stream
from seqrecord.loader.sampling.cost_shares import deal_runs, shares_by_cost, turn_runs
from seqrecord.loader.sampling.cursors import Blocks, Cursors
from seqrecord.loader.sampling.interleaving import MOST_REREAD
from seqrecord.loader.sampling.passes import copies, in_step, passes
from seqrecord.loader.sampling.plan import Clips, Plan
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of, sorted_places
from seqrecord.loader.sampling.runs import (
    CursorShares,
    Cuts,
    Runs,
    Window,
    shares_of,
    shuffle_runs,
)
from seqrecord.loader.sampling.shard_batches import ShardBatches
from seqrecord.loader.sampling.share_phases import num_borders, turn_shares
from seqrecord.loader.sampling.spreading import UNCUT_CHUNKS, spread_runs
from seqrecord.store.tables.grids import ragged_arange

_TIME_BITS = 20  # fraction of a cursor's share, to order clips of several cursors
_MOST_SECTIONS = 8
_NARROW = 4  # clips' spans
_CLIPS_AT_ONCE = 1 << 16  # of a stream
_DIVISIONS = 4  # more of an epoch with a budget. 1: 175 batches for 169 (video of 24 episodes)
_QUICK = 1 << 17  # clips that are divided in .1 s; more are divided once more
_FEW = 512  # clips of a single cursor's block that are put in order one by one


class EpochPlan(Plan):
    """The plan of one shard in one epoch.

    The order depends on the leading group, and on the group whose chunks limit cuts (see `Cuts`).

    Shards cover the epoch. All have the same numbers of clips and batches, and only the last batch
    may be smaller. If clips do not divide evenly, a shard repeats a clip of another one, and
    `num_repeated` is 1. With `last_batch="drop"` every batch is full, no clip is repeated, and
    `num_dropped` clips of the shard are dropped.

    With `last_batch="keep"` every clip is in exactly one shard; counts may differ by one
    clip, and a shard may be empty.

    Raises `ClipError` if "drop" leaves no batch in any shard of a whole epoch. An epoch
    without clips has no batches.
    """

    _arrangement: Arrangement | None = None
    _budget_use: BudgetUse | None = None

    @property
    def budget_use(self) -> BudgetUse | None:
        """See `Plan`."""
        return self._budget_use

    def _lay_out(self, table: ClipTable, segment: int) -> None:
        layout, runs, shares = self._share_out(table, self.epoch, segment)
        stats, settings = layout.stats, self.settings
        cursors = layout.cursors(runs, shares.start, shares.stop)
        self._layout, self._cursors = layout, cursors
        self._sample_step = table.sample_step
        self._before = np.minimum(cursors.clips_before_rounds(), self.num_clips)
        self.num_cursors = cursors.count
        self.num_rounds = int(np.searchsorted(self._before, self.num_clips))
        if self.num_rounds < cursors.num_rounds:
            cursors.end_before(self.num_rounds)
        bounds = cursor_bounds(stats, settings, longest=cursors.longest)
        self._resident = [self.num_cursors * bound for bound in bounds]
        if cursors.most_frames is not None:
            self._resident_of_cursors = cursors.most_frames
            self._resident = np.maximum(self._resident, cursors.most_frames.sum(axis=1)).tolist()

    def _share_out(
        self, table: ClipTable, epoch: int, segment: int
    ) -> tuple[EpochLayout, Runs, CursorShares]:
        """The layout of an epoch, its runs and this shard's shares; sets clip counts."""
        settings, shard = self.settings, self.shard
        layout = EpochLayout.of(
            table,
            self._episodes,
            self._windows,
            settings,
            shard.count,
            epoch,
            segment,
            self.costs,
            self._stats,
        )
        if self.costs is not None:
            return self._share_costs(table, layout, segment)
        if not segment:
            min_clips = min(settings.batch_size or 1, self.batches.first_clip(1))
            check_drop_last(table.num_clips, replace(settings, batch_size=min_clips), shard.count)
        runs, shares = layout.share_out(table, np.array([shard.index]))
        self.num_repeated = int(shares.repeated[0])
        self.num_clips = int(layout.num_clips(shares, [self.batches])[0])
        self.num_dropped = int((shares.stop - shares.start).sum()) - self.num_clips
        self.num_batches = self.batches.count(self.num_clips)
        return layout, runs, shares

    def _stream_of(self, layout: EpochLayout) -> StreamOf:
        """The clips of shards before they are arranged."""
        return layout.stream

    def _share_costs(
        self, table: ClipTable, layout: EpochLayout, segment: int
    ) -> tuple[EpochLayout, Runs, CursorShares]:
        """Like `_share_out`, with a budget; also arranges the clips."""
        key = key_of_segment(self.settings, self.epoch, segment)
        shards, index = layout.arranged(table, self._stream_of(layout), key), self.shard.index
        if not segment:
            shards.check_drop_last(table.num_clips)
        self._arrangement = arrangement = shards.arrangement(index)
        self.batches = self.batches.arranged(arrangement.ends, shards.lengths(index))
        self._budget_use = shards.use(index)
        self.num_batches = len(arrangement.ends)
        self.num_clips = len(arrangement.order)
        self.num_dropped = len(shards.natural[index].order) - self.num_clips
        self.num_repeated = int(shards.shares.repeated[index])
        shares = CursorShares(*(column[index : index + 1] for column in shards.shares))
        return layout, shards.sequence, shares

    def _in_order(self, blocks: Blocks) -> tuple[Blocks, IntArray]:
        number = blocks.round * max(1, self.num_cursors) + blocks.cursor
        return self._layout.in_order(blocks, number)

    def _clips(self, blocks: Blocks, position: IntArray) -> Clips:
        first_clip = int(self._before[blocks.round[0]]) if len(blocks) else 0
        row, offset = self._layout.deal(blocks, position, self.num_cursors)
        clip = np.arange(first_clip, min(first_clip + len(row), self.num_clips))
        places = np.arange(len(clip))
        if self._arrangement is not None:  # which moves clips inside their rounds
            places = self._arrangement.order[clip] - first_clip
        row, offset = row[places], offset[places]
        of_blocks = blocks.cursor[row], blocks.run[row], blocks.episode[row]
        start = blocks.first[row] + offset * self._spec.stride
        sample = blocks.sample[row] + offset * self._sample_step
        of_batches = *self.batches.find(clip), self._places(clip)
        return Clips(*of_blocks, start, *of_batches, sample, blocks.clip[row] + offset)


@dataclass(frozen=True, eq=False)
class EpochLayout:
    """The division of an epoch, or of its segment, among shards.

    `selected` are the selected episodes, `windows` the windows of the groups.
    """

    stats: ClipStats
    settings: PlanSettings
    episodes: EpisodeLayout
    windows: Sequence[Window]
    selected: IntArray
    key: int  # of all random numbers
    num_shards: int
    costs: ClipCosts | None = None

    @classmethod
    def of(
        cls,
        table: ClipTable,
        episodes: EpisodeLayout,
        windows: Sequence[Window],
        settings: PlanSettings,
        num_shards: int,
        epoch: int = 0,
        segment: int = 0,
        costs: ClipCosts | None = None,
        stats: ClipStats | None = None,
    ) -> EpochLayout:
        """Create the layout of a table's clips in this segment of an epoch, with the `stats` of the
        table if they are known.
        """
        stats = stats or ClipStats.of(table, episodes, windows)
        key = key_of_segment(settings, epoch, segment)
        of_epoch = table.selected, key, num_shards, costs
        return cls(stats, settings, episodes, windows, *of_epoch)

    @property
    def sizes(self) -> BlockSizes:
        """The block sizes of all cursors."""
        return BlockSizes.of(self.stats, self.settings)

    def share_out(
        self, table: ClipTable, shards: IntArray, weights: IntArray | None = None
    ) -> tuple[Runs, CursorShares]:
        """The ordered runs, and the cursors' shares of `shards`; with a budget, of equal
        `weights` of the table's samples, int64[rows], by default of their costs.
        """
        settings, runs = self.settings, Runs.of(table)
        # One round of all clips shuffles all copies, of frames that are loaded once.
        in_one_round = settings.first_block_frames >= self.stats.whole_block()
        begins: IntArray | None = None
        num_copies: IntArray | None = None
        if settings.shuffle and not in_one_round and table.repeats:
            runs = passes(runs)
            num_copies = copies(runs)
        key, is_spread = self.key, settings.num_shares is not None and self.num_shards > 1
        if settings.shuffle and len(runs):
            length, place = settings.run_frames, (runs.episode, self.episodes, self.windows)
            if is_spread:
                num_frames = self.stats.num_frames
                half = num_frames // (2 * self.stats.num_episodes)  # of an episode that is cut once
                uncut = min(length or half, half) // UNCUT_CHUNKS
                runs = spread_runs(runs, length, num_frames, Cuts.at_units(*place, uncut), key)
            else:
                cuts = Cuts.of(*place, anywhere=settings.num_shares is not None)
                num_shares = self.num_shards * settings.shares
                runs = shuffle_runs(runs, length, cuts, key, num_shares=num_shares)
            if num_copies is not None:
                of_runs = num_copies, self._lengths(runs)
                runs, begins = in_step(runs, *of_runs, key, self.num_shards, settings.cursors)
        if self.costs is not None and len(runs):
            runs, shares = self._share_costs(runs, begins, weights, at_runs=is_spread)
        else:
            shares = shares_of(
                runs,
                Cuts.of(runs.episode, self.episodes, self.windows),
                np.arange(self.num_shards),
                self.num_shards,
                settings.cursors,
                fill=settings.last_batch == "repeat",
                num_shares=settings.shares,
                begins=begins,
                at_runs=is_spread,
            )
        if settings.shuffle and not (in_one_round or is_spread or num_copies is not None):
            runs = self._turn_shares(runs, shares.start)
        return runs, CursorShares(*(column[shards] for column in shares))

    def _turn_shares(self, runs: Runs, starts: IntArray) -> Runs:
        """The runs of shares that begin at few phases, turned as far as repeated reads allow."""
        settings, stats, max_turned = self.settings, self.stats, starts.size
        keeps_frames = settings.resident or (settings.num_shares and self.num_shards == 1)
        if stats.cut_frames and not keeps_frames:
            _, by_shards = stats.reread(self.num_shards)
            max_cuts = int((MOST_REREAD - by_shards) * stats.num_frames) // stats.cut_frames
            max_turned = min(max_turned, max_cuts - num_borders(runs, starts))
        anywhere = settings.num_shares is not None
        places = Cuts.of(runs.episode, self.episodes, self.windows, anywhere=anywhere)
        return turn_shares(runs, starts, places, max_turned, self.key)

    def _share_costs(
        self, runs: Runs, begins: IntArray | None, weights: IntArray | None, *, at_runs: bool
    ) -> tuple[Runs, CursorShares]:
        """The runs and the cursors' shares of all shards, by cost; see `cost_shares`."""
        costs, settings, count = self.costs, self.settings, self.num_shards
        assert costs is not None
        place, is_free = (self.episodes, self.windows), settings.shuffle and begins is None

        def weight_of(sample: IntArray) -> IntArray:
            return costs.shared(sample) if weights is None else weights[sample // COPIES]

        if is_free and not at_runs and count > 1:
            runs = deal_runs(runs, costs.of, weight_of, count, self.key)
        samples, cuts = runs.all_samples, Cuts.of(runs.episode, *place)
        numbers = count, settings.cursors, settings.shares
        shares = shares_by_cost(
            runs, cuts, weight_of(samples), *numbers, begins=begins, at_runs=at_runs
        )
        if is_free:
            runs = turn_runs(runs, shares, costs.of(samples), pads=costs.pads)
        return runs, shares

    def arranged(self, table: ClipTable, stream_of: StreamOf, key: int) -> BudgetShards:
        """The batches of all shards by a budget; `key` is for the order of batches."""
        costs, count = self.costs, self.num_shards
        assert costs is not None

        def divided(weights: IntArray | None) -> BudgetShards:
            sequence, shares = self.share_out(table, np.arange(count), weights)
            return BudgetShards.of(table, self.settings, costs, sequence, shares, stream_of, key)

        def make() -> BudgetShards:
            best = shards = divided(None)
            for _ in range(max(1, min(_DIVISIONS, _QUICK // max(1, table.num_clips)))):
                if (weights := shards.weights()) is None:
                    break
                shards = divided(weights)
                best = min(best, shards, key=lambda shards: shards.most_batches)
            return best

        shards: BudgetShards = costs.once((id(table), self.settings, count, key), make)
        return shards

    def stream(self, sequence: Runs, start: IntArray, stop: IntArray, _shard: int) -> Stream:
        """The clips of a shard, `[start, stop)` of each cursor, in the order of its rounds."""
        has_clips = stop > start
        cursors = self.cursors(sequence, start, stop)
        shift = start[has_clips] - cursors.begin  # from clip numbers of the cursors
        rounds, index, clips = cursors.clips_before_rounds(), 0, [shift[:0]]
        while index < cursors.num_rounds:
            limit = rounds[index] + _CLIPS_AT_ONCE
            end = max(index + 1, int(np.searchsorted(rounds, limit, side="right")) - 1)
            blocks = cursors.blocks(index, end)[self.episodes.leading]
            blocks, position = self.in_order(blocks, blocks.round * cursors.count + blocks.cursor)
            row, offset = self.deal(blocks, position, cursors.count)
            clips.append(blocks.clip[row] + offset + shift[blocks.cursor[row]])
            index = end
        return Stream(np.concatenate(clips), rounds)

    def _lengths(self, runs: Runs) -> IntArray:
        """How many frames each run counts with its gap, int64[runs]; see `Cursors`."""
        sizes = self.sizes
        apart = runs.first_start[1:] - runs.last_start[:-1] - runs.stride
        apart[np.diff(runs.run) != 0] = sizes.gap
        counted = runs.count * sizes.clip + np.append(sizes.gap, np.minimum(apart, sizes.gap))
        return np.bincount(runs.run, counted).astype(np.int64)

    def num_clips(self, shares: CursorShares, batches: Sequence[ShardBatches]) -> IntArray:
        """The number of clips that shards with these shares emit; int64[shards].

        `batches` of each worker, for the shards of one rank after the other.
        """
        clips: IntArray = (shares.stop - shares.start).sum(axis=1)
        if self.settings.drops:
            clips = np.full_like(clips, self.stats.num_clips // self.num_shards)
            for worker, of_worker in enumerate(batches):
                of_index = slice(worker, None, len(batches))
                clips[of_index] = of_worker.whole(clips[of_index])
        return clips

    def cursors(self, runs: Runs, start: IntArray, stop: IntArray) -> Cursors:
        """The cursors of non-empty shares: clips `[start, stop)`, int64[shards, cursors] each."""
        has_clips = stop > start
        sliced = runs.slices(start[has_clips], stop[has_clips])
        costs = None if self.costs is None else self.costs.of(sliced[0].all_samples)
        cursors = Cursors(*sliced, self.sizes, self.episodes, self.windows, costs)
        if self.costs is None or costs is None or not self.settings.shuffle:
            return cursors
        if costs.sum() < cursors.num_rounds * self.costs.window:
            most_frames = resident_bounds(self.stats, self.settings)
            cursors.join_rounds(costs, self.costs.window, most_frames)
        return cursors

    def in_order(self, blocks: Blocks, number: IntArray) -> tuple[Blocks, IntArray]:
        """Sort the rows of whole rounds as dealt; also the position of each row's block in its
        round.

        `number`, int64[n], is the number of each row's block. Blocks are sorted by round and then
        randomly; a block's rows keep their order. Loads follow the same order, so that the first
        clips do not wait for all loads of their round.
        """
        order = np.lexsort((hash64(key_of(Purpose.BLOCK_ORDER, self.key), number), blocks.round))
        blocks, number = blocks.take(order), number[order]
        block = np.cumsum(np.diff(number, prepend=number[:1]) != 0)
        return blocks, block - block[np.searchsorted(blocks.round, blocks.round)]

    def deal(
        self, blocks: Blocks, position: IntArray, num_cursors: int
    ) -> tuple[IntArray, IntArray]:
        """The clips of whole rounds in emitted order: rows of `blocks`, and numbers in the rows;
        int64[n] each.

        `blocks` are sorted by round, by `position` of the block in it, int64[rows], and by place in
        the block. If batches have more clips than there are cursors, consecutive clips of a cursor
        are far apart.
        """
        stride, size = self.stats.spec.stride, self.settings.batch_size or 1
        row, offset = ragged_arange(blocks.count)
        if not self.settings.shuffle or not len(row):
            return row, offset
        new = np.diff(blocks.round, prepend=-1) != 0
        new |= np.diff(position, prepend=-1) != 0
        block_rows = np.flatnonzero(new)  # row of each block
        sizes = np.add.reduceat(blocks.count, block_rows)
        block, place = ragged_arange(sizes)
        size_of = sizes[block]
        # Episodes count by their place in the selection: rows may differ between datasets.
        episode = np.searchsorted(self.selected, blocks.episode[block_rows])
        episode += (blocks.sample[block_rows] % COPIES) << 32
        name = hash64(key_of(Purpose.BLOCK_NAMES, self.key), episode).view(np.int64)
        name += blocks.first[block_rows]
        spread = num_cursors < size
        apart = -(-self.stats.window.span // stride) if spread else len(row) + 1
        shortest, longest = (f.reduceat(blocks.count, block_rows) for f in (np.minimum, np.maximum))
        is_even = (shortest > 1) & (8 * longest <= 9 * shortest)
        equal_runs = (np.diff(block_rows, append=len(blocks)) * is_even)[block]
        inner, outer = _order(name, block, size_of, place, equal_runs, apart)
        if spread:
            order = np.lexsort((inner, outer, block))
        else:  # one section, without equal numbers in a block; small integers are sorted by radix
            order = np.argsort(outer)
            small = block.astype(np.min_scalar_type(int(block[-1])))
            order = order[np.argsort(small[order], kind="stable")]
        number = np.empty(len(order), np.int64)  # of each clip in its block
        number[order] = place
        # Independent of other blocks: all shards must get the same order.
        if num_cursors == 1 and spread and apart > 1:
            few = np.flatnonzero(size_of <= _FEW)
            number[few] = _one_by_one(name[block[few]], block[few], place[few], apart, size)
        time = (number * num_cursors + position[row] << _TIME_BITS) // size_of
        order = sorted_places(blocks.round[row], time)
        return row[order], offset[order]


def key_of_segment(settings: PlanSettings, epoch: int, segment: int) -> int:
    """The key of all random numbers in a segment of an epoch."""
    return key_of(Purpose.SEGMENT, settings.seed, epoch, segment)


def check_drop_last(total: int, settings: PlanSettings, num_shards: int) -> None:
    """Raise `ClipError` if `last_batch="drop"` leaves no batch of `total` clips in any shard."""
    size = settings.batch_size or 1
    if settings.drops and 0 < total < (minimum := num_shards * size):
        raise ClipError(
            'last_batch="drop" leaves no batch at all',
            expected=f"at least {minimum} clips: a batch of {size} in each of {num_shards} shards",
            got=f"{total} clips; smaller batches, fewer workers, or no last_batch",
        )


def _order(
    name: IntArray,
    block: IntArray,
    size: IntArray,
    place: IntArray,
    equal_runs: IntArray,
    apart: int,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Sort keys of clips in their blocks, the second one first, that put neighbours far apart.

    Neighbours are `apart` clips apart if possible. `name` is int64[blocks]; `block`, `size` and
    `place` are each clip's block, its size and the place in it, and `equal_runs` the number of
    runs in the block if they have about one length, else 0; int64[n].
    """
    sections = np.clip(size // apart, 1, _MOST_SECTIONS)
    section = place * sections // size
    place_in_section = place + (-section * size) // sections  # counted from the section's first
    width = -(-size // sections)
    begin = (hash64(key_of(Purpose.SECTION_BEGINS), name) >> np.uint64(33)).astype(np.int64)[block]
    # Equal places in sections of equal episodes may be equal places in these: one phase in a batch.
    is_drawn = equal_runs >= sections
    narrow = (sections > 1) & (width < _NARROW * apart) & ~is_drawn
    number = name[block] + place_in_section * (_MOST_SECTIONS + 1)
    outer = np.where(
        narrow,
        ((begin - place_in_section) % width).astype(np.uint64),
        hash64(key_of(Purpose.PLACES_IN_SECTION), number + section * is_drawn),
    )
    inner = np.where(
        narrow, section.astype(np.uint64), hash64(key_of(Purpose.SECTION_ORDER), number + section)
    )
    return inner, outer


def _one_by_one(
    name: IntArray, block: IntArray, place: IntArray, apart: int, batch_size: int
) -> IntArray:
    """The position of each clip in its block, int64[n]; `block` is ascending.

    Each next clip is the first in random order that is `apart` places from the previous `batch_size
    - 1` clips; if there is none, one whose near clips are oldest.
    """
    drawn = hash64(key_of(Purpose.PLACES_IN_BLOCK), name + place)
    _, block, sizes = np.unique(block, return_inverse=True, return_counts=True)
    most = int(sizes.max(initial=0))
    near = max(0, min(apart, most) - 1)  # places further away are in no block
    order = np.lexsort((drawn, block))
    taken = most * (batch_size + 2)
    rank = np.full((len(sizes), most), taken)
    rank[block[order], place[order]] = place
    number = np.zeros_like(rank)
    until = np.zeros((len(sizes), most + 2 * near), np.int64)  # with a margin on both sides
    reach = np.arange(2 * near + 1)
    for i in range(most):
        some = np.flatnonzero(sizes > i)
        late = np.maximum(until[some, near : near + most] - i, 0)
        picked = np.argmin(rank[some] + most * late, axis=1)
        number[some, picked] = i
        rank[some, picked] = taken
        until[some[:, None], picked[:, None] + reach] = i + batch_size
    found: IntArray = number[block, place]
    return found
