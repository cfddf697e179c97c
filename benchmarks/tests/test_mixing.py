"""The measure of mixing: brute force, orders whose figures are known, and those of loaders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks import mixing, ranks
from benchmarks.mixing import EpochRows, Figure, mean, measure, shuffled_episodes
from benchmarks.tartanair.default_mixing import Case, Group, Job, plan_epoch
from seqrecord import SeqRecordPipe

IntArray = npt.NDArray[np.int64]
FIGURES = ("step_episodes", "rank_episodes", "tail_episodes", "phase", "tail_phase", "neighbours")


def rows_of(
    clips: Sequence[tuple[int, int, int, int]], reader: IntArray | None = None
) -> EpochRows:
    """Rows of step, rank, episode and start."""
    step, rank, episode, start = np.array(clips, np.int64).T
    return EpochRows(step, rank, episode, start, reader)


def every_clip(lengths: Sequence[int], span: int) -> tuple[IntArray, IntArray]:
    """Episode and start of all clips, in order."""
    clips = [(e, s) for e, length in enumerate(lengths) for s in range(length - span + 1)]
    episode, start = np.array(clips, np.int64).T
    return episode, start


def dealt(
    clips: tuple[IntArray, IntArray], order: IntArray, num_ranks: int, batch_size: int
) -> EpochRows:
    """The clips in this order, dealt to full steps."""
    number = np.arange(len(order))
    step, place = np.divmod(number, num_ranks * batch_size)
    return EpochRows(step, place // batch_size, clips[0][order], clips[1][order])


# ---- hand-written steps


def test_two_steps_with_known_figures() -> None:
    """Two ranks with batches of two; episodes of 10 and 20 frames, clips of 4."""
    rows = rows_of(
        [
            *[(0, 0, 0, 0), (0, 0, 0, 3), (0, 1, 0, 6), (0, 1, 1, 0)],
            *[(1, 0, 1, 5), (1, 0, 1, 15), (1, 1, 1, 10), (1, 1, 1, 16)],
        ]
    )
    found = measure(rows, [10, 20], span=4)
    assert found.num_steps == 2
    assert found.step_episodes.value == (2 + 1) / 2
    assert found.rank_episodes.value == (1 + 2 + 1 + 1) / 4
    assert found.tail_episodes.value == 1  # of the second step
    # Clips at 0 and 3 share frame 3, those at 3 and 6 frame 6; and in the second step 15 and 16.
    assert found.neighbours.value == (1 + 2 + 1 + 0 + 0 + 1 + 0 + 1) / 8
    # Phases 0, .3, .6, 0 and .25, .75, .5, .8: means .225 and .575, and .4 of all.
    variance = (0.4**2 + 0.1**2 + 0.2**2 + 0.4**2 + 0.15**2 + 0.35**2 + 0.1**2 + 0.4**2) / 8
    assert found.phase.value == pytest.approx(0.175**2 / variance)
    assert found.tail_phase.value == pytest.approx(0.175**2 / variance)
    assert found.composition is None
    assert found.decodes == 0
    # Three clips of episode 0 and five of episode 1. Of 70 steps, 5 have episode 1 alone.
    assert found.step_episodes.full == pytest.approx(1 + 65 / 70)
    # Of 28 batches, 3 and 10 have one episode.
    assert found.rank_episodes.full == pytest.approx(1 + 15 / 28)
    assert found.phase.full == pytest.approx(1 / 7)  # (steps - 1) / (clips - 1)
    # All pairs that share frames are in a step together; at random 3 of 7 would be.
    assert found.neighbours.full == pytest.approx(found.neighbours.value * 3 / 7)


def test_decodes_begin_at_keyframes() -> None:
    """An episode of 20 frames, clips of 4, keyframes 0, 8 and 16."""
    clips = [(0, 0, 0, 2), (0, 0, 0, 3), (0, 0, 0, 11)]

    def decodes(readers: Sequence[int], gop: int) -> float:
        return measure(rows_of(clips, np.array(readers)), [20], 4, gop).decodes

    # Frames 2 to 6 and 11 to 14 are needed: 9.
    assert decodes([0, 0, 0], 8) == (7 + 7) / 9
    assert decodes([0, 1, 1], 8) == (6 + 7 + 7) / 9  # frames 0 to 5, 0 to 6, 8 to 14
    assert decodes([0, 0, 0], 1) == 1
    assert decodes([0, 1, 1], 1) == (4 + 4 + 4) / 9
    assert decodes([0, 0, 0], 20) == 15 / 9
    assert decodes([5, 900, 70], 20) == (6 + 7 + 15) / 9


# ---- brute force


def brute_force(
    rows: EpochRows, lengths: Sequence[int], span: int, gop: int, window: int
) -> dict[str, float]:
    """The figures of an order, by loops over its clips."""
    clips = list(
        zip(*(c.tolist() for c in (rows.step, rows.rank, rows.episode, rows.start)), strict=True)
    )
    phases = {clip: clip[3] / lengths[clip[2]] for clip in clips}
    steps = [[clip for clip in clips if clip[0] == step] for step in sorted({c[0] for c in clips})]
    batches = [
        [clip for clip in step if clip[1] == rank]
        for step in steps
        for rank in {c[1] for c in step}
    ]
    tail = steps[-max(1, len(steps) // 20) :]
    centre = np.mean(list(phases.values()))
    variance = np.mean([(phase - centre) ** 2 for phase in phases.values()])

    def episodes(groups: Sequence[Sequence[tuple[int, ...]]]) -> float:
        return float(np.mean([len({clip[2] for clip in group}) for group in groups]))

    def between(groups: Sequence[Sequence[tuple[int, ...]]]) -> float:
        mean_size = len(clips) / len(steps)
        parts = [
            len(group) / mean_size * (np.mean([phases[clip] for clip in group]) - centre) ** 2
            for group in groups
        ]
        return float(np.mean(parts) / variance)

    pairs = sum(
        a[2] == b[2] and abs(a[3] - b[3]) < span for step in steps for a, b in combinations(step, 2)
    )
    windows = [
        Counter(clip[2] for step in steps[i : i + window] for clip in step)
        for i in range(0, len(steps) - window + 1, window)
    ]
    parts = [
        sum(clip[2] == episode for clip in clips) / len(clips) for episode in range(len(lengths))
    ]
    composition = [
        sum((counts[e] - counts.total() * part) ** 2 for e, part in enumerate(parts))
        for counts in windows
    ]
    needed, last = set(), dict[tuple[int, ...], int]()
    readers = [0] * len(clips) if rows.reader is None else rows.reader.tolist()
    for clip, reader in zip(clips, readers, strict=True):
        for frame in range(clip[3], clip[3] + span):
            needed.add((clip[2], frame))
            group = reader, clip[2], frame // gop
            last[group] = max(last.get(group, 0), frame)
    decoded = sum(frame - group * gop + 1 for (_, _, group), frame in last.items())
    return {
        "step_episodes": episodes(steps),
        "rank_episodes": episodes(batches),
        "tail_episodes": episodes(tail),
        "phase": between(steps),
        "tail_phase": between(tail),
        "neighbours": 2 * pairs / len(clips),
        "composition": float(np.mean(composition)),
        "decodes": decoded / len(needed),
    }


@pytest.mark.parametrize("seed", range(30))
def test_figures_equal_loops_over_the_clips(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    span, gop, window = (int(n) for n in rng.integers(1, [9, 12, 4]))
    monkeypatch.setattr(mixing, "WINDOW", window)
    lengths = rng.integers(span + 1, 40, rng.integers(2, 7))
    clips = every_clip(lengths.tolist(), span)
    order = rng.permutation(len(clips[0]))[: rng.integers(12, 100)]
    if rng.integers(2):
        order = np.sort(order)
    rows = dealt(clips, order, int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    if rows.step.max() + 1 < 2 * window:
        window = 1
        monkeypatch.setattr(mixing, "WINDOW", window)
    rows = replace(rows, reader=rng.integers(0, 3, len(rows)))
    found = measure(rows, lengths, span, gop)
    for name, value in brute_force(rows, lengths.tolist(), span, gop, window).items():
        figure = getattr(found, name)
        assert (figure.value if isinstance(figure, Figure) else figure) == pytest.approx(value), (
            name
        )


def test_full_shuffles_have_the_mean_of_all_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven clips in steps of two and one of one, in each of the 5,040 orders."""
    monkeypatch.setattr(mixing, "WINDOW", 1)
    episode, start = np.array([0, 0, 0, 1, 1, 2, 2]), np.array([0, 1, 4, 0, 3, 0, 9])
    rows = dealt((episode, start), np.arange(7), 2, 1)
    lengths, found = [10, 9, 20], []
    for order in permutations(range(7)):
        taken = list(order)
        mixed = EpochRows(rows.step, rows.rank, episode[taken], start[taken])
        found.append(measure(mixed, lengths, 4))
    every = mean(found)
    for name in (*FIGURES, "composition"):
        figure = getattr(every, name)
        assert figure.value == pytest.approx(figure.full), name
        assert figure.full == pytest.approx(getattr(found[0], name).full), name


