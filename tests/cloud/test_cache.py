"""The cache returns correct bytes after any damage, stays within its limit and evicts by LRU."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import logging
import os
import pickle
import random
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord.cloud.cache import CachedStorage
from seqrecord.errors import ChecksumError, LocationError, StorageError
from seqrecord.store.storage.base import Storage
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.ranges import ByteRange
from tests.kit.datasets import flip, nth_chunk, write_small
from tests.kit.faults import CountingStorage, FailAt, FaultyStorage, damages_once, fail_calls
from tests.kit.processes import Fork, busy_threads, in_fork, killed_at
from tests.store.storage_contract import PATH, StorageContract, get, put

LIMIT = 2 << 20
SPARE = 16 << 10
DATA = np.random.default_rng(1).bytes(4 << 20)
SLOT = 5000  # bytes with one checksum; 20 are an entry


def on_disk(folder: Path) -> int:
    """Disk usage of a folder's contents in bytes."""
    sizes = {}  # by inode: a file renamed meanwhile counts once
    for inside, folders, files in os.walk(folder):
        for name in folders + files:
            with suppress(FileNotFoundError):  # deleted meanwhile
                found = os.lstat(f"{inside}/{name}")
                sizes[found.st_ino] = found.st_blocks * 512
    return sum(sizes.values())


@contextmanager
def locked(cache: Path) -> Iterator[list[str]]:
    """Hold a cache's lock like another process; yields the boot and the counted bytes."""
    with (cache / "taken").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file.read().split()


class SmallSlots(CachedStorage):
    slot_bytes, entry_slots = SLOT, 20


class PageSlots(CachedStorage):
    slot_bytes, entry_slots = 64, 4096  # pages begin with a slot


class Cached:
    """A cache with small slots over a `CountingStorage` over a folder with `DATA` at `PATH`."""

    def __init__(self, root: Path, limit: int = LIMIT, **options: float) -> None:
        self.cache = root / "cache"
        local = LocalStorage(root / "remote")
        if not (root / "remote" / PATH).exists():
            put(local, PATH, DATA)
        self.remote = CountingStorage(local)
        self.storage = SmallSlots(self.remote, self.cache, limit, **options)

    def check(self, start: int, stop: int) -> int:
        """Read a range and compare it; returns the bytes read from the remote storage."""
        before = self.remote.bytes_read
        assert get(self.storage, PATH, start, stop) == DATA[start:stop]
        return self.remote.bytes_read - before

    def count(self, name: str) -> int:
        return self.storage.counters()[f"cache_{name}"]


@pytest.fixture
def cached(tmp_path: Path) -> Cached:
    return Cached(tmp_path)


class TestCachedStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        inner = CountingStorage(LocalStorage(tmp_path / "d"))
        storage = CachedStorage(inner, tmp_path / "c", "2MiB")
        yield storage
        assert storage.counters()["cache_failures"] == 0
        storage.close()


# Hits and misses


def test_cached_ranges_are_not_read_again(cached: Cached) -> None:
    assert cached.check(5100, 9000) == SLOT
    assert cached.check(5100, 9000) == 0
    assert cached.check(6000, 7000) == 0, "a subrange"
    assert cached.check(1000, 11_000) == 2 * SLOT, "only the missing ends"
    assert cached.check(0, 15_000) == 0
    counters = {"hits": 3, "misses": 2, "bytes": 3900 + 1000 + 5000 + 15_000}
    counters |= dict.fromkeys(("evictions", "damaged", "failures", "busy"), 0)
    assert cached.storage.counters() == {f"cache_{name}": n for name, n in counters.items()}
    copy = pickle.loads(pickle.dumps(cached.storage))
    assert get(copy, PATH, 0, 1000) == DATA[:1000]
    assert (copy.counters()["cache_hits"], copy.counters()["cache_misses"]) == (1, 0)
    copy.close()
    cached.check(99_999, 110_000)
    assert not cached.storage.forget(PATH, [ByteRange(200_000, 201_000)])
    assert cached.storage.forget(PATH, [ByteRange(99_999, 100_000)])
    assert cached.check(5000, 6000) == SLOT, "the entry was forgotten"
    assert cached.check(100_000, 110_000) == 0, "another entry"


