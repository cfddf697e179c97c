"""Earlier versions of a dataset."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter
from seqrecord.edit import (
    add_feature,
    clean,
    delete_episodes,
    describe_features,
    drop_features,
    list_versions,
    rename_episodes,
    rename_features,
    restore_version,
    rewrite_files,
    set_metadata,
    set_text,
    split_dataset,
    split_episodes,
    trim_episodes,
)
from seqrecord.errors import ConflictError, FormatError, NotFoundError, StorageError
from seqrecord.store.storage.local import LocalStorage
from tests.kit.command_line import run
from tests.kit.datasets import columns, contents, write_dataset
from tests.kit.faults import FailAt, FaultyStorage
from tests.kit.tiny import change_manifest, copy_dataset


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two episodes in one record file, and a third in another."""
    values = [np.full(500, 10 * n + i, np.float32) for n in range(3) for i in range(3)]
    episodes = {key: columns(x=values[3 * n : 3 * n + 3]) for n, key in enumerate("abc")}
    write_dataset(tmp_path / "records", episodes, codecs="raw", max_file_size=8000)
    return tmp_path / "records"


def version_of(path: Path) -> str:
    with seqrecord.open(path) as dataset:
        return dataset.version


def content(path: Path, version: str | None = None) -> dict[str, bytes]:
    with seqrecord.open(path, version=version) as dataset:
        copy = pickle.loads(pickle.dumps(dataset))
        assert copy.version == dataset.version
        assert version in (None, dataset.version)
        assert list(copy.episodes) == list(dataset.episodes)
        return {key: item[:]["x"].tobytes() for key, item in dataset.episodes.items()}


def values_of(path: Path) -> dict[str, dict[str, bytes]]:
    with seqrecord.open(path) as dataset:
        return {
            key: {name: item[:][name].tobytes() for name in dataset.features}
            for key, item in dataset.episodes.items()
        }


def test_each_version_opens_unchanged(path: Path) -> None:
    """Also after some of its tables are deleted."""
    seen = [(version_of(path), content(path))]
    for change in (
        lambda: delete_episodes(path, "b"),
        lambda: rename_episodes(path, {"c": "d"}),
        lambda: split_episodes(path, None, "train"),
        lambda: set_metadata(path, None, {"x": 1}),
        lambda: rewrite_files(path, min_unused=0.01),
    ):
        change()
        seen.append((version_of(path), content(path)))
    for version, expected in seen:
        assert content(path, version) == expected
    with seqrecord.open(path, version=seen[2][0]) as dataset:
        assert not dataset.splits
    found = list_versions(path)
    assert [each.id for each in found] == [version for version, _ in reversed(seen)]
    assert [each.num_episodes for each in found] == [2, 2, 2, 2, 2, 3]
    assert all(each.is_whole for each in found)
    assert found[0].until is None
    times = [each.until for each in found[1:] if each.until is not None]
    assert len(times) == 5
    assert times == sorted(times, reverse=True)
    assert seqrecord.verify(path).ok


def test_a_version_has_its_own_statistics(path: Path) -> None:
    """Also after its tables are deleted, if the current version has the same frames."""
    first = version_of(path)
    seqrecord.add_statistics(path, max_frames=4)
    for _ in range(2):
        seqrecord.reindex(path)
    with seqrecord.open(path, version=first) as dataset:
        for opened in (dataset, pickle.loads(pickle.dumps(dataset))):
            assert opened.version == first
            assert opened.statistics["x"].num_frames == 9
    restore_version(path, first)
    assert seqrecord.open(path).statistics["x"].num_frames == 9


