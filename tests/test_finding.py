"""Finding originals in a tree: a quick look that is bounded, and all of them in order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from seqrecord.errors import SourceError
from seqrecord.sources.common import originals


def is_h5(path: Path) -> bool:
    return path.suffix == ".h5"


def is_sequence(names: set[str]) -> bool:
    return {"times.txt", "images"} <= names


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("run_10.h5", "run_9.h5", "b/run_1.h5", "a/x/run_2.h5", ".hidden.h5", "a/note.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("s/02", "s/10", "s/1", "s/1/images/inner"):
        (tmp_path / name / "images").mkdir(parents=True)
        (tmp_path / name / "times.txt").touch()
    return tmp_path


def test_all_files_in_the_order_of_their_numbers(tree: Path) -> None:
    names = [path.relative_to(tree).as_posix() for path in originals.find_files(tree, is_h5)]
    assert names == ["a/x/run_2.h5", "b/run_1.h5", "run_9.h5", "run_10.h5"]
    assert originals.find_files(tree / "run_9.h5", is_h5) == [tree / "run_9.h5"]
    assert originals.find_files(tree / "a" / "note.txt", is_h5) == []


def test_all_folders_but_those_inside_of_found_ones(tree: Path) -> None:
    names = [
        path.relative_to(tree).as_posix() for path in originals.find_folders(tree, is_sequence)
    ]
    assert names == ["s/1", "s/02", "s/10"]
    assert originals.find_folders(tree / "s" / "02", is_sequence) == [tree / "s" / "02"]


def test_keys(tree: Path) -> None:
    assert originals.key_of(tree / "a" / "x" / "run_2.h5", tree) == "a/x/run_2"
    assert originals.key_of(tree / "run_9.h5", tree / "run_9.h5") == "run_9"
    assert originals.key_of(tree / "v1.5", tree, ending=True) == "v1.5"


def test_natural_order() -> None:
    names = ["a10", "a2", "a02", "a", "b1", "10", "9"]
    assert sorted(names, key=originals.natural_order) == ["9", "10", "a", "a02", "a2", "a10", "b1"]


def test_the_quick_look_finds_what_there_is(tree: Path) -> None:
    assert originals.has_file(tree, is_h5)
    assert originals.has_file(tree / "run_9.h5", is_h5)
    assert not originals.has_file(tree / "s", is_h5)
    assert originals.has_folder(tree, is_sequence)
    assert not originals.has_folder(tree / "a", is_sequence)
    assert not originals.has_folder(tree / "run_9.h5", is_sequence)


def test_the_quick_look_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = 0
    scandir = os.scandir

    class Counted:
        def __init__(self, path: Any) -> None:
            self._inner = scandir(path)

        def __enter__(self) -> Any:
            def count() -> Any:
                nonlocal entries
                for entry in self._inner:
                    entries += 1
                    yield entry

            return count()

        def __exit__(self, *_: object) -> None:
            self._inner.close()

    (tmp_path / "00").mkdir()
    for file in range(1100):
        (tmp_path / "00" / f"{file}.png").touch()
    for number in range(1, 20):
        (tmp_path / f"{number:02d}").symlink_to(tmp_path / "00")
    monkeypatch.setattr(os, "scandir", Counted)
    assert not originals.has_file(tmp_path, is_h5)
    assert 9_000 < entries <= 11_020
    # A tree of many folders is looked at to its depth before it is to its width.
    deep = tmp_path / "deep"
    for number in range(200):
        (deep / f"{number}" / "date" / "episode").mkdir(parents=True)
        (deep / f"{number}" / "date" / "episode" / "trajectory.h5").touch()
    entries = 0
    assert originals.has_file(deep, is_h5)
    assert entries < 210


def test_a_link_that_leads_back_up(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    assert not originals.has_file(tmp_path, is_h5)
    assert not originals.has_folder(tmp_path, is_sequence)
    with pytest.raises(SourceError, match="leads back to a folder above"):
        originals.find_files(tmp_path, is_h5)
    with pytest.raises(SourceError, match="leads back to a folder above"):
        originals.find_folders(tmp_path, is_sequence)
