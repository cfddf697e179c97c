"""The engine: executes plans in the background, and ends all of its threads on every way out.

An `Execution` has what one plan needs: its memory, its threads and where its frames are. An
`Engine` is the consumer's end of the `Channel` that one or several of them fill, each in a thread
of a `Scheduler`, which does not refer to the engine. Finished batches wait in the channel: a thread
never runs further ahead than those.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
import torch

from seqrecord.clips.frames import ClipFrames
from seqrecord.clips.tables import IntArray
from seqrecord.engine.batches import Batch, Channel, ClosedError, OpenBatch
from seqrecord.engine.buffers import BufferCache, Buffers, GroupNeeds, HostBuffers, Needs
from seqrecord.engine.calls import DrawClips
from seqrecord.engine.device.streams import SideStream
from seqrecord.engine.executor import Executor, Slots
from seqrecord.engine.loading import ChunkLoader
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.stores import AllFrames, FrameRows, FrameStore, Rings
from seqrecord.engine.workers import THREAD_NAME, WorkerPool
from seqrecord.format.index import GroupIndex
from seqrecord.processes.forks import at_fork
from seqrecord.processes.threads import lower_priority, start
from seqrecord.reading.dataset import Dataset
from seqrecord.reading.frames import ArraySpec, FrameTransform
from seqrecord.sampling import Clips, Plan
from seqrecord.sampling.memory import CONSUMER, Memory
from seqrecord.schema import FeatureSpec

_PATIENCE = 1.0  # seconds; see `Scheduler.close`


@dataclass(frozen=True, eq=False)
class Job:
    """What to make: the clips of a plan.

    Args:
        dataset: of the plan, with the requested features.
        specs: dtype and shape of each feature in clips, after `frame_transform`.
        clip_frames: which frames clips have of each feature.
        frame_transform: called once for each frame, before the arena. The plan is that of one
            group, whose arena has what it makes of frames; see `ChunkLoader`.
        made, lengths: of the features of batches: dtype and shape of a frame, and how many frames a
            clip has.
        draw: what is drawn for clips. Those that functions are called with are gathered from
            arenas.
    """

    dataset: Dataset
    plan: Plan
    clip_frames: ClipFrames
    specs: Mapping[str, ArraySpec]
    made: Mapping[str, ArraySpec]
    lengths: Mapping[str, int]
    frame_transform: FrameTransform | None = None
    draw: DrawClips | None = None


@dataclass(frozen=True, eq=False)
class Resources:
    """What to make it with.

    Args:
        memory: rows of each group's arena, at least its `max_resident_frames`, more let loads run
            ahead. `prefetch`: batches that are built or wait. Chunks to load at a time, and from
            storage that isn't a local disk more to hold. Of a plan of single clips, `together` of
            its batches are delivered as one.
        num_threads: for copying, and at most so many for loading.
        niceness: added to that of the consumer's thread, for all threads.
        kept: where memory comes from, and where it goes for the next iteration.
        device: with its number, where arenas and batches are; the host by default.
        stream: of the device, where several executions share one.
        shared: the consumer sends the batches to another process.
        decode_there: whether the device decodes video, where it can; see `DeviceVideo`.
        rows: of each group of the plan, where `memory` has a row for each frame: frames then stay
            in memory for the next iteration. See `AllFrames`.
    """

    memory: Memory
    num_threads: int
    kept: BufferCache
    device: torch.device | None = None
    stream: SideStream | None = None
    shared: bool = False
    niceness: int = 0
    decode_there: bool = False
    rows: Sequence[FrameRows] = ()


class Execution:
    """What executes a plan. The memory is taken at once; threads run in `run`.

    Memory: an arena for each group of the plan (`num_rows` frames), `prefetch` batches and those
    that the consumer still holds, and one chunk for each load. With a `device`, arenas and batches
    are there, and the host has, beside chunks, the decoded frames of the loads under way and of two
    more that the device copies.

    One thread calls `run` and then `release`.
    """

    def __init__(self, job: Job, resources: Resources, stats: EngineStats) -> None:
        self.job, self.resources, self.stats = job, resources, stats
        kept = resources.kept
        stream = resources.stream or kept.stream(resources.device)
        make: Callable[[Needs], Buffers[Any]] = HostBuffers
        if stream is not None:
            from seqrecord.engine.device.buffers import DeviceBuffers

            make = partial(DeviceBuffers, stream=stream)
        self.buffers = kept.acquire(_needs(job, resources), make)
        self._kept = weakref.ref(kept)
        stats.watch(job.dataset.contents.storage.counters)

    def run(
        self,
        channel: Channel,
        clips: tuple[int, int],
        slots: Slots,
        filled: Callable[[OpenBatch, int], None],
    ) -> None:
        """Fill batches of a channel with clips `[first, last)` of the plan; see `Executor`."""
        job, resources, buffers, stats = self.job, self.resources, self.buffers, self.stats
        lower_priority(resources.niceness)  # before this thread starts the others
        loader = loader_of(
            ChunkLoader,
            job,
            buffers,
            resources.num_threads,
            stats,
            are_resident=bool(resources.rows),
        )
        workers = WorkerPool(
            loader,
            num_threads=resources.num_threads,
            memory=resources.memory,
            channel=channel,
            stats=stats,
            is_fresh=buffers.is_fresh,
        )
        executor = Executor(
            job.plan,
            self._store(),
            workers,
            channel,
            job.clip_frames.num_frames,
            slots=slots,
            filled=filled,
            draw=job.draw,
        )
        buffers.begin(stats)
        try:
            with workers:
                if clips[0] < clips[1]:
                    executor.execute(*clips)
        finally:
            loader.close()
            buffers.end()

    def _store(self) -> FrameStore:
        """Where the plan's frames are; empty, but for those that stay in memory."""
        job, rows, arenas = self.job, self.resources.rows, self.buffers.arenas
        if not rows:
            return Rings(job.plan, job.clip_frames, arenas)
        return AllFrames(job.plan, job.clip_frames, arenas, rows, whole_chunks(job))

    def release(self) -> None:
        """Keep the memory for the next iteration, if there is one."""
        if (alive := self._kept()) is not None:
            alive.release(self.buffers)


