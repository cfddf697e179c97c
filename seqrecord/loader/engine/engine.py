"""Engine: executes plans in the background, and ends its threads on every exit path.

An `Execution` owns the memory and threads of one plan, and finds its frames. An `Engine` is the
consumer's end of a `Channel`, which one or more executions fill, each in the thread of a
`Scheduler`. Schedulers do not refer to the engine. The channel's capacity limits how far they run
ahead.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from seqrecord.loader.engine.batches import (
    Batch,
    Channel,
    ClosedError,
    OpenBatch,
    no_memory,
)
from seqrecord.loader.engine.buffer_cache import BufferCache
from seqrecord.loader.engine.buffers import BufferNeeds, Buffers, GroupRows
from seqrecord.loader.engine.chunk_loader import ChunkLoader
from seqrecord.loader.engine.devices import Device
from seqrecord.loader.engine.executor import Executor, Job, Slots
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.engine.stores import AllFrames, FrameRows, FrameStore, Rings
from seqrecord.loader.engine.workers import THREAD_NAME, WorkerPool
from seqrecord.loader.sampling.memory import CONSUMER, Memory
from seqrecord.loader.sampling.plan import Clips, Plan
from seqrecord.store.clips.tables import IntArray
from seqrecord.store.format.index import GroupIndex
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.processes.forks import at_fork
from seqrecord.store.processes.threads import error_of, start
from seqrecord.store.reading.array_specs import ArraySpec
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.storage.chunk_store import ChunkStore

_PATIENCE = 1.0  # seconds; see `Scheduler.close`


@dataclass(eq=False)
class Execution:
    """Executes one plan. Allocates memory at construction; threads exist during `run` only.

    Memory: an arena per group (`num_rows` frames), `prefetch` batches plus the consumer's,
    and one chunk per load in progress. With a `device`, arenas and batches are in its memory; the
    host has the chunks and decoded frames of loads in progress, and of two more that the device
    copies.

    One thread calls `run`, then `release`.

    Args:
        memory: settings of the plan. `num_rows` has the rows of each arena, at least
            `max_resident_frames` of its group; more rows let loads run ahead. `prefetch` is the
            number of batches under construction or ready. If a plan consists of single clips,
            `together` of its batches are delivered as one.
        num_threads: threads for copies, and the maximum for loads.
        kept: cache of memory between iterations.
        device: device of arenas and batches. Default: host.
        shared: whether the consumer sends batches to another process.
        decode_there: whether the device decodes video if possible; see `DeviceVideo`.
        rows: for each group of the plan, if `memory` has a row for each frame. Frames then stay in
            memory for the next iteration; see `AllFrames`.
    """

    job: Job
    stats: EngineStats
    memory: Memory
    num_threads: int
    kept: InitVar[BufferCache]
    device: Device | None = None
    shared: bool = False
    decode_there: bool = False
    rows: Sequence[FrameRows] = ()

    def __post_init__(self, kept: BufferCache) -> None:
        try:
            self.buffers = kept.acquire(self._needs(), self.device)
        except MemoryError as error:
            raise no_memory(error) from error
        self._kept = weakref.ref(kept)
        storage = self.job.dataset.contents.storage
        self.stats.watch(storage.counters, storage if isinstance(storage, ChunkStore) else None)

    def run(
        self,
        channel: Channel,
        clips: tuple[int, int],
        slots: Slots,
        filled: Callable[[OpenBatch, int], None],
    ) -> None:
        """Fill batches of a channel with clips `[first, last)` of the plan; see `Executor`."""
        job, buffers, stats, groups = self.job, self.buffers, self.stats, self.job.plan.groups
        steps = {group.group: group.window.frame_step for group in groups}
        leading, threads = groups[job.plan.leading].group, self.num_threads
        # Resident frames have a row each, so no chunk stays open.
        in_pieces = {group.group for group in groups if group.in_pieces and not self.rows}
        frames = job.dataset, buffers, steps, leading, job.frame_transform
        loader = ChunkLoader(
            *frames, threads, stats, job.clip_frames, in_pieces, frames_stay=bool(self.rows)
        )
        workers = WorkerPool(loader, threads, self.memory, channel, stats, buffers.is_untouched)
        executor = Executor(job, self._store(), workers, channel, slots, filled)
        buffers.begin(stats)
        try:
            with workers:
                if clips[0] < clips[1]:
                    executor.execute(*clips)
        finally:
            loader.close()
            buffers.end()

    def _store(self) -> FrameStore:
        """Create the plan's frame store, which contains resident frames only."""
        given = self.job.plan, self.job.clip_frames, self.buffers.arenas
        return AllFrames(*given, self.rows, whole_chunks(self.job)) if self.rows else Rings(*given)

    def _needs(self) -> BufferNeeds:
        """Memory requirements of an iteration."""
        job, memory, plan = self.job, self.memory, self.job.plan
        groups = tuple(
            GroupRows(_of_group(job, group.group), num_rows, rows.digest if rows else "")
            for group, num_rows, rows in zip_longest(plan.groups, memory.num_rows, self.rows)
        )
        video: tuple[FeatureSpec, ...] = ()
        if self.decode_there and self.device is not None and job.frame_transform is None:
            video = tuple(
                spec for spec in job.dataset.features.values() if page_kind(spec).decodes_in_order
            )
        return BufferNeeds(
            groups,
            job.made,
            job.lengths,
            _most_clips(plan) * memory.together,
            memory.prefetch + CONSUMER,  # in the channel, and the consumer's last two
            None if self.device is None else self.device.device,
            self.shared,
            video,
            plan.batches.most_frames,
            memory.max_loads + memory.max_read_ahead,
        )

    def release(self) -> None:
        """Return the memory to the cache for the next iteration, if it still exists."""
        if (alive := self._kept()) is not None:
            alive.release(self.buffers)