def _read(cached: Cached, *pairs: tuple[int, int]) -> None:
    ranges = [ByteRange(*pair) for pair in pairs]
    out = [np.full(item.length, 7, np.uint8) for item in ranges]
    cached.storage.read_ranges(PATH, ranges, [array.data for array in out])
    for item, array in zip(ranges, out, strict=True):
        assert array.tobytes() == DATA[item.start : item.stop]


def test_missing_ranges_are_one_read_and_stored_once(cached: Cached) -> None:
    cached.check(1000, 2000)
    cached.remote.reset()
    _read(cached, (4500, 11_000), (0, 0), (1000, 2000), (6500, 16_200), (8000, 12_000))
    assert cached.remote.ranges == {PATH: [ByteRange(n, n + SLOT) for n in (5000, 10_000, 15_000)]}
    assert cached.check(500, 20_000) == 0
    _read(cached, (0, 600_000), (0, 600_000), (100, 300), (500, 610_000))
    assert cached.count("failures") == 0
    assert cached.check(0, 610_000) == 0
    cached.storage.close()
    _check_sound(cached.cache.parent)


def test_ranges_across_slots_and_entries(tmp_path: Path) -> None:
    put(local := LocalStorage(tmp_path / "remote"), PATH, DATA[: (1 << 20) + 100_001])
    remote = CountingStorage(local)
    storage = CachedStorage(remote, tmp_path / "cache", LIMIT)  # slots of 32 KiB, entries of 1 MiB
    edges = [0, 1, 131_071, 131_072, 131_073, 270_000, 1 << 20, (1 << 20) + 1, (1 << 20) + 100_001]
    for wanted in (edges[-1], 0):
        for start, stop in itertools.combinations(edges, 2):
            assert get(storage, PATH, start, stop) == DATA[start:stop]
        assert remote.bytes_read == wanted, "each byte once"
        remote.reset()
    with pytest.raises(StorageError, match="ended early"):
        get(storage, PATH, edges[-1] - 1, edges[-1] + 1)


