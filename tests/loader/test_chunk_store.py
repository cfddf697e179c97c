"""Bytes of remote storage in memory: each is read once, and the order is that of local files."""

from __future__ import annotations

import gc
import logging
import pickle
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import SeqRecordMapDataset, SeqRecordPipe
from seqrecord.cloud.cache import CachedStorage
from seqrecord.errors import StorageError, TransientError
from seqrecord.loader.reading.chunk_store import ChunkStore
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.opening import open_storage
from seqrecord.store.storage.ranges import ByteRange, unwanted_if
from tests.kit.clip_data import minimum_memory, no_leaks
from tests.kit.datasets import columns, noise, write_dataset
from tests.kit.faults import CountingStorage, FaultyStorage, damages_once
from tests.loader.clip_model import GROUPS, Case, cases, equal, write_all
from tests.loader.test_combinations import CASES

FILE_BYTES = 1 << 16


class SlowStorage(StorageWrapper):
    """Requests wait for `may_go`, and raise `error` if it is set."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.may_go, self.started = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.count = 0

    def read_ranges(self, path: str, ranges: Any, buffers: Any) -> None:
        self.count += 1
        self.started.set()
        assert self.may_go.wait(30)
        if self.error is not None:
            raise self.error
        super().read_ranges(path, ranges, buffers)


def started_store(storage: Storage, capacity: int = 1 << 20) -> ChunkStore:
    store = ChunkStore(storage)
    store.begin(capacity, {"a.seqrec": (np.array([0]), np.array([FILE_BYTES]))})
    return store


def read_range(store: Storage, start: int, stop: int) -> bytes:
    buffer = bytearray(stop - start)
    store.read_ranges("a.seqrec", [ByteRange(start, stop)], [memoryview(buffer)])
    return bytes(buffer)


class Readers:
    """Threads that read ranges of a store; `results` are bytes or errors, by number."""

    def __init__(self, store: ChunkStore, ranges: list[tuple[int, int]]) -> None:
        self.results: dict[int, Any] = {}
        self.is_unwanted = threading.Event()
        self._polls = [threading.Event() for _ in ranges]
        self._threads = [
            threading.Thread(target=self._read, args=(store, number, *item))
            for number, item in enumerate(ranges)
        ]
        self._waiting = iter(self._threads)

    def start(self, count: int) -> None:
        for _ in range(count):
            next(self._waiting).start()

    def _read(self, store: ChunkStore, number: int, start: int, stop: int) -> None:
        def condition() -> bool:
            self._polls[number].set()
            return number == 0 and self.is_unwanted.is_set()

        try:
            with unwanted_if(condition):
                self.results[number] = read_range(store, start, stop)
        except Exception as error:
            self.results[number] = error

    def wait_for_waiting(self) -> None:
        """Wait until all readers but the first wait for its request."""
        assert all(poll.wait(30) for poll in self._polls[1:])

    def join(self) -> list[Any]:
        for thread in self._threads:
            thread.join(30)
        return [self.results[number] for number in sorted(self.results)]


def read_ahead(store: ChunkStore, start: int, stop: int) -> None:
    store.prefetch("a.seqrec", [ByteRange(start, stop)])


def forget_range(store: ChunkStore, start: int, stop: int) -> None:
    store.forget("a.seqrec", [ByteRange(start, stop)])


SHAPE = (150, 150, 3)  # 66 KiB: larger frames are not kept decoded
FRAMES, EPISODES = 60, 6
NEEDED = FRAMES * EPISODES * 150 * 150 * 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "records"
    episodes = {
        str(n): columns(image=noise(FRAMES, *SHAPE, seed=n), id=1000 * n + np.arange(FRAMES))
        for n in range(EPISODES)
    }
    write_dataset(folder, episodes, codecs="raw", chunk_frames=25)
    return folder


@pytest.fixture
def remote(folder: Path) -> CountingStorage:
    return CountingStorage(open_storage(str(folder)))


def read_shares(storage: CountingStorage, loader: Any, epochs: int = 3) -> list[float]:
    """Bytes read in each epoch, divided by the bytes of all images."""
    shares = []
    for epoch in range(epochs):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        storage.reset()
        for _ in loader:
            pass
        shares.append(storage.bytes_read / NEEDED)
    return shares


@pytest.mark.parametrize(
    "options",
    [
        {"clip_len": 1},
        {"clip_len": 6, "stride": 3},
        {"clip_len": 4, "dilation": 3},
        {"clip_len": 6, "order": "sequences"},
        {"clip_len": 6, "shuffle": False},
        {"clip_len": 3, "resize": (140, 140)},
        {"clip_len": 3, "features": ["image"]},
    ],
    ids=str,
)
def test_bytes_are_read_once(remote: CountingStorage, options: dict[str, Any]) -> None:
    pipe = SeqRecordPipe(remote, batch_size=4, **options)
    first, *later = read_shares(remote, pipe)
    assert 0.9 < first <= 1.05
    assert max(later) < 1e-4


class FirstBatchStorage(CountingStorage):
    """Until `is_there`, requests wait once more than `budget` bytes are wanted."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self.budget, self.is_there = 0, threading.Event()

    def read_ranges(self, path: str, ranges: Any, buffers: Any) -> None:
        if self.bytes_read + sum(item.length for item in ranges) > self.budget:
            assert self.is_there.wait(10), "the first batch needs more bytes than its frames"
        super().read_ranges(path, ranges, buffers)


