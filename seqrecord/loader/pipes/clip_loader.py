"""ClipLoader: the batches of a view's epochs, made by engines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError
from seqrecord.loader.engine.arena import for_users
from seqrecord.loader.engine.batches import Batch, DrawClips
from seqrecord.loader.engine.buffer_cache import BufferCache
from seqrecord.loader.engine.devices import Device, device_class
from seqrecord.loader.engine.engine import Engine, Execution, run_plan
from seqrecord.loader.engine.executor import Job
from seqrecord.loader.engine.stats import EngineStats, Trace, trace_path
from seqrecord.loader.engine.tensors import array_of, tensor_of
from seqrecord.loader.frame_cache import FrameFolder, is_costly
from seqrecord.loader.pipes.columns import PlanBatch, plan_columns
from seqrecord.loader.pipes.distributed import worker_threads
from seqrecord.loader.pipes.make_view import make_view
from seqrecord.loader.pipes.memory import check_machine, spare_memory
from seqrecord.loader.pipes.needed import needed_in
from seqrecord.loader.pipes.options import LoaderOptions, SamplesLike
from seqrecord.loader.pipes.planning import EpochPlanner, of_selected, plan_clips
from seqrecord.loader.pipes.source_orders import SourceOrder
from seqrecord.loader.pipes.states import Clip, Segments, State
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.bounds import EpochSegment
from seqrecord.loader.sampling.plan import Plan
from seqrecord.loader.sampling.runs import Shard
from seqrecord.loader.sampling.shard_batches import DrawsByPlace
from seqrecord.store.clips.frames import ClipFrames, ClipKeys
from seqrecord.store.clips.tables import ClipTable
from seqrecord.store.storage.chunk_store import ChunkStore, Pieces
from seqrecord.store.storage.url import local_path
from seqrecord.store.text import counted, shown_place
from seqrecord.store.units import format_size

_logger = logging.getLogger("seqrecord")


@dataclass
class _Iteration:
    """State of the last iteration."""

    frames_stay: bool | None = None
    times_without_frame: int = 0
    stats: EngineStats | None = None
    is_noted: bool = False  # that every epoch decodes its frames
    are_shards_noted: bool = False  # that each shard reads remote bytes


class ClipLoader:
    """Makes the batches of a view's epochs. Picklable. Implements `BatchSource`.

    Raises `ClipError` for conflicting arguments.
    """

    def __init__(self, planner: EpochPlanner) -> None:
        self.view, self.ranks = planner.view, planner.ranks
        view, options = planner.view, planner.options
        if options.device is not None and view.draws.functions is not None:
            raise ClipError(
                "the functions of clip_transform are called on the host",
                expected="no device, and Tensor.to(device) of batches; or crops and flips alone",
                got=f"device={options.device}",
            )
        trace = options.tuning.trace
        self._trace = None if trace is None else local_path(trace, "trace").absolute()
        self._buffers = BufferCache()
        self._order = SourceOrder(planner)
        self.batch_size = planner.settings.batch_size
        self._plan_columns = plan_columns(planner.order.columns)
        storage = view.dataset.contents.storage
        self._store = storage if isinstance(storage, ChunkStore) else None
        self.machine_part = 1.0  # of the memory for loaders of this process
        self._iteration = _Iteration()

    @property
    def planner(self) -> EpochPlanner:
        """Plans the epochs, and settles their memory."""
        return self._order.planner

    @property
    def options(self) -> LoaderOptions:
        """The arguments of the loader."""
        return self.planner.options

    @property
    def sources(self) -> Sequence[SourceOrder]:
        """See `BatchSource`."""
        return (self._order,)

    def shared_arguments(self, epoch: int) -> dict[str, Any]:  # noqa: ARG002
        """See `BatchSource`."""
        return {}

    @property
    def differs_by_epoch(self) -> bool:
        """See `BatchSource`."""
        view, options = self.view, self.options
        is_drawn = view.draws.is_random or options.has_drawn_steps
        return self.planner.settings.shuffle or view.samples.is_random or is_drawn

    def set_shuffle(self, shuffle: bool) -> None:
        """Turn shuffling on or off for the next epochs."""
        if bool(shuffle) != self.planner.settings.shuffle:
            self._order = SourceOrder(self.planner.with_shuffle(bool(shuffle)))
        self.planner.plan_memory(1)

    def with_samples(self, samples: SamplesLike | None) -> ClipLoader:
        """A loader of other samples, which uses the frames in memory if it has the same."""
        options = replace(self.options, samples=samples)
        planner = plan_clips(self.view.dataset, of_selected(options))
        planner = replace(planner, options=options).with_shuffle(self.planner.settings.shuffle)
        found, before = ClipLoader(planner), self.view.episode_rows
        if self._store is not None and found._store is not None:
            found._store.take_over(self._store)
        is_same = np.array_equal(planner.view.episode_rows, before)
        if is_same and self.ranks.current().count == 1:
            found._buffers = self._buffers
        planner.plan_memory(1)
        return found

    def in_excerpts_of(self, state: State) -> ClipLoader:
        """See `BatchSource`."""
        [source] = state.sources
        if self._order.excerpt_frames == source.excerpt_frames or not self.options.lists_frames:
            return self
        options = of_selected(self.options)
        dataset, excerpt_frames = self.view.dataset, source.excerpt_frames
        planner = EpochPlanner.of(
            make_view(dataset, options, excerpt_frames=excerpt_frames), options
        )
        planner = replace(planner, options=self.options)
        found = ClipLoader(planner.with_shuffle(self.planner.settings.shuffle))
        found._buffers = self._buffers
        return found

    def clips(self, epoch: int) -> ClipTable:
        """The clips of an epoch."""
        return self.planner.clips(epoch)

    def plan(self, epoch: int, shard: Shard, segments: Segments = (), *settings: Any) -> Plan:
        """See `BatchSource`."""
        options = self.options
        if options.most_clips is None and (options.clip_lens is not None or options.draws_sizes):
            raise ClipError(
                "clip_len or a size is drawn for each batch, and the loader makes single clips",
                expected="a batch_size; or a SeqRecordMix around the loader",
                got=f"clip_len={options.clip_len}",
            )
        return self.planner.plan(epoch, shard, segments, *settings)

    def after_change(self, state: State) -> State:
        """See `BatchSource`: the remaining clips are planned anew."""
        if not state.batch:
            return state
        [source] = state.sources
        place = state.ranks, state.workers, state.batch, state.batch_size
        segment = EpochSegment(*place, source.rest or source.settings)
        return State(state.epoch, segments=(*state.segments, segment))

    # ---- execution

    def start(
        self, plan: Plan, segments: Segments = (), *, batch: int = 0, stats: EngineStats
    ) -> Engine:
        """See `BatchSource`."""
        self._iteration.times_without_frame = 0
        execution = self.execution(plan, segments, stats)
        describe = partial(self._columns_of, plan)
        return run_plan(execution, stats, batch=batch, describe=describe)

    def execution(
        self,
        plan: Plan,
        segments: Segments,
        stats: EngineStats,
        device: Device | None = None,
        draws: DrawsByPlace | None = None,
    ) -> Execution:
        """Prepare the execution of a plan without the clips of `segments`; in a mix, on its
        `device` and with the `draws` of its batches.
        """
        # A mix finds it in the user's thread: this is another thread, with a GPU of its own.
        device = device or self._buffers.device(self.find_device())
        on_device, in_worker = device is not None, get_worker_info() is not None
        memory, nbytes, rows = self.planner.execution_memory(
            plan, segments, on_device=on_device, in_worker=in_worker
        )
        self._iteration.frames_stay = bool(rows)
        _note_decoding(self.planner, self._iteration, plan.shard.count, stats)
        if self._store is not None:
            pieces: Pieces = {} if rows else needed_in(self.view, plan)
            if wanted := sum(int((stop - start).sum()) for start, stop in pieces.values()):
                memory, nbytes = self.planner.leave_room(plan, segments, memory, wanted)
            room = 0 if rows else self.planner.store_bytes(plan, memory, nbytes)
            room = min(room, spare_memory(nbytes, self.machine_part))
            self._begin_store(self._store, plan, room, pieces if room else {})
        if not on_device and self.planner.limit_in is None:
            check_machine(nbytes, self.view.dataset.url)
        tuning = self.options.tuning
        return Execution(
            self.job(plan, draws),
            stats,
            memory,
            tuning.num_threads or worker_threads(),
            self._buffers,
            device,
            shared=in_worker,
            decode_there=tuning.video_decoder == "torchcodec",
            rows=rows,
        )

    def _begin_store(self, store: ChunkStore, plan: Plan, capacity: int, pieces: Pieces) -> None:
        """Give the store of remote chunks its memory, and the bytes that the plan needs.

        It has none beside resident frames: these are loaded once.
        """
        store.begin(capacity, pieces)
        if plan.shard.count > 1 and not (store.has_disk_cache or self._iteration.are_shards_noted):
            self._iteration.are_shards_noted = True
            _note_shards(self.view.dataset.url, plan.shard)

    def job(self, plan: Plan, draws: DrawsByPlace | None = None) -> Job:
        """The dataset, frames and results of a plan's clips; in a mix, with the `draws` of its
        batches.
        """
        view, draws = self.view, plan.draws if draws is None else draws
        frames = self._drawn_frames(plan.epoch, draws)
        draw = self._draw_of(plan.epoch, draws, partial(view.draw, frames))
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
        )

    def trace(self) -> Trace:
        """The trace of an iteration in this process."""
        if self._trace is None:
            return Trace()
        rank, worker = self.ranks.current(), get_worker_info()
        number = None if worker is None else worker.id
        return Trace(trace_path(self._trace, rank=(rank.index, rank.count), worker=number))

    def to_clips(self, batch: Batch, plan: Plan, number: int) -> list[Clip]:
        """See `BatchSource`.

        Single clips of one engine batch are copied, so that keeping or pickling one does not keep
        all. In a worker process they stay rows of shared memory, which is sent without a copy; each
        tensor of its own would take file descriptors.
        """
        columns = {**batch.columns}
        nested, squeezed = self.view.nested, self.view.squeezed
        features: dict[str, Any] = for_users(batch.features, nested, squeezed)
        if self.batch_size is not None:
            features = self.view.cut_clips(features, columns)
            place = PlanBatch(plan, number)
            for column in self._plan_columns:
                columns[column.name] = column.fill(place)
            return [{**features, **columns}]
        are_copied = len(batch) > 1 and get_worker_info() is None  # only tensors come together
        for name, item in features.items():
            if name in nested:
                features[name] = [item]
            elif are_copied:
                features[name] = [tensor_of(np.array(row)) for row in array_of(item)]
        features = self.view.cut_clips(features, columns, single=True)
        return self.view.singles(features, columns)[::-1]

    def stats(self, done: dict[str, Any], epoch: int) -> dict[str, Any]:
        """See `BatchSource`."""
        clips = self.clips(epoch)
        return {
            "clips_dropped": 0,
            "duplicate_clips": 0,
            "num_interleaved": 0,
            **done,
            "clips_incomplete": clips.num_incomplete,
            "clips_outside": clips.num_outside,
            "times_without_frame": self._iteration.times_without_frame,
            "episodes_too_short": clips.num_short_episodes,
            **self.unused(epoch),
            "memory_limit": self.planner.limit(1),
            **self.residency(),
        }

    def residency(self) -> dict[str, list[str]]:
        """Names of features whose frames stay in memory, and of features decoded anew in every
        epoch, by the last iteration or, before one, in a single shard.
        """
        stays = self._iteration.frames_stay
        if stays is None:
            stays = self.planner.plan_memory(1).in_memory is not None
        return self.planner.residency.features(stays)

    def columns(
        self, clips: ClipKeys, epoch: int, draws: DrawsByPlace | None = None, *memory: Any
    ) -> tuple[dict[str, Any], int]:
        """The columns of clips of an epoch beside features, each a list or a tensor, and the number
        of window times without a frame nearby.

        `draws` are the batch's; `memory` as for `ClipColumns.fill`.
        """
        view, frames = self.view, self._drawn_frames(epoch, draws)
        drawn = self._draw_of(epoch, draws, view.draws.draw)(clips, ())
        return view.fill_columns(clips, frames, drawn, *memory)

    def _columns_of(self, plan: Plan, batch: Batch) -> dict[str, Any]:
        """The columns of a batch. The executing thread makes them, beside the consumer's steps."""
        columns, num_far = self.columns(batch.clips, plan.epoch, plan.draws)
        self._iteration.times_without_frame += num_far
        return columns

    def unused(self, epoch: int) -> dict[str, int]:
        """Frames of the selected episodes in no clip, if the order counts them, without windows."""
        if self.options.has_windows:
            return {}
        num_frames = self.view.episodes.num_frames
        frames = self.planner.order.frames_left_out(self.clips(epoch), num_frames)
        return {} if frames is None else {"frames_left_out": frames}

    def describe(self) -> str:
        """A summary line, and a line for each feature with dtype and shape in a clip."""
        more, lengths = "", self.options.clip_lens
        if lengths is not None:
            more = f"; {lengths[0]} to {lengths[1]} frames each, drawn for each batch"
        order = self.planner.order
        more += order.describe(self.clips(0))
        for frames in self.unused(0).values():
            more += f", {counted(frames, 'frame')} in no clip"
        if self.planner.settings.shuffle and order.is_mixed:
            settings = self.planner.plan_memory(1).settings
            if settings.first_block_frames < self.planner.clip_stats().whole_block():
                places = counted(settings.num_cursors, "place")
                more += f"; mixed from {places} of an epoch"
        return self.view.describe(more)

    def _drawn_frames(self, epoch: int, draws: DrawsByPlace | None) -> ClipFrames:
        """The frames of clips in an epoch, with the draws of their batches."""
        is_drawn = draws is not None and draws.batches.draws is not None
        frames_at = draws.frames if draws is not None and is_drawn else None
        return self.view.frames(epoch, frames_at)

    def _draw_of(self, epoch: int, draws: DrawsByPlace | None, draw: Any) -> DrawClips:
        """`draw` with the seed and the settings of an epoch."""
        return partial(
            draw,
            self.planner.settings.seed,
            epoch,
            sharing=self.clips(epoch) if self.planner.order.shares_draws else None,
            draw_at=None if draws is None else draws.draw,
        )

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


