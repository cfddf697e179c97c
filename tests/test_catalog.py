"""Commit, load and reindex: the dataset is the old one or the new one, for every reader."""

from __future__ import annotations

import logging
import pickle
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter, convert, errors, reindex
from seqrecord.edit import clean
from seqrecord.errors import StateError
from seqrecord.format.manifest import Manifest, put_manifest, read_manifest, read_tagged
from seqrecord.storage import LocalStorage, Storage, StorageWrapper
from seqrecord.storage.ranges import ByteRange
from tests.abandoned import abandon
from tests.made_source import MadeSource
from tests.numbered import add, contents, lengths_of, record_files, writer_of
from tests.tiny import KEY, loaded, read_all, same_frames, tiny_frames, write_tiny


def _append(root: Path, key: str) -> None:
    with SeqRecordWriter(root, mode="append") as writer, writer.episode(key) as episode:
        for frame in tiny_frames()[:3]:
            episode.append(frame)


@pytest.mark.parametrize("max_file_size", [1, 1 << 20], ids=["a file a chunk", "one file"])
def test_reindex_gives_an_equal_dataset(max_file_size: int, tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset", max_file_size=max_file_size)
    _append(root, "env/P1")
    manifest, index = loaded(root)
    right = read_all(root)
    (root / "manifest.json").unlink()
    shutil.rmtree(root / "index")
    again = reindex(root, created_by=manifest.created_by)
    assert again.fingerprint == manifest.fingerprint
    assert again.record_files == manifest.record_files
    assert again.schema == manifest.schema
    tables = loaded(root)[1].encode()
    assert {name: bytes(table) for name, table in tables.items()} == {
        name: bytes(table) for name, table in index.encode().items()
    }
    assert same_frames(read_all(root), right)


def test_reindex_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="no record files"):
        reindex(tmp_path, created_by="test")
    root = write_tiny(tmp_path / "dataset", max_file_size=1)
    min((root / "records").iterdir()).unlink()
    with pytest.raises(errors.FormatError, match="no complete episode") as caught:
        reindex(root, created_by="test")
    assert caught.value.file == str(root / "records")


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


# Appends and resumes never lose what a manifest names

EPISODES = {"a": 9, "b": 2, "c": 30, "d": 5}


SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 2, "max_file_size": 500}


def write(where: Any, episodes: dict[str, int], **options: Any) -> None:
    with SeqRecordWriter(where, **(SETTINGS | options)) as writer:
        add(writer, episodes)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def exchange(path: Path) -> None:
    """Another record file of the same length."""
    path.write_bytes(path.with_name("other").read_bytes())


def other_header(path: Path) -> None:
    other = path.with_name("other").read_bytes()
    path.write_bytes(other[:64] + path.read_bytes()[64:])


@pytest.mark.parametrize("mode", ["append", "resume"])
@pytest.mark.parametrize("harm", [Path.unlink, cut, lengthen, exchange, other_header])
@pytest.mark.parametrize("number", [0, pytest.param(-1, marks=pytest.mark.slow)])
def test_a_record_file_that_is_not_the_manifests(
    tmp_path: Path, mode: Any, harm: Callable[[Path], None], number: int
) -> None:
    folder, again = tmp_path / "d", tmp_path / "again"
    for each in (folder, again):  # the same content, so the same lengths: only the ids differ
        write(each, EPISODES)
    assert len(record_files(folder)) > 3
    harmed = record_files(folder)[number]
    other = harmed.with_name("other")
    other.write_bytes(record_files(again)[number].read_bytes())
    harm(harmed)
    other.unlink()
    before = contents(folder)
    with pytest.raises(errors.DestinationError) as caught:
        write(folder, {"new": 3}, mode=mode)
    assert caught.value.file == str(harmed)
    with pytest.raises(errors.DestinationError) as caught:
        convert(MadeSource(), folder, mode=mode, workers=1)
    assert caught.value.file == str(harmed)
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("mode", "harm", "table"),
    [
        ("append", Path.unlink, "episodes"),
        ("append", cut, "chunks0"),
        ("append", lengthen, "gaps"),
        ("resume", Path.unlink, "gaps"),
        ("resume", cut, "episodes"),
        ("resume", lengthen, "chunks0"),
    ],
)
def test_an_index_file_that_is_not_the_manifests(
    tmp_path: Path, mode: Any, harm: Callable[[Path], None], table: str
) -> None:
    write(tmp_path, EPISODES)
    harmed = tmp_path / read_manifest(LocalStorage(tmp_path)).index[table].path
    harm(harmed)
    before = contents(tmp_path)
    with pytest.raises(errors.DestinationError, match="reindex") as caught:
        write(tmp_path, {"new": 3}, mode=mode)
    assert caught.value.file == str(harmed)
    assert contents(tmp_path) == before
    reindex(tmp_path)
    write(tmp_path, {"new": 3}, mode=mode)


