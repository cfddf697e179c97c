"""A cache that another process holds on to, or that cannot be written to, never stops a reader."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

import seqrecord
from seqrecord.storage.cache import folder as folder_module
from seqrecord.storage.cache import forks
from seqrecord.storage.cache.folder import CacheFolder
from tests.datasets import write_small
from tests.test_cache import Cached

# Forking with threads is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

FORK = multiprocessing.get_context("fork")
OTHER = 1_000_000  # a place in `DATA` that no test has read before

# Reads through a cache, and stops in the place that it is told.
_STOPS = """
import os, signal, sys
from pathlib import Path
import seqrecord.storage.cache.folder as folder
import seqrecord.storage.cache.store as store
from seqrecord.storage.cache.folder import CacheFolder
from seqrecord.storage.cache.index import CacheIndex
from seqrecord.ranges import ByteRange
from tests.storage_contract import PATH
from tests.test_cache import Cached

root, place = Path(sys.argv[1]), sys.argv[2]

def stops(*_, **__):
    os.kill(os.getpid(), signal.SIGSTOP)

owner, name = {
    "opening": (CacheFolder, "_open_index"),
    "cleaning": (CacheFolder, "_clean"),
    "finding": (CacheIndex, "overlapping"),
    "making room": (store.CacheStore, "_make_room"),
    "changing": (CacheIndex, "add"),
    "removing": (CacheIndex, "remove"),
    "writing": (store, "write_entry"),
    "finishing": (CacheIndex, "finish"),
    "clearing": (CacheFolder, "_delete_all"),
}[place]
cached = Cached(root)
if place not in ("opening", "cleaning"):
    cached.check(0, 10)
setattr(owner, name, stops)
if place == "removing":
    cached.storage.forget(PATH, [ByteRange(0, 10)])
if place == "clearing":
    cached.storage._store.clear()
cached.check(2_000_000, 2_100_000)
"""


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "_PATIENCE_SECONDS", 0.2)


@pytest.fixture
def stop(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Starts a process that uses the cache, and returns when it has been stopped in that place."""
    children = []

    def start(place: str) -> None:
        child = subprocess.Popen([sys.executable, "-c", _STOPS, str(tmp_path), place])
        children.append(child)
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"it has not come to {place}: status {status}"

    yield start
    for child in children:
        child.kill()
        child.wait()


