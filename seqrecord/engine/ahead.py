"""Rounds of a plan, with their loads into arenas, which begin as far ahead as there is room."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from seqrecord.clip_frames import ClipFrames
from seqrecord.clips import IntArray
from seqrecord.engine.batches import Source
from seqrecord.engine.joined import joined_rounds
from seqrecord.engine.loads import Load, each_load, first_uses, ordered_uses
from seqrecord.engine.resident import Resident, Ring
from seqrecord.engine.workers import Loading, Placed, WorkerPool, by_use
from seqrecord.sampling import GroupPlan, Plan, Round

__all__ = ["Found", "LoadedRound", "RoundsAhead"]

_FOUND_AT_ONCE = 1 << 12  # clips whose rows are computed together


class _Waiting(NamedTuple):
    """A load that waits for room: the number of the first clip of its round that needs it."""

    first_use: int
    load: Load


class _Planned(NamedTuple):
    """A round, and those of its loads that wait for room."""

    round: Round
    waiting: list[_Waiting]


class Found(Protocol):
    """Where an arena has the frames of a round's clips, of some features."""

    def source(self, start: int, stop: int) -> Source[Any]:
        """Of the clips `[start, stop)`."""


class LoadedRound:
    """A round whose loads into arenas are under way."""

    def __init__(
        self, current: Round, places: Sequence[Found], loading: list[Loading], workers: WorkerPool
    ) -> None:
        self.round = current
        self._places = places
        self._loading = sorted(loading, key=by_use)
        self._uses = [load.first_use for load in self._loading]
        self._waited = 0
        self._found: tuple[int, int, list[Source[Any]]] = (0, 0, [])  # sources of clips, from where
        self._workers = workers

    def sources(self, start: int, stop: int) -> list[Source[Any]]:
        """Where the clips `[start, stop)` of the round are in the arenas, once they are loaded."""
        self._wait(bisect_left(self._uses, stop))
        first, last, sources = self._found
        if not first <= start <= stop <= last:  # many at once: a batch may be a few clips
            first, last = start, min(max(stop, start + _FOUND_AT_ONCE), len(self.round.clips))
            sources = [found.source(first, last) for found in self._places]
            self._found = first, last, sources
        return [replace(s, rows=s.rows[start - first : stop - first]) for s in sources]

    def wait(self) -> None:
        """Until all loads are done."""
        self._wait(len(self._loading))

    def _wait(self, needed: int) -> None:
        self._workers.wait(load.done for load in self._loading[self._waited : needed])
        self._waited = max(self._waited, needed)


class RoundsAhead:
    """The rounds of a plan in their order, with their loads.

    Loads of the next round begin while the clips of this one are gathered, as far as the rings have
    room. Small rounds are joined: see `joined_rounds`.
    """

    def __init__(
        self,
        plan: Plan,
        clip_frames: ClipFrames,
        arenas: Sequence[Any],
        workers: WorkerPool,
    ) -> None:
        self._plan = plan
        self._workers = workers
        self._num_frames = clip_frames.num_frames
        self._resident = Resident(plan, clip_frames, arenas)
        self._rounds = _Rounds(iter(()))

    def run(self, first_round: int) -> Iterator[LoadedRound]:
        """The rounds from `first_round` on; what a round frees is forgotten when the next is asked
        for, by when its clips have been gathered."""
        groups = self._plan.groups
        waiting = [
            _Waiting(0, load)
            for group, loads in zip(groups, self._plan.resident(first_round), strict=True)
            for load in each_load(group.group, loads)
        ]
        loading = self._load(waiting)
        assert not waiting, "the plan holds more frames than it said"
        # Not a method: what refers to this object would keep its memory beside the next epoch's.
        planned_loads = partial(_plan_loads, groups, self._num_frames)
        rounds = joined_rounds(self._plan.rounds(first_round), self._resident.rooms())
        self._rounds = _Rounds(map(planned_loads, rounds))
        while (planned := self._rounds.pop()) is not None:
            current = planned.round
            loading += self._load(planned.waiting)
            assert not planned.waiting, "the plan holds more frames than it said"
            places = self._resident.find(current.clips)
            following = self._rounds.peek(0)
            ahead = self._load(following.waiting) if following else []
            stats = self._workers.stats
            stats.add(loads_held_back=len(following.waiting) if following else 0)
            loaded = LoadedRound(current, places, loading, self._workers)
            yield loaded
            loaded.wait()
            self._resident.free(current)
            loading = ahead

    @property
    def resident_bytes(self) -> int:
        """Of the frames that arenas hold, or that loads under way bring."""
        return self._resident.nbytes

    def later(self) -> Iterator[Load]:
        """The next loads that have no room yet, as many as may be read ahead."""
        count, number = 0, 0
        while count < self._workers.num_ahead and (planned := self._rounds.peek(number)):
            yield from (
                item.load for item in sorted(planned.waiting, key=lambda item: item.first_use)
            )
            count, number = count + len(planned.waiting), number + 1

    def _load(self, waiting: list[_Waiting]) -> list[Loading]:
        """Start those loads for which there is room, the first needed first.

        The others stay in `waiting`.
        """
        late: list[_Waiting] = []
        placed: list[Placed] = []
        full: set[Ring] = set()
        for item in waiting:
            ring = self._resident.ring(item.load)
            if ring in full or not ring.has_room(item.load.count):
                full.add(ring)  # its loads stay in order
                late.append(item)
            else:
                placed.append(Placed(item.first_use, item.load, *self._resident.place(item.load)))
        waiting[:] = late
        return self._workers.start(placed, self._resident.nbytes_of)


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


def _plan_loads(groups: Sequence[GroupPlan], num_frames: IntArray, current: Round) -> _Planned:
    """A round with its loads, a cursor's in the order in which they fill its ring."""
    waiting: list[_Waiting] = []
    for group, todo in zip(groups, current.groups, strict=True):
        uses = first_uses(todo.loads, current.clips, group.window, num_frames)
        uses_in_order = ordered_uses(uses, todo.loads, group)
        waiting += map(_Waiting, uses_in_order, each_load(group.group, todo.loads))
    return _Planned(current, waiting)
