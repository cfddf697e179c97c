"""Writers at work on one destination together: nothing is lost, whoever commits first."""

from __future__ import annotations

import contextlib
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
from seqrecord.format.manifest import MANIFEST, Manifest, read_manifest
from seqrecord.storage import LocalStorage, Storage, StorageWrapper
from tests.abandoned import abandon
from tests.numbered import add, contents, frame, keys_of
from tests.numbered import writer_of as writer
from tests.storage_doubles import Between, CountingStorage
from tests.tiny import footers_of


def record_files_of(folder: Path) -> dict[str, bytes]:
    return contents(folder / "records")


def manifest_of(folder: Path) -> Manifest:
    return read_manifest(LocalStorage(folder))


def write(folder: Path, keys: str, mode: str = "create", **options: Any) -> None:
    with writer(folder, mode, **options) as each:
        add(each, keys)


def refused(each: SeqRecordWriter) -> None:
    with pytest.raises(ConflictError, match=r"another writer committed first.*--resume"):
        each.close()


# A resume beside a running writer


@pytest.mark.parametrize("first", [pytest.param("running", marks=pytest.mark.slow), "resumed"])
def test_a_resume_beside_a_running_writer(tmp_path: Path, first: str) -> None:
    """It deleted the other's files, whose close() then succeeded with episodes missing."""
    running = writer(tmp_path)
    add(running, "abcde")
    before = record_files_of(tmp_path)
    assert any(name.endswith(".partial") for name in before)
    resumed = writer(tmp_path, "resume")
    assert resumed.completed_episodes == set("abcde")
    assert before.items() <= record_files_of(tmp_path).items()
    add(running, "fg")
    add(resumed, "gh")
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


def test_an_episode_that_a_resume_adopted_while_it_was_written(tmp_path: Path) -> None:
    """Its first part is in a file that the resume commits, its last one comes later."""
    running = writer(tmp_path, max_file_size=1)
    add(running, "a")
    half = running.episode("g")
    for number in range(5):
        half.append(frame("g", number))
    with writer(tmp_path, "resume") as resumed:
        assert resumed.completed_episodes == {"a"}
        add(resumed, "b")
    for number in range(5, 7):
        half.append(frame("g", number))
    half.close()
    refused(running)
    writer(tmp_path, "resume").close()
    assert keys_of(tmp_path) in ("abg", "agb")


# Writers that begin together


@pytest.mark.parametrize(
    ("mode", "bring_in"), [("create", reindex), ("append", partial(writer, mode="resume"))]
)
def test_of_two_writers_begun_together_the_second_loses_nothing(
    tmp_path: Path, mode: Any, bring_in: Callable[[Path], Any]
) -> None:
    """Of two creates one could never commit; an append beside an append waited for a lock."""
    start = "ab" if mode == "append" else ""
    if start:
        write(tmp_path, start)
    one, two = writer(tmp_path, mode), writer(tmp_path, mode)
    for key_one, key_two in zip("cde", "fgh", strict=True):
        add(one, key_one)
        add(two, key_two)
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
    uids = {part.key: part.uid for part in _parts(tmp_path)}  # they begin with the writer's own
    order = ["cde", "fgh"] if uids["c"] < uids["f"] else ["fgh", "cde"]
    assert keys_of(tmp_path) == start + "".join(a + b for a, b in zip(*order, strict=True))
    fingerprint = manifest_of(tmp_path).fingerprint
    assert reindex(tmp_path).fingerprint == fingerprint
    (tmp_path / MANIFEST).unlink()
    assert reindex(tmp_path).fingerprint == fingerprint


