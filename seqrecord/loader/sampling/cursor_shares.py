"""Equal shares of one shuffled sequence of episodes: the rows that each cursor reads.

The episodes of a table, see `RowTable`, are shuffled to one sequence, a circle. It is cut into as
many shares as all shards have cursors. A cursor reads its share front to back, as pieces: parts of
episodes. Three shards with two cursors each::

    sequence                 |-----B-----|-----D-----|-----A-----|-----C-----|
    shares                   ...5|---0---|---1---|---2---|---3---|---4---|---5
    shard and cursor         2,1  0,0     1,0     2,0     0,1     1,1     2,1

Episodes are sorted by `hash64` of the numbers of their `owner` (purpose `EPISODE_ORDER`), so that
copies of one are apart. Numbers of a purpose are drawn with `key_of(purpose, key)`. K is the number
of shares, n the number of rows, and d is drawn in [0, 1), by `uniform` of 0 (`SHARE_BEGINS`):

1. Share k, from 0 on, begins where (k + d) n / K rows of the sequence come before it.
2. The *phase* of a share is the part of its first episode that lies before it. Where episodes have
   equal lengths, shares at even distances have few phases, and all cursors would be at one place of
   their episodes at any time. So begins move until their phases are evenly spread. The i-th share
   by phase, rounded to 2^-20, wants the phase (i + 1/2) / K; among shares of one phase, those with
   the least min(2 k, 2 (K - k) - 1) come first, so that begins move up in the first half of the
   sequence and down in the second, and shares stay nearly equal. A share moves by the difference
   of its wanted phase and its own, between -1/2 and 1/2, less the median of all moves and again
   between -1/2 and 1/2, times the rows of its episode; at most by 0.49 n / K rows. Begins are
   rounded down, and those below 0 or beyond n are on the other side of the circle.
3. With *units* of the `leading` group, see `decoding_units`, a begin then leaves the unit in which
   the first frame of its row is: it moves to the first row of its episode in this unit, or to the
   first one behind it, which may be the next episode's; to the nearer one in rows, to the first one
   if both are equally near. This concerns shares with frac(k g + d) below `aligned`, where g is
   (5^.5 - 1) / 2, and k below K - shards unless there is a single shard. Others keep their phases,
   and frames of their units are decoded twice. Then begins are sorted.
4. A *turn* are as many next shares as there are shards. In turn t, the share at place j goes to
   shard (j + t `rotation`) mod shards, where it is the share of cursor t.
5. The shares of the last turn are cut anew, in their order, so that all shards have equally many
   rows; the first ones have one more if they do not divide evenly. If no row is left for a shard
   there, the shares of each turn go to shards anew: the longest one to the shard that lacks most
   rows (of equal shares first the one with the least `hash64` of its number, `SHARE_SHARDS`; of
   equal shards the first one). Then as many of the last turns as necessary are cut anew, into equal
   parts of what each shard lacks before them, of at least one row each, or of none if there are
   fewer than K rows: of m parts of x rows, the first i have floor(i x / m) rows.

With costs, n is the cost of all rows; read "cost" for "row" everywhere but in step 3. Shares begin
at rows: a begin inside a row's cost moves to the nearer end of it, of two to its begin, after steps
3 and 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of, uniform
from seqrecord.loader.sampling.row_tables import RowTable
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.tables.grids import IntArray, ragged_arange

GOLDEN = (5**0.5 - 1) / 2
"""Fractions of multiples of this number are evenly spread."""

_SAME_PHASE = 1 << 20  # phases nearer than one part in so many are equal
_MOST_MOVED = 0.49  # of a share

Floats = npt.NDArray[np.float64]


def coprime_part(number: int, parts: float = 1 / GOLDEN) -> int:
    """The number nearest to `number / parts` that has no common divisor with `number`, at least 1.

    Of two, the greater one.
    """
    part = round(number / parts)
    near = (part + sign * step for step in range(number + 1) for sign in (1, -1))
    return next((n for n in near if 0 < n <= number and gcd(n, number) == 1), 1)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Parts of episodes, in the order in which cursors read them; int64[n] each.

    Piece `i` has `count[i]` rows from row `first[i]` on, for cursor `cursor[i]`, ascending. Of all
    shards, cursors are numbered from shard to shard; of one, from 0.
    """

    first: IntArray
    count: IntArray
    cursor: IntArray

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def ends(self) -> IntArray:
        """The rows up to the end of each piece, int64[n]."""
        return self.count.cumsum()

    @cached_property
    def begins(self) -> IntArray:
        """The rows before each piece, int64[n]."""
        return self.ends - self.count

    @cached_property
    def places(self) -> IntArray:
        """The rows of its cursor before each piece, int64[n]."""
        return self.begins - self.begins[self.cursor.searchsorted(self.cursor)]

    def find(self, number: IntArray) -> tuple[IntArray, IntArray]:
        """The piece and the row of each number of a row in all pieces; int64[m] each."""
        piece = self.ends.searchsorted(number, side="right")
        return piece, self.first[piece] + number - self.begins[piece]

    def after(self, emitted: IntArray) -> tuple[IntArray, IntArray]:
        """First rows and numbers of rows of what is left of pieces after so many rows of each
        cursor, int64[cursors].
        """
        passed = np.clip(emitted[self.cursor] - self.places, 0, self.count)
        return self.first + passed, self.count - passed


