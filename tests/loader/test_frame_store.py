"""The store of frames: every clip finds its frames, each is loaded as seldom as memory allows."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.errors import MemoryLimitError
from seqrecord.loader.clips.frames import ClipFrames, ClipKeys, OffsetWindow
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.engine.arena import Arena as EngineArena
from seqrecord.loader.engine.frame_rows import FrameLookup, FrameRows
from seqrecord.loader.engine.frame_store import (
    FrameStore,
    ResidentFrames,
    RunFrames,
    Step,
    StepFrames,
    StepStore,
)
from seqrecord.loader.engine.frame_table import FrameTable, Rows
from seqrecord.loader.engine.loads import AssignedLoad
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.sampling.epoch_plans import Clips
from seqrecord.store.tables.grids import ChunkGrid

NUM_FRAMES = 40


@dataclass(frozen=True)
class Case:
    """Runs of clips at starts, dealt to cursors; clips of a run come in rounds of `block`.

    `draws`: whether some clips have other frames than is noted ahead.
    """

    runs: list[list[int]]
    num_cursors: int
    block: int
    offsets: tuple[list[int], ...]
    chunk_frames: int
    capacity: int | None
    draws: bool = False
    seed: int = 0


class Plan:
    """What a store needs of a plan."""

    def __init__(self, case: Case) -> None:
        counts = np.array([len(starts) for starts in case.runs])
        self.num_runs = len(counts)
        self.end_of_run = np.cumsum(counts)
        self.cursor_of_run = np.arange(self.num_runs) % case.num_cursors
        # Runs are numbered by cursor.
        self.cursor_of_run.sort()
        self.episode_of_run = np.arange(self.num_runs) % 3
        self._start = np.concatenate([np.array(starts) for starts in case.runs])
        self._run = np.repeat(np.arange(self.num_runs), counts)
        chunk = np.full(3, case.chunk_frames)
        self.grids = [ChunkGrid(chunk, np.arange(3) * NUM_FRAMES) for _ in case.offsets]
        self.num_clips = len(self._start)
        self.reach = self.num_clips
        self._rounds = list[IntArray]()
        self.before = [0]
        generator = np.random.default_rng(case.seed)
        lines = [
            np.flatnonzero(self.cursor_of_run[self._run] == cursor)
            for cursor in range(case.num_cursors)
        ]
        while any(map(len, lines)):
            number = np.concatenate([line[: case.block] for line in lines])
            self._rounds.append(generator.permutation(number))
            lines = [line[case.block :] for line in lines]
            self.before.append(self.before[-1] + len(number))

    def keys(self, number: IntArray) -> ClipKeys:
        zeros = np.zeros_like(number)
        return ClipKeys(self.episode_of_run[self._run[number]], self._start[number], number, zeros)

    def numbers_before(self, index: int) -> IntArray:
        begins = self.end_of_run - np.bincount(self._run)
        done = np.concatenate([np.zeros(0, np.int64), *self._rounds[:index]])
        passed = np.full(int(self.cursor_of_run.max()) + 1, -1)
        np.maximum.at(passed, self.cursor_of_run[self._run[done]], done)
        numbers: IntArray = np.maximum(begins, passed[self.cursor_of_run] + 1)
        return numbers

    is_in_order = True

    @staticmethod
    def times(number: IntArray) -> IntArray:
        return number

    def first_of_round(self, index: int) -> int:
        return self.before[index]

    def spans(self, index: int) -> Iterator[tuple[int, int]]:
        for begin in range(index, len(self._rounds), 2):
            yield begin, min(begin + 2, len(self._rounds))

    def clips(self, begin: int, end: int) -> Clips:
        number = np.concatenate(self._rounds[begin:end])
        run, keys = self._run[number], self.keys(number)
        place = np.arange(len(number))
        of_runs = self.cursor_of_run[run], run, keys.episode, keys.start
        return Clips(*of_runs, place, number, number)

    def edges(self, begin: int, end: int) -> list[int]:
        return [before - self.before[begin] for before in self.before[begin : end + 1]]


@dataclass
class Arena:
    """Which frames are in which rows."""

    specs: dict[str, ArraySpec]
    num_rows: int
    frames: dict[int, tuple[int, int]] = field(default_factory=dict)


class Engine:
    """Executes the steps of a plan, and checks that clips find their frames."""

    def __init__(self, case: Case, first: int = 0) -> None:
        self.plan = plan = Plan(case)
        names = [f"{place}{number}" for place, _ in enumerate(case.offsets) for number in "ab"]
        windows: dict[str, Any] = {
            name: OffsetWindow.of(
                [2 * o for o in case.offsets[int(name[0])]]
                if name[1] == "b"
                else case.offsets[int(name[0])]
            )
            for name in names
        }
        num_frames = np.full(3, NUM_FRAMES)
        usual = ClipFrames(windows, num_frames)
        self.clip_frames = usual
        if case.draws:
            drawn = {name: OffsetWindow.of(w.offsets[0] // 2 + 1) for name, w in windows.items()}
            self.clip_frames = ClipFrames(drawn, num_frames)
        spec = ArraySpec(np.dtype(np.uint8), (1,))
        capacity = case.capacity or 4 * NUM_FRAMES * plan.num_runs
        bounds = [capacity * i // case.num_cursors for i in range(case.num_cursors + 1)]
        self.arenas = [
            Arena({name: spec for name in names if int(name[0]) == place}, capacity)
            for place, _ in enumerate(case.offsets)
        ]
        self.groups = [
            RunFrames(plan, place, self.clip_frames, arena, bounds)  # type: ignore[arg-type]
            for place, arena in enumerate(self.arenas)
        ]
        self.store = FrameStore(plan, self.clip_frames, usual, self.groups)  # type: ignore[arg-type]
        self.loaded = Counter[tuple[int, int, int]]()
        self.emitted = list[int]()
        self.has_dropped = False
        self._run(first)

    def _load(self, loads: Sequence[AssignedLoad]) -> None:
        for _, load, arena, frames, rows, _ in loads:
            assert len(set(rows.tolist())) == len(rows) == len(frames)
            for frame, row in zip(frames.tolist(), rows.tolist(), strict=True):
                arena.frames[row] = (load.run, frame)
                self.loaded[self.arenas.index(arena), load.run, frame] += 1

    def _run(self, first: int) -> None:
        store, plan = self.store, self.plan
        index = int(np.searchsorted(plan.before, first, side="right")) - 1
        steps = store.steps(index, first - plan.before[index])
        seen = deque[Step]()
        while seen or (following := next(steps, None)) is not None:
            step = seen.popleft() if seen else following
            assert step is not None
            self._load(store.place(step))
            while step.is_waiting:
                self.has_dropped = True
                step, *rest = store.make_room(step, seen)
                seen.extendleft(reversed(rest))
                self._load(store.place(step))
            if not seen and (following := next(steps, None)) is not None:
                seen.append(following)
            if seen:  # as the executor: the loads of the next step that have room
                self._load(store.place(seen[0], ahead=True))
            self._check(step)
            store.finish(step)

    def _check(self, step: Step) -> None:
        clips = step.clips
        for source in self.store.find(step):
            for name in source.features:
                frames = self.clip_frames.find(name, clips.keys).frames
                for run, of_clip, rows in zip(
                    clips.run.tolist(), frames.tolist(), source.rows.tolist(), strict=True
                ):
                    found = [source.arena.frames[row] for row in rows]
                    assert found == [(run, frame) for frame in of_clip]
        self.emitted += clips.number.tolist()


starts = st.lists(st.integers(0, NUM_FRAMES - 1), min_size=1, max_size=12, unique=True).map(sorted)
cases = st.builds(
    Case,
    st.lists(starts, min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(1, 5),
    st.tuples(
        st.lists(st.integers(-6, 9), min_size=1, max_size=4, unique=True).map(sorted),
        st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True).map(sorted),
    ),
    st.sampled_from((1, 4, 7, 40)),
    st.none(),
    st.booleans(),
    st.integers(0, 3),
)


@given(cases, st.integers(0, 60))
def test_each_frame_of_a_run_is_loaded_once(case: Case, first: int) -> None:
    plan = Plan(case)
    first %= plan.num_clips
    engine = Engine(case, first)
    order = plan.clips(0, len(plan.before) - 1).number.tolist()
    assert engine.emitted == order[first:]
    assert not engine.has_dropped
    if not case.draws:
        assert max(engine.loaded.values()) == 1
        for group in engine.groups:
            assert group.nbytes == 0, "frames are freed after their last clips"


@given(cases, st.integers(1, 30), st.integers(0, 60))
def test_few_rows_suffice(case: Case, capacity: int, first: int) -> None:
    """Frames that do not fit are dropped; those of a clip that has too many are refused."""
    plan = Plan(case)
    first %= plan.num_clips
    limited = Case(**{**vars(case), "capacity": capacity})
    order = plan.clips(0, len(plan.before) - 1).number.tolist()
    usual = Engine(case)
    needed = 0
    for place, arena in enumerate(usual.arenas):
        for number in order[first:]:
            keys = plan.keys(np.array([number]))
            frames = [usual.clip_frames.find(name, keys).frames for name in arena.specs]
            needed = max(needed, len(np.unique(np.concatenate(frames, axis=1))))
        assert place < 2
    if needed > capacity:
        with pytest.raises(MemoryLimitError, match="of one clip"):
            Engine(limited, first)
        return
    assert Engine(limited, first).emitted == order[first:]


def test_pages_of_past_frames_are_used_again() -> None:
    """A table has places for the frames in use, not for those of the epoch."""
    table = FrameTable(400)
    for run in range(400):
        table.begin(np.array([run]), np.array([3000]))
        for first in range(0, 3000, 500):
            places = table.places(np.array([run]), np.arange(first, first + 500)[None])[0]
            assert (table.last[places] == -1).all()
            table.last[places] = 1
            found = table.find(places)
            assert (found[0] == run).all()
            assert found[1].tolist() == [*range(first, first + 500)]
            table.clear(places)
    assert len(table.row) <= 4096


def test_rows_of_a_cursor_are_beside_each_other() -> None:
    rows = Rows([0, 8, 16])
    taken = [rows.take(cursor, 3, ahead=False) for cursor in (0, 1, 0, 1)]
    assert [run.tolist() for run in taken if run is not None] == [
        [0, 1, 2],
        [8, 9, 10],
        [3, 4, 5],
        [11, 12, 13],
    ]
    assert rows.take(0, 3, ahead=True) is None  # which would be another cursor's
    more = rows.take(0, 3, ahead=False)
    assert more is not None
    assert rows.num_free == 1
    rows.free(more)
    rows.free(np.arange(3))
    assert rows.num_free == 7
    for before, after in pairwise([rows.take(0, 3, ahead=True), rows.take(0, 2, ahead=True)]):
        assert before is not None
        assert before.tolist() == [0, 1, 2]
        assert after is not None


def frame_number(episode: IntArray | int, frame: IntArray) -> IntArray:
    return np.asarray(episode) * NUM_FRAMES + frame


def load_numbers(loads: Sequence[AssignedLoad], loaded: Counter[int]) -> None:
    """As a loader: writes the number of each frame into its rows."""
    for _, load, target, frames, rows, _ in loads:
        numbers = frame_number(load.episode, frames)
        loaded.update(numbers.tolist())
        is_arena = isinstance(target, EngineArena)
        for name in target.specs if is_arena else target:
            target[name][rows, 0] = numbers
        if is_arena:
            target.is_read[rows] = True


clips_of_calls = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, NUM_FRAMES - 1)), min_size=1, max_size=9
)


def call_clips(of_call: list[tuple[int, int]]) -> Clips:
    episode, start = (np.array(column) for column in zip(*of_call, strict=True))
    zeros, place = np.zeros_like(start), np.arange(len(start))
    return Clips(zeros, zeros, episode, start, place, place, place)


@given(
    clips_of_calls,
    st.lists(st.integers(-4, 6), min_size=1, max_size=5),
    st.sampled_from((1, 4, 7, 40)),
    st.booleans(),
)
def test_each_frame_of_a_call_is_loaded_once(
    of_call: list[tuple[int, int]], offsets: list[int], chunk_frames: int, direct: bool
) -> None:
    """In rows of an arena, and in those of the batch."""
    clips = call_clips(of_call)
    windows: dict[str, Any] = dict.fromkeys("ab", OffsetWindow.of(offsets))
    clip_frames = ClipFrames(windows, np.full(3, NUM_FRAMES))
    grids = [ChunkGrid(np.full(3, chunk_frames), np.arange(3) * NUM_FRAMES)]
    spec = ArraySpec(np.dtype(np.int64), (1,))
    step_frames = StepFrames(
        grids,
        clip_frames,
        clip_frames.by_window("ab"),
        clips,
        FrameLookup(clips.keys, clip_frames),
        lambda num_rows: EngineArena({"a": spec}, num_rows),
        {"b": np.full((len(of_call) * len(offsets), 1), -1)} if direct else {},
    )
    store, loaded = StepStore(clip_frames, [step_frames]), Counter[int]()
    step = store.step(clips)
    load_numbers(store.place(step), loaded)
    for copy in step_frames.repeats():
        copy.do()
    frames = clip_frames.find("a", clips.keys).frames
    wanted = frame_number(clips.episode[:, None], frames)
    [source] = store.find(step)
    assert source.features == ("a",)
    assert (source.arena["a"][source.rows, 0] == wanted).all()
    assert set(loaded) == set(wanted.ravel().tolist())
    assert max(loaded.values()) == 1
    if direct:
        [in_batch] = step_frames.direct.values()
        assert (in_batch[:, 0] == wanted.ravel()).all()


@given(st.lists(clips_of_calls, min_size=1, max_size=5), st.sampled_from((0, 3, 8)), st.booleans())
def test_calls_load_resident_frames_once(
    calls: list[list[tuple[int, int]]], block_frames: int, fails: bool
) -> None:
    """Neighbours with them; frames of a load that failed are loaded by the next call."""
    clip_frames = ClipFrames({"a": OffsetWindow.of([0, 1])}, np.full(3, NUM_FRAMES))
    rows = FrameRows.of_episodes(np.full(3, NUM_FRAMES), np.arange(3))
    arena = EngineArena({"a": ArraySpec(np.dtype(np.int64), (1,))}, rows.num_rows)
    grid, loaded = ChunkGrid(np.full(3, 16), np.arange(3) * NUM_FRAMES), Counter[int]()
    resident = ResidentFrames(grid, clip_frames, arena, rows, None, block_frames=block_frames)
    store, used = StepStore(clip_frames, [resident]), set[int]()
    if fails:
        store.place(store.step(call_clips(calls[0])))
    for of_call in calls:
        clips = call_clips(of_call)
        frames = clip_frames.find("a", clips.keys).frames
        wanted = frame_number(clips.episode[:, None], frames)
        exact = store.step(clips, exact=True)
        step = store.step(clips)
        missing = {int(n) for n in wanted.ravel() if not arena.is_read[n]}
        assert sum(len(load.frames) for load in exact.loads) == len(missing)
        load_numbers(store.place(step), loaded)
        resident.end_loads()
        used |= set(wanted.ravel().tolist())
        [source] = store.find(step)
        assert (source.arena["a"][source.rows, 0] == wanted).all()
    assert max(loaded.values()) == 1
    assert set(loaded) >= used
    if not block_frames:
        assert set(loaded) == used
    assert resident.nbytes == 8 * len(loaded)
