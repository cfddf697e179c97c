"""MixLoader: runs the sources of a mix, and keeps its memory between epochs."""

from __future__ import annotations

import operator
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil
from typing import Any

from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError, StateError
from seqrecord.loader.engine.batches import Batch, Channel, OpenBatch
from seqrecord.loader.engine.buffers import BufferNeeds
from seqrecord.loader.engine.devices import Device
from seqrecord.loader.engine.run import Run
from seqrecord.loader.engine.stats import STAGES, EngineStats, bottleneck
from seqrecord.loader.engine.vectors import VectorSteps
from seqrecord.loader.mixing.form import MixForm
from seqrecord.loader.mixing.memory import MixMemory, SourceLimits, most_bytes
from seqrecord.loader.mixing.mixed_batches import (
    BatchBuffers,
    Join,
    MixedBatches,
    check_sizes,
    differing_shapes,
    joined_features,
    joined_texts,
)
from seqrecord.loader.mixing.notices import warn_of_form
from seqrecord.loader.mixing.planning import MixPlan, MixPlanner, StoppingStrategy
from seqrecord.loader.mixing.sources import (
    SourceDataset,
    SourceLoader,
    SourceRun,
    SourceStats,
)
from seqrecord.loader.mixing.tasks import TaskNumbers
from seqrecord.loader.mixing.weights import Era, SourceSize, Weighting
from seqrecord.loader.pipes.collating import make_numpy
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.machine_memory import check_machine
from seqrecord.loader.pipes.normalizations import steps_of_state
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.states import Clip, Json, Segments, State
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.elastic import items_of_workers
from seqrecord.loader.sampling.frame_sizes import CONSUMER
from seqrecord.loader.sampling.plan_settings import PlanSettings
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.units import MAX_INT, check_integer, raise_if

