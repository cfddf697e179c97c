"""How many frames a chunk holds where nobody says: by sizes that were seen, not guessed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import Dataset, FeatureSpec, Schema, SeqRecordWriter, summarize
from seqrecord.writing import chunking, writer  # whose limit is made small here
from tests.command_line import run

KIB = 1 << 10


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """48 KiB for 48 MiB."""
    for module in (chunking, writer):
        monkeypatch.setattr(module, "CHUNK_BYTES", 48 * KIB)


def lidar(points: int, fill: int = 0) -> dict[str, Any]:
    """A frame of so many points, 3 bytes each, beside a small state."""
    return {"state": np.full(7, fill, np.float32), "lidar": np.full((points, 3), fill, np.uint8)}


def written(folder: Path, episodes: Sequence[Sequence[int]], **options: Any) -> list[int]:
    """Frames in the first chunk of `lidar` of each episode, given the points of each frame."""
    said = {"lidar": {"shape": (None, 3)}}
    with SeqRecordWriter(folder, codecs="raw", features=said, **options) as writer:
        for number, points in enumerate(episodes):
            with writer.episode(f"e{number}") as episode:
                for i, count in enumerate(points):
                    episode.append(lidar(count, i % 256))
    return check(folder, episodes)


def check(folder: Path, episodes: Sequence[Sequence[int]]) -> list[int]:
    with seqrecord.open(folder) as dataset:
        for number, points in enumerate(episodes):
            episode = dataset.episodes[f"e{number}"]
            assert len(episode) == len(points)
            for i, count in enumerate(points):
                for name, array in lidar(count, i % 256).items():
                    np.testing.assert_array_equal(episode[i][name], array, strict=True)
        assert [spec.group for spec in dataset.features.values()] == [0, 1]
        return first_chunks(dataset, 1)


def first_chunks(dataset: Dataset, group: int) -> list[int]:
    rows = dataset.contents.index.groups[group]
    length: list[int] = rows.num_frames[rows.first_chunk].tolist()
    return length


def schema() -> Schema:
    state = FeatureSpec("state", np.dtype("<f4"), (7,))
    return Schema([state, FeatureSpec("lidar", np.dtype("u1"), (None, 3))])


SEEN = [
    ([100 + i for i in range(70)], 32),  # of no importance beside 48 MiB
    ([KIB * 2 // 3 + i for i in range(30)], 16),
    ([10 * KIB // 3 - 100 + i for i in range(7)], 4),  # five are looked at
]
GIVEN = [
    *SEEN,
    ([0] * 40, 32),
    ([5], 1),
    ([KIB // 3 + i for i in range(40)], 32),
    ([1, 2, 3, 20 * KIB // 3, 4, 5, 6, 7], 2),  # the largest of the first ones decides
    ([49 * KIB // 3, 1, 2], 1),
    ([1, 2, 49 * KIB // 3, 3], 1),
]


def test_frames_a_chunk(tmp_path: Path) -> None:
    for number, (points, expected) in enumerate([*SEEN, ([5, 6], 2)]):
        assert written(tmp_path / f"not known {number}", [points]) == [expected]
    for number, (points, expected) in enumerate(GIVEN):
        folder = tmp_path / f"known {number}"
        assert written(folder, [points], schema=schema()) == [expected]
        with seqrecord.open(folder) as dataset:
            assert first_chunks(dataset, 0) == [len(points)], "of the small state, far more fit"


def test_each_episode_by_its_own_frames(tmp_path: Path) -> None:
    episodes = [[1, 2, 3], [17 * KIB // 3] * 4, [9] * 33, [1] * 32 + [4 * KIB // 3] * 8]
    # What comes after the first frames is not known when the first chunk is written.
    assert written(tmp_path / "seen", episodes) == [3, 2, 32, 32]
    # A number that is given counts.
    episodes = [[5, 6] * 35, [20 * KIB // 3] * 3]
    assert written(tmp_path / "given", episodes, chunk_frames=3) == [3, 3]


def test_fixed_shapes_are_counted_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    spec = FeatureSpec("x", np.dtype("u1"), (12 << 20,))
    with (
        SeqRecordWriter(tmp_path, schema=Schema([spec]), codecs="raw") as writer,
        writer.episode("a") as episode,
    ):
        for number in range(4):
            assert not list((tmp_path / "records").glob("*.partial")), number
            episode.append({"x": np.zeros(12 << 20, np.uint8)})
        (file,) = (tmp_path / "records").glob("*.partial")
        assert file.stat().st_size > 48 << 20
    with seqrecord.open(tmp_path) as dataset:
        assert first_chunks(dataset, 0) == [4]


def test_frames_wait_within_48_mib(tmp_path: Path) -> None:
    with (
        SeqRecordWriter(tmp_path, schema=schema(), codecs="raw") as writer,
        writer.episode("a") as episode,
    ):
        for number in range(12):
            episode.append(lidar(16 * KIB // 3))
            files = list((tmp_path / "records").glob("*.partial"))
            size = files[0].stat().st_size if files else 0
            assert (number + 1) * 15 * KIB - size < 48 * KIB
    with seqrecord.open(tmp_path) as dataset:
        assert first_chunks(dataset, 1) == [2]


def test_info_shows_the_length_of_chunks(tmp_path: Path) -> None:
    written(tmp_path / "same", [[5] * 70, [5] * 3], schema=schema())
    out = run("info", tmp_path / "same").output
    assert "4 chunks of 32 frames" in out
    assert "2 chunks of 3 to 70 frames" in out
    written(tmp_path / "mixed", [[5] * 70, [17 * KIB // 3] * 4], schema=schema())
    out = run("info", tmp_path / "mixed").output
    assert "chunks of 2 to 32 frames" in out
    with seqrecord.open(tmp_path / "mixed") as dataset:
        groups = summarize(dataset).to_json()["groups"]
    found = [(group["min_chunk_frames"], group["max_chunk_frames"]) for group in groups]
    assert found == [(4, 70), (2, 32)]
