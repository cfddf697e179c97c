"""MixOrder: the epochs of a mix as integers: the dataset of each slot, and the passes of datasets.

A dataset gives its clips in *passes*, in the orders of its own epochs: each clip comes once in a
pass. An epoch of the mix continues in the pass of each dataset::

    epochs of the mix     |     0     |     1     |     2     |
    passes of "large"     |               0              |    1
    passes of "small"     |   0   |   1   |   2   |   3   |   4

After a change of ranks or workers, and after a growth, passes have segments, as epochs have: what
is left of a pass is planned anew. `MixStart` has these passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, TypeAlias

import numpy as np

from seqrecord.errors import ClipError, StateError
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.batches import do_nothing
from seqrecord.loader.mixing.weights import Phase, SourceSize, WeightSchedule
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.states import Segments, State
from seqrecord.loader.pipes.view_order import ViewOrder
from seqrecord.loader.sampling.elastic import items_of_workers
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.plan_settings import (
    DatasetPass,
    EpochSegment,
    MixStart,
    PlanSettings,
)
from seqrecord.loader.sampling.random_order import Purpose, key_of
from seqrecord.loader.sampling.runs import Shard
from seqrecord.loader.sampling.shard_batches import DrawsByPlace, ShardBatches
from seqrecord.loader.sampling.shares import Shares
from seqrecord.store.units import raise_if

StoppingStrategy: TypeAlias = Literal["first_exhausted", "all_exhausted"] | int
"""The end of an epoch; see `SeqRecordMix`."""

_MOST_SLOTS = 1 << 60
_MOST_PHASES = 64  # with shares in memory
_MOST_STARTS = 64


@dataclass(frozen=True, eq=False)
class MixPlan:
    """The batches of one shard in one epoch: the dataset of each slot.

    The clips of a dataset are numbered over all epochs from a start on. The slots of the shard are
    numbered over all epochs of a phase, in which the weights do not change: the epoch has
    `num_slots`, from `first` on. Each dataset has given `given_before` clips before the phase,
    int64[datasets].
    """

    epoch: int
    shard: Shard
    start: MixStart
    settings: Sequence[PlanSettings]
    num_batches: int
    batches: ShardBatches
    shares: Shares
    turn: int  # clips that a dataset gives in its turn: one, or a batch
    first: int
    num_slots: int
    given_before: IntArray

    def left(self, batch: int) -> int:
        """The slots from a batch to the end of the epoch."""
        return self.num_slots - min(self.batches.first_clip(batch), self.num_slots)

    def draws(self, dataset: int, given: int, plan: EpochPlan) -> DrawsByPlace:
        """The draws for the clips of a pass over a dataset, with `given` clips before it."""
        return DrawsByPlace(
            self.batches, lambda place: self._batches(dataset, given + plan.numbers(place))
        )

    def datasets(self, first: int, last: int) -> IntArray:
        """The dataset of each slot in batches `[first, last)`; int64[slots]."""
        found = self.shares.sources(self._turns_before(first), self._turns_before(last))
        return np.repeat(found, self.turn)

    def given(self, batch: int) -> IntArray:
        """The number of clips that each dataset has given before a batch; int64[datasets]."""
        return self.given_before + self.shares.given(self._turns_before(batch)) * self.turn

    def _batches(self, dataset: int, clips: IntArray) -> IntArray:
        """The batches of a dataset's clips by their numbers, int64[n] each."""
        if not len(clips):
            return clips
        turn, clip = np.divmod(clips - self.given_before[dataset], self.turn)
        begin, end = int(turn.min()), int(turn.max()) + 1
        turns = self.shares.slots(dataset, begin, end)
        return self.batches.find(turns[turn - begin] * self.turn + clip - self.first)[0]

    def _turns_before(self, batch: int) -> int:
        return (self.first + self.num_slots - self.left(batch)) // self.turn


