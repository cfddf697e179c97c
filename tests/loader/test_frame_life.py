"""The life of frames against a simulation round by round, in dicts."""

from __future__ import annotations

import tracemalloc
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator, default_rng

from seqrecord.loader.sampling.decoding_units import FrameGroup
from seqrecord.loader.sampling.frame_life import life_of_frames, peak_bytes
from seqrecord.store.tables.grids import ChunkGrid, IntArray

Unit = tuple[int, int]  # run, first frame
Rows = tuple[IntArray, IntArray, IntArray]  # run, episode, rounds

STYLES = ("dense", "strided", "sparse", "single", "map")
GRIDS = ("none", "by frame", "unit 1", "units", "chunks", "irregular", "both", "long", "pieces")


class Simulation:
    """Frames in memory and open decoders, round by round.

    `unit_begin` of an episode and a frame; `None` if each frame is decoded alone.
    """

    def __init__(
        self,
        unit_begin: Callable[[int, int], int] | None,
        rows: Rows,
        frames: IntArray,
    ) -> None:
        self.is_alone = unit_begin is None
        self.uses = defaultdict[int, dict[Unit, set[int]]](lambda: defaultdict(set))
        rounds_of = defaultdict[Unit, set[int]](set)
        columns = (column.tolist() for column in (*rows, frames))
        for run, episode, index, used in zip(*columns, strict=True):
            for frame in used:
                unit = run, unit_begin(episode, frame) if unit_begin else frame
                self.uses[index][unit].add(frame)
                rounds_of[unit].add(index)
        self.rounds_of = {unit: sorted(rounds) for unit, rounds in rounds_of.items()}
        self.memory = defaultdict[Unit, dict[int, int]](dict)  # frame -> round of its decode
        self.passed = dict[Unit, int]()  # the next frame of a unit's decoder
        self.opened = dict[Unit, int]()
        self.num_decoded = 0
        self.lives, self.decoders = list[tuple[int, ...]](), list[tuple[int, int]]()
        self.alive = list[tuple[int, int]]()  # frames and decoders in each round
        for index in range(max(self.uses) + 1):
            self._run(index)

    def _stay_end(self, unit: Unit, index: int) -> int:
        """The last round that uses the unit, from a round that does on."""
        return max(index, self.rounds_of[unit][-1])

    def _is_used(self, unit: Unit, frame: int, start: int, last: int) -> bool:
        return any(
            frame in self.uses[index][unit]
            for index in self.rounds_of[unit]
            if start <= index <= last
        )

    def _run(self, index: int) -> None:
        for unit, frames in list(self.uses[index].items()) if index in self.uses else []:
            held = self.memory[unit]
            missing = frames - set(held)
            if not missing:
                continue
            begin = max(missing)
            if not self.is_alone:
                begin = self.passed.setdefault(unit, unit[1])
                self.opened.setdefault(unit, index)
            self.passed[unit] = max(missing) + 1
            for frame in range(begin, max(missing) + 1):
                self.num_decoded += 1
                if self._is_used(unit, frame, index, self._stay_end(unit, index)):
                    held[frame] = index
            assert frames <= set(held)
        self.alive.append((sum(map(len, self.memory.values())), len(self.opened)))
        for unit, held in list(self.memory.items()):
            rounds = self.rounds_of[unit]
            end = self._stay_end(unit, rounds[bisect_right(rounds, index) - 1])
            for frame in list(held):
                if not self._is_used(unit, frame, index + 1, end):
                    self.lives.append((unit[0], frame, held.pop(frame), index))
            later = range(self.passed[unit], self.passed[unit] + 200)
            if unit in self.opened and not any(
                self._is_used(unit, frame, index + 1, end) for frame in later
            ):
                self.decoders.append((self.opened.pop(unit), index))
            if end <= index:
                del self.memory[unit], self.passed[unit]


