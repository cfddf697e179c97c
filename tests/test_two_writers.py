"""Writers at work on one destination together: nothing is lost, whoever commits first."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import reindex, verify
from seqrecord.edit import (
    add_feature,
    clean,
    delete_episodes,
    drop_features,
    split_dataset,
)
from seqrecord.errors import (
    ConflictError,
    DestinationError,
    NotFoundError,
    StorageError,
    TransientError,
)
from seqrecord.format.manifest import MANIFEST, read_manifest
from seqrecord.storage import LocalStorage, Storage, StorageWrapper
from tests.abandoned import abandon
from tests.numbered import add, contents, frame, keys_of
from tests.numbered import writer_of as writer
from tests.storage_doubles import Between, CountingStorage
from tests.tiny import footers_of


def record_files_of(folder: Path) -> dict[str, bytes]:
    return contents(folder / "records")


def finished(folder: Path) -> dict[str, bytes]:
    return {n: data for n, data in record_files_of(folder).items() if n.endswith(".seqrec")}


# A resume beside a running writer


@pytest.mark.parametrize("first", ["running", "resumed"])
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
    second = resumed
    if first == "running":
        running.close()
        assert keys_of(tmp_path) == "abcdefg"
    else:
        resumed.close()
        assert keys_of(tmp_path) == "abcdegh"
        second = running
    with pytest.raises(ConflictError, match="another writer committed first"):
        second.close()
    assert set(keys_of(tmp_path)) == set("abcdefg" if first == "running" else "abcdegh")
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
    with pytest.raises(ConflictError):
        running.close()
    writer(tmp_path, "resume").close()
    assert keys_of(tmp_path) in ("abg", "agb")


# Writers that begin together


@pytest.mark.parametrize("mode", ["create", "append"])
@pytest.mark.parametrize("bring_in", ["resume", "reindex"])
def test_of_two_writers_begun_together_the_second_loses_nothing(
    tmp_path: Path, mode: Any, bring_in: str
) -> None:
    """Of two creates one could never commit; an append beside an append waited for a lock."""
    if mode == "append":
        with writer(tmp_path) as old:
            add(old, "ab")
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
    start = "ab" if mode == "append" else ""
    assert keys_of(tmp_path) == start + "cde"
    before = finished(tmp_path)
    with pytest.raises(ConflictError, match=r"another writer committed first.*--resume"):
        two.close()
    assert before.items() <= finished(tmp_path).items()
    assert keys_of(tmp_path) == start + "cde"
    if bring_in == "resume":
        writer(tmp_path, "resume").close()
    else:
        reindex(tmp_path)
    uids = {part.key: part.uid for part in _parts(tmp_path)}  # they begin with the writer's own
    order = ["cde", "fgh"] if uids["c"] < uids["f"] else ["fgh", "cde"]
    assert keys_of(tmp_path) == start + "".join(a + b for a, b in zip(*order, strict=True))
    fingerprint = read_manifest(LocalStorage(tmp_path)).fingerprint
    assert reindex(tmp_path).fingerprint == fingerprint
    (tmp_path / MANIFEST).unlink()
    assert reindex(tmp_path).fingerprint == fingerprint


def test_a_committed_key_beats_one_that_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):  # whichever uid is smaller
        folder = tmp_path / str(number)
        one, two = writer(folder), writer(folder)
        for each, keys in ((one, "ab"), (two, "bc")):
            add(each, keys)
        one.close()
        (uid,) = {part.key: part.uid for part in _parts(folder) if part.key == "b"}.values()
        with pytest.raises(ConflictError):
            two.close()
        caplog.clear()
        writer(folder, "resume").close()
        (said,) = [r.getMessage() for r in caplog.records if "duplicate keys" in r.getMessage()]
        assert "skipped 1 episode (duplicate keys): b (uid " in said
        assert uid not in said
        assert sorted(keys_of(folder)) == ["a", "b", "c"]
        fingerprint = read_manifest(LocalStorage(folder)).fingerprint
        for _ in range(2):  # and stays, whoever builds the index anew
            assert reindex(folder).fingerprint == fingerprint
        with writer(folder, "append") as more:
            add(more, "d")
        assert sorted(keys_of(folder)) == ["a", "b", "c", "d"]


def _parts(folder: Path) -> list[Any]:
    named = {file.path for file in read_manifest(LocalStorage(folder)).record_files}
    footers = footers_of(folder)
    return [part for path in named for part in footers[path].episodes]


class Slow(StorageWrapper):
    """Something happens before a table of the index is looked at for the first time."""

    def __init__(self, inner: Storage, before: Callable[[], Any]) -> None:
        super().__init__(inner)
        self._before: Callable[[], Any] | None = before

    def size(self, path: str) -> int:
        if path.startswith("index/") and self._before:
            before, self._before = self._before, None
            before()
        return super().size(path)


def every_reader() -> dict[str, Callable[[Any], object]]:
    def opened(where: Any) -> None:
        with seqrecord.open(where) as dataset:
            assert set(dataset.episodes) > {"a", "b"}

    def verified(where: Any) -> None:
        assert verify(where).problems == ()

    def begun(mode: Any) -> Callable[[Any], None]:
        return lambda where: writer(where, mode).abort()

    return {
        "open": opened,
        "info": lambda where: seqrecord.summarize(where),
        "verify": verified,
        "append": begun("append"),
        "resume": begun("resume"),
        "delete": lambda where: delete_episodes(where, "a"),
        "split": lambda where: split_dataset(where, {"x": 0.5}),
        "stats": lambda where: seqrecord.add_statistics(where),
        "drop": lambda where: drop_features(where, "y"),
    }


@pytest.mark.parametrize("name", every_reader())
def test_tables_that_clean_removes_under_a_reader(tmp_path: Path, name: str) -> None:
    """Once, the manifest is read anew; if a file is missing then too, the error says so."""
    with writer(tmp_path) as old:
        add(old, "ab")
    add_feature(tmp_path, "y", lambda episode: np.zeros(len(episode), np.uint8))
    left = iter("cdefghijkl")

    def others() -> None:
        with writer(tmp_path, "append") as other:
            add(other, next(left))
        clean(tmp_path, older_than=0)

    every_reader()[name](Slow(LocalStorage(tmp_path), others))
    if name == "verify":
        return  # it lists the tables that are missing

    class Always(Slow):
        def size(self, path: str) -> int:
            if path.endswith("-episodes.arrow"):
                others()
            return super().size(path)

    with pytest.raises((NotFoundError, DestinationError), match=r"missing.*index/"):
        every_reader()[name](Always(LocalStorage(tmp_path), lambda: None))


# clean


def age(folder: Path, seconds: float, names: str = "*") -> None:
    then = time.time() - seconds
    for path in folder.rglob(names):
        if path.is_file():
            os.utime(path, (then, then))


def test_clean_removes_what_is_old_and_not_named(tmp_path: Path) -> None:
    with writer(tmp_path) as old:
        add(old, "abc")
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
    assert read_manifest(LocalStorage(tmp_path)).removed == ()
    assert keys_of(tmp_path) == "abcg"


def test_clean_leaves_all_of_a_writer_that_is_at_work(tmp_path: Path) -> None:
    with writer(tmp_path) as old:
        add(old, "a")
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
    for error in (KeyboardInterrupt(), StorageError("as asked"), TransientError("as asked")):

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


class Meanwhile(StorageWrapper):
    """Something happens just before, or just after, the manifest is put."""

    def __init__(
        self, inner: Storage, *, before: Callable[[], Any] | None = None, after: Any = None
    ) -> None:
        super().__init__(inner)
        self._before, self._after = before, after

    def put(self, path: str, data: bytes, *, expected: str | None) -> None:
        if self._before and path == MANIFEST:
            self._before()
        super().put(path, data, expected=expected)
        if self._after and path == MANIFEST:
            self._after()


def write_and_kill(folder: Path) -> None:
    """A dataset of `a` and `b`, and what a killed append of `c` to `f` leaves."""
    with writer(folder) as old:
        add(old, "ab")
    killed = writer(folder, "append")
    add(killed, "cdef")
    abandon(killed)


def test_clean_beside_a_resume_that_commits_at_this_moment(tmp_path: Path) -> None:
    write_and_kill(tmp_path)
    resumed = writer(tmp_path, "resume")
    before = record_files_of(tmp_path)
    storage: Any = Meanwhile(LocalStorage(tmp_path), before=resumed.close)
    with pytest.raises(ConflictError, match="nothing was removed"):
        clean(storage, older_than=0)
    assert before.items() <= record_files_of(tmp_path).items()
    assert keys_of(tmp_path) == "abcdef"


def test_a_clean_that_was_killed_goes_on(tmp_path: Path) -> None:
    write_and_kill(tmp_path)

    def stop() -> None:
        raise KeyboardInterrupt

    storage: Any = Meanwhile(LocalStorage(tmp_path), after=stop)
    with pytest.raises(KeyboardInterrupt):
        clean(storage, older_than=0)
    with writer(tmp_path, "resume") as resumed:
        assert resumed.completed_episodes == set("ab")
    assert clean(tmp_path, older_than=3600), "what is condemned goes, however old it is"
    assert all(
        name in str(read_manifest(LocalStorage(tmp_path))) for name in record_files_of(tmp_path)
    )
    assert keys_of(tmp_path) == "ab"


# Requests


class Requests(CountingStorage):
    """Counts the requests, and those that wait for no other."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.count = 0

    def read_ranges(self, path: str, ranges: Any, buffers: Any) -> None:
        self.count += 1
        super().read_ranges(path, ranges, buffers)

    def size(self, path: str) -> int:
        self.count += 1
        return super().size(path)


def test_an_append_asks_each_committed_file_once(tmp_path: Path) -> None:
    """Five requests a record file, one after the other, made 200 files take 32 s at 30 ms."""
    with writer(tmp_path, max_file_size=1) as old:
        for _ in range(6):
            for key in "abcdefghijkl":
                with old.episode(f"{key}{_}") as episode:
                    for number in range(6):
                        episode.append(frame(key, number))
    count = len(read_manifest(LocalStorage(tmp_path)).record_files)
    assert count > 200
    storage = Requests(LocalStorage(tmp_path))
    each = writer(storage, "append")
    committed = {file.path for file in read_manifest(LocalStorage(tmp_path)).record_files}
    assert {
        path: len(r) for path, r in storage.ranges.items() if path in committed
    } == dict.fromkeys(committed, 1)
    assert sum(r[0].length for path, r in storage.ranges.items() if path in committed) == 64 * count
    assert not committed & set(storage.sizes)
    storage.reset()
    before = storage.count
    with each.episode("new") as episode:
        episode.append(frame("a", 0))
    each.close()
    assert not committed & set(storage.ranges)
    assert not committed & set(storage.sizes)
    assert storage.count - before < 20
    assert read_manifest(LocalStorage(tmp_path)).num_episodes == 73