@given(
    st.lists(st.tuples(st.integers(0, len(DATA) - 1), st.integers(1, 600_000)), max_size=12),
    st.sampled_from([1 << 20, 3 << 20]),
)
def test_random_reads_are_correct_and_within_the_limit(
    reads: list[tuple[int, int]], limit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cached = Cached(Path(folder), limit)
        for start, length in reads:
            cached.check(start, min(start + length, len(DATA)))
            assert on_disk(cached.cache) <= limit


def test_manifests_are_not_cached(cached: Cached) -> None:
    tag = None
    for text in (b"old", b"new", b"newer"):
        cached.remote.inner.put("manifest.json", text, expected=tag)
        tag = cached.storage.read_whole("manifest.json", 100)[1]
        for _ in range(2):
            assert get(cached.storage, "manifest.json") == text
    assert cached.count("hits") == cached.count("misses") == 0


def test_failed_remote_reads_are_not_cached(tmp_path: Path) -> None:
    local = LocalStorage(tmp_path / "remote")
    put(local, PATH, DATA)
    faulty = FaultyStorage(local, FailAt("read", 0, error="short"))
    storage = CachedStorage(faulty, tmp_path / "cache", LIMIT)
    with pytest.raises(StorageError, match="ended early"):
        get(storage, PATH, 0, 1000)
    assert get(storage, PATH, 0, 1000) == DATA[:1000]
    assert storage.counters()["cache_hits"] == 0


@pytest.mark.parametrize("straight", [False, True])
def test_pages_damaged_in_transit_are_evicted(straight: bool, tmp_path: Path) -> None:
    """The cache stores the damaged bytes; the page's own checksum fails."""
    local = LocalStorage(tmp_path / "remote")
    write_small(tmp_path / "remote", codecs="raw")

    def read(storage: Storage) -> bytes:
        with seqrecord.open(storage, features=["image_left"]) as dataset:
            if straight:
                episode = next(iter(dataset.episodes.values()))
                return bytes(episode.read(range(4))["image_left"].tobytes())
            reader = dataset.contents.chunks
            return bytes(reader.read(reader.pages(nth_chunk(dataset, 0, 0)))[0])

    right = read(local)
    assert read(damages_once(local)) == right, "without a cache too"
    remote = CountingStorage(damages_once(local))
    storage = PageSlots(remote, tmp_path / "cache", "16MiB")
    assert read(storage) == right, "read again at once"
    assert storage.counters()["cache_damaged"] == 1
    remote.reset()
    assert read(storage) == read(CountingStorage(storage)) == right
    assert set(remote.ranges) == {"manifest.json"}
    storage.close()
    # A second thread with the same damaged bytes finds them evicted already and must retry too.
    storage = PageSlots(damages_once(local), tmp_path / "other", "16MiB")
    drop = storage.forget

    def drop_twice(path: str, ranges: Sequence[ByteRange]) -> bool:
        drop(path, ranges)  # stands for another thread
        return drop(path, ranges)

    storage.forget = drop_twice  # type: ignore[method-assign]
    assert read(storage) == right
    storage.close()


def test_index_tables_damaged_in_transit_are_evicted(tmp_path: Path) -> None:
    write_small(tmp_path / "remote")
    local = LocalStorage(tmp_path / "remote")
    for number, table in enumerate(("episodes", "chunks0", "gaps")):
        seqrecord.open(damages_once(local, f"{table}.arrow"))  # without a cache too
        remote = CountingStorage(damages_once(local, f"{table}.arrow"))
        storage = CachedStorage(remote, tmp_path / table, "16MiB")
        outer: Storage = CountingStorage(storage) if number == 1 else storage
        seqrecord.open(outer)
        assert storage.counters()["cache_damaged"] == 1
        remote.reset()
        seqrecord.open(outer).close()
        assert set(remote.ranges) == {"manifest.json"}
        storage.close()
    (path,) = (tmp_path / "remote" / "index").glob("*chunks0.arrow")
    flip(path, 100)  # on the disk: it is read twice and refused
    for is_cached in (False, True):
        remote = CountingStorage(local)
        with pytest.raises(ChecksumError, match=r"chunks0\.arrow"):
            seqrecord.open(CachedStorage(remote, tmp_path / "c", "16MiB") if is_cached else remote)
        assert len(remote.ranges[f"index/{path.name}"]) == 2


def test_any_read_damaged_in_transit_is_evicted(small: Path, tmp_path: Path) -> None:
    """Reads of the tail, the header, the footer and a page."""
    for number in range(6):
        damaging = damages_once(LocalStorage(small), number=number)
        storage = CachedStorage(damaging, tmp_path / f"cache-{number}", "16MiB")
        for _ in range(2):
            assert seqrecord.verify(storage, num_threads=1).ok
        storage.close()


# Limit and eviction


def entries(cache: Path) -> list[Path]:
    """Files of the entries."""
    return [path for path in cache.glob("*/*") if len(path.name) == 40]


def _cached_blocks(cached: Cached) -> set[int]:
    """Numbers of the cached blocks of 100,000 bytes."""
    files = {path.name for path in entries(cached.cache)}
    names = {hashlib.sha256(f"{PATH} {n}".encode()).hexdigest()[:40]: n for n in range(42)}
    return {names[name] for name in files}


def _read_blocks(cached: Cached, order: list[int]) -> None:
    for block in order:
        cached.check(block * 100_000, block * 100_000 + 90_000)


def test_least_recently_used_entries_are_evicted_first(tmp_path: Path) -> None:
    cached = Cached(tmp_path)
    rng = random.Random(5)
    recent: list[int] = []
    kept: set[int] = set()
    for step in range(150):
        block = rng.randrange(40)
        was_cached = block in kept
        assert (cached.check(block * 100_000, block * 100_000 + 90_000) == 0) == was_cached
        recent = [block, *(other for other in recent if other != block)]
        kept = _cached_blocks(cached)
        assert kept == set(recent[: len(kept)]), f"step {step}"
        assert on_disk(cached.cache) <= LIMIT
    assert len(kept) >= 15, "most of the limit is used"
    assert cached.count("evictions") > 40


def test_use_order_survives_reopening_and_a_smaller_limit_applies_at_once(
    tmp_path: Path,
) -> None:
    cached = Cached(tmp_path)
    _read_blocks(cached, [*range(10), 0, 1])
    cached.storage.close()
    reopened = Cached(tmp_path)
    _read_blocks(reopened, list(range(10, 25)))
    assert {0, 1} <= _cached_blocks(reopened)
    assert not {2, 3} & _cached_blocks(reopened)
    reopened.storage.close()
    large = Cached(tmp_path, limit=4 << 20)
    _read_blocks(large, list(range(30)))
    large.storage.close()
    assert on_disk(cached.cache) > LIMIT
    smaller = Cached(tmp_path, limit=1 << 20)
    assert smaller.check(29 * 100_000, 29 * 100_000 + 10) == 0
    for _ in range(2):
        assert on_disk(cached.cache) <= 1 << 20
        smaller.check(0, len(DATA))
    assert smaller.count("bytes") > 500_000, "the part of a large range that fits is stored"


def test_an_entry_that_cannot_fit_evicts_nothing(cached: Cached) -> None:
    cached.check(0, SLOT)
    cached.storage.entry_slots = LIMIT // SLOT + 1
    assert cached.check(10_000, 15_000) == cached.check(10_000, 15_000) == SLOT
    assert cached.check(0, SLOT) == cached.count("evictions") == 0


def _stress(root: Path, seed: int, count: int) -> None:
    cached = Cached(root)
    rng = random.Random(seed)

    def read(_: int) -> None:
        start = rng.randrange(len(DATA) - 200_000)
        cached.check(start, start + rng.randrange(1, 200_000))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(read, range(count)))
    assert cached.count("failures") == 0


