"""Threads that load chunks and copy batches for an executor.

Copies run while the requesting thread continues. Each copy is one call without the GIL. After each
call, a thread may wait milliseconds for the GIL, so copies are few and long, and several threads
wait at the same time. The thread that makes the last copy of a piece reports it::

    executor        begin 0  begin 1  begin 2
    copying              0 0 0 1 | 1 2 …
                         0 0 1 1 | 2 2 …
    filled                    0    1
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from seqrecord.loader.engine.batches import Channel, Copy, do_nothing
from seqrecord.loader.engine.chunk_loader import BegunLoad, ChunkLoader
from seqrecord.loader.engine.decoding import Fetched
from seqrecord.loader.engine.loads import AssignedLoad, Load
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.loader.engine.traces import Trace
from seqrecord.loader.sampling.frame_sizes import Memory
from seqrecord.store.processes.threads import ThreadPool, error_of
from seqrecord.store.storage.ranges import unwanted_if

_Result = TypeVar("_Result")

THREAD_NAME = "seqrecord-engine"  # prefix of thread names
_MORE_COPIERS = 1  # in addition to `num_threads`: some wait for the GIL
_MOST_TOGETHER = 1 << 20  # bytes of frames per task of several loads
_LEAST_TOGETHER = 128 << 10  # minimum per task
_GROUP_AND_ARENA = attrgetter("load.group", "target")  # arenas are equal only to themselves


def chunks_at_once(memory: Memory, num_threads: int, *, is_local: bool) -> tuple[int, int]:
    """Number of chunks to read ahead, and of parallel loads.

    Reads from a local disk keep a core busy. Reads from other storage mostly wait, so chunks are
    read before their frames have rows. `max_read_ahead` chunks have their own memory. If they are
    fewer than half of the loads, others use memory of loads.
    """
    if is_local:
        return 0, min(num_threads, memory.max_loads)
    spared = max(0, memory.max_loads // 2 - memory.max_read_ahead)
    return spared + memory.max_read_ahead, memory.max_loads - spared


def bytes_together(nbytes: int, num_threads: int) -> int:
    """Bytes per task that joins small loads; all loads together have `nbytes`."""
    return max(_LEAST_TOGETHER, min(nbytes // num_threads // 2, _MOST_TOGETHER))


def joined_bounds(nbytes: Iterable[int], max_nbytes: int) -> Iterator[tuple[int, int]]:
    """Join consecutive loads of these sizes to tasks of at most `max_nbytes`, or of one load.

    Yields the half-open bounds of each task.
    """
    begin, end, total = 0, 0, 0
    for size in nbytes:
        total += size
        if total > max_nbytes and begin < end:
            yield begin, end
            begin, total = end, size
        end += 1
    if begin < end:
        yield begin, end


def joined_loads(
    placed: Sequence[AssignedLoad], loader: ChunkLoader, num_threads: int
) -> list[list[AssignedLoad]]:
    """Join small consecutive loads of a group, for tasks of threads."""
    if len(placed) == 1:
        return [[*placed]]
    sizes = [item.nbytes for item in placed]
    limit, remaining = bytes_together(sum(sizes), num_threads), iter(sizes)
    joined = list[list[AssignedLoad]]()
    for (group, _), of_arena in groupby(placed, _GROUP_AND_ARENA):
        items, most = [*of_arena], limit if loader.joins(group) else 0
        for begin, end in joined_bounds(islice(remaining, len(items)), most):
            joined.append(items[begin:end])
    return joined


class Loading(NamedTuple):
    """A running task, and the index of the first clip of its round that needs it."""

    first_use: int
    done: Future[Any]


class WorkerPool:
    """Thread pools of a run, for all its datasets: loading threads, and copying threads.

    Leaving the `with` block ends them, and cancels loads that have not begun or that wait for a
    retry.

    Args:
        memory: number of parallel loads, and of chunks read ahead from other storage.
        num_threads: number of copying threads, and limit of loading threads for a local disk.
        channel: after it is closed, requests raise `ClosedError`.
        stats: has the numbers of threads.
        is_local: whether all chunks are on a local disk.
    """

    def __init__(
        self,
        memory: Memory,
        num_threads: int,
        channel: Channel,
        stats: EngineStats,
        *,
        is_local: bool,
    ) -> None:
        self.num_threads, self.channel = num_threads, channel
        self.num_read_ahead, self.num_loaders = chunks_at_once(
            memory, num_threads, is_local=is_local
        )
        stats.num_threads, stats.num_loaders = num_threads, self.num_loaders
        self._trace = stats.trace
        # Chunks that may stay open between the parts of a load.
        self.num_open = memory.max_loads + memory.max_read_ahead - self.num_loaders
        self.has_ended = False
        ahead = self.num_read_ahead
        self.ahead = threading.BoundedSemaphore(ahead) if ahead else None
        self.loaders = ThreadPool(self.num_loaders, f"{THREAD_NAME}-load")
        copiers = num_threads + _MORE_COPIERS
        self._copiers = ThreadPool(copiers, f"{THREAD_NAME}-copy")
        self._ends = list[Callable[[], None]]()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.has_ended = True
        self.loaders.shutdown(cancel_futures=True)
        self._copiers.shutdown(cancel_futures=True)
        for end in self._ends:
            end()
        self._ends.clear()

    def at_end(self, end: Callable[[], None]) -> None:
        """Call a function after all threads have ended."""
        self._ends.append(end)

    def copies(self) -> Copies:
        """Create the copies of one executor. After an error, no batch is opened."""
        return Copies(self._copiers, self.num_threads, self.channel.interrupt, self._trace)


class ChunkLoads:
    """The loads of one dataset, in the threads of a pool.

    Args:
        loader: performs loads.
        pool: the threads.
        stats: counts waiting time.
        is_untouched: whether arena rows have no memory yet, so that open chunks may use it.
    """

    def __init__(
        self, loader: ChunkLoader, pool: WorkerPool, stats: EngineStats, *, is_untouched: bool
    ) -> None:
        self.num_read_ahead = 0 if loader.is_local else pool.num_read_ahead
        self._loader, self._pool, self._stats = loader, pool, stats
        self._channel, self._is_untouched = pool.channel, is_untouched
        self._begun: list[tuple[AssignedLoad, Future[BegunLoad]]] = []
        self._fetching: dict[Load, Future[Fetched | None]] = {}
        self._not_fetched: set[Load] = set()  # known to need no fetch
        self._before: dict[tuple[int, int], Future[None]] = {}  # by group and cursor
        pool.at_end(self._forget)

    def _forget(self) -> None:
        # The error of a cancelled load refers to its frames, and so to these loads and the arena:
        # with its future here, their memory would wait for the garbage collector.
        # (test_stopping.py::test_memory_is_free_after_an_iteration_that_stops_while_it_reads)
        self._begun.clear()
        self._fetching.clear()
        self._before.clear()

    def begin(
        self, placed: Sequence[AssignedLoad], needed: Mapping[int, npt.NDArray[np.bool_]]
    ) -> list[Loading]:
        """Start the needed parts of loads: until `finish`, encoded chunks are decoded partially.

        `needed`, bool[rows] by the `id` of an arena, are the rows of waiting clips.
        """
        parts, whole = list[tuple[AssignedLoad, npt.NDArray[np.bool_]]](), list[AssignedLoad]()
        last_load = {(item.load.group, item.load.cursor): item.load for item in placed}
        for item in placed:
            load, is_needed = item.load, needed[id(item.target)][item.rows]
            is_piece = load.group in self._loader.in_pieces
            has_room = self._loader.reads_frames(load)  # no chunk stays open
            has_room |= self._is_untouched and self._loader.is_compact(load)
            may_wait = has_room or self._pool.num_open > 0
            if is_piece:  # its chunk stays open for the cursor's next load
                may_wait = load is last_load[load.group, load.cursor]
            if is_needed.all() or not (
                is_needed.any() and may_wait and self._loader.has_parts(item)
            ):
                whole.append(item)
                continue
            self._pool.num_open -= not (is_piece or has_room)
            parts.append((item, is_needed))
        started = self.start(whole)  # first: a cursor's last piece continues after its others
        for item, is_needed in parts:
            previous = self._before.get((item.load.group, item.load.cursor))  # of a piece
            future = self._pool.loaders.submit(self._begin, item, is_needed, previous)
            self._begun.append((item, future))
            started.append(Loading(item.first_use, future))
        return started

    def finish(self) -> list[Loading]:
        """Complete the loads that `begin` has started."""
        started = []
        for item, begun_load in self._begun:
            load = item.load
            future = self._pool.loaders.submit(self._finish, item, begun_load)
            if load.group in self._loader.in_pieces:
                self._before[load.group, load.cursor] = future
            started.append(Loading(item.first_use, future))
        self._begun.clear()
        return started

    def start(self, placed: Sequence[AssignedLoad]) -> list[Loading]:
        """Start loads, after earlier ones. Pass the first needed ones first.

        One thread performs several small consecutive loads of a group. This does not apply to
        remote storage, where parallel waiting is faster, nor to user functions.
        """
        self._channel.check_open()
        joined = joined_loads(placed, self._loader, self._pool.num_loaders)
        return [self._start(items) for items in joined]

    def _start(self, items: Sequence[AssignedLoad]) -> Loading:
        """Start loads of one group in one thread."""
        load = items[0].load
        fetching, previous = self._fetching.pop(load, None), None
        self._not_fetched.discard(load)
        if is_piece := load.group in self._loader.in_pieces:
            previous = self._before.get((load.group, load.cursor))
        future = self._pool.loaders.submit(self._load, items, fetching, previous)
        if is_piece:  # a decoder continues after the previous load
            self._before[load.group, load.cursor] = future
        return Loading(items[0].first_use, future)

    def fetch(self, loads: Iterable[Load]) -> None:
        """Read up to `num_read_ahead` chunks whose frames have no rows yet.

        Pass their loads to `start` later.
        """
        self._channel.check_open()
        waiting = iter(loads)
        ahead = self._pool.ahead
        while ahead is not None and ahead.acquire(blocking=False):
            load = next((load for load in waiting if self._can_fetch(load)), None)
            if load is None:
                ahead.release()
                return
            self._fetching[load] = self._pool.loaders.submit(self._run, self._loader.fetch, load)

    def _can_fetch(self, load: Load) -> bool:
        if load in self._fetching or load in self._not_fetched:
            return False
        if self._loader.reads(load):
            return True
        self._not_fetched.add(load)
        return False

    def wait(self, loads: list[Loading]) -> None:
        """Wait for loads. Raises the error of the first failed one; empties the list."""
        begin = perf_counter()
        while loads:  # an error refers to this frame, which must not refer to its future
            loads.pop(0).done.result()
        self._channel.check_open()
        end = perf_counter()
        self._stats.add(waiting_for_loads_seconds=end - begin)
        self._stats.trace.add("wait for loads", begin, end)

    def _load(
        self,
        items: Sequence[AssignedLoad],
        fetching: Future[Fetched | None] | None,
        previous: Future[None] | None,
    ) -> None:
        # Cannot deadlock: earlier loads have begun.
        if previous is not None:
            wait([previous])
        if fetching is None:
            self._run(self._loader, items)
            return
        assert self._pool.ahead is not None
        try:
            self._run(self._loader, items, fetching.result())
        finally:
            self._pool.ahead.release()
            del fetching  # its error would refer to this frame, and this frame to it

    def _begin(
        self, item: AssignedLoad, needed: npt.NDArray[np.bool_], previous: Future[None] | None
    ) -> BegunLoad:
        if previous is not None:
            wait([previous])
        return self._run(self._loader.begin, item, needed)

    def _finish(self, item: AssignedLoad, begun_load: Future[BegunLoad]) -> None:
        try:
            self._run(self._loader.finish, item, begun_load.result())
        finally:
            del begun_load  # as in `_load`

    def _run(self, do: Callable[..., _Result], *arguments: Any) -> _Result:
        self._channel.check_open()
        with unwanted_if(lambda: self._pool.has_ended or self._channel.is_closed):
            return do(*arguments)


@dataclass
class _Piece:
    """Copies of one batch's clips, which end with a call of `done`."""

    number: int
    missing: int = 1  # unfinished copies, plus 1 until `Copies.finish`
    has_failed: bool = False
    done: Callable[[], object] = do_nothing


