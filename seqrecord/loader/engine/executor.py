"""Executor: the loop that executes every plan: load the chunks of a round, gather clips into
batches, free frames.

::

    loading threads    load round 1    | load round 2    | load round 3
    executor, copies                   | gather round 1  | gather round 2
    consumer                               batch 0  batch 1  batch 2

For the first batch, only its own frames are loaded.
"""

from __future__ import annotations

import logging
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from seqrecord.loader.clips.frames import ClipFrames
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import Arena
from seqrecord.loader.engine.batches import (
    NO_DRAWS,
    BatchBuilder,
    BatchForm,
    Channel,
    ClipDraws,
    ClipRows,
    Copiers,
    DrawClips,
    OpenBatch,
    no_memory,
)
from seqrecord.loader.engine.buffers import BufferNeeds, GroupRows
from seqrecord.loader.engine.chunk_loader import ChunkLoader
from seqrecord.loader.engine.decoding import Transform
from seqrecord.loader.engine.devices import BufferCache, Device
from seqrecord.loader.engine.frame_rows import FrameRows, used_rows
from seqrecord.loader.engine.frame_store import (
    FrameStore,
    GroupFrames,
    MappedFrames,
    ResidentFrames,
    RunFrames,
    Step,
    TouchedFrames,
)
from seqrecord.loader.engine.loads import BY_USE, AssignedLoad, Load
from seqrecord.loader.engine.mapped_rows import MappedArena
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.engine.workers import Loading, WorkerPool
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.reading.chunk_store import ChunkStore
from seqrecord.loader.sampling.epoch_plans import Clips, EpochPlan
from seqrecord.loader.sampling.frame_sizes import CONSUMER, Memory
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.tables.grids import ragged_arange, run_bounds
from seqrecord.store.text import shown_place

if TYPE_CHECKING:
    from seqrecord.loader.engine.vectors import VectorSteps

_logger = logging.getLogger("seqrecord")
_warned = set[str]()  # datasets of which this process has dropped frames

Slots: TypeAlias = Callable[[Clips, int], tuple[IntArray, IntArray]]
"""Maps clips to batches and slots, int64[clips] each, given the number of the first clip in the
plan. Clips of a batch are consecutive, and their slots ascend.
"""


@dataclass(frozen=True, eq=False)
class Job:
    """The clips to load: a plan and its dataset.

    Args:
        dataset: opened with the requested features.
        specs: dtype and shape of a frame's features, after `frame_transform`.
        clip_frames: windows of the features.
        frame_transform: called once per frame, before the arena. The plan then has a single group,
            whose arena contains the results; see `ChunkLoader`.
        made, lengths: dtype and shape of frames, and number of frames per clip, for each feature of
            batches.
        draw: draws crops and function calls for clips. Functions receive clips from the arenas.
        vectors: steps of vectors, after functions.
        sizes: height and width of features in a batch by its number, if batches differ.
        usual_frames: windows of clips whose batches are not known yet; see `FrameStore`.
    """

    dataset: Dataset
    plan: EpochPlan
    clip_frames: ClipFrames
    specs: Mapping[str, ArraySpec]
    made: Mapping[str, ArraySpec]
    lengths: Mapping[str, int]
    frame_transform: Transform | None = None
    draw: DrawClips | None = None
    vectors: VectorSteps = field(default_factory=dict)
    sizes: Callable[[int], Mapping[str, tuple[int, int]]] | None = None
    usual_frames: ClipFrames | None = None

    def form(self, batch: int) -> BatchForm | None:
        """The drawn form of a batch; `None` if all batches have one."""
        batches, costs = self.plan.batches, self.plan.costs
        has_lists = costs is not None and costs.form != "stacked"
        if batches.draws is None and self.sizes is None and not has_lists:
            return None
        sizes = {} if self.sizes is None else self.sizes(batch)
        if costs is not None and has_lists:
            return BatchForm(1 if self.plan.is_packed else int(batches.lengths(batch).max()), sizes)
        if batches.draws is None:
            return BatchForm(None, sizes)
        return BatchForm(int(batches.frames(np.array([batch]))[0]), sizes)


