"""MixPlanner: the epochs of a mix as integers, the source of each slot."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np

from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.mixing.weights import Era, Phase, WeightSchedule, era_of
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.view_order import ViewOrder
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.random_order import Purpose, key_of
from seqrecord.loader.sampling.runs import Shard
from seqrecord.loader.sampling.shard_batches import DrawsByPlace, ShardBatches
from seqrecord.loader.sampling.shares import Shares
from seqrecord.store.units import raise_if

StoppingStrategy: TypeAlias = Literal["first_exhausted", "all_exhausted"] | int
"""The end of an epoch; see `SeqRecordMix`."""


@dataclass(frozen=True)
class MixPlan:
    """The batches of one shard in one epoch: the source of each slot.

    The clips of a source are numbered over all epochs: each epoch of the mix continues at the end
    of the last one. The slots of the shard are numbered over all epochs of a phase, in which the
    weights do not change: the epoch has `num_slots`, from `first` on. Each source has returned
    `given_before` clips before the phase, int64[sources].
    """

    shard: Shard
    num_batches: int
    batches: ShardBatches
    shares: Shares
    turn: int  # clips that a source gives in its turn: one, or a batch
    first: int
    num_slots: int
    given_before: IntArray

    def left(self, batch: int) -> int:
        """The slots from a batch to the end of the epoch."""
        return self.num_slots - min(self.batches.first_clip(batch), self.num_slots)

    def draws(self, source: int, given: int, plan: EpochPlan) -> DrawsByPlace:
        """The draws for the clips of a source's plan, with `given` clips before it."""
        return DrawsByPlace(
            self.batches, lambda place: self._find(source, given + plan.numbers(place))[0]
        )

    def sources(self, batch: int) -> IntArray:
        """The source of each slot in a batch; int64[batch_size]."""
        found = self.shares.sources(self._turns_before(batch), self._turns_before(batch + 1))
        return np.repeat(found, self.turn)

    def given(self, batch: int) -> IntArray:
        """The number of clips that each source has returned before a batch; int64[sources]."""
        return self.given_before + self.shares.given(self._turns_before(batch)) * self.turn

    def places(
        self, source: int, given: int, clips: Sized, first: int
    ) -> tuple[IntArray, IntArray]:
        """Batch and slot of a source's consecutive clips, int64[n] each.

        `first` is the number of the first clip in an epoch of the source, and `given` the number of
        clips before that epoch.
        """
        return self._find(source, np.arange(given + first, given + first + len(clips)))

    def _find(self, source: int, clips: IntArray) -> tuple[IntArray, IntArray]:
        """Batch and slot of a source's clips by their numbers, int64[n] each."""
        if not len(clips):
            return clips, clips
        turn, clip = np.divmod(clips - self.given_before[source], self.turn)
        begin, end = int(turn.min()), int(turn.max()) + 1
        turns = self.shares.slots(source, begin, end)
        return self.batches.find(turns[turn - begin] * self.turn + clip - self._slots_before(0))

    def _turns_before(self, batch: int) -> int:
        return self._slots_before(batch) // self.turn

    def _slots_before(self, batch: int) -> int:
        """The slots before a batch of this epoch, in all epochs of the phase."""
        return self.first + self.num_slots - self.left(batch)


_MOST_SLOTS = 1 << 60
_MOST_PHASES = 64  # with shares in memory


