"""Clips that overlap: frames are loaded into the arena, and from there copied into every clip.

The arena gives every cursor of a plan a ring of rows. Frames enter a ring in the order in which
they are loaded and leave it in the same order, so a row is found by counting::

    ring of 8 rows        . . f f f f . .
    frames freed              ^ 2       ^ 6     frames loaded
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.clips import ClipSpec
from seqrecord.engine.arena import Place
from seqrecord.engine.batches import Batch, BatchBuilder
from seqrecord.engine.buffers import Buffers
from seqrecord.engine.loading import Load, each_load, first_uses, frame_key
from seqrecord.engine.scheduler import Channel, WorkerPool
from seqrecord.sampling import Clips, EpochPlan, Frees, Round

__all__ = ["OverlappingExecutor", "Ring", "find_rows"]


class _Waiting(NamedTuple):
    """A load that waits for room: the number of the first clip of its round that needs it."""

    first_use: int
    load: Load


class _Loading(NamedTuple):
    """A load under way."""

    first_use: int
    done: Future[None]


class _Planned(NamedTuple):
    """A round, and those of its loads that wait for room."""

    round: Round
    waiting: list[_Waiting]


class OverlappingExecutor:
    """Executes a plan round by round: loads, gathers the clips into batches, frees frames.

    Loads of the next round run while the clips of this one are gathered, as far as the rings have
    room. Where reading is mostly waiting, what has no room is read ahead, and decoded later.
    """

    def __init__(
        self,
        plan: EpochPlan,
        spec: ClipSpec,
        buffers: Buffers[Any],
        workers: WorkerPool,
        channel: Channel[Batch],
    ) -> None:
        self._plan = plan
        (self._group,) = plan.groups
        self._steps = np.arange(spec.length) * spec.dilation
        self._span = spec.span
        self._buffers = buffers
        self._workers = workers
        self._channel = channel
        self._resident = _Resident(plan, buffers.arena, workers)
        self._rounds = _Rounds(iter(()))
        self._builder: BatchBuilder[Any] | None = None

    def run(self, batch: int) -> None:
        """See `Executor`."""
        first_round, skip = self._plan.locate(batch)
        waiting = [_Waiting(0, load) for load in each_load(self._plan.resident(first_round)[0])]
        loading = self._resident.load(waiting)
        assert not waiting, "the plan holds more frames than it said"
        # Not a method: what refers to this object would keep its memory beside the next epoch's.
        planned_loads = partial(_plan_loads, self._span, self._group.window.frame_step)
        self._rounds = _Rounds(map(planned_loads, self._plan.rounds(first_round)))
        while (planned := self._rounds.pop()) is not None:
            current = planned.round
            loading += self._resident.load(planned.waiting)
            assert not planned.waiting, "the plan holds more frames than it said"
            places = self._resident.find(current.clips)
            following = self._rounds.peek(0)
            ahead = self._resident.load(following.waiting) if following else []
            stats = self._workers.stats
            stats.add(loads_held_back=len(following.waiting) if following else 0)
            stats.hold(self._resident.nbytes)
            self._emit(current.clips, places, skip, sorted(loading, key=_by_use))
            self._resident.free(current.groups[0].frees)
            loading, skip = ahead, 0

    def _emit(
        self,
        clips: Clips,
        places: tuple[npt.NDArray[np.int64], ...],
        skip: int,
        loading: list[_Loading],
    ) -> None:
        """Gather a round's clips into batches as their loads arrive, and deliver full ones.

        `loading` is in the order of first use. All of it is done when this returns.
        """
        edges = (np.flatnonzero(np.diff(clips.batch)) + 1).tolist()
        uses, done = [load.first_use for load in loading], 0
        for start, stop in pairwise([skip, *(e for e in edges if e > skip), len(clips)]):
            if start == stop:
                continue
            self._workers.fetch(self._later())
            if self._builder is None:
                self._builder = self._begin(int(clips.batch[start]))
            needed = bisect_left(uses, stop)
            self._workers.wait(load.done for load in loading[done:needed])
            done = needed
            origin, first, number = (column[start:stop, None] for column in places)
            frames = clips.start[start:stop, None] + self._steps
            place = (origin + frames // self._group.window.frame_step) % number
            rows = np.add(first, place, dtype=np.int64)
            self._gather(self._builder, clips.rows(start, stop), rows)
            if self._builder.is_full:
                self._channel.put(self._builder.finish())
                self._builder = None
        self._workers.wait(load.done for load in loading[done:])

    def _begin(self, batch: int) -> BatchBuilder[Any]:
        """A batch to build, once the consumer has taken enough of those before."""
        self._channel.reserve(batch)
        size = self._plan.first_clip(batch + 1) - self._plan.first_clip(batch)
        return self._buffers.begin_batch(size)

    def _gather(
        self, builder: BatchBuilder[Any], clips: Clips, rows: npt.NDArray[np.int64]
    ) -> None:
        stats, begin = self._workers.stats, perf_counter()
        nbytes = builder.gather(self._buffers.arena, rows, self._workers)
        builder.append(clips.episode, clips.start)
        end = perf_counter()
        stats.add(gather_seconds=end - begin, device_bytes=nbytes)
        stats.trace.add("gather", begin, end, clips=len(rows))

    def _later(self) -> Iterator[Load]:
        """The next loads that have no room yet, as many as may be read ahead."""
        count, number = 0, 0
        while count < self._workers.num_ahead and (planned := self._rounds.peek(number)):
            yield from (item.load for item in sorted(planned.waiting, key=_by_use))
            count, number = count + len(planned.waiting), number + 1


class _Rounds:
    """Rounds one after the other, with a look at those that follow."""

    def __init__(self, rounds: Iterator[_Planned]) -> None:
        self._rounds = rounds
        self._seen: deque[_Planned] = deque()

    def pop(self) -> _Planned | None:
        """The next round; `None` after the last."""
        return self._seen.popleft() if self.peek(0) is not None else None

    def peek(self, number: int) -> _Planned | None:
        """The round that comes `number` rounds after the next one, which stays; `None` for none."""
        while len(self._seen) <= number:
            planned = next(self._rounds, None)
            if planned is None:
                return None
            self._seen.append(planned)
        return self._seen[number]


class _Resident:
    """The frames that an arena holds for one plan: what is loaded, where it is, and what is freed.

    Each data set of several, and each group of features with chunks of its own, would have one.
    """

    def __init__(self, plan: EpochPlan, arena: Any, workers: WorkerPool) -> None:
        self._arena = arena
        self._workers = workers
        self._step = plan.groups[0].window.frame_step
        self._frame_nbytes: int = sum(spec.nbytes for spec in arena.specs.values())
        rows = arena.num_rows // max(1, plan.num_cursors)
        self._rings = [Ring(cursor * rows, rows) for cursor in range(plan.num_cursors)]

    @property
    def nbytes(self) -> int:
        """Bytes of the frames held."""
        return sum(ring.resident for ring in self._rings) * self._frame_nbytes

    def load(self, waiting: list[_Waiting]) -> list[_Loading]:
        """Start those loads for which there is room, the first needed first.

        The others stay in `waiting`.
        """
        late: list[_Waiting] = []
        placed: list[tuple[int, Load, npt.NDArray[np.int64]]] = []
        full: set[int] = set()
        for item in waiting:
            load = item.load
            if load.cursor in full or not self._rings[load.cursor].has_room(load.count):
                full.add(load.cursor)  # a cursor's loads stay in order
                late.append(item)
                continue
            rows = self._rings[load.cursor].load(load.run, load.first, load.count, self._step)
            placed.append((item.first_use, load, rows))
        waiting[:] = late
        placed.sort(key=_by_use)
        loading = []
        for first_use, load, rows in placed:
            place = Place(self._arena, np.arange(load.count), rows)
            loading.append(_Loading(first_use, self._workers.load(load, [place])))
        return loading

    def find(self, clips: Clips) -> tuple[npt.NDArray[np.int64], ...]:
        """Where the frames of clips are; see `find_rows`."""
        return find_rows(self._rings, clips.run, clips.start)

    def free(self, frees: Frees) -> None:
        """Make room."""
        for cursor, count in zip(frees.cursor, frees.count, strict=True):
            self._rings[cursor].free(int(count))


class Ring:
    """Which rows of the arena hold which frames of one cursor. Counts only, in a plan's order."""

    def __init__(self, first_row: int, num_rows: int) -> None:
        self.first_row = first_row
        self.num_rows = num_rows
        self._loaded = 0
        self._freed = 0
        self._next = (-1, -1)  # run and frame that would continue what was loaded last
        self._held: deque[_Held] = deque()

    def has_room(self, count: int) -> bool:
        return self._loaded + count - self._freed <= self.num_rows

    @property
    def resident(self) -> int:
        """Frames held."""
        return self._loaded - self._freed

    @property
    def held(self) -> Iterable[_Held]:
        """Consecutive frames of one run each, in the order of their loads."""
        return self._held

    def load(self, run: int, first: int, count: int, step: int) -> npt.NDArray[np.int64]:
        """Rows for frames `first`, `first + step`, … of a run, which follow those loaded last."""
        assert self.has_room(count), "the plan holds more frames than it said"
        if (run, first) == self._next:
            self._held[-1] = self._held[-1]._replace(stop=self._loaded + count)
        else:
            origin = self._loaded - first // step
            self._held.append(_Held(run, first, origin, self._loaded + count))
        self._next = (run, first + count * step)
        self._loaded += count
        positions = np.arange(self._loaded - count, self._loaded)
        rows: npt.NDArray[np.int64] = self.first_row + positions % self.num_rows
        return rows

    def free(self, count: int) -> None:
        """Forget the `count` frames that were loaded first."""
        self._freed += count
        while self._held and self._held[0].stop <= self._freed:
            self._held.popleft()
        if not self._held:
            self._next = (-1, -1)