def test_a_committed_key_beats_one_that_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, -1):  # whichever uid is smaller: they begin with the writers' ids
        numbers = map("{:016x}".format, itertools.count(1 << 32, step))
        monkeypatch.setattr(secrets, "token_hex", lambda _, numbers=numbers: next(numbers))
        folder = tmp_path / str(step)
        one, two = writer(folder), writer(folder)
        for each, keys in ((one, "ab"), (two, "bc")):
            add(each, keys)
        one.close()
        (uid,) = {part.key: part.uid for part in _parts(folder) if part.key == "b"}.values()
        refused(two)
        caplog.clear()
        writer(folder, "resume").close()
        (said,) = [r.getMessage() for r in caplog.records if "duplicate keys" in r.getMessage()]
        assert "skipped 1 episode (duplicate keys): b (uid " in said
        assert uid not in said
        assert sorted(keys_of(folder)) == ["a", "b", "c"]
        fingerprint = manifest_of(folder).fingerprint
        for _ in range(2):  # and stays, whoever builds the index anew
            assert reindex(folder).fingerprint == fingerprint
        write(folder, "d", "append")
        assert sorted(keys_of(folder)) == ["a", "b", "c", "d"]


def _parts(folder: Path) -> list[Any]:
    footers = footers_of(folder)
    return [part for f in manifest_of(folder).record_files for part in footers[f.path].episodes]


class Before(StorageWrapper):
    """Something happens before the table of episodes is looked at: `always`, or once."""

    def __init__(self, inner: Storage, act: Callable[[], Any], *, always: bool = False) -> None:
        super().__init__(inner)
        self._act, self._always, self._is_due = act, always, True

    def size(self, path: str) -> int:
        if path.endswith("-episodes.arrow") and (self._is_due or self._always):
            self._is_due = False
            self._act()
        return super().size(path)


def opened(where: Any) -> None:
    with seqrecord.open(where) as dataset:
        assert set(dataset.episodes) > {"a", "b"}


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
def test_tables_that_clean_removes_under_a_reader(tmp_path: Path, name: str) -> None:
    """Once, the manifest is read anew; if a file is missing then too, the error says so."""
    write(tmp_path, "ab")
    add_feature(tmp_path, "y", lambda episode: np.zeros(len(episode), np.uint8))
    left = iter("cdefghijkl")

    def others() -> None:
        write(tmp_path, next(left), "append")
        clean(tmp_path, older_than=0)

    READERS[name](Before(LocalStorage(tmp_path), others))
    if name != "verify":  # which lists the tables that are missing
        storage = Before(LocalStorage(tmp_path), others, always=True)
        with pytest.raises((NotFoundError, DestinationError), match=r"missing.*index/"):
            READERS[name](storage)


# clean


def age(folder: Path, seconds: float, names: str = "*") -> None:
    then = time.time() - seconds
    for path in folder.rglob(names):
        if path.is_file():
            os.utime(path, (then, then))


def test_clean_removes_what_is_old_and_not_named(tmp_path: Path) -> None:
    write(tmp_path, "abc")
    named = {path for path in tmp_path.rglob("*") if path.is_file()}
    killed = writer(tmp_path, "append")
    add(killed, "def")
    abandon(killed)
    (tmp_path / "index" / "0123456789abcdef-gaps.arrow").write_bytes(b"of no manifest")
    left = {path for path in tmp_path.rglob("*") if path.is_file()} - named
    assert any(path.suffix == ".partial" for path in left)
    age(tmp_path, 3600)
    manifest = (tmp_path / MANIFEST).read_bytes()
    assert clean(tmp_path, older_than=7200) == []
    listed = clean(tmp_path, older_than=3000, dry_run=True)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == named | left
    assert (tmp_path / MANIFEST).read_bytes() == manifest
    assert clean(tmp_path, older_than=3000) == listed
    there = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert there - set((tmp_path / "manifests").iterdir()) == named
    assert keys_of(tmp_path) == "abc"
    assert clean(tmp_path, older_than=0) == []
    with writer(tmp_path, "resume") as more:
        assert more.completed_episodes == set("abc")
        add(more, "g")
    assert manifest_of(tmp_path).removed == ()
    assert keys_of(tmp_path) == "abcg"


