"""A cache that another process holds on to, or that cannot be written to, never stops a reader."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

import seqrecord
from seqrecord.storage.cache_folder import CacheFolder
from seqrecord.storage.ranges import ByteRange
from tests.datasets import write_small
from tests.killed_at import signal_at
from tests.numbered import contents
from tests.storage_contract import PATH
from tests.test_cache import CALLS, Cached, entries

# Forking with threads is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

FORK = multiprocessing.get_context("fork")
OTHER = 3_500_000  # a place in `DATA` that nobody has read before


@pytest.fixture
def stop(tmp_path: Path) -> Iterator[Callable[[int], bool]]:
    """Forks a process that uses the cache; whether it was stopped before that call to the disk."""
    stopped = []

    def start(number: int) -> bool:
        cached = Cached(tmp_path)
        pid = os.fork()
        if pid == 0:
            try:
                signal_at(number, signal.SIGSTOP, CALLS)
                cached.check(2_000_000, 2_100_000)
                cached.storage.forget(PATH, [ByteRange(2_000_000, 2_000_010)])
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            stopped.append(pid)
        return os.WIFSTOPPED(status)

    yield start
    for pid in stopped:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_process_that_is_stopped_stops_no_other(
    tmp_path: Path, stop: Callable[[int], bool], caplog: pytest.LogCaptureFixture, thorough: bool
) -> None:
    """Wherever it is: what is held is read at once, what is not is read from the storage."""
    busy = free = 0
    for number in range(0, 100, 1 if thorough else 3):
        cached = Cached(tmp_path, patience=0.05, pause=1000.0)
        cached.check(0, 10_000)
        if not stop(number):
            break
        caplog.clear()
        with caplog.at_level(logging.WARNING, "seqrecord"), ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(cached.check, range(0, 800, 100), [10_000] * 8)) == 0
            cached.check(OTHER, OTHER + 5000)
            added = cached.check(OTHER, OTHER + 5000) == 0
        assert cached.count("failures") == 0
        assert bool(cached.count("busy")) == (not added)
        assert caplog.text.count("is locked by another process") == (not added), "said once"
        busy, free = busy + (not added), free + added
        shutil.rmtree(tmp_path / "cache")
    assert min(busy, free) >= 2


def test_a_cache_that_another_process_has_locked(tmp_path: Path) -> None:
    """What is held is read, damage is dropped; nothing is added, and for a while after."""
    cached = Cached(tmp_path, patience=0.05, pause=0.0)
    resting = Cached(tmp_path, patience=0.05, pause=1000.0)
    cached.check(0, 10_000)
    with CacheFolder(tmp_path / "cache").locked():
        assert cached.check(0, 10_000) == 0
        for count in (1, 2):
            assert cached.check(0, 20_000) == 10_000
            assert cached.count("busy") == count
        for _ in range(2):
            assert resting.check(10_000, 20_000) == 10_000
        _damage(tmp_path)
        for _ in range(2):
            assert cached.check(0, 10_000) == 10_000
        assert cached.count("damaged") == 1
    busy = cached.count("busy")
    assert resting.check(10_000, 20_000) == 10_000
    assert cached.check(0, 20_000) == 20_000
    assert cached.check(0, 20_000) == 0
    assert (cached.count("busy"), resting.count("busy")) == (busy, 1)


def _damage(root: Path) -> None:
    """Of the one entry that there is."""
    (entry,) = entries(root / "cache")
    data = bytearray(entry.read_bytes())
    data[100] ^= 1
    entry.write_bytes(data)


def test_clearing_a_cache_that_is_locked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Cached(tmp_path).check(0, 10_000)
    now = time.monotonic
    with CacheFolder(tmp_path / "cache").locked():
        assert seqrecord.cache_info(tmp_path / "cache").entries == 1, "looking needs no lock"
        monkeypatch.setattr(time, "monotonic", lambda: 100 * now())  # its ten seconds are short
        with pytest.raises(seqrecord.StorageError, match=r"cannot be used.*locked by another"):
            seqrecord.clear_cache(tmp_path / "cache")


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Of a thread that was adding when it was forked."""
    cached = Cached(tmp_path, patience=60.0)
    cached.check(0, 10_000)
    go_on = FORK.Event()
    with CacheFolder(tmp_path / "cache").locked():
        worker = FORK.Process(target=go_on.wait, args=(60,))
        worker.start()
    assert cached.check(10_000, 20_000) == 10_000
    assert cached.check(10_000, 20_000) == 0
    assert cached.count("busy") == 0
    go_on.set()
    worker.join()


# A read-only disk


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes the folder of the cache one on a read-only disk: the rights of root know no such."""
    inside, works = str(tmp_path / "cache"), os.open

    def refuse(path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        if str(path).startswith(inside) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return works(path, flags, mode, **options)

    def begin() -> None:
        for path in [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]:
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
        monkeypatch.setattr(os, "open", refuse)

    return begin


def test_a_cache_on_a_read_only_disk_is_read(
    tmp_path: Path, read_only: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    cached = Cached(tmp_path)
    cached.check(0, 10_000)
    cached.storage.close()
    before = contents(tmp_path / "cache")
    read_only()
    with caplog.at_level(logging.WARNING, "seqrecord"):
        cached = Cached(tmp_path)
        for _ in range(3):
            assert cached.check(0, 10_000) == 0
            assert cached.check(5000, 20_000) == 10_000
        assert seqrecord.cache_info(tmp_path / "cache").entries == 1
    assert cached.count("hits") == 3
    assert cached.count("failures") == cached.count("busy") == 0
    assert not caplog.text
    with pytest.raises(seqrecord.StorageError, match="Read-only"):
        seqrecord.clear_cache(tmp_path / "cache")
    cached.storage.close()
    assert contents(tmp_path / "cache") == before


def test_damage_on_a_read_only_disk_is_not_served(
    tmp_path: Path, read_only: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = Cached(tmp_path)
    cached.check(0, 10_000)
    cached.storage.close()
    _damage(tmp_path)
    read_only()

    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    monkeypatch.setattr(Path, "unlink", unlink)
    cached = Cached(tmp_path, pause=0.0)
    for _ in range(2):
        assert cached.check(0, 10_000) == 10_000
    assert cached.count("damaged") == 1
    cached.storage.close()


def test_an_epoch_is_read_through_a_cache_that_is_held(tmp_path: Path) -> None:
    """Through the public interface: a stopped job does not stop this one."""
    Cached(tmp_path).check(0, 10)
    write_small("memory://held/dataset")
    try:
        cache: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_limit": "16MiB"}
        dataset = seqrecord.open("memory://held/dataset", **cache)
        pipe = seqrecord.SeqRecordPipe(dataset, clip_len=2, features=["pose"])
        with CacheFolder(tmp_path / "cache").locked():
            assert len(list(pipe)) == len(pipe)
        assert pipe.dataset.contents.storage.counters()["cache_busy"] >= 1
    finally:
        fsspec.filesystem("memory").store.clear()
