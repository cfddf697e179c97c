"""The clips of one dataset in a run: loads of their frames, and copies into batches.

Clips come in the order of consecutive plans, in steps; see `frame_store`. A batch takes the next
ones, which are of one step or of several.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from seqrecord.loader.clips.frames import ClipFrames
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import Arena
from seqrecord.loader.engine.batches import (
    NO_DRAWS,
    BatchBuilder,
    BatchForm,
    ClipDraws,
    ClipRows,
    Copiers,
    DrawClips,
    OpenBatch,
)
from seqrecord.loader.engine.chunk_loader import ChunkLoader
from seqrecord.loader.engine.decoding import Transform
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
from seqrecord.loader.engine.workers import ChunkLoads, Copies, Loading
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.reading.chunk_store import ChunkStore
from seqrecord.loader.sampling.epoch_plans import EpochPlan
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.tables.grids import ragged_arange
from seqrecord.store.text import shown_place

if TYPE_CHECKING:
    from seqrecord.loader.engine.vectors import VectorSteps

# Of small frames, read at once. Permuted epochs need frames of each chunk in about five steps, and
# each read costs as much as 16 KiB (`PART_BYTES`) besides those of a page that it reads again.
_BLOCK_BYTES = 64 << 10

_logger = logging.getLogger("seqrecord")
_warned = set[str]()  # datasets of which this process has dropped frames


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
        return BatchForm(batches.frames_in(batch), sizes)


@dataclass(frozen=True, eq=False)
class DatasetRun:
    """The clips of one dataset in a run, and the memory of its frames.

    Attributes:
        job: the first plan.
        first: the number of its first clip.
        stats: counts the dataset's work.
        num_rows: of the arena of each group; more rows let loads run ahead.
        rows: rows by group, of groups with a row for each frame. Frames then stay in memory for the
            next iteration; see `ResidentFrames`. Raw frames of other groups are mapped if possible.
        decode_there: whether a device decodes video if possible; see `DeviceVideo`.
        following: the plans after the first one, in the same memory.
    """

    job: Job
    first: int
    stats: EngineStats
    num_rows: Sequence[int]
    rows: Mapping[int, FrameRows] = field(default_factory=dict)
    decode_there: bool = False
    following: Iterator[Job] = field(default_factory=lambda: iter(()))


class PlannedStep(NamedTuple):
    """A step, its plan and the store of the plan's frames."""

    step: Step
    job: Job
    store: FrameStore