def test_many_processes_and_threads_stay_within_the_limit(tmp_path: Path, thorough: bool) -> None:
    Cached(tmp_path).storage.close()
    count = 40 if thorough else 15
    workers = [Fork(partial(_stress, tmp_path, seed, count)) for seed in range(3)]
    most = 0
    while any(worker.is_running() for worker in workers):
        with locked(tmp_path / "cache"):
            most = max(most, on_disk(tmp_path / "cache"))
    codes = [worker.wait() for worker in workers]
    most = max(most, on_disk(tmp_path / "cache"))  # if this process seldom had a core
    assert codes == [0, 0, 0]
    assert LIMIT / 2 < most <= LIMIT
    _check_sound(tmp_path)


def _check_count(cache: Path) -> None:
    with locked(cache) as (_boot, used):
        assert on_disk(cache) <= int(used) + SPARE <= LIMIT


def _check_sound(root: Path) -> None:
    """Usage is within its count and the limit, reads are correct."""
    cached = Cached(root)
    _read_blocks(cached, [*range(20), *range(40)])  # more than fit
    _check_count(cached.cache)
    assert len(_cached_blocks(cached)) >= 15
    assert on_disk(cached.cache) <= LIMIT
    cached.check(0, len(DATA))
    assert cached.count("damaged") == cached.count("failures") == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forks_share_the_cache_while_threads_read(tmp_path: Path) -> None:
    cached = Cached(tmp_path)
    cached.check(0, 5000)

    def work() -> None:
        assert cached.check(0, 1000) == 0, "in a fork of a process with the open cache"
        cached.check(5000, 50_000)
        os._exit(0)  # an abrupt exit

    assert Fork(work).wait() == 0
    assert cached.check(0, 50_000) == 0
    rng = random.Random(0)

    def read() -> None:
        start = rng.randrange(LIMIT // 2)  # no evictions
        assert get(cached.storage, PATH, start, start + 1000) == DATA[start : start + 1000]

    with busy_threads(read, 2):
        for _ in range(5):
            assert in_fork(lambda: cached.check(0, 5000)) == 0
    cached.storage.close()
    _check_sound(tmp_path)


# Damage


def _entry_file(cached: Cached) -> Path:
    (path,) = entries(cached.cache)
    return path


def test_a_damaged_entry_is_fetched_again(cached: Cached, caplog: pytest.LogCaptureFixture) -> None:
    """Truncated, too long, changed or another entry's; a missing or empty entry is no damage."""
    cached.check(0, 5000)
    first = _entry_file(cached)
    whole = first.read_bytes()
    caplog.set_level(logging.WARNING, "seqrecord")
    for count, data in enumerate((whole[:-1], whole + b"x", bytes(90) + whole[90:]), 1):
        first.write_bytes(data)
        caplog.clear()
        assert cached.check(0, 5000) == 5000
        assert "damaged" in caplog.text
        assert cached.check(0, 5000) == 0
        assert cached.count("damaged") == count
    for data in (b"", bytes(len(whole))):
        first.write_bytes(data)
        assert cached.check(0, 5000) == 5000
    first.unlink()
    assert cached.check(0, 5000) == 5000
    assert cached.count("damaged") == 3
    cached.check(100_000, 105_000)
    (second,) = set(entries(cached.cache)) - {first}
    first.write_bytes(second.read_bytes())
    second.unlink()
    second.symlink_to(elsewhere := cached.cache.parent / "elsewhere")
    elsewhere.write_bytes(whole)
    assert cached.check(0, 5000) == 5000
    assert cached.count("damaged") == 4
    assert cached.check(100_000, 105_000) == 5000, "links are not followed"


def test_every_damaged_byte_is_detected(cached: Cached) -> None:
    cached.check(5007, 5057)
    places = [*range(5000, 10_000, 50), *range(100_004, 100_008)]
    for at in places:
        flip(_entry_file(cached), at)
        assert cached.check(5007, 5057) == SLOT
    assert cached.count("damaged") == len(places)
    assert cached.check(5007, 5057) == 0


def test_usage_counts_damaged_or_of_another_boot_are_rebuilt(cached: Cached) -> None:
    """After a power failure the count may be older than the entries."""
    _read_blocks(cached, list(range(20)))
    for text in (b"", b"x", b"\xff" * 80, b"another-boot 1", b"unknown"):
        (cached.cache / "taken").write_bytes(text)
        _read_blocks(cached, list(range(30)))
        _check_count(cached.cache)
    _check_sound(cached.cache.parent)


def test_other_files_are_kept_and_a_deleted_folder_is_recreated(cached: Cached) -> None:
    before = os.umask(0)
    try:
        cached.check(0, 5000)
    finally:
        os.umask(before)
    entry = _entry_file(cached)
    rights = [stat.S_IMODE(path.stat().st_mode) for path in (cached.cache, entry)]
    assert rights == [0o700, 0o600], "only the owner may read it"
    places = ("2023-2024", "photos/2023-2024", "x/where", "new/take1.mp4", "lost+found/1-2")
    others = [*(cached.cache / name for name in places), entry.with_name("1-2"), entry.parent / "x"]
    for other in others:
        other.parent.mkdir(exist_ok=True)
        other.write_text("x")
    (cached.cache / "taken").write_text("unknown")
    assert cached.check(0, 6000) == SLOT
    _read_blocks(cached, list(range(40)))
    assert cached.count("evictions")
    assert {other.read_text() for other in others} == {"x"}
    shutil.rmtree(cached.cache)
    assert cached.check(0, 5000) == 5000
    assert cached.check(0, 5000) == 0


# Kills

CALLS = (
    *((os, name) for name in ("open", "pwrite", "ftruncate", "utime", "write", "close")),
    *((Path, name) for name in ("replace", "unlink", "mkdir", "rmdir")),
)


@pytest.mark.slow
def test_a_kill_never_corrupts_the_cache(tmp_path: Path) -> None:
    """Kills before each disk call of a process that evicts, adds and forgets entries."""
    kills = 0
    for number in range(200):
        root = tmp_path / str(number)
        cached = Cached(root)
        _read_blocks(cached, list(range(20)))

        def work(cached: Cached = cached) -> None:
            _read_blocks(cached, [30, 31])
            cached.storage.forget(PATH, [ByteRange(3_000_000, 3_000_001)])

        killed = killed_at(number, work, CALLS)
        assert on_disk(cached.cache) <= LIMIT
        survivor = Cached(root)
        _read_blocks(survivor, [33, 30, 32, 31])
        assert survivor.count("damaged") == survivor.count("failures") == 0
        if number % 8 == 0:
            _check_sound(root)
        shutil.rmtree(root)
        if not killed:
            break
        kills += 1
    assert 20 < kills < 199


def test_the_space_of_a_killed_writer_is_freed(tmp_path: Path) -> None:
    """Also while another process keeps the cache open."""
    cached = Cached(tmp_path)
    cached.check(0, 10)

    inside_entry = [(os, "pwrite")]
    assert killed_at(2, lambda: cached.check(1_000_000, 2_500_000), inside_entry)
    _read_blocks(cached, list(range(20)))
    assert len(_cached_blocks(cached)) >= 15
    assert cached.check(1_000_000, 2_500_000) >= 500_000
    assert cached.count("damaged") == 0


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_running_writer_is_undisturbed_unless_the_cache_is_removed(
    is_removed: bool, tmp_path: Path
) -> None:
    writer, other, third = Cached(tmp_path), Cached(tmp_path), Cached(tmp_path)

    def work() -> None:
        real = os.pwrite

        def pwrite(fd: int, data: Any, at: int) -> int:
            if len(data) == SLOT:  # in an entry
                os.kill(os.getpid(), signal.SIGSTOP)
            return real(fd, data, at)

        os.pwrite = pwrite
        writer.check(3_900_000, 3_905_000)

    worker = Fork(work)
    assert worker.is_stopped()
    if is_removed:
        shutil.rmtree(tmp_path / "cache")
    else:
        assert third.check(3_900_000, 3_900_100) == SLOT, "not stored yet"
        _read_blocks(other, list(range(10)))
    assert worker.proceed() == 0
    if is_removed:
        assert entries(other.cache) == []
        assert other.check(0, 1000) == SLOT
    else:
        assert other.check(3_900_100, 3_905_000) == 0
    _check_sound(tmp_path)


# Disk failures


@pytest.mark.parametrize(
    ("name", "number"), [("open", errno.EIO), ("pwrite", errno.ENOSPC), ("preadv", errno.EIO)]
)
def test_disk_failures_are_bypassed(
    name: str,
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cached = Cached(tmp_path, pause=0.0)
    cached.check(0, 1000)
    resting = Cached(tmp_path, pause=1000.0)
    with monkeypatch.context() as broken, caplog.at_level(logging.WARNING, "seqrecord"):
        fail_calls(broken, os, name, number, below=cached.cache)
        open_files = set()
        for _ in range(3):
            cached.check(0, 1000)
            assert cached.check(12_000, 13_000) == resting.check(12_000, 13_000) == SLOT
            open_files.add(len(list(Path("/proc/self/fd").iterdir())))
        assert len(open_files) == 1
    assert cached.count("failures") >= 3
    assert resting.count("failures") == 1
    assert caplog.text.count("is not used for a while") == 2, "logged once by each"
    cached.check(12_000, 13_000)
    assert cached.check(12_000, 13_000) == 0
    cached.storage.close()
    _check_sound(cached.cache.parent)


def test_the_tag_is_safe_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that has entries after a power loss has its tag, else it would be refused."""
    cached, works, synced = Cached(tmp_path), os.fsync, list[Any]()

    def fsync(fd: int) -> None:
        works(fd)
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        synced.append((name, [path.name for path in cached.cache.iterdir()]))

    monkeypatch.setattr(os, "fsync", fsync)
    cached.check(0, 10_000)
    assert synced == [(name, ["CACHEDIR.TAG"]) for name in ("CACHEDIR.TAG", "cache")]


def test_the_size_cannot_be_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk that copies on write: it is counted again, and entries are added."""
    cached, open_files, works = Cached(tmp_path), set(), os.pwrite

    def pwrite(fd: int, data: Any, offset: int) -> int:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        if name == "taken" and not bytes(data).startswith(b"unknown"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return works(fd, data, offset)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", pwrite)
        for start in range(0, 1_000_000, 200_000):
            assert [cached.check(start, start + 1000) for _ in "ab"] == [SLOT, 0]
            open_files.add(len(list(Path("/proc/self/fd").iterdir())))
    assert len(open_files) == 1
    assert cached.count("failures") == 0
    _check_sound(tmp_path)


# Settings


def test_a_folder_that_cannot_be_created_is_bypassed(tmp_path: Path) -> None:
    local = LocalStorage(tmp_path / "remote")
    put(local, PATH, DATA)
    storage = CachedStorage(local, tmp_path / "file" / "cache", LIMIT)
    (tmp_path / "file").write_text("x")
    assert get(storage, PATH, 0, 100) == DATA[:100]
    assert storage.counters()["cache_failures"] == 1


@pytest.mark.parametrize(
    "path", ["new/take1.mp4", "new/0123456789abcdef01234567", "taken", "CACHEDIR.TAG", "where"]
)
def test_files_of_others_are_refused_not_removed(path: str, tmp_path: Path) -> None:
    """A folder is a cache by its tag, not by names in it."""
    file = tmp_path / "recordings" / path
    file.parent.mkdir(parents=True)
    file.write_text("Signature: 8a477f597d28d172789f06886806bc55\n")
    put(local := LocalStorage(tmp_path / "remote"), PATH, DATA)
    folder = tmp_path / "recordings"
    with pytest.raises(LocationError, match=f"choose another cache_dir.*got: '{path}'"):
        CachedStorage(local, folder, LIMIT)
    cached = Cached(tmp_path)
    folder.rename(cached.cache)  # after it was opened
    assert cached.check(0, 100) == SLOT
    assert cached.count("failures") == 1
    assert [p for p in cached.cache.rglob("*") if p.is_file()] == [cached.cache / path]
    assert (cached.cache / path).read_text().startswith("Signature")


def test_invalid_folders_and_limits_are_refused(tmp_path: Path) -> None:
    local = LocalStorage(tmp_path / "remote")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("x")
    with pytest.raises(LocationError, match=r"thesis\.tex"):
        CachedStorage(local, tmp_path / "home", LIMIT)
    with pytest.raises(LocationError, match="a file"):
        CachedStorage(local, tmp_path / "home" / "thesis.tex", LIMIT)
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    CachedStorage(local, tmp_path / "disk", LIMIT)
    limits: list[Any] = [0, "1KiB", (2 << 20) - 1, "much", -1, True]
    for limit in limits:
        with pytest.raises(LocationError, match="cache_limit"):
            CachedStorage(local, tmp_path / "c", limit)


def test_a_cache_of_another_layout_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "c" / "0123456789").mkdir(parents=True)
    tag = "Signature: 8a477f597d28d172789f06886806bc55\n# This folder is a cache of seqrecord. It\n"
    (tmp_path / "c" / "CACHEDIR.TAG").write_text(tag)
    with pytest.raises(LocationError, match="another version of seqrecord; remove it"):
        CachedStorage(LocalStorage(tmp_path / "remote"), tmp_path / "c", LIMIT)


def test_the_least_limit_has_room_for_an_entry(tmp_path: Path) -> None:
    put(local := LocalStorage(tmp_path / "remote"), PATH, DATA)
    storage = CachedStorage(remote := CountingStorage(local), tmp_path / "cache", LIMIT)
    for _ in range(2):
        assert get(storage, PATH, 5, 400_000) == DATA[5:400_000]
    assert remote.bytes_read == -(-400_000 // storage.slot_bytes) * storage.slot_bytes


@pytest.mark.parametrize("is_fixed", [False, True])  # True: reads ahead
def test_memory_for_many_small_ranges_is_bounded(
    is_fixed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(local := LocalStorage(tmp_path / "remote"), PATH, b"")
    os.truncate(tmp_path / "remote" / PATH, 72 << 20)
    monkeypatch.setattr(CountingStorage, "has_fixed_files", is_fixed, raising=False)
    lengths: list[int] = []

    class Remote(CountingStorage):
        def read_ranges(self, path: str, ranges: Any, buffers: Any) -> None:
            lengths.append(sum(item.length for item in ranges))

    storage = CachedStorage(Remote(local), tmp_path / "cache", LIMIT)
    ranges = [ByteRange(at, at + 10) for at in range(0, 72 << 20, 256 << 10)]
    storage.read_ranges(PATH, ranges, [memoryview(bytearray(10)) for _ in ranges])
    assert max(lengths) <= 32 << 20
    assert sum(lengths) == (72 << 20 if is_fixed else len(ranges) * storage.slot_bytes)


def test_growing_directories_count_as_usage(tmp_path: Path) -> None:
    cached = Cached(tmp_path)
    for start in range(0, len(DATA) - 10, len(DATA) // 300):
        cached.check(start, start + 10)
    cached.storage.close()
    _check_sound(tmp_path)