def _note_shards(url: str, shard: Shard) -> None:
    """Log, in the first shard, that each shard reads its own frames from remote storage."""
    if shard.index == 0:
        _logger.info(
            "%s: each of %d shards reads its own frames from remote storage in every epoch, except "
            "bytes still in memory_limit; cache_dir= reads each byte once per machine",
            *(shown_place(url), shard.count),
        )


def _note_decoding(
    planner: EpochPlanner, iteration: _Iteration, num_shards: int, stats: EngineStats
) -> None:
    """Log once, as a second epoch begins, that each epoch decodes its frames again."""
    last, iteration.stats = iteration.stats, stats
    dataset, transform = planner.view.dataset, planner.view.transform
    cache = FrameFolder.of(dataset)
    if last is None or not last.frames_decoded or iteration.frames_stay or iteration.is_noted:
        return
    is_filled = cache is not None and cache.is_filling
    if is_filled or transform is not None or not any(map(is_costly, dataset.features.values())):
        return
    iteration.is_noted = True
    remedies = ["frame_cache= decodes them once per dataset"]
    if cache is not None:
        remedies = ["a larger limit of frame_cache"]
    if planner.limit_in is None and (limit := planner.limit_to_stay(num_shards)):
        remedies.insert(0, f"memory_limit={limit} ({format_size(limit)}) keeps them in memory")
    count = max(last.frames_decoded, last.video_frames_decoded)
    _logger.info(
        "%s: each epoch decodes frames again, %d in the last one; %s",
        *(shown_place(dataset.url), count, ", or ".join(remedies)),
    )


def _sizes_in(view: View, plan: Plan, batch: int) -> dict[str, tuple[int, int]]:
    """The drawn height and width of features in a batch of a plan."""
    return view.draws.sizes(partial(plan.batches.draw, batch))
