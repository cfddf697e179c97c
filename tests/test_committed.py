"""Appends and resumes never lose what a manifest names."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord import SeqRecordWriter, convert
from seqrecord.errors import DestinationError
from seqrecord.format.manifest import Manifest, put_manifest, read_manifest, read_tagged
from seqrecord.storage import LocalStorage, Storage, StorageWrapper
from seqrecord.storage.ranges import ByteRange
from tests.abandoned import abandon
from tests.made_source import MadeSource
from tests.numbered import add, contents, lengths_of, record_files, writer_of

EPISODES = {"a": 9, "b": 2, "c": 30, "d": 5}


SETTINGS: dict[str, Any] = {"codecs": "raw", "chunk_frames": 2, "record_bytes": 500}


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
    with pytest.raises(DestinationError) as caught:
        write(folder, {"new": 3}, mode=mode)
    assert caught.value.file == str(harmed)
    with pytest.raises(DestinationError) as caught:
        convert(MadeSource(), folder, mode=mode, workers=1)
    assert caught.value.file == str(harmed)
    assert contents(folder) == before


@pytest.mark.parametrize("mode", ["append", "resume"])
@pytest.mark.parametrize("harm", [Path.unlink, cut, lengthen])
@pytest.mark.parametrize("table", ["episodes", "chunks0", "gaps"])
def test_an_index_file_that_is_not_the_manifests(
    tmp_path: Path, mode: Any, harm: Callable[[Path], None], table: str
) -> None:
    write(tmp_path, EPISODES)
    harmed = tmp_path / read_manifest(LocalStorage(tmp_path)).index[table].path
    harm(harmed)
    before = contents(tmp_path)
    with pytest.raises(DestinationError, match="reindex") as caught:
        write(tmp_path, {"new": 3}, mode=mode)
    assert caught.value.file == str(harmed)
    assert contents(tmp_path) == before
    seqrecord.reindex(tmp_path)
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
    with pytest.raises(DestinationError, match="missing"):
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
        DestinationError, match=r"episodes and frames that the manifest says.*expected: \(3, "
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
    assert begun.finished_keys == EPISODES.keys()
    begun.abort()
    assert storage.met == count  # each is asked once


def test_a_reindex_says_what_it_leaves_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, EPISODES)
    seqrecord.reindex(tmp_path)
    assert not caplog.records
    gone = record_files(tmp_path)[0]
    gone.unlink()
    assert seqrecord.reindex(tmp_path).num_episodes < len(EPISODES)
    (said,) = caplog.records
    assert said.levelname == "WARNING"
    assert f"without 1 record file that the manifest before named: {gone}" in said.getMessage()


# Nothing that the manifest names is removed, and nothing finished is left out


@pytest.mark.parametrize("mode", ["create", "append"])
def test_a_commit_without_a_finished_episode_fails(tmp_path: Path, mode: Any) -> None:
    if mode == "append":
        write(tmp_path, {"old": 3})
    writer = writer_of(tmp_path, mode, record_bytes=100)
    add(writer, {"a": 4, "b": 4})
    committed = set(record_files(tmp_path)) if mode == "append" else set()
    first = min({*(tmp_path / "records").glob("*.seqrec")} - committed)
    first.unlink()  # somebody else tidies up
    before = contents(tmp_path).get("manifest.json")
    with pytest.raises(DestinationError, match="nothing is committed; episode: a"):
        writer.close()
    assert contents(tmp_path).get("manifest.json") == before


def test_a_commit_that_would_drop_a_committed_file_fails(tmp_path: Path) -> None:
    write(tmp_path, EPISODES)
    writer = SeqRecordWriter(tmp_path, mode="append")
    record_files(tmp_path)[1].unlink()
    before = contents(tmp_path)
    with pytest.raises(DestinationError, match="nothing is committed"):
        writer.close()
    assert contents(tmp_path) == before


def test_convert_commits_all_that_it_reports_or_fails(tmp_path: Path) -> None:
    class Tidied(MadeSource):
        def frames(self, info: Any) -> Any:
            yield from super().frames(info)
            if info.key == "made/007":
                min((tmp_path / "records").glob("*.seqrec")).unlink()

    with pytest.raises(DestinationError, match="nothing is committed; episode: made/000"):
        convert(Tidied(), tmp_path, workers=1, chunk_frames=4, record_bytes=60_000)
    assert not lengths_of(tmp_path)
