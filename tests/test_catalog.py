"""Commit, load and reindex: the dataset is the old one or the new one, for every reader."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import seqrecord
from seqrecord.edit import clean
from seqrecord.errors import FormatError, NotFoundError, SeqRecordError, StorageError
from seqrecord.reading.metadata import load
from seqrecord.storage import LocalStorage, Upload
from seqrecord.writing.commits import reindex
from seqrecord.writing.writer import SeqRecordWriter
from tests.tiny import KEY, copy_dataset, read_all, same_frames, tiny_frames, write_tiny


def _append(root: Path, key: str) -> None:
    with SeqRecordWriter(root, mode="append") as writer, writer.episode(key) as episode:
        for frame in tiny_frames()[:3]:
            episode.append(frame)


def _files(root: Path) -> dict[str, bytes]:
    paths = sorted(path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


@pytest.mark.parametrize("record_bytes", [1, 1 << 20], ids=["a file a chunk", "one file"])
def test_reindex_gives_an_equal_dataset(record_bytes: int, tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset", record_bytes=record_bytes)
    _append(root, "env/P1")
    manifest, index = load(LocalStorage(root))
    right = read_all(root)
    (root / "manifest.json").unlink()
    shutil.rmtree(root / "index")
    again = reindex(root, created_by=manifest.created_by)
    assert again.fingerprint == manifest.fingerprint
    assert again.record_files == manifest.record_files
    assert again.schema == manifest.schema
    tables = load(LocalStorage(root))[1].encode()
    assert {name: bytes(table) for name, table in tables.items()} == {
        name: bytes(table) for name, table in index.encode().items()
    }
    assert same_frames(read_all(root), right)


def test_reindex_leaves_out_an_episode_without_its_end(tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset", record_bytes=1)
    _append(root, "env/P1")
    for file in sorted((root / "records").glob("00000-*"))[:1]:
        file.unlink()
    reindex(root, created_by="test")
    assert list(read_all(root)) == ["env/P1"]


def test_reindex_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no record files"):
        reindex(tmp_path, created_by="test")
    root = write_tiny(tmp_path / "dataset", record_bytes=1)
    min((root / "records").iterdir()).unlink()
    with pytest.raises(FormatError, match="no complete episode") as caught:
        reindex(root, created_by="test")
    assert caught.value.file == str(root / "records")


def test_an_open_reader_does_not_see_an_append(tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset")
    right = read_all(root)
    with seqrecord.open(root) as dataset:
        for number in range(3):
            _append(root, f"env/P{number + 1}")
        episode = dataset.episodes[KEY]
        assert len(dataset.episodes) == 1
        assert same_frames({KEY: [episode[i] for i in range(5)]}, right)
        assert len(pickle.loads(pickle.dumps(dataset)).episodes) == 1
    assert len(read_all(root)) == 4


@pytest.mark.parametrize("appends", [1, 2])
def test_a_reader_between_manifest_and_index(appends: int, tmp_path: Path) -> None:
    """The index that its manifest names is kept for one commit; after more it looks again."""
    root = write_tiny(tmp_path / "dataset")

    class Slow(LocalStorage):
        waits = True

        def size(self, path: str) -> int:
            if self.waits and path.startswith("index/"):
                self.waits = False
                for number in range(appends):
                    _append(root, f"env/P{number + 1}")
            return super().size(path)

    manifest, index = load(Slow(root))
    assert manifest.num_episodes == len(index.keys) == (1 if appends == 1 else 3)


def test_commit_keeps_two_indexes(tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset")
    (root / "index" / "abc-chunks.arrow").write_bytes(b"of a commit that never was")
    for _ in range(3):
        reindex(root)
    files = sorted(path.name for path in (root / "index").iterdir())
    # The statistics stay; and so does what no manifest has named: one may be on its way.
    assert len(files) == 8
    assert all(name.endswith((".arrow", "-statistics.json")) for name in files)
    assert clean(root, older_than=3600) == []
    clean(root, older_than=0)
    assert len(list((root / "index").iterdir())) == 4


class _Full(LocalStorage):
    """Fails before the n-th step of writing."""

    steps = 0

    def create(self, path: str) -> Upload:
        upload = super().create(path)
        for name in ("write", "commit"):
            setattr(upload, name, self._step(getattr(upload, name)))
        return upload

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        self._step(super().put)(path, data, expected=expected)

    def _step(self, do: Callable[..., None]) -> Callable[..., None]:
        def step(*arguments: object, **options: object) -> None:
            self.steps -= 1
            if self.steps < 0:
                raise StorageError("the disk is full", file="x")
            do(*arguments, **options)

        return step


def test_a_commit_that_fails_anywhere_changes_nothing(tmp_path: Path) -> None:
    good = write_tiny(tmp_path / "good")
    right = read_all(good)
    for steps in range(99):
        root = copy_dataset(good, tmp_path / str(steps))
        before = _files(root)
        storage = _Full(root)
        storage.steps = steps
        try:
            reindex(cast("Any", storage), created_by="other")
        except SeqRecordError:
            files = _files(root)
            assert files["manifest.json"] == before["manifest.json"]
            assert before.items() <= files.items()
            assert not any(name.endswith(".partial") for name in files)
            assert same_frames(read_all(root), right)
            continue
        assert steps == 8, "three tables, each written and committed, and two manifests"
        assert json.loads(_files(root)["manifest.json"])["created_by"] == "other"
        assert same_frames(read_all(root), right)
        break


def test_copies_in_another_folder_are_read_alike(tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset")
    right = read_all(root)
    moved = tmp_path / "moved"
    root.rename(moved)
    assert same_frames(read_all(moved), right)
