"""Statistics that are computed of a dataset, against those of the same frames as they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord.errors import ClipError
from seqrecord.reading.compute_statistics import StatisticsProgress, compute_statistics
from seqrecord.statistics.collecting import StatisticsCollector
from tests.datasets import EPISODES, small_schema, write_small


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("statistics") / "small"
    write_small(path)
    return path


@pytest.mark.parametrize("num_threads", [1, 3])
def test_they_are_those_of_the_frames(dataset: Path, num_threads: int) -> None:
    told: list[StatisticsProgress] = []
    with seqrecord.open(dataset) as reader:
        got = compute_statistics(reader, num_threads=num_threads, progress=told.append)
        collector = StatisticsCollector(reader.features)
        for key in EPISODES:
            episode = reader.episodes[key]
            collector.begin(key)
            for number in range(len(episode)):
                collector.add(episode[number])
            collector.keep()
    assert got.to_json() == collector.statistics().to_json()
    assert got.num_frames == sum(EPISODES.values())
    assert set(got) == set(small_schema())
    assert got["flow"].num_frames == got.num_frames - len(EPISODES)  # their last frame lacks it
    assert told[-1].frames == told[-1].total_frames == 9 * got.num_frames


def test_of_chosen_features(dataset: Path) -> None:
    with seqrecord.open(dataset, features=["step", "pose"]) as reader:
        got = compute_statistics(reader)
        steps = np.concatenate([reader.episodes[key][:]["step"] for key in EPISODES])
    assert list(got) == ["step", "pose"]
    assert got["step"].mean == pytest.approx(steps.mean())
    assert got["step"].max == steps.max()


def test_of_some_frames(tmp_path: Path) -> None:
    """Spans of 8 frames, for a frame takes 4 MiB."""
    with seqrecord.SeqRecordWriter(tmp_path / "d", codecs="fast") as writer:
        for key in ("a", "b"):
            with writer.episode(key) as episode:
                for number in range(32):
                    episode.append({"x": np.full((1024, 1024), number, np.float32)})
    with seqrecord.open(tmp_path / "d") as reader:
        whole = compute_statistics(reader)
        some = compute_statistics(reader, max_frames=16)
        one = compute_statistics(reader, max_frames=1)
    assert (whole.num_frames, some.num_frames, one.num_frames) == (64, 64, 64)
    assert [s["x"].num_frames for s in (whole, some, one)] == [64, 24, 8]
    assert some["x"].min.tolist() == [0]
    assert some["x"].max.tolist() == [23]  # frames 0 to 7 and 16 to 23 of a, 8 to 15 of b
    assert whole["x"].max.tolist() == [31]


@pytest.mark.parametrize("wrong", [{"max_frames": 0}, {"num_threads": 0}])
def test_wrong_arguments_are_refused(dataset: Path, wrong: dict[str, Any]) -> None:
    with seqrecord.open(dataset) as reader, pytest.raises(ClipError, match="at least 1"):
        compute_statistics(reader, **wrong)