_OWN = ("clips", "batches", "data_wait_seconds")  # statistics of the mix alone


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
        eras: earlier sizes of its datasets, and their sizes now; none: they have not grown.
        steps: steps of vectors by dataset, which replace the ones of `form`.
        fits: whether batches are padded to their longest frame, as those of a budget.
    """

    datasets: Sequence[SourceDataset]
    weighting: Weighting
    options: LoaderOptions
    stop: StoppingStrategy
    join: Join
    alternate: bool | None
    form: MixForm
    eras: tuple[Era, ...] = ()
    steps: Mapping[str, VectorSteps] = field(default_factory=dict)
    fits: bool = False

    @property
    def views(self) -> dict[str, View]:
        """The view of each dataset, by name."""
        return {dataset.name: dataset.view for dataset in self.datasets}

    @property
    def sizes(self) -> tuple[SourceSize, ...]:
        """The size of each dataset."""
        return tuple(dataset.size for dataset in self.datasets)

    def with_growth(self, epoch: int, grown: Sequence[bool]) -> MixParts:
        """The parts with another era, from an epoch on, in which these datasets have grown."""
        eras = self.eras or (Era(0, self.sizes, (False,) * len(grown)),)
        if eras[-1].epoch == epoch:  # it has grown twice before an epoch
            grown = [a or b for a, b in zip(grown, eras[-1].grown, strict=True)]
            eras = eras[:-1]
        return replace(self, eras=(*eras, Era(epoch, self.sizes, tuple(grown))))


class MixLoader:
    """Runs the planned epochs of a mix. Picklable. Implements `Loader`.

    Raises `ClipError` for incompatible sources, and `MemoryLimitError`.
    """

    differs_by_epoch = True

    def __init__(self, parts: MixParts) -> None:
        datasets, options, join = parts.datasets, parts.options, parts.join
        stop, alternate, form = parts.stop, parts.alternate, parts.form
        eras = parts.eras or (Era(0, parts.sizes, (False,) * len(datasets)),)
        eras = tuple(map(parts.weighting.with_clips, eras))
        schedule, epoch_clips = parts.weighting.schedule(eras), eras[-1].epoch_clips
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
        limits = SourceLimits()  # not this object, which has the loaders
        self.loaders = {
            dataset.name: SourceLoader(
                dataset,
                formed[dataset.name],
                options,
                size if alternate else ceil(size * shares[dataset.name]),
                partial(limits.of, dataset.name),
                1 / len(datasets),
            )
            for dataset in datasets
        }
        self._sources = list(self.loaders.values())
        self.orders = tuple(source.order for source in self._sources)
        self.planner = MixPlanner(self.orders, schedule, options, stop, eras, alternate)
        numbered = dict(enumerate(self._sources))
        alike = [dict([item]) for item in numbered.items()] if alternate else [numbered]
        self.tasks = TaskNumbers.of(formed, features) if form.number_tasks else None
        masks, texts = form.camera_padding_masks, joined_texts([*views.values()], join)
        self.batches = [
            MixedBatches.of(some, features, camera_masks=masks, tasks=self.tasks, texts=texts)
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
        self._memory = MixMemory.of(options, self.loaders, shares, self.batches)
        limits.memory = self._memory
        self._done = {name: SourceStats() for name in views}  # in the last iteration
        self.prefetch, _ = self._memory.division(1)
        for order in self.orders:
            order.plan_memory(1)  # a limit that is too small is an error here and now

    def shared_arguments(self, epoch: int) -> dict[str, Any]:
        """See `Loader`."""
        planner, frames = self.planner, self.options.frames_per_batch
        clips, eras = planner.epoch_clips, planner.eras
        return {
            "shares": planner.schedule.describe(epoch),
            "stopping_strategy": planner.stop if clips is None else f"{clips} clips",
            "batch_size": self.batch_size,
            "seed": self.options.seed,
            "features": self.join,
            "single_source_batches": self.alternate,
            **({"frames_per_batch": frames} if frames is not None else {}),
            **({"eras": [era.to_json() for era in eras]} if len(eras) > 1 else {}),
        }

    # ---- plans and positions

    def plan(
        self,
        epoch: int,
        shard: Shard,
        segments: Segments = (),
        settings: PlanSettings | None = None,  # noqa: ARG002
    ) -> MixPlan:
        """The plan of one shard in one epoch, the same on all ranks.

        Epochs of a mix have no segments.
        """
        raise_if(bool(segments), "an epoch of a mix has segments", "none", segments)
        return self.planner.plan(epoch, shard)

    def after_change(self, state: State) -> State:
        """See `Loader`: the remaining clips are skipped."""
        shards = Shard(0, state.ranks).divided(state.workers)
        plans = [self.plan(state.epoch, one) for one in shards]
        most = [plan.num_batches for plan in plans]
        given = items_of_workers(most, state.batch, state.batch_size)
        left = state.ranks * sum(plan.left(n) for plan, n in zip(plans, given, strict=True))
        warn_once(
            f"ranks or workers of a mix have changed in epoch {state.epoch}: it continues at epoch "
            f"{state.epoch + 1}, without the remaining {left:,} clips"
        )
        return state.following

    def of_state(self, state: State) -> MixLoader:
        """See `Loader`."""
        if len(state.sources) != len(self.loaders):  # which is refused later
            return self
        datasets = [
            dataset.of_state(source)
            for dataset, source in zip(self.parts.datasets, state.sources, strict=True)
        ]
        is_same = all(map(operator.is_, datasets, self.parts.datasets))
        eras = _saved_eras(state, len(datasets))
        if is_same and len(eras) <= 1 and len(self.planner.eras) == 1:
            return self
        parts = replace(self.parts, datasets=datasets, eras=eras)
        if eras:  # the last one is the present
            parts = replace(parts, eras=(*eras[:-1], replace(eras[-1], sizes=parts.sizes)))
        return MixLoader(parts)

    def grown_since(self, earlier: MixLoader, epoch: int) -> MixLoader | None:
        """See `Loader`."""
        pairs = zip(self.parts.datasets, earlier.parts.datasets, strict=True)
        grown = [dataset is not other for dataset, other in pairs]
        if not any(grown):
            return None
        parts = replace(earlier.parts, datasets=self.parts.datasets)
        parts = replace(parts, eras=tuple(earlier.planner.eras))
        return MixLoader(parts.with_growth(epoch, grown))

    def normalized_by(self, normalizations: Sequence[Json], choice: str | None) -> MixLoader:
        """See `Loader`."""
        pairs = zip(self._sources, normalizations, strict=True)
        steps = {one.name: steps_of_state(one.view, saved, choice) for one, saved in pairs}
        if all(steps[source.name] is source.view.vectors for source in self._sources):
            return self
        return MixLoader(replace(self.parts, steps=steps))

    def forget_frames(self) -> None:
        """See `Loader`."""
        for source in self._sources:
            source.forget_frames()
        for batches in self.batches:
            batches.kept.clear()

    # ---- execution

    def run(self, plan: MixPlan, *, batch: int = 0, stats: EngineStats) -> Run:
        """See `Loader`."""
        stats.trace = self._sources[0].trace()
        # With `last_batch="keep"`, another rank may have had a batch more than this one has.
        batch = min(batch, plan.num_batches)
        place = self._sources[0].find_device()
        device = self.batches[0].kept.device(place)
        in_worker = get_worker_info() is not None
        num_batches = CONSUMER + (1 if in_worker else self.prefetch)
        if device is None:
            nbytes = sum(most_bytes(order, plan.shard.count) for order in self.orders)
            check_machine(nbytes + num_batches * self._memory.batch_bytes, "a mix")
        where = None if device is None else device.device
        needs = BufferNeeds((), {}, {}, self.batch_size, num_batches, where, in_worker)
        if (draws := self.options.draws) is not None:
            needs = replace(needs, most_frames=draws.most_frames(self.batch_size))
        buffers = [batches.buffers(needs, device) for batches in self.batches]
        for memory in buffers:
            stats.watch_memory(memory)
        begin = partial(self._begin, plan, buffers, threading.Lock())
        channel = Channel(num_batches - CONSUMER, stats, begin, batch, len(self._sources))
        clips = zip(plan.given(batch).tolist(), plan.given(plan.num_batches).tolist(), strict=True)
        fills = []
        for number, (source, some) in enumerate(zip(self._sources, clips, strict=True)):
            source.reset_counts()
            self._done[source.name] = own = SourceStats(trace=stats.trace)
            run = SourceRun(source, number, plan, some, device, own)
            fills.append(partial(run.fill, channel))
        return Run(channel, fills, stats, partial(self._to_items, device), batch, {})

    def _begin(
        self, plan: MixPlan, buffers: Sequence[BatchBuffers], lock: threading.Lock, number: int
    ) -> OpenBatch:
        """A batch to fill, by its number."""
        sources = plan.sources(number)
        which = int(sources[0]) if self.alternate else 0
        return self.batches[which].begin(buffers[which], lock, sources, plan.batches, number)

    def _to_items(
        self,
        device: Device | None,
        batch: Batch,
        number: int,  # noqa: ARG002
    ) -> list[Clip]:
        """Convert a batch to an item for users."""
        which = int(batch.source[0]) if self.alternate else 0
        item = self.batches[which].to_clips(batch, device, fits=self.parts.fits)
        if self.options.output == "numpy":
            make_numpy(item)
        return [item]

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:  # noqa: ARG002
        """See `Loader`: of the mix, and of each source."""
        sources = {}
        for name, loader in self.loaders.items():
            report = self._done[name].report()
            limit = STAGES[bottleneck(report, waiting=1.0)]
            sources[name] = {**loader.stats(report, 0), "bottleneck": limit}
        return {**_summed(done, sources), "sources": sources}


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
    if not own["clips"]:
        return total
    # Each source waits for others or for the consumer; the shortest wait limits the mix.
    waits = {name: report["waiting_for_consumer_seconds"] for name, report in sources.items()}
    slowest = min(waits, key=waits.__getitem__)
    total["waiting_for_consumer_seconds"] = waits[slowest]
    if own["data_wait_seconds"] < waits[slowest]:
        return {**total, "bottleneck": STAGES["consumer"]}
    return {**total, "bottleneck": f"source {slowest!r}: {sources[slowest]['bottleneck']}"}


def _saved_eras(state: State, num_datasets: int) -> tuple[Era, ...]:
    """The eras of a saved mix; none if its datasets have not grown. Raises `StateError`."""
    eras = list[Era]()
    try:
        for epoch, clips, frames, grown in state.shared_arguments.get("eras", ()):
            numbers = [check_integer("eras", n, least=0, most=MAX_INT) for n in (*clips, *frames)]
            sizes = map(SourceSize, numbers[: len(clips)], numbers[len(clips) :])
            first = eras[-1].epoch + 1 if eras else 0
            epoch = check_integer("eras", epoch, least=first, most=MAX_INT if eras else 0)
            eras.append(Era(epoch, tuple(sizes), tuple(map(bool, grown))))
            if not len(clips) == len(frames) == len(grown) == num_datasets:
                raise ValueError("a size for each dataset")
    except (ClipError, TypeError, ValueError) as error:
        expected, got = "epochs and sizes of each source", str(error)
        problem = "the saved state: eras that no mix has saved"
        raise StateError(problem, expected=expected, got=got) from error
    return tuple(eras)
