"""SIGKILL at any moment: afterwards there is no dataset, the old one or the new one."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord import NotFoundError, SeqRecordWriter, convert
from seqrecord.edit import clean, delete_episodes, merge_datasets, rename_episodes, split_episodes
from seqrecord.errors import DestinationError
from tests.killed_at import killed_at
from tests.made_source import MadeSource
from tests.test_edits import check, content, write
from tests.test_merge import split_of, state

# Forking with threads is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

ALONE: dict[str, Any] = {"workers": 1, "chunk_frames": 4, "max_file_size": 30_000}


def _fingerprint(folder: Path) -> str | None:
    try:
        with seqrecord.open(folder) as dataset:
            for episode in dataset.episodes.values():
                for i in range(len(episode)):
                    episode[i]  # every checksum
            return dataset.fingerprint
    except NotFoundError:
        return None


def _leftovers(folder: Path) -> list[str]:
    kept = (".seqrec", ".arrow", "-statistics.json", "-inventory.json", "manifest.json")
    found = (path for path in folder.rglob("*") if path.is_file())
    files = [path.name for path in found if path.parent.name != "manifests"]
    return [name for name in files if name.startswith(".") or not name.endswith(kept)]


@pytest.mark.parametrize("mode", ["create", "append"])
def test_killed_before_every_single_step(tmp_path: Path, mode: Any, thorough: bool) -> None:
    """A forked child is killed before its n-th system call that changes the disk, for every n."""
    every = 1 if thorough else 17
    few, fewer = MadeSource((9, 1, 3)), MadeSource((9,))
    new = convert(few, tmp_path / "new", **ALONE).manifest.fingerprint
    old = convert(fewer, tmp_path / "old", **ALONE).manifest.fingerprint
    number, killed = 0, True
    while killed:
        folder = tmp_path / f"{number}"
        if mode == "append":
            convert(fewer, folder, **ALONE)

        def write(folder: Path = folder) -> object:
            return convert(few, folder, mode=mode, **ALONE)

        killed = killed_at(number, write)
        before = old if mode == "append" else None
        now = _fingerprint(folder)
        assert now in (before, new)
        assert killed or now == new
        if now is None:
            with contextlib.suppress(DestinationError):
                SeqRecordWriter(folder).abort()
        if number % 2:  # and once more
            killed_at(number // 2, partial(convert, few, folder, mode="resume", **ALONE))
            assert _fingerprint(folder) in (before, new)
        report = convert(few, folder, mode="resume", **ALONE)
        assert report.manifest.fingerprint == new == _fingerprint(folder)
        clean(folder, older_than=0)
        assert _fingerprint(folder) == new
        assert _leftovers(folder) == []
        number += every
    assert number > 40


# Merges killed at any step: a resume ends right, sources stay, and nothing half is visible

Content = dict[str, tuple[dict[str, Any], list[float]]]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """Two datasets of one schema."""
    folder = tmp_path_factory.mktemp("sources")
    a, b = (folder / name for name in "ab")
    write(a, range(4))
    write(b, range(4, 7))
    delete_episodes(a, "e1")
    rename_episodes(a, {"e2": "two"})
    split_episodes(a, ["two"], "val")
    split_episodes(b, ["e5"], "val")
    before = [state(path) for path in (a, b)]
    yield a, b
    assert [state(path) for path in (a, b)] == before


def readable(path: Path) -> Content | None:
    try:
        return content(path)
    except NotFoundError:
        return None


@pytest.mark.timeout(600)
def test_killed_at_some_steps(sources: tuple[Path, Path], tmp_path: Path, thorough: bool) -> None:
    expected = {**content(sources[0]), **content(sources[1])}
    merge = partial(merge_datasets, sources, max_file_size=2000)
    made, step, killed = tmp_path / "made", 0, True
    while killed:
        killed = killed_at(step, partial(merge, made))
        found = readable(made)
        assert found in (None, expected)
        assert killed or found == expected
        if found is None:
            if step % 2:
                killed_at(step // 2, partial(merge, made, mode="resume"))  # and once more
            if readable(made) is None:
                merge(made, mode="resume")
        assert content(made) == expected
        assert split_of(made, "val") == {"e5", "two"}
        SeqRecordWriter(made, codecs="raw", mode="resume").close()
        assert content(made) == expected
        clean(made, older_than=0)
        check(made, expected)
        with pytest.raises(DestinationError, match="dataset exists already"):
            merge(made)
        shutil.rmtree(made)
        step += 5 if thorough else 61
    assert step > 40


def test_a_place_with_record_files_is_refused(sources: tuple[Path, Path], tmp_path: Path) -> None:
    made = tmp_path / "made"
    left = made / "records" / f"00000-{'a' * 32}.seqrec.partial"
    for name in (left.name, left.stem):
        left.parent.mkdir(parents=True)
        (left.parent / name).write_bytes(b"of another writer")
        for dry_run in (True, False):
            with pytest.raises(DestinationError, match=r"record files of another writer.*--resume"):
                merge_datasets(sources, made, dry_run=dry_run)
        assert [path.name for path in left.parent.iterdir()] == [name]
        shutil.rmtree(made)
