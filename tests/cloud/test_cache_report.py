"""Shared, locked, read-only and removed caches; arguments; names of places."""

from __future__ import annotations

import errno
import fcntl
import logging
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
from seqrecord.cloud.cache import CachedStorage
from seqrecord.errors import LocationError
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.ranges import ByteRange
from tests.cloud.test_cache import CALLS, Cached, entries, locked
from tests.kit.clip_data import digests
from tests.kit.command_line import run
from tests.kit.datasets import contents, flip, write_small
from tests.kit.faults import CountingStorage, fail_calls
from tests.kit.processes import Fork
from tests.kit.services import Moto
from tests.kit.services.places import CLOUDS, Place
from tests.store.storage_contract import PATH, get, put

# Some tests fork a process with threads on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

OTHER = 3_500_000  # an offset in `DATA` not read before


def test_a_stopped_process_does_not_block_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, thorough: bool
) -> None:
    """Stopped at any disk call: cached data is read at once, the rest from the storage."""

    def use() -> None:
        other = Cached(tmp_path)
        other.check(2_000_000, 2_100_000)
        other.storage.forget(PATH, [ByteRange(2_000_000, 2_000_010)])

    busy = free = 0
    for number in range(0, 100, 1 if thorough else 3):
        cached = Cached(tmp_path, patience=0.05, pause=1000.0)
        cached.check(0, 10_000)
        caplog.clear()
        with Fork(use, sign=signal.SIGSTOP, at=number, calls=CALLS) as stopped:
            if not stopped.is_stopped():
                break
            with caplog.at_level(logging.WARNING, "seqrecord"), ThreadPoolExecutor(8) as pool:
                assert sum(pool.map(cached.check, range(0, 800, 100), [10_000] * 8)) == 0
                cached.check(OTHER, OTHER + 5000)
                added = cached.check(OTHER, OTHER + 5000) == 0
        assert cached.count("failures") == 0
        assert bool(cached.count("busy")) == (not added)
        assert caplog.text.count("is locked by another process") == (not added), "logged once"
        busy, free = busy + (not added), free + added
        shutil.rmtree(tmp_path / "cache")
    assert min(busy, free) >= 2


def test_a_cache_locked_by_another_process(tmp_path: Path) -> None:
    """Cached data is read, and damage replaced. No entry is added, even in the pause afterwards."""
    cached = Cached(tmp_path, patience=0.05, pause=0.0)
    resting = Cached(tmp_path, patience=0.05, pause=1000.0)
    cached.check(0, 10_000)
    with locked(tmp_path / "cache"):
        assert cached.check(0, 10_000) == 0
        for count in (1, 2):
            assert cached.check(95_000, 110_000) == (15_000 if count == 1 else 10_000)
            assert cached.count("busy") == count
        for _ in range(2):
            assert resting.check(100_000, 110_000) == 10_000
        [entry] = entries(tmp_path / "cache")
        flip(entry, 100)
        assert cached.check(0, 10_000) == 5000
        assert cached.check(0, 10_000) == 0, "written again, without the lock"
        assert cached.count("damaged") == 1
    busy = cached.count("busy")
    assert resting.check(100_000, 110_000) == 10_000
    assert cached.check(100_000, 120_000) == 20_000
    assert cached.check(100_000, 120_000) == 0
    assert (cached.count("busy"), resting.count("busy")) == (busy, 1)


def test_a_forked_child_does_not_keep_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork is made while an entry is added."""
    cached = Cached(tmp_path, patience=0.5)
    children, truncate = [], os.ftruncate

    def fork(fd: int, size: int) -> None:
        children.append(Fork(lambda: time.sleep(60)))
        truncate(fd, size)

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fork)
        cached.check(0, 10_000)
    with children.pop() as child:
        assert cached.check(100_000, 110_000) == 10_000, "another entry"
        assert cached.check(100_000, 110_000) == 0
        assert cached.count("busy") == 0
        assert child.is_running()


def test_a_file_system_without_locks_is_bypassed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as Lustre: this is counted and logged once, and no file stays open."""
    cached, open_files = Cached(tmp_path, pause=0.0), set()
    fail_calls(monkeypatch, fcntl, "flock", errno.ENOSYS, below=tmp_path / "cache")
    with caplog.at_level(logging.WARNING, "seqrecord"):
        for start in range(0, 1_000_000, 200_000):
            assert cached.check(start, start + 1000) == 5000
            open_files.add(len(list(Path("/proc/self/fd").iterdir())))
    assert len(open_files) == 1
    assert cached.count("failures") >= 5
    assert caplog.text.count("cannot be locked: Function not implemented") == 1


