"""ViewLoader: plans and runs the epochs of a view."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import ClipFrames, ClipKeys
from seqrecord.loader.engine.arena import for_users
from seqrecord.loader.engine.batches import Batch, Channel, OpenBatch
from seqrecord.loader.engine.clip_gatherer import DatasetRun, Job
from seqrecord.loader.engine.devices import BufferCache, Device, device_class
from seqrecord.loader.engine.executor import Executor
from seqrecord.loader.engine.plan_items import ItemNumbers, PlanItems
from seqrecord.loader.engine.run import Run
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.engine.tensors import array_of, tensor_of
from seqrecord.loader.engine.traces import Trace, trace_path
from seqrecord.loader.pipes.budget_costs import fit_columns
from seqrecord.loader.pipes.collating import make_numpy
from seqrecord.loader.pipes.distributed import worker_threads
from seqrecord.loader.pipes.job_memory import RunNotices, SettledMemory, settle
from seqrecord.loader.pipes.needed_pieces import needed_in
from seqrecord.loader.pipes.options import LoaderOptions, SamplesLike
from seqrecord.loader.pipes.padding import cut_padding
from seqrecord.loader.pipes.resident_frames import resident_features
from seqrecord.loader.pipes.source_states import has_fewer
from seqrecord.loader.pipes.states import Clip, Json, Segments, State
from seqrecord.loader.pipes.view import View
from seqrecord.loader.pipes.view_order import ViewOrder, of_selected, plan_clips
from seqrecord.loader.reading.chunk_store import ChunkStore
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.loader.sampling.frame_sizes import Memory
from seqrecord.loader.sampling.plan_settings import EpochSegment
from seqrecord.loader.sampling.runs import Shard
from seqrecord.loader.sampling.settings_choice import EpochMemory
from seqrecord.loader.sampling.shard_batches import DrawsByPlace
from seqrecord.store.processes.forks import PerProcess
from seqrecord.store.storage.url import local_path
from seqrecord.store.text import counted


class ViewLoader:
    """Runs the plans of a view's epochs, and keeps the memory between runs. Picklable.

    Implements `Loader`. Raises `ClipError` for conflicting arguments.
    """

    def __init__(self, order: ViewOrder) -> None:
        self.view, self.order = order.view, order
        view, options = order.view, order.options
        if options.device is not None and view.draws.functions is not None:
            raise ClipError(
                "the functions of clip_transform are called on the host",
                expected="no device, and Tensor.to(device) of batches; or crops and flips alone",
                got=f"device={options.device}",
            )
        trace = options.tuning.trace
        self._trace = None if trace is None else local_path(trace, "trace").absolute()
        self._buffers = BufferCache()
        self.batch_size = order.settings.batch_size
        self._has_plan_columns = bool(order.kind.columns)
        storage = view.dataset.contents.storage
        self._store = storage if isinstance(storage, ChunkStore) else None
        # Of the last run.
        self._frames_stay: bool | None = None
        self._times_without_frame = 0
        self._store_bytes = 0  # for remote chunks
        self._notices = RunNotices()
        self._num_threads = PerProcess(worker_threads)
        self._settled = PerProcess(dict[Any, tuple[EpochMemory, SettledMemory]])

    @property
    def options(self) -> LoaderOptions:
        """The arguments of the loader."""
        return self.order.options

    @property
    def orders(self) -> Sequence[ViewOrder]:
        """See `Loader`."""
        return (self.order,)

    @property
    def differs_by_epoch(self) -> bool:
        """See `Loader`."""
        return self.order.differs_by_epoch

    @property
    def has_own_epochs(self) -> bool:
        """See `Loader`."""
        return True

    def shared_arguments(self, position: State) -> dict[str, Any]:  # noqa: ARG002
        """See `Loader`."""
        return {}

    def set_shuffle(self, shuffle: bool) -> None:
        """Turn shuffling on or off for the next epochs."""
        self.order = self.order.with_shuffle(bool(shuffle))
        self.order.plan_memory(1)

    def with_samples(self, samples: SamplesLike | None) -> ViewLoader:
        """A loader of other samples, which uses the frames in memory if it has the same."""
        options = replace(self.options, samples=samples)
        order = plan_clips(self.view.dataset, of_selected(options))
        view = order.view.with_vectors(self.view.vectors)  # maybe those of a state
        order = replace(order, view=view, options=options)
        order = order.with_shuffle(self.order.settings.shuffle)
        is_same = np.array_equal(order.view.episode_rows, self.view.episode_rows)
        keeps_frames = is_same and self.order.ranks.current().count == 1
        loader = ViewLoader(order.with_frames_of(self.order) if keeps_frames else order)
        if self._store is not None and loader._store is not None:
            loader._store.take_over(self._store)
        if keeps_frames:
            loader._buffers = self._buffers
        loader.order.plan_memory(1)
        return loader

    def of_state(self, state: State) -> ViewLoader:
        """See `Loader`."""
        if len(state.sources) != 1 or not has_fewer(state.sources[0], self.view):
            return self  # another number is refused later
        from seqrecord.loader.pipes.growth import order_of_state  # few resumes need it

        order = order_of_state(self.order, *state.sources)
        return self if order is self.order else ViewLoader(order)

    def grown_since(self, earlier: ViewLoader, epoch: int) -> ViewLoader | None:  # noqa: ARG002
        """See `Loader`."""
        return None if earlier is self else self

    def normalized_by(self, normalizations: Sequence[Json], choice: str | None) -> ViewLoader:
        """See `Loader`."""
        [saved], view = normalizations, self.view
        if not view.vectors and not saved:
            return self
        from seqrecord.loader.pipes.normalizations import steps_of_state  # as with `vectors`

        if (steps := steps_of_state(view, saved, choice)) is view.vectors:
            return self
        loader = ViewLoader(replace(self.order, view=view.with_vectors(steps)))
        loader._buffers = self._buffers
        return loader

    def forget_frames(self) -> None:
        """See `Loader`."""
        self._buffers.clear()

    def plan(
        self,
        epoch: int,
        shard: Shard,
        segments: Segments = (),
        finished: EpochSegment | None = None,
    ) -> EpochPlan:
        """See `Loader`."""
        settings = None if finished is None else finished.settings[0]
        return self.order.plan(epoch, shard, segments, settings)

    def after_change(self, state: State) -> State:
        """See `Loader`: the remaining clips are planned anew."""
        if not state.batch:
            return state
        return State(state.epoch, segments=(*state.segments, state.segment))

    def start_of(self, position: State) -> None:
        """See `Loader`."""

    def places(self, position: State) -> Sequence[tuple[int, Segments]]:
        """See `Loader`."""
        return [(position.epoch, position.segments)]

    # ---- runs

    def run(self, plan: EpochPlan, *, batch: int = 0, stats: EngineStats) -> Run:
        """See `Loader`."""
        stats.trace = self.trace()
        device, shared = self._buffers.device(self.find_device()), get_worker_info() is not None
        batch = min(batch, plan.num_batches)  # with "keep", others may have one more
        dataset_run, memory = self.dataset_run(plan, plan.first_clip(batch), stats, device)
        numbers = ItemNumbers(batch, plan.num_batches, memory.together)
        items = PlanItems(dataset_run.job, numbers)
        needs = items.needs(memory, None if device is None else device.device, shared=shared)
        threads = self.options.tuning.num_threads or self._num_threads.get()
        executor = Executor([dataset_run], needs, stats, memory, threads, self._buffers, device)
        describe = partial(self._columns_of, plan)
        make = partial(OpenBatch, lock=threading.Lock(), describe=describe)
        begin = partial(items.begin, executor.buffers, make)
        channel = Channel(memory.prefetch, stats, begin, numbers.numbers[0])
        fill = partial(executor.run, channel, items.slots, numbers.numbers, channel.fill)
        to_items = partial(self._to_items, plan, device)
        return Run(channel, fill, stats, to_items, batch, plan.counts)

    def dataset_run(
        self,
        plan: EpochPlan,
        first: int,
        stats: EngineStats,
        device: Device | None,
        draws: DrawsByPlace | None = None,
        rest: tuple[int, Segments] | None = None,
    ) -> tuple[DatasetRun, Memory]:
        """Prepare a plan's clips from one on, on a device or the host; in a mix, with the `draws`
        of its batches, and the memory of the `rest` of an epoch, after segments.

        Returns the memory of the run, too.
        """
        on_device, in_worker = device is not None, get_worker_info() is not None
        self._times_without_frame = 0
        self.order.log_mixing(plan.shard)
        place = (plan.epoch, plan.segments) if rest is None else rest
        fitted = self.order.plan_memory(plan.shard.count, *place)
        key, known = (plan.shard, on_device, in_worker), self._settled.get()
        if self._store is not None or key not in known or known[key][0] is not fitted:
            where = {"on_device": on_device, "in_worker": in_worker}
            known[key] = fitted, settle(self.order, fitted, plan, **where)
        settled = known[key][1]
        self._frames_stay, stats.planned_bytes = bool(settled.rows), settled.nbytes
        self._notices.decoding(self.order, plan.shard.count, stats, stay=self._frames_stay)
        if self._store is not None:
            self._store_bytes = settled.store_bytes
            self._store.begin(settled.store_bytes, settled.pieces or {})
            self._notices.remote_reads(self._store, plan.shard, self.view.dataset.url)
        decode_there = self.options.tuning.video_decoder == "torchcodec"
        run = DatasetRun(
            self.job(plan, draws),
            first,
            stats,
            settled.memory.num_rows,
            settled.rows or settled.small_rows,
            decode_there and on_device and self.view.transform is None,
        )
        return run, settled.memory

    def next_job(self, plan: EpochPlan, draws: DrawsByPlace) -> Job:
        """The clips of a following plan of a run, in a mix."""
        if self._store is not None and self._store_bytes:
            self._store.begin(self._store_bytes, needed_in(self.view, plan))
        return self.job(plan, draws)

    def job(self, plan: EpochPlan, draws: DrawsByPlace | None = None) -> Job:
        """The dataset, frames and results of a plan's clips; in a mix, with the `draws` of its
        batches.
        """
        view, seed = self.view, self.order.settings.seed
        frames, drawing = self._drawn(plan.epoch, plan.draws if draws is None else draws)
        draw = partial(view.draw, frames, seed, plan.epoch, **drawing)
        return Job(
            view.dataset,
            plan,
            frames,
            view.arrays,
            view.batch_arrays,
            view.lengths,
            view.transform,
            draw if view.draws.is_any else None,
            view.vectors,
            partial(_sizes_in, view, plan) if self.options.draws_sizes else None,
            view.frames(plan.epoch),
        )

    def trace(self) -> Trace:
        """The trace of an iteration in this process."""
        if self._trace is None:
            return Trace()
        rank, worker = self.order.ranks.current(), get_worker_info()
        number = None if worker is None else worker.id
        return Trace(trace_path(self._trace, rank=(rank.index, rank.count), worker=number))

    def _to_items(
        self, plan: EpochPlan, device: Device | None, batch: Batch, number: int
    ) -> list[Clip]:
        """Convert a batch to items for users: itself, or single clips in reverse order, the last
        one of which is item `number` of the plan.

        Single clips of one engine batch are copied, so that keeping or pickling one does not keep
        all. In a worker process they stay rows of shared memory, which is sent without a copy; each
        tensor of its own would take file descriptors.
        """
        columns, fits = {**batch.columns}, self.options.budget is not None
        view, nested = self.view, self.view.nested
        place = None if device is None else device.device
        features: dict[str, Any] = for_users(batch.features, nested, view.squeezed)
        if self.batch_size is not None:
            if fits and view.padded_axes:
                features = cut_padding(features, view.padded_axes, device)
            features = view.cut_clips(features, columns, packed=plan.is_packed)
            if view.texts is not None:
                features |= view.text_values(
                    features, packed=plan.is_packed, device=place, fits=fits
                )
            if self._has_plan_columns:
                columns |= {n: torch.from_numpy(v) for n, v in plan.columns(number).items()}
            items = [{**features, **columns}]
        else:
            are_copied = len(batch) > 1 and get_worker_info() is None  # only tensors come together
            for name, item in features.items():
                if name in nested:
                    features[name] = [item]
                elif are_copied:
                    features[name] = [tensor_of(np.array(row)) for row in array_of(item)]
            features = view.cut_clips(features, columns, single=True)
            features |= view.text_values(features, single=True, device=place)
            items = view.singles(features, columns)[::-1]
        if self.options.output == "numpy":
            for item in items:
                make_numpy(item)
        return items

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:
        """See `Loader`."""
        clips, stay, costs = self.order.clips(epoch), self._frames_stay, self.order.costs
        if stay is None:  # before a run: in a single shard
            stay = self.order.plan_memory(1).stays
        return {
            **dict.fromkeys(("clips_dropped", "duplicate_clips", "num_interleaved"), 0),
            **done,
            "clips_incomplete": clips.num_incomplete,
            "clips_outside": clips.num_outside,
            "times_without_frame": self._times_without_frame,
            "episodes_too_short": clips.num_short_episodes,
            **self.unused(epoch),
            **({} if costs is None else costs.count_too_large(epoch)),
            "memory_limit": self.order.limit(1),
            **resident_features(self.view, stay=stay),
        }

    def columns(
        self,
        clips: ClipKeys,
        epoch: int,
        draws: DrawsByPlace | None = None,
        *memory: Any,
        planned: bool = False,
    ) -> tuple[dict[str, Any], int]:
        """The columns of clips of an epoch beside features, each a list or a tensor, and the number
        of window times without a frame nearby.

        `draws` are the batch's; `memory` and `planned` as for `ClipColumns.fill`.
        """
        view, seed = self.view, self.order.settings.seed
        frames, drawing = self._drawn(epoch, draws)
        drawn = view.draws.draw(seed, epoch, clips, (), **drawing)
        columns, num_far = view.columns.fill(clips, frames, drawn, *memory, planned=planned)
        costs = self.order.costs_in(epoch)
        return fit_columns(columns, view.columns.origin, costs, clips), num_far

    def count_far(self, num_far: int) -> None:
        """Count window times without a frame nearby, in this iteration."""
        self._times_without_frame += num_far

    def _columns_of(self, plan: EpochPlan, batch: Batch) -> dict[str, Any]:
        """The columns of a batch. The executing thread makes them, beside the consumer's steps."""
        columns, num_far = self.columns(batch.clips, plan.epoch, plan.draws)
        self.count_far(num_far)
        return columns

    def _drawn(
        self, epoch: int, draws: DrawsByPlace | None
    ) -> tuple[ClipFrames, Mapping[str, Any]]:
        """The frames of clips in an epoch, with the draws of their batches; and the arguments of
        `AugmentationSampler.draw`.
        """
        frames_at, draw_at = None, None if draws is None else draws.draw
        if draws is not None and draws.batches.draws is not None:
            frames_at = draws.frames
        sharing = self.order.clips(epoch) if self.order.kind.shares_draws else None
        return self.view.frames(epoch, frames_at), {"sharing": sharing, "draw_at": draw_at}

    def unused(self, epoch: int) -> dict[str, int]:
        """Frames of the selected episodes in no clip, if the order counts them, without windows."""
        if self.options.has_windows:
            return {}
        num_frames, clips = self.view.episodes.num_frames, self.order.clips(epoch)
        frames = self.order.kind.frames_left_out(clips, num_frames)
        return {} if frames is None else {"frames_left_out": frames}

    def describe(self) -> str:
        """A summary line, and a line for each feature with dtype and shape in a clip."""
        more, lengths = "", self.options.clip_lens
        if lengths is not None:
            more = f"; {lengths[0]} to {lengths[1]} frames each, drawn for each batch"
        kind = self.order.kind
        more += kind.describe(self.order.clips(0))
        for frames in self.unused(0).values():
            more += f", {counted(frames, 'frame')} in no clip"
        if self.order.settings.shuffle and kind.is_mixed:
            settings = self.order.plan_memory(1).settings
            if not settings.is_permuted:
                places = counted(settings.num_cursors, "place")
                more += f"; mixed from {places} of an epoch"
        return self.view.describe(more)

    def find_device(self) -> torch.device | None:
        """The device with its number, or `None`; call it in the thread that begins an iteration."""
        if self.options.device is None:
            return None
        device = torch.device(self.options.device)
        if device.type != "cpu" and get_worker_info() is not None:
            raise ClipError(
                "a DataLoader worker cannot deliver tensors on a device",
                expected="num_workers=0, for this loader has threads of its own; or no device, "
                "DataLoader(…, pin_memory=True), and Tensor.to(device, non_blocking=True)",
                got=device,
            )
        return device_class().find(device)


def _sizes_in(view: View, plan: EpochPlan, batch: int) -> dict[str, tuple[int, int]]:
    """The drawn height and width of features in a batch of a plan."""
    return view.draws.sizes(partial(plan.batches.draw, batch))