def test_an_earlier_version_is_restored(path: Path) -> None:
    """As a new version; what came later is not brought back by a resume or a reindex."""
    seqrecord.add_statistics(path)
    first, before = version_of(path), content(path)
    trim_episodes(path, "a", slice(1, None))
    restore_version(path, first)
    assert list(seqrecord.open(path).statistics) == ["x"]
    trim_episodes(path, "a", slice(1, None))
    add_feature(path, "y", lambda episode: np.arange(len(episode)))
    write_dataset(path, {"d": [{"x": np.zeros(500, np.float32), "y": np.int64(3)}]}, mode="append")
    last, after = version_of(path), content(path)
    assert last in run("edit", "restore", path, first, "--if-version", first, code=1).stderr
    restore_version(path, first, dry_run=True)
    assert version_of(path) == last
    assert "restored" in run("edit", "restore", path, first, "--if-version", last).output
    with seqrecord.open(path) as dataset:
        assert list(dataset.features) == ["x"]
    [now, was, *_] = list_versions(path)
    assert (now.base, now.command) == (last, f"restore_version(version='{first}')")
    assert (was.id, was.command) == (last, "")
    for _ in range(2):
        assert content(path) == before
        assert seqrecord.verify(path).ok
        with SeqRecordWriter(path, mode="resume") as writer:
            assert writer.completed_episodes == set("abc")
        seqrecord.reindex(path)
    restore_version(path, last)
    assert content(path) == after
    assert seqrecord.verify(path).ok
    delete_episodes(path, "a")
    rewrite_files(path, min_unused=0.01)
    clean(path, older_than=-1)
    with pytest.raises(NotFoundError, match="keep-versions"):
        restore_version(path, last)
    with pytest.raises(NotFoundError, match="unknown version"):
        restore_version(path, "0" * 32)
    assert content(path).keys() == set("bcd")


def test_files_that_a_restoration_left_stay_left(path: Path) -> None:
    """Also once the list of earlier commits no longer names their writer's."""
    first = version_of(path)
    files = seqrecord.open(path).contents.manifest.record_files
    add_feature(path, "y", lambda episode: np.arange(len(episode)))
    write_dataset(path, {"d": [{"x": np.zeros(500, np.float32), "y": np.int64(3)}]}, mode="append")
    restore_version(path, first)
    set_metadata(path, None, {"x": 1})
    change_manifest(path, lambda manifest: manifest.update(earlier_commits=[]))
    assert seqrecord.reindex(path).record_files == files
    assert list(seqrecord.open(path).features) == ["x"]


def test_each_edit_is_recorded_and_checks_its_version(path: Path) -> None:
    at: dict[str, Any] = {"if_version": version_of(path)}
    edits: list[tuple[str, Callable[..., object]]] = [
        ("rename_episodes(keys={'a': 'A'})", partial(rename_episodes, path, {"a": "A"})),
        (
            "set_metadata(episodes='A', entries={'n': 1})",
            partial(set_metadata, path, "A", {"n": 1}),
        ),
        ("split_episodes(episodes='A', split='v')", partial(split_episodes, path, "A", "v")),
        ("split_dataset(shares={'w': 1.0})", partial(split_dataset, path, {"w": 1.0})),
        ("add_feature(name='y', codec='raw')", partial(add_feature, path, "y", texts, codec="raw")),
        ("set_text(episodes=None, name='y', text='b')", partial(set_text, path, None, "y", "b")),
        ("describe_features(units={'x': 'm'})", partial(describe_features, path, units={"x": "m"})),
        ("rename_features(names={'y': 'z'})", partial(rename_features, path, {"y": "z"})),
        ("drop_features(names=['z'])", partial(drop_features, path, ["z"])),
        (
            "delete_episodes(episodes='[Ab]', others=True)",
            partial(delete_episodes, path, "[Ab]", others=True),
        ),
        ("delete_episodes(episodes=['b'])", partial(delete_episodes, path, ["b"])),
        (
            "trim_episodes(episodes=None, frames=slice(1, -1, None))",
            partial(trim_episodes, path, None, slice(1, -1)),
        ),
    ]
    base = command = ""
    for number, (command, edit) in enumerate(edits):
        if number:
            with pytest.raises(ConflictError, match="another version") as caught:
                edit(**at)
            assert (caught.value.expected, caught.value.got) == (at["if_version"], version_of(path))
        at["if_version"] = base = version_of(path)
        assert edit(**at, storage_options={})
        newest = list_versions(path)[0]
        assert (newest.command, newest.base) == (command, base)
    text = run("info", path, "--versions").output
    assert f"    {edits[-1][0]}, of {base}" in text.splitlines()
    assert json.loads(run("info", path, "--versions", "--json").output)[0]["command"] == command
    rewrite_files(path, min_unused=0.01)
    assert list_versions(path)[0].command == "rewrite_files(min_unused=0.01)"
    write_dataset(path, {"d": [{"x": np.zeros(500, np.float32)}]}, mode="append")
    assert list_versions(path)[0].command == ""


