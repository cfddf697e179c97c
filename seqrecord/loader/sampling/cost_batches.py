"""Batches of rows by their costs: how many suffice, and which rows share one. Pure integers.

A *packed* batch has rows whose costs sum to at most the budget. In a *padded* batch, the greatest
cost times the number of rows is at most the budget. `cut_rows` divides consecutive rows of an order
into a given number of batches; `num_sufficient` is a number that suffices for every order of rows,
from their histogram alone. So all shards know each other's number without each other's orders.

Rows change places inside *windows* of about 16 batches, padded 64, or more of few rows. The costs
of two windows, with a budget of 12, padded of 18::

    order     5 3 9 2 7 4 1 6              | 8 1 3 6 2 7 5 3
    packed    9 1 | 7 2 | 6 3 | 5 4          the longest row goes to the emptiest batch
    padded    9 7 | 6 5 4 | 3 2 1 1 2 3 | 3 5 6 | 7 8      sorted, falling and rising in turn

1. Packed: with a long budget, a batch begins with consecutive rows, up to four of the longest rows
   below the budget. A row that fits nowhere in its window goes to the nearest one. If it fits
   nowhere near, its window is filled anew, see `_packed`: in the end without consecutive rows, and
   the longest row goes into the batch that it fills most. Padded: a batch ends where it is full,
   and windows are doubled until batches are few enough.
2. If this needs more batches than given, all rows are one window: packed, the longest row goes
   first into the batch that it fills most; padded, costs fall. `num_sufficient` is the number of
   these batches, or a bound of it.
3. Fewer batches than given: the ones with most rows are halved.
4. The batches of a window are shuffled: in the first of `_ORDERS` orders in which the correlation
   of a batch's mean cost and its number is small, or the one with the least.

Step 2 rounds costs up to one of `_LEVELS` levels, and binds the shortest rows to longer ones if a
batch has at most `max_rows`, see `BatchLimit.bundled`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from seqrecord.loader.sampling.random_order import hash64, ranks_of, sorted_places
from seqrecord.store.tables.grids import IntArray

_WINDOW_BATCHES = 16  # of a packed window, of at least `_WINDOW_ROWS`
_WINDOW_ROWS = 256
_PADDED_BATCHES = 64  # of a padded window, of about `_PADDED_ROWS`
_PADDED_ROWS = 1536  # which mix lengths in fewer batches, but for at most `_MOST_BATCHES`
_MOST_BATCHES = 256
_ALL = 1 << 30
_TRIES = ((4, False, 2), (2, True, 2), (4, False, 16), (_ALL, True, _ALL))  # see `_packed`
_LEVELS = 1 << 14
_NEAR = 256  # a simple bound that is at most one part of so many above the least is not improved
_ORDERS = 16
_SMALL_TREND = 20  # one part of so many
_MEAN_BITS = 16


@dataclass(frozen=True)
class BatchLimit:
    """What a batch may cost.

    Attributes:
        budget: the greatest cost of a batch.
        max_rows: the most rows of a batch.
        pads: whether all rows of a batch count as the longest one.
        longest: the greatest cost of a row, at most `budget`.
        span_rows, span_batches: the least rows and batches of a span, see `order_batches`.
    """

    budget: int
    max_rows: int
    pads: bool
    longest: int
    span_rows: int = 1 << 16
    span_batches: int = 1 << 8

    @property
    def _counts_rows(self) -> bool:
        """Whether a packed batch may have `max_rows` before its budget is spent."""
        return not self.pads and self.max_rows < self.budget

    @property
    def _scale(self) -> int:
        """Costs are counted in parts of `max_rows`, so that a row's part of it is `budget`."""
        return self.max_rows if self._counts_rows else 1

    @property
    def size(self) -> int:
        """The budget in the units of levels."""
        return self.budget * self._scale

    @property
    def _shift(self) -> int:
        return ((self.longest * self._scale - 1) // _LEVELS).bit_length()

    @property
    def num_levels(self) -> int:
        """The number of levels of costs."""
        return int(self.levels(np.array([self.longest]))[0]) + 1

    def levels(self, cost: IntArray) -> IntArray:
        """The levels of costs, ascending with them, int64[n]."""
        return (cost * self._scale - 1) >> self._shift

    def rounded(self, level: IntArray) -> IntArray:
        """The greatest costs of levels, in their units, int64[n]."""
        costs: IntArray = np.minimum(level + 1 << self._shift, self.size)
        return costs

    def bundled(self, costs: IntArray, counts: IntArray) -> tuple[IntArray, IntArray, int, int]:
        """Items of which any have at most `max_rows` rows, if they do not exceed the budget.

        A row that costs less than its part of `max_rows` is bound to a row of at least twice as
        much. Where such rows lack, its cost is rounded up.

        Args:
            costs: of rows, falling, in the units of levels, int64[n].
            counts: the number of rows of each of them, int64[n].

        Returns:
            The costs of items, int64[m], and the number of items of each, int64[m]; and `first` and
            `number`: the last `number` rows are bound, in their order, to the rows from `first` on.
        """
        if not self._counts_rows:
            return costs, counts, 0, 0
        part, ends = self.budget, np.cumsum(counts)
        bounds = np.searchsorted(-costs, [part - self.size, 1 - 2 * part, 1 - part])
        low, high, begin = np.append(0, ends)[bounds].tolist()
        number = min(max(0, high - low), int(ends[-1]) - begin)
        first, rest = high - number, int(ends[-1]) - number
        edges = np.unique(np.concatenate(([0, first, high], ends, ends - (rest - first))))
        edges = edges[(edges >= 0) & (edges < rest)]
        items = np.maximum(costs[np.searchsorted(ends, edges, side="right")], part)
        is_first = (edges >= first) & (edges < high)
        bound = np.searchsorted(ends, edges[is_first] + rest - first, side="right")
        items[is_first] += costs[bound]
        return items, np.diff(edges, append=rest), first, number

    def parts(self, cost: IntArray) -> IntArray:
        """The parts of a batch that rows take, by which shards are made equal, int64[n] >= 1.

        `cost` has all rows. Padded: of a batch of rows of this cost. Packed: also a place among
        `max_rows`; all, if no other row fits beside it.
        """
        if self.pads:
            parts: IntArray = (self.budget << 8) // np.minimum(self.budget // cost, self.max_rows)
            return parts
        is_alone = cost + int(cost.min()) > self.budget
        return np.where(is_alone, self.budget, np.maximum(cost, self.budget // self.max_rows))

    def num_sufficient(self, counts: IntArray) -> int:
        """A number of batches that suffices for so many rows of each level, int64[levels]."""
        level = np.flatnonzero(counts)[::-1]
        if not len(level):
            return 0
        cost, count = self.rounded(level), counts[level]
        if self.pads:
            return self._num_padded(cost, count)
        if self._counts_rows:
            cost, count, _, _ = self.bundled(cost, count)
            falling = np.argsort(-cost, kind="stable")
            cost, count = cost[falling], count[falling]
        # A row that fits nowhere is the last one, and all batches are nearly full.
        before = np.cumsum(cost * count) - cost
        simple = int((before // np.maximum(self.size - cost + 1, cost)).max()) + 1
        least = -(-int(before[-1] + cost[-1]) // self.size)
        simple = min(simple, int(count.sum()))
        if (simple - least) * _NEAR <= least:
            return simple
        return min(simple, int(_best_fit(cost, count, self.size).max()) + 1)

    def window_batches(self, number: int, rows: int) -> int:
        """The batches of a window, of `number` batches of so many rows."""
        if self.pads:
            most = min(_PADDED_ROWS * number // max(1, rows), _MOST_BATCHES)
            return max(_PADDED_BATCHES, most)
        return max(_WINDOW_BATCHES, _WINDOW_ROWS * number // max(1, rows))

    def _num_padded(self, costs: IntArray, counts: IntArray) -> int:
        batches, room = 0, 0
        rows = np.minimum(self.size // costs, self.max_rows)
        for size, many in zip(rows.tolist(), counts.tolist(), strict=True):
            rest = max(0, many - room)
            room -= min(room, many)
            if rest:
                batches += -(-rest // size)
                room = -rest % size
        return batches


def _best_fit(costs: IntArray, counts: IntArray, size: int) -> IntArray:
    """The batches of items of falling costs, so many of each: int64[items].

    An item goes into the batch that it fills most, and into a new one if it fits into none.
    """
    rooms, batches = list[int](), dict[int, IntArray]()  # that have so much room left
    parts, number, least = list[IntArray](), 0, int(costs[-1])

    def put(room: int, more: IntArray) -> None:
        if room < least or not len(more):
            return
        if room in batches:
            more = np.concatenate((batches[room], more))
        else:
            insort(rooms, room)
        batches[room] = more

    for cost, count in zip(costs.tolist(), counts.tolist(), strict=True):
        while count:
            place = bisect_left(rooms, cost)
            if place == len(rooms):
                stop = number - (-count // (size // cost))
                put(size, np.arange(number, stop))
                number = stop
            room = rooms.pop(place)
            items = room // cost
            full = min(count // items, len(batches[room]))
            filled, others = np.split(batches.pop(room), [full])
            parts.append(np.repeat(filled, items))
            count -= full * items
            put(room - items * cost, filled)
            if len(others) and count:
                parts.append(np.repeat(others[:1], count))
                put(room - count * cost, others[:1])
                others, count = others[1:], 0
            put(room, others)
    return np.concatenate(parts)


def cut_rows(cost: IntArray, limit: BatchLimit, number: int, key: int) -> tuple[IntArray, IntArray]:
    """Divide rows with these costs, in their order, int64[n], into batches.

    Args:
        cost: of each row.
        limit: of a batch.
        number: of batches, at least `num_sufficient` and at most n.
        key: of the order of batches.

    Returns:
        The places of rows, batch by batch, int64[n], and the end of each batch there,
        int64[number].
    """
    batch, window = (_padded if limit.pads else _packed)(cost, limit, number)
    place = ranks_of(_shuffled(cost, batch, window, key))[batch]
    order = sorted_places(place, np.arange(len(place)))
    return order, halved(np.cumsum(np.bincount(place)), number)


def cut_in_order(cost: IntArray, limit: BatchLimit) -> IntArray:
    """The ends of batches of rows that keep their order, int64[batches], each with all that fit."""
    ends, total, longest, count = list[int](), 0, 0, 0
    for place, value in enumerate(cost.tolist()):
        count += 1
        if limit.pads:
            longest = value if value > longest else longest
            total = longest * count
        else:
            total += value
        if total > limit.budget or count > limit.max_rows:
            ends.append(place)
            total, longest, count = value, value, 1
    return np.array([*ends, len(cost)] if len(cost) else [], np.int64)


def halved(ends: IntArray, number: int) -> IntArray:
    """The ends of `number` batches, int64: those with most rows are halved, while there are fewer.

    There must be so many rows.
    """
    counts = np.diff(ends, prepend=0)
    largest = [(-count, end) for count, end in zip(counts.tolist(), ends.tolist(), strict=True)]
    heapify(largest)
    cuts = list[int]()
    for _ in range(number - len(ends)):
        negative, end = heappop(largest)
        half = -negative // 2
        cuts.append(end - half)
        heappush(largest, (-half, end))
        heappush(largest, (negative + half, end - half))
    return np.sort(np.concatenate((ends, np.array(cuts, np.int64))))


def _shuffled(cost: IntArray, batch: IntArray, window: IntArray, key: int) -> IntArray:
    """The batches in the order in which they come, by window, int64[batches]."""
    count = len(window)
    mean = np.bincount(batch, cost) / np.bincount(batch)
    value = np.rint(mean / mean.max() * (1 << _MEAN_BITS)).astype(np.int64)  # exact sums from here
    centered = 2 * np.arange(count) - (count - 1)
    spread = count * int((value * value).sum()) - int(value.sum()) ** 2
    small = (count * count - 1) * spread // (3 * _SMALL_TREND**2)  # of the square of a sum
    trends = list[tuple[int, int]]()
    for draw in range(_ORDERS):
        order = np.lexsort((hash64(key, np.arange(count) + draw * count), window))
        trends.append((int((centered * value[order]).sum()) ** 2, draw))
        if trends[-1][0] <= small:
            return order
    draw = min(trends)[1]
    return np.lexsort((hash64(key, np.arange(count) + draw * count), window))


def _padded(cost: IntArray, limit: BatchLimit, number: int) -> tuple[IntArray, IntArray]:
    """The batch of each row, and the window of each batch."""
    before = np.cumsum(cost) - cost
    total = int(cost.sum())
    num_windows = max(1, number // limit.window_batches(number, len(cost)))
    while True:
        window = before * num_windows // total
        falling = limit.longest - cost
        order = sorted_places(window, np.where(window % 2, cost, falling))
        values = cost[order]
        if num_windows == 1:
            values = limit.rounded(limit.levels(values))
        ends = cut_in_order(values, limit)
        if len(ends) <= number or num_windows == 1:
            batch = np.empty(len(cost), np.int64)
            batch[order] = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
            return batch, window[order[np.append(0, ends[:-1])]]
        num_windows = (num_windows + 1) // 2


def _packed(cost: IntArray, limit: BatchLimit, number: int) -> tuple[IntArray, IntArray]:
    """The batch of each row, and the window of each batch."""
    num_windows = max(1, number // limit.window_batches(number, len(cost)))
    bounds = np.arange(num_windows + 1) * number // num_windows
    batches = _Batches(limit, bounds)
    before, total = np.cumsum(cost) - cost, int(cost.sum())
    near = before * number // total  # the batch that has a row's place
    window = batches.window[near]
    batch = np.full(len(cost), -1)
    first = np.searchsorted(near, np.arange(number))
    is_among_first = np.arange(len(cost)) - first[near] < limit.max_rows
    # Each try: how many of the longest rows a batch may have beside consecutive ones; whether these
    # go into the batch that they fill most, which fills batches better, but mixes lengths less; and
    # how much may leave a window, in longest rows, for windows at most so far away.
    for reserved, best, reach in _TRIES:
        again = np.isin(window, window[batch < 0])
        batches.clear(np.unique(window[again]))
        batch[again] = -1
        room = min(total, reserved * int(cost.max()) * number)
        head = again & is_among_first & (batches.window[near] == window)
        head &= (before + cost) * number <= (near + 1) * total - room
        batch[head] = near[head]
        batches.put(cost[head], near[head])
        rest = again & ~head
        batch[rest] = batches.fill(cost[rest], window[rest], best=best)
        left = np.flatnonzero(batch < 0)
        left = left[np.bincount(window[left], cost[left])[window[left]] <= reach * limit.longest]
        stuck = set[int]()
        for row in left[np.argsort(-cost[left], kind="stable")].tolist():
            if window[row] not in stuck:
                batch[row] = batches.nearest(int(cost[row]), int(window[row]), reach)
                stuck |= {int(window[row])} if batch[row] < 0 else set()
        if (batch >= 0).all():
            break
        window = np.where(batch < 0, window, batches.window[batch])
    else:
        return _in_one_window(cost, limit)
    filled = np.bincount(batch, minlength=number) > 0
    return (np.cumsum(filled) - 1)[batch], batches.window[filled]


class _Batches:
    """The open batches of windows: of window w, those in `[bounds[w], bounds[w + 1])`."""

    def __init__(self, limit: BatchLimit, bounds: IntArray) -> None:
        self._limit, self._bounds = limit, bounds
        self.window = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        self._room = np.full(bounds[-1], limit.budget)
        self._rows = np.full(bounds[-1], limit.max_rows)  # that have room

    def put(self, cost: IntArray, batch: IntArray) -> None:
        """Put rows into batches, int64[n] each."""
        self._room -= np.bincount(batch, cost, len(self._room)).astype(np.int64)
        self._rows -= np.bincount(batch, minlength=len(self._room))

    def clear(self, windows: IntArray) -> None:
        """Take all rows out of the batches of windows."""
        is_cleared = np.isin(self.window, windows)
        self._room[is_cleared], self._rows[is_cleared] = self._limit.budget, self._limit.max_rows

    def fill(self, cost: IntArray, window: IntArray, *, best: bool) -> IntArray:
        """The batches of rows in their windows, -1 if a row fits into none, int64[n].

        In all windows at once: the longest row goes first, into the emptiest batch, or with `best`
        into the one that it fills most.
        """
        order = sorted_places(window, self._limit.longest - cost)
        names, first, count = np.unique(window[order], return_index=True, return_counts=True)
        by_count = np.argsort(-count, kind="stable")
        names, first, count = names[by_count], first[by_count], count[by_count]
        sizes = (self._bounds[names + 1] - self._bounds[names]).max(initial=1)
        number = self._bounds[names][:, None] + np.arange(sizes)
        is_batch = number < self._bounds[names + 1][:, None]
        number = np.minimum(number, len(self._room) - 1)
        room = np.where(is_batch & (self._rows[number] > 0), self._room[number], -1)
        rows = self._rows[number].ravel()
        flat = room.ravel()
        lines = np.arange(len(names)) * sizes
        stops = np.searchsorted(-count, -np.arange(int(count.max(initial=0))), side="left")
        values, chosen = cost[order], np.full(len(cost), -1)
        limited, never = self._limit.max_rows < self._limit.budget, np.int64(1) << 62
        for step, stop in enumerate(stops.tolist()):  # of windows with so many rows
            place = first[:stop] + step
            value = values[place]
            rooms = room[:stop]
            if best:
                rooms = np.where(rooms >= value[:, None], rooms, never)
                at = lines[:stop] + rooms.argmin(axis=1)
            else:
                at = lines[:stop] + rooms.argmax(axis=1)
            left = flat[at] - value
            fits = left >= 0
            if not fits.all():
                at, place, left = at[fits], place[fits], left[fits]
            flat[at] = left
            if limited:
                rows[at] -= 1
                flat[at[rows[at] == 0]] = -1
            chosen[place] = at
        batch = np.full(len(cost), -1)
        is_put = chosen >= 0
        batch[order[is_put]] = number.ravel()[chosen[is_put]]
        self.put(cost[batch >= 0], batch[batch >= 0])
        return batch

    def nearest(self, cost: int, window: int, reach: int) -> int:
        """Put a row into the batch that it fills most, of the nearest windows where it fits into
        any, at most `reach` windows away; -1 if it fits into none.
        """
        last, near = len(self._bounds) - 1, 0
        while True:
            low, high = self._bounds[[max(0, window - near), min(last, window + near + 1)]]
            room = np.where(self._rows[low:high] > 0, self._room[low:high], -1)
            fits = np.flatnonzero(room >= cost)
            if len(fits):
                batch = int(low + fits[room[fits].argmin()])
                self._room[batch] -= cost
                self._rows[batch] -= 1
                return batch
            if near >= min(last, reach):
                return -1
            near = 2 * near + 1


def _in_one_window(cost: IntArray, limit: BatchLimit) -> tuple[IntArray, IntArray]:
    """The batch of each row, and the window of each batch, as `num_sufficient` counts them."""
    costs = limit.rounded(limit.levels(cost))
    order = np.argsort(-costs, kind="stable")
    items, _, first, bound = limit.bundled(costs[order], np.ones_like(costs))
    falling = np.argsort(-items, kind="stable")
    values, counts = np.unique(items, return_counts=True)
    chosen = np.empty_like(costs)
    chosen[falling] = _best_fit(values[::-1], counts[::-1], limit.size)
    chosen[len(items) :] = chosen[first : first + bound]
    batch = np.empty_like(chosen)
    batch[order] = chosen
    return batch, np.zeros(chosen.max() + 1, np.int64)