class Engine:
    """Iterator over the batches of a channel.

    Closing or deleting it, and interpreter exit, end the threads of all runs.

    `next` raises the first error of a thread, with its traceback, after the batches before it. In a
    forked process it raises `ClipError`.

    Args:
        runs: functions that fill batches of the channel, each in its own thread.
        stats: counts batches, clips and the consumer's waiting time.
        are_single: count each clip as a batch, for batches that were joined.
    """

    drop: Callable[[], object]
    """Like `close`, with a limited wait, for callers that a finalizer may reach."""

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
        # Threads do not refer to the engine: deleting it ends them.
        drop = weakref.finalize(self, _close, channel, schedulers, _PATIENCE)
        drop.atexit = False
        self.drop = drop
        self._schedulers = schedulers
        try:
            schedulers.extend(Scheduler(channel, run) for run in runs)
        except BaseException:  # all threads, or none
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
        """End all threads, and wait for them."""
        _close(self._channel, self._schedulers, None)


def run_plan(
    execution: Execution,
    stats: EngineStats,
    *,
    batch: int = 0,
    describe: Callable[[Batch], Mapping[str, Any]] | None = None,
) -> Engine:
    """Create an engine for the batches of a plan, from number `batch` on. See `OpenBatch`."""
    plan, memory = execution.job.plan, execution.memory
    first = min(batch, plan.num_batches)
    job = execution.job
    make = partial(OpenBatch, lock=threading.Lock(), describe=describe)
    begin = partial(_begin, job, execution.buffers, make, first, memory.together)
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
    """Batch and slot of clips, if `together` batches are joined, counted from batch `first`.

    The first batch is never joined, because the consumer waits for it.
    """
    if together == 1:
        return clips.batch, clips.slot
    batch, slot = np.divmod(clips.batch - first + together - 1, together)
    return batch, np.where(batch > 0, slot, 0)


def _begin(
    job: Job,
    buffers: Buffers[Any],
    make: Callable[..., OpenBatch],
    first: int,
    together: int,
    number: int,
) -> OpenBatch:
    """Create the batch with a number; see `_slots`."""
    plan = job.plan
    if together == 1:
        size = plan.first_clip(number + 1) - plan.first_clip(number)
    else:
        begin = first + 1 + (number - 1) * together
        size = min(together, plan.num_batches - begin) if number else 1
    form = job.form(number)
    frames = None if form is None else form.frames
    return make(size, partial(buffers.begin_batch, size, form), frames=frames)


def _most_clips(plan: Plan) -> int:
    """The clips of a plan's largest batch."""
    if plan.batches.draws is not None:
        return plan.batches.size  # in every epoch, so that buffers are kept
    return plan.first_clip(1) if plan.num_batches else 1


def _of_group(job: Job, group: int) -> Mapping[str, ArraySpec]:
    """Specs of a group's frames, including masks; with a transform, of all its results."""
    if job.frame_transform is not None:
        return job.specs
    stored = job.dataset.features
    return {n: s for n, s in job.specs.items() if stored[s.mask_of or n].group == group}


def whole_chunks(job: Job) -> dict[int, GroupIndex]:
    """Chunk tables of the groups whose chunks are always read whole."""
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
        channel.close()  # for all, before the first wait
    for scheduler in schedulers:
        scheduler.close(patience)


class Scheduler:
    """A thread that calls `run` and reports its end, or its error, to the channel.

    Raises `ResourceError` if no thread can be started; the channel is then closed.
    """

    def __init__(self, channel: Channel, run: Callable[[], None]) -> None:
        self.process = os.getpid()
        self._channel = channel
        name = f"{THREAD_NAME}-scheduler"
        self._thread = threading.Thread(target=self._run, args=(run,), name=name, daemon=True)
        try:
            start(self._thread)
        except BaseException:  # or Ctrl-C; the thread may be running
            channel.close()
            raise
        _running.add(self)

    def close(self, patience: float | None = None) -> None:
        """End the threads of the iteration, and wait `patience` seconds, or until they have ended.

        Finalizers need a limit: the garbage collector may call them in a thread that has a lock
        which the engine's threads wait for. In an engine thread, `close` does not wait.
        """
        if os.getpid() != self.process:
            return  # a fork has no threads, and the lock may never be released
        self._channel.close()
        if not threading.current_thread().name.startswith(THREAD_NAME):
            self._thread.join(patience)

    def _run(self, run: Callable[[], None]) -> None:
        error = error_of(run)
        del run
        if isinstance(error, ClosedError) or (error is not None and self._channel.is_closed):
            # Breaks a reference cycle: futures of loads refer to the error, its frames to them.
            error.__traceback__ = None
            error = None
        self._channel.end(error)


_running: weakref.WeakSet[Scheduler] = weakref.WeakSet()
at_fork(after_in_child=_running.clear)  # a fork has no threads


@atexit.register
def _close_all() -> None:
    for scheduler in list(_running):
        scheduler.close()
