"""MixLoader: plans and runs the epochs of a mix, and keeps its memory between runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from seqrecord.loader.clips.frames import ClipKeys
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.batches import ENDED, Batch, Channel, OpenBatch
from seqrecord.loader.engine.buffers import BufferNeeds, Buffers
from seqrecord.loader.engine.clip_gatherer import DatasetRun
from seqrecord.loader.engine.devices import BufferCache, Device
from seqrecord.loader.engine.executor import BatchSlots, Executor
from seqrecord.loader.engine.plan_items import ItemNumbers
from seqrecord.loader.engine.run import Run
from seqrecord.loader.engine.stats import STAGES, EngineStats, bottleneck
from seqrecord.loader.engine.tensors import array_of, tensor_of
from seqrecord.loader.engine.vectors import VectorSteps
from seqrecord.loader.frames.array_specs import clip_nbytes
from seqrecord.loader.mixing.agreement import Join, check_sizes, differing_shapes, joined_features
from seqrecord.loader.mixing.batches import MixedBatches, joined_texts
from seqrecord.loader.mixing.form import MixForm
from seqrecord.loader.mixing.mix_datasets import TUNING_OF_SOURCE, MixDataset, naming_source
from seqrecord.loader.mixing.notices import warn_of_form
from seqrecord.loader.mixing.order import Growth, MixOrder, MixPlan, StoppingStrategy
from seqrecord.loader.mixing.tasks import TaskNumbers
from seqrecord.loader.mixing.weights import SourceSize, Weighting
from seqrecord.loader.pipes.collating import make_numpy
from seqrecord.loader.pipes.distributed import worker_threads
from seqrecord.loader.pipes.machine_memory import check_machine
from seqrecord.loader.pipes.normalizations import steps_of_state
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.states import Clip, Json, Segments, State
from seqrecord.loader.pipes.view import View
from seqrecord.loader.pipes.view_loader import ViewLoader
from seqrecord.loader.pipes.view_order import ViewOrder
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.frame_sizes import CONSUMER, MAX_LOADS, Memory
from seqrecord.loader.sampling.mix_memory import MixMemory
from seqrecord.loader.sampling.plan_settings import EpochSegment, MixStart
from seqrecord.loader.sampling.runs import Shard
from seqrecord.loader.sampling.shard_batches import DrawsByPlace
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.units import raise_if

_OWN = ("clips", "batches", "data_wait_seconds")  # statistics of the mix alone
_MOST_TOGETHER = 8  # batches that are made at once,
_MOST_BYTES_TOGETHER = 1 << 20  # … which are small


@dataclass(frozen=True)
class MixParts:
    """The parts of a mix.

    Attributes:
        datasets: the datasets of its sources.
        weighting: their weights.
        options: arguments of the mix: batches, memory, seed, rank, device, threads, trace.
        stop: the end of an epoch.
        join: see `features` of `SeqRecordMix`.
        alternate: see `single_source_batches`.
        form: vectors and further columns.
        steps: steps of vectors by dataset, which replace the ones of `form`.
        fits: whether batches are padded to their longest frame, as those of a budget.
        saved: a state that was loaded.
        growth: how datasets have grown since, if they have.
    """

    datasets: Sequence[MixDataset]
    weighting: Weighting
    options: LoaderOptions
    stop: StoppingStrategy
    join: Join
    alternate: bool | None
    form: MixForm
    steps: Mapping[str, VectorSteps] = field(default_factory=dict)
    fits: bool = False
    saved: State | None = None
    growth: Growth | None = None

    @property
    def views(self) -> dict[str, View]:
        """The view of each dataset, by name."""
        return {dataset.name: dataset.view for dataset in self.datasets}

    @property
    def sizes(self) -> tuple[SourceSize, ...]:
        """The size of each dataset."""
        return tuple(dataset.size for dataset in self.datasets)


@dataclass
class DatasetStats(EngineStats):
    """Counters of one dataset in a mix; `clips` counts clips in batches."""

    duplicate_clips: int = 0  # of the passes begun, that another shard gives too
    num_interleaved: int = 0  # places at a time, in the last of these passes


class MixLoader:
    """Runs the planned epochs of a mix. Picklable. Implements `Loader`.

    Raises `ClipError` for incompatible sources, and `MemoryLimitError`.
    """

    differs_by_epoch = True
    has_own_epochs = False

    def __init__(self, parts: MixParts) -> None:
        datasets, options, join = parts.datasets, parts.options, parts.join
        stop, alternate, form, sizes = parts.stop, parts.alternate, parts.form, parts.sizes
        schedule = parts.weighting.schedule(sizes)
        epoch_clips = parts.weighting.proportions(sizes, 0).epoch_clips
        self.parts = parts
        assert options.most_clips is not None
        self.options, self.join, self.form = options, join, form
        self.batch_size = size = options.most_clips
        shares = schedule.typical_shares()
        views = parts.views
        features = joined_features(views, join)
        formed = form.views(views, shares, features)
        for name, steps in parts.steps.items():
            formed = {**formed, name: formed[name].with_vectors(steps)}
        differing = differing_shapes(views, formed, features, alternate, form.own_units)
        self.alternate = alternate = bool(alternate or differing)
        check_sizes(views)
        frames = options.frames_per_batch
        problem = "a Budget of drawn frames is for batches of all sources, and epochs of whole ones"
        expected = (
            "a number of clips; or sources of equal shapes, no number of batches, repeat or choose"
        )
        is_excluded = any((alternate, isinstance(stop, int), epoch_clips is not None))
        got = f"stopping_strategy={stop!r}, single_source_batches={alternate}"
        raise_if(frames is not None and is_excluded, problem, expected, got)
        self._memory = memory = MixMemory(options.memory_limit)
        self.loaders = {
            dataset.name: _loader_of(
                dataset,
                formed[dataset.name],
                options,
                size if alternate else ceil(size * shares[dataset.name]),
                partial(memory.limit_of, dataset.name),
                1 / len(datasets),
            )
            for dataset in datasets
        }
        self.orders = tuple(loader.order for loader in self.loaders.values())
        self.order = MixOrder(
            self.orders,
            schedule,
            sizes,
            options,
            stop,
            epoch_clips,
            alternate,
            parts.saved,
            parts.growth,
        )
        numbers = range(len(datasets))
        alike = [[number] for number in numbers] if alternate else [[*numbers]]
        self.tasks = TaskNumbers.of(formed, features) if form.number_tasks else None
        masks, texts = form.camera_padding_masks, joined_texts([*views.values()], join)
        names, loaders = [*self.loaders], [*self.loaders.values()]
        self.batches = [
            MixedBatches.of(
                {number: names[number] for number in some},
                {number: loaders[number] for number in some},
                features,
                camera_masks=masks,
                tasks=self.tasks,
                texts=texts,
            )
            for some in alike
        ]
        nested = {name for batches in self.batches for name in batches.nested_names}
        problem, expected = (
            "NumPy has no nested arrays",
            'ragged="list" or "pad"; or output="torch"',
        )
        got = f"output={options.output!r}, nested tensors of {', '.join(sorted(nested))}"
        raise_if(options.output == "numpy" and bool(nested), problem, expected, got)
        warn_of_form(self.batches, shares, differing)
        self._set_memory(shares)
        self._buffers = BufferCache()
        self._batch_buffers = [BufferCache() for _ in self.batches]  # if these differ in form
        self._num_threads = PerProcess(worker_threads)
        self._latest: EngineStats | None = None  # of the last iteration
        self._done = {name: DatasetStats() for name in views}  # in the last iteration

    def _set_memory(self, shares: Mapping[str, Any]) -> None:
        """Divide the memory limit. A limit that is too small is an error."""
        size, draws, memory = self.batch_size, self.options.draws, self._memory
        if draws is not None:  # in clips of the greatest length
            size = -(-draws.most_frames(size) // draws.most)
        memory.batch_bytes = sum(size * one.clip_bytes for one in self.batches)
        is_drawn = draws is not None or any(
            one.options.draws_sizes for one in self.loaders.values()
        )
        may_join = self.batches[0].may_be_joined and not (is_drawn or self.alternate)
        if may_join and not self.parts.fits and self.options.device is None:
            most = min(_MOST_TOGETHER, _MOST_BYTES_TOGETHER // memory.batch_bytes)
            memory.most_together = max(1, most)
        for name, loader in self.loaders.items():
            nbytes = clip_nbytes(loader.view.batch_arrays, loader.view.lengths)
            memory.weights[name] = float(shares[name]) * max(1, nbytes)
            memory.requests[name] = loader.order.memory_request()
        memory.division(1)
        for order in self.orders:
            order.plan_memory(1)

    # ---- plans and positions

    def shared_arguments(self, position: State) -> dict[str, Any]:
        """See `Loader`."""
        order, frames = self.order, self.options.frames_per_batch
        first = 0 if position.start is None else position.start.epoch
        clips = order.epoch_clips
        return {
            "shares": order.schedule.describe(first, position.epoch),
            "stopping_strategy": order.stop if clips is None else f"{clips} clips",
            "batch_size": self.batch_size,
            "seed": self.options.seed,
            "features": self.join,
            "single_source_batches": self.alternate,
            **({"frames_per_batch": frames} if frames is not None else {}),
        }

    def plan(
        self,
        epoch: int,
        shard: Shard,
        segments: Segments = (),
        finished: EpochSegment | None = None,
    ) -> MixPlan:
        """See `Loader`."""
        return self.order.plan(epoch, shard, segments, finished)

    def after_change(self, state: State) -> State:
        """See `Loader`: the remaining clips are planned anew."""
        growth = self.order.growth
        is_at_growth = growth is not None and state.epoch == growth.epoch
        if is_at_growth or not (state.epoch or state.batch or state.segments):
            return state
        return State(state.epoch, segments=(*state.segments, state.segment))

    def start_of(self, position: State) -> MixStart | None:
        """See `Loader`."""
        start = self.order.start(position.epoch, position.ranks, position.workers)
        return None if start == MixStart() else start

    def places(self, position: State) -> Sequence[tuple[int, Segments]]:
        """See `Loader`."""
        start = self.order.start(
            position.epoch, position.ranks, position.workers, position.segments
        )
        return [self.order.place(start, number) for number in range(len(self.orders))]

    def of_state(self, state: State) -> MixLoader:
        """See `Loader`."""
        if len(state.sources) != len(self.loaders):  # which is refused later
            return self
        datasets = [
            dataset.of_state(source)
            for dataset, source in zip(self.parts.datasets, state.sources, strict=True)
        ]
        return MixLoader(replace(self.parts, datasets=datasets, saved=state, growth=None))

    def grown_since(self, earlier: MixLoader, epoch: int) -> MixLoader | None:
        """See `Loader`."""
        pairs = zip(self.parts.datasets, earlier.parts.datasets, strict=True)
        grown = [dataset is not other for dataset, other in pairs]
        if not any(grown):
            return None
        growth = Growth(earlier.order, epoch, grown)
        return MixLoader(replace(self.parts, saved=None, growth=growth))

    def normalized_by(self, normalizations: Sequence[Json], choice: str | None) -> MixLoader:
        """See `Loader`."""
        steps = {
            name: steps_of_state(loader.view, saved, choice)
            for (name, loader), saved in zip(self.loaders.items(), normalizations, strict=True)
        }
        if all(steps[name] is loader.view.vectors for name, loader in self.loaders.items()):
            return self
        return MixLoader(replace(self.parts, steps=steps))

    def forget_frames(self) -> None:
        """See `Loader`."""
        for buffers in (self._buffers, *self._batch_buffers):
            buffers.clear()

    def rows(self, plan: MixPlan, number: int) -> Clip:
        """The columns of a batch by its number, except columns made of features."""
        dataset = plan.datasets(number, number + 1)
        keys, epochs = ClipKeys.zeros(len(dataset)), np.zeros_like(dataset)
        given = plan.given(number)
        for one in np.unique(dataset).tolist():
            slots, clip = np.flatnonzero(dataset == one), int(given[one])
            for epoch_plan, before in self.order.plans(plan, one, clip):
                begin = clip - before
                clips = epoch_plan.clips_between(
                    begin, min(begin + len(slots), epoch_plan.num_clips)
                )
                some, slots = np.split(slots, [len(clips)])
                for column, values in zip(keys, clips.keys, strict=True):
                    column[some] = values
                epochs[some] = epoch_plan.epoch
                clip += len(clips)
                if not len(slots):
                    break
        which = int(dataset[0]) if self.alternate else 0
        batch = Batch({}, keys, dataset, epochs)
        return self.batches[which].columns_of(batch, plan.batches, number, planned=True)

    # ---- runs

    def run(self, plan: MixPlan, *, batch: int = 0, stats: EngineStats) -> Run:
        """See `Loader`."""
        loaders = [*self.loaders.values()]
        self._latest, stats.trace = stats, loaders[0].trace()
        batch, in_worker = min(batch, plan.num_batches), get_worker_info() is not None
        device = self._buffers.device(loaders[0].find_device())
        division = self._memory.division(plan.shard.workers)
        runs, memories = dict[int, DatasetRun](), list[tuple[Memory, int]]()
        begin, end = plan.given(batch).tolist(), plan.given(plan.num_batches).tolist()
        for number, (name, loader) in enumerate(self.loaders.items()):
            self._done[name] = own = DatasetStats(trace=stats.trace)
            if begin[number] < end[number]:
                place = number, begin[number], end[number]
                runs[number], memory = self._dataset_run(plan, *place, own, device)
                memories.append((memory, loader.order.sizes.chunk))
        prefetch = 1 if in_worker else division.prefetch
        memory = _common(prefetch, memories)
        num_batches = (prefetch + CONSUMER) * division.together
        if device is None:
            nbytes = sum(self._done[name].planned_bytes for name in self._done)
            check_machine(nbytes + num_batches * self._memory.batch_bytes, "a mix")
        draws = self.options.draws
        needs = BufferNeeds(
            (),
            {} if self.alternate else self.batches[0].specs,
            {} if self.alternate else self.batches[0].lengths,
            self.batch_size * division.together,
            prefetch + CONSUMER,
            None if device is None else device.device,
            in_worker,
            None if draws is None else draws.most_frames(self.batch_size),
            memory.max_loads + memory.max_read_ahead,
        )
        threads = self.options.tuning.num_threads or self._num_threads.get()
        of_runs = list(runs.values())
        executor = Executor(of_runs, needs, stats, memory, threads, self._buffers, device)
        of_forms = [executor.buffers]
        if self.alternate:
            of_forms = [
                _buffers_of(kept, one, needs, device)
                for kept, one in zip(self._batch_buffers, self.batches, strict=True)
            ]
            for buffers in of_forms:
                stats.watch_memory(buffers)
        numbers = ItemNumbers(batch, plan.num_batches, division.together)
        items = _MixItems(plan, numbers, {number: place for place, number in enumerate(runs)})
        make = partial(self._begin, items, of_forms, threading.Lock())
        channel = Channel(prefetch, stats, make, numbers.numbers[0])
        fill = partial(executor.run, channel, items.slots, numbers.numbers, channel.fill)
        return Run(channel, fill, stats, partial(self._to_items, device), batch, {})

    def _dataset_run(
        self,
        plan: MixPlan,
        number: int,
        clip: int,
        end: int,
        stats: DatasetStats,
        device: Device | None,
    ) -> tuple[DatasetRun, Memory]:
        """The clips `[clip, end)` of a dataset, by their numbers since the start, and the memory of
        its run.
        """
        name, loader = [*self.loaders.items()][number]
        plans = self._passes(name, plan, number, clip, end, stats)
        epoch_plan, draws, before = next(plans)
        rest = self.order.place(plan.start, number)
        run, memory = loader.dataset_run(epoch_plan, clip - before, stats, device, draws, rest)
        return replace(run, following=(loader.next_job(p, draws) for p, draws, _ in plans)), memory

    def _passes(
        self, name: str, plan: MixPlan, number: int, clip: int, end: int, stats: DatasetStats
    ) -> Iterator[tuple[EpochPlan, DrawsByPlace, int]]:
        """Yield the plan of each pass over a dataset, its draws, and the number of its first clip.

        Errors name the source.
        """
        check = partial(self._check, self._latest)
        plans = self.order.plans(plan, number, clip, end, check)
        while True:
            with naming_source(name):
                epoch_plan, before = next(plans, (None, 0))
            if epoch_plan is None:
                return
            stats.add(duplicate_clips=epoch_plan.num_repeated)
            stats.num_interleaved = epoch_plan.num_cursors
            yield epoch_plan, plan.draws(number, before, epoch_plan), before

    def _check(self, stats: EngineStats | None) -> None:
        """Raise `ClipError` if another iteration than this one has begun."""
        raise_if(self._latest is not stats, ENDED, "one iteration at a time")

    def _begin(
        self,
        items: _MixItems,
        buffers: Sequence[Buffers[Any]],
        lock: threading.Lock,
        number: int,
    ) -> OpenBatch:
        """An item to fill, by its number."""
        dataset, first = items.datasets(number), items.numbers.batches(number)[0]
        which = int(dataset[0]) if self.alternate else 0
        batches = items.plan.batches
        return self.batches[which].begin(buffers[which], lock, dataset, batches, first)

    def _to_items(
        self,
        device: Device | None,
        batch: Batch,
        number: int,  # noqa: ARG002
    ) -> list[Clip]:
        """Convert a batch, or several joined ones, to items for users; the first one comes last."""
        which = int(batch.source[0]) if self.alternate else 0
        names = [*self._done]
        for dataset, count in enumerate(np.bincount(batch.source).tolist()):
            if count:
                self._done[names[dataset]].add(clips=count)
        whole = self.batches[which].to_clips(batch, device, fits=self.parts.fits)
        items = [whole]
        if self._memory.most_together > 1 and len(batch) > self.batch_size:
            items = _divided(whole, self.batch_size, are_copied=get_worker_info() is None)
        if self.options.output == "numpy":
            for item in items:
                make_numpy(item)
        return items[::-1]

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:  # noqa: ARG002
        """See `Loader`: of the mix, and of each source."""
        sources = {}
        for name, loader in self.loaders.items():
            report = self._done[name].report()
            limit = STAGES[bottleneck(report, waiting=1.0)]
            sources[name] = {**loader.stats(report, 0), "bottleneck": limit}
        return {**_summed(done, sources), "sources": sources}


def _loader_of(
    dataset: MixDataset,
    view: View,
    mix: LoaderOptions,
    batch_size: int,
    limit_in: Any,
    machine_part: float,
) -> ViewLoader:
    """The loader of a dataset, of which a batch has about `batch_size` clips."""
    tuning = dataset.options.tuning
    engine = {name: getattr(tuning, name) for name in TUNING_OF_SOURCE}
    if dataset.options.frame_transform is not None:
        engine["video_decoder"] = "pyav"  # its frames are on the host
    options = replace(
        dataset.options,
        seed=view.samples.seed,
        batch_size=batch_size,
        engine=replace(mix.tuning, **engine),
        rank=mix.rank,
        device=mix.device,
    )
    return ViewLoader(ViewOrder.of(view, options, limit_in, machine_part))


def _common(prefetch: int, memories: Sequence[tuple[Memory, int]]) -> Memory:
    """The loads of all datasets: at most as many bytes of chunks as theirs together.

    `memories` has the memory of each dataset, and the bytes of its largest chunk.
    """
    largest = max((nbytes for _, nbytes in memories), default=1)

    def number(of_each: Iterator[int]) -> int:
        nbytes = sum(n * chunk for n, (_, chunk) in zip(of_each, memories, strict=True))
        return min(MAX_LOADS, nbytes // max(1, largest))

    loads = number(one.max_loads for one, _ in memories)
    ahead = number(one.max_read_ahead for one, _ in memories)
    return Memory((), prefetch, max(1, loads), ahead)


def _buffers_of(
    kept: BufferCache, batches: MixedBatches, needs: BufferNeeds, device: Device | None
) -> Buffers[Any]:
    """Memory of batches of one form; reuses the memory of this process's last iteration."""
    needs = replace(needs, specs=batches.specs, lengths=batches.lengths)
    buffers = kept.acquire(needs, device)
    kept.release(buffers)  # batches that iterations have begun are theirs
    return buffers