@dataclass(frozen=True, eq=False)
class MixPlanner:
    """Plans the epochs of a mix. Picklable.

    Attributes:
        orders: the order of each source.
        schedule: the weights of the sources by epoch.
        options: the arguments of the mix.
        stop: the end of an epoch.
        eras: the sizes of the sources; the last one is that of `orders`.
        alternate: whether each batch comes from a single source.
    """

    orders: Sequence[ViewOrder]
    schedule: WeightSchedule
    options: LoaderOptions
    stop: StoppingStrategy
    eras: Sequence[Era]
    alternate: bool
    _shares_by_key: dict[int, Shares] = field(default_factory=dict, repr=False)
    # Clips that each source has returned before each phase, by shards, workers and worker.
    _given: dict[tuple[int, int, int], list[IntArray]] = field(default_factory=dict, repr=False)

    @property
    def epoch_clips(self) -> int | None:
        """Clips of an epoch over all ranks, if the mix determines it."""
        return self.eras[-1].epoch_clips

    @property
    def batch_size(self) -> int:
        """The clips of the largest batch."""
        assert self.options.most_clips is not None, "a mix has batches"
        return self.options.most_clips

    @property
    def unit(self) -> int:
        """The slots that epochs are counted in: whole batches, if all are equally large."""
        return self.batch_size if self.options.frames_per_batch is None else 1

    @property
    def turn(self) -> int:
        """The clips that a source gives in its turn."""
        return self.unit if self.alternate else 1

    def plan(self, epoch: int, shard: Shard) -> MixPlan:
        """The plan of one shard in one epoch, the same on all ranks."""
        phases, seed = self.schedule.phases(epoch), self.options.seed
        worker = shard.index % shard.workers
        phase, num_slots = phases[-1], self._count(shard, phases[-1])
        raise_if((epoch + 1) * num_slots >= _MOST_SLOTS, "an epoch that no mix comes to", got=epoch)
        key = key_of(Purpose.MIX_BATCHES, seed, epoch)
        batches = ShardBatches(self.batch_size, self.options.draws, key, worker, shard.workers)
        first, num_batches = (epoch - phase.epoch) * num_slots, batches.count(num_slots)
        shares, given = self._shares(phase, worker), self._given_before(phases, shard)
        return MixPlan(shard, num_batches, batches, shares, self.turn, first, num_slots, given)

    def _shares(self, phase: Phase, worker: int) -> Shares:
        """The sources of a phase's slots."""
        place = (worker, phase.epoch) if phase.epoch else (worker,)
        key = key_of(Purpose.MIX_SOURCES, self.options.seed, *place)
        if key not in self._shares_by_key:
            if len(self._shares_by_key) >= _MOST_PHASES:
                self._shares_by_key.clear()
            self._shares_by_key[key] = Shares(phase.counts, key)
        return self._shares_by_key[key]

    def _given_before(self, phases: Sequence[Phase], shard: Shard) -> IntArray:
        """The clips that each source has returned to a shard before the last of these phases."""
        worker = shard.index % shard.workers
        known = self._given.setdefault(
            (shard.count, shard.workers, worker), [np.zeros(len(self.orders), np.int64)]
        )
        for number in range(len(known), len(phases)):
            following = phases[number]
            given = self._given_until(phases[:number], following.epoch, shard)
            era = era_of(self.eras, following.epoch)
            if era.epoch == following.epoch and era.has_growth:
                starts = self._next_epochs(phases[:number], era, shard)
                given = np.where(era.grown, starts, given)
            known.append(given)
        return known[len(phases) - 1]

    def _given_until(self, phases: Sequence[Phase], epoch: int, shard: Shard) -> IntArray:
        """The clips that each source has returned to a shard when the last phase ends."""
        phase = phases[-1]
        num_slots = (epoch - phase.epoch) * self._count(shard, phase)
        shares = self._shares(phase, shard.index % shard.workers)
        total: IntArray = self._given_before(phases, shard)
        return total + shares.given(num_slots // self.turn) * self.turn

    def _next_epochs(self, phases: Sequence[Phase], era: Era, shard: Shard) -> IntArray:
        """The first clips of the epochs that no worker of any rank has begun before an era.

        A source that has grown begins there. Clips are numbered by its size in the era.
        """
        workers = Shard(0, shard.count // shard.workers).divided(shard.workers)
        returned = [self._given_until(phases, era.epoch, worker) for worker in workers]
        earlier, starts = era_of(self.eras, era.epoch - 1), list[int]()
        for number, given in enumerate(np.max(returned, axis=0).tolist()):
            epoch = -(-given // max(1, -(-earlier.sizes[number].clips // shard.count)))
            if era is self.eras[-1]:
                samples = self.orders[number].view.samples
                starts.append(samples.clips_before(epoch, shard.count))
            else:
                starts.append(epoch * max(1, -(-era.sizes[number].clips // shard.count)))
        return np.array(starts, np.int64)

    def _count(self, shard: Shard, phase: Phase) -> int:
        """The number of slots until sources have returned the clips of their first epochs."""
        stop, workers, size = self.stop, shard.workers, self.unit
        era = era_of(self.eras, phase.epoch)
        if era.epoch_clips is not None:  # a number of batches on each rank
            stop = max(1, era.epoch_clips // (shard.count // workers * self.batch_size))
        if isinstance(stop, int):
            return size * ((stop + workers - 1 - shard.index % workers) // workers)
        # A source with n clips and a share p returns its last clip within n / p slots.
        total, slots = sum(phase.counts), list[Fraction]()
        for source, count in zip(era.sizes, phase.counts, strict=True):
            if count:
                num_clips = max(1, -(-source.clips // shard.count))
                slots.append(Fraction(num_clips * total, count))
        if stop == "first_exhausted":
            return size * max(1, int(min(slots) // size))
        return size * int(-(-max(slots) // size))
