"""Walks a plan: loads chunks into the arena, gathers clips into batches, frees frames.

The conductor is one thread; others load chunks for it, and others copy. Loads of the next round
run while the clips of this one are gathered, as far as the rings have room::

    loading threads     load round 1    | load round 2    | load round 3
    conductor, copies                   | gather round 1  | gather round 2
    consumer                                 batch 0  batch 1  batch 2
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.arena import Ring
from seqrecord.clips import ClipSpec
from seqrecord.engine.channel import Channel, ClosedError
from seqrecord.engine.filling import Batch, Filling
from seqrecord.engine.loading import ChunkLoader, Load, each_load
from seqrecord.engine.schedule import first_uses
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.workspace import Workspace
from seqrecord.frames import FrameTransform
from seqrecord.plan import EpochPlan, Round
from seqrecord.reader import Dataset

__all__ = ["THREAD_NAME", "Conductor"]

THREAD_NAME = "seqrecord-engine"  # how the names of all these threads begin


class _Waiting(NamedTuple):
    """A load that waits for room: the number of the first clip of its round that needs it."""

    first_use: int
    load: Load


class _Loading(NamedTuple):
    """A load under way."""

    first_use: int
    done: Future[None]


class Conductor:
    """Walks a plan and puts its batches into a channel. See the module's docstring."""

    def __init__(
        self,
        *,
        plan: EpochPlan,
        spec: ClipSpec,
        dataset: Dataset,
        workspace: Workspace,
        frame_transform: FrameTransform | None,
        num_threads: int,
        max_loads: int,
        channel: Channel[Batch],
        stats: EngineStats,
    ) -> None:
        self._plan = plan
        self._spec = spec
        self._workspace: Workspace | None = workspace
        self._load = ChunkLoader(dataset, workspace, plan.frame_step, frame_transform, stats.trace)
        self._num_threads = num_threads
        self._max_loads = max_loads
        self._channel = channel
        self._stats = stats
        rows = workspace.arena.num_rows // max(1, plan.num_cursors)
        self._rings = [Ring(cursor * rows, rows) for cursor in range(plan.num_cursors)]
        self._frame_nbytes = sum(spec.nbytes for spec in workspace.arena.specs.values())
        self._steps = np.arange(spec.length) * spec.dilation
        self._filling: Filling | None = None

    def run(self, batch: int) -> Callable[[], None]:
        """Deliver the batches from `batch` on, or the error that prevents it.

        When it returns no thread works in the workspace any more; what it returns tells the
        consumer that this is the end.
        """
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
        self._workspace = self._filling = None
        del self._load
        end, failed = partial(self._channel.end, failed), None
        return end

    def _walk(self, batch: int, loaders: Executor, copiers: Executor) -> None:
        if batch >= self._plan.num_batches:
            return
        first_round, skip = self._plan.locate(batch)
        resident = each_load(self._plan.resident(first_round))
        loading = self._submit([_Waiting(0, load) for load in resident], loaders)
        rounds = self._plan.rounds(first_round)
        current = next(rounds, None)
        waiting = self._plan_loads(current)
        while current is not None:
            loading += self._submit(waiting, loaders)
            assert not waiting, "the plan holds more frames than it said"
            # Rows are found before loads of the next round begin other runs.
            rows, following = self._find_rows(current), next(rounds, None)
            waiting = self._plan_loads(following)
            ahead = self._submit(waiting, loaders)
            held = sum(ring.resident for ring in self._rings) * self._frame_nbytes
            self._stats.hold(held)
            self._stats.trace.count("resident", bytes=held)
            self._emit(current, rows, skip, sorted(loading, key=_by_use), copiers)
            for cursor, count in zip(current.frees.cursor, current.frees.count, strict=True):
                self._rings[cursor].free(int(count))
            current, loading, skip = following, ahead, 0

    def _plan_loads(self, current: Round | None) -> list[_Waiting]:
        """The loads of a round, a cursor's in the order in which they fill its ring."""
        if current is None:
            return []
        uses = first_uses(
            current.loads,
            current.clips,
            span=self._spec.span,
            frame_step=self._plan.frame_step,
        )
        return list(map(_Waiting, uses.tolist(), each_load(current.loads)))

    def _submit(self, waiting: list[_Waiting], loaders: Executor) -> list[_Loading]:
        """Start those loads for which there is room, the first needed first.

        The others stay in `waiting`.
        """
        self._channel.check_open()
        late: list[_Waiting] = []
        placed: list[tuple[int, Load, npt.NDArray[np.int64]]] = []
        full: set[int] = set()
        for item in waiting:
            load = item.load
            if load.cursor in full or not self._rings[load.cursor].has_room(load.count):
                full.add(load.cursor)  # a cursor's loads stay in order
                late.append(item)
                continue
            step = self._plan.frame_step
            rows = self._rings[load.cursor].load(load.episode, load.first, load.count, step)
            placed.append((item.first_use, load, rows))
        waiting[:] = late
        placed.sort(key=_by_use)
        return [
            _Loading(first_use, loaders.submit(self._do_load, load, rows))
            for first_use, load, rows in placed
        ]

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

    def _emit(
        self,
        current: Round,
        rows: npt.NDArray[np.int64],
        skip: int,
        loading: list[_Loading],
        copiers: Executor,
    ) -> None:
        """Gather a round's clips into batches as their loads arrive, and hand over full ones.

        `loading` is in the order of first use. All of it is done when this returns.
        """
        edges = (np.flatnonzero(np.diff(current.clips.batch)) + 1).tolist()
        uses, done = [load.first_use for load in loading], 0
        for start, stop in pairwise([skip, *(e for e in edges if e > skip), len(rows)]):
            if start == stop:
                continue
            if self._filling is None:
                self._filling = self._begin(int(current.clips.batch[start]))
            needed = bisect_left(uses, stop)
            self._await(loading[done:needed])
            done = needed
            begin = perf_counter()
            part = current.clips.part(start, stop)
            self._filling.gather(
                part.episode,
                part.start,
                rows[start:stop],
                copiers,
                self._num_threads,
                self._stats.trace,
            )
            end = perf_counter()
            self._stats.add(gather_seconds=end - begin)
            self._stats.trace.add("gather", begin, end, clips=stop - start)
            if self._filling.is_full:
                self._channel.put(self._filling.finish())
                self._filling = None
        self._await(loading[done:])

    def _await(self, loading: list[_Loading]) -> None:
        begin = perf_counter()
        for load in loading:
            load.done.result()
        self._channel.check_open()
        end = perf_counter()
        self._stats.add(waiting_for_loads_seconds=end - begin)
        self._stats.trace.add("wait for loads", begin, end)

    def _begin(self, batch: int) -> Filling:
        """A batch to fill, once the consumer has taken enough of those before."""
        begin = perf_counter()
        self._channel.reserve()
        end = perf_counter()
        self._stats.add(waiting_for_consumer_seconds=end - begin)
        self._stats.trace.add("wait for consumer", begin, end, batch=batch)
        size = self._plan.first_clip(batch + 1) - self._plan.first_clip(batch)
        assert self._workspace is not None
        return Filling(size, self._workspace.arena, self._workspace.pools)


def _by_use(item: tuple[int, Any] | tuple[int, Any, Any]) -> int:
    return item[0]