class Executor:
    """Executes one plan, once. Allocates memory at construction; threads exist during `run` only.

    Memory: an arena per group (`num_rows` frames), `prefetch` batches plus the consumer's, and one
    chunk per load in progress. With a `device`, arenas and batches are in its memory; the host has
    the chunks and decoded frames of loads in progress, and of two more that the device copies.

    From remote storage, chunks without rows are read ahead and decoded later.

    Args:
        memory: of the plan. `num_rows` has the rows of each arena; more rows let loads run ahead.
            `prefetch` is the number of batches under construction or ready. If a plan consists of
            single clips, `together` of its batches are delivered as one.
        num_threads: threads for copies, and the maximum for loads.
        cache: memory kept between iterations.
        device: device of arenas and batches. Default: host.
        shared: whether the consumer sends batches to another process.
        decode_there: whether the device decodes video if possible; see `DeviceVideo`.
        rows: rows by group, of groups with a row for each frame. Frames then stay in memory for the
            next iteration; see `ResidentFrames`. Raw frames of other groups are mapped if possible.
    """

    def __init__(
        self,
        job: Job,
        stats: EngineStats,
        memory: Memory,
        num_threads: int,
        cache: BufferCache,
        device: Device | None = None,
        *,
        shared: bool = False,
        decode_there: bool = False,
        rows: Mapping[int, FrameRows] = MappingProxyType({}),
    ) -> None:
        self.job, self.memory = job, memory
        self._stats, self._num_threads, self._rows = stats, num_threads, rows
        decodes_there = decode_there and device is not None and job.frame_transform is None
        self._mapped: dict[int, MappedArena] = {}  # a transform copies frames
        if device is None and job.frame_transform is None:
            self._mapped = MappedArena.of_groups(job.dataset.contents, rows)
        needs = _needs(
            *(job, memory, device, rows, self._mapped), shared=shared, decodes_there=decodes_there
        )
        try:
            self._buffers = cache.acquire(needs, device)
        except MemoryError as error:
            raise no_memory(error) from error
        self._kept = weakref.ref(cache)
        storage = job.dataset.contents.storage
        self._chunk_store = storage if isinstance(storage, ChunkStore) else None
        stats.watch(storage.counters, self._chunk_store)
        stats.watch_memory(self._buffers)

    def begin_batch(self, batch: int, make: Callable[..., OpenBatch], number: int) -> OpenBatch:
        """Make an item of a channel by its number; see `joined_slots`."""
        plan, together = self.job.plan, self.memory.together
        if together == 1:
            size = plan.first_clip(number + 1) - plan.first_clip(number)
        else:
            begin = batch + 1 + (number - 1) * together
            size = min(together, plan.num_batches - begin) if number else 1
        form, num_rows, ends = self.job.form(number), size, None
        frames = None if form is None else form.frames
        if plan.is_packed:
            ends, frames = np.cumsum(plan.batches.lengths(number)), None
            num_rows = int(ends[-1])
        begin_batch = partial(self._buffers.begin_batch, num_rows, form)
        return make(size, begin_batch, frames=frames, ends=ends)

    def run(
        self,
        channel: Channel,
        clips: tuple[int, int],
        slots: Slots,
        filled: Callable[[OpenBatch, int], None],
    ) -> None:
        """Fill batches of a channel with clips `[first, last)` of the plan, in order.

        `filled` is called by any thread after it has filled slots of a batch.

        Raises errors of loads and copies, and `ClosedError` if the channel is closed.
        """
        self._channel, self._slots, self._filled = channel, slots, filled
        try:
            self._run(*clips)
        finally:
            if (cache := self._kept()) is not None:  # for the next iteration
                cache.release(self._buffers)

    def _run(self, start: int, stop: int) -> None:
        job, buffers, stats = self.job, self._buffers, self._stats
        # Resident frames have a row each, so no chunk stays open.
        in_pieces = {
            group.group
            for group in job.plan.groups
            if group.in_pieces and group.group not in self._rows
        }
        loader = ChunkLoader(
            job.dataset,
            buffers,
            job.plan.groups[job.plan.leading].group,
            job.frame_transform,
            self._num_threads,
            stats,
            job.clip_frames,
            in_pieces,
            frames_stay=bool(self._rows),
            mapped=self._mapped,
        )
        threads, is_untouched = self._num_threads, buffers.is_untouched
        self._workers = WorkerPool(loader, threads, self.memory, self._channel, stats, is_untouched)
        self._check = loader.check
        self._find_changes(loader)
        usual_frames = job.usual_frames or job.clip_frames
        self._store = FrameStore(job.plan, job.clip_frames, usual_frames, [*self._frames()])
        stats.watch_memory(self._store)
        self._copies = self._workers.copies()
        self._steps = _Steps(iter(()))
        self._first_batch: int | None = None  # -1 after the first batch
        buffers.begin(stats)
        try:
            with self._workers:
                try:
                    if start < stop:
                        self._execute(start, stop)
                except BaseException:
                    if not self._channel.is_closed:
                        self._copies.wait()  # delivers begun batches, or raises a copy's error
                    raise
        finally:
            loader.close()
            buffers.end()

    def _find_changes(self, loader: ChunkLoader) -> None:
        """Ask all mapped files whether somebody may have written to them since the last epoch."""
        for records in {mapped.frames.records for mapped in self._mapped.values()}:
            records.check_all()
        loader.find_changes()
        for arena in self._buffers.arenas:
            if isinstance(arena, Arena):
                arena.forget_placed(loader.num_changes)

    def _frames(self) -> Iterator[GroupFrames]:
        """The frames of each group."""
        job, plan, clip_frames = self.job, self.job.plan, self.job.clip_frames
        in_chunks = _read_in_chunks(job) if self._rows else set()
        for place, (group, arena) in enumerate(zip(plan.groups, self._buffers.arenas, strict=True)):
            grid = plan.grids[place]
            if (rows := self._rows.get(group.group)) is not None:
                used = used_rows(plan.used(place), rows)
                is_whole = group.group in in_chunks
                yield ResidentFrames(grid, clip_frames, arena, rows, used, in_chunks=is_whole)
            elif arena.specs:
                bounds = plan.cursor_bounds(arena.num_rows)
                yield RunFrames(plan, place, clip_frames, arena, bounds)
            if (mapped := self._mapped.get(group.group)) is None:
                continue
            if mapped.touches:
                yield TouchedFrames(plan, place, clip_frames, mapped, [0])
            else:
                yield MappedFrames(grid, clip_frames, mapped)

    def _execute(self, start: int, end: int) -> None:
        """Execute the steps of clips `[first, last)`."""
        plan, store, stats = self.job.plan, self._store, self._stats
        number = start  # of the step's first clip
        self._steps = _Steps(store.steps(*plan.locate_clip(start)))
        loads = _StepLoads(store, self._workers)
        while number < end and (step := self._steps.pop()) is not None:
            loads.place(step)
            while step.is_waiting:
                self._warn()
                loads.start()
                loads.wait()
                step, *rest = store.make_room(step, self._steps.seen)
                self._steps.seen.extendleft(reversed(rest))
                loads.place(step)
            ahead = _StepLoads(store, self._workers)
            count = min(len(step.clips), end - number)
            self._emit(step, count, number, loads, ahead)
            with stats.trace.span("wait for copies"):
                self._copies.wait()  # rows may then be overwritten
            stats.add(gather_seconds=self._copies.lap())
            if count < len(step.clips):
                return
            loads.wait()
            store.finish(step)
            number, loads = number + count, ahead

    def _warn(self) -> None:
        """Log one warning that frames are dropped."""
        place = shown_place(self.job.dataset.url)
        if place not in _warned:
            _warned.add(place)
            _logger.warning(
                "%s: memory_limit leaves no room for the frames of a round: some are dropped, and "
                "decoded again; a larger memory_limit, or shorter clips, decode each once",
                place,
            )

    def _emit(
        self, step: Step, count: int, number: int, loads: _StepLoads, ahead: _StepLoads
    ) -> None:
        """Gather the first clips of a step into batches as their loads complete."""
        clips = step.clips.rows(0, count)
        batch, slot = self._slots(clips, number)
        sources = self._store.find(step)
        for a, b in pairwise(run_bounds(constant=batch)):
            # Not `replace`, which takes six times as long.
            part = [ClipRows(one.arena, one.rows[a:b], one.features) for one in sources]
            if self._first_batch is None:
                self._first_batch = int(batch[a])
            if self._first_batch == batch[a]:
                loads.begin(b, part)
            else:
                if self._first_batch >= 0 or not a:
                    self._deliver_first_batch()
                    self._first_batch = -1
                    self._load(loads, ahead)
                self._workers.fetch(self._prefetch())
            opened = self._open(int(batch[a]))
            loads.wait(b)
            self._gather(opened, slot[a:b], clips.rows(a, b), part)
        self._deliver_first_batch()
        loads.start()

    def _deliver_first_batch(self) -> None:
        """Deliver the first batch before reads for others share its way from a remote storage."""
        if self._chunk_store is not None and self._first_batch != -1:
            self._copies.wait()
            self._chunk_store.read_pieces()

    def _load(self, loads: _StepLoads, ahead: _StepLoads) -> None:
        """Start all loads of a step, and the loads of the next step that have rows."""
        loads.start()
        if (following := self._steps.peek(0)) is not None:
            ahead.place(following, ahead=True)
            ahead.start()
            self._stats.add(loads_throttled=sum(map(len, following.waiting)))
        self._stats.note_resident(self._store.nbytes)

    def _gather(
        self, opened: OpenBatch, slots: IntArray, clips: Clips, sources: list[ClipRows[Any]]
    ) -> None:
        """Submit copies of clips to slots of a batch."""
        if opened.frames is not None:
            sources = [replace(source, rows=source.rows[:, : opened.frames]) for source in sources]
        draws = NO_DRAWS if self.job.draw is None else self.job.draw(clips.keys, sources)
        builder = opened.allocate()
        check_rows(sources, self._stats)  # just before copies: a file may become shorter meanwhile
        self._store.check_again(clips, self._check)
        begin, rows = perf_counter(), slots
        if opened.ends is not None:
            rows, sources, draws = packed(opened.ends, slots, sources, draws)
        nbytes = gather(builder, rows, sources, self._copies, draws, self.job.vectors)
        opened.name(slots, clips, self.job.plan.epoch)
        self._workers.note_gather(begin, len(slots), nbytes)
        self._copies.finish(partial(self._filled, opened, len(slots)))

    def _open(self, batch: int) -> OpenBatch:
        """Open a batch. Time during copies does not count as waiting for the consumer."""
        stats = self._stats
        earlier = self._copies.lap()
        begin = perf_counter()
        opened = self._channel.open(batch)
        opened.allocate()  # may wait for the device
        end = perf_counter()
        gathered = self._copies.lap()
        waited = max(0.0, end - begin - gathered)
        stats.add(gather_seconds=earlier + gathered, waiting_for_consumer_seconds=waited)
        stats.trace.add("wait for consumer", begin, end, batch=batch)
        return opened

    def _prefetch(self) -> Iterator[Load]:
        """Yield the next loads without rows, up to the number of chunks read ahead."""
        count, number = 0, 0
        while count < self._workers.num_read_ahead and (step := self._steps.peek(number)):
            loads = sorted(step.loads, key=BY_USE)
            yield from loads
            count, number = count + len(loads), number + 1