def test_episodes_of_a_shuffle_are_the_mean_of_all_subsets() -> None:
    clips = np.array([1, 0, 3, 4])
    episodes = np.repeat(np.arange(4), clips).tolist()
    for size in range(len(episodes) + 1):
        subsets = [len(set(subset)) for subset in combinations(episodes, size)]
        assert shuffled_episodes(clips, size) == pytest.approx(np.mean(subsets), abs=1e-9)


# ---- orders


LENGTHS = (400,) * 24


def test_a_full_shuffle_has_one_in_each_column() -> None:
    clips = every_clip(LENGTHS, 16)
    order = np.random.default_rng(0).permutation(len(clips[0]))
    rows = dealt(clips, order, 4, 8)
    found = measure(replace(rows, reader=np.zeros_like(order)), LENGTHS, 16, 50)
    bounds = {  # four standard deviations, of 60 seeds
        "step_episodes": 0.022,
        "rank_episodes": 0.015,
        "tail_episodes": 0.093,
        "phase": 0.36,
        "tail_phase": 1.5,
        "neighbours": 0.19,
        "composition": 1.1,
    }
    for name, bound in bounds.items():
        assert getattr(found, name).ratio == pytest.approx(1, abs=bound), name
    assert found.decodes == 1


def test_sequential_reading_is_bad_in_each_column() -> None:
    clips = every_clip(LENGTHS, 16)
    found = measure(dealt(clips, np.arange(len(clips[0])), 4, 8), LENGTHS, 16)
    assert found.step_episodes.ratio < 0.1
    assert found.rank_episodes.ratio < 0.2
    assert found.tail_episodes.ratio < 0.1
    assert found.phase.value > 0.8
    assert found.neighbours.ratio > 50
    assert found.composition is not None
    assert found.composition.ratio > 50


