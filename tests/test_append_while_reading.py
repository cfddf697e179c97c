"""A reader keeps reading what it has opened, in other processes too."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord.errors import StateError
from seqrecord.writing.writer import SeqRecordWriter
from tests.tiny import KEY, read_all, tiny_frames, write_tiny


def _append(root: Path, key: str) -> None:
    with SeqRecordWriter(root, mode="append") as writer, writer.episode(key) as episode:
        for frame in tiny_frames():
            episode.append(frame)


def _pipe(root: Path) -> Any:
    return seqrecord.SeqRecordPipe(root, clip_len=2, features=["raw"])


def _clips(root: Path) -> Any:
    return seqrecord.SeqRecordMapDataset(root, clip_len=2, features=["raw"])


def _frames(opened: Any) -> list[Any]:
    """All that it gives, in the order of episodes and frames."""
    if isinstance(opened, seqrecord.Dataset):
        return [
            (key, i, frame["raw"].tolist())
            for key, episode in opened.episodes.items()
            for i, frame in enumerate(episode[i] for i in range(len(episode)))
        ]
    numbers = range(len(opened)) if isinstance(opened, seqrecord.SeqRecordMapDataset) else None
    clips = opened if numbers is None else [opened[i] for i in numbers]
    return sorted((clip["episode"], clip["start"], clip["raw"].tolist()) for clip in clips)


@pytest.mark.parametrize("opening", [seqrecord.open, _pipe, _clips])
@pytest.mark.parametrize("appends", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("max_file_size", [1, 1 << 20], ids=["a file a chunk", "one file"])
def test_a_copy_is_of_what_was_opened(
    opening: Callable[[Path], Any], appends: int, max_file_size: int, tmp_path: Path
) -> None:
    root = write_tiny(tmp_path / "dataset", max_file_size=max_file_size)
    opened = opening(root)
    right = _frames(opened)
    for number in range(appends):
        _append(root, f"env/P{number + 1}")
    copy = pickle.loads(pickle.dumps(opened))
    assert _frames(copy) == right
    assert _frames(opened) == right
    assert len(read_all(root)) == 1 + appends


def test_without_its_index_it_is_read_from_the_record_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = write_tiny(tmp_path / "dataset", max_file_size=1)
    dataset = seqrecord.open(root)
    for key in ("env/A", "env/B"):
        _append(root, key)
    assert not any((root / file.path).exists() for file in dataset.contents.manifest.index.values())
    with caplog.at_level(logging.INFO, "seqrecord"):
        copy = pickle.loads(pickle.dumps(dataset))
    assert "record files" in caplog.text
    for name, table in dataset.contents.index.encode().items():
        assert bytes(table) == bytes(copy.contents.index.encode()[name]), name


def test_a_dataset_that_is_another_one_is_refused(tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset")
    dataset = seqrecord.open(root)
    for path in (*root.glob("index/*"), *root.glob("records/*"), root / "manifest.json"):
        path.unlink()
    write_tiny(root)  # equal content in other files
    assert _frames(pickle.loads(pickle.dumps(dataset))) == _frames(seqrecord.open(root))
    _append(root, "env/P1")
    with pytest.raises(StateError, match="has changed") as caught:
        pickle.loads(pickle.dumps(dataset))
    assert str(root) in str(caught.value)


def test_the_copy_knows_its_features_and_verifies(tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset")
    dataset = seqrecord.open(root, features=["raw"], verify=False)
    _append(root, "env/P1")
    copy = pickle.loads(pickle.dumps(dataset))
    assert list(copy.features) == ["raw"]
    assert copy.contents.manifest == dataset.contents.manifest
    assert np.array_equal(copy.episodes[KEY][1]["raw"], dataset.episodes[KEY][1]["raw"])