def packed(
    ends: IntArray, slots: IntArray, sources: Sequence[ClipRows[Any]], draws: ClipDraws
) -> tuple[IntArray, list[ClipRows[Any]], ClipDraws]:
    """Clips as clips of one frame each: their slots in a batch of lists one after another, which
    end at `ends`, int64[clips].
    """
    lengths = np.diff(ends, prepend=0)[slots]
    clip, frame = ragged_arange(lengths)
    sources = [replace(source, rows=source.rows[clip, frame][:, None]) for source in sources]
    if draws.crop is not None:
        draws = replace(draws, crop=draws.crop.take(clip))
    return (ends[slots] - lengths)[clip] + frame, sources, draws


def check_rows(sources: Sequence[ClipRows[Any]], stats: EngineStats) -> None:
    """Find new versions of mapped record files with rows to copy; count the rows in mapped files.

    Raises `StorageError` if a mapped file has become shorter.
    """
    num_mapped = MappedArena.check(
        (source.arena, name, source.rows)
        for source in sources
        if isinstance(source.arena, MappedArena)
        for name in source.features
    )
    for source in sources:
        if isinstance(source.arena, Arena):
            for name in source.features:
                num_mapped += source.arena.check(name, source.rows)
    if num_mapped:
        stats.add(frames_mapped=num_mapped)