def texts(episode: Any) -> Any:
    return ["a"] * len(episode)


@pytest.mark.parametrize("number", range(4))
def test_a_version_that_another_commit_replaces_meanwhile(path: Path, number: int) -> None:
    """It is opened as it was, not the newer one, whenever the commit comes."""
    before, version, operations = content(path), version_of(path), list[str]()

    def commit(operation: str, name: str, _number: int) -> None:
        if name == "manifest.json":
            operations.append(operation)
            if len(operations) == number + 1:
                delete_episodes(path, "b")

    storage = FaultyStorage(LocalStorage(path), commit)
    with seqrecord.open(storage, version=version) as dataset:
        assert dataset.version == version
        assert [*dataset.episodes] == [*before]


@pytest.mark.parametrize("count", [3, 1000, 1100])
def test_commands_with_arrays_are_recorded_on_one_line(tmp_path: Path, count: int) -> None:
    """NumPy breaks lines of long arrays, and abbreviates those of more than 1,000."""
    write_dataset(tmp_path / "many", {f"e{i}": [{"x": np.int64(i)}] for i in range(count + 1)})
    delete_episodes(tmp_path / "many", np.arange(count))  # type: ignore[arg-type]
    with seqrecord.open(tmp_path / "many") as dataset:
        assert [*dataset.episodes] == [f"e{count}"]
    [newest, *_] = list_versions(tmp_path / "many")
    assert newest.command.startswith("delete_episodes(")


def test_versions_with_other_splits(path: Path) -> None:
    """A pickled copy of an open dataset keeps its splits, too."""
    with seqrecord.open(path) as dataset:
        for name in ("a", "b"):  # afterwards the first version's tables are deleted
            split_episodes(path, None, name)
        assert pickle.loads(pickle.dumps(dataset)).splits == dataset.splits == {}
        assert seqrecord.open(path, version=dataset.version).splits == {}


def test_the_last_ten_versions_are_kept(path: Path) -> None:
    versions = [version_of(path)]
    for number in range(12):
        set_metadata(path, None, {"x": number})
        versions.append(version_of(path))
    assert [each.id for each in list_versions(path)] == versions[:1:-1]
    assert len(list((path / "manifests").iterdir())) == 10
    for version in (versions[0], "0" * 32, "../manifest", ""):
        with pytest.raises(NotFoundError, match="info --versions") as caught:
            seqrecord.open(path, version=version)
        assert caught.value.got == repr(version)


@pytest.mark.parametrize(("keep", "kept"), [(0, []), (1, ["-b"]), (2, ["-b", "all"])])
def test_clean_keeps_the_requested_versions(path: Path, keep: int, kept: list[str]) -> None:
    def whole() -> set[str]:
        found = {each.id for each in list_versions(path) if each.is_whole}
        return {name for name, version in versions.items() if version in found}

    versions, contents = {"all": version_of(path)}, {"all": content(path)}
    for key in "ba":
        delete_episodes(path, key)
        rewrite_files(path, min_unused=0.01)  # same content
        versions[f"-{key}"], contents[f"-{key}"] = version_of(path), content(path)
    for _ in range(2):  # clean's own commit does not count
        clean(path, older_than=-1, keep_versions=keep)
    assert whole() - {"-a"} == set(kept)
    for name in (*kept, "-a"):
        assert content(path, versions[name]) == contents[name]
    for name in {"all", "-b"} - set(kept):
        with pytest.raises(NotFoundError, match="keep-versions") as caught:
            seqrecord.open(path, version=versions[name])
        assert caught.value.got == versions[name]
    clean(path, older_than=-1)
    assert whole() <= {"-a"}
    assert seqrecord.verify(path).ok
    for number in (-1, 11):
        with pytest.raises(ValueError, match="keep_versions"):
            clean(path, older_than=0, keep_versions=number)


