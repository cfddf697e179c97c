"""Commits whose answer is lost: done at once, later or never, with and without one on top.

What any two commands do in the midst of each other is in `test_simulation.py`.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord.edit import clean, delete_episodes, merge_datasets, split_dataset
from seqrecord.errors import AccessError, CommitUnknownError, ConflictError, NotFoundError
from seqrecord.format.manifest import MANIFEST, read_manifest
from seqrecord.storage import LocalStorage
from seqrecord.storage.retrying import Retrier, RetryingStorage
from tests.abandoned import abandon, abandonable
from tests.storage_doubles import FailAt, FaultyStorage, LosesAnswer
from tests.test_edits import content, write


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """One with something to rewrite and to resume; and two to merge."""
    folder = tmp_path_factory.mktemp("interleaved")
    base = write(folder / "base", range(5))
    delete_episodes(base, ["e0", "e3"])
    killed = abandonable(base, codecs="raw", max_file_size=1, mode="append")
    with killed.episode("e6") as episode:
        for value in (60, 61, 62):
            episode.append({"x": np.full(1000, value, np.float32)})
    abandon(killed)
    a, b = write(folder / "a", range(10, 12)), write(folder / "b", range(12, 14))
    delete_episodes(b, "e12")
    return base, a, b


def sound(path: Path) -> None:
    """Every file that the manifest names is there, and is what it says."""
    assert not seqrecord.verify(path).problems


COMMANDS: dict[str, Callable[[Any], object]] = {
    "append": lambda where: write(where, range(7, 8), mode="append"),
    "delete": lambda where: delete_episodes(where, "e1"),
}


def is_seen(path: Path, name: str) -> bool:
    """Whether the command was done."""
    return "e7" in content(path) if name == "append" else "e1" not in content(path)


@pytest.fixture
def path(datasets: tuple[Path, Path, Path], tmp_path: Path) -> Path:
    return shutil.copytree(datasets[0], tmp_path / "set")


def overtaken(path: Path, now: bool, is_retried: bool = False, **options: Any) -> tuple[Any, Any]:
    """Loses the answer to a commit, while another writer commits; and around it, what retries."""
    other = partial(write, path, range(30, 31), mode="append")
    lost = LosesAnswer(LocalStorage(path), now=now, meanwhile=other, **options)
    quick = Retrier(sleep=lambda _: None)
    return lost, (RetryingStorage(lost, retrier=quick) if is_retried else lost)


@pytest.mark.parametrize("is_retried", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_answer_that_is_lost_after_another_commit_on_top(
    path: Path, name: str, is_retried: bool
) -> None:
    """A retry said that nothing was changed."""
    COMMANDS[name](overtaken(path, True, is_retried)[1])
    sound(path)
    assert is_seen(path, name)
    assert "e30" in content(path)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_late_request_without_conditions(path: Path, name: str) -> None:
    """It overwrites what came in between: so nothing that it names may go."""
    lost, storage = overtaken(path, False, has_conditions=False)
    with pytest.raises(CommitUnknownError):
        COMMANDS[name](storage)
    lost.land()
    sound(path)
    assert is_seen(path, name)


@pytest.mark.parametrize("is_retried", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_lost_request_that_another_commit_has_overtaken(
    path: Path, name: str, is_retried: bool
) -> None:
    """It can never be done: that is certain, and what it wrote may go."""
    lost, storage = overtaken(path, False, is_retried)
    with pytest.raises(ConflictError):
        COMMANDS[name](storage)
    manifest = read_manifest(LocalStorage(path))
    with pytest.raises(ConflictError):
        lost.land()
    sound(path)
    tables = {file.path for file in manifest.small_files}
    there = {f"index/{each.name}" for each in (path / "index").iterdir()}
    assert there <= {*tables, *read_manifest(LocalStorage(path)).superseded}
    assert {f"edits/{each.name}" for each in (path / "edits").iterdir()} <= tables
    assert content(path)["e30"][1] == [300, 301, 302]


@pytest.mark.parametrize(
    "raises", [None, KeyboardInterrupt, pytest.param(OSError, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_request_that_comes_late(
    path: Path, name: str, raises: type[BaseException] | None
) -> None:
    """The writer has given up; what it wrote is there when the manifest names it at last."""
    before = content(path)
    kinds: dict[str, Any] = {} if raises is None else {"raises": raises}
    storage: Any = LosesAnswer(LocalStorage(path), now=False, **kinds)
    with pytest.raises(raises or CommitUnknownError) as found:
        COMMANDS[name](storage)
    assert content(path) == before
    assert clean(path, older_than=3600) == []
    sound(path)
    if raises is None:
        assert isinstance(found.value, CommitUnknownError)
        assert not isinstance(found.value, ConflictError)
        assert "seqrecord info --json" in found.value.message
    storage.land()
    sound(path)
    assert is_seen(path, name)
    manifest = read_manifest(LocalStorage(path))
    if raises is None:
        assert manifest.commit in str(found.value)
        assert seqrecord.summarize(path).to_json()["commit"] == manifest.commit
    clean(path, older_than=0)
    sound(path)
    assert is_seen(path, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_refusal_before_anything_was_sent(path: Path, name: str) -> None:
    """It is certain: the error is what it was, and nothing of the commit is left."""

    def there() -> set[Path]:
        return {each for folder in ("index", "edits") for each in (path / folder).iterdir()}

    left = there()
    refused = FailAt("put", path=MANIFEST, error=AccessError("access is refused"))
    with pytest.raises(AccessError):
        COMMANDS[name](FaultyStorage(LocalStorage(path), refused))
    assert there() == left
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
    expected = {**content(a), **content(b)}
    for number, mode in ((8, "resume"), (7, "append")):
        sound(path)
        assert expected.items() <= content(path).items()
        write(path, range(number, number + 1), mode=mode)
    seqrecord.reindex(path)
    assert content(path).keys() == {*expected, "e7", "e8"}
    clean(path, older_than=0)
    sound(path)
    assert content(path).keys() == {*expected, "e7", "e8"}


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
    assert "e1" not in content(path)