def test_a_cache_that_this_user_cannot_read_is_bypassed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the owner can read the folder. For others, this is counted and logged once."""
    Cached(tmp_path).check(0, 1000)
    for owner, name in ((os, "open"), (os, "lstat"), (Path, "stat"), (Path, "iterdir")):
        fail_calls(monkeypatch, owner, name, errno.EACCES, below=tmp_path / "cache")
    cached = Cached(tmp_path, pause=1000.0)
    with caplog.at_level(logging.WARNING, "seqrecord"):
        assert [cached.check(0, 1000) for _ in "ab"] == [5000] * 2
    assert 1 <= cached.count("failures") <= 2
    assert caplog.text.count("Permission denied") == 1


# A read-only disk


@pytest.fixture
def read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Simulates a read-only disk: root may write whatever the permissions of the cache folder."""
    cache, writing = tmp_path / "cache", os.O_WRONLY | os.O_RDWR | os.O_CREAT

    def begin() -> None:
        for path in [cache, *cache.rglob("*")]:
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
        fail_calls(monkeypatch, os, "open", errno.EROFS, below=cache, flags=writing)

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
    assert cached.count("hits") == 3
    assert cached.count("failures") == cached.count("busy") == 0
    assert not caplog.text
    cached.storage.close()
    assert contents(tmp_path / "cache") == before


def test_damage_on_a_read_only_disk_is_not_served(
    tmp_path: Path, read_only: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = Cached(tmp_path)
    cached.check(0, 10_000)
    cached.storage.close()
    [entry] = entries(tmp_path / "cache")
    flip(entry, 100)
    read_only()
    fail_calls(monkeypatch, Path, "unlink", errno.EROFS)
    cached = Cached(tmp_path, pause=0.0)
    for _ in range(2):
        assert cached.check(0, 10_000) == 5000
    assert cached.count("damaged") == 2
    assert cached.storage.forget(PATH, [ByteRange(5000, 5001)])
    assert not cached.storage.forget(PATH, [ByteRange(5000, 5001)])
    assert cached.check(0, 10_000) == 10_000, "ignored from now on"
    cached.storage.close()


def test_an_epoch_is_read_through_a_locked_cache(tmp_path: Path) -> None:
    """Through the public interface: a stopped job does not block this one."""
    Cached(tmp_path).check(0, 10)
    write_small("memory://locked/dataset")
    try:
        cache: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_limit": "16MiB"}
        dataset = seqrecord.open("memory://locked/dataset", **cache)
        pipe = seqrecord.SeqRecordPipe(dataset, clip_len=2, features=["pose"])
        with locked(tmp_path / "cache"):
            assert len(list(pipe)) == len(pipe)
        assert pipe.dataset.contents.storage.counters()["cache_busy"] >= 1
    finally:
        fsspec.filesystem("memory").store.clear()


URL = "memory://bucket/dataset"


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    write_small(tmp_path / "dataset")
    write_small(URL)
    fs = fsspec.filesystem("memory")
    yield URL
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]


def fill(location: Any, cache: Path) -> None:
    with seqrecord.open(location, cache_dir=cache, cache_limit="16MiB") as dataset:
        for episode in dataset.select(["pose"]).episodes.values():
            episode[:]


# Opening with a cache


def inner_storage(loader: Any) -> Storage:
    """The storage below the loader's chunks in memory."""
    store = loader.dataset.contents.storage
    assert isinstance(store, StorageWrapper)
    return store.inner


def test_a_dataset_keeps_its_cache_in_every_loader(remote: str, tmp_path: Path) -> None:
    cache: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_limit": 1 << 24}
    dataset = seqrecord.open(remote, **cache)
    makers: list[Callable[..., Any]] = [
        seqrecord.SeqRecordPipe,
        seqrecord.SeqRecordIterableDataset,
        seqrecord.SeqRecordNode,
        seqrecord.SeqRecordMapDataset,
    ]
    settings: dict[str, Any] = {"clip_len": 2, "features": ["pose"]}
    for make in makers:
        loader = make(dataset, **settings)
        assert isinstance(inner_storage(loader), CachedStorage), make
    cached, plain = (seqrecord.SeqRecordPipe(each, **settings) for each in (dataset, remote))
    assert not isinstance(inner_storage(plain), CachedStorage)
    clips = iter(cached)
    for _ in range(3):
        next(clips)
    plain.load_state_dict(cached.state_dict())  # which does not depend on the cache
    rest = [(clip["episode"], clip["start"]) for clip in clips]
    assert [(clip["episode"], clip["start"]) for clip in plain] == rest


def test_a_local_path_needs_none(tmp_path: Path) -> None:
    with pytest.raises(LocationError, match="needs no cache"):
        open_storage(tmp_path, cache_dir=tmp_path / "cache", cache_limit="1GiB")
    assert not (tmp_path / "cache").exists()
    counted = open_storage(
        CountingStorage(LocalStorage(tmp_path)), cache_dir=tmp_path / "cache", cache_limit="1GiB"
    )
    assert isinstance(counted, CachedStorage)
    halves: list[dict[str, Any]] = [{"cache_dir": "cache"}, {"cache_limit": "1GiB"}]
    for half in halves:
        with pytest.raises(LocationError, match="cache_dir and cache_limit"):
            open_storage(URL, **half)