class Copies:
    """`Copiers` of one thread. Copies without waiting, in pieces: `finish` ends one.

    Args:
        threads: make the copies.
        num_threads: number of threads to divide the work for.
        failed: called after an error of a copy or of a piece's callback.
        trace: receives a span for each copy.
        clock: returns seconds.
    """

    def __init__(
        self,
        threads: Executor,
        num_threads: int,
        failed: Callable[[], object],
        trace: Trace,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._threads, self._failed, self._trace, self._clock = threads, failed, trace, clock
        self.num_threads = num_threads
        self._lock = threading.RLock()  # entering it makes no Python call
        self._changed = threading.Condition(self._lock)
        self._piece = _Piece(0)
        self._copying = 0  # unfinished copies
        self._error: tuple[int, BaseException] | None = None  # of the first failed piece
        self._since = 0.0  # start of uncounted time
        self._seconds = 0.0

    def copy(self, copies: Iterable[Copy]) -> None:
        """Submit copies of the current piece."""
        copy_list, piece = list(copies), self._piece
        with self._lock:
            self._count()
            self._copying += len(copy_list)
            piece.missing += len(copy_list)
        for part in copy_list:
            self._threads.submit(self._make, part, piece)

    def finish(self, on_end: Callable[[], object]) -> None:
        """End the piece, and begin the next. After its last copy, the copying thread calls `done`,
        unless a copy failed.
        """
        piece, self._piece = self._piece, _Piece(self._piece.number + 1)
        piece.done = on_end
        self._note(piece, None, copies=0)

    def wait(self) -> None:
        """Wait for all copies. Raises the error of the first failed piece, once."""
        with self._changed:
            self._changed.wait_for(lambda: not self._copying)
            error, self._error = self._error, None
        if error is not None:
            try:
                raise error[1]
            finally:
                del error  # its traceback refers to this frame

    def lap(self) -> float:
        """Seconds of copying since the last call."""
        if not self._copying and not self._seconds:
            return 0.0
        with self._lock:
            self._count()
            seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _make(self, copy: Copy, piece: _Piece) -> None:
        begin = perf_counter()
        error = error_of(copy.do)
        self._trace.add("gather copies", begin, perf_counter(), bytes=copy.nbytes)
        self._note(piece, error, copies=1)
        del copy, piece, error  # its traceback refers to this frame

    def _note(self, piece: _Piece, error: BaseException | None, *, copies: int) -> None:
        """Count one finished copy of a piece (`copies=1`), or its end (`copies=0`)."""
        with self._lock:
            piece.missing -= 1
            piece.has_failed = piece.has_failed or error is not None
            is_done = not piece.missing and not piece.has_failed
        if is_done:
            on_end, piece.done = piece.done, do_nothing
            error = error_of(on_end)
            del on_end
        with self._lock:
            if error is not None and (self._error is None or piece.number < self._error[0]):
                self._error = piece.number, error
            if copies:
                self._count()
                self._copying -= copies
            if error is not None:
                self._failed()
            del error
            if not self._copying:
                self._changed.notify_all()

    def _count(self) -> None:
        """Add the elapsed time if copies are in progress."""
        time = self._clock()
        if self._copying:
            self._seconds += time - self._since
        self._since = time