@dataclass(frozen=True, eq=False)
class MixOrder:
    """Plans the epochs of a mix. Picklable.

    Attributes:
        orders: the order of each dataset.
        schedule: the weights of the datasets by epoch.
        sizes: of the datasets.
        options: the arguments of the mix.
        stop: the end of an epoch.
        epoch_clips: clips of an epoch over all ranks, if the mix determines it.
        alternate: whether each batch comes from a single dataset.
        saved: a state that was loaded.
        growth: how datasets have grown since, if they have.
    """

    orders: Sequence[ViewOrder]
    schedule: WeightSchedule
    sizes: Sequence[SourceSize]
    options: LoaderOptions
    stop: StoppingStrategy
    epoch_clips: int | None
    alternate: bool
    saved: State | None = None
    growth: Growth | None = None
    _shares_by_key: dict[int, Shares] = field(default_factory=dict, repr=False)
    # Clips that each dataset has given before each phase, by start, shards, workers and worker.
    _given: dict[tuple[int, ...], list[IntArray]] = field(default_factory=dict, repr=False)
    _starts: dict[tuple[Any, ...], MixStart] = field(default_factory=dict, repr=False)

    @property
    def batch_size(self) -> int:
        """The clips of the largest batch."""
        assert self.options.most_clips is not None, "a mix has batches"
        return self.options.most_clips

    @property
    def unit(self) -> int:
        """The slots that epochs are counted in: whole batches, if all are equally large."""
        return self.batch_size if self.options.frames_per_batch is None else 1

    def plan(
        self,
        epoch: int,
        shard: Shard,
        segments: Segments = (),
        finished: EpochSegment | None = None,
    ) -> MixPlan:
        """The plan of one shard in one epoch, the same on all ranks; see `Loader.plan`."""
        start = self.start(epoch, shard.count // shard.workers, shard.workers, segments)
        if finished is not None:
            return self._of_size(finished.clips)._plan(start, epoch, shard, finished.settings)
        settings = [
            order.find_settings(shard.count, *self.place(start, number), shard.workers)
            for number, order in enumerate(self.orders)
        ]
        return self._plan(start, epoch, shard, settings)

    def _of_size(self, clips: int) -> MixOrder:
        """The order of batches of so many clips; itself, if they have as many."""
        if clips in (0, self.batch_size):
            return self
        options = replace(self.options, batch_size=clips)
        return replace(self, options=options, _shares_by_key={}, _given={}, _starts={})

    def _plan(
        self, start: MixStart, epoch: int, shard: Shard, settings: Sequence[PlanSettings]
    ) -> MixPlan:
        phases, seed = self.schedule.phases(start.epoch, epoch), self.options.seed
        worker, phase = shard.index % shard.workers, phases[-1]
        num_slots = self._num_slots(start, epoch, phase, shard)
        first = self._slots_before(start, epoch, phase, shard)
        raise_if(first + num_slots >= _MOST_SLOTS, "an epoch that no mix comes to", got=epoch)
        number = (start.number,) if epoch == start.epoch and start.number else ()
        key = key_of(Purpose.MIX_BATCHES, seed, epoch, *number)
        batches = ShardBatches(self.batch_size, self.options.draws, key, worker, shard.workers)
        return MixPlan(
            epoch,
            shard,
            start,
            settings,
            batches.count(num_slots),
            batches,
            self._shares(start, phase, worker),
            self._turn,
            first,
            num_slots,
            self._given_before(start, phases, shard),
        )

    # ---- slots and shares

    @property
    def _turn(self) -> int:
        """The clips that a dataset gives in its turn."""
        return self.unit if self.alternate else 1

    def _num_slots(self, start: MixStart, epoch: int, phase: Phase, shard: Shard) -> int:
        """The slots of a shard in an epoch."""
        if epoch > start.epoch or start.slots is None:
            return self._count(shard, phase)
        ranks = shard.count // shard.workers
        return self._of_worker(self._whole(Fraction(start.slots, ranks * self.unit)), shard)

    def _slots_before(self, start: MixStart, epoch: int, phase: Phase, shard: Shard) -> int:
        """The slots of a shard before an epoch in a phase."""
        epochs = range(phase.epoch, epoch)
        if not epochs:
            return 0
        of_first = self._num_slots(start, epochs[0], phase, shard)
        return of_first + (len(epochs) - 1) * self._count(shard, phase)

    def _whole(self, batches: Fraction) -> int:
        """So many batches, rounded such that no dataset begins again, or such that each ends."""
        return int(-(-batches // 1) if self.stop == "all_exhausted" else batches // 1)

    def _count(self, shard: Shard, phase: Phase) -> int:
        """The slots of a whole epoch: until datasets have given the clips of their first pass."""
        stop, workers, unit = self.stop, shard.workers, self.unit
        if self.epoch_clips is not None:  # a number of batches on each rank
            stop = max(1, self.epoch_clips // (shard.count // workers * self.batch_size))
        if isinstance(stop, int):
            return self._of_worker(stop, shard)
        # A dataset with n clips and a share p gives its last clip within n / p slots.
        total, slots = sum(phase.counts), list[Fraction]()
        for size, count in zip(self.sizes, phase.counts, strict=True):
            if count:
                num_clips = max(1, -(-size.clips // shard.count))
                slots.append(Fraction(num_clips * total, count))
        end = min(slots) if stop == "first_exhausted" else max(slots)
        return unit * max(1, self._whole(end / unit))

    def _of_worker(self, batches: int, shard: Shard) -> int:
        """The slots of a worker in so many batches of its rank."""
        worker, workers = shard.index % shard.workers, shard.workers
        return self.unit * ((batches + workers - 1 - worker) // workers)

    def _shares(self, start: MixStart, phase: Phase, worker: int) -> Shares:
        """The datasets of a phase's slots."""
        place: tuple[int, ...] = (worker, phase.epoch) if phase.epoch else (worker,)
        if start.number and phase.epoch == start.epoch:
            place = worker, phase.epoch, start.number
        key = key_of(Purpose.MIX_SOURCES, self.options.seed, *place)
        if key not in self._shares_by_key:
            if len(self._shares_by_key) >= _MOST_PHASES:
                self._shares_by_key.clear()
            self._shares_by_key[key] = Shares(phase.counts, key)
        return self._shares_by_key[key]

    def _given_before(self, start: MixStart, phases: Sequence[Phase], shard: Shard) -> IntArray:
        """The clips that each dataset has given to a shard before the last of these phases."""
        worker = shard.index % shard.workers
        of_start = start.epoch, start.number, start.slots or 0
        place = *of_start, shard.count, shard.workers, worker
        known = self._given.setdefault(place, [np.zeros(len(self.orders), np.int64)])
        for number in range(len(known), len(phases)):
            phase, following = phases[number - 1], phases[number]
            num_slots = self._slots_before(start, following.epoch, phase, shard)
            shares = self._shares(start, phase, worker)
            known.append(known[-1] + shares.given(num_slots // self._turn) * self._turn)
        return known[len(phases) - 1]

    # ---- passes

    def start(self, epoch: int, ranks: int, workers: int, segments: Segments = ()) -> MixStart:
        """Where the datasets continue in an epoch, after its segments."""
        return self.replay(self._first_start(epoch, ranks, workers), epoch, segments)

    def _first_start(self, epoch: int, ranks: int, workers: int) -> MixStart:
        """Where the datasets continued last before an epoch, or at its start."""
        saved = self.saved
        if self.growth is not None:
            return self.growth.start(ranks, workers)
        if saved is None:
            return MixStart()
        start, segments = saved.start or MixStart(), saved.segments
        is_rest = start.slots is not None and start.epoch < saved.epoch
        if epoch < start.epoch + is_rest:  # set anew, as in a run without this state
            return MixStart()
        if epoch <= saved.epoch:
            return start
        place = saved.ranks, saved.workers, saved.clips
        if saved.worker is None and place != (ranks, workers, self.batch_size):
            segments = (*segments, saved.segment)
        return self.replay(start, saved.epoch, segments)

    def replay(self, start: MixStart, epoch: int, segments: Sequence[EpochSegment]) -> MixStart:
        """Where the datasets continue after segments of an epoch."""
        for segment in segments:
            key = start, epoch, segment
            if key not in self._starts:
                if len(self._starts) >= _MOST_STARTS:
                    self._starts.clear()
                try:
                    self._starts[key] = self.after(start, epoch, segment)
                except ClipError as error:
                    problem = f"the saved state has a position that no mix comes to: {error}"
                    raise StateError(problem) from error
            start = self._starts[key]
        return start

    def place(self, start: MixStart, dataset: int) -> tuple[int, Segments]:
        """The pass that a dataset is in, and its segments; those of 0 if it has no segments."""
        for one in start.passes[dataset] if start.passes else ():
            if one.segments:
                return one.epoch, one.segments
        return 0, ()

    def after(self, start: MixStart, epoch: int, segment: EpochSegment) -> MixStart:
        """Where the datasets continue after a segment of an epoch.

        Raises `StateError` for a segment with more batches than its plan.
        """
        ranks, workers = segment.ranks, segment.workers
        shards, order = Shard(0, ranks).divided(workers), self._of_size(segment.clips)
        plans = [order._plan(start, epoch, shard, segment.settings) for shard in shards]
        most = [plan.num_batches for plan in plans]
        returned = items_of_workers(most, segment.batch, segment.batch_size)
        given = [plan.given(number) for plan, number in zip(plans, returned, strict=True)]
        is_begun = any(returned)
        if epoch == start.epoch and not is_begun:
            return start
        left = [plan.left(number) for plan, number in zip(plans, returned, strict=True)]
        passes = []
        for dataset, of_workers in enumerate(np.transpose(given)):
            passes.append(tuple(self._passes_after(start, dataset, of_workers, segment)))
        number = start.number + 1 if epoch == start.epoch else 1
        slots = ranks * sum(left) if is_begun else None
        return MixStart(epoch, number, slots, tuple(passes))

    def _passes_after(
        self, start: MixStart, dataset: int, given: IntArray, segment: EpochSegment
    ) -> Iterator[DatasetPass]:
        """Yield the passes that are left after each worker of a rank has given so many clips of a
        dataset, int64[workers]; the last one has not begun.
        """
        num_shards, settings = segment.ranks * segment.workers, (segment.settings[dataset],)
        for one, first, count in self.passes(start, dataset, num_shards, int(given.min())):
            rows = np.clip(given - first, 0, count)
            if not rows.any():
                yield one
                return
            if rows.min() < count:
                place = segment.ranks, segment.workers, 0, 1, settings, tuple(rows.tolist())
                yield DatasetPass(one.epoch, (*one.segments, EpochSegment(*place)))

    def passes(
        self,
        start: MixStart,
        dataset: int,
        num_shards: int,
        clip: int,
        check: Callable[[], object] = do_nothing,
    ) -> Iterator[tuple[DatasetPass, int, int]]:
        """Yield the passes over a dataset from a clip of a shard on, by its number since the start;
        each with the number of its first clip, and of its clips. For `check` see `epoch_of`.
        """
        order, first = self.orders[dataset], 0
        opened = start.passes[dataset] if start.passes else ()
        for one in opened:
            count = -(-order.clips(one.epoch, one.segments).num_clips // num_shards)
            if first + count > clip and count:
                yield one, first, count
            first += count
        samples, since = order.view.samples, opened[-1].epoch + 1 if opened else 0
        clip = max(clip, first)
        while True:
            epoch, begin = samples.epoch_of(clip - first, num_shards, since, check)
            count = samples.size_of(epoch, num_shards)
            yield DatasetPass(epoch), first + begin, count
            clip = first + begin + count

    def plans(
        self,
        plan: MixPlan,
        dataset: int,
        clip: int,
        end: int = _MOST_SLOTS,
        check: Callable[[], object] = do_nothing,
    ) -> Iterator[tuple[EpochPlan, int]]:
        """Yield the plans of the passes over a dataset with clips `[clip, end)` of a plan's shard,
        and the number of the first clip of each.
        """
        order, shard = self.orders[dataset], plan.shard
        for one, first, _ in self.passes(plan.start, dataset, shard.count, clip, check):
            if first >= end:
                return
            yield order.plan(one.epoch, shard, one.segments, plan.settings[dataset]), first


@dataclass(frozen=True, eq=False)
class Growth:
    """Datasets of a mix that have grown: from an epoch on, they begin their next passes.

    Attributes:
        earlier: the order before, after a state.
        epoch: the first one with all clips.
        grown: which datasets have grown.
    """

    earlier: MixOrder
    epoch: int
    grown: Sequence[bool]

    def start(self, ranks: int, workers: int) -> MixStart:
        """Where the datasets continue in the first epoch with all clips."""
        saved, order, epoch = self.earlier.saved, self.earlier, self.epoch
        assert saved is not None
        if epoch == saved.epoch:  # the ranks before the growth
            ranks, workers = saved.ranks, saved.workers
        start = order.start(epoch, ranks, workers, saved.segments if epoch == saved.epoch else ())
        plan = order.plan(epoch, Shard(0, ranks).divided(workers)[0])
        settings = tuple(plan.settings)
        clips = saved.clips or 0 if epoch == saved.epoch else order.batch_size
        segment = EpochSegment(ranks, workers, 0, 1, settings, clips=clips)
        start = order.replay(start, epoch, [segment])
        if not start.passes:  # nothing has begun
            return start
        passes = [
            (DatasetPass(of_dataset[-1].epoch),) if has_grown else of_dataset
            for of_dataset, has_grown in zip(start.passes, self.grown, strict=True)
        ]
        return replace(start, passes=tuple(passes))