def test_cursors_in_lockstep_share_a_phase() -> None:
    """A cursor in each recording of equal length: many episodes, at one place of all."""
    episode, start = every_clip(LENGTHS, 16)
    order = np.lexsort((episode, start))
    found = measure(dealt((episode, start), order, 1, 24), LENGTHS, 16)
    assert found.step_episodes.ratio > 1
    assert found.neighbours.value == 0
    assert found.phase.value == pytest.approx(1)
    assert found.tail_phase.value > 2


# ---- the plans of the tables are those of loaders

KINDS = {  # codec, chunk, frame's side and the group that the table plans
    "raw": (ranks.Case("", (90, 60, 75), "raw", 8, 16), Group(192, 16)),
    "large raw": (ranks.Case("", (60, 40, 50), "raw", 160, 8), Group(76_800, 8)),
    "images": (ranks.Case("", (90, 60, 75), "png", 8, 16), Group(192, 16, 1)),
    "video": (ranks.Case("", (90, 60, 75), "h264:gop=10", 32, 40), Group(3072, 40, 10)),
}


@pytest.mark.parametrize(
    ("kind", "num_ranks"), [(kind, num_ranks) for kind in KINDS for num_ranks in (1, 3)]
)
def test_planned_epochs_are_those_of_loaders(kind: str, num_ranks: int, tmp_path: Path) -> None:
    written, group = KINDS[kind]
    case = Case("", written.lengths, (group,), 8)
    dataset = ranks.write(written, tmp_path / "records")
    job = Job(4, num_ranks)
    planned = [plan_epoch(case, job, epoch) for epoch in range(2)]
    decodes = np.zeros(2)
    for rank in range(num_ranks):
        pipe = SeqRecordPipe(dataset, clip_len=8, batch_size=4, seed=1, rank=(rank, num_ranks))
        for epoch, rows in enumerate(one.rows for one in planned):
            clips = [
                (step, int(key), int(start))
                for step, batch in enumerate(pipe)
                for key, start in zip(batch["episode"], batch["start"], strict=True)
            ]
            is_of_rank = rows.rank == rank
            columns = (rows.step, rows.episode, rows.start)
            expected = zip(*(column[is_of_rank].tolist() for column in columns), strict=True)
            assert sorted(clips) == sorted(expected)
            stats = pipe.stats()
            decodes[epoch] += stats["video_frames_decoded"] or stats["frames_decoded"]
    found = [measure(one.rows, case.lengths, 8, max(1, group.gop)).decodes for one in planned]
    expected_decodes = [n * sum(case.lengths) for n in found]
    if num_ranks > 1 and planned[0].chosen == "all clips":  # later epochs have other clips
        assert expected_decodes[0] <= decodes[0] <= decodes.sum()
        assert decodes.sum() <= num_ranks * sum(case.lengths)
    else:
        assert decodes.tolist() == pytest.approx(expected_decodes)


def test_steps_of_workers_are_batches_of_one() -> None:
    case = Case("", (90,) * 8, (Group(192, 16),))
    found = plan_epoch(case, Job(4, 2, 3)).rows
    alone = plan_epoch(case, Job(4, 6)).rows
    for rank, worker in ((0, 0), (0, 2), (1, 1)):
        shard = alone.rank == rank * 3 + worker
        mine = (found.rank == rank) & (found.step % 3 == worker)
        for name in ("episode", "start"):
            assert getattr(found, name)[mine].tolist() == getattr(alone, name)[shard].tolist()
        assert (found.step[mine] // 3).tolist() == alone.step[shard].tolist()
