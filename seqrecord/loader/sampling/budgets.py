"""Budgets: batches by the costs of their clips. Pure integers.

A shard's clips are a stream of rounds. Inside a *window*, a round or a part of one with about
`WINDOW_BATCHES` budgets (padded: four times as many), all frames are in memory, so that its clips
may be delivered in any order.
*Packed* batches are filled by best fit, in the order of the stream: each clip goes into the open
batch that it fills most. For *padded* ones the clips are sorted by cost. Then the batches of the
window are shuffled, so that their mean costs have no trend over the epoch. The batch with most room
left is the first of the next window, so only clips move, and no batch waits for more than two
windows::

    stream     7 3 5 2 | 6 4 4 1 | …        costs, in windows, budget 10
    batches    7 3 | 5 2       2 and 5 continue
                     5 2 1 | 6 4 | 4 …      1 fits best beside 5 and 2

All shards have equally many batches: a shard with fewer divides its largest ones.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.frames import COPIES
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.sampling.random_order import hash64, ranks_of, sorted_places

WINDOW_BATCHES = 16  # of a window: 97 % of a packed budget of 4 longest rows, with 4 batches 93 %
_PADDED_WINDOW = 4  # times as many where padded. 1: 16 % more than the sum of costs needs for 6,
# with 8 % of padding for 2 (lists of 4 to 39 frames, budgets of 32 longest)
_WINDOW_CLIPS = 1536  # of a window of small batches. 0: 351 padded batches for 342, 327 packed for
# 322 (lists of 4 to 39 frames, 1,000 episodes, budgets of 4 longest)
_MOST_BATCHES = 256  # … which is no longer than a window of large ones
_BATCH_COST = 0.5  # of a budget: padding that is worth one more batch
_LEAST_FILL = 0.85  # of a batch that ends where costs change. 0: 10 ends to compare for each batch,
# and up to 5 % more batches for 2 % less padding (24 episodes of video, 20 batches of a rank)
_PART_BITS = 8  # of a fraction of a cost
_BIN_BITS = 32  # of the number of an open batch, beside its room

_ORDERS = 16  # of batches that are tried for a small trend. 1: .2 in one of 8 seeds, 40 batches
_SMALL_TREND = 20  # one part of so many
_MOST_SHUFFLED = 1 << 16  # batches: the trend of more is below .02
_MEAN_BITS = 16  # of a mean cost, of the greatest one

"""Of batches: clips of one length; lists one after another; lists padded to the batch's longest."""