@dataclass(frozen=True, eq=False)
class EpisodeSequence:
    """The episodes of a table in one order.

    Attributes:
        table: the rows.
        order: the owners of rows in their order, int64[owners].
        weight: cumulative costs, of the rows before each row of the table and of all,
            int64[rows + 1]; `None` if each row costs 1. Rows cost at least 1.
    """

    table: RowTable
    order: IntArray
    weight: IntArray | None = None

    @classmethod
    def shuffled(cls, table: RowTable, key: int, weight: IntArray | None = None) -> EpisodeSequence:
        """The sequence that `key` draws."""
        drawn = hash64(key_of(Purpose.EPISODE_ORDER, key), np.arange(table.num_owners))
        return cls(table, drawn.argsort(kind="stable"), weight)

    @classmethod
    def in_order(cls, table: RowTable) -> EpisodeSequence:
        """The sequence in the order of the table."""
        return cls(table, np.arange(table.num_owners))

    def _weights(self, rows: IntArray) -> IntArray:
        """The costs of the rows before these, int64[n]."""
        return rows if self.weight is None else self.weight[rows]

    @cached_property
    def heads(self) -> IntArray:
        """The rows of the sequence before each episode, int64[owners]."""
        counts = self.table.row_counts[self.order]
        return counts.cumsum() - counts

    @cached_property
    def ends(self) -> IntArray:
        """The costs up to the end of each episode, int64[owners]."""
        before = self._weights(self.table.bounds)
        ends: IntArray = (before[1:] - before[:-1])[self.order].cumsum()
        return ends

    @property
    def total(self) -> int:
        """The cost of all rows."""
        return int(self.ends[-1])

    def find(self, cost: IntArray) -> tuple[IntArray, IntArray]:
        """The place of the episode, and the row, in whose cost these costs are; int64[n] each."""
        place = self.ends.searchsorted(cost, side="right")
        first = self.table.bounds[self.order[place]]
        cost = cost - np.where(place > 0, self.ends[place - 1], 0)
        if self.weight is None:
            return place, first + cost
        row = self.weight.searchsorted(self.weight[first] + cost, side="right") - 1
        return place, row

    def rounded(self, cost: IntArray) -> IntArray:
        """The costs before the rows that begin nearest to these costs; int64[n].

        Not before the rows in which they are: long ones would begin more shares than short ones.
        """
        if self.weight is None:
            return cost
        lap, cost = np.divmod(cost, self.total)
        place, row = self.find(cost)
        low = self.cost_before(place, row)
        high = low + self.weight[row + 1] - self.weight[row]
        nearest: IntArray = np.where(high - cost < cost - low, high, low)
        return lap * self.total + nearest

    def cost_before(self, place: IntArray, row: IntArray) -> IntArray:
        """The cost of the sequence before rows of the episodes at `place`; int64[n]."""
        first = self.table.bounds[self.order[place]]
        cost = self._weights(row) - self._weights(first)
        return cost + np.where(place > 0, self.ends[place - 1], 0)