def test_a_resume_checks_before_it_touches_what_was_cut(tmp_path: Path) -> None:
    write(tmp_path, EPISODES)
    writer = writer_of(tmp_path, "append")
    add(writer, {"e": 3})
    abandon(writer)
    gone = record_files(tmp_path)[1]
    kept = gone.read_bytes()
    gone.unlink()
    before = contents(tmp_path)
    assert any(name.endswith(".partial") for name in before)
    with pytest.raises(errors.DestinationError, match="missing"):
        SeqRecordWriter(tmp_path, mode="resume")
    assert contents(tmp_path) == before
    gone.write_bytes(kept)
    SeqRecordWriter(tmp_path, mode="resume").close()
    assert lengths_of(tmp_path) == {**EPISODES, "e": 3}


def test_a_manifest_that_counts_other_episodes_than_its_files_hold(tmp_path: Path) -> None:
    write(tmp_path, {"a": 4})
    manifest = (tmp_path / "manifest.json").read_bytes()
    write(tmp_path, {"b": 4}, mode="append")
    for path in record_files(tmp_path)[1:]:
        path.unlink()
    for path in (tmp_path / "index").iterdir():
        path.rename(tmp_path / "index" / path.name)
    (tmp_path / "manifest.json").write_bytes(manifest)
    write(tmp_path, {"b": 5}, mode="append")  # an older manifest that is whole is a dataset
    storage = LocalStorage(tmp_path)
    found = read_manifest(storage)
    wrong = Manifest(**{**vars(found), "num_episodes": 3})
    put_manifest(storage, wrong, expected=read_tagged(storage)[1])
    before = contents(tmp_path)
    with pytest.raises(
        errors.DestinationError,
        match=r"differs from the manifest in episodes.*expected: \(3, ",
    ):
        write(tmp_path, {"c": 1}, mode="append")
    assert contents(tmp_path) == before


class Together(StorageWrapper):
    """As remote; each request to a record file waits until `count` are under way, or fails."""

    def __init__(self, inner: Storage, count: int) -> None:
        super().__init__(inner)
        self._barrier = threading.Barrier(count)
        self.met = 0

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        if path.startswith("records/"):
            self._barrier.wait(timeout=60)
            self.met += 1
        super().read_ranges(path, ranges, buffers)


def test_the_files_of_a_remote_dataset_are_asked_for_together(tmp_path: Path) -> None:
    write(tmp_path, EPISODES)
    count = len(record_files(tmp_path))
    assert 3 < count <= 16
    storage = Together(LocalStorage(tmp_path), count)
    begun = SeqRecordWriter(storage, mode="append")
    assert begun.completed_episodes == EPISODES.keys()
    begun.abort()
    assert storage.met == count  # each is asked once


def test_a_reindex_says_what_it_leaves_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, EPISODES)
    reindex(tmp_path)
    assert not caplog.records
    gone = record_files(tmp_path)[0]
    gone.unlink()
    assert reindex(tmp_path).num_episodes < len(EPISODES)
    said, statistics = caplog.records
    assert said.levelname == "WARNING"
    assert "statistics removed" in statistics.getMessage()
    assert f"the new dataset lacks 1 record file of the old manifest: {gone}" in said.getMessage()


# Nothing that the manifest names is removed, and nothing finished is left out


@pytest.mark.parametrize("mode", ["create", "append"])
def test_a_commit_without_a_finished_episode_fails(tmp_path: Path, mode: Any) -> None:
    if mode == "append":
        write(tmp_path, {"old": 3})
    writer = writer_of(tmp_path, mode, max_file_size=100)
    add(writer, {"a": 4, "b": 4})
    committed = set(record_files(tmp_path)) if mode == "append" else set()
    first = min({*(tmp_path / "records").glob("*.seqrec")} - committed)
    first.unlink()  # somebody else tidies up
    before = contents(tmp_path).get("manifest.json")
    with pytest.raises(errors.DestinationError, match=r"nothing is committed; .*episode: a"):
        writer.close()
    assert contents(tmp_path).get("manifest.json") == before


def test_a_commit_that_would_drop_a_committed_file_fails(tmp_path: Path) -> None:
    write(tmp_path, EPISODES)
    writer = SeqRecordWriter(tmp_path, mode="append")
    record_files(tmp_path)[1].unlink()
    before = contents(tmp_path)
    with pytest.raises(errors.DestinationError, match="nothing is committed"):
        writer.close()
    assert contents(tmp_path) == before


# A reader keeps reading what it has opened, in other processes too


def _extend(root: Path, key: str) -> None:
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
        _extend(root, f"env/P{number + 1}")
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
        _extend(root, key)
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
    _extend(root, "env/P1")
    with pytest.raises(StateError, match="has changed") as caught:
        pickle.loads(pickle.dumps(dataset))
    assert str(root) in str(caught.value)


def test_the_copy_knows_its_features_and_verifies(tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset")
    dataset = seqrecord.open(root, features=["raw"], verify=False)
    _extend(root, "env/P1")
    copy = pickle.loads(pickle.dumps(dataset))
    assert list(copy.features) == ["raw"]
    assert copy.contents.manifest == dataset.contents.manifest
    assert np.array_equal(copy.episodes[KEY][1]["raw"], dataset.episodes[KEY][1]["raw"])