_HELD_SHARED = {"finding"}
_FREE = {"writing"}


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize(
    ("place", "is_open"),
    [
        *(("opening", True), ("cleaning", True), ("finding", True), ("making room", True)),
        *(("changing", True), ("removing", True), ("writing", True), ("finishing", True)),
        *(("clearing", True), ("opening", False), ("finding", False), ("finishing", False)),
    ],
)
def test_a_process_that_is_stopped_stops_no_other(
    place: str,
    is_open: bool,
    tmp_path: Path,
    stop: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cached = Cached(tmp_path)
    cached.check(0, 10_000)
    if not is_open:
        cached.storage.close()
        cached = Cached(tmp_path)
    stop(place)
    folder = cached.storage._store._folder
    if place in _HELD_SHARED | _FREE:  # what can be read is, however long a thread gets no core
        folder._patience = 30.0 if is_open or place in _FREE else 2.0
    with caplog.at_level(logging.WARNING, "seqrecord"), ThreadPoolExecutor(8) as pool:
        reads = list(pool.map(lambda i: cached.check(100 * i, 10_000), range(8)))
        if place not in _FREE:
            folder._patience = 0.2
        cached.check(OTHER, OTHER + 5000)
        cached.end_pauses()
        again = cached.check(OTHER, OTHER + 5000)
        cached.end_pauses()
    if place in _HELD_SHARED | _FREE:
        assert sum(reads) == 0, "what is held is read"
    assert again == (0 if place in _FREE else 5000)
    assert cached.count("failures") == 0
    assert bool(cached.count("busy")) == (place not in _FREE)
    assert caplog.text.count("is not free and is passed by") == (place not in _FREE), "said once"
    cached.storage.close()


@pytest.mark.usefixtures("patience")
def test_the_cache_is_used_again_when_the_other_goes_on(
    tmp_path: Path, stop: Callable[[str], None]
) -> None:
    cached = Cached(tmp_path)
    cached.check(0, 10_000)
    holder = CacheFolder(tmp_path / "cache")
    with holder.session(exclusive=True):
        assert cached.check(0, 10_000) == 10_000
        assert cached.count("busy") == 1
    assert cached.check(0, 10_000) == 10_000, "it rests a while"
    cached.end_pauses()
    assert cached.check(0, 10_000) == 0
    cached.storage.close()
    holder.close()


@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("exclusive", [True, False])
def test_damage_that_cannot_be_dropped_is_not_served(tmp_path: Path, exclusive: bool) -> None:
    cached = Cached(tmp_path)
    cached.check(0, 10_000)
    (entry,) = (tmp_path / "cache" / "entries").iterdir()
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    holder = CacheFolder(tmp_path / "cache")
    with holder.session(exclusive=exclusive):
        for _ in range(2):
            assert cached.check(0, 10_000) == 10_000
            cached.end_pauses()
    holder.close()
    assert cached.count("damaged") == (0 if exclusive else 1)
    cached.storage.close()


def test_the_command_line_says_that_a_cache_is_not_free(
    tmp_path: Path, stop: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    Cached(tmp_path).check(0, 10_000)
    monkeypatch.setattr("seqrecord.storage.cache.report._PATIENCE_SECONDS", 0.2)
    stop("changing")
    for function in (seqrecord.cache_info, seqrecord.clear_cache):
        with pytest.raises(seqrecord.StorageError, match=r"cannot be used.*holds its lock"):
            function(tmp_path / "cache")


# Forks


def test_a_fork_waits_until_no_thread_is_inside(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "cache")
    inside, go_on = threading.Event(), threading.Event()

    def use() -> None:
        with folder.session(exclusive=True) as index:
            inside.set()
            assert go_on.wait(60)
            assert index.held_bytes(ready=True) == 0

    thread = threading.Thread(target=use)
    thread.start()
    assert inside.wait(60)
    timer = threading.Timer(0.2, go_on.set)
    timer.start()
    worker = FORK.Process(target=_use, args=(folder,))
    worker.start()  # not before `go_on`
    assert go_on.is_set()
    for each in (thread, timer, worker):
        each.join()
    assert worker.exitcode == 0
    folder.close()


def test_a_fork_does_not_wait_for_a_thread_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_PATIENCE_SECONDS", 0.1)
    folder = CacheFolder(tmp_path / "cache", patience=0.2)
    inside, go_on = threading.Event(), threading.Event()

    def use() -> None:
        with folder.session(exclusive=True) as index, index.transaction():
            inside.set()
            assert go_on.wait(60)

    thread = threading.Thread(target=use)
    thread.start()
    assert inside.wait(60)
    worker = FORK.Process(target=_find_busy, args=(folder,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    go_on.set()
    thread.join()
    with folder.session(exclusive=True):
        pass
    folder.close()


def _use(folder: CacheFolder) -> None:
    with folder.session(exclusive=True) as index:
        assert index.held_bytes(ready=True) == 0


def _find_busy(folder: CacheFolder) -> None:
    with pytest.raises(folder_module.CacheBusyError), folder.session(exclusive=False):
        pass


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


def _bytes_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_cache_on_a_read_only_disk_is_read(
    tmp_path: Path, read_only: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    cached = Cached(tmp_path)
    cached.check(0, 10_000)
    cached.storage.close()
    before = _bytes_of(tmp_path / "cache")
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
    assert _bytes_of(tmp_path / "cache") == before


def test_damage_on_a_read_only_disk_is_not_served(
    tmp_path: Path, read_only: Callable[[], None]
) -> None:
    cached = Cached(tmp_path)
    cached.check(0, 10_000)
    cached.storage.close()
    (entry,) = (tmp_path / "cache" / "entries").iterdir()
    data = bytearray(entry.read_bytes())
    data[-1] ^= 1
    entry.write_bytes(data)
    read_only()
    cached = Cached(tmp_path)
    for _ in range(2):
        assert cached.check(0, 10_000) == 10_000
        cached.end_pauses()
    assert cached.count("damaged") == 1
    cached.storage.close()


_READS = """
import json, os, sys
from pathlib import Path
from tests.test_cache import Cached
cached = Cached(Path(sys.argv[1]))
print(json.dumps([cached.check(0, 10_000), cached.check(5000, 20_000), cached.count("failures")]))
cached.storage.close()
"""


def test_a_cache_on_a_real_read_only_mount_is_read(tmp_path: Path) -> None:
    Cached(tmp_path).check(0, 10_000)
    unshare = shutil.which("unshare")
    remount = 'mount --bind "$1/cache" "$1/cache" && mount -o remount,ro,bind "$1/cache"'
    command = f'{remount} || exit 77; exec "$0" -c "$2" "$1"'
    ran = (
        subprocess.run(
            [
                unshare or "unshare",
                "-m",
                "sh",
                "-c",
                command,
                sys.executable,
                str(tmp_path),
                _READS,
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if unshare
        else None
    )
    if ran is None or ran.returncode in (1, 77):
        pytest.skip("no mounts can be made here: run as root, with unshare of util-linux")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [0, 10_000, 0]


def test_an_epoch_is_read_through_a_cache_that_is_held(
    tmp_path: Path, stop: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the public interface: a stopped job does not stop this one."""
    monkeypatch.setattr(folder_module, "_PATIENCE_SECONDS", 0.2)
    Cached(tmp_path).check(0, 10)
    stop("making room")
    write_small("memory://held/dataset")
    try:
        pipe = seqrecord.SeqRecordPipe(
            "memory://held/dataset",
            clip_len=2,
            features=["pose"],
            cache_dir=tmp_path / "cache",
            cache_limit="16MiB",
        )
        assert len(list(pipe)) == len(pipe)
        assert pipe.dataset.storage.counters()["cache_busy"] >= 1
    finally:
        fsspec.filesystem("memory").store.clear()