_ONE = "https://one.blob.core.windows.net"
_KEY = {"account_key": "a2V5"}
_LOCAL = "http://127.0.0.1:9/one"


@pytest.mark.parametrize(
    ("url", "options", "place"),
    [
        ("az://data/set", {"account_name": "one", **_KEY}, f"{_ONE}/data/set"),
        ("abfs://data@one.dfs.core.windows.net/set", _KEY, f"{_ONE}/data/set"),
        (f"{_ONE}/data/set?sv=1&sig=S3CRET", {}, f"{_ONE}/data/set"),
        (
            "az://data/set",
            {"account_name": "one", "endpoint": _LOCAL, **_KEY},
            f"az://data/set?account_name=one&endpoint={_LOCAL}",
        ),
        ("s3a://data//set/", {}, "s3://data/set"),
        (
            "s3://data/set",
            {"endpoint": "https://u:S3CRET@a.org/?t=S3CRET"},
            "s3://data/set?endpoint=https://a.org",
        ),
        (
            "gcs://data/set",
            {"anon": True, "base_url": "http://h:1"},
            "gs://data/set?endpoint=http://h:1",
        ),
        ("https://u:S3CRET@web.org/set", {}, "https://web.org/set"),
        ("memory://data/set", {"host": "u:S3CRET@a"}, "memory://data/set?host=a"),
    ],
)
def test_the_cache_identifies_files_by_account_and_endpoint(
    url: str, options: dict[str, Any], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    storage = open_storage(url, options, cache_dir=tmp_path / "cache", cache_limit="1GiB")
    assert storage.place == place


class _At(StorageWrapper):
    """A storage with another place."""

    def __init__(self, inner: Storage, place: str) -> None:
        super().__init__(inner)
        self.at = place

    @property
    def place(self) -> str:
        return self.at


def test_places_with_the_same_url_do_not_mix(tmp_path: Path) -> None:
    places = [f"https://{account}.blob.core.windows.net/data/set" for account in ("one", "two")]
    storages = []
    for number, place in enumerate(places):
        local = LocalStorage(tmp_path / str(number))
        put(local, PATH, b"%d" % number * 100)
        storages.append(CachedStorage(_At(local, place), tmp_path / "cache", "2MiB"))
    for _ in range(2):
        for number, storage in enumerate(storages):
            assert get(storage, PATH) == b"%d" % number * 100
    assert {where.read_text() for where in (tmp_path / "cache").glob("*/where")} == {*places}


def test_a_mount_at_a_path_that_is_not_utf_8(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/set\xff"))
    folder.mkdir()
    (folder / "a.seqrec").write_bytes(b"x" * 100)
    storage = open_storage(folder, {"mount": True}, cache_dir=tmp_path / "c", cache_limit="2MiB")
    for _ in range(2):
        assert get(storage, "a.seqrec", 5, 9) == b"xxxx"
    assert storage.counters()["cache_hits"] == 1
    [where] = (tmp_path / "c").glob("*/where")
    assert os.fsdecode(where.read_bytes()) == str(folder)
    storage.close()


def test_a_cache_in_use_is_removed(remote: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    options = ["--cache-dir", cache, "--cache-limit", "16MiB", "--features", "pose"]
    run("bench", remote, "--clip-len", 2, "--quiet", *options)
    assert entries(cache)

    def poses() -> list[bytes]:
        frames = dataset.select(["pose"]).episodes["alpha/Easy/P001"].read(range(3))
        return [pose.tobytes() for pose in frames["pose"]]

    with seqrecord.open(remote, cache_dir=cache, cache_limit="16MiB") as dataset:
        before = poses()
        shutil.rmtree(cache)
        assert poses() == before
        assert entries(cache)
        assert dataset.contents.storage.counters()["cache_failures"] == 0


@pytest.mark.parametrize("place", CLOUDS, indirect=True)
def test_the_second_epoch_from_a_cloud_makes_no_request(
    place: Place, small: Path, tmp_path: Path
) -> None:
    place.copy(small)
    cache: dict[str, Any] = {"cache_dir": tmp_path / "cache", "cache_limit": "16MiB"}
    dataset = seqrecord.open(place.url, storage_options=place.options, **cache)
    settings: dict[str, Any] = {"clip_len": 3, "features": ["image_left", "pose"]}
    # Epochs of one pipe would keep the frames themselves.
    pipes = [seqrecord.SeqRecordPipe(dataset, **settings) for _ in range(2)]
    epochs = [(digests(pipe), pipe.dataset.contents.storage.counters()) for pipe in pipes]
    (first, before), (second, after) = epochs
    assert sorted(first) == sorted(second)
    assert before["requests"] == after["requests"] > 5
    assert after["cache_hits"] > before["cache_hits"]
    stats = pipes[1].stats()
    assert stats["cache_misses"] == 0 < stats["cache_bytes"]
    text = b"".join(path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert place.url.split("/")[2].encode() in text
    for secret in ("Eby8vdM02xNOcqFlqUwJ", Moto.secret, "of-nobody"):
        assert secret.encode() not in text
