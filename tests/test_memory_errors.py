"""The least memory that an error names suffices, exactly."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord import SeqRecordIterableDataset, SeqRecordMix, SeqRecordPipe, SeqRecordWriter
from seqrecord.errors import MemoryLimitError

LISTS = {
    "episode": [f"{i % 3}" for i in range(60)],
    "frames": [[(7 * i) % 40, (11 * i + 5) % 40, (3 * i + 1) % 40] for i in range(60)],
}
PAIRS = {"episode": ["0"] * 39, "frames": [[i, i + 1] for i in range(39)]}
CASES: dict[str, dict[str, Any]] = {  # beside those that test_memory draws
    "clips": {"clip_len": 4},
    "sequences": {"clip_len": 4, "stride": 4, "order": "sequences", "batch_size": 2},
    "windows": {"windows": {"image": [-2, 0], "pose": range(8)}, "pad": "edge"},
    "lists": {"clips": LISTS},
    "pairs": {"clips": PAIRS},
    "lists of one feature": {"clips": LISTS, "features": ["pose"]},
    "lists in order": {"clips": LISTS, "shuffle": False},
    "weights": {"clip_len": 2, "clips": {"episode": ["0", "1"], "start": [3, 9], "weight": [3, 2]}},
    "variable": {"clip_len": 2, "features": ["pose", "text"]},
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("least") / "records"
    with SeqRecordWriter(path, chunk_frames=8) as writer:
        for number in range(3):
            with writer.episode(f"{number}") as episode:
                for step in range(40):
                    image = np.full((64, 64, 9), step, np.uint8)
                    pose = np.full(7, step, np.float32)
                    episode.append({"image": image, "pose": pose, "text": "x" * step})
    return path


def least(make: Any) -> int:
    with pytest.raises(MemoryLimitError) as caught:
        make(1)
    return int(re.findall(r"at least (\d+) bytes", str(caught.value))[0])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("batch_size", [None, pytest.param(1, marks=pytest.mark.slow), 5])
def test_the_least_memory_of_an_error_suffices(
    path: Path, name: str, batch_size: int | None
) -> None:
    options = {"features": ["image", "pose"], "batch_size": batch_size, **CASES[name]}

    def make(limit: int) -> SeqRecordPipe:
        return SeqRecordPipe(path, memory_limit=limit, **options)

    number = least(make)
    for refused in (number // 2, number - 1):
        with pytest.raises(MemoryLimitError, match=f"at least {number} bytes"):
            make(refused)
    for limit in (number, number + 1, number * 5 // 4):
        pipe = make(limit)
        assert sum(len(batch["start"]) if batch_size else 1 for batch in pipe) >= 1
        assert pipe.stats()["peak_buffer_bytes"] <= limit


@pytest.mark.parametrize("name", ["clips", "lists", "windows"])
def test_that_of_a_mix_suffices(path: Path, name: str) -> None:
    options = {"features": ["image", "pose"], **CASES[name]}

    def make(limit: int) -> SeqRecordMix:
        sources = {key: SeqRecordIterableDataset(path, **options) for key in "ab"}
        mix = SeqRecordMix(sources, batch_size=3, memory_limit=limit)
        next(iter(mix))
        return mix

    make(least(make))


def test_the_warning_mentions_a_sequential_epoch(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"features": ["image"], "clip_len": 4, "batch_size": 4}

    def make(limit: int) -> SeqRecordPipe:
        return SeqRecordPipe(path, memory_limit=limit, **options)

    with caplog.at_level(logging.WARNING, "seqrecord"):
        next(iter(make(least(make))))
    (line,) = [one for one in caplog.messages if "clips are mixed from" in one]
    assert "so the epoch is nearly sequential" in line
    enough = int(re.findall(r"memory_limit of (\d+) ", line)[0])
    caplog.clear()
    next(iter(make(enough)))
    assert not [one for one in caplog.messages if "clips are mixed from" in one]