def test_clean_leaves_all_of_a_writer_that_is_at_work(tmp_path: Path) -> None:
    write(tmp_path, "a")
    running = writer(tmp_path, "append")
    add(running, "bcde")
    age(tmp_path, 10 * 86_400, "*.seqrec")  # it has been at work for ten days
    assert clean(tmp_path, older_than=7 * 86_400) == []
    running.close()
    assert keys_of(tmp_path) == "abcde"


def test_clean_removes_nothing_of_the_future(
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
def test_clean_takes_its_own_file_away_on_every_way_out(tmp_path: Path, dry_run: bool) -> None:
    write_and_kill(tmp_path)
    before = record_files_of(tmp_path)
    for error in (KeyboardInterrupt(), StorageError("as asked")):

        def stop(error: BaseException = error) -> None:
            if list((tmp_path / "records").glob("*.clock")):
                raise error

        for number in range(4, 8):
            storage: Any = Between(LocalStorage(tmp_path), number, stop)
            with contextlib.suppress(KeyboardInterrupt, StorageError):
                clean(storage, older_than=3600, dry_run=dry_run)
            assert record_files_of(tmp_path) == before


def test_clean_where_no_dataset_is(tmp_path: Path) -> None:
    killed = writer(tmp_path)
    add(killed, "ab")
    abandon(killed)
    before = record_files_of(tmp_path)
    with pytest.raises(NotFoundError, match=r"an interrupted write left.*--resume"):
        clean(tmp_path, older_than=0)
    assert record_files_of(tmp_path) == before


class Stops(StorageWrapper):
    """Ctrl-C just after the manifest is put."""

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        super().put(path, data, expected=expected)
        if path == MANIFEST:
            raise KeyboardInterrupt


def write_and_kill(folder: Path) -> None:
    """A dataset of `a` and `b`, and what a killed append of `c` to `f` leaves."""
    write(folder, "ab")
    killed = writer(folder, "append")
    add(killed, "cdef")
    abandon(killed)


class BeforeCommit(StorageWrapper):
    """Something happens just before the manifest is put."""

    def __init__(self, inner: Storage, act: Callable[[], Any]) -> None:
        super().__init__(inner)
        self._act = act

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        if path == MANIFEST:
            self._act()
        super().put(path, data, expected=expected)


def test_clean_beside_a_resume_that_commits_at_this_moment(tmp_path: Path) -> None:
    write_and_kill(tmp_path)
    resumed = writer(tmp_path, "resume")
    before = record_files_of(tmp_path)
    storage: Any = BeforeCommit(LocalStorage(tmp_path), resumed.close)
    with pytest.raises(ConflictError, match="nothing was removed"):
        clean(storage, older_than=0)
    assert before.items() <= record_files_of(tmp_path).items()
    assert keys_of(tmp_path) == "abcdef"


def test_a_clean_that_was_killed_goes_on(tmp_path: Path) -> None:
    write_and_kill(tmp_path)

    storage: Any = Stops(LocalStorage(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        clean(storage, older_than=0)
    with writer(tmp_path, "resume") as resumed:
        assert resumed.completed_episodes == set("ab")
    assert clean(tmp_path, older_than=3600), "what is condemned goes, however old it is"
    assert all(name in str(manifest_of(tmp_path)) for name in record_files_of(tmp_path))
    assert keys_of(tmp_path) == "ab"


# Requests


def test_an_append_asks_each_committed_file_once(tmp_path: Path) -> None:
    """Five requests a record file, one after the other, made 200 files take 32 s at 30 ms."""
    with writer(tmp_path, max_file_size=1) as old:
        add(old, {f"{key}{number}": 6 for key in "abcdefghijkl" for number in range(2)})
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
    add(each, {"new": 1})
    each.close()
    assert not committed & {*storage.ranges, *storage.sizes}
    assert requests() < 20
    assert manifest_of(tmp_path).num_episodes == 25
