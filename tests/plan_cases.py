"""Plans on small datasets, and an engine that does what they say and checks every step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st

from seqrecord import ClipError, ClipSpec
from seqrecord.clips.tables import EpisodeTable
from seqrecord.sampling import EpochPlan, Part, Plan, PlanSettings
from seqrecord.sampling.plan import Loads, Round
from tests.clip_cases import Case, cases

__all__ = ["Engine", "Request", "chunks_of", "parts", "requests"]


class Engine:
    """Does what a plan says and checks each step: a set of (run, frame) stands for the arena."""

    def __init__(self, plan: Plan, episodes: EpisodeTable, spec: ClipSpec, *, tight: bool) -> None:
        self.plan, self.episodes, self.spec = plan, episodes, spec
        self.step = plan.groups[0].window.frame_step
        self.held: dict[int, dict[int, tuple[int, int]]] = {}  # run: frame: (episode, chunk)
        self.order: dict[int, list[tuple[int, int]]] = {}  # cursor: (run, frame) as they came
        self.cursor: dict[int, int] = {}  # run: cursor
        self.seen: dict[int, set[int]] = {}  # run: chunks loaded
        self.chunks: Counter[int] = Counter()  # how often each was loaded
        self.frames: Counter[tuple[int, int]] = Counter()  # how often each was decoded
        # Whether a run's clips leave no gap, of which the rest of a loaded chunk may be a part.
        self.tight = tight and spec.stride <= spec.span and not plan.num_dropped
        self.past: dict[int, tuple[int, int]] = {}  # run: last frame it loaded, last it used
        self.clips: list[tuple[int, int]] = []
        self.places: list[tuple[int, int]] = []  # (batch, slot)
        self.most_frames = 0

    def load(self, loads: Loads) -> None:
        columns = (loads.cursor, loads.run, loads.episode, loads.chunk, loads.first, loads.count)
        for cursor, run, episode, chunk, first, count in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            assert self.cursor.setdefault(run, cursor) == cursor
            held, order = self.held.setdefault(run, {}), self.order.setdefault(cursor, [])
            seen = self.seen.setdefault(run, set())
            assert chunk not in seen, "a chunk is loaded twice in a run"
            seen.add(chunk)
            self.chunks[chunk] += 1
            size = int(self.episodes.lead.chunk_frames[episode])
            row = chunk - int(self.episodes.lead.first_chunk[episode])
            assert count > 0
            for frame in range(first, first + count * self.step, self.step):
                assert frame < self.episodes.num_frames[episode]
                assert frame // size == row, "a frame of another chunk"
                assert frame not in held, "a frame is loaded twice"
                held[frame] = (episode, chunk)
                order.append((run, frame))
                self.frames[episode, frame] += 1
                self.past[run] = (frame, self.past.get(run, (0, -1))[1])
        self.most_frames = max(self.most_frames, sum(map(len, self.held.values())))
        rows = self.plan.groups[0].max_resident_frames // max(1, self.plan.num_cursors)
        assert all(len(order) <= rows for order in self.order.values())

    def run(self, work: Round) -> None:
        self.load(work.groups[0].loads)
        clips = work.clips
        columns = (clips.cursor, clips.run, clips.episode, clips.start, clips.batch, clips.slot)
        for cursor, run, episode, start, batch, slot in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            assert self.cursor[run] == cursor
            for i in range(self.spec.length):
                assert self.held[run][start + i * self.spec.dilation][0] == episode
            loaded, used = self.past[run]
            self.past[run] = (loaded, max(used, start + self.spec.span - 1))
            self.clips.append((episode, start))
            self.places.append((batch, slot))
        frees = work.groups[0].frees
        for cursor, run, first, count in zip(
            frees.cursor.tolist(),
            frees.run.tolist(),
            frees.first.tolist(),
            frees.count.tolist(),
            strict=True,
        ):
            assert count > 0
            for i in range(count):
                frame = first + i * self.step
                assert self.order[cursor].pop(0) == (run, frame), "not in the order of the loads"
                del self.held[run][frame]
            if not self.held[run] and self.tight:
                assert self.past[run][0] <= self.past[run][1], "loaded past the last clip"


@dataclass(frozen=True)
class Request:
    case: Case
    settings: PlanSettings
    epoch: int
    num_parts: int

    def plan(self, index: int = 0) -> EpochPlan:
        part = Part(index, self.num_parts)
        case = self.case
        return EpochPlan(case.table, case.episodes, self.settings, epoch=self.epoch, part=part)

    def run(self, plan: EpochPlan) -> Engine:
        engine = Engine(plan, self.case.episodes, self.case.spec, tight=not self.case.missing)
        for i, work in enumerate(plan.rounds()):
            assert work.index == i
            engine.run(work)
        assert not any(engine.held.values()), "frames are left when the epoch ends"
        return engine


@st.composite
def requests(draw: st.DrawFn) -> Request:
    chosen = PlanSettings(
        shuffle=draw(st.sampled_from([True, True, False])),
        seed=draw(st.integers(-3, 2**70)),
        batch_size=draw(st.none() | st.integers(1, 7)),
        drop_last=draw(st.booleans()),
        equal=draw(st.booleans()),
        num_cursors=draw(st.integers(1, 6)),
        block_frames=draw(st.integers(1, 40)),
        run_frames=draw(st.none() | st.integers(1, 50)),
        first_block_frames=draw(st.integers(1, 40)),
    )
    return Request(draw(cases()), chosen, draw(st.integers(0, 3)), draw(st.integers(1, 4)))


def parts(request: Request) -> list[EpochPlan]:
    """The plans of all parts; none where the request is refused, as it must be."""
    total, size = request.case.table.num_clips, request.settings.batch_size or 1
    most = total // request.num_parts if request.settings.equal else -(-total // request.num_parts)
    if total and most < size and request.settings.drop_last:
        with pytest.raises(ClipError, match="drop_last leaves no batch at all"):
            request.plan()
        return []
    return [request.plan(index) for index in range(request.num_parts)]


def chunks_of(case: Case, frames: set[tuple[int, int]]) -> set[int]:
    first = case.episodes.lead.first_chunk.tolist()
    return {first[e] + frame // case.chunk_frames[e] for e, frame in frames}
