"""Walks a plan: loads chunks into the arena, gathers clips into batches, frees frames.

The conductor is one thread; others load chunks for it, and others copy. Loads of the next round
run while the clips of this one are gathered, as far as the rings have room::

    loading threads     load round 1    | load round 2    | load round 3
    conductor, copies                   | gather round 1  | gather round 2
    consumer                                 batch 0  batch 1  batch 2
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from seqrecord.arena import Arena, BufferPool, Ring
from seqrecord.clips import ClipSpec
from seqrecord.engine.channel import Channel, ClosedError
from seqrecord.engine.filling import Batch, Filling
from seqrecord.engine.loading import ChunkLoader, Load, each_load
from seqrecord.engine.stats import EngineStats
from seqrecord.frames import FrameTransform
from seqrecord.plan import EpochPlan, Round
from seqrecord.reader import Dataset

__all__ = ["THREAD_NAME", "Conductor"]

THREAD_NAME = "seqrecord-engine"  # how the names of all these threads begin


@dataclass
class _Work:
    """One round on its way: rows of its clips [clips, frames], and its loads."""

    round: Round
    rows: npt.NDArray[np.int64]
    loads: list[Future[None]]


class Conductor:
    """Walks a plan and puts its batches into a channel. See the module's docstring."""

    def __init__(
        self,
        *,
        plan: EpochPlan,
        spec: ClipSpec,
        dataset: Dataset,
        arena: Arena,
        pools: Mapping[str, BufferPool],
        frame_transform: FrameTransform | None,
        num_threads: int,
        max_loads: int,
        channel: Channel[Batch],
        stats: EngineStats,
    ) -> None:
        self._plan = plan
        self._spec = spec
        self._arena = arena
        self._pools = dict(pools)
        self._load = ChunkLoader(dataset, arena, plan.frame_step, frame_transform)
        self._num_threads = num_threads
        self._max_loads = max_loads
        self._channel = channel
        self._stats = stats
        rows = arena.num_rows // max(1, plan.num_cursors)
        self._rings = [Ring(cursor * rows, rows) for cursor in range(plan.num_cursors)]
        self._frame_nbytes = sum(spec.nbytes for spec in arena.specs.values())
        self._steps = np.arange(spec.length) * spec.dilation
        self._filling: Filling | None = None

    def run(self, batch: int) -> None:
        """Deliver the batches from `batch` on, or the error that prevents it."""
        failed: BaseException | None = None
        try:
            loaders = ThreadPoolExecutor(
                min(self._num_threads, self._max_loads), f"{THREAD_NAME}-load"
            )
            copiers = ThreadPoolExecutor(self._num_threads, f"{THREAD_NAME}-copy")
            with loaders, copiers:
                try:
                    self._walk(batch, loaders, copiers)
                finally:
                    loaders.shutdown(wait=False, cancel_futures=True)
        except ClosedError:
            pass
        except BaseException as error:  # raised again where the consumer waits
            failed = error
        # An error's traceback refers to this frame, and the user may keep it.
        self._arena.release()
        self._pools.clear()
        self._filling = None
        self._channel.end(failed)
        del failed

    def _walk(self, batch: int, loaders: Executor, copiers: Executor) -> None:
        if batch >= self._plan.num_batches:
            return
        first_round, skip = self._plan.locate(batch)
        loads = [
            self._submit(load, loaders) for load in each_load(self._plan.resident(first_round))
        ]
        rounds = self._plan.rounds(first_round)
        current = next(rounds, None)
        waiting = list(each_load(current.loads)) if current is not None else []
        while current is not None:
            # Rows are found before loads of the next round begin other runs.
            loads += [self._submit(load, loaders) for load in waiting]
            work = _Work(current, self._find_rows(current), loads)
            current = next(rounds, None)
            waiting = list(each_load(current.loads)) if current is not None else []
            loads = self._submit_ahead(waiting, loaders)
            self._await(work.loads)
            self._emit(work, skip, copiers)
            skip = 0
            for cursor, count in zip(work.round.frees.cursor, work.round.frees.count, strict=True):
                self._rings[cursor].free(int(count))

    def _submit(self, load: Load, loaders: Executor) -> Future[None]:
        self._channel.check_open()
        rows = self._rings[load.cursor].load(
            load.episode, load.first, load.count, self._plan.frame_step
        )
        return loaders.submit(self._do_load, load, rows)

    def _submit_ahead(self, waiting: list[Load], loaders: Executor) -> list[Future[None]]:
        """Submit the next round's loads for which there is room; leave the others in `waiting`."""
        loads, late, full = [], [], set()
        for load in waiting:
            if load.cursor in full or not self._rings[load.cursor].has_room(load.count):
                full.add(load.cursor)  # a cursor's loads stay in order
                late.append(load)
            else:
                loads.append(self._submit(load, loaders))
        waiting[:] = late
        return loads

    def _do_load(self, load: Load, rows: npt.NDArray[np.int64]) -> None:
        self._channel.check_open()
        if not threading.main_thread().is_alive():
            raise RuntimeError("the interpreter is leaving")  # before it waits for all loads
        self._stats.add(**self._load(load, rows))

    def _find_rows(self, current: Round) -> npt.NDArray[np.int64]:
        frames = current.clips.start[:, None] + self._steps
        rows = np.empty_like(frames)
        for cursor in np.unique(current.clips.cursor):
            mine = current.clips.cursor == cursor
            rows[mine] = self._rings[cursor].find(frames[mine], self._plan.frame_step)
        return rows

    def _await(self, loads: list[Future[None]]) -> None:
        begin = perf_counter()
        for load in loads:
            load.result()
        self._channel.check_open()
        self._stats.add(waiting_for_loads_seconds=perf_counter() - begin)
        self._stats.hold(sum(ring.resident for ring in self._rings) * self._frame_nbytes)

    def _emit(self, work: _Work, skip: int, copiers: Executor) -> None:
        """Gather the round's clips into batches, and hand over those that are full."""
        clips = work.round.clips.part(skip, len(work.round.clips))
        rows = work.rows[skip:]
        edges = (np.flatnonzero(np.diff(clips.batch)) + 1).tolist()
        for start, stop in zip([0, *edges], [*edges, len(clips)], strict=True):
            if start == stop:
                continue
            if self._filling is None:
                self._filling = self._begin(int(clips.batch[start]))
            begin = perf_counter()
            part = clips.part(start, stop)
            self._filling.gather(part.episode, part.start, rows[start:stop], copiers)
            self._stats.add(gather_seconds=perf_counter() - begin)
            if self._filling.is_full:
                self._channel.put(self._filling.finish())
                self._filling = None

    def _begin(self, batch: int) -> Filling:
        """A batch to fill, once the consumer has taken enough of those before."""
        begin = perf_counter()
        self._channel.reserve()
        self._stats.add(waiting_for_consumer_seconds=perf_counter() - begin)
        size = self._plan.first_clip(batch + 1) - self._plan.first_clip(batch)
        return Filling(size, self._spec.length, self._arena, self._pools)