class ClipGatherer:
    """Gathers the clips of a dataset into batches.

    Args:
        run: the clips.
        arenas: of each group, for frames that are not `mapped`.
        mapped: rows in mapped files, by group.
        loader: performs loads.
        loads: starts them.
        copies: make copies.
        filled: called by any thread after it has filled slots of a batch.
    """

    def __init__(
        self,
        run: DatasetRun,
        arenas: Sequence[Any],
        mapped: Mapping[int, MappedArena],
        loader: ChunkLoader,
        loads: ChunkLoads,
        copies: Copies,
        filled: Callable[[OpenBatch, int], None],
    ) -> None:
        self._run, self._arenas, self._mapped = run, arenas, mapped
        self._check, self._threads, self._copies = loader.check, loads, copies
        self._filled, self._stats = filled, run.stats
        storage = run.job.dataset.contents.storage
        self.chunk_store = storage if isinstance(storage, ChunkStore) else None
        self._find_changes(loader)
        self._steps = _Steps(_planned_steps(run, arenas, mapped))
        self._ahead = _StepLoads(loads)  # of the step after this one
        self._loads = self._ahead
        self._now: PlannedStep | None = None
        self._sources: list[ClipRows[Any]] = []  # of the step
        self._next = self._end = 0  # clips of the step: the next one, and their number
        self._is_first, self._is_started = True, False  # batch; all loads of the step

    def prepare(self, count: int) -> None:
        """Start the loads of the next clips, at least of one of `count`."""
        if self._next == self._end:
            self._go_to_next()
        if self._is_first:
            self._begin(count)
        elif not self._is_started:
            self._start()
        if self._threads.num_read_ahead and not self._is_first:
            self._threads.fetch(self._prefetch())

    def fill(self, opened: OpenBatch, slots: IntArray) -> None:
        """Gather the next clips into slots of a batch, int64[n], ascending, as their loads
        complete.
        """
        begin = 0
        while begin < len(slots):
            if begin:  # the step has ended
                self.prepare(len(slots) - begin)
            first = self._next
            last = min(self._end, first + len(slots) - begin)
            self._loads.wait(last)
            self._gather(opened, slots[begin : begin + last - first], first, last)
            begin, self._next = begin + last - first, last

    def go_on(self) -> None:
        """Start the loads of other batches than the first."""
        self._is_first = False
        if self._now is not None:
            self._start()

    def end(self) -> None:
        """End the last step, if it is complete; wait for copies otherwise."""
        if self._now is not None and self._next == self._end:
            self._finish()
        self._copies.wait()

    # ---- steps

    def _find_changes(self, loader: ChunkLoader) -> None:
        """Ask all mapped files whether somebody may have written to them since the last epoch."""
        for records in {mapped.frames.records for mapped in self._mapped.values()}:
            records.check_all()
        loader.find_changes()
        for arena in self._arenas:
            if isinstance(arena, Arena):
                arena.forget_placed(loader.num_changes)

    def _go_to_next(self) -> None:
        """End a complete step, and go to the next one, whose frames get rows."""
        if self._now is not None:
            self._finish()
        now = self._steps.pop()
        assert now is not None, "a batch has more clips than the plans"
        self._loads, self._ahead = self._ahead, _StepLoads(self._threads)
        step, job, store = now
        self._loads.place(store, step)
        while step.is_waiting:
            self._warn()
            self._loads.start()
            self._loads.wait()
            step, *rest = store.make_room(step, [one.step for one in self._steps.seen])
            self._steps.seen.extendleft(PlannedStep(one, job, store) for one in reversed(rest))
            self._loads.place(store, step)
        self._now, self._is_started = PlannedStep(step, job, store), False
        self._next, self._end = 0, len(step.clips)
        self._sources = store.find(step)

    def _finish(self) -> None:
        """End a step whose clips are all in batches."""
        with self._stats.trace.span("wait for copies"):
            self._copies.wait()  # rows may then be overwritten
        self._stats.add(gather_seconds=self._copies.lap())
        if not self._is_started:  # the first batch has the step's last clip
            self._loads.start()
        self._loads.wait()
        assert self._now is not None
        self._now.store.finish(self._now.step)
        self._now = None

    def _begin(self, count: int) -> None:
        """Start loads of the first batch's next clips, at most `count`, for their rows alone."""
        first = self._next
        self._loads.begin(first + count, self._rows(first, first + count))

    def _start(self) -> None:
        """Start all loads of the step, and the loads of the next step that have rows."""
        assert self._now is not None
        self._is_started = True
        self._loads.start()
        if (following := self._steps.peek(0)) is not None:
            self._ahead.place(following.store, following.step, ahead=True)
            self._ahead.start()
            self._stats.add(loads_throttled=sum(map(len, following.step.waiting)))
        self._stats.note_resident(self._now.store.nbytes)

    def _prefetch(self) -> Iterator[Load]:
        """Yield the next loads without rows, up to the number of chunks read ahead."""
        count, number = 0, 0
        while count < self._threads.num_read_ahead and (one := self._steps.peek(number)):
            loads = sorted(one.step.loads, key=BY_USE)
            yield from loads
            count, number = count + len(loads), number + 1

    def _warn(self) -> None:
        """Log one warning that frames are dropped."""
        place = shown_place(self._run.job.dataset.url)
        if place not in _warned:
            _warned.add(place)
            _logger.warning(
                "%s: memory_limit leaves no room for the frames of a round: some are dropped, and "
                "decoded again; a larger memory_limit, or shorter clips, decode each once",
                place,
            )

    # ---- copies

    def _rows(self, first: int, last: int) -> list[ClipRows[Any]]:
        """The rows of clips `[first, last)` of the step."""
        # Not `replace`, which takes six times as long.
        return [ClipRows(one.arena, one.rows[first:last], one.features) for one in self._sources]

    def _gather(self, opened: OpenBatch, slots: IntArray, first: int, last: int) -> None:
        """Submit copies of clips `[first, last)` of the step to slots of a batch."""
        assert self._now is not None
        step, job, store = self._now
        clips, sources = step.clips.rows(first, last), self._rows(first, last)
        if opened.frames is not None:
            sources = [replace(source, rows=source.rows[:, : opened.frames]) for source in sources]
        draws = NO_DRAWS if job.draw is None else job.draw(clips.keys, sources)
        builder = opened.allocate()
        check_rows(sources, self._stats)  # just before copies: a file may become shorter meanwhile
        store.check_again(clips, self._check)
        begin, rows = perf_counter(), slots
        if opened.ends is not None:
            rows, sources, draws = packed(opened.ends, slots, sources, draws)
        nbytes = gather(builder, rows, sources, self._copies, draws, job.vectors)
        opened.name(slots, clips, job.plan.epoch)
        self._note_gather(begin, len(slots), nbytes)
        self._copies.finish(partial(self._filled, opened, len(slots)))

    def _note_gather(self, begin: float, num_clips: int, device_bytes: int) -> None:
        """Count clips gathered since `begin`."""
        end = perf_counter()
        self._stats.add(gather_seconds=end - begin, device_bytes=device_bytes)
        self._stats.trace.add("gather", begin, end, clips=num_clips)


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


