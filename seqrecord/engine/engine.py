"""Executes a plan in the background, and ends all of its threads on every way out.

The engine is the consumer's end of a `Channel`; the thread of a `Scheduler` fills it, and does not
refer to the engine. Finished batches wait in the channel: the thread never runs further ahead than
`prefetch` of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from seqrecord.clip_frames import ClipFrames
from seqrecord.clips import IntArray
from seqrecord.engine.batches import Batch
from seqrecord.engine.buffers import GroupNeeds, HostBuffers, KeptBuffers, Needs
from seqrecord.engine.channel import Channel
from seqrecord.engine.device.buffers import DeviceBuffers
from seqrecord.engine.device.streams import SideStream
from seqrecord.engine.draws import DrawClips
from seqrecord.engine.loading import ChunkLoader
from seqrecord.engine.overlapping import OverlappingExecutor
from seqrecord.engine.scheduler import Executor, Scheduler
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.workers import WorkerPool
from seqrecord.reading.frames import ArraySpec, FrameTransform
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.sampling import Plan
from seqrecord.sampling.memory import CONSUMER, Memory
from seqrecord.schema import FeatureSpec

__all__ = ["Engine", "Execution"]

_PATIENCE = 1.0  # seconds; see `Scheduler.close`


class Engine:
    """Runs one plan from one batch on: an iterator of batches.

    Closing it, or dropping it, or leaving the interpreter, ends its threads. Memory: an arena for
    each group of the plan (`num_rows` frames), `prefetch` batches and those that the consumer still
    holds, and one chunk for each load. With a `device`, arenas and batches are there, and the host
    has, beside chunks, the decoded frames of the loads under way and of two more that the device
    copies.

    `next` raises the error of a thread after the batches before it, with that thread's traceback.
    In a forked process it raises `ClipError`.

    Args:
        dataset: of the plan, with the requested features.
        specs: dtype and shape of each feature in clips, after `frame_transform`.
        plan: what to do.
        clip_frames: which frames clips have of each feature.
        batch: the first batch to deliver.
        memory: rows of each group's arena, at least its `max_resident_frames`, more let loads run
            ahead. `prefetch`: batches that are built or wait. Chunks to load at a time, and from
            storage that isn't a local disk more to hold. Of a plan of single clips, `together` of
            its batches are delivered as one.
        num_threads: for copying, and at most so many for loading.
        frame_transform: called once for each frame, before the arena. The plan is that of one
            group, whose arena has what it makes of frames; see `ChunkLoader`.
        device: with its number, where arenas and batches are; the host by default.
        shared: the consumer sends the batches to another process.
        stats: counts what is done.
        kept: where memory comes from, and where it goes for the next iteration.
        made, lengths: of the features of batches, where these are not those of `specs`: dtype and
            shape of a frame, and how many frames a clip has.
        draw: what is drawn for clips. Those that functions are called with are gathered from
            arenas.
        decode_there: whether the device decodes video, where it can; see `DeviceVideo`.
        first_row: of each episode, where `memory` has a row for each frame: frames then stay in
            memory for the next iteration. See `StayingRounds`.
    """

    drop: Callable[[], object]
    """As `close`, for places that must not wait long: those that a finalizer may come from."""

    def __init__(
        self,
        dataset: SeqRecordReader,
        specs: Mapping[str, ArraySpec],
        plan: Plan,
        clip_frames: ClipFrames,
        *,
        batch: int = 0,
        memory: Memory,
        num_threads: int,
        frame_transform: FrameTransform | None = None,
        device: torch.device | None = None,
        shared: bool = False,
        stats: EngineStats,
        kept: KeptBuffers,
        made: Mapping[str, ArraySpec] | None = None,
        lengths: Mapping[str, int] | None = None,
        draw: DrawClips | None = None,
        decode_there: bool = False,
        first_row: IntArray | None = None,
    ) -> None:
        self.stats = stats
        self._is_together = memory.together > 1
        self._channel: Channel[Batch] = Channel(memory.prefetch, stats)
        execution = Execution(
            dataset,
            specs,
            plan,
            clip_frames,
            self._channel,
            memory=memory,
            num_threads=num_threads,
            frame_transform=frame_transform,
            device=device,
            shared=shared,
            stats=stats,
            kept=kept,
            made=made,
            lengths=lengths,
            draw=draw,
            decode_there=decode_there,
            first_row=first_row,
        )
        # The thread does not refer to the engine, so that dropping the engine ends it.
        run = partial(execution.run, batch if batch < plan.num_batches else None)
        self._scheduler = Scheduler(self._channel, run, execution.release)
        drop = weakref.finalize(self, self._scheduler.close, _PATIENCE)
        drop.atexit = False
        self.drop = drop

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self._channel.take(self._scheduler.process)
        batch.arrive()
        self.stats.add(batches=len(batch) if self._is_together else 1, clips=len(batch))
        return batch

    def close(self) -> None:
        """End all threads; nothing is left when it returns."""
        self._scheduler.close()


class Execution:
    """What executes a plan: its memory, its threads and its executor. Arguments as of `Engine`.

    One thread calls `run` and then `release`. The memory is taken at once; threads run in `run`.

    Args:
        channel: where batches go; closing it ends the execution.
        make_executor: `OverlappingExecutor`, or one that is made as it is.
        stream: of the device, where several executions share one.
    """

    def __init__(
        self,
        dataset: SeqRecordReader,
        specs: Mapping[str, ArraySpec],
        plan: Plan,
        clip_frames: ClipFrames,
        channel: Channel[Any],
        *,
        memory: Memory,
        num_threads: int,
        frame_transform: FrameTransform | None,
        device: torch.device | None,
        shared: bool,
        stats: EngineStats,
        kept: KeptBuffers,
        made: Mapping[str, ArraySpec] | None = None,
        lengths: Mapping[str, int] | None = None,
        draw: DrawClips | None = None,
        decode_there: bool = False,
        first_row: IntArray | None = None,
        make_executor: Callable[..., Executor] = OverlappingExecutor,
        stream: SideStream | None = None,
    ) -> None:
        size = plan.first_clip(1) * memory.together if plan.num_batches else 1
        # Batches that are ever in use: those in the channel and the consumer's last two.
        batches = memory.prefetch + CONSUMER
        groups = tuple(
            GroupNeeds(
                _of_group(dataset, group.group, specs, frame_transform),
                num_rows,
                stay=first_row is not None,
            )
            for group, num_rows in zip(plan.groups, memory.num_rows, strict=True)
        )
        made = specs if made is None else made
        lengths = clip_frames.lengths if lengths is None else lengths
        video: tuple[FeatureSpec, ...] = ()
        if decode_there and device is not None and frame_transform is None:
            video = tuple(spec for spec in dataset.features.values() if spec.is_video)
        needs = Needs(groups, made, lengths, size, batches, device, shared, video)
        on_device = partial(DeviceBuffers, stream=stream)
        self._buffers = buffers = kept.acquire(needs, HostBuffers if device is None else on_device)
        self._kept = weakref.ref(kept)
        stats.watch(dataset.storage.counters)
        self._loader = loader = ChunkLoader(
            dataset,
            buffers,
            {group.group: group.window.frame_step for group in plan.groups},
            plan.groups[plan.leading].group,
            None if frame_transform is None else (frame_transform, specs),
            num_threads,
            stats,
            clip_frames,
            in_pieces={group.group for group in plan.groups if group.in_pieces},
        )
        self._workers = workers = WorkerPool(
            loader, num_threads=num_threads, memory=memory, channel=channel, stats=stats
        )
        more: dict[str, Any] = {}
        if memory.together > 1:
            more["together"] = memory.together
        if first_row is not None:
            more["first_row"] = first_row
        self._executor: Executor = make_executor(
            plan, clip_frames, buffers, workers, channel, draw, **more
        )

    def run(self, batch: int | None) -> None:
        """Deliver the batches from `batch` on; none for `None`."""
        self._buffers.begin(self._workers.stats)
        try:
            with self._workers:
                if batch is not None:
                    self._executor.run(batch)
        finally:
            self._loader.close()
            self._buffers.end()

    def release(self) -> None:
        """Keep the memory for the next iteration, if there is one."""
        if (alive := self._kept()) is not None:
            alive.release(self._buffers)


def _of_group(
    dataset: SeqRecordReader,
    group: int,
    specs: Mapping[str, ArraySpec],
    transform: FrameTransform | None,
) -> Mapping[str, ArraySpec]:
    """The arrays of a group's frames, masks too: with a transform, all it makes of whole frames."""
    if transform is not None:
        return specs
    stored = dataset.features
    return {n: s for n, s in specs.items() if stored[s.mask_of or n].group == group}
