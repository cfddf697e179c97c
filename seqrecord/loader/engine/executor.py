"""Executor: the loop that fills the batches of a run with clips of one dataset, or of several.

A `ClipGatherer` has the clips of one dataset, step by step: it loads their frames, gathers them
into batches, and frees frames::

    loading threads    load step 1    | load step 2    | load step 3
    executor, copies                  | gather step 1  | gather step 2
    consumer                              batch 0  batch 1  batch 2

For the first batch, only its own frames are loaded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.batches import Channel, OpenBatch, no_memory
from seqrecord.loader.engine.buffers import BufferNeeds, Buffers, GroupRows
from seqrecord.loader.engine.chunk_loader import ChunkLoader
from seqrecord.loader.engine.clip_gatherer import ClipGatherer, DatasetRun, Job
from seqrecord.loader.engine.devices import BufferCache, Device
from seqrecord.loader.engine.mapped_rows import MappedArena
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.engine.workers import ChunkLoads, Copies, WorkerPool
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.reading.chunk_store import ChunkStore
from seqrecord.loader.sampling.frame_sizes import Memory
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.schema import FeatureSpec


class BatchSlots(NamedTuple):
    """The slots of a batch, int64[n], that the next clips of a dataset come to, by its number."""

    dataset: int
    slots: IntArray


Schedule: TypeAlias = Callable[[int], Sequence[BatchSlots]]
"""Where the clips of an item of a channel come from, by its number."""


class Executor:
    """Fills the batches of one run, once. Allocates memory at construction; threads exist during
    `run` only.

    Memory: an arena per group (`num_rows` frames), `prefetch` batches plus the consumer's, and one
    chunk per load in progress. With a `device`, arenas and batches are in its memory; the host has
    the chunks and decoded frames of loads in progress, and of two more that the device copies.

    From remote storage, chunks without rows are read ahead and decoded later.

    Args:
        runs: the datasets.
        batches: the needs of batches, without arenas.
        memory: `prefetch` is the number of batches under construction or ready.
        num_threads: threads for copies, and the maximum for loads.
        cache: memory kept between iterations.
        device: device of arenas and batches. Default: host.
    """

    def __init__(
        self,
        runs: Sequence[DatasetRun],
        batches: BufferNeeds,
        stats: EngineStats,
        memory: Memory,
        num_threads: int,
        cache: BufferCache,
        device: Device | None = None,
    ) -> None:
        self._runs, self._memory = runs, memory
        self._stats, self._num_threads = stats, num_threads
        mapped: list[Mapping[int, MappedArena]] = []
        groups: list[GroupRows] = []
        for run in runs:
            # A transform copies frames.
            is_mapped = device is None and run.job.frame_transform is None
            mapped.append(
                MappedArena.of_groups(run.job.dataset.contents, run.rows) if is_mapped else {}
            )
            groups += _groups(run, mapped[-1])
        needs = replace(batches, groups=tuple(groups))
        try:
            self.buffers: Buffers[Any] = cache.acquire(needs, device)
        except MemoryError as error:
            raise no_memory(error) from error
        self._mapped = mapped
        self._kept = weakref.ref(cache)
        for run in runs:
            contents = run.job.dataset.contents
            store = contents.storage if isinstance(contents.storage, ChunkStore) else None
            run.stats.watch(contents.storage.counters, store)
        stats.watch_memory(self.buffers)

    def run(
        self,
        channel: Channel,
        schedule: Schedule,
        numbers: tuple[int, int],
        filled: Callable[[OpenBatch, int], None],
    ) -> None:
        """Fill items `[first, last)` of a channel, in order.

        `filled` is called by any thread after it has filled slots of a batch.

        Raises errors of loads and copies, and `ClosedError` if the channel is closed.
        """
        try:
            self._run(channel, schedule, range(*numbers), filled)
        finally:
            if (cache := self._kept()) is not None:  # for the next iteration
                cache.release(self.buffers)

    def _run(
        self,
        channel: Channel,
        schedule: Schedule,
        numbers: Iterable[int],
        filled: Callable[[OpenBatch, int], None],
    ) -> None:
        buffers, loaders = self.buffers, list[ChunkLoader]()
        buffers.begin(self._stats)
        try:
            first = 0
            for run, mapped in zip(self._runs, self._mapped, strict=True):
                loaders.append(_loader_of(run, buffers, mapped, self._num_threads))
            is_local = all(loader.is_local for loader in loaders)
            pool = WorkerPool(
                self._memory, self._num_threads, channel, self._stats, is_local=is_local
            )
            copies = pool.copies()
            with pool:
                gatherers = list[ClipGatherer]()
                for run, loader, mapped in zip(self._runs, loaders, self._mapped, strict=True):
                    last = first + len(run.job.plan.groups)
                    arenas = buffers.arenas[first:last]
                    loads = ChunkLoads(loader, pool, run.stats, is_untouched=buffers.is_untouched)
                    gatherers.append(
                        ClipGatherer(run, arenas, mapped, loader, loads, copies, filled)
                    )
                    first = last
                try:
                    self._fill(channel, schedule, numbers, gatherers, copies)
                except BaseException:
                    if not channel.is_closed:
                        copies.wait()  # delivers begun batches, or raises a copy's error
                    raise
        finally:
            for loader in loaders:
                loader.close()
            buffers.end()

    def _fill(
        self,
        channel: Channel,
        schedule: Schedule,
        numbers: Iterable[int],
        gatherers: Sequence[ClipGatherer],
        copies: Copies,
    ) -> None:
        """Fill items by their numbers."""
        is_first = True
        for number in numbers:
            of_datasets = schedule(number)
            for dataset, slots in of_datasets:
                gatherers[dataset].prepare(len(slots))
            opened = self._open(channel, copies, number)
            for dataset, slots in of_datasets:
                gatherers[dataset].fill(opened, slots)
            if is_first:
                is_first = False
                self._deliver_first(gatherers, copies)
        for gatherer in gatherers:
            gatherer.end()

    def _deliver_first(self, gatherers: Sequence[ClipGatherer], copies: Copies) -> None:
        """Deliver the first batch before loads of others begin; from remote storage, these would
        share its way.
        """
        stores = [gatherer.chunk_store for gatherer in gatherers]
        if any(store is not None for store in stores):
            copies.wait()
        for gatherer, store in zip(gatherers, stores, strict=True):
            if store is not None:
                store.read_pieces()
            gatherer.go_on()

    def _open(self, channel: Channel, copies: Copies, number: int) -> OpenBatch:
        """Open a batch. Time during copies does not count as waiting for the consumer."""
        stats, earlier, begin = self._stats, copies.lap(), perf_counter()
        opened = channel.open(number)
        opened.allocate()  # may wait for the device
        end = perf_counter()
        gathered = copies.lap()
        waited = max(0.0, end - begin - gathered)
        stats.add(gather_seconds=earlier + gathered, waiting_for_consumer_seconds=waited)
        stats.trace.add("wait for consumer", begin, end, batch=number)
        return opened


def _loader_of(
    run: DatasetRun, buffers: Buffers[Any], mapped: Mapping[int, MappedArena], num_threads: int
) -> ChunkLoader:
    """Performs the loads of a dataset."""
    job = run.job
    # Resident frames have a row each, so no chunk stays open.
    in_pieces = {g.group for g in job.plan.groups if g.in_pieces and g.group not in run.rows}
    return ChunkLoader(
        job.dataset,
        buffers,
        job.plan.groups[job.plan.leading].group,
        job.frame_transform,
        num_threads,
        run.stats,
        job.clip_frames,
        in_pieces,
        frames_stay=bool(run.rows),
        mapped=mapped,
        decoded_there=run.decode_there,
    )


def _groups(run: DatasetRun, mapped: Mapping[int, MappedArena]) -> list[GroupRows]:
    """The arenas of a dataset's groups."""
    groups = []
    for group, num_rows in zip(run.job.plan.groups, run.num_rows, strict=True):
        specs = _of_group(run.job, group.group, mapped.get(group.group))
        videos: tuple[FeatureSpec, ...] = ()
        if run.decode_there:
            features = run.job.dataset.features
            videos = tuple(
                features[n]
                for n in specs
                if n in features and page_kind(features[n]).decodes_in_order
            )
        if (of_group := run.rows.get(group.group)) is not None:
            groups.append(GroupRows(specs, of_group.num_rows, of_group.digest, videos))
        else:
            groups.append(GroupRows(specs, num_rows if specs else 0, videos=videos))
    return groups


def _of_group(job: Job, group: int, mapped: MappedArena | None) -> Mapping[str, ArraySpec]:
    """Specs of a group's frames, including masks, without `mapped` ones; with a transform, of
    all its results.
    """
    if job.frame_transform is not None:
        return job.specs
    specs, mapped_names = job.dataset.features, () if mapped is None else mapped.specs
    return {
        n: s
        for n, s in job.specs.items()
        if specs[s.mask_of or n].group == group and n not in mapped_names
    }
