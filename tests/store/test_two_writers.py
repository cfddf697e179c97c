"""Concurrent writers on one destination lose no episode, whichever commits first."""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter, reindex, verify
from seqrecord.edit import add_feature, clean, delete_episodes, drop_features, split_dataset
from seqrecord.errors import ConflictError, DestinationError, NotFoundError, StorageError
from seqrecord.store.format.manifest import MANIFEST, Manifest, read_manifest
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from tests.kit.datasets import append, contents, frame, keys_of, numbered, write_episodes
from tests.kit.faults import CountingStorage, FaultyStorage, Operation, abandon
from tests.kit.faults import small_writer as writer
from tests.kit.tiny import footers_of


def record_files_of(folder: Path) -> dict[str, bytes]:
    return contents(folder / "records")


def manifest_of(folder: Path) -> Manifest:
    return read_manifest(LocalStorage(folder))


def write(folder: Path, keys: str, mode: str = "create", **options: Any) -> None:
    with writer(folder, mode, **options) as each:
        write_episodes(each, keys)


def refused(each: SeqRecordWriter) -> None:
    with pytest.raises(ConflictError, match=r"another writer committed first.*--resume"):
        each.close()


# Resume during a running write


@pytest.mark.parametrize("first", [pytest.param("running", marks=pytest.mark.slow), "resumed"])
def test_a_resume_during_a_running_write(tmp_path: Path, first: str) -> None:
    """Regression: it deleted the running writer's files, whose close() then lost episodes."""
    running = writer(tmp_path)
    write_episodes(running, "abcde")
    before = record_files_of(tmp_path)
    assert any(name.endswith(".partial") for name in before)
    resumed = writer(tmp_path, "resume")
    assert resumed.completed_episodes == set("abcde")
    assert before.items() <= record_files_of(tmp_path).items()
    write_episodes(running, "fg")
    write_episodes(resumed, "gh")
    done, second = (running, resumed) if first == "running" else (resumed, running)
    done.close()
    keys = "abcdefg" if first == "running" else "abcdegh"
    assert keys_of(tmp_path) == keys
    refused(second)
    assert keys_of(tmp_path) == keys
    with writer(tmp_path, "resume") as last:
        assert last.completed_episodes == set("abcdefgh")
    assert set(keys_of(tmp_path)) == set("abcdefgh")
    clean(tmp_path, older_than=0)
    assert set(keys_of(tmp_path)) == set("abcdefgh")


def test_a_resume_adopts_an_episode_during_its_write(tmp_path: Path) -> None:
    """The resume commits the episode's first part; the last one is written later."""
    running = writer(tmp_path, max_file_size=1)
    write_episodes(running, "a")
    half = append(running.episode("g"), numbered("g", 5))
    with writer(tmp_path, "resume") as resumed:
        assert resumed.completed_episodes == {"a"}
        write_episodes(resumed, "b")
    append(half, [frame("g", number) for number in range(5, 7)])
    half.close()
    refused(running)
    writer(tmp_path, "resume").close()
    assert keys_of(tmp_path) in ("abg", "agb")


# Writers that start together


@pytest.mark.parametrize(
    ("mode", "bring_in"), [("create", reindex), ("append", partial(writer, mode="resume"))]
)
def test_of_two_writers_begun_together_the_second_loses_nothing(
    tmp_path: Path, mode: Any, bring_in: Callable[[Path], Any]
) -> None:
    """Regression: a second create could never commit; a second append waited for a lock."""
    start = "ab" if mode == "append" else ""
    if start:
        write(tmp_path, start)
    one, two = writer(tmp_path, mode), writer(tmp_path, mode)
    for key_one, key_two in zip("cde", "fgh", strict=True):
        write_episodes(one, key_one)
        write_episodes(two, key_two)
    if mode == "create":
        with pytest.raises(DestinationError, match="another writer, which is running"):
            writer(tmp_path)
        with pytest.raises(DestinationError, match="no dataset to append to"):
            writer(tmp_path, "append")
    one.close()
    assert keys_of(tmp_path) == start + "cde"
    before = record_files_of(tmp_path)
    refused(two)
    finished = record_files_of(tmp_path)
    assert all(data == finished[n] for n, data in before.items() if n.endswith(".seqrec"))
    assert keys_of(tmp_path) == start + "cde"
    brought = bring_in(tmp_path)
    if mode == "append":
        brought.close()
    uids = {part.key: part.uid for part in _parts(tmp_path)}  # they start with the writer's id
    order = ["cde", "fgh"] if uids["c"] < uids["f"] else ["fgh", "cde"]
    assert keys_of(tmp_path) == start + "".join(a + b for a, b in zip(*order, strict=True))
    fingerprint = manifest_of(tmp_path).fingerprint
    assert reindex(tmp_path).fingerprint == fingerprint
    (tmp_path / MANIFEST).unlink()
    assert reindex(tmp_path).fingerprint == fingerprint


