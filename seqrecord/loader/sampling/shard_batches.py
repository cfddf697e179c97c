"""The batches of a shard: the clips of each, and numbers drawn for a batch.

A batch has `batch_size` clips, as many as a budget's arrangement, or as many as `frames_per_batch`
frames allow, by a drawn number of frames per clip. Draws depend on seed, epoch and the number of
the batch on its rank, never on the rank, so all ranks draw the same at a step. Two ranks of two
workers::

    step of a rank        0    1    2    3    4         frames per clip    8    3   12    6    4
    worker                0    1    0    1    0         clips of 24        3    8    2    4    6
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.sampling.plan_settings import PlanSettings
from seqrecord.loader.sampling.random_order import Purpose, key_of, uniform
from seqrecord.loader.sampling.runs import Shard

_FRAMES = 0  # … of a batch; steps of a `clip_transform` have others
_BATCHES = 1 << 8  # computed at first


@dataclass(frozen=True)
class BatchDraws:
    """The frames of clips, drawn for each batch from `least` to `most`, each equally likely.

    With `frames_per_batch`, a batch has as many clips as have at most so many frames together, and
    at least one.
    """

    least: int
    most: int
    frames_per_batch: int | None = None

    def clips(self, frames: IntArray) -> IntArray:
        """The clips of batches with `frames` frames per clip, int64[n] each."""
        assert self.frames_per_batch is not None
        return np.maximum(self.frames_per_batch // frames, 1)

    @property
    def most_clips(self) -> int:
        """The clips of the largest batch, with `frames_per_batch`."""
        return int(self.clips(np.array([self.least]))[0])

    def most_frames(self, batch_size: int) -> int:
        """The frames of the largest batch; of `batch_size` clips without `frames_per_batch`."""
        if self.frames_per_batch is None:
            return batch_size * self.most
        return max(self.frames_per_batch, self.most)


@dataclass(eq=False)
class ShardBatches:
    """The batches of one shard in one epoch.

    Args:
        size: clips of a batch, without `frames_per_batch`.
        key: for all draws of the epoch.
        worker: number of the shard's worker on its rank, of `workers`.
        frames_of_clips: with a budget, for all clips of the shard, in the order of its batches;
            int64[n].
        widths: the clips of batches by their numbers, int64[n] each, at least 1; `None`: `size`.
    """

    size: int
    draws: BatchDraws | None
    key: int
    worker: int = 0
    workers: int = 1
    frames_of_clips: IntArray | None = None
    widths: Callable[[IntArray], IntArray] | None = None
    _ends: IntArray = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)

    @classmethod
    def of(
        cls,
        settings: PlanSettings,
        draws: BatchDraws | None,
        epoch: int,
        segment: int,
        shard: Shard,
    ) -> ShardBatches:
        """The batches of a shard in a segment of an epoch."""
        key = key_of(Purpose.BATCHES, settings.seed, epoch, segment)
        worker = shard.index % shard.workers
        return cls(settings.batch_size or 1, draws, key, worker, shard.workers)

    def arranged(self, ends: IntArray, frames_of_clips: IntArray) -> ShardBatches:
        """The batches of a budget: the clips before the end of each one, int64[batches]."""
        return replace(self, frames_of_clips=frames_of_clips, _ends=ends)

    def of_widths(self, widths: Callable[[IntArray], IntArray]) -> ShardBatches:
        """Batches with so many clips."""
        return replace(self, widths=widths)

    @property
    def are_drawn(self) -> bool:
        """Whether batches differ in their number of clips."""
        if self.frames_of_clips is not None or self.widths is not None:
            return True
        return self.draws is not None and self.draws.frames_per_batch is not None

    @property
    def most_frames(self) -> int | None:
        """The frames of the largest batch, if frames are drawn."""
        return None if self.draws is None else self.draws.most_frames(self.size)

    def uniform(self, purpose: int, batch: IntArray) -> npt.NDArray[np.float64]:
        """A number in [0, 1) for each batch, float64[n], the same on every rank."""
        step = batch * self.workers + self.worker
        return uniform(key_of(Purpose.NUMBERS_OF_BATCHES, self.key, purpose), step)

    def draw(self, batch: int, purpose: int) -> float:
        """A number in [0, 1) for one batch; see `uniform`."""
        return float(self.uniform(purpose, np.array([batch]))[0])

    def frames(self, batch: IntArray) -> IntArray:
        """The number of frames in each clip of batches, int64[n]."""
        assert self.draws is not None
        low, high = self.draws.least, self.draws.most
        frames: IntArray = low + (self.uniform(_FRAMES, batch) * (high - low + 1)).astype(np.int64)
        return frames

    def frames_in(self, batch: int) -> int | None:
        """The number of frames in each clip of a batch, if drawn."""
        return None if self.draws is None else int(self.frames(np.array([batch]))[0])

    def lengths(self, batch: int) -> IntArray:
        """The frame counts of the clips in a batch with a budget, int64[clips]."""
        assert self.frames_of_clips is not None
        return self.frames_of_clips[self.first_clip(batch) : self.first_clip(batch + 1)]

    def most_listed(self, *, pads: bool) -> int:
        """The frames of the largest batch of a budget, with its padding if it `pads`."""
        if self.frames_of_clips is None or not len(self._ends):
            return 0
        begins = np.append(0, self._ends[:-1])
        if pads:
            longest = np.maximum.reduceat(self.frames_of_clips, begins)
            return int((longest * (self._ends - begins)).max())
        return int(np.add.reduceat(self.frames_of_clips, begins).max())

    def first_clip(self, batch: int) -> int:
        """The number of clips in batches before this one."""
        if not self.are_drawn:
            return batch * self.size
        return int(self._grown(batch, 0)[batch - 1]) if batch else 0

    def find(self, clip: IntArray) -> tuple[IntArray, IntArray]:
        """The batch of each clip, and its slot there, int64[n] each."""
        if not self.are_drawn:
            return np.divmod(clip, self.size)
        ends = self._grown(0, int(clip.max(initial=-1)))
        batch = np.searchsorted(ends, clip, side="right")
        return batch, clip - np.append(0, ends)[batch]

    def count(self, num_clips: int) -> int:
        """The number of batches with so many clips; the last one may be smaller."""
        return int(self.find(np.array([num_clips - 1]))[0][0]) + 1 if num_clips else 0

    def whole(self, num_clips: IntArray) -> IntArray:
        """The clips in full batches, of so many clips; int64[n] each."""
        return num_clips - self.find(num_clips)[1]

    def _clips(self, batch: IntArray) -> IntArray:
        """The clips of batches, int64[n] each."""
        if self.widths is not None:
            return self.widths(batch)
        assert self.draws is not None
        return self.draws.clips(self.frames(batch))

    def _grown(self, batches: int, clip: int) -> IntArray:
        """The clips before the end of each batch, of enough batches for this number and this clip.

        Several threads may call it.
        """
        ends = self._ends
        if self.frames_of_clips is not None:
            return ends
        while len(ends) < batches or not len(ends) or ends[-1] <= clip:
            numbers = np.arange(len(ends), 2 * len(ends) or _BATCHES)
            clips = np.cumsum(self._clips(numbers))
            ends = np.concatenate((ends, clips + ends[-1:].sum()))
        self._ends = ends
        return ends


@dataclass(frozen=True, eq=False)
class DrawsByPlace:
    """The draws for the clips' batches, by `Clips.place`.

    `batch_at` maps places to batches, int64[n] each.
    """

    batches: ShardBatches
    batch_at: Callable[[IntArray], IntArray]

    @classmethod
    def of_one(cls, batches: ShardBatches, batch: int) -> DrawsByPlace:
        """The draws of one batch, whatever the places of its clips."""
        return cls(batches, lambda place: np.full(len(place), batch))

    def frames(self, place: IntArray) -> IntArray:
        """The frames of clips, int64[n]."""
        return self.batches.frames(self.batch_at(place))

    def draw(self, place: IntArray, purpose: int) -> float:
        """A number in [0, 1) for the batch of clips that have one batch."""
        return self.batches.draw(int(self.batch_at(place[:1])[0]), purpose)
