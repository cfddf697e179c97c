"""Commits whose answer is lost: done at once, later or never, with and without one on top.

What any two commands do in the midst of each other is in `test_simulation.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
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
    merge_datasets,
    rename_episodes,
    rewrite_files,
    split_dataset,
)
from seqrecord.errors import (
    AccessError,
    CommitUnknownError,
    ConflictError,
    NotFoundError,
    SeqRecordError,
)
from seqrecord.format.manifest import MANIFEST, read_manifest
from seqrecord.storage import LocalStorage
from seqrecord.storage.retrying import Retrier, RetryingStorage
from seqrecord.writing.stored_statistics import add_statistics
from tests.abandoned import abandon, abandonable
from tests.storage_doubles import FailAt, FaultyStorage, LosesAnswer
from tests.test_edits import write

Content = dict[str, list[float]]


def values(path: Any) -> Content:
    with seqrecord.open(path, features=["x"]) as dataset:
        return {key: episode[:]["x"][:, 0].tolist() for key, episode in dataset.episodes.items()}


def frames(number: int) -> list[float]:
    return [10 * number + i for i in range(3)]


def append(where: Any, number: int, mode: Any = "append") -> None:
    writer = SeqRecordWriter(where, codecs="raw", max_file_size=20_000, mode=mode)
    with writer, writer.episode(f"e{number}") as episode:
        for value in frames(number):
            episode.append({"x": np.full(1000, value, np.float32)})


@dataclass(frozen=True)
class Command:
    """What is done to a dataset, and what a reader sees once that was acknowledged."""

    do: Callable[[Any], object]
    is_seen: Callable[[Path], bool]


def has(key: str, number: int) -> Callable[[Path], bool]:
    return lambda path: values(path).get(key) == frames(number)


def features(path: Path) -> set[str]:
    with seqrecord.open(path) as dataset:
        return set(dataset.features)


def splits(path: Path) -> int:
    with seqrecord.open(path) as dataset:
        return len(dataset.contents.manifest.splits)


def column(where: Any) -> None:
    add_feature(where, "z", lambda episode: np.arange(len(episode), dtype=np.float32))


COMMANDS = {
    "append": Command(lambda where: append(where, 7), has("e7", 7)),
    "resume": Command(lambda where: append(where, 8, "resume"), has("e8", 8)),
    "delete": Command(
        lambda where: delete_episodes(where, "e1"), lambda path: "e1" not in values(path)
    ),
    "rename": Command(lambda where: rename_episodes(where, {"e2": "two"}), has("two", 2)),
    "add": Command(column, lambda path: "z" in features(path)),
    "split": Command(lambda where: split_dataset(where, {"a": 0.5}), lambda path: splits(path) > 0),
    "stats": Command(lambda where: add_statistics(where), lambda path: True),
    "rewrite": Command(
        lambda where: rewrite_files(where, min_unused=0.01, commit_bytes=1), lambda path: True
    ),
    "reindex": Command(lambda where: seqrecord.reindex(where), lambda path: True),
}


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """One with something to rewrite and to resume; and two to merge."""
    folder = tmp_path_factory.mktemp("interleaved")
    base = write(folder / "base", range(5))
    delete_episodes(base, ["e0", "e3"])
    killed = abandonable(base, codecs="raw", max_file_size=1, mode="append")
    with killed.episode("e6") as episode:
        for value in frames(6):
            episode.append({"x": np.full(1000, value, np.float32)})
    abandon(killed)
    a, b = write(folder / "a", range(10, 12)), write(folder / "b", range(12, 14))
    delete_episodes(b, "e12")
    return base, a, b


def sound(path: Path) -> None:
    """Every file that the manifest names is there, and is what it says."""
    manifest = read_manifest(LocalStorage(path))
    files = {file.path: file.size for file in manifest.record_files}
    files |= {file.path: file.size for file in manifest.small_files}
    for name, size in files.items():
        assert (path / name).stat().st_size == size, name
    assert not seqrecord.verify(path).problems


def create(where: Any) -> None:
    append(where, 20, "create")


LOST = ["append", "resume", "delete", "rename", "add", "split", "stats", "rewrite", "reindex"]


@pytest.fixture
def path(datasets: tuple[Path, Path, Path], tmp_path: Path) -> Path:
    return shutil.copytree(datasets[0], tmp_path / "set")


def retried(storage: Any) -> Any:
    return RetryingStorage(storage, retrier=Retrier(sleep=lambda _: None))


@pytest.mark.parametrize("name", ["create", *LOST])
def test_a_lost_request_that_is_tried_again(path: Path, name: str, tmp_path: Path) -> None:
    """A refusal of the second would mean that the first was done, so nothing is lost or doubled."""
    where = tmp_path / "new" if name == "create" else path
    storage = LosesAnswer(LocalStorage(where), now=False)
    (create if name == "create" else COMMANDS[name].do)(retried(storage))
    assert storage.count >= 2
    sound(where)
    assert has("e20", 20)(where) if name == "create" else COMMANDS[name].is_seen(where)


@pytest.mark.parametrize("is_retried", [False, True])
@pytest.mark.parametrize("on_top", [False, True])
@pytest.mark.parametrize("name", LOST)
def test_an_answer_that_is_lost_after_all_was_done(
    path: Path, name: str, on_top: bool, is_retried: bool
) -> None:
    """Also with another commit on top, after which a retry said that nothing was changed."""
    meanwhile: Callable[[], object] = (lambda: append(path, 30)) if on_top else lambda: None
    storage: Any = LosesAnswer(LocalStorage(path), now=True, meanwhile=meanwhile)
    if is_retried:
        storage = retried(storage)
    if name == "rewrite" and on_top:  # whose second commit the other one comes before
        with pytest.raises(ConflictError):
            COMMANDS[name].do(storage)
    else:
        COMMANDS[name].do(storage)
    for _ in range(2):
        sound(path)
        assert COMMANDS[name].is_seen(path)
        assert ("e30" in values(path)) == on_top
        clean(path, older_than=0)


@pytest.mark.parametrize("is_retried", [False, True])
@pytest.mark.parametrize("name", LOST)
def test_a_lost_request_that_another_commit_has_overtaken(
    path: Path, name: str, is_retried: bool
) -> None:
    """It can never be done: that is certain, and what it wrote may go."""
    lost = LosesAnswer(LocalStorage(path), now=False, meanwhile=lambda: append(path, 30))
    storage: Any = retried(lost) if is_retried else lost
    with pytest.raises(ConflictError):
        COMMANDS[name].do(storage)
    tables = {file.path for file in read_manifest(LocalStorage(path)).small_files}
    with pytest.raises(ConflictError):
        lost.land()
    sound(path)
    there = {f"index/{each.name}" for each in (path / "index").iterdir()}
    superseded = read_manifest(LocalStorage(path)).superseded
    assert there <= {*tables, *superseded}
    assert {f"edits/{each.name}" for each in (path / "edits").iterdir()} <= tables
    assert has("e30", 30)(path)


@pytest.mark.parametrize("raises", [None, KeyboardInterrupt, OSError])
@pytest.mark.parametrize("name", LOST)
def test_a_request_that_comes_late(
    path: Path, name: str, raises: type[BaseException] | None
) -> None:
    """The writer has given up; what it wrote is there when the manifest names it at last."""
    before = values(path)
    kinds: dict[str, Any] = {} if raises is None else {"raises": raises}
    storage: Any = LosesAnswer(LocalStorage(path), now=False, **kinds)
    with pytest.raises(raises or CommitUnknownError) as found:
        COMMANDS[name].do(storage)
    assert values(path) == before
    assert clean(path, older_than=3600) == []
    sound(path)
    if raises is None:
        assert isinstance(found.value, SeqRecordError)
        assert not isinstance(found.value, ConflictError)
        assert "seqrecord info --json" in found.value.message
    storage.land()
    sound(path)
    assert COMMANDS[name].is_seen(path)
    manifest = read_manifest(LocalStorage(path))
    if raises is None:
        assert manifest.commit in str(found.value)
        assert seqrecord.summarize(path).to_json()["commit"] == manifest.commit
    clean(path, older_than=0)
    sound(path)
    assert COMMANDS[name].is_seen(path)


@pytest.mark.parametrize("name", LOST)
def test_a_late_request_without_conditions(path: Path, name: str) -> None:
    """It overwrites what came in between: so nothing that it names may go."""
    storage: Any = LosesAnswer(
        LocalStorage(path), now=False, meanwhile=lambda: append(path, 30), has_conditions=False
    )
    with pytest.raises(CommitUnknownError):
        COMMANDS[name].do(storage)
    sound(path)
    assert has("e30", 30)(path)
    storage.land()
    sound(path)
    assert COMMANDS[name].is_seen(path)


@pytest.mark.parametrize("name", LOST)
def test_a_refusal_before_anything_was_sent(path: Path, name: str) -> None:
    """It is certain: the error is what it was, and nothing of the commit is left."""
    left = {each for folder in ("index", "edits") for each in (path / folder).iterdir()}
    refused = AccessError("access is refused")
    storage: Any = FaultyStorage(LocalStorage(path), FailAt("put", path=MANIFEST, error=refused))
    with pytest.raises(AccessError):
        COMMANDS[name].do(storage)
    assert {each for folder in ("index", "edits") for each in (path / folder).iterdir()} == left
    sound(path)


def test_a_merge_whose_request_comes_late(
    datasets: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    """Its note stays, and keeps nobody from what the manifest names."""
    _, a, b = datasets
    path = tmp_path / "made"
    storage: Any = LosesAnswer(LocalStorage(path), now=False)
    with pytest.raises(CommitUnknownError):
        merge_datasets([a, b], storage)
    with pytest.raises(NotFoundError):
        seqrecord.open(path)
    storage.land()
    expected = {**values(a), **values(b)}
    for number, mode in ((8, "resume"), (7, "append")):
        sound(path)
        assert expected.items() <= values(path).items()
        append(path, number, mode)
    seqrecord.reindex(path)
    assert values(path).keys() == {*expected, "e7", "e8"}
    clean(path, older_than=0)
    sound(path)
    assert values(path).keys() == {*expected, "e7", "e8"}


@pytest.mark.slow  # a hundred commits
def test_a_base_that_is_older_than_the_ids_kept(path: Path) -> None:
    """After more than a hundred commits nothing tells any more, so nothing is removed."""

    def many() -> None:
        for number in range(102):
            split_dataset(path, {"a": 0.5 if number % 2 else 1.0}, reassign=True)

    storage: Any = LosesAnswer(LocalStorage(path), now=True, meanwhile=many)
    with pytest.raises(CommitUnknownError):
        delete_episodes(storage, "e1")
    sound(path)
    assert "e1" not in values(path)
