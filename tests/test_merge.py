"""Datasets that are merged: what the new one holds, and what stays of the others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import NotFoundError, SeqRecordPipe, SeqRecordWriter
from seqrecord.errors import DestinationError, SchemaError
from seqrecord.format.manifest import read_manifest
from seqrecord.storage import LocalStorage
from seqrecord.writing import merging
from seqrecord.writing.edits import delete_episodes, relabel_episodes, split_episodes
from seqrecord.writing.merging import merge_datasets
from tests.test_edits import check, content, write


@pytest.fixture
def parts(tmp_path: Path) -> tuple[Path, Path]:
    a, b = write(tmp_path / "a", range(4)), write(tmp_path / "b", range(4, 7))
    split_episodes(a, ["e0"], "val")
    split_episodes(b, ["e4"], "train")
    split_episodes(b, ["e5"], "val")
    delete_episodes(a, ["e1"])
    relabel_episodes(b, ["e6"], {"number": "six"})
    return a, b


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file, with what it holds."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.stat().st_ino, path.read_bytes()) for path in files}


def test_all_episodes_with_their_edits(parts: tuple[Path, Path], tmp_path: Path) -> None:
    before = [state(folder) for folder in parts]
    expected = {**content(parts[0]), **content(parts[1])}
    made = tmp_path / "new" / "made"
    report = merge_datasets(parts, made, dry_run=True)
    assert not made.parent.exists()
    assert merge_datasets(parts, made) == report
    assert (report.num_episodes, report.num_frames) == (6, 18)
    assert report.num_record_files == 4
    assert report.copied_bytes == 0
    check(made, expected)
    assert [state(folder) for folder in parts] == before
    for path in (made / "records").iterdir():
        assert path.stat().st_nlink == 2
        assert not path.is_symlink()
    with seqrecord.open(made) as dataset:
        keys = np.array(list(dataset.episodes.keys()))
        assert set(keys[dataset.find_episodes(None, "val")]) == {"e0", "e5"}
        assert set(keys[dataset.find_episodes(None, "train")]) == {"e4"}
        assert dataset.statistics is None  # `a` has none since the edit
    # The dataset is one of its own: it can grow, and others may go.
    write(made, range(7, 9), mode="append")
    for path in [*parts[0].rglob("*"), *parts[1].rglob("*")]:
        if path.is_file():
            path.unlink()
    assert content(made).keys() == {*expected, "e7", "e8"}
    pipe = SeqRecordPipe(made, clip_len=3, batch_size=2, seed=1)
    assert sum(len(batch["episode"]) for batch in pipe) == 8


def test_copies_where_nothing_can_be_linked(
    parts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = {**content(parts[0]), **content(parts[1])}

    def refuse(*_: Any) -> None:
        raise OSError("not here")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(merging, "_COPY_BYTES", 1000)
    merge_datasets(parts, tmp_path / "made")
    monkeypatch.undo()
    check(tmp_path / "made", expected)
    assert {path.stat().st_nlink for path in (tmp_path / "made" / "records").iterdir()} == {1}


def test_statistics_of_all_together(tmp_path: Path) -> None:
    parts = [write(tmp_path / "a", range(3)), write(tmp_path / "b", range(3, 8))]
    merge_datasets(parts, tmp_path / "made")
    write(tmp_path / "whole", range(8))
    found = []
    for name in ("made", "whole"):
        with seqrecord.open(tmp_path / name) as dataset:
            assert dataset.statistics is not None
            found.append(dataset.statistics["x"])
    for name in ("count", "mean", "std", "min", "max"):
        np.testing.assert_allclose(getattr(found[0], name), getattr(found[1], name))


def test_what_cannot_be_merged(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a", range(3)), write(tmp_path / "b", range(2, 4))
    made = tmp_path / "made"
    with pytest.raises(DestinationError, match=r"episode of one key.*e2"):
        merge_datasets([a, b], made)
    with pytest.raises(DestinationError, match="same record file"):
        merge_datasets([a, shutil.copytree(a, tmp_path / "copy")], made)
    with SeqRecordWriter(tmp_path / "c") as writer, writer.episode("other") as episode:
        episode.append({"x": np.zeros(1000, np.float64)})
    with pytest.raises(SchemaError, match=r"different schemas.*float32|different schemas.*<f4"):
        merge_datasets([a, tmp_path / "c"], made)
    with pytest.raises(NotFoundError, match="no dataset"):
        merge_datasets([a, tmp_path / "nowhere"], made)
    with pytest.raises(DestinationError, match="nothing to merge"):
        merge_datasets([], made)
    with pytest.raises(DestinationError, match="not empty"):
        merge_datasets([a], b)
    assert not made.exists()


def test_a_failure_leaves_nothing(
    parts: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("full")

    monkeypatch.setattr(merging, "put_version", fail)
    with pytest.raises(OSError, match="full"):
        merge_datasets(parts, tmp_path / "made")
    assert not [path for path in (tmp_path / "made").rglob("*") if path.is_file()]
    monkeypatch.undo()
    merge_datasets(parts, tmp_path / "made")
    assert read_manifest(LocalStorage(tmp_path / "made")).num_episodes == 6