def _planned_steps(
    run: DatasetRun, arenas: Sequence[Any], of_files: Mapping[int, MappedArena]
) -> Iterator[PlannedStep | None]:
    """Yield the steps of all plans. Before those of another plan, `None`, unless its frames are all
    there.
    """
    # No method of the gatherer, which has the steps: a cycle would keep its memory.
    first = run.first
    for job in chain([run.job], run.following):
        make = partial(_store_of, job, arenas, of_files, run.rows)
        store = make()
        if job is not run.job and not store.has_all:
            yield None
            store = make()  # with the frames that are there now
        run.stats.watch_memory(store)
        for step in store.steps(*job.plan.locate_clip(first)):
            yield PlannedStep(step, job, store)
        first = 0


def _store_of(
    job: Job,
    arenas: Sequence[Any],
    of_files: Mapping[int, MappedArena],
    staying: Mapping[int, FrameRows],
) -> FrameStore:
    """The frames of a plan."""
    frames = [*_frames_of(job, arenas, of_files, staying)]
    return FrameStore(job.plan, job.clip_frames, job.usual_frames or job.clip_frames, frames)


def _frames_of(
    job: Job,
    arenas: Sequence[Any],
    of_files: Mapping[int, MappedArena],
    staying: Mapping[int, FrameRows],
) -> Iterator[GroupFrames]:
    """The frames of each group of a plan."""
    plan, clip_frames = job.plan, job.clip_frames
    in_chunks = _read_in_chunks(job) if staying else set()
    for place, (group, arena) in enumerate(zip(plan.groups, arenas, strict=True)):
        grid = plan.grids[place]
        if (rows := staying.get(group.group)) is not None:
            used = used_rows(plan.used(place), rows)
            yield ResidentFrames(
                *(grid, clip_frames, arena, rows, used),
                in_chunks=group.group in in_chunks,
                block_frames=_BLOCK_BYTES // max(1, sum(x.nbytes for x in arena.specs.values())),
            )
        elif arena.specs:
            yield RunFrames(plan, place, clip_frames, arena, plan.cursor_bounds(arena.num_rows))
        if (mapped := of_files.get(group.group)) is None:
            continue
        if mapped.touches:
            yield TouchedFrames(plan, place, clip_frames, mapped, [0])
        else:
            yield MappedFrames(grid, clip_frames, mapped)


class _Steps:
    """Iterator of steps with lookahead, up to a `None`; `seen` are those that were looked up."""

    def __init__(self, steps: Iterator[PlannedStep | None]) -> None:
        self._steps = steps
        self.seen: deque[PlannedStep] = deque()
        self._is_closed = False  # until the steps seen have ended

    def pop(self) -> PlannedStep | None:
        """The next step; `None` after the last. All steps before it have ended."""
        if self.seen:
            return self.seen.popleft()
        self._is_closed = False
        return next((step for step in self._steps if step is not None), None)

    def peek(self, number: int) -> PlannedStep | None:
        """The step so many steps after the next one, which stays; `None` if it is not known yet,
        and beyond the last.
        """
        while len(self.seen) <= number and not self._is_closed:
            step = next(self._steps, None)
            if step is None:
                self._is_closed = True
            else:
                self.seen.append(step)
        return self.seen[number] if number < len(self.seen) else None


class _StepLoads:
    """Loads of a step that have rows: idle or in progress."""

    def __init__(self, threads: ChunkLoads) -> None:
        self._threads = threads
        self._idle: list[AssignedLoad] = []  # not started, in order of use
        self._loading: list[Loading] = []  # not waited for, in order of use

    def place(self, store: FrameStore, step: Step, *, ahead: bool = False) -> None:
        """Assign rows to loads. Loads without room remain in the step."""
        assigned = store.place(step, ahead=ahead)
        self._idle = sorted([*self._idle, *assigned], key=BY_USE)

    def begin(self, stop: int, sources: Sequence[ClipRows[Any]]) -> None:
        """Start the loads that clips before `stop` need, for the rows of these clips."""
        count = bisect_left(self._idle, stop, key=BY_USE)
        targets = {id(item.target): item.target for item in self._idle[:count]}
        needed = {key: np.zeros(target.num_rows, bool) for key, target in targets.items()}
        for source in sources:
            if source.arena.num_rows and (rows := needed.get(id(source.arena))) is not None:
                rows[source.rows] = True
        self._add(self._threads.begin(self._idle[:count], needed))
        del self._idle[:count]

    def start(self) -> None:
        """Start all other loads, and complete the partial ones."""
        self._add([*self._threads.finish(), *self._threads.start(self._idle)])
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
            self._threads.wait(loads)


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
