"""Plans on small datasets, and an engine that executes plans and checks every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from seqrecord.loader.sampling.bounds import PlanSettings
from seqrecord.loader.sampling.budgets import ClipCosts
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.plan import Frees, Loads, Plan, Round

from seqrecord import ClipError, ClipSpec
from seqrecord.loader.clips.frames import COPIES
from seqrecord.loader.clips.tables import (
    ClipTable,
    EpisodeLayout,
    IntArray,
    MissingFrames,
    enumerate_clips,
)
from seqrecord.loader.sampling.runs import Runs, Shard, Window
from seqrecord.loader.sampling.sequences import SEQUENCES
from tests.loader.clip_cases import Case, cases, grid_of, specs

Chunks = list[tuple[int, int, int]]
"""For each row of a chunk table: the episode, the first frame and the end."""


def sequence_settings(settings: PlanSettings, stride: int) -> PlanSettings:
    """The settings of an epoch of sequences."""
    return replace(settings, **SEQUENCES.settings(settings.batch_size or 1, stride))


def costs_of(table: ClipTable, cost: Sequence[int], window: int, *, pads: bool) -> ClipCosts:
    """A budget of 30, in windows of so many batches; the clips cost `cost` in turn."""
    samples = Runs.of(table).all_samples // COPIES
    values = np.resize(cost, int(samples.max(initial=0)) + 1)
    return ClipCosts(30, pads, 1 << 30, values, values, "stacked", 3, 30, 30, window)


def rows(*columns: IntArray) -> Iterator[tuple[int, ...]]:
    return zip(*(column.tolist() for column in columns), strict=True)


class Group:
    """Loaded frames of one group of features."""

    def __init__(self, plan: Plan, number: int, chunks: Chunks) -> None:
        planned = plan.groups[number]
        self.chunks, self.step = chunks, planned.window.frame_step
        self.room = planned.max_resident_frames  # frames, divided evenly between cursors
        self.rows = [self.room // max(1, plan.num_cursors)] * plan.num_cursors
        if planned.cursor_frames is not None:  # … or as planned
            self.rows = planned.cursor_frames.tolist()
            assert sum(self.rows) <= self.room
        self.held: dict[int, dict[int, int]] = {}  # run: frame: episode
        self.order: dict[int, list[tuple[int, int]]] = {}  # cursor: (run, frame) as loaded
        self.cursor: dict[int, int] = {}  # run: cursor
        self.loaded: Counter[tuple[int, int]] = Counter()  # (run, chunk)
        self.frames: Counter[tuple[int, int]] = Counter()  # (episode, frame)
        self.most_frames = 0

    def load(self, loads: Loads) -> None:
        for cursor, run, episode, chunk, first, count in rows(
            loads.cursor, loads.run, loads.episode, loads.chunk, loads.first, loads.count
        ):
            assert self.cursor.setdefault(run, cursor) == cursor
            loaded, order = self.held.setdefault(run, {}), self.order.setdefault(cursor, [])
            assert not self.loaded[run, chunk], "duplicate chunk in a run"
            self.loaded[run, chunk] += 1
            owner, begin, end = self.chunks[chunk]
            assert owner == episode
            assert count > 0
            for frame in range(first, first + count * self.step, self.step):
                assert begin <= frame < end, "a frame of another chunk"
                assert frame not in loaded, "duplicate frame"
                loaded[frame] = episode
                order.append((run, frame))
                self.frames[episode, frame] += 1
        self.most_frames = max(self.most_frames, sum(map(len, self.held.values())))
        assert self.most_frames <= self.room
        assert all(len(order) <= self.rows[cursor] for cursor, order in self.order.items())

    def free(self, frees: Frees) -> None:
        for cursor, run, first, count in rows(frees.cursor, frees.run, frees.first, frees.count):
            assert count > 0
            for i in range(count):
                frame = first + i * self.step
                assert self.order[cursor].pop(0) == (run, frame), "not in the order of the loads"
                del self.held[run][frame]
            if not self.held[run]:
                del self.held[run]


class Engine:
    """Executes a plan, and checks each step.

    `used(group, episode, start)` returns the frames of a group that a clip needs.
    """

    def __init__(
        self,
        plan: Plan,
        chunks: Sequence[Chunks],
        used: Callable[[int, int, int], Iterable[int]],
    ) -> None:
        self.plan, self._used = plan, used
        self.groups = [Group(plan, number, rows) for number, rows in enumerate(chunks)]
        self.clips: list[tuple[int, int]] = []
        self.places: list[tuple[int, int]] = []  # (batch, slot)
        self.samples: list[int] = []

    @classmethod
    def of(cls, plan: Plan, episodes: EpisodeLayout, spec: ClipSpec) -> Engine:
        """An engine for one group, whose chunks have one length in each episode."""
        sizes = zip(
            episodes.num_frames.tolist(), episodes.leading_grid.chunk_frames.tolist(), strict=True
        )
        chunks = [
            (episode, begin, begin + size)
            for episode, (length, size) in enumerate(sizes)
            for begin in range(0, length, size)
        ]
        return cls(
            plan,
            [chunks],
            lambda _group, _episode, start: range(start, start + spec.span, spec.dilation),
        )

    @property
    def frames(self) -> Counter[tuple[int, int]]:
        """How often each frame of the first group was decoded."""
        return self.groups[0].frames

    @property
    def chunks(self) -> Counter[int]:
        """How often each chunk of the first group was loaded."""
        return Counter(chunk for _, chunk in self.groups[0].loaded)

    def run(self, work: Round) -> None:
        for group, todo in zip(self.groups, work.groups, strict=True):
            group.load(todo.loads)
        clips = work.clips
        for cursor, run, episode, start, batch, slot in rows(
            clips.cursor, clips.run, clips.episode, clips.start, clips.batch, clips.slot
        ):
            for number, group in enumerate(self.groups):
                assert group.cursor[run] == cursor
                for frame in self._used(number, episode, start):
                    assert group.held[run][frame] == episode
            self.clips.append((episode, start))
            self.places.append((batch, slot))
        self.samples += clips.sample.tolist()
        for group, todo in zip(self.groups, work.groups, strict=True):
            group.free(todo.frees)

    def finish(self, first: int | None = None) -> Engine:
        """Run all rounds from `first` on, by default all; loads the resident frames before it."""
        if first is not None:
            for group, loads in zip(self.groups, self.plan.resident(first), strict=True):
                group.load(loads)
        for number, work in enumerate(self.plan.rounds(first or 0), start=first or 0):
            assert work.index == number
            self.run(work)
        assert not any(group.held for group in self.groups), "unfreed frames at the epoch's end"
        return self


@dataclass(frozen=True)
class Request:
    case: Case
    settings: PlanSettings
    epoch: int
    num_shards: int
    costs: ClipCosts | None = None

    def plan(self, index: int = 0) -> EpochPlan:
        shard, case = Shard(index, self.num_shards), self.case
        place: Any = {"epoch": self.epoch, "shard": shard, "costs": self.costs}
        return EpochPlan(case.table, case.episodes, self.settings, **place)

    def run(self, plan: EpochPlan) -> Engine:
        return Engine.of(plan, self.case.episodes, self.case.spec).finish()


LAYOUTS: dict[str, st.SearchStrategy[Any]] = {
    "batch_size": st.none() | st.integers(1, 7),
    "num_cursors": st.integers(1, 6),
    "block_frames": st.integers(1, 40),
    "run_frames": st.none() | st.integers(1, 50),
    "first_block_frames": st.integers(1, 40),
    "num_shares": st.none() | st.integers(1, 6),
}
"""Settings that may change in the middle of an epoch."""

plan_settings = st.builds(
    PlanSettings,
    shuffle=st.sampled_from([True, True, False]),
    seed=st.integers(-3, 2**70),
    last_batch=st.sampled_from(["repeat", "drop", "keep"]),
    **LAYOUTS,
)


def requests() -> st.SearchStrategy[Request]:
    return st.builds(Request, cases(), plan_settings, st.integers(0, 3), st.integers(1, 4))


def shards(request: Request) -> list[EpochPlan]:
    """The plans of all shards; empty if the request raises the expected error."""
    total, size = request.case.table.num_clips, request.settings.batch_size or 1
    most = (
        total // request.num_shards if request.settings.is_even else -(-total // request.num_shards)
    )
    if total and most < size and request.settings.drops:
        with pytest.raises(ClipError, match="leaves no batch at all"):
            request.plan()
        return []
    return [request.plan(index) for index in range(request.num_shards)]


# Several groups


Lengths = tuple[tuple[int, ...], ...]
"""Chunk lengths by episode."""


@dataclass(frozen=True)
class GroupCase:
    """A clip request on groups with chunks of their own; `missing`: episode, start, stop."""

    groups: tuple[Lengths, ...]
    windows: tuple[Window, ...]
    spec: ClipSpec
    selected: tuple[int, ...]
    leading: int
    missing: tuple[tuple[int, int, int], ...]
    settings: PlanSettings
    shard: Shard = field(default_factory=Shard)
    epoch: int = 0
    costs: ClipCosts | None = None

    @property
    def num_frames(self) -> list[int]:
        return [sum(lengths) for lengths in self.groups[0]]

    @property
    def episodes(self) -> EpisodeLayout:
        grids = tuple(grid_of(chunks, i) for i, chunks in enumerate(self.groups))
        table = EpisodeLayout(np.array(self.num_frames), grids)
        return table.with_leading(self.leading, np.array(self.selected))

    @property
    def table(self) -> ClipTable:
        missing = MissingFrames.of(*np.array(self.missing, np.int64).reshape(-1, 3).T)
        return enumerate_clips(self.spec, self.episodes, np.array(self.selected), missing)

    def plan(self) -> EpochPlan:
        return EpochPlan(
            self.table,
            self.episodes,
            self.settings,
            epoch=self.epoch,
            shard=self.shard,
            windows=self.windows,
            costs=self.costs,
        )

    def used(self, group: int, episode: int, start: int) -> list[int]:
        """Frames of a group used by a clip."""
        window, last = self.windows[group], self.num_frames[episode] - 1
        if window == Window.of(self.spec):
            return [start + i * self.spec.dilation for i in range(self.spec.length)]
        first = start + window.offset
        frames = range(first, first + window.span, window.frame_step)
        return [min(max(frame, 0), last) for frame in frames]

    def engine(self, plan: Plan) -> Engine:
        return Engine(plan, [self.chunks(i) for i in range(len(self.groups))], self.used)

    def chunks(self, group: int) -> Chunks:
        return [
            (episode, *edges)
            for episode, lengths in enumerate(self.groups[group])
            for edges in pairwise((0, *accumulate(lengths)))
        ]


@st.composite
def lengths_of_chunks(draw: st.DrawFn, num_frames: int) -> tuple[int, ...]:
    if draw(st.booleans()):
        size = draw(st.sampled_from([1, 2, 3, 4, 7, 8, 16, 40, 100]))
        return tuple(min(size, num_frames - begin) for begin in range(0, num_frames, size))
    edges = draw(st.sets(st.integers(1, max(1, num_frames - 1)), max_size=8))
    inner = sorted(edge for edge in edges if edge < num_frames)
    return tuple(b - a for a, b in pairwise([0, *inner, num_frames]))


@st.composite
def windows_in(draw: st.DrawFn, spec: ClipSpec) -> Window:
    kind = draw(st.integers(0, 3))
    if kind == 0:
        return Window.of(spec)
    if kind == 1:  # part of the clip, with the same frame step
        length = draw(st.integers(1, spec.length))
        skipped = draw(st.integers(0, spec.length - length))
        span = (length - 1) * spec.dilation + 1
        step = spec.stride if length == 1 else spec.frame_step
        count = (span - 1) // step + 1
        return Window(skipped * spec.dilation, span, step, count)
    span = draw(st.integers(1, 12))
    return Window(draw(st.integers(-9, 9)), span, 1, span)


@st.composite
def group_cases(draw: st.DrawFn) -> GroupCase:
    num_frames = draw(st.lists(st.integers(1, 70), min_size=1, max_size=5))
    num_groups = draw(st.integers(1, 3))
    groups = tuple(
        tuple(draw(lengths_of_chunks(count)) for count in num_frames) for _ in range(num_groups)
    )
    spec = draw(specs())
    every = st.integers(0, len(num_frames) - 1)
    gaps = draw(st.lists(st.tuples(every, st.integers(0, 69), st.integers(1, 9)), max_size=4))
    count = draw(st.integers(1, 3))
    return GroupCase(
        groups,
        tuple(draw(windows_in(spec)) for _ in groups),
        spec,
        tuple(sorted(draw(st.sets(every)) or range(len(num_frames)))),
        draw(st.integers(0, num_groups - 1)),
        tuple((e, s, min(s + n, num_frames[e])) for e, s, n in gaps if s < num_frames[e]),
        draw(plan_settings),
        Shard(draw(st.integers(0, count - 1)), count),
        draw(st.integers(0, 2)),
    )


def plan_of(case: GroupCase) -> EpochPlan | None:
    try:
        return case.plan()
    except ClipError:
        assert case.settings.drops
        return None


def one_group(chunks: Lengths, spec: ClipSpec, settings: PlanSettings) -> GroupCase:
    episodes = tuple(range(len(chunks)))
    return GroupCase((chunks,), (Window.of(spec),), spec, episodes, 0, (), settings)