def drawn_grid(
    rng: Generator, num_frames: IntArray
) -> tuple[ChunkGrid | None, list[list[int]] | None]:
    """Chunks, and the first frames of the units of each episode."""
    kind = str(rng.choice(GRIDS))
    unit = {"by frame": int(rng.integers(4)), "unit 1": 1}.get(kind, int(rng.integers(2, 9)))
    if kind == "none":
        return None, None
    if kind in ("chunks", "irregular", "pieces"):
        unit = 0
    lengths = num_frames.tolist()
    if kind in ("irregular", "both", "pieces"):
        edges = [
            [0, *np.unique(rng.integers(1, max(2, n), min(n - 1, 5))).tolist()] for n in lengths
        ]
        first_chunk = np.cumsum([0, *map(len, edges)])[:-1]
        grid = ChunkGrid.of(num_frames, first_chunk, np.concatenate(edges))
        if kind == "pieces":
            grid = grid.in_pieces(num_frames, 3)
        else:
            grid = ChunkGrid(
                grid.chunk_frames, grid.first_chunk, edges=grid.edges, unit_frames=unit
            )
    else:
        chunk = max(lengths) + 5 if kind == "long" else int(rng.integers(1, 20))
        count = -(-num_frames // chunk)
        sizes = np.full(len(lengths), chunk)
        grid = ChunkGrid(
            sizes, np.cumsum(count) - count, unit_frames=unit, by_frame=kind == "by frame"
        )
        edges = [list(range(0, n, chunk)) for n in lengths]
    if kind in ("by frame", "unit 1"):
        return grid, None
    begins = [
        [b for a, c in zip(e, [*e[1:], n], strict=True) for b in range(a, c, unit or n)]
        for e, n in zip(edges, lengths, strict=True)
    ]
    return grid, begins


def drawn_rows(rng: Generator, num_frames: IntArray) -> tuple[Rows, IntArray]:
    """Rows of some runs, and their starts; rounds of a run need not ascend."""
    style = str(rng.choice(STYLES))
    num_rounds = int(rng.integers(1, 30))
    run, episode, start, rounds = (list[int]() for _ in range(4))
    number = int(rng.integers(3))
    for _ in range(int(rng.integers(1, 7))):
        index = int(rng.integers(len(num_frames)))
        length = int(num_frames[index])
        starts = np.sort(rng.integers(length, size=1 if style == "single" else 4))
        if style in ("dense", "strided"):
            step = 1 if style == "dense" else int(rng.integers(2, 15))
            starts = np.arange(int(starts[0]), length, step)[:30]
        at = rng.integers(num_rounds, size=len(starts))
        run += [number] * len(starts)
        episode += [index] * len(starts)
        start += starts.tolist()
        rounds += (at if style == "map" else np.sort(at)).tolist()
        number += int(rng.integers(1, 4))
    columns = (np.array(column) for column in (run, episode, rounds))
    return tuple(columns), np.array(start)  # type: ignore[return-value]


def drawn_offsets(rng: Generator) -> IntArray:
    low, high = (-40, 41) if rng.random() < 0.3 else (-4, 9)
    offsets = rng.integers(low, high, int(rng.integers(1, 8)))
    if rng.random() < 0.15:  # the first or the last frame of the episode
        offsets = np.append(offsets, rng.choice([-(10**6), 10**6]))
    return np.unique(offsets)


@pytest.mark.parametrize("part", range(20))
def test_lives_are_those_of_a_simulation(part: int) -> None:
    for case in range(20):
        rng = default_rng((part, case))
        longest = int(rng.integers(1, 90))
        num_frames = rng.integers(1, longest + 1, int(rng.integers(1, 7)))
        rows, start = drawn_rows(rng, num_frames)
        run, episode, rounds = rows
        num_rounds = int(rounds.max()) + 1
        lives, alive = [], np.zeros(num_rounds, np.int64)
        for _ in range(int(rng.integers(1, 4))):
            grid, begins = drawn_grid(rng, num_frames)
            nbytes, decoder_bytes = rng.integers(1, 9, 2).tolist()
            group = FrameGroup(drawn_offsets(rng), num_frames, nbytes, grid, decoder_bytes)
            frames = group.frames(episode, start)
            if rng.random() < 0.3:  # given by a function
                frames = rng.integers(0, num_frames[episode][:, None], (len(run), 5))
            life = life_of_frames(group, run, episode, frames, rounds)
            simulation = Simulation(_unit_begin(begins), rows, frames)
            columns = (life.run, life.frame, life.first, life.last)
            assert sorted(zip(*(c.tolist() for c in columns), strict=True)) == sorted(
                simulation.lives
            )
            decoders = zip(life.opened.tolist(), life.closed.tolist(), strict=True)
            assert sorted(decoders) == sorted(simulation.decoders)
            assert life.num_decoded == simulation.num_decoded
            alive += np.array(simulation.alive) @ [nbytes, decoder_bytes]
            lives.append((group, life))
        assert peak_bytes(lives, num_rounds, ahead=0) == alive.max()


def _unit_begin(begins: list[list[int]] | None) -> Callable[[int, int], int] | None:
    if begins is None:
        return None
    return lambda episode, frame: begins[episode][bisect_right(begins[episode], frame) - 1]


def test_frames_and_decoders_are_there_rounds_ahead() -> None:
    """Frames of round 3 that end in 5, of decoders that decode in 3 and 4."""
    grid = ChunkGrid(np.array([4]), np.zeros(1, np.int64))
    group = FrameGroup(np.array([0]), np.array([8]), 10, grid, decoder_bytes=1)
    rows = np.array([0, 1, 0, 4])
    rounds = np.array([3, 4, 5, 0])
    zeros = np.zeros(4, np.int64)
    life = life_of_frames(group, zeros, zeros, rows[:, None], rounds)
    assert life.first.tolist() == [3, 4, 0]
    assert life.last.tolist() == [5, 4, 0]
    assert (life.opened.tolist(), life.closed.tolist()) == ([3, 0], [4, 0])
    assert peak_bytes([(group, life)], 6, ahead=0) == 21
    assert peak_bytes([(group, life)], 6, ahead=2) == 21
    assert peak_bytes([(group, life)], 6, ahead=3) == 22  # in round 0, both decoders


@pytest.mark.parametrize("offsets", [(0,), (-(10**9), 0)])
def test_memory_follows_from_the_uses_not_from_the_frames_between(
    offsets: tuple[int, ...],
) -> None:
    length = 10**8
    starts = np.array([0, length // 2, length - 1])
    group = FrameGroup(np.array(offsets), np.array([length]), nbytes=1)
    zeros, rounds = np.zeros(3, np.int64), np.array([0, 1, 5])
    frames = group.frames(zeros, starts)
    tracemalloc.start()
    life = life_of_frames(group, zeros, zeros, frames, rounds)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert set(life.frame.tolist()) == {0, length // 2, length - 1}
    assert peak < 1 << 20