def test_a_committed_episode_wins_over_a_duplicate_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, -1):  # whichever uid is smaller: they start with the writers' ids
        numbers = map("{:016x}".format, itertools.count(1 << 32, step))
        monkeypatch.setattr(secrets, "token_hex", lambda _, numbers=numbers: next(numbers))
        folder = tmp_path / str(step)
        one, two = writer(folder), writer(folder)
        for each, keys in ((one, "ab"), (two, "bc")):
            write_episodes(each, keys)
        one.close()
        (uid,) = {part.key: part.uid for part in _parts(folder) if part.key == "b"}.values()
        refused(two)
        caplog.clear()
        writer(folder, "resume").close()
        (message,) = [r.getMessage() for r in caplog.records if "duplicate keys" in r.getMessage()]
        assert "skipped 1 episode (duplicate keys): b (uid " in message
        assert uid not in message
        assert sorted(keys_of(folder)) == ["a", "b", "c"]
        fingerprint = manifest_of(folder).fingerprint
        for _ in range(2):  # also after the index is rebuilt
            assert reindex(folder).fingerprint == fingerprint
        write(folder, "d", "append")
        assert sorted(keys_of(folder)) == ["a", "b", "c", "d"]


def _parts(folder: Path) -> list[Any]:
    footers = footers_of(folder)
    return [part for f in manifest_of(folder).record_files for part in footers[f.path].episodes]


class Before(StorageWrapper):
    """Calls `act` before the table of episodes is read: once, or `always`."""

    def __init__(self, inner: Storage, act: Callable[[], Any], *, always: bool = False) -> None:
        super().__init__(inner)
        self._act, self._always, self._is_due = act, always, True

    def size(self, path: str) -> int:
        if path.endswith("-episodes.arrow") and (self._is_due or self._always):
            self._is_due = False
            self._act()
        return super().size(path)


def opened(where: Any) -> None:
    assert set(seqrecord.open(where).episodes) > {"a", "b"}


def verified(where: Any) -> None:
    assert verify(where).problems == ()


READERS: dict[str, Callable[[Any], object]] = {
    "open": opened,
    "info": seqrecord.summarize,
    "verify": verified,
    "append": lambda where: writer(where, "append").abort(),
    "resume": lambda where: writer(where, "resume").abort(),
    "delete": lambda where: delete_episodes(where, "a"),
    "split": lambda where: split_dataset(where, {"x": 0.5}),
    "stats": seqrecord.add_statistics,
    "drop": lambda where: drop_features(where, "y"),
}
FAST = {"open", "verify", "append", "delete"}


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in READERS]
)
def test_tables_removed_by_clean_during_a_read(tmp_path: Path, name: str) -> None:
    """The manifest is reloaded once; if a file is still missing, the error names it."""
    write(tmp_path, "ab")
    add_feature(tmp_path, "y", lambda episode: np.zeros(len(episode), np.uint8))
    keys = iter("cdefghijkl")

    def others() -> None:
        write(tmp_path, next(keys), "append")
        clean(tmp_path, older_than=0)

    READERS[name](Before(LocalStorage(tmp_path), others))
    if name != "verify":  # it lists the missing tables
        storage = Before(LocalStorage(tmp_path), others, always=True)
        with pytest.raises((NotFoundError, DestinationError), match=r"missing.*index/"):
            READERS[name](storage)


# clean


def age(folder: Path, seconds: float, names: str = "*") -> None:
    then = time.time() - seconds
    for path in folder.rglob(names):
        if path.is_file():
            os.utime(path, (then, then))


def test_clean_removes_old_unused_files(tmp_path: Path) -> None:
    write(tmp_path, "abc")
    used = {path for path in tmp_path.rglob("*") if path.is_file()}
    killed = writer(tmp_path, "append")
    write_episodes(killed, "def")
    abandon(killed)
    (tmp_path / "index" / "0123456789abcdef-gaps.arrow").write_bytes(b"of no manifest")
    # Other names are not given by a writer.
    names = "index/camera.json", "edits/cuts.json", "records/copy.seqrec", "docs/a", "docs/a.notes"
    for path in [tmp_path / name for name in names]:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"of the user")
        used.add(path)
    unused = {path for path in tmp_path.rglob("*") if path.is_file()} - used
    assert any(path.suffix == ".partial" for path in unused)
    age(tmp_path, 3600)
    manifest = (tmp_path / MANIFEST).read_bytes()
    assert clean(tmp_path, older_than=7200) == []
    listed = clean(tmp_path, older_than=3000, dry_run=True)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == used | unused
    assert (tmp_path / MANIFEST).read_bytes() == manifest
    assert clean(tmp_path, older_than=3000) == listed
    remaining = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert remaining - set((tmp_path / "manifests").iterdir()) == used
    assert keys_of(tmp_path) == "abc"
    assert clean(tmp_path, older_than=0) == []
    with writer(tmp_path, "resume") as more:
        assert more.completed_episodes == set("abc")
        write_episodes(more, "g")
    assert manifest_of(tmp_path).removed == ()
    assert keys_of(tmp_path) == "abcg"


