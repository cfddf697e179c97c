"""Shares: the source of each slot in a mix, as a pure function of weights and a key.

After every slot, each source's number of slots differs from its share by less than one. So its
slot number `j`, from 0, is in a window: with a share `p`, at slot `floor(j / p)` or later, and
before slot `ceil((j + 1) / p)`::

    p = 2/5    slots    0   1   2   3   4 | 5   6   7   8   9 | …
    windows             [ j=0     ]
                                [ j=1     ]

Each slot goes to the source whose open window ends first: unit jobs with deadlines on one machine,
for which this order meets all deadlines if any order does (S. Baruah et al., "Proportionate
Progress", Algorithmica 1996, shows that some order does). Neighbours are then swapped, if windows
and a coin drawn from the key allow it.

Shares are fractions with a common denominator, so the pattern repeats with this period. Windows do
not cross periods: the slots of a source before any slot are found without counting.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from numbers import Rational
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of
from seqrecord.store.processes.forks import PerProcess, cached_property

MOST_SLOTS = 1 << 16
"""The largest denominator of shares."""

_LEAST = 1 << 10  # slots that are swapped together: so many at least
_PASSES = 24  # of swaps
_KEPT = 1 << 22  # slots of the periods that are kept, 2 bytes each

_Sources: TypeAlias = npt.NDArray[np.uint16]


class Shares:
    """An endless sequence of slots, each for one source.

    `counts` are integers: source `i` has `counts[i]` of each `sum(counts)` slots; some may be 0.
    """

    def __init__(self, counts: Sequence[int], key: int) -> None:
        self.counts = tuple(counts)
        self._key = key
        self._repeats = -(-_LEAST // sum(counts))
        self._length = self._repeats * sum(counts)  # of a period
        self._kept: dict[int, _Sources] = {}  # the periods that were computed last
        self._lock = PerProcess(threading.Lock)

    def __getstate__(self) -> dict[str, object]:
        state = {name: value for name, value in vars(self).items() if name != "_base"}
        return {**state, "_kept": {}}

    def sources(self, start: int, stop: int) -> IntArray:
        """The sources of slots `[start, stop)`; int64[stop - start]."""
        start_period, stop_period = start // self._length, -(-stop // self._length)
        periods = [
            self._period(number)
            for number in range(start_period, max(stop_period, start_period + 1))
        ]
        begin = start_period * self._length
        return np.concatenate(periods)[start - begin : stop - begin].astype(np.int64)

    def given(self, slot: int) -> IntArray:
        """The number of each source's slots before this one; int64[sources]."""
        period, position = divmod(slot, self._length)
        in_period = np.bincount(self._period(period)[:position], minlength=len(self.counts))
        counts: IntArray = np.array(self.counts, np.int64) * (period * self._repeats) + in_period
        return counts

    def slots(self, source: int, start: int, stop: int) -> IntArray:
        """The slots with numbers `[start, stop)` of a source; int64[stop - start]."""
        per_period = self.counts[source] * self._repeats
        if not per_period:
            return np.empty(0, np.int64)
        start_period, stop_period = start // per_period, -(-stop // per_period)
        parts = [
            np.flatnonzero(self._period(number) == source) + number * self._length
            for number in range(start_period, max(stop_period, start_period + 1))
        ]
        slots: IntArray = np.concatenate(parts)[
            start - start_period * per_period : stop - start_period * per_period
        ]
        return slots

    def _period(self, number: int) -> _Sources:
        """The sources of the slots in period `number`."""
        if (sources := self._kept.get(number)) is None:
            with self._lock.get():  # threads of all sources need the same periods
                if (sources := self._kept.get(number)) is None:
                    if (len(self._kept) + 1) * self._length > max(_KEPT, 2 * self._length):
                        del self._kept[next(iter(self._kept))]
                    sources = self._kept[number] = self._swapped(
                        key_of(Purpose.MIX_PERIODS, self._key, number)
                    )
        return sources

    def _swapped(self, key: int) -> _Sources:
        base = self._base
        sources: _Sources = base[0].copy()
        window_start, window_end = base[1].copy(), base[2].copy()
        for number in range(_PASSES):
            at = np.arange(number % 2, self._length - 1, 2)
            is_swapped = hash64(key_of(Purpose.MIX_SWAPS, key, number), at) >> np.uint64(63) == 1
            at = at[is_swapped & (window_end[at] > at) & (window_start[at + 1] <= at)]
            for column in (sources, window_start, window_end):
                column[at], column[at + 1] = column[at + 1], column[at].copy()
        return sources

    @cached_property
    def _base(self) -> tuple[_Sources, IntArray, IntArray]:
        """The source, and the first and last slot of the window, for each slot of a period."""
        total = sum(self.counts)
        once = _by_deadlines(self.counts)
        sources = np.tile(once, self._repeats)
        count = np.array(self.counts, np.int64)[sources]
        number = np.empty(len(sources), np.int64)  # in its source
        for source in range(len(self.counts)):
            at = np.flatnonzero(sources == source)
            number[at] = np.arange(len(at))
        window_start, window_end = _window(number, count, total)
        return sources.astype(np.uint16), window_start, window_end


