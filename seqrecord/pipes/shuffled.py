"""In which batch of a chain each clip will be, where torch's `.shuffle()` follows the pipe.

Its draws are those of a `random.Random`, which is seeded before the iteration begins, so that a
copy of it draws the same before the clips are made::

    clips of the pipe    0 1 2 3 4 5 6 7
    .shuffle(2) gives    1 0 2 4 5 3 7 6     for example
    .batch(4)            0 0 0 0 1 1 1 1     so clip 3 will be in batch 1, in row 1

A clip that is made there need not be copied, see `engine.adjacent` and `engine.placed`. Should
torch draw in another way one day, batches are copied, as where nothing is known.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import Batcher, Mapper, ShardingFilter, Shuffler

from seqrecord.clips import IntArray

__all__ = ["ShuffledBatches"]

_AT_ONCE = 1 << 12  # clips whose draws are computed together


class ShuffledBatches:
    """Where the clips of one iteration will be: `Places`, of `engine.adjacent` and `engine.placed`.

    Args:
        draws: what the buffer's items are drawn with; a copy is used.
        buffer_size: clips that are held back.
        size: clips of a batch.
        every, first: of the shuffled clips, every so many-th one from `first` on is kept.
    """

    def __init__(
        self, draws: random.Random, buffer_size: int, size: int, *, every: int = 1, first: int = 0
    ) -> None:
        self.size = size
        self.every = every
        self._first = first
        self._draws = _Draws(draws)
        self._buffer_size = buffer_size
        self._num_clips = self._given = 0
        self._held = np.empty(0, np.int64)  # in the buffer, from which `_given` were taken
        self._taken = 0  # by the buffer
        self._begin = 0  # positions of clips before this one are not asked for any more
        self._known = np.empty(0, np.int64)  # of the others that the buffer took; -1 not known

    @classmethod
    def of(cls, source: object, chain: Sequence[object]) -> ShuffledBatches | None:
        """Of a chain of torch's pipes behind `source`, as they are when it begins; `None` for one
        that does anything but `.shuffle()`, and then `.sharding_filter()`, `.map()`, `.batch()`."""
        shuffler: Shuffler[object] | None = None
        sharding = 1, 0
        for pipe in chain:
            before = getattr(pipe, "source_datapipe", getattr(pipe, "datapipe", None))
            if before is not source or not isinstance(pipe, IterDataPipe):
                return None
            source = pipe
            if type(pipe) is Shuffler and shuffler is None and pipe._enabled and sharding == (1, 0):
                shuffler = pipe
            elif type(pipe) is ShardingFilter and sharding == (1, 0):
                sharding = pipe.num_of_instances, pipe.instance_id
            elif type(pipe) is Batcher and shuffler is not None:
                every, first = sharding
                draws, buffer_size = shuffler._rng, shuffler.buffer_size
                return cls(draws, buffer_size, pipe.batch_size, every=every, first=first)
            elif type(pipe) is not Mapper:
                return None
        return None

    def spare(self, size: int) -> float:
        """For so many clips memory is held that are not made yet, on average, in runs of `size`.

        A run has its memory when its first clip is made. The chance that the clip which is given
        `k` clips later is made already is `exp(-k / buffer_size)`, so that of `n` clips in the
        buffer `n * (1 + 1/2 + … + 1/size)` rows are held, `n` of them filled.
        """
        return self._buffer_size * sum(1 / i for i in range(2, size + 1))

    def begin(self, num_clips: int) -> ShuffledBatches:
        """The iteration has so many clips."""
        self._num_clips = num_clips
        self._taken = min(self._buffer_size, num_clips)
        self._held = np.arange(self._taken)
        self._known = np.full(self._taken, -1)
        return self

    def find(self, number: int) -> tuple[int, int] | None:
        """Batch and row of a clip, by its number in the iteration; `None` if it will be in none."""
        position = int(self.positions(np.array([number]))[0])
        place, left = divmod(position - self._first, self.every)
        return None if left else divmod(place, self.size)

    def positions(self, numbers: IntArray) -> IntArray:
        """Where these clips will be among all that are shuffled, int64[n].

        `numbers` are ascending, and not below those that were asked for before.
        """
        begin, stop = int(numbers[0]), int(numbers[-1]) + 1
        assert stop <= self._num_clips, "the iteration has no such clip"
        while True:
            if stop <= self._taken:
                found = self._known[numbers - self._begin]
                if found.min() >= 0:
                    self._begin, self._known = begin, self._known[begin - self._begin :]
                    return found
            self._step()

    def _step(self) -> None:
        """What the buffer does with the next clips, or without one at the end."""
        count = min(_AT_ONCE, self._num_clips - self._taken)
        if not count:
            self._end()
            return
        drawn = self._draws.below(self._buffer_size, count)
        order = np.argsort(drawn, kind="stable")
        slot, number = drawn[order], self._taken + order
        # A step gives what the last one with the same draw has put there, or what was there before.
        changes = np.flatnonzero(np.diff(slot)) + 1
        first, last = np.append(0, changes), np.append(changes - 1, count - 1)
        given = np.roll(number, 1)
        given[first] = self._held[slot[first]]
        self._held[slot[last]] = number[last]
        self._taken += count
        self._known = np.append(self._known, np.full(count, -1))
        self._known[given - self._begin] = self._given + order
        self._given += count

    def _end(self) -> None:
        held = self._held.tolist()
        while held:
            number = held.pop(int(self._draws.below(len(held), 1)[0]))
            self._known[number - self._begin] = self._given
            self._given += 1


class _Draws:
    """Integers that a copy of a `random.Random` draws, many at once.

    Both are the Mersenne Twister. `randint(0, bound - 1)` takes as many of the upper bits of its
    numbers of 32 bits as `bound` has, until they are below it.
    """

    def __init__(self, draws: random.Random) -> None:
        *key, position = draws.getstate()[1]
        self._bits = np.random.MT19937()
        self._bits.state = {
            "bit_generator": "MT19937",
            "state": {"key": np.array(key, np.uint32), "pos": position},
        }
        self._left = np.empty(0, np.int64)  # numbers that were not used yet

    def below(self, bound: int, count: int) -> IntArray:
        """So many integers of `[0, bound)`, int64[count]."""
        while True:
            values = self._left >> (32 - bound.bit_length())
            good = np.flatnonzero(values < bound)
            if len(good) >= count:
                self._left = self._left[good[count - 1] + 1 :]
                return values[good[:count]]
            more = self._bits.random_raw(max(64, 2 * count)).astype(np.int64)
            self._left = np.append(self._left, more)
