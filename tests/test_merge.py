"""Datasets that are merged: what the new one holds, and what stays of the others."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import numpy as np
import pytest

import seqrecord
from seqrecord import NotFoundError, SeqRecordPipe, SeqRecordWriter
from seqrecord.errors import DestinationError, SchemaError, StorageError
from seqrecord.format.manifest import read_manifest
from seqrecord.storage import LocalStorage
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


def test_copies_where_they_are_asked_for(parts: tuple[Path, Path], tmp_path: Path) -> None:
    writer = SeqRecordWriter(tmp_path / "large", codecs="raw")
    with writer, writer.episode("large", metadata={}) as episode:  # more than is copied at once
        for i in range(2500):
            episode.append({"x": np.full(1000, i, np.float32)})
    every = [*parts, tmp_path / "large"]
    expected = {key: item for part in every for key, item in content(part).items()}
    report = merge_datasets(every, tmp_path / "made", link=False)
    assert (report.linked_bytes, report.num_record_files) == (0, 5)
    check(tmp_path / "made", expected)
    assert {path.stat().st_nlink for path in (tmp_path / "made" / "records").iterdir()} == {1}


def test_to_another_storage_and_edits_there(parts: tuple[Path, Path]) -> None:
    expected = {**content(parts[0]), **content(parts[1])}
    url = f"memory://{uuid.uuid4().hex}"
    report = merge_datasets(parts, url)
    assert (report.linked_bytes, report.num_episodes) == (0, 6)
    assert report.copied_bytes > 6 * 12_000
    delete_episodes(url, ["e4"])
    with seqrecord.open(url) as dataset:
        assert set(dataset.episodes.keys()) == expected.keys() - {"e4"}
        for key, episode in dataset.episodes.items():
            assert (dict(episode.metadata), episode[:]["x"][:, 0].tolist()) == expected[key]
    assert not seqrecord.verify(url).problems


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


def test_a_failure_leaves_nothing(parts: tuple[Path, Path], tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "edits").touch()  # so that no file of edits can be written, after the record files
    with pytest.raises(StorageError):
        merge_datasets(parts, made)
    assert [path.name for path in made.rglob("*") if path.is_file()] == ["edits"]
    (made / "edits").unlink()
    merge_datasets(parts, made)
    assert read_manifest(LocalStorage(made)).num_episodes == 6
