"""Clips that overlap: frames are loaded into the arena, and from there copied into every clip."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.arena import Ring, find_rows
from seqrecord.clips import ClipSpec
from seqrecord.engine.crew import Crew
from seqrecord.engine.device_filling import DeviceGathering
from seqrecord.engine.filling import Gathering
from seqrecord.engine.loading import Load, Place, each_load
from seqrecord.engine.schedule import first_uses
from seqrecord.engine.workspace import Workspace
from seqrecord.plan import EpochPlan, Round

__all__ = ["ArenaWalk"]


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


class ArenaWalk:
    """Walks a plan round by round: loads, gathers the clips into batches, frees frames.

    Loads of the next round run while the clips of this one are gathered, as far as the rings have
    room. Where reading is mostly waiting, what has no room is read ahead, and decoded later.
    """

    def __init__(self, plan: EpochPlan, spec: ClipSpec, workspace: Workspace, crew: Crew) -> None:
        self._plan = plan
        self._spec = spec
        self._workspace = workspace
        self._crew = crew
        rows = workspace.arena.num_rows // max(1, plan.num_cursors)
        self._rings = [Ring(cursor * rows, rows) for cursor in range(plan.num_cursors)]
        self._frame_nbytes = sum(spec.nbytes for spec in workspace.needs.specs.values())
        self._steps = np.arange(spec.length) * spec.dilation
        self._rounds = _Rounds(iter(()))
        self._filling: Gathering | DeviceGathering | None = None

    def run(self, batch: int) -> None:
        """Deliver the batches from `batch` on."""
        first_round, skip = self._plan.locate(batch)
        waiting = [_Waiting(0, load) for load in each_load(self._plan.resident(first_round))]
        loading = self._submit(waiting)
        assert not waiting, "the plan holds more frames than it said"
        # Not a method: what refers to this walk would keep its memory beside the next epoch's.
        planned_loads = partial(_plan_loads, self._spec.span, self._plan.frame_step)
        self._rounds = _Rounds(map(planned_loads, self._plan.rounds(first_round)))
        while (planned := self._rounds.pop()) is not None:
            current = planned.round
            loading += self._submit(planned.waiting)
            assert not planned.waiting, "the plan holds more frames than it said"
            clips = current.clips
            places = find_rows(self._rings, clips.run, clips.start)
            following = self._rounds.peek(0)
            ahead = self._submit(following.waiting) if following else []
            self._crew.stats.add(loads_held_back=len(following.waiting) if following else 0)
            self._crew.hold(sum(ring.resident for ring in self._rings) * self._frame_nbytes)
            self._emit(current, places, skip, sorted(loading, key=_by_use))
            for cursor, count in zip(current.frees.cursor, current.frees.count, strict=True):
                self._rings[cursor].free(int(count))
            loading, skip = ahead, 0

    def _later(self) -> Iterator[Load]:
        """The next loads that have no room yet, as many as may be read ahead."""
        count, number = 0, 0
        while count < self._crew.num_ahead and (planned := self._rounds.peek(number)) is not None:
            yield from (item.load for item in sorted(planned.waiting, key=_by_use))
            count, number = count + len(planned.waiting), number + 1

    def _submit(self, waiting: list[_Waiting]) -> list[_Loading]:
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
            step = self._plan.frame_step
            rows = self._rings[load.cursor].load(load.run, load.first, load.count, step)
            placed.append((item.first_use, load, rows))
        waiting[:] = late
        placed.sort(key=_by_use)
        loading = []
        for first_use, load, rows in placed:
            target, places = self._workspace.arena.load(rows)
            done = self._crew.load(load, [Place(target, np.arange(load.count), places)])
            loading.append(_Loading(first_use, done))
        return loading

    def _emit(
        self,
        current: Round,
        places: tuple[npt.NDArray[np.int64], ...],
        skip: int,
        loading: list[_Loading],
    ) -> None:
        """Gather a round's clips into batches as their loads arrive, and hand over full ones.

        `loading` is in the order of first use. All of it is done when this returns.
        """
        edges = (np.flatnonzero(np.diff(current.clips.batch)) + 1).tolist()
        uses, done = [load.first_use for load in loading], 0
        for start, stop in pairwise([skip, *(e for e in edges if e > skip), len(current.clips)]):
            if start == stop:
                continue
            self._crew.fetch(self._later())
            if self._filling is None:
                self._filling = self._begin(int(current.clips.batch[start]))
            needed = bisect_left(uses, stop)
            self._crew.wait(load.done for load in loading[done:needed])
            done = needed
            origin, first, number = (column[start:stop, None] for column in places)
            frames = current.clips.start[start:stop, None] + self._steps
            place = (origin + frames // self._plan.frame_step) % number
            self._gather(self._filling, current, np.add(first, place, dtype=np.int64), start)
            if self._filling.is_full:
                self._crew.deliver(self._filling.finish())
                self._filling = None
        self._crew.wait(load.done for load in loading[done:])

    def _gather(
        self,
        filling: Gathering | DeviceGathering,
        current: Round,
        rows: npt.NDArray[np.int64],
        start: int,
    ) -> None:
        crew, begin = self._crew, perf_counter()
        part = current.clips.part(start, start + len(rows))
        nbytes = filling.gather(
            part.episode,
            part.start,
            rows,
            crew.copiers,
            crew.num_copiers,
            crew.stats.trace,
        )
        end = perf_counter()
        crew.stats.add(gather_seconds=end - begin, device_bytes=nbytes)
        crew.stats.trace.add("gather", begin, end, clips=len(rows))

    def _begin(self, batch: int) -> Gathering | DeviceGathering:
        """A batch to fill, once the consumer has taken enough of those before."""
        self._crew.reserve(batch)
        size = self._plan.first_clip(batch + 1) - self._plan.first_clip(batch)
        return self._workspace.begin_gathering(size)


def _plan_loads(span: int, frame_step: int, current: Round) -> _Planned:
    """A round with its loads, a cursor's in the order in which they fill its ring."""
    uses = first_uses(current.loads, current.clips, span=span, frame_step=frame_step)
    return _Planned(current, list(map(_Waiting, uses.tolist(), each_load(current.loads))))


def _by_use(item: tuple[int, Any] | tuple[int, Any, Any]) -> int:
    return item[0]