def first_and_epoch(
    folder: Path, budget: int, options: dict[str, Any]
) -> tuple[dict[str, Any], float]:
    """The first batch, and the share of all bytes that the epoch reads."""
    storage = FirstBatchStorage(open_storage(str(folder)))
    storage.budget = 1 << 60
    pipe = SeqRecordPipe(storage, **options)
    storage.reset()
    storage.budget = budget
    batches = iter(pipe)
    first = next(batches)
    storage.is_there.set()
    for _ in batches:
        pass
    stored = sum(file.stat().st_size for file in folder.rglob("*.seqrec"))
    return first, storage.bytes_read / stored


@pytest.mark.parametrize(
    ("options", "frames"),
    [
        ({"clip_len": 1}, 4),
        ({"clip_len": 4, "dilation": 3}, 16),
        ({"clip_len": 6, "order": "sequences"}, 24),
        ({"clip_len": 6, "shuffle": False}, 9),
        ({"clip_len": 3, "resize": (140, 140)}, 12),
        ({"clip_len": 1, "batch_size": None}, 1),
        ({"clip_len": 1, "memory_limit": "12MiB"}, 4),
        ({"clip_len": 1, "memory_limit": "40MiB"}, 4),
    ],
    ids=str,
)
def test_the_first_batch_reads_its_frames_only(
    folder: Path, options: dict[str, Any], frames: int
) -> None:
    budget = int(1.5 * frames * 150 * 150 * 3)
    first, share = first_and_epoch(folder, budget, {"batch_size": 4} | options)
    assert set(first) >= {"image", "id"}
    assert 0.9 < share < 1.02


@pytest.mark.parametrize("gop", [1, 8])
def test_the_first_batch_reads_its_pages_only(tmp_path: Path, gop: int) -> None:
    """Of encoded frames, which the format checks page by page."""
    episodes = {str(n): columns(image=noise(64, 64, 64, 3, seed=n)) for n in range(6)}
    write_dataset(tmp_path / "r", episodes, codecs=f"ffv1:gop={gop}", chunk_frames=8)
    stored = sum(file.stat().st_size for file in tmp_path.rglob("*.seqrec"))
    budget = int(1.2 * 4 * stored / (6 * 64 / 8))
    _, share = first_and_epoch(tmp_path / "r", budget, {"clip_len": 1, "batch_size": 4})
    assert 0.9 < share < 1.02


@pytest.mark.parametrize("limit", ["12MiB", "16MiB", "24MiB", "40MiB"])
def test_little_memory(remote: CountingStorage, limit: str) -> None:
    pipe = SeqRecordPipe(remote, clip_len=1, batch_size=4, memory_limit=limit)
    for _ in range(2):
        remote.reset()
        for _ in pipe:
            pass
        assert remote.bytes_read <= 1.05 * NEEDED
        stats = pipe.stats()
        peak = stats["peak_buffer_bytes"] + stats["peak_chunk_store_bytes"]
        assert peak <= stats["memory_limit"]
        assert stats["bytes_read"] <= remote.bytes_read