@dataclass(frozen=True, eq=False)
class Shares:
    """Shares of a sequence; int64[shares] each.

    Attributes:
        sequence: the episodes.
        num_cursors: of each shard.
        cursor: of each share, numbered from shard to shard.
        begin: the cost before each share, ascending; from `total` on for those on the other side of
            the circle.
    """

    sequence: EpisodeSequence
    num_cursors: int
    cursor: IntArray
    begin: IntArray

    @cached_property
    def _rows(self) -> tuple[IntArray, IntArray]:
        """The rows of the sequence before each share, and of each share."""
        sequence, total = self.sequence, len(self.sequence.table)
        place, row = sequence.find(self.begin % sequence.total)
        first = sequence.heads[place] + row - sequence.table.bounds[sequence.order[place]]
        first = np.where(self.begin >= sequence.total, first + total, first)
        first = np.maximum.accumulate(first)
        return first, _lengths(first, total)

    def of_shard(self, shard: int) -> Pieces:
        """The pieces of one shard, whose cursors are numbered from 0."""
        share = (self.cursor // self.num_cursors == shard).nonzero()[0]
        return self._pieces(share, shard)

    @property
    def pieces(self) -> Pieces:
        """The pieces of all shards."""
        return self._pieces(np.arange(len(self.cursor)))

    def _pieces(self, share: IntArray, shard: int = 0) -> Pieces:
        """The pieces of some shares, by cursor."""
        sequence = self.sequence
        heads, table, total = sequence.heads, sequence.table, len(sequence.table)
        share = share[self.cursor[share].argsort()]
        first, count = self._rows
        share = share[count[share] > 0]
        first, count = first[share], count[share]
        # The episodes from the one of a share's first row to the one of its last row.
        low, high = _places(heads, first, total), _places(heads, first + count - 1, total)
        owner, step = ragged_arange(high - low + 1)
        lap, place = np.divmod(low[owner] + step, len(heads))
        head = heads[place] + lap * total
        begin = np.maximum(head, first[owner])
        end = np.concatenate((heads, [total]))[place + 1] + lap * total
        end = np.minimum(end, (first + count)[owner])
        row = table.bounds[sequence.order[place]] + begin - head
        return Pieces(row, end - begin, self.cursor[share][owner] - shard * self.num_cursors)


def _lengths(begin: IntArray, total: int) -> IntArray:
    """The lengths of parts of a circle from their begins, int64[n] each."""
    ends = np.empty_like(begin)
    ends[:-1], ends[-1] = begin[1:], begin[0] + total
    return ends - begin


def _places(heads: IntArray, rows: IntArray, total: int) -> IntArray:
    """The places of the episodes of rows of a sequence, also of its second lap."""
    lap, rows = np.divmod(rows, total)
    places: IntArray = heads.searchsorted(rows, side="right") - 1 + lap * len(heads)
    return places


def share_out(
    sequence: EpisodeSequence,
    groups: Sequence[FrameGroup],
    num_shards: int,
    num_cursors: int,
    key: int,
    aligned: float = 1.0,
    rotation: int = 0,
) -> Shares:
    """The shares of all cursors of all shards.

    Shards have equally many rows, or one more, see `rows_of_shards`. With costs, shards have equal
    costs, to two rows.

    Args:
        sequence: the episodes, with at least one row.
        groups: whose units begins align with.
        num_shards: number of shards.
        num_cursors: cursors of each shard.
        key: of all random numbers.
        aligned: the part of the begins that move to units.
        rotation: of the shards from turn to turn.
    """
    begin = _begins(sequence, groups, num_shards, num_cursors, key, aligned)
    cursor, begin = _deal(begin, sequence.total, num_shards, num_cursors, key, rotation)
    return Shares(sequence, num_cursors, cursor, sequence.rounded(begin))


def rows_of_shards(total: int, num_shards: int) -> IntArray:
    """The rows of each shard, int64[shards]: equally many, or one more in some of them, which are
    evenly spread, so that ranks of several workers differ by one row, too.
    """
    low, more = divmod(total, num_shards)
    edges = np.arange(num_shards + 1) * more // num_shards
    return low + edges[1:] - edges[:-1]


def even_shares(sequence: EpisodeSequence, num_shards: int, num_cursors: int) -> Shares:
    """Shares of equal length, or one row more, dealt in turn: share k to shard k modulo the number
    of shards. Some shards have one row more than others, see `rows_of_shards`, and so have a
    shard's first cursors.

    The sequence has no costs.
    """
    share = np.arange(num_shards * num_cursors)
    cursor, shard = np.divmod(share, num_shards)
    of_shards = rows_of_shards(sequence.total, num_shards)
    rows, longer = np.divmod(of_shards[shard], num_cursors)
    length = rows + (cursor < longer)
    return Shares(sequence, num_cursors, shard * num_cursors + cursor, length.cumsum() - length)


def _begins(
    sequence: EpisodeSequence,
    groups: Sequence[FrameGroup],
    num_shards: int,
    num_cursors: int,
    key: int,
    aligned: float = 1.0,
) -> IntArray:
    """The costs in the sequence before each share, ascending; int64[shares]."""
    total, num_shares = sequence.total, num_shards * num_cursors
    share = np.arange(num_shares)
    drawn = float(uniform(key_of(Purpose.SHARE_BEGINS, key), np.zeros(1, np.int64))[0])
    at = np.asarray((share + drawn) * (total / num_shares), np.float64)
    _, phase, length = _phases(sequence.ends, at)
    # Of begins with one phase, those of the first half move up and the others down.
    turn = np.minimum(2 * share, 2 * (num_shares - share) - 1)
    by_phase = np.lexsort((turn, np.rint(phase * _SAME_PHASE)))
    wanted = np.empty(num_shares)
    wanted[by_phase] = (np.arange(num_shares) + 0.5) / num_shares
    move = _nearest_turn(wanted - phase)
    move = _nearest_turn(move - median(move)) * length
    most = _MOST_MOVED * total / num_shares
    begin = np.floor((at + np.clip(move, -most, most)) % total).astype(np.int64)
    is_aligned = (share * GOLDEN + drawn) % 1 < aligned
    if num_shards > 1:  # shares of the last turn make shards equal
        is_aligned &= share < num_shares - num_shards
    begin[is_aligned] = _nearest_units(sequence, groups, begin[is_aligned])
    return np.sort(sequence.rounded(begin) % total)


def median(values: npt.NDArray[np.number]) -> float:
    """The median of values, at least one."""
    # Not `numpy.median`: it imports `numpy.ma`, 15 to 30 ms of CPU in each new process.
    values = np.sort(values)
    return float(values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def _phases(ends: IntArray, at: Floats) -> tuple[IntArray, Floats, IntArray]:
    """The episode's place, the phase in it, and its length, where a sequence has the cost `at`."""
    place = np.minimum(ends.searchsorted(at, side="right"), len(ends) - 1)
    begin = np.where(place > 0, ends[place - 1], 0)
    length = ends[place] - begin
    return place, (at - begin) / length, length


def _nearest_turn(phase: Floats) -> Floats:
    """Differences of phases, in [-1/2, 1/2)."""
    return (phase + 0.5) % 1 - 0.5


def _nearest_units(
    sequence: EpisodeSequence, groups: Sequence[FrameGroup], cost: IntArray
) -> IntArray:
    """The costs before the nearest rows, of their episodes, that are the first ones of a unit."""
    table, group = sequence.table, leading(groups)
    if group.is_alone or not len(cost):
        return cost
    place, row = sequence.find(cost)
    owner = sequence.order[place]
    episode, start = table.locate(row)
    begin, stop = group.units(episode, group.first(episode, start))
    offset = int(group.offsets[0])
    low = np.where(begin > 0, table.rows_from(owner, begin - offset), table.bounds[owner])
    # Rows whose first frames lie behind the last one have it as their first frame.
    is_last = stop == group.num_frames[episode]
    high = np.where(is_last, table.bounds[owner + 1], table.rows_from(owner, stop - offset))
    nearest = np.where(row - low <= high - row, low, high)
    return sequence.cost_before(place, nearest) % sequence.total


def leading(groups: Sequence[FrameGroup]) -> FrameGroup:
    """The group whose units have most bytes: the first of those with the greatest product of a
    frame's bytes and the frames of a unit. Of chunks: the median over episodes of their longest.
    """
    if len(groups) == 1:
        return groups[0]

    return max(groups, key=lambda group: group.nbytes * unit_frames(group))


def unit_frames(group: FrameGroup) -> int:
    """The frames of a unit; of chunks, see `leading`."""
    if group.is_alone:
        return 1
    assert group.grid is not None
    grid = group.grid.whole_chunks
    return grid.unit_frames or int(median(grid.max_chunk_frames))


def _deal(
    begin: IntArray, total: int, num_shards: int, num_cursors: int, key: int, rotation: int
) -> tuple[IntArray, IntArray]:
    """The cursor of each share, numbered over all shards, and the begins of the shares of shards
    that are equal; int64[shares] each.
    """
    length = _lengths(begin, total).reshape(num_cursors, num_shards)
    goal = rows_of_shards(total, num_shards)
    turns = np.arange(num_cursors)[:, None]
    shard: IntArray = (np.arange(num_shards) + turns * rotation) % num_shards
    place = shard.argsort(axis=1)
    lengths: IntArray = length[turns, place]  # by turn and shard
    had: IntArray = lengths.cumsum(axis=0) - lengths
    lacks: IntArray = goal - had  # of each shard, before a turn
    if (lacks[-1] < 1).any():
        shard, lacks = _longest_first(length, goal, key)
    least = num_cursors - turns if total >= length.size else np.zeros_like(turns)
    is_enough = (lacks >= least).all(axis=1)
    last = int(is_enough.nonzero()[0][-1])
    parts = np.arange(num_cursors - last + 1)[:, None] * lacks[last] // (num_cursors - last)
    length[last:] = (parts[1:] - parts[:-1])[turns[: num_cursors - last], shard[last:]]
    ends = length.cumsum()
    return (shard * num_cursors + turns).ravel(), begin[0] + ends - length.ravel()


def _longest_first(length: IntArray, goal: IntArray, key: int) -> tuple[IntArray, IntArray]:
    """The shards of shares, and what each shard lacks before a turn; int64[turns, shards] each.

    Of each turn, the longest share goes to the shard that lacks most.
    """
    drawn = hash64(key_of(Purpose.SHARE_SHARDS, key), np.arange(length.size)).reshape(length.shape)
    shard, lacks = np.empty_like(length), np.empty_like(length)
    lack = goal
    for turn, lengths in enumerate(length):
        lacks[turn] = lack
        shard[turn, np.lexsort((drawn[turn], -lengths))] = np.argsort(-lack, kind="stable")
        lack = lack - lengths[shard[turn].argsort()]
    return shard, lacks


def cut_bytes(table: RowTable, groups: Sequence[FrameGroup], row: IntArray) -> IntArray:
    """The bytes of frames that are read or decoded twice because a piece begins at a row;
    int64[n].
    """
    is_cut = table.bounds[table.bounds.searchsorted(row)] != row
    row = row[is_cut]
    episode, start = table.locate(row)
    before = table.locate(row - 1)
    cut = np.zeros(len(is_cut), np.int64)
    for group in groups:
        begin = group.read_from(episode, group.first(episode, start))
        stop = group.read_until(episode, group.stop(*before))
        cut[is_cut] += group.nbytes * np.maximum(stop - begin, 0)
    return cut


def num_used(table: RowTable, group: FrameGroup) -> int:
    """The frames of a group that rows need, about: with those between the frames of a row, unless
    rows have fewer frames together.
    """
    begin = group.first(table.episode, table.start)
    stop = group.stop(table.episode, _last_starts(table))
    frames = _num_new(table, begin, stop)
    return int(np.minimum(frames, table.count * len(group.offsets)).sum())


def num_read(table: RowTable, group: FrameGroup) -> int:
    """The frames of a group that are read for rows, about: of chunks that are read whole, all."""
    if not group.reads_chunks:
        return num_used(table, group)
    begin = group.read_from(table.episode, group.first(table.episode, table.start))
    stop = group.read_until(table.episode, group.stop(table.episode, _last_starts(table)))
    return int(_num_new(table, begin, stop).sum())


def _last_starts(table: RowTable) -> IntArray:
    return table.start + (table.count - 1) * table.stride


def _num_new(table: RowTable, begin: IntArray, stop: IntArray) -> IntArray:
    """The frames between these that the entries before do not have; int64[n] each."""
    same = table.owner[1:] == table.owner[:-1]
    begin[1:] = np.where(same, np.maximum(begin[1:], stop[:-1]), begin[1:])
    frames: IntArray = np.maximum(stop - begin, 0)
    return frames
