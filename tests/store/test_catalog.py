"""Commit, load and reindex: every reader gets the old dataset or the new one."""

from __future__ import annotations

import logging
import pickle
import shutil
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord import SeqRecordWriter, convert, errors, reindex
from seqrecord.edit import clean
from seqrecord.errors import StateError
from seqrecord.store.format.manifest import put_manifest, read_manifest, read_tagged
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.ranges import ByteRange
from tests.kit.datasets import contents, lengths_of, record_files, write_dataset, write_episodes
from tests.kit.faults import abandon, small_writer
from tests.kit.made_source import MadeSource
from tests.kit.tiny import loaded, read_all, same_frames, tiny_frames, write_tiny


def _append(root: Path, key: str) -> None:
    write_dataset(root, {key: tiny_frames()}, mode="append")


@pytest.mark.parametrize("max_file_size", [1, 1 << 20], ids=["a file a chunk", "one file"])
def test_reindex_gives_an_equal_dataset(max_file_size: int, tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset", max_file_size=max_file_size)
    _append(root, "env/P1")
    manifest, index = loaded(root)
    right = read_all(root)
    (root / "manifest.json").unlink()
    shutil.rmtree(root / "index")
    again = reindex(root, created_by=manifest.created_by)
    for name in ("fingerprint", "record_files", "schema"):
        assert getattr(again, name) == getattr(manifest, name)
    tables, before = loaded(root)[1].encode(), index.encode()
    assert [*map(bytes, tables.values())] == [*map(bytes, before.values())]
    assert [*tables] == [*before]
    assert same_frames(read_all(root), right)


def test_reindex_without_record_files_or_episodes(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError, match="no record files"):
        reindex(tmp_path, created_by="test")
    root = write_tiny(tmp_path / "dataset", max_file_size=1)
    min((root / "records").iterdir()).unlink()
    with pytest.raises(errors.FormatError, match="no complete episode") as caught:
        reindex(root, created_by="test")
    assert caught.value.file == str(root / "records")


def test_commit_keeps_two_indexes(tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset")
    (root / "index" / f"{'0' * 16}-chunks0.arrow").write_bytes(b"of a commit that never was")
    for _ in range(3):
        reindex(root)
    files = sorted(path.name for path in (root / "index").iterdir())
    # Statistics and files without a manifest are kept: another commit may be in progress.
    assert len(files) == 8
    assert all(name.endswith((".arrow", "-statistics.json")) for name in files)
    assert clean(root, older_than=3600) == []
    clean(root, older_than=0)
    assert len(list((root / "index").iterdir())) == 4


# Appends and resumes never lose files of the manifest

EPISODES = {"a": 9, "b": 2, "c": 30, "d": 5}


SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 2, "max_file_size": 500}


def write(where: Any, episodes: dict[str, int], **options: Any) -> None:
    write_dataset(where, episodes, **(SETTINGS | options))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def exchange(path: Path, stop: int | None = None) -> None:
    """Replace the content, or its first bytes, by another record file of the same length."""
    other = path.with_name("other").read_bytes()[:stop]
    path.write_bytes(other + path.read_bytes()[len(other) :])


other_header = partial(exchange, stop=64)


def refused(root: Path, match: str = ".", mode: Any = "append") -> str | None:
    """Check that an append or a resume fails and changes nothing; return the file of its error."""
    before = contents(root)
    with pytest.raises(errors.DestinationError, match=match) as caught:
        write(root, {"new": 3}, mode=mode)
    assert contents(root) == before
    return caught.value.file


@pytest.mark.parametrize("mode", ["append", "resume"])
@pytest.mark.parametrize("number", [0, pytest.param(-1, marks=pytest.mark.slow)])
def test_a_wrong_record_file_is_refused(tmp_path: Path, mode: Any, number: int) -> None:
    folder, again = tmp_path / "d", tmp_path / "again"
    for each in (folder, again):  # the same content, so the same lengths: only the ids differ
        write(each, EPISODES)
    assert len(record_files(folder)) > 3
    path, other = record_files(folder)[number], record_files(again)[number]
    whole = path.read_bytes()
    harms: list[Callable[[Path], None]] = [Path.unlink, cut, lengthen, exchange, other_header]
    for harm in harms:
        path.write_bytes(whole)
        shutil.copy(other, path.with_name("other"))
        harm(path)
        path.with_name("other").unlink()
        assert refused(folder, mode=mode) == str(path)
        with pytest.raises(errors.DestinationError) as caught:
            convert(MadeSource(), folder, mode=mode, workers=1)
        assert caught.value.file == str(path)


@pytest.mark.parametrize("mode", ["append", "resume"])
def test_a_wrong_index_file_is_refused(tmp_path: Path, mode: Any) -> None:
    write(tmp_path, EPISODES)
    harms: list[Callable[[Path], None]] = [Path.unlink, cut, lengthen]
    tables = ["episodes", "chunks0", "gaps"][:: 1 if mode == "append" else -1]
    for table, harm in zip(tables, harms, strict=True):
        harmed = tmp_path / read_manifest(LocalStorage(tmp_path)).index[table].path
        harm(harmed)
        assert refused(tmp_path, "reindex", mode) == str(harmed)
        reindex(tmp_path)
    write(tmp_path, {"new": 3}, mode=mode)


def test_a_resume_checks_before_it_changes_partial_files(tmp_path: Path) -> None:
    write(tmp_path, EPISODES)
    writer = small_writer(tmp_path, "append")
    write_episodes(writer, {"e": 3})
    abandon(writer)
    gone = record_files(tmp_path)[1]
    kept = gone.read_bytes()
    gone.unlink()
    assert any(name.endswith(".partial") for name in contents(tmp_path))
    refused(tmp_path, "missing", "resume")
    gone.write_bytes(kept)
    SeqRecordWriter(tmp_path, mode="resume").close()
    assert lengths_of(tmp_path) == {**EPISODES, "e": 3}


def test_a_manifest_with_a_wrong_number_of_episodes(tmp_path: Path) -> None:
    write(tmp_path, {"a": 4})
    manifest = (tmp_path / "manifest.json").read_bytes()
    write(tmp_path, {"b": 4}, mode="append")
    for path in record_files(tmp_path)[1:]:
        path.unlink()
    (tmp_path / "manifest.json").write_bytes(manifest)
    write(tmp_path, {"b": 5}, mode="append")  # an older complete manifest is valid
    storage = LocalStorage(tmp_path)
    wrong = replace(read_manifest(storage), num_episodes=3)
    put_manifest(storage, wrong, expected=read_tagged(storage)[1])
    refused(tmp_path, r"differs from the manifest in episodes.*expected: \(3, ")


class ConcurrentReads(StorageWrapper):
    """Acts as remote; each read of a record file waits for `count` concurrent ones, or fails."""

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


def test_record_files_of_a_remote_dataset_are_checked_concurrently(tmp_path: Path) -> None:
    write(tmp_path, EPISODES)
    count = len(record_files(tmp_path))
    assert 3 < count <= 16
    storage = ConcurrentReads(LocalStorage(tmp_path), count)
    begun = SeqRecordWriter(storage, mode="append")
    assert begun.completed_episodes == EPISODES.keys()
    begun.abort()
    assert storage.met == count  # each is read once


def test_a_reindex_warns_about_missing_record_files(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, EPISODES)
    reindex(tmp_path)
    assert not caplog.records
    gone = record_files(tmp_path)[0]
    gone.unlink()
    assert reindex(tmp_path).num_episodes < len(EPISODES)
    lost, statistics = caplog.records
    assert lost.levelname == "WARNING"
    assert "statistics removed" in statistics.getMessage()
    assert f"the new dataset lacks 1 record file of the old manifest: {gone}" in lost.getMessage()


# A commit never drops files of the manifest or finished episodes


def test_a_commit_with_a_missing_record_file_fails(tmp_path: Path) -> None:
    """The file of a finished episode, or one of the manifest."""
    writer = small_writer(tmp_path / "new", "create", max_file_size=100)
    write_episodes(writer, {"a": 4, "b": 4})
    min((tmp_path / "new" / "records").glob("*.seqrec")).unlink()  # deleted by another process
    with pytest.raises(errors.DestinationError, match=r"nothing is committed; .*episode: a"):
        writer.close()
    assert "manifest.json" not in contents(tmp_path / "new")
    for number, episodes in enumerate(({"new": 4, "more": 4}, {})):
        root = tmp_path / f"{number}"
        write(root, EPISODES)
        writer, committed = small_writer(root, "append", max_file_size=100), record_files(root)
        write_episodes(writer, episodes)
        new = {*(root / "records").glob("*.seqrec")} - {*committed}
        path = min(new or committed)
        path.unlink()
        manifest = (root / "manifest.json").read_bytes()
        with pytest.raises(errors.DestinationError, match="nothing is committed"):
            writer.close()
        assert (root / "manifest.json").read_bytes() == manifest


# Readers and their copies in other processes keep the opened version


def _frames(opened: Any) -> list[Any]:
    """All frames or clips, in the order of episodes and frames."""
    if isinstance(opened, seqrecord.Dataset):
        return [
            (key, i, episode[i]["raw"].tolist())
            for key, episode in opened.episodes.items()
            for i in range(len(episode))
        ]
    is_map = isinstance(opened, seqrecord.SeqRecordMapDataset)
    clips = [opened[i] for i in range(len(opened))] if is_map else opened
    return sorted((clip["episode"], clip["start"], clip["raw"].tolist()) for clip in clips)


@pytest.mark.parametrize("appends", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("max_file_size", [1, 1 << 20], ids=["a file a chunk", "one file"])
def test_a_copy_has_the_opened_version(appends: int, max_file_size: int, tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset", max_file_size=max_file_size)
    options: dict[str, Any] = {"clip_len": 2, "features": ["raw"]}
    loaders = (seqrecord.SeqRecordPipe, seqrecord.SeqRecordMapDataset)
    every = [seqrecord.open(root), *(loader(root, **options) for loader in loaders)]
    right = [_frames(opened) for opened in every]
    for number in range(appends):
        _append(root, f"env/P{number + 1}")
    for opened, frames in zip(every, right, strict=True):
        assert _frames(pickle.loads(pickle.dumps(opened))) == frames
        assert _frames(opened) == frames
    assert len(read_all(root)) == 1 + appends


def test_a_copy_without_index_files_reads_the_record_files(
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


def test_a_copy_of_a_replaced_dataset_is_refused(tmp_path: Path) -> None:
    root = write_tiny(tmp_path / "dataset")
    dataset = seqrecord.open(root, features=["raw"], verify=False)
    for path in (*root.glob("index/*"), *root.glob("records/*"), root / "manifest.json"):
        path.unlink()
    write_tiny(root)  # equal content in other files
    copy = pickle.loads(pickle.dumps(dataset))
    assert list(copy.features) == ["raw"]
    assert _frames(copy) == _frames(seqrecord.open(root))
    _append(root, "env/P1")
    with pytest.raises(StateError, match="has changed") as caught:
        pickle.loads(pickle.dumps(dataset))
    assert str(root) in str(caught.value)