class _Held(NamedTuple):
    """Frames of a run from `first` on, which a ring holds one after the other.

    Frame `f` is at place `(origin + f // step) % num_rows` of the ring, up to place `stop`.
    """

    run: int
    first: int
    origin: int
    stop: int


def find_rows(
    rings: Sequence[Ring],
    run: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where clips' frames are: origin, ring's first row and number of rows; int64[n] each.

    Clip `i` starts at frame `start[i]` of run `run[i]`; all of its frames are held. Runs ascend
    over the rings, and within each. Frame `f` is in row `first + (origin + f // step) % number`.
    """
    held = [(h.run, h.first, h.origin, r.first_row, r.num_rows) for r in rings for h in r.held]
    table = np.array(held, np.int64).reshape(-1, 5)
    keys = frame_key(table[:, 0], table[:, 1])
    at = np.searchsorted(keys, frame_key(run, start), side="right") - 1
    return table[at, 2], table[at, 3], table[at, 4]


def _plan_loads(span: int, frame_step: int, current: Round) -> _Planned:
    """A round with its loads, a cursor's in the order in which they fill its ring."""
    (group,) = current.groups
    uses = first_uses(group.loads, current.clips, span=span, frame_step=frame_step)
    return _Planned(current, list(map(_Waiting, uses.tolist(), each_load(group.loads))))


def _by_use(item: tuple[int, Any] | tuple[int, Any, Any]) -> int:
    return item[0]