@pytest.mark.parametrize(
    "options",
    [
        {"clip_len": 1, "batch_size": 4},
        {"clip_len": 1, "batch_size": 16},
        {"clip_len": 6, "stride": 3, "batch_size": 4},
        {"clip_len": 4, "dilation": 5, "batch_size": 4},
    ],
    ids=str,
)
def test_a_limit_above_the_data(remote: CountingStorage, options: dict[str, Any]) -> None:
    """The plan's bound exceeds what a short epoch takes: the store has the rest."""
    pipe = SeqRecordPipe(remote, **options, memory_limit="72MiB")  # 3.1 times the data
    first, *later = read_shares(remote, pipe)
    assert 0.9 < first <= 1.05
    assert max(later) < 1e-4
    stats = pipe.stats()
    assert stats["peak_buffer_bytes"] + stats["peak_chunk_store_bytes"] <= stats["memory_limit"]


def test_later_epochs_find_a_part(remote: CountingStorage) -> None:
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 4, "shuffle": False}
    pipe = SeqRecordPipe(remote, **options, memory_limit="24MiB")
    shares = read_shares(remote, pipe)
    room = pipe.stats()["peak_chunk_store_bytes"] / NEEDED
    assert 0.2 < room < 0.9
    assert max(shares[1:]) <= 1.1 - 0.8 * room  # whatever the order of the epoch


def test_ranks(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "seqrecord")
    storages = [CountingStorage(open_storage(str(folder))) for _ in range(3)]
    pipes = [
        SeqRecordPipe(storage, clip_len=1, batch_size=4, rank=(rank, 3))
        for rank, storage in enumerate(storages)
    ]
    sums = np.sum(list(map(read_shares, storages, pipes)), axis=0)
    assert sums[0] <= 1.05
    assert sums[2] < 0.75 * sums[0]
    lines = [r.getMessage() for r in caplog.records if "cache_dir=" in r.getMessage()]
    assert len(lines) == 1
    assert "3 shards" in lines[0]


def test_ranks_with_a_disk_cache(folder: Path, tmp_path: Path) -> None:
    storages = [CountingStorage(open_storage(str(folder))) for _ in range(3)]
    pipes = [
        SeqRecordPipe(
            CachedStorage(storage, tmp_path / "cache", "1GiB"),
            clip_len=1,
            batch_size=4,
            rank=(rank, 3),
        )
        for rank, storage in enumerate(storages)
    ]
    shares = []
    for epoch in range(2):
        nbytes = 0
        for storage, pipe in zip(storages, pipes, strict=True):
            storage.reset()
            pipe.set_epoch(epoch)
            for _ in pipe:
                pass
            nbytes += storage.bytes_read
        shares.append(nbytes / NEEDED)
    assert shares[0] <= 1.05
    assert shares[1] == 0


def test_map_style(remote: CountingStorage) -> None:
    dataset = SeqRecordMapDataset(remote, clip_len=3)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, collate_fn=seqrecord.collate)
    assert read_shares(remote, loader)[1:] == [0, 0]
    assert dataset.stats()["bytes_from_chunk_store"] > NEEDED
    small = SeqRecordMapDataset(remote, clip_len=1, memory_limit="2MiB")
    remote.reset()
    for number in range(0, 60, 7):
        assert small[number]["id"].item() == number
    assert remote.bytes_read <= 2 << 20  # not a chunk for each frame
    assert small.stats()["peak_chunk_store_bytes"] <= 2 << 20


def test_mix(folder: Path) -> None:
    storages = {name: CountingStorage(open_storage(str(folder))) for name in "ab"}
    sources = {
        n: seqrecord.SeqRecordIterableDataset(one, clip_len=2) for n, one in storages.items()
    }
    mix = seqrecord.SeqRecordMix(sources, batch_size=4, stopping_strategy=75)
    nbytes = []
    for _ in range(5):
        for storage in storages.values():
            storage.reset()
        for _ in mix:
            pass
        nbytes.append(sum(storage.bytes_read for storage in storages.values()))
    assert sum(nbytes) <= 2 * 1.05 * NEEDED
    assert nbytes[-1] == 0


