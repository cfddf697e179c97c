"""Plans on small datasets, and an engine that does what they say and checks every step."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st

from seqrecord.clips import ClipSpec, EpisodeTable
from seqrecord.errors import ClipError
from seqrecord.plan import EpochPlan, PlanSettings, Split
from seqrecord.plan.steps import Loads, Round
from tests.clip_cases import Case, cases

__all__ = ["Engine", "Request", "chunks_of", "requests", "splits"]


class Engine:
    """Does what a plan says and checks each step: a set of (cursor, frame) stands for the arena."""

    def __init__(
        self, plan: EpochPlan, episodes: EpisodeTable, spec: ClipSpec, *, tight: bool
    ) -> None:
        self.plan, self.episodes, self.spec = plan, episodes, spec
        self.held: dict[int, dict[int, tuple[int, int]]] = {}  # cursor: frame: (episode, chunk)
        self.seen: dict[int, set[int]] = {}  # cursor: chunks loaded since it last held nothing
        self.chunks: Counter[int] = Counter()  # how often each was loaded
        self.frames: Counter[tuple[int, int]] = Counter()  # how often each was decoded
        # Whether a run's clips leave no gap, of which the rest of a loaded chunk may be a part.
        self.tight = tight and spec.stride <= spec.span and not plan.num_dropped
        self.past: dict[int, tuple[int, int]] = {}  # cursor: last frame it loaded, last it used
        self.clips: list[tuple[int, int]] = []
        self.places: list[tuple[int, int]] = []  # (batch, slot)
        self.most_frames = self.most_chunks = 0

    def load(self, loads: Loads) -> None:
        columns = (loads.cursor, loads.episode, loads.chunk, loads.first, loads.count)
        for cursor, episode, chunk, first, count in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            held = self.held.setdefault(cursor, {})
            seen = self.seen.setdefault(cursor, set())
            if not held:
                seen.clear()
                self.past[cursor] = (-1, -1)
            assert chunk not in seen, "a chunk is loaded twice in a run"
            seen.add(chunk)
            self.chunks[chunk] += 1
            size = int(self.episodes.chunk_frames[episode])
            row = chunk - int(self.episodes.first_chunk[episode])
            assert count > 0
            for frame in range(first, first + count * self.plan.frame_step, self.plan.frame_step):
                assert frame < self.episodes.num_frames[episode]
                assert frame // size == row, "a frame of another chunk"
                assert frame not in held, "a frame is loaded twice"
                held[frame] = (episode, chunk)
                self.frames[episode, frame] += 1
                self.past[cursor] = (frame, self.past[cursor][1])
        self.most_frames = max(self.most_frames, sum(map(len, self.held.values())))
        self.most_chunks = max(
            self.most_chunks, sum(len({c for _, c in h.values()}) for h in self.held.values())
        )

    def run(self, work: Round) -> None:
        self.load(work.loads)
        clips = work.clips
        columns = (clips.cursor, clips.episode, clips.start, clips.batch, clips.slot)
        for cursor, episode, start, batch, slot in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            for i in range(self.spec.length):
                assert self.held[cursor][start + i * self.spec.dilation][0] == episode
            loaded, used = self.past[cursor]
            self.past[cursor] = (loaded, max(used, start + self.spec.span - 1))
            self.clips.append((episode, start))
            self.places.append((batch, slot))
        frees = work.frees
        for cursor, first, count in zip(
            frees.cursor.tolist(), frees.first.tolist(), frees.count.tolist(), strict=True
        ):
            assert count > 0
            for i in range(count):
                del self.held[cursor][first + i * self.plan.frame_step]
            if not self.held[cursor] and self.tight:
                assert self.past[cursor][0] <= self.past[cursor][1], "loaded past the last clip"


@dataclass(frozen=True)
class Request:
    case: Case
    settings: PlanSettings
    epoch: int
    num_splits: int

    def plan(self, index: int = 0) -> EpochPlan:
        split = Split(index, self.num_splits)
        case = self.case
        return EpochPlan(case.table, case.episodes, self.settings, epoch=self.epoch, split=split)

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
        open_episodes=draw(st.integers(1, 6)),
        block_frames=draw(st.integers(1, 40)),
        run_frames=draw(st.none() | st.integers(1, 50)),
    )
    return Request(draw(cases()), chosen, draw(st.integers(0, 3)), draw(st.integers(1, 4)))


def splits(request: Request) -> list[EpochPlan]:
    """The plans of all splits; none where the request is refused, as it must be."""
    total, size = request.case.table.num_clips, request.settings.batch_size or 1
    most = (
        total // request.num_splits if request.settings.equal else -(-total // request.num_splits)
    )
    if total and most < size and request.settings.drop_last:
        with pytest.raises(ClipError, match="drop_last leaves no batch at all"):
            request.plan()
        return []
    return [request.plan(index) for index in range(request.num_splits)]


def chunks_of(case: Case, frames: set[tuple[int, int]]) -> set[int]:
    first = case.episodes.first_chunk.tolist()
    return {first[e] + frame // case.chunk_frames[e] for e, frame in frames}
