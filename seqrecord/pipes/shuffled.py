"""In which batch of a chain each clip will be, where torch's `.shuffle()` follows the pipe.

Its draws are those of a `random.Random`, which is seeded before the iteration begins, so that a
copy of it draws the same before the clips are made::

    clips of the pipe    0 1 2 3 4 5 6 7
    .shuffle(2) gives    1 0 2 4 5 3 7 6     for example
    .batch(4)            0 0 0 0 1 1 1 1     so clip 3 will be in batch 1, in row 1

A clip that is made there need not be copied, see `engine.adjacent`. Should torch draw in another
way one day, batches are copied, as where nothing is known.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import Batcher, Mapper, ShardingFilter, Shuffler

__all__ = ["ShuffledBatches"]


class ShuffledBatches:
    """Where the clips of one iteration will be: `Places`.

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
        self._draws = random.Random()  # noqa: S311 - as torch does
        self._draws.setstate(draws.getstate())
        self._buffer_size = buffer_size
        self._every, self._first = every, first
        self._num_clips = 0
        self._taken = self._given = 0  # by the buffer
        self._buffer: list[int] = []
        self._known: dict[int, tuple[int, int] | None] = {}  # places of clips that are to come
        self._last: tuple[int, tuple[int, int] | None] = -1, None

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

    @property
    def spare(self) -> float:
        """For so many clips memory is held that are not made yet, on average.

        A batch has its memory when its first clip is made. The chance that the clip which is given
        `k` clips later is made already is `exp(-k / buffer_size)`, so that of `n` clips in the
        buffer `n * (1 + 1/2 + … + 1/size)` rows are held, `n` of them filled.
        """
        return self._buffer_size * sum(1 / i for i in range(2, self.size + 1))

    def begin(self, num_clips: int) -> ShuffledBatches:
        """The iteration has so many clips."""
        self._num_clips = num_clips
        return self

    def find(self, number: int) -> tuple[int, int] | None:
        """Batch and row of a clip, by its number in the iteration; `None` if it will be in none."""
        if number != self._last[0]:
            while number not in self._known:
                if self._given == self._num_clips:
                    return None
                self._step()
            self._last = number, self._known.pop(number)
        return self._last[1]

    def _step(self) -> None:
        """What the buffer does with the next clip, or without one at the end."""
        held, number = self._buffer, self._taken
        if number == self._num_clips:
            self._give(held.pop(self._draws.randint(0, len(held) - 1)))
            return
        self._taken += 1
        if len(held) < self._buffer_size:
            held.append(number)
            return
        drawn = self._draws.randint(0, len(held) - 1)
        given, held[drawn] = held[drawn], number
        self._give(given)

    def _give(self, number: int) -> None:
        place, left = divmod(self._given - self._first, self._every)
        self._known[number] = None if left else divmod(place, self.size)
        self._given += 1