def exact_fraction(number: Any) -> Fraction:
    """A number as a fraction of Python's integers; a float by its decimal representation."""
    if isinstance(number, Rational):  # NumPy's integers too, which would overflow in a fraction
        return Fraction(int(number.numerator), int(number.denominator))
    return Fraction(str(number))


def whole_shares(weights: Sequence[int | float | Fraction], most: int = MOST_SLOTS) -> list[int]:
    """Integers in the ratio of weights, of which one at least is above 0.

    If no integers with a sum of at most `most` have exactly this ratio: integers with this sum,
    each at least 1, unless its weight is 0, and at most one off. A float counts as its decimal
    representation.
    """
    exact = [exact_fraction(weight) for weight in weights]
    shares = [weight / sum(exact) for weight in exact]
    denominator = lcm(*(share.denominator for share in shares))
    if denominator <= most:
        return [int(share * denominator) for share in shares]
    counts = [max(1, int(share * most)) if share else 0 for share in shares]
    order = sorted(range(len(shares)), key=lambda i: counts[i] - shares[i] * most)
    order = [i for i in order if shares[i]]
    for i in range(most - sum(counts)):
        counts[order[i]] += 1
    while sum(counts) > most:  # for sources with more than their share
        above = (i for i, count in enumerate(counts) if count > 1)
        counts[max(above, key=lambda i: counts[i] - shares[i] * most)] -= 1
    return counts


def _window(number: IntArray, count: IntArray, total: int) -> tuple[IntArray, IntArray]:
    """The first and the last possible slot for a source's slot of this number."""
    start: IntArray = number * total // count
    end: IntArray = -(-(number + 1) * total // count) - 1
    return start, end


def _by_deadlines(counts: Sequence[int]) -> IntArray:
    """The sources of `sum(counts)` slots: the one whose window ends first."""
    total = sum(counts)
    order = np.empty(total, np.int64)
    num_slots = [0] * len(counts)
    later: list[tuple[int, int, int]] = []  # when its window begins, when it ends, source
    ready = [(-(-total // count) - 1, source) for source, count in enumerate(counts) if count]
    heapq.heapify(ready)
    for slot in range(total):
        while later and later[0][0] <= slot:
            heapq.heappush(ready, heapq.heappop(later)[1:])
        deadline, source = heapq.heappop(ready)
        assert deadline >= slot, "a window was missed"
        order[slot] = source
        num_slots[source] += 1
        number, count = num_slots[source], counts[source]
        window = number * total // count, -(-(number + 1) * total // count) - 1
        if number < count:
            heapq.heappush(later, (*window, source))
    return order
