"""SIGKILL at any moment: afterwards there is no dataset, the old one or the new one."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import NotFoundError, SeqRecordWriter, convert
from seqrecord.edit import clean, delete_episodes, merge_datasets, rename_episodes, split_episodes
from seqrecord.errors import DestinationError
from seqrecord.types import Progress
from tests.killed_at import killed_at
from tests.made_source import MadeSource
from tests.test_edits import check, content, write
from tests.test_merge import state

# Forking with threads is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

OLD = MadeSource(MadeSource().lengths[:3])
SETTINGS: dict[str, Any] = {"chunk_frames": 4, "max_file_size": 30_000}

# Forked after the imports for one worker, so that many kills take little time.
_SCRIPT = """
import os, sys
from seqrecord import SeqRecordWriter, convert
from tests.made_source import MadeSource

if __name__ == "__main__":
    for line in sys.stdin:
        folder, mode, workers = line.split()
        pid = os.fork()
        if pid == 0:
            convert(
                MadeSource(delay=0.001), folder, mode=mode, workers=int(workers),
                chunk_frames=4, max_file_size=30_000,
            )
            os._exit(0)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def fingerprints(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Of the old dataset, and of the whole one."""
    folder = tmp_path_factory.mktemp("expected")
    old = convert(OLD, folder / "old", workers=1, **SETTINGS)
    new = convert(MadeSource(), folder / "new", workers=1, **SETTINGS)
    return old.manifest.fingerprint, new.manifest.fingerprint


class Killer:
    """Starts conversions in processes of their own, and kills them."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )

    def run(self, folder: Path, mode: str, workers: int, seconds: float) -> bool:
        """Convert, killed after `seconds`; whether it was done before."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(f"{folder} {mode} {workers}\n")
        self._server.stdin.flush()
        pid = int(self._server.stdout.readline())
        if workers > 1:
            # Spawning takes long; the kill is to hit them at work.
            deadline = time.monotonic() + 60
            with contextlib.suppress(ProcessLookupError):  # it may have nothing to do
                while not list(folder.glob("records/*.partial")):
                    assert time.monotonic() < deadline
                    os.kill(pid, 0)
                    time.sleep(0.002)
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return int(self._server.stdout.readline()) == 0

    def close(self) -> None:
        self._server.communicate(timeout=60)


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    killer = Killer()
    yield killer
    killer.close()


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


def _kill_until_done(
    folder: Path, killer: Killer, fingerprints: tuple[str, str], *, seed: int, workers: int
) -> None:
    rng = random.Random(seed)
    old, new = fingerprints
    mode, before = "create", None
    if seed % 2:
        convert(OLD, folder, workers=1, **SETTINGS)
        mode, before = "append", old
    for _ in range(6):
        done = killer.run(folder, mode, workers, rng.uniform(0, 0.25 if workers == 1 else 0.15))
        now = _fingerprint(folder)
        assert now in (before, new)
        assert now == new or not done
        if done:
            break
        mode = "resume"
    report = convert(MadeSource(), folder, mode="resume", workers=1, **SETTINGS)
    assert report.manifest.fingerprint == new == _fingerprint(folder)
    clean(folder, older_than=0)
    assert _fingerprint(folder) == new
    assert _leftovers(folder) == []


# Of one worker each step is tried below.
MORE = [(1, 101), *((2, seed) for seed in range(1, 20))]


@pytest.mark.parametrize(
    ("workers", "seed"),
    [(1, 0), (2, 0), *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)],
)
def test_killed_again_and_again(
    tmp_path: Path, killer: Killer, fingerprints: tuple[str, str], workers: int, seed: int
) -> None:
    _kill_until_done(tmp_path / "d", killer, fingerprints, seed=seed, workers=workers)


@pytest.mark.parametrize("mode", ["create", "append"])
def test_killed_before_every_single_step(tmp_path: Path, mode: Any, thorough: bool) -> None:
    """A forked child is killed before its n-th system call that changes the disk, for every n."""
    every = 1 if thorough else 11
    few, fewer = MadeSource((9, 1, 3)), MadeSource((9,))
    new = convert(few, tmp_path / "new", workers=1, **SETTINGS).manifest.fingerprint
    old = convert(fewer, tmp_path / "old", workers=1, **SETTINGS).manifest.fingerprint
    number, killed = 0, True
    while killed:
        folder = tmp_path / f"{number}"
        if mode == "append":
            convert(fewer, folder, workers=1, **SETTINGS)

        def write(folder: Path = folder) -> object:
            return convert(few, folder, mode=mode, workers=1, **SETTINGS)

        killed = killed_at(number, write)
        before = old if mode == "append" else None
        now = _fingerprint(folder)
        assert now in (before, new)
        assert killed or now == new
        if now is None:
            with contextlib.suppress(DestinationError):
                SeqRecordWriter(folder).abort()
        report = convert(few, folder, mode="resume", workers=1, **SETTINGS)
        assert report.manifest.fingerprint == new == _fingerprint(folder)
        clean(folder, older_than=0)
        assert _fingerprint(folder) == new
        assert _leftovers(folder) == []
        number += every
    assert number > 40


def test_an_index_that_a_killed_commit_has_left_stays_for_clean(tmp_path: Path) -> None:
    """Nobody else removes it: its manifest may be on its way."""
    convert(OLD, tmp_path, workers=1, **SETTINGS)
    stray = tmp_path / "index" / "0123456789ab-chunks.arrow"
    stray.write_bytes(b"of a commit that never was")
    SeqRecordWriter(tmp_path, mode="append").close()
    assert stray.exists()
    assert clean(tmp_path, older_than=3600) == []
    clean(tmp_path, older_than=0)
    assert not stray.exists()
    assert _leftovers(tmp_path) == []


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
        with seqrecord.open(made) as dataset:
            keys = np.array(list(dataset.episodes.keys()))
            assert set(keys[dataset.find_episodes(None, "val")]) == {"e5", "two"}
        with SeqRecordWriter(made, codecs="raw", mode="resume"):
            pass
        assert content(made) == expected
        clean(made, older_than=0)
        check(made, expected)
        with pytest.raises(DestinationError, match="dataset exists already"):
            merge(made)
        shutil.rmtree(made)
        step += 5 if thorough else 41
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


def test_a_merge_that_is_interrupted_goes_on(sources: tuple[Path, Path], tmp_path: Path) -> None:
    made = tmp_path / "made"

    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge_datasets(sources, made, progress=stop)
    with pytest.raises(KeyboardInterrupt):
        merge_datasets(sources, made, mode="resume", progress=stop)
    assert readable(made) is None
    merge_datasets(sources, made, mode="resume")
    check(made, {**content(sources[0]), **content(sources[1])})