def test_a_reindex_ignores_files_that_could_not_be_removed(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    delete_episodes(path, "b")
    rewrite_files(path, min_unused=0.01)
    fault = FailAt("remove", path=".seqrec")
    with pytest.raises(StorageError, match="as asked"):
        clean(FaultyStorage(LocalStorage(path), fault), older_than=-1)  # type: ignore[arg-type]
    removed = seqrecord.open(path).contents.manifest.removed
    assert [file for file in removed if (path / file).exists()]
    caplog.clear()
    before = content(path)
    seqrecord.reindex(path)
    assert content(path) == before
    assert "ignored" not in caplog.text


def test_kept_manifests_that_differ_from_their_names(path: Path) -> None:
    for number in range(2):
        set_metadata(path, None, {"x": number})
    folder = path / "manifests"
    one, other = folder.iterdir()
    whole = one.read_bytes()
    one.write_bytes(other.read_bytes())
    with pytest.raises(FormatError) as caught:
        seqrecord.open(path, version=one.stem)
    assert caught.value.file == str(one)
    assert (caught.value.expected, caught.value.got) == (one.stem, other.stem)
    one.write_bytes(whole)
    (folder / f"{'0' * 32}.json").write_bytes(b"")
    (folder / "mine.txt").write_bytes(b"")
    assert f"manifests/{'0' * 32}.json" in clean(path, older_than=-1), "unreferenced"
    remaining = {file.name for file in folder.iterdir()}
    assert {one.name, other.name, "mine.txt"} <= remaining
    assert f"{'0' * 32}.json" not in remaining


def test_a_commit_that_cannot_keep_the_previous_version_changes_nothing(path: Path) -> None:
    fault = FailAt("put", path="manifests/")
    before = version_of(path)
    with pytest.raises(StorageError, match="as asked"):
        set_metadata(FaultyStorage(LocalStorage(path), fault), None, {"x": 1})  # type: ignore[arg-type]
    assert version_of(path) == before


def test_on_the_command_line(path: Path) -> None:
    before = version_of(path)
    delete_episodes(path, "a")
    rows = json.loads(run("info", path, "--versions", "--json").output)
    assert [row["id"] for row in rows] == [version_of(path), before]
    assert rows[0]["until"] is None
    text = run("info", path, "--versions").output.splitlines()
    assert [line.split()[0] for line in text[::2]] == [version_of(path), before]
    assert text[1] == f"    delete_episodes(episodes='a'), of {before}"
    assert "3 episodes" in text[2]
    run("clean", path, "--older-than", "0s", "--keep-versions", "1")
    assert len(content(path, before)) == 3
    run("info", path, "a", "--versions", code=2)


def test_verification_writes_nothing(path: Path) -> None:
    before = contents(path)
    report = seqrecord.verify(FaultyStorage(LocalStorage(path), FailAt("put")), deep=True)
    assert (report.ok, report.notes, report.version) == (True, (), version_of(path))
    assert contents(path) == before


def test_restored_statistics_and_inventories(path: Path) -> None:
    """Also after more commits than a reader needs, until `clean` removes the files."""
    seqrecord.add_statistics(path)
    first, mean = version_of(path), seqrecord.open(path).statistics["x"].mean
    for key in ("a", "b"):
        trim_episodes(path, key, slice(1, None))
        set_metadata(path, None, {"site": key})
    for version in (first, version_of(path), first):
        restore_version(path, version)
        has_statistics = version == first
        assert ("x" in seqrecord.open(path).statistics) == has_statistics
    assert seqrecord.open(path).statistics["x"].mean == mean
    for number in range(11):
        set_metadata(path, None, {"x": number})
    assert len([*(path / "index").glob("*.json")]) == 1, "files of forgotten versions are removed"


def test_edits_after_restorations_use_files_of_their_version(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither files of undone versions nor of other schemas stop an edit, or count as cut off."""
    first = version_of(path)
    add_feature(path, "y", lambda episode: np.arange(len(episode)))
    second = version_of(path)
    drop_features(path, "y")
    rewrite_files(path, min_unused=0.01)
    restore_version(path, first)
    add_feature(path, "z", lambda episode: np.ones(len(episode), np.float32))
    rename_episodes(path, {"a": "d"})
    delete_episodes(path, "d")
    seqrecord.reindex(path)
    assert content(path).keys() == set("bc")
    restore_version(path, second)
    rename_episodes(path, {"a": "d"})
    write_dataset(path, {"e": [{"x": np.zeros(500, np.float32), "y": np.int64(1)}]}, mode="append")
    assert content(path).keys() == set("bcde")
    assert "interrupted" not in caplog.text


def test_a_lost_manifest_after_restorations(path: Path) -> None:
    """Edits and record files of undone versions stay undone, in both directions."""
    first = version_of(path)
    rename_episodes(path, {"a": "d"})
    trim_episodes(path, "b", slice(1, None))
    add_feature(path, "y", lambda episode: np.arange(len(episode)))
    drop_features(path, "x")
    rewrite_files(path, min_unused=0.01)
    write_dataset(path, {"e": [{"y": np.int64(1)}]}, mode="append")
    delete_episodes(path, "c")
    last = version_of(path)
    for version in (first, last, first):
        restore_version(path, version)
        expected = values_of(path)
        copied = copy_dataset(path, path.with_name(f"copied-{version_of(path)}"))
        (copied / "manifest.json").unlink()
        for _ in range(2):
            seqrecord.reindex(copied)
            assert values_of(copied) == expected
        set_metadata(copied, None, {"site": "lab"})
        (copied / "manifest.json").unlink()
        seqrecord.reindex(copied)
        assert values_of(copied) == expected


@pytest.mark.parametrize("is_earlier", [False, True])
def test_a_lost_manifest_after_an_interrupted_edit(path: Path, is_earlier: bool) -> None:
    """The next edit says which edits count, so an interrupted one does not.

    If the two began together, they have one number, and either may be the first by its name.
    """
    set_metadata(path, None, {"x": 1})
    base, files = (path / "manifest.json").read_bytes(), {*(path / "edits").iterdir()}
    delete_episodes(path, "a")
    (path / "manifest.json").write_bytes(base)  # as if interrupted before its commit
    if is_earlier:
        [file] = {*(path / "edits").iterdir()} - files
        number, _, _ = file.name.partition("-")
        file = file.rename(path.with_name("interrupted"))
        set_metadata(path, None, {"x": 0})
        file.rename(path / "edits" / f"{number}-{0:016x}.json")
    for value, num_added in ((2, 2), (3, 1)):  # the first with a reset
        num_files = len([*(path / "edits").iterdir()])
        set_metadata(path, None, {"x": value})
        assert len([*(path / "edits").iterdir()]) == num_files + num_added
    (path / "manifest.json").unlink()
    seqrecord.reindex(path)
    with seqrecord.open(path) as dataset:
        assert {key: item.metadata["x"] for key, item in dataset.episodes.items()} == {
            "a": 3,
            "b": 3,
            "c": 3,
        }


def test_a_lost_manifest_and_lost_edits(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    set_metadata(path, None, {"x": 1})
    version = version_of(path)
    delete_episodes(path, "a")
    restore_version(path, version)
    first = min((path / "edits").iterdir())
    first.unlink()
    (path / "manifest.json").unlink()
    seqrecord.reindex(path)
    assert content(path).keys() == set("abc")
    assert f"lost 1 file of edits: edits/{first.name}" in caplog.text


def test_verification_of_files_that_only_earlier_versions_name(path: Path, tmp_path: Path) -> None:
    """Damage is reported, as long as the version could be restored and no reindex repaired it."""
    first = version_of(path)
    add_feature(path, "y", lambda episode: np.arange(len(episode), dtype=np.float32))
    trim_episodes(path, "a", slice(1, None))
    delete_episodes(path, "b")
    rewrite_files(path, min_unused=0.01)
    set_metadata(path, None, {"site": "lab"})
    assert seqrecord.verify(path).ok
    current = {file.path for file in seqrecord.open(path).contents.manifest.record_files}
    files = (path / "records").glob("*.seqrec")
    old = [file for file in files if f"records/{file.name}" not in current]
    assert old
    for file in old:
        data = bytearray(file.read_bytes())
        data[64] ^= 1  # in the first page
        whole, _ = file.read_bytes(), file.write_bytes(data)
        problems = seqrecord.verify(path).problems
        assert problems
        assert {problem.file for problem in problems} == {str(file)}
        assert all(problem.message.startswith("earlier version ") for problem in problems)
        assert "earlier version" in run("verify", path, code=1).output
        file.write_bytes(whole)
    clean(path, older_than=-1)
    report = seqrecord.verify(path)
    assert report.ok
    assert any("removed by `clean`" in text for text in report.skipped)
    with pytest.raises(NotFoundError):
        restore_version(path, first)