def gather(
    builder: BatchBuilder[Any],
    slots: IntArray,
    sources: Sequence[ClipRows[Any]],
    copiers: Copiers,
    draws: ClipDraws,
    vectors: VectorSteps,
) -> int:
    """Copy clips with their draws to slots of a batch; see `BatchBuilder.gather`."""
    if draws.crop is not None:
        sources = [replace(source, crop=draws.crop) for source in sources]
    return builder.gather(slots, sources, copiers, draws.calls, vectors)


class _Steps:
    """Iterator of steps with lookahead; `seen` are those that were looked up."""

    def __init__(self, steps: Iterator[Step]) -> None:
        self._steps = steps
        self.seen: deque[Step] = deque()

    def pop(self) -> Step | None:
        """The next step; `None` after the last."""
        return self.seen.popleft() if self.peek(0) is not None else None

    def peek(self, number: int) -> Step | None:
        """The step so many steps after the next one, which stays; `None` beyond the last."""
        while len(self.seen) <= number:
            step = next(self._steps, None)
            if step is None:
                return None
            self.seen.append(step)
        return self.seen[number]


class _StepLoads:
    """Loads of a step that have rows: idle or in progress."""

    def __init__(self, store: FrameStore, workers: WorkerPool) -> None:
        self._store, self._workers = store, workers
        self._idle: list[AssignedLoad] = []  # not started, in order of use
        self._loading: list[Loading] = []  # not waited for, in order of use

    def place(self, step: Step, *, ahead: bool = False) -> None:
        """Assign rows to loads. Loads without room remain in the step."""
        assigned = self._store.place(step, ahead=ahead)
        self._idle = sorted([*self._idle, *assigned], key=BY_USE)

    def begin(self, stop: int, sources: Sequence[ClipRows[Any]]) -> None:
        """Start the loads that clips before `stop` need, for the rows of these clips."""
        count = bisect_left(self._idle, stop, key=BY_USE)
        targets = {id(item.target): item.target for item in self._idle[:count]}
        needed = {key: np.zeros(target.num_rows, bool) for key, target in targets.items()}
        for source in sources:
            if source.arena.num_rows and (rows := needed.get(id(source.arena))) is not None:
                rows[source.rows] = True
        self._add(self._workers.begin(self._idle[:count], needed))
        del self._idle[:count]

    def start(self) -> None:
        """Start all other loads, and complete the partial ones."""
        self._add([*self._workers.finish(), *self._workers.start(self._idle)])
        self._idle.clear()

    def _add(self, started: Sequence[Loading]) -> None:
        if started:
            self._loading = sorted([*self._loading, *started], key=BY_USE)

    def wait(self, stop: int | None = None) -> None:
        """Wait for loads: all, or the ones needed by clips before `stop`."""
        needed = len(self._loading)
        if stop is not None:
            needed = bisect_left(self._loading, stop, key=BY_USE)
        if needed:
            loads = self._loading[:needed]
            del self._loading[:needed]  # the result of a begun load refers to its chunk
            self._workers.wait(loads)