@dataclass(frozen=True, eq=False)
class ClipCosts:
    """The costs of an epoch's samples, and the budget of a batch.

    Attributes:
        budget: the greatest cost of a batch: the sum of its clips, or with `pads` the greatest one
            times their number.
        pads: whether all clips of a batch count as the greatest one.
        max_rows: the most clips of a batch.
        cost: of each row in the table of samples, int64[rows], at least 1 and at most `budget`.
        frames: each row's number of frames, int64[rows].
        form: how batches are stored, "stacked", "packed" or "padded".
        mean_rows: the clips of a full batch, on the average.
        most_rows: the clips of the largest batch, at most, in every epoch of costs like these.
        most_frames: … and its frames, padding included.
        window_batches: the batches of a window, as far as memory allows.
    """

    budget: int
    pads: bool
    max_rows: int
    cost: IntArray
    frames: IntArray
    form: str
    mean_rows: int
    most_rows: int
    most_frames: int
    window_batches: int = WINDOW_BATCHES
    _shared: list[Any] = field(default_factory=list, repr=False)

    def of(self, sample: IntArray) -> IntArray:
        """The costs of samples, see `ClipKeys`; int64[n] each."""
        costs: IntArray = self.cost[sample // COPIES]
        return costs

    def shared(self, sample: IntArray) -> IntArray:
        """The parts of batches that samples take, by which shards divide them; int64[n] each."""
        cost = self.of(sample)
        if not self.pads:  # also a place among the most rows; all, if no other clip fits beside it
            is_alone = cost + int(self.cost.min()) > self.budget
            return np.where(is_alone, self.budget, np.maximum(cost, self.budget // self.max_rows))
        parts: IntArray = (self.budget << _PART_BITS) // np.minimum(
            self.budget // cost, self.max_rows
        )
        return parts

    @property
    def window(self) -> int:
        """The costs of a window, as far as memory allows."""
        return self.budget * self.window_batches

    def clips_of_length(self, length: int) -> int:
        """The clips of `length` frames that take the memory of the largest batch."""
        return self.most_rows if self.form == "stacked" else -(-self.most_frames // length)

    def lengths(self, sample: IntArray) -> IntArray:
        """The frame counts of samples; int64[n] each."""
        frames: IntArray = self.frames[sample // COPIES]
        return frames

    def once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """The result of `make` for the last key: the shards of an epoch are planned together."""
        if not self._shared or self._shared[0] != key:
            self._shared[:] = [key, make()]
        return self._shared[1]


def batches_of_window(budget: int, cost: IntArray, *, pads: bool) -> int:
    """The batches of a window of clips with these costs, int64[n], as far as memory allows.

    Each window has batches that mix lengths, or have room left. So there are more batches in a
    window if they are small: `_WINDOW_CLIPS` of the length to which a frame belongs on the average.
    """
    usual = WINDOW_BATCHES * (_PADDED_WINDOW if pads else 1)
    squares = float(np.square(cost, dtype=np.float64).sum())
    length = squares / max(1.0, float(cost.sum()))
    return max(usual, min(_MOST_BATCHES, int(_WINDOW_CLIPS * length / budget)))


class Stream(NamedTuple):
    """The clips of a shard before they are arranged.

    `clip`, int64[n], are places in a sequence of clips. Clips between two of `rounds`, int64, may
    change places.
    """

    clip: IntArray
    rounds: IntArray


class Arrangement(NamedTuple):
    """The order of a shard's clips, int64[n], by place in the stream, and the clips before the end
    of each batch, int64[batches].
    """

    order: IntArray
    ends: IntArray

    def divided(self, num_batches: int) -> Arrangement:
        """The same clips in at least so many batches: the largest ones are halved.

        There must be so many clips.
        """
        missing = num_batches - len(self.ends)
        if missing <= 0:
            return self
        counts = np.diff(self.ends, prepend=0)
        largest = [(-count, batch, 0) for batch, count in enumerate(counts.tolist())]
        heapify(largest)
        cuts = list[int]()
        for _ in range(missing):
            negative, batch, first = largest[0]
            half = -negative // 2
            cuts.append(int(self.ends[batch] - counts[batch]) + first + half)
            heapreplace(largest, (-half, batch, first))
            heappush(largest, (negative + half, batch, first + half))
        return Arrangement(self.order, np.sort(np.concatenate((self.ends, cuts))))

    def limited(self, num_batches: int) -> Arrangement:
        """The first batches."""
        ends = self.ends[:num_batches]
        return Arrangement(self.order[: int(ends[-1]) if len(ends) else 0], ends)


class BudgetUse(NamedTuple):
    """The part of a budget that batches use, and the part of padding in padded batches."""

    used: float
    padding: float

    @classmethod
    def of(cls, cost: IntArray, ends: IntArray, costs: ClipCosts) -> BudgetUse:
        """Measure batches that end at `ends`, of clips with these costs; int64."""
        taken = float(costs_of_batches(cost, ends, costs).sum())
        padding = 1 - float(cost[: ends[-1]].sum()) / taken
        return cls(taken / (len(ends) * costs.budget), padding)


def costs_of_batches(cost: IntArray, ends: IntArray, costs: ClipCosts) -> IntArray:
    """The costs of batches that end at `ends`, of clips with these costs; int64[batches]."""
    begins = np.append(0, ends[:-1])
    if not costs.pads:
        return np.add.reduceat(cost, begins)
    padded: IntArray = np.maximum.reduceat(cost, begins) * np.diff(ends, prepend=0)
    return padded


def arrange(stream: Stream, cost: IntArray, costs: ClipCosts, key: int | None) -> Arrangement:
    """Arrange a stream with these costs, int64[n], into batches.

    `key` is for the order of batches; `None`: clips keep theirs.
    """
    if not len(cost):
        return Arrangement(cost, cost)
    if key is None:
        return Arrangement(np.arange(len(cost)), _in_order(cost, costs))
    bounds = _windows(stream.rounds, cost, costs.window)
    batch, batches = (_padded if costs.pads else _packed)(cost, bounds, costs)
    if not costs.pads:
        batch = _mixed_rest(batch, batches, cost, costs)
    place = ranks_of(_shuffled(batches, cost, batch, key))[batch]
    return Arrangement(sorted_places(place, np.arange(len(place))), np.cumsum(np.bincount(place)))


class _Batches(NamedTuple):
    """The window that completes each batch, int64[batches], and whether another one began it."""

    window: IntArray
    continues: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, first_window: Sequence[int], window: Sequence[int]) -> _Batches:
        begun, ended = np.array(first_window, np.int64), np.array(window, np.int64)
        return cls(ended, begun < ended)


def _shuffled(batches: _Batches, cost: IntArray, batch: IntArray, key: int) -> IntArray:
    """The batches, shuffled in each window: the first of `_ORDERS` orders whose trend is small, or
    the one with the smallest.

    A trend is the correlation of mean cost and number. By chance it is above .1 in every third
    epoch of 100 batches. `cost` and `batch`, int64[n], are those of the clips.
    """
    count = len(batches.window)
    mean = np.bincount(batch, cost) / np.bincount(batch)
    value = np.rint(mean / mean.max() * (1 << _MEAN_BITS)).astype(np.int64)  # exact sums from here
    centered = 2 * np.arange(count) - (count - 1)
    spread = count * int((value * value).sum()) - int(value.sum()) ** 2
    most = (count * count - 1) * spread // (3 * _SMALL_TREND**2)  # of the square of a sum below
    best: IntArray = value
    least = -1
    for draw in range(_ORDERS if count <= _MOST_SHUFFLED else 1):
        hashes = hash64(key, np.arange(count) + draw * count)
        order = np.lexsort((hashes, ~batches.continues, batches.window))
        trend = int((centered * value[order]).sum()) ** 2
        if least < 0 or trend < least:
            best, least = order, trend
        if least <= most:
            break
    return best


def _windows(rounds: IntArray, cost: IntArray, size: int) -> list[int]:
    """The bounds of windows: rounds, or equal parts of a round."""
    before = np.append(0, np.cumsum(cost))
    totals = np.diff(before[rounds])
    number = np.maximum(1, np.rint(totals / size).astype(np.int64))
    bounds = [rounds[-1:]]
    for begin, total, parts in zip(
        rounds[:-1].tolist(), totals.tolist(), number.tolist(), strict=True
    ):
        targets = before[begin] + np.arange(parts) * total // parts
        bounds.append(np.searchsorted(before, targets))
    return np.unique(np.concatenate(bounds)).tolist()  # type: ignore[no-any-return]


def _in_order(cost: IntArray, costs: ClipCosts) -> IntArray:
    """The ends of batches whose clips keep their order."""
    ends, total, largest, count = list[int](), 0, 0, 0
    for place, value in enumerate(cost.tolist()):
        total, largest, count = total + value, max(largest, value), count + 1
        filled = largest * count if costs.pads else total
        if filled > costs.budget or count > costs.max_rows:
            ends.append(place)
            total, largest, count = value, value, 1
    return np.array([*ends, len(cost)], np.int64)


def _packed(cost: IntArray, bounds: list[int], costs: ClipCosts) -> tuple[IntArray, _Batches]:
    """The batch of each clip, by best fit in each window, int64[n]; and the batches."""
    room_of, least = (cost << _BIN_BITS).tolist(), int(cost.min()) << _BIN_BITS
    first_window, last_window, rows = list[int](), list[int](), list[int]()
    chosen: list[int] = []
    rooms: list[int] = []  # of open batches, ascending: room, then number
    empty, most, mask = costs.budget << _BIN_BITS, costs.max_rows, (1 << _BIN_BITS) - 1
    for window, (begin, end) in enumerate(pairwise(bounds)):
        number = len(rows)
        for needed in room_of[begin:end]:
            place = bisect_left(rooms, needed)
            if place < len(rooms):
                room = rooms.pop(place) - needed
                batch = room & mask
            else:
                batch = len(rows)
                room = empty - needed | batch
                first_window.append(window)
                last_window.append(window)
                rows.append(0)
            chosen.append(batch)
            rows[batch] += 1
            if room >= least and rows[batch] < most:
                insort(rooms, room)
            else:
                last_window[batch] = window
        # One batch continues: of this window, so that no batch is open in many; an older one only
        # if no batch of this window comes before it.
        rest = [room & mask for room in rooms]
        begun = rest if number == len(rows) else [batch for batch in rest if batch >= number]
        for batch in rest:
            last_window[batch] = window
        rooms = rooms[rest.index(begun[-1]) :][:1] if begun else []
        for batch in begun[-1:]:
            last_window[batch] = window + 1
    last = len(bounds) - 2
    return np.array(chosen, np.int64), _Batches.of(
        first_window, [min(window, last) for window in last_window]
    )


def _mixed_rest(batch: IntArray, batches: _Batches, cost: IntArray, costs: ClipCosts) -> IntArray:
    """The batch of each clip, int64[n], after the emptiest one of the last window is mixed with the
    fullest.

    It has clips that fitted nowhere, so long ones: alone they would be a trend at the end of an
    epoch, of .09 in 40 batches (24 episodes, an eighth long).
    """
    is_last = (batches.window == batches.window.max()) & ~batches.continues
    last, sums = np.flatnonzero(is_last), np.bincount(batch, cost).astype(np.int64)
    if len(last) < 2 or 2 * sums[last].min() > costs.budget:
        return batch
    pair = last[[np.argmin(sums[last]), np.argmax(sums[last])]]
    clips = np.flatnonzero(np.isin(batch, pair))
    clips = clips[np.argsort(-cost[clips], kind="stable")]
    side = np.arange(1, len(clips) + 1) // 2 % 2  # of falling costs 0 1 1 0: sums differ little
    if np.bincount(side, cost[clips]).max() > costs.budget:
        return batch
    mixed: IntArray = batch.copy()
    mixed[clips] = pair[side]
    return mixed


def _padded(cost: IntArray, bounds: list[int], costs: ClipCosts) -> tuple[IntArray, _Batches]:
    """The batch of each clip, of clips sorted by cost in each window, int64[n]; and the batches."""
    batch_of, number, last = np.empty(len(cost), np.int64), 0, len(bounds) - 2
    first_window, last_window = list[int](), list[int]()
    rest: tuple[int, int, int] | None = None  # a batch that continues: number, cost and clips
    for window, (begin, end) in enumerate(pairwise(bounds)):
        order = np.argsort(-cost[begin:end], kind="stable")
        values = cost[begin:end][order]
        if rest is not None:
            batch, largest, count = rest
            room = min(costs.budget // largest, costs.max_rows) - count
            place = int(np.searchsorted(-values, -largest))
            batch_of[begin + order[place : place + room]] = batch
            last_window[batch] = window
            if window < last and place == 0 and len(values) < room:
                last_window[batch], rest = window + 1, (batch, largest, count + len(values))
            else:
                rest = None
            continued = np.s_[place : place + room]
            order, values = np.delete(order, continued), np.delete(values, continued)
        place = 0
        for stop in _cuts(values, costs):
            batch_of[begin + order[place:stop]] = number
            first_window.append(window)
            last_window.append(window)
            room = min(costs.budget // int(values[place]), costs.max_rows)
            if stop == len(values) and stop - place < room and window < last:
                rest = number, int(values[place]), stop - place
                last_window[number] = window + 1
            place, number = stop, number + 1
    return batch_of, _Batches.of(first_window, last_window)


def _cuts(values: IntArray, costs: ClipCosts) -> list[int]:
    """The ends of padded batches of clips with falling costs, int64[n].

    A batch is full, or ends where costs change shortly before: at the least sum of padded costs and
    of `_BATCH_COST` budgets for each batch.
    """
    place, number = np.arange(len(values)), len(values)
    full = np.minimum(place + np.minimum(costs.budget // values, costs.max_rows), number)
    changes = np.concatenate(([0], np.flatnonzero(np.diff(values)) + 1, [number]))
    change = changes[np.searchsorted(changes, full, side="right") - 1]
    is_near = change - place >= (_LEAST_FILL * (full - place)).astype(np.int64)
    nearest = np.where(is_near, change, full)
    best = {0: (0.0, 0)}  # for the end of a batch: costs up to it, and where it begins
    todo = [0]
    while (begin := heappop(todo)) < number:
        spent = best[begin][0] + _BATCH_COST * costs.budget
        for stop in {int(full[begin]), int(nearest[begin])}:
            total = spent + int(values[begin]) * (stop - begin)
            if stop not in best:
                heappush(todo, stop)
            elif total >= best[stop][0]:
                continue
            best[stop] = total, begin
    ends_of_batches, stop = list[int](), number
    while stop > 0:
        ends_of_batches.append(stop)
        stop = best[stop][1]
    return ends_of_batches[::-1]
