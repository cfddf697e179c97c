"""After SIGKILL at any moment there is no dataset, the old one or the new one."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import seqrecord
from seqrecord import NotFoundError, SeqRecordWriter, convert
from seqrecord.edit import clean
from seqrecord.errors import DestinationError
from tests.kit.made_source import MadeSource
from tests.kit.processes import killed_at

# Some tests fork a process with threads.
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


@pytest.mark.parametrize("mode", [pytest.param("create", marks=pytest.mark.slow), "append"])
def test_killed_before_every_single_step(tmp_path: Path, mode: Any, thorough: bool) -> None:
    """A forked child is killed before its n-th system call that writes to disk, for every n."""
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
        if number % 2:  # a second kill
            killed_at(number // 2, partial(convert, few, folder, mode="resume", **ALONE))
            assert _fingerprint(folder) in (before, new)
        report = convert(few, folder, mode="resume", **ALONE)
        assert report.manifest.fingerprint == new == _fingerprint(folder)
        clean(folder, older_than=0)
        assert _fingerprint(folder) == new
        assert _leftovers(folder) == []
        number += every
    assert number > 40