@dataclass(eq=False)
class _MixItems:
    """The items of a channel that delivers the batches of a mix.

    Attributes:
        plan: the batches.
        numbers: batches may be joined.
        place: of each dataset among those of the run, by its number.
    """

    plan: MixPlan
    numbers: ItemNumbers
    place: Mapping[int, int]
    _latest: tuple[int, IntArray] | None = None

    def datasets(self, number: int) -> IntArray:
        """The dataset of each slot in an item, int64[slots]."""
        if self._latest is None or self._latest[0] != number:
            self._latest = number, self.plan.datasets(*self.numbers.batches(number))
        return self._latest[1]

    def slots(self, number: int) -> Sequence[BatchSlots]:
        """The slots of each dataset in an item."""
        dataset = self.datasets(number)
        order = dataset.argsort(kind="stable")
        ends = np.cumsum(np.bincount(dataset)).tolist()
        return [
            BatchSlots(self.place[one], order[begin:end])
            for one, (begin, end) in enumerate(pairwise([0, *ends]))
            if begin < end
        ]


def _divided(whole: Clip, size: int, *, are_copied: bool) -> list[Clip]:
    """The batches of joined ones, of `size` clips each.

    They are copied, so that keeping or pickling one does not keep all. In a worker process they
    stay rows of shared memory, which is sent without a copy.
    """
    count = len(next(iter(whole.values()))) // size
    items = [dict[str, Any]() for _ in range(count)]
    for name, values in whole.items():
        if are_copied and isinstance(values, torch.Tensor):
            array = array_of(values)
            for number, item in enumerate(items):
                item[name] = tensor_of(array[number * size : (number + 1) * size].copy())
        else:
            for number, item in enumerate(items):
                item[name] = values[number * size : (number + 1) * size]
    return items


def _summed(own: dict[str, Any], sources: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The statistics of the mix, with sums over its sources."""
    total = dict(own)
    for report in sources.values():
        for name, value in report.items():
            if isinstance(value, dict):  # by feature
                before = total.get(name, {})
                total[name] = before | {n: before.get(n, 0.0) + more for n, more in value.items()}
            elif isinstance(value, list):  # of features
                total[name] = [*dict.fromkeys([*total.get(name, ()), *value])]
            elif name not in _OWN and not isinstance(value, str):
                total[name] = total.get(name, 0) + value
    if not own["clips"] or own["data_wait_seconds"] < own["waiting_for_consumer_seconds"]:
        return total
    waits = {name: report["waiting_for_loads_seconds"] for name, report in sources.items()}
    slowest = max(waits, key=waits.__getitem__)
    return {**total, "bottleneck": f"source {slowest!r}: {sources[slowest]['bottleneck']}"}
