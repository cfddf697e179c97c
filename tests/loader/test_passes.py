"""Epochs with copies of clips: each episode in several passes, spread over the epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord import ClipSpec, EngineOptions, SeqRecordPipe, samples
from seqrecord.loader.sampling.bounds import PlanSettings
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.runs import Shard
from tests.kit.clip_data import all_names
from tests.kit.datasets import columns, write_dataset, written_once
from tests.loader.clip_cases import episode_table, listed_clips

RARE = {"e020", "e120"}
NUM_EPISODES, LENGTH, CLIP = 200, 20, 8
SIZE = 32


pytestmark = pytest.mark.slow


def write(path: Path) -> None:
    episodes = {
        f"e{number:03d}": columns(
            image=[np.full((64, 64, 3), number, np.uint8)] * LENGTH,
            id=[np.array([number, frame]) for frame in range(LENGTH)],
        )
        for number in range(NUM_EPISODES)
    }
    metadata = {key: {"task": "rare" if key in RARE else "common"} for key in episodes}
    features = {"image": {"kind": "image"}}
    write_dataset(path, episodes, metadata=metadata, codecs={"image": "fast"}, features=features)


path = written_once(write)


STREAMED = {"memory_limit": "15.36MiB"}
"""Not enough for all frames, but for 13 cursors."""


def balanced(path: Path, **options: Any) -> SeqRecordPipe:
    settings = {"clip_len": CLIP, "batch_size": SIZE, "rank": (0, 1), **options}
    return SeqRecordPipe(path, samples=samples.repeat_by("task", power=-1), **settings)


def rare_clips(pipe: SeqRecordPipe) -> np.ndarray:
    """Rare clips in each whole batch of an epoch."""
    batches = [[key in RARE for key in batch["episode"]] for batch in pipe]
    return np.array([sum(batch) for batch in batches if len(batch) == SIZE])


@pytest.mark.parametrize("options", [STREAMED, {}], ids=["streamed", "resident"])
@pytest.mark.parametrize("seed", [0, 1])
def test_copies_are_spread_like_other_clips(path: Path, options: Any, seed: int) -> None:
    """Their number in batches varies at most 1.5 times as much as in a full shuffle."""
    pipe = balanced(path, seed=seed, **options)
    for _ in range(3):
        rare = rare_clips(pipe)
        assert bool(pipe.stats()["features_resident"]) is (not options)
        assert rare.std() < 1.5 * np.sqrt(SIZE / 4)
        for part in np.array_split(rare, 10):
            assert abs(part.mean() / SIZE - 0.5) < 4 * 0.5 / np.sqrt(SIZE * len(part))


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("options", [STREAMED, {}], ids=["streamed", "resident"])
def test_ranks_share_copies_evenly(path: Path, ranks: int, options: Any) -> None:
    pipes = [balanced(path, rank=(rank, ranks), **options) for rank in range(ranks)]
    for _ in range(2):
        keys = [[key for batch in pipe for key in batch["episode"]] for pipe in pipes]
        assert len({*map(len, keys)}) == 1
        for mine in keys:
            share = sum(key in RARE for key in mine) / len(mine)
            assert abs(share - 0.5) < 2 * (LENGTH - CLIP + 1) / len(mine)  # two passes


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_copies_are_spread_in_the_batches_of_each_rank(path: Path, ranks: int, seed: int) -> None:
    """Cursors advance in step, so that a batch has its share of copies on any rank."""
    pipes = [balanced(path, rank=(rank, ranks), seed=seed, **STREAMED) for rank in range(ranks)]
    for pipe in pipes:
        for _ in range(3):
            rare = rare_clips(pipe)
            assert rare.std() < 1.5 * np.sqrt(SIZE / 4)
            for part in np.array_split(rare, 10):
                assert abs(part.mean() / SIZE - 0.5) < 4 * 0.5 / np.sqrt(SIZE * len(part))
        assert pipe.stats()["frames_decoded"] < 3 * 2.3 * pipe.num_clips


@pytest.mark.parametrize("options", [STREAMED, {}], ids=["streamed", "resident"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_listed_several_times_are_copies(path: Path, options: Any, ranks: int) -> None:
    """They are spread like copies by `repeat`."""
    keys = [f"e{number:03d}" for number in range(NUM_EPISODES)]
    rows = [
        (key, start)
        for number, key in enumerate(keys)
        for start in range(LENGTH - CLIP + 1)
        for _ in range(50 if key in RARE else (number + start) % 2)
    ]
    table = {"episode": [key for key, _ in rows], "start": [start for _, start in rows]}
    found = Counter[tuple[str, int]]()
    for rank in range(ranks):
        settings: Any = {"clip_len": CLIP, "batch_size": SIZE, "rank": (rank, ranks), **options}
        pipe = SeqRecordPipe(path, samples=table, last_batch="keep", **settings)
        batches = [list(zip(b["episode"], b["start"].tolist(), strict=True)) for b in pipe]
        found.update(name for batch in batches for name in batch)
        rare = np.array([sum(key in RARE for key, _ in b) for b in batches if len(b) == SIZE])
        assert rare.std() < 1.5 * np.sqrt(SIZE / 4)
    assert found == Counter(rows)


def test_an_epoch_has_each_clip_as_often_as_before(path: Path) -> None:
    table = {"episode": ["e000"] * 3 + ["e001"] * 2, "start": [0, 4, 4, 1, 9]}
    table |= {"repeat": [3, 40, 1, 77, 300]}
    expected = Counter({("e000", 0): 3, ("e000", 4): 41, ("e001", 1): 77, ("e001", 9): 300})
    for options in ({}, STREAMED, {"shuffle": False}, {"engine": EngineOptions(num_cursors=3)}):
        for ranks in (1, 3):
            found = Counter[tuple[str, int]]()
            for rank in range(ranks):
                settings: dict[str, Any] = {"clip_len": CLIP, "batch_size": 4, **options}
                settings |= {"rank": (rank, ranks), "last_batch": "keep"}
                for batch in SeqRecordPipe(path, samples=table, **settings):
                    found.update(zip(batch["episode"], batch["start"].tolist(), strict=True))
                    for key, start, frames in zip(
                        batch["episode"], batch["start"].tolist(), batch["id"], strict=True
                    ):
                        want = [[int(key[1:]), start + i] for i in range(CLIP)]
                        assert frames.tolist() == want
            assert found == expected, options


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (3, 8)])
def test_the_rest_of_an_epoch_on_other_ranks(path: Path, before: int, after: int) -> None:
    def make(rank: int, ranks: int) -> SeqRecordPipe:
        return balanced(path, rank=(rank, ranks), last_batch="keep", **STREAMED)

    def names(batch: dict[str, Any]) -> list[tuple[str, int]]:
        return list(zip(batch["episode"], batch["start"].tolist(), strict=True))

    whole = Counter(all_names(make(0, 1)))
    found, state = Counter[tuple[str, int]](), None
    for rank in range(before):
        pipe = make(rank, before)
        iterator = iter(pipe)
        for _ in range(5):
            found.update(names(next(iterator)))
        state = pipe.state_dict()
        del iterator
    assert state is not None
    for rank in range(after):
        pipe = make(rank, after)
        pipe.load_state_dict(state)
        found.update(all_names(pipe))
    assert found == whole


def test_passes_that_are_not_in_memory_decode_again(path: Path) -> None:
    decoded, every = dict[str, tuple[int, int]](), list[tuple[str, int]]()
    for name, options in (("streamed", STREAMED), ("resident", {})):
        pipe = balanced(path, **options)
        every = [clip for b in pipe for clip in zip(b["episode"], b["start"].tolist(), strict=True)]
        first = pipe.stats()["frames_decoded"]
        list(pipe)
        decoded[name] = first, pipe.stats()["frames_decoded"] - first
    used = {(key, start + i) for key, start in every for i in range(CLIP)}
    assert decoded["resident"][0] <= len(used) * 1.1
    passes = sum(1 for key in RARE for _ in range(every.count((key, 0))))
    assert decoded["streamed"][0] > passes * LENGTH * 0.9
    # With `repeat` of at most 1, all frames of an epoch are decoded once, apart from cuts.
    table = {"episode": [f"e{i:03d}" for i in range(NUM_EPISODES)], "repeat": [0.9] * NUM_EPISODES}
    pipe = SeqRecordPipe(path, samples=table, clip_len=CLIP, batch_size=SIZE, **STREAMED)  # type: ignore[arg-type]
    list(pipe)
    assert pipe.stats()["frames_decoded"] <= NUM_EPISODES * LENGTH * 1.15


def test_a_single_round_decodes_all_copies_once(path: Path) -> None:
    table = {"episode": ["e000", "e001"], "start": [2, 5], "repeat": [50, 20]}
    pipe = SeqRecordPipe(path, samples=table, clip_len=CLIP, batch_size=4)
    assert len(list(pipe)) == 18
    assert pipe.stats()["frames_decoded"] <= 2 * LENGTH


@pytest.mark.parametrize("number", range(60))
def test_plans_have_each_copy_once_within_their_bound_of_frames(number: int) -> None:
    """Walks the rounds of random tables frame by frame."""
    rng = np.random.default_rng(number)
    lengths = rng.integers(6, 40, int(rng.integers(2, 12))).tolist()
    size, chunk = int(rng.integers(1, 6)), int(rng.integers(1, 8))
    rows = [
        (episode, start, int(rng.integers(0, 4)) if episode % 3 else 1)
        for episode, length in enumerate(lengths)
        for start in range(length - size + 1)
        if rng.random() < 0.7
    ]
    episode, start, times = np.array(rows).T
    if number % 2:  # listed several times, instead of repeated
        again = np.repeat(np.arange(len(times)), times)
        episode, start, times = episode[again], start[again], np.ones(times.sum(), np.int64)
    table = listed_clips(ClipSpec(size), len(lengths), episode, start, times)
    layout = episode_table(lengths, [chunk] * len(lengths))
    settings = PlanSettings(
        num_cursors=int(rng.integers(1, 6)),
        block_frames=int(rng.integers(1, 12)),
        first_block_frames=4,
        run_frames=[None, 10, 30][number % 3],
        batch_size=4,
        last_batch="keep",
    )
    samples_of_shards, count = list[int](), int(rng.integers(1, 5))
    for index in range(count):
        plan = EpochPlan(table, layout, settings, shard=Shard(index, count))
        held, most = set[tuple[int, int]](), 0
        for work in plan.rounds():
            loads, frees = work.groups[0].loads, work.groups[0].frees
            for run, first, length in zip(loads.run, loads.first, loads.count, strict=True):
                loaded = {(int(run), int(first) + i) for i in range(int(length))}
                assert not held & loaded
                held |= loaded
            most = max(most, len(held))
            for run, first in zip(work.clips.run, work.clips.start, strict=True):
                assert {(int(run), int(first) + i) for i in range(size)} <= held
            samples_of_shards += work.clips.sample.tolist()
            for run, first, length in zip(frees.run, frees.first, frees.count, strict=True):
                held -= {(int(run), int(first) + i) for i in range(int(length))}
        assert most <= plan.groups[0].max_resident_frames
    assert len(samples_of_shards) == len(set(samples_of_shards)) == times.sum()