def test_resume_in_the_middle(remote: CountingStorage) -> None:
    options: dict[str, Any] = {"clip_len": 1, "batch_size": 4}
    whole = list(SeqRecordPipe(remote, **options))
    pipe = SeqRecordPipe(remote, **options)
    iterator = iter(pipe)
    for _ in range(60):
        next(iterator)
    state = pipe.state_dict()
    resumed = SeqRecordPipe(remote, **options)
    resumed.load_state_dict(state)
    remote.reset()
    rest = list(resumed)
    assert [b["id"].tolist() for b in rest] == [b["id"].tolist() for b in whole[60:]]
    assert remote.bytes_read <= 1.05 * NEEDED


def test_workers(folder: Path) -> None:
    local = SeqRecordPipe(folder, clip_len=2, batch_size=4)
    remote = SeqRecordPipe(CountingStorage(open_storage(str(folder))), clip_len=2, batch_size=4)
    ids = [
        [batch["id"].tolist() for batch in DataLoader(pipe, batch_size=None, num_workers=2)]
        for pipe in (local, remote)
    ]
    assert ids[0] == ids[1]


def test_early_stop_leaves_nothing(folder: Path) -> None:
    with no_leaks():
        pipe = SeqRecordPipe(
            CountingStorage(open_storage(str(folder))),
            clip_len=1,
            batch_size=4,
            memory_limit="1GiB",
        )
        for _ in pipe:
            break
        store = pipe.dataset.contents.storage
        assert isinstance(store, ChunkStore)
        is_gone = weakref.ref(store)
        del pipe, store
    gc.collect()
    assert is_gone() is None


def test_error_of_the_network(folder: Path) -> None:
    fails = [True]

    def fault(operation: str, path: str, _: int) -> Exception | None:
        is_failing = operation == "read" and path.endswith(".seqrec") and fails[0]
        return TransientError("no network", file=path) if is_failing else None

    storage = FaultyStorage(open_storage(str(folder)), fault)
    fails[0] = False
    pipe = SeqRecordPipe(storage, clip_len=2, batch_size=4)
    expected = [batch["id"].tolist() for batch in pipe]
    pipe = SeqRecordPipe(storage, clip_len=2, batch_size=4)
    fails[0] = True
    with no_leaks():
        for _ in range(2):
            pipe.set_epoch(0)
            with pytest.raises(TransientError, match="no network"):
                list(pipe)
    fails[0] = False
    pipe.set_epoch(0)
    assert [batch["id"].tolist() for batch in pipe] == expected
    store = pipe.dataset.contents.storage
    assert isinstance(store, ChunkStore)
    assert store.used_bytes <= NEEDED * 1.05  # failed requests hold no memory


def test_damaged_bytes_are_read_again(folder: Path) -> None:
    storage = damages_once(open_storage(str(folder)), number=5)
    damaged = [b["id"].tolist() for b in SeqRecordPipe(storage, clip_len=1, batch_size=4)]
    assert storage.injected == 1
    assert damaged == [b["id"].tolist() for b in SeqRecordPipe(folder, clip_len=1, batch_size=4)]


# ---- the store alone