def joined_slots(
    batch: int,
    together: int,
    clips: Clips,
    number: int,  # noqa: ARG001
) -> tuple[IntArray, IntArray]:
    """Item of a channel and slot of clips, if `together` batches are joined, from `batch` on.

    The first batch is never joined, because the consumer waits for it.
    """
    if together == 1:
        return clips.batch, clips.slot
    item, slot = np.divmod(clips.batch - batch + together - 1, together)
    return item, np.where(item > 0, slot, 0)


def _needs(
    job: Job,
    memory: Memory,
    device: Device | None,
    rows: Mapping[int, FrameRows],
    mapped: Mapping[int, MappedArena],
    *,
    shared: bool,
    decodes_there: bool,
) -> BufferNeeds:
    """Memory requirements of a plan."""
    plan = job.plan
    groups = []
    for group, num_rows in zip(plan.groups, memory.num_rows, strict=True):
        specs = _of_group(job, group.group, mapped.get(group.group))
        if (of_group := rows.get(group.group)) is not None:
            groups.append(GroupRows(specs, of_group.num_rows, of_group.digest))
        else:
            groups.append(GroupRows(specs, num_rows if specs else 0))
    video: tuple[FeatureSpec, ...] = ()
    if decodes_there:
        features = job.dataset.features.values()
        video = tuple(spec for spec in features if page_kind(spec).decodes_in_order)
    return BufferNeeds(
        tuple(groups),
        job.made,
        job.lengths,
        _most_clips(plan) * memory.together,
        memory.prefetch + CONSUMER,  # in the channel, and the consumer's last two
        None if device is None else device.device,
        shared,
        video,
        _most_frames(plan),
        memory.max_loads + memory.max_read_ahead,
    )


def _most_clips(plan: EpochPlan) -> int:
    """The clips of a plan's largest batch."""
    if plan.costs is not None:
        sizes = (plan.first_clip(i + 1) - plan.first_clip(i) for i in range(plan.num_batches))
        return max(plan.costs.most_rows, max(sizes, default=1))
    if plan.batches.draws is not None:
        return plan.batches.size  # in every epoch, so that buffers are kept
    return plan.first_clip(1) if plan.num_batches else 1


def _most_frames(plan: EpochPlan) -> int | None:
    """The frames of a plan's largest batch, padding included, if frames vary between batches."""
    costs, batches = plan.costs, plan.batches
    if costs is None:
        return batches.most_frames
    if costs.form == "stacked":
        return None
    return max(costs.most_frames, batches.most_listed(pads=costs.form == "padded"))


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


def _read_in_chunks(job: Job) -> set[int]:
    """The groups whose chunks are always read whole."""
    dataset, reader = job.dataset, job.dataset.contents.chunks
    return {
        spec.group
        for name, spec in dataset.features.items()
        if job.frame_transform is not None
        or not reader.is_local
        or name not in reader.raw[spec.group].specs
    }