def test_clean_keeps_the_files_of_a_running_writer(tmp_path: Path) -> None:
    write(tmp_path, "a")
    running = writer(tmp_path, "append")
    write_episodes(running, "bcde")
    age(tmp_path, 10 * 86_400, "*.seqrec")  # running for ten days
    assert clean(tmp_path, older_than=7 * 86_400) == []
    running.close()
    assert keys_of(tmp_path) == "abcde"


def test_clean_keeps_files_with_future_times(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_and_kill(tmp_path)
    before = record_files_of(tmp_path)
    age(tmp_path, -3600)
    for older_than in (0, -86_400):
        assert clean(tmp_path, older_than=older_than) == []
    assert record_files_of(tmp_path) == before
    warned = [line for line in caplog.text.splitlines() if "from the future" in line]
    assert len(warned) == 2
    assert "records/" in warned[0]
    age(tmp_path, 1)
    assert clean(tmp_path, older_than=0)
    assert keys_of(tmp_path) == "ab"


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_interrupted_clean_removes_its_clock_file(tmp_path: Path, dry_run: bool) -> None:
    write_and_kill(tmp_path)
    before = record_files_of(tmp_path)
    for error in (KeyboardInterrupt(), StorageError("as asked")):

        def stop(operation: Operation, *_: object, error: BaseException = error) -> None:
            if operation != "remove" and list((tmp_path / "records").glob("*.clock")):
                raise error

        storage: Any = FaultyStorage(LocalStorage(tmp_path), stop)
        with pytest.raises(type(error)):
            clean(storage, older_than=3600, dry_run=dry_run)
        assert record_files_of(tmp_path) == before


def test_clean_without_a_dataset(tmp_path: Path) -> None:
    killed = writer(tmp_path)
    write_episodes(killed, "ab")
    abandon(killed)
    before = record_files_of(tmp_path)
    with pytest.raises(NotFoundError, match=r"an interrupted write left.*--resume"):
        clean(tmp_path, older_than=0)
    assert record_files_of(tmp_path) == before


class Stops(StorageWrapper):
    """Ctrl-C just after the manifest is written."""

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        super().put(path, data, expected=expected)
        if path == MANIFEST:
            raise KeyboardInterrupt


def write_and_kill(folder: Path) -> None:
    """A dataset of `a` and `b`, and the files of a killed append of `c` to `f`."""
    write(folder, "ab")
    killed = writer(folder, "append")
    write_episodes(killed, "cdef")
    abandon(killed)


class BeforeCommit(StorageWrapper):
    """Calls `act` just before the manifest is written."""

    def __init__(self, inner: Storage, act: Callable[[], Any]) -> None:
        super().__init__(inner)
        self._act = act

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        if path == MANIFEST:
            self._act()
        super().put(path, data, expected=expected)


def test_clean_removes_nothing_if_a_resume_commits_meanwhile(tmp_path: Path) -> None:
    write_and_kill(tmp_path)
    resumed = writer(tmp_path, "resume")
    before = record_files_of(tmp_path)
    storage: Any = BeforeCommit(LocalStorage(tmp_path), resumed.close)
    with pytest.raises(ConflictError, match="nothing was removed"):
        clean(storage, older_than=0)
    assert before.items() <= record_files_of(tmp_path).items()
    assert keys_of(tmp_path) == "abcdef"


def test_a_killed_clean_is_continued(tmp_path: Path) -> None:
    write_and_kill(tmp_path)

    storage: Any = Stops(LocalStorage(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        clean(storage, older_than=0)
    with writer(tmp_path, "resume") as resumed:
        assert resumed.completed_episodes == set("ab")
    assert clean(tmp_path, older_than=3600), "files marked for removal go at any age"
    assert all(name in str(manifest_of(tmp_path)) for name in record_files_of(tmp_path))
    assert keys_of(tmp_path) == "ab"


# Requests


def test_an_append_reads_each_committed_file_once(tmp_path: Path) -> None:
    """Regression: five sequential requests a file took 32 s for 200 files at 30 ms."""
    with writer(tmp_path, max_file_size=1) as old:
        write_episodes(old, {f"{key}{number}": 6 for key in "abcdefghijkl" for number in range(2)})
    committed = {file.path for file in manifest_of(tmp_path).record_files}
    assert len(committed) > 60
    storage = CountingStorage(LocalStorage(tmp_path))

    def requests() -> int:
        return sum(map(len, storage.ranges.values())) + storage.sizes.total()

    each = writer(storage, "append")
    asked = {path: ranges for path, ranges in storage.ranges.items() if path in committed}
    assert {path: len(ranges) for path, ranges in asked.items()} == dict.fromkeys(committed, 1)
    assert {ranges[0].length for ranges in asked.values()} == {64}
    assert not committed & set(storage.sizes)
    storage.reset()
    write_episodes(each, {"new": 1})
    each.close()
    assert not committed & {*storage.ranges, *storage.sizes}
    assert requests() < 20
    assert manifest_of(tmp_path).num_episodes == 25
