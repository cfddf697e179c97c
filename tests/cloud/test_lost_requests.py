"""Commits with a lost response: applied at once, late or never, with or without another commit.

`test_simulation.py` tests all pairs of concurrent commands.
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
from seqrecord.cloud.retrying import Retrier, RetryingStorage
from seqrecord.edit import clean, delete_episodes, merge_datasets, split_episodes
from seqrecord.errors import AccessError, CommitUnknownError, ConflictError, NotFoundError
from seqrecord.store.storage.local import LocalStorage
from tests.kit.datasets import append
from tests.kit.faults import FailAt, FaultyStorage, LosesResponse, abandon, abandonable
from tests.kit.tiny import loaded
from tests.tools.test_edits import content, write


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A dataset with files to rewrite and a run to resume, and two datasets to merge."""
    folder = tmp_path_factory.mktemp("interleaved")
    base = write(folder / "base", range(5))
    delete_episodes(base, ["e0", "e3"])
    killed = abandonable(base, codecs="raw", max_file_size=1, mode="append")
    with killed.episode("e6") as episode:
        append(episode, [{"x": np.full(1000, value, np.float32)} for value in (60, 61, 62)])
    abandon(killed)
    a, b = write(folder / "a", range(10, 12)), write(folder / "b", range(12, 14))
    delete_episodes(b, "e12")
    return base, a, b


def check_valid(path: Path) -> None:
    """Every file named by the manifest exists and has the named content."""
    assert not seqrecord.verify(path).problems


COMMANDS: dict[str, Callable[[Any], object]] = {
    "append": lambda where: write(where, range(7, 8), mode="append"),
    "delete": lambda where: delete_episodes(where, "e1"),
}


def is_applied(path: Path, name: str) -> bool:
    """Whether the command's change is in the dataset."""
    return "e7" in content(path) if name == "append" else "e1" not in content(path)


@pytest.fixture
def path(datasets: tuple[Path, Path, Path], tmp_path: Path) -> Path:
    return shutil.copytree(datasets[0], tmp_path / "set")


def lossy(path: Path, now: bool, is_retried: bool = False, **options: Any) -> tuple[Any, Any]:
    """A storage that loses a commit's response during another commit, and one that retries it."""
    other = partial(write, path, range(30, 31), mode="append")
    lost = LosesResponse(LocalStorage(path), now=now, meanwhile=other, **options)
    quick = Retrier(sleep=lambda _: None)
    return lost, (RetryingStorage(lost, retrier=quick) if is_retried else lost)


@pytest.mark.parametrize("is_retried", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_lost_response_with_another_commit_on_top(
    path: Path, name: str, is_retried: bool
) -> None:
    """Regression: a retry reported that nothing was changed."""
    COMMANDS[name](lossy(path, True, is_retried)[1])
    check_valid(path)
    assert is_applied(path, name)
    assert "e30" in content(path)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_late_unconditional_request_overwrites_another_commit(path: Path, name: str) -> None:
    """Its files must not be deleted, since it may overwrite the other commit."""
    lost, storage = lossy(path, False, has_conditions=False)
    with pytest.raises(CommitUnknownError):
        COMMANDS[name](storage)
    lost.land()
    check_valid(path)
    assert is_applied(path, name)


@pytest.mark.parametrize("is_retried", [False, True])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_lost_request_superseded_by_another_commit(
    path: Path, name: str, is_retried: bool
) -> None:
    """It can never be applied, so its files may be deleted."""
    lost, storage = lossy(path, False, is_retried)
    with pytest.raises(ConflictError):
        COMMANDS[name](storage)
    manifest, _ = loaded(path)
    with pytest.raises(ConflictError):
        lost.land()
    check_valid(path)
    stored = {file.stem for file in (path / "manifests").iterdir()}
    kept = [name for name in manifest.earlier_commits if name in stored]
    versions = [manifest, *(loaded(path, version=name)[0] for name in kept)]
    files = {file.path for version in versions for file in version.small_files}
    files_on_disk = {f"index/{each.name}" for each in (path / "index").iterdir()}
    assert files_on_disk <= files
    tables = {*manifest.superseded, *(file.path for file in manifest.small_files)}
    assert {file for file in files_on_disk if file.endswith(".arrow")} <= tables
    assert {f"edits/{each.name}" for each in (path / "edits").iterdir()} <= tables
    assert content(path)["e30"][1] == [300, 301, 302]


@pytest.mark.parametrize(
    "raises", [None, KeyboardInterrupt, pytest.param(OSError, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_late_request_is_applied(
    path: Path, name: str, raises: type[BaseException] | None
) -> None:
    """The writer has failed; its files still exist when the late request is applied."""
    before = content(path)
    kinds: dict[str, Any] = {} if raises is None else {"raises": raises}
    storage: Any = LosesResponse(LocalStorage(path), now=False, **kinds)
    with pytest.raises(raises or CommitUnknownError) as found:
        COMMANDS[name](storage)
    assert content(path) == before
    assert clean(path, older_than=3600) == []
    check_valid(path)
    if raises is None:
        assert isinstance(found.value, CommitUnknownError)
        assert not isinstance(found.value, ConflictError)
        assert "seqrecord info --versions" in found.value.message
        assert "--if-version" in found.value.message
    storage.land()
    check_valid(path)
    assert is_applied(path, name)
    manifest, _ = loaded(path)
    if raises is None:
        assert manifest.commit in str(found.value)
        assert seqrecord.summarize(path).to_json()["commit"] == manifest.commit
    clean(path, older_than=0)
    check_valid(path)
    assert is_applied(path, name)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_request_refused_before_it_was_sent(path: Path, name: str) -> None:
    """The error is not changed, and the commit leaves no file."""

    def files() -> set[Path]:
        return {each for folder in ("index", "edits") for each in (path / folder).iterdir()}

    before = files()
    refused = FailAt("put", path="manifest.json", error=AccessError("access is refused"))
    with pytest.raises(AccessError):
        COMMANDS[name](FaultyStorage(LocalStorage(path), refused))
    assert files() == before
    check_valid(path)


def test_a_merge_with_a_late_request(datasets: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Its note stays, and later commands accept the merged files."""
    _, a, b = datasets
    path = tmp_path / "made"
    storage: Any = LosesResponse(LocalStorage(path), now=False)
    with pytest.raises(CommitUnknownError):
        merge_datasets([a, b], storage)
    with pytest.raises(NotFoundError):
        seqrecord.open(path)
    storage.land()
    expected = {**content(a), **content(b)}
    for number, mode in ((8, "resume"), (7, "append")):
        check_valid(path)
        assert expected.items() <= content(path).items()
        write(path, range(number, number + 1), mode=mode)
    seqrecord.reindex(path)
    assert content(path).keys() == {*expected, "e7", "e8"}
    clean(path, older_than=0)
    check_valid(path)
    assert content(path).keys() == {*expected, "e7", "e8"}


@pytest.mark.slow  # a hundred commits
def test_a_base_older_than_the_recorded_commit_ids(path: Path) -> None:
    """After a hundred further commits the outcome is unknown, so no file is removed."""

    def many() -> None:
        for number in range(102):
            split_episodes(path, None, "a" if number % 2 else "b")

    storage: Any = LosesResponse(LocalStorage(path), now=True, meanwhile=many)
    with pytest.raises(CommitUnknownError):
        delete_episodes(storage, "e1")
    check_valid(path)
    assert "e1" not in content(path)