class Engine:
    """The batches of a channel: an iterator.

    Closing it, or dropping it, or leaving the interpreter, ends the threads of all runs.

    `next` raises the first error of any of them after the batches before it, with its thread's
    traceback. In a forked process it raises `ClipError`.

    Args:
        runs: each fills batches of the channel, in a thread of its own.
        stats: counts batches and clips, and what the consumer waits.
        are_single: clips are counted as batches, of which several come as one.
    """

    drop: Callable[[], object]
    """As `close`, for places that must not wait long: those that a finalizer may come from."""

    def __init__(
        self,
        channel: Channel,
        runs: Sequence[Callable[[], None]],
        stats: EngineStats,
        *,
        are_single: bool = False,
    ) -> None:
        self.stats = stats
        self._are_single = are_single
        self._channel = channel
        self._process = os.getpid()
        schedulers: list[Scheduler] = []
        # The threads do not refer to the engine, so that dropping the engine ends them.
        drop = weakref.finalize(self, _close, channel, schedulers, _PATIENCE)
        drop.atexit = False
        self.drop = drop
        self._schedulers = schedulers
        try:
            schedulers.extend(Scheduler(channel, run) for run in runs)
        except BaseException:  # a thread for each run, or none
            self.close()
            raise

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self._channel.take(self._process)
        batch.arrive()
        self.stats.add(batches=len(batch) if self._are_single else 1, clips=len(batch))
        return batch

    def close(self) -> None:
        """End all threads; nothing is left when it returns."""
        _close(self._channel, self._schedulers, None)


def run_plan(execution: Execution, stats: EngineStats, *, batch: int = 0) -> Engine:
    """An engine that delivers the batches of an execution's plan from one on."""
    plan, memory = execution.job.plan, execution.resources.memory
    first = min(batch, plan.num_batches)
    begin = partial(_begin, plan, execution.buffers, threading.Lock(), first, memory.together)
    number = first if memory.together == 1 else 0
    channel = Channel(memory.prefetch, stats, begin, number)
    clips = plan.first_clip(first), plan.num_clips
    run = partial(_run, execution, channel, clips, partial(_slots, first, memory.together))
    return Engine(channel, [run], stats, are_single=memory.together > 1)


def _run(execution: Execution, channel: Channel, clips: tuple[int, int], slots: Slots) -> None:
    try:
        execution.run(channel, clips, slots, channel.fill)
    finally:
        execution.release()


def _slots(first: int, together: int, clips: Clips, number: int) -> tuple[IntArray, IntArray]:  # noqa: ARG001
    """Where clips go that a plan's batches from one on have, so many of which are one: but the
    first is alone, for somebody waits for it."""
    if together == 1:
        return clips.batch, clips.slot
    batch, slot = np.divmod(clips.batch - first + together - 1, together)
    return batch, np.where(batch > 0, slot, 0)


def _begin(
    plan: Plan,
    buffers: Buffers[Any],
    lock: threading.Lock,
    first: int,
    together: int,
    number: int,
) -> OpenBatch:
    """A batch to fill; see `_slots`."""
    if together == 1:
        size = plan.first_clip(number + 1) - plan.first_clip(number)
    else:
        begin = first + 1 + (number - 1) * together
        size = min(together, plan.num_batches - begin) if number else 1
    return OpenBatch(size, partial(buffers.begin_batch, size), lock)