@pytest.fixture
def slow(tmp_path: Path) -> SlowStorage:
    (tmp_path / "a.seqrec").write_bytes(bytes(range(256)) * (FILE_BYTES // 256))
    return SlowStorage(open_storage(str(tmp_path)))


RANGES = [(0, 9), (100, 300), (5, 700), (60_000, 65_536)]
DATA = [(bytes(range(256)) * 256)[a:b] for a, b in RANGES]


def test_one_request_for_all_readers(slow: SlowStorage) -> None:
    store = started_store(slow)
    readers = Readers(store, RANGES)
    readers.start(1)
    assert slow.started.wait(30)
    readers.start(3)
    slow.may_go.set()
    assert readers.join() == DATA
    assert slow.count == 1


def test_failed_request_reaches_all_readers(slow: SlowStorage) -> None:
    store = started_store(slow)
    slow.error = StorageError("cut off", file="a")
    readers = Readers(store, RANGES)
    readers.start(1)
    assert slow.started.wait(30)
    readers.start(3)
    readers.wait_for_waiting()
    slow.may_go.set()
    errors = readers.join()
    assert [str(error) for error in errors] == [str(slow.error)] * 4
    assert len(set(map(id, errors))) == 4  # each thread adds its own context
    assert slow.count == 1
    assert store.used_bytes == 0
    slow.error = None
    assert [read_range(store, a, b) for a, b in RANGES] == DATA


def test_cancelled_request_is_made_again(slow: SlowStorage) -> None:
    store = started_store(slow)
    slow.error = StorageError("cancelled", file="a")
    readers = Readers(store, RANGES)
    readers.start(1)
    assert slow.started.wait(30)
    readers.start(3)
    readers.wait_for_waiting()
    readers.is_unwanted.set()
    inner = slow.error

    def recover() -> None:
        slow.error = None

    threading.Timer(0.1, recover).start()
    slow.may_go.set()
    first, *others = readers.join()
    assert str(first) == str(inner)
    assert all(isinstance(item, (bytes, StorageError)) for item in others)


def test_entries_before_and_after_a_dropped_one(slow: SlowStorage) -> None:
    """A new entry that replaces one before it keeps its place in the file."""
    slow.may_go.set()
    store = ChunkStore(slow)
    edges = np.arange(0, FILE_BYTES + 1, 1 << 13)  # eight pieces of 8 KiB, room for three
    store.begin(30_000, {"a.seqrec": (edges[:-1], edges[1:])})
    content = bytes(range(256)) * 256
    for start, stop in [(0, 100), (24576, 24600), (8192, 8193), (8193, 16384), (16384, 16400)]:
        assert read_range(store, start, stop) == content[start:stop]
    read = slow.count
    for start, stop in [(16400, 24576), (24600, 32768), (100, 8192)]:
        assert read_range(store, start, stop) == content[start:stop]
    assert slow.count == read


def test_bytes_read_for_want_of_room_are_not_read_again(tmp_path: Path) -> None:
    content = bytes(range(256)) * (FILE_BYTES // 256)
    (tmp_path / "a.seqrec").write_bytes(content)
    storage = CountingStorage(open_storage(str(tmp_path)))
    store = ChunkStore(storage)
    edges = np.array([0, 16384, 32768])  # two pieces, and room for one
    store.begin(20_000, {"a.seqrec": (edges[:-1], edges[1:])})
    reads = [(0, 100), (24000, 25000), (100, 16384), (16384, 16500), (25000, 32768), (16500, 24000)]
    for start, stop in reads:  # the second one has no room; two cursors walk the second piece
        assert read_range(store, start, stop) == content[start:stop]
        assert store.peak_bytes <= 20_000
    assert storage.bytes_read == 32768
    assert read_range(store, 16384, 32768) == content[16384:32768]


@pytest.mark.parametrize("how", ["smaller", "forgotten", "failed"])
def test_memory_of_dropped_bytes_is_free(slow: SlowStorage, how: str) -> None:
    slow.may_go.set()
    store = started_store(slow)
    if how == "failed":
        store.begin(1 << 20, {})
        slow.error = StorageError("cut off", file="a")
    tracemalloc.start()
    try:
        for _ in range(3):
            with suppress(StorageError):
                read_range(store, 0, FILE_BYTES)
            if how == "forgotten":
                forget_range(store, 0, FILE_BYTES)
        if how == "smaller":
            assert tracemalloc.get_traced_memory()[0] > FILE_BYTES
            store.begin(0, {})
        slow.error = None  # its traceback refers to buffers
        gc.collect()
        assert store.used_bytes == 0
        assert tracemalloc.get_traced_memory()[0] < FILE_BYTES / 2
    finally:
        tracemalloc.stop()


def test_no_memory_for_an_entry(slow: SlowStorage) -> None:
    slow.may_go.set()
    store = ChunkStore(slow)
    store.begin(1 << 62, {"a.seqrec": (np.array([0, 100]), np.array([90, 1 << 60]))})
    assert read_range(store, 0, 300) == (bytes(range(256)) * 2)[:300]
    assert store.used_bytes < 1 << 16


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_reads(tmp_path: Path, data: Any) -> None:
    """Random pieces, sizes, epochs and reads give the file's bytes within the size."""
    content = np.random.default_rng(0).integers(0, 255, FILE_BYTES, dtype=np.uint8).tobytes()
    (tmp_path / "a.seqrec").write_bytes(content)
    storage = CountingStorage(open_storage(str(tmp_path)))
    store = ChunkStore(storage)
    for _ in range(data.draw(st.integers(1, 3))):
        edges = sorted(data.draw(st.sets(st.integers(0, FILE_BYTES), max_size=30)))
        pairs = np.array(edges[: len(edges) // 2 * 2], np.int64).reshape(-1, 2)
        capacity = data.draw(st.sampled_from([0, 3000, 20_000, 1 << 17]))
        store.begin(capacity, {"a.seqrec": (pairs[:, 0], pairs[:, 1])})
        assert store.used_bytes <= capacity
        for _ in range(data.draw(st.integers(1, 20))):
            bounds = data.draw(st.lists(st.integers(0, FILE_BYTES), min_size=2, max_size=2))
            start, stop = sorted(bounds)
            if data.draw(st.booleans()):
                read_ahead(store, start, stop)
            if data.draw(st.integers(0, 5)) == 0:
                forget_range(store, start, stop)
            assert read_range(store, start, stop) == content[start:stop]
            assert store.peak_bytes <= capacity
    copy = pickle.loads(pickle.dumps(store))
    assert copy.used_bytes == 0
    assert read_range(copy, 3, 99) == content[3:99]


def test_a_read_ahead_replaces_none_of_its_own_bytes(tmp_path: Path) -> None:
    """Bytes of no piece, which are not needed again, are replaced first; but not by the same call,
    before they are read.
    """
    content = np.random.default_rng(0).integers(0, 255, FILE_BYTES, dtype=np.uint8).tobytes()
    (tmp_path / "a.seqrec").write_bytes(content)
    store = ChunkStore(CountingStorage(open_storage(str(tmp_path))))
    store.begin(20_000, {"a.seqrec": (np.array([0, 1025]), np.array([1, 15_393]))})
    read_ahead(store, 0, 1026)
    assert read_range(store, 0, 1026) == content[:1026]
    assert store.peak_bytes <= 20_000


# ---- plan, order and state


def order_and_states(location: Any, options: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Batches of two epochs, and the states in the middle and at the end of each."""
    pipe = SeqRecordPipe(location, **options)
    batches, states = [], []
    for _ in range(2):
        for number, batch in enumerate(pipe):
            batches.append(batch)
            if number == 2:
                states.append(pipe.state_dict())
        states.append(pipe.state_dict())
    return batches, states


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all(tmp_path_factory.mktemp("model") / "records", GROUPS)


def check_equal(model: Path, options: dict[str, Any]) -> None:
    """Check that a remote copy has the batches, order and states of a local one."""
    options = dict(options)
    if options.get("memory_limit") == "least":
        options["memory_limit"] = minimum_memory(partial(SeqRecordPipe, model, **options))
    batches, states = order_and_states(model, options)
    remote_batches, remote_states = order_and_states(
        CountingStorage(open_storage(str(model))), options
    )
    assert remote_states == states
    assert len(remote_batches) == len(batches)
    for batch, remote_batch in zip(batches, remote_batches, strict=True):
        assert batch.keys() == remote_batch.keys()
        assert all(equal(batch[name], remote_batch[name]) for name in batch)


def named_cases() -> Iterator[Any]:
    for number, name in enumerate(CASES):
        yield pytest.param(name, marks=() if number < 3 else pytest.mark.slow)


@pytest.mark.parametrize("name", list(named_cases()))
def test_storage_changes_no_order(model: Path, name: str) -> None:
    check_equal(model, {"batch_size": 3, **CASES[name]})


@pytest.mark.slow
@given(case=cases())
@settings(deadline=None)
def test_storage_changes_no_order_of_any_case(model: Path, case: Case) -> None:
    if case.clips:
        check_equal(model, case.options)