def _needs(job: Job, resources: Resources) -> Needs:
    """What the iteration needs memory for."""
    plan, memory = job.plan, resources.memory
    groups = tuple(
        GroupNeeds(_of_group(job, group.group), num_rows, rows.digest if rows else "")
        for group, num_rows, rows in zip_longest(plan.groups, memory.num_rows, resources.rows)
    )
    video: tuple[FeatureSpec, ...] = ()
    if resources.decode_there and resources.device is not None and job.frame_transform is None:
        video = tuple(spec for spec in job.dataset.features.values() if spec.is_video)
    return Needs(
        groups,
        job.made,
        job.lengths,
        plan.first_clip(1) * memory.together if plan.num_batches else 1,
        memory.prefetch + CONSUMER,  # those in the channel and the consumer's last two
        resources.device,
        resources.shared,
        video,
    )


_Loader = TypeVar("_Loader", bound=ChunkLoader)


def loader_of(
    kind: type[_Loader],
    job: Job,
    buffers: Buffers[Any],
    num_threads: int,
    stats: EngineStats,
    *,
    are_resident: bool,
) -> _Loader:
    """What does the loads of a job's plan. If frames `are_resident`, each has a row of its own."""
    plan, transform = job.plan, job.frame_transform
    return kind(
        job.dataset,
        buffers,
        {group.group: group.window.frame_step for group in plan.groups},
        plan.groups[plan.leading].group,
        None if transform is None else (transform, job.specs),
        num_threads,
        stats,
        job.clip_frames,
        in_pieces={g.group for g in plan.groups if g.in_pieces and not are_resident},
    )


def _of_group(job: Job, group: int) -> Mapping[str, ArraySpec]:
    """The arrays of a group's frames, masks too: with a transform, all it makes of whole frames."""
    if job.frame_transform is not None:
        return job.specs
    stored = job.dataset.features
    return {n: s for n, s in job.specs.items() if stored[s.mask_of or n].group == group}


def whole_chunks(job: Job) -> dict[int, GroupIndex]:
    """The chunk tables of groups of which chunks are read whole."""
    dataset, reader = job.dataset, job.dataset.contents.chunks
    groups = {
        spec.group
        for name, spec in dataset.features.items()
        if job.frame_transform is not None
        or not reader.is_local
        or name not in reader.raw[spec.group].specs
    }
    return {group: dataset.contents.index.groups[group] for group in groups}


def _close(channel: Channel, schedulers: list[Scheduler], patience: float | None) -> None:
    if schedulers and schedulers[0].process == os.getpid():
        channel.close()  # for all, before any is waited for
    for scheduler in schedulers:
        scheduler.close(patience)


class Scheduler:
    """A thread that calls `run`, and then tells the channel that it has ended, with what it raised.

    Raises `ResourceError` where the system lets none start; the channel is then closed.
    """

    def __init__(self, channel: Channel, run: Callable[[], None]) -> None:
        self.process = os.getpid()
        self._channel = channel
        name = f"{THREAD_NAME}-scheduler"
        self._thread = threading.Thread(target=self._run, args=(run,), name=name, daemon=True)
        try:
            start(self._thread)
        except BaseException:  # or Ctrl-C while this waits until the thread runs, which it may
            channel.close()
            raise
        _running.add(self)

    def close(self, patience: float | None = None) -> None:
        """End the iteration's threads, and wait for that, for `patience` seconds or until they end.

        A finalizer must not wait without limit: the garbage collector calls it in any thread, maybe
        in one that holds a lock that the engine's threads wait for. In one of these, it returns.
        """
        if os.getpid() != self.process:
            return  # a fork's copy has no threads, and the channel's lock may be held for ever
        self._channel.close()
        if not threading.current_thread().name.startswith(THREAD_NAME):
            self._thread.join(patience)

    def _run(self, run: Callable[[], None]) -> None:
        error = _error_of(run)
        del run
        if isinstance(error, ClosedError) or (error is not None and self._channel.is_closed):
            # Nobody gets it. The futures of loads hold it, and its frames hold the futures.
            error.__traceback__ = None
            error = None
        self._channel.end(error)


def _error_of(run: Callable[[], None]) -> BaseException | None:
    """What a call raises, for the thread that waits for it."""
    try:
        run()
    except BaseException as error:
        return error
    finally:
        del run  # an error's traceback refers to this frame, and the user may keep it
    return None


_running: weakref.WeakSet[Scheduler] = weakref.WeakSet()
at_fork(after_in_child=_running.clear)  # a fork has none of the threads


@atexit.register
def _close_all() -> None:
    for scheduler in list(_running):
        scheduler.close()
