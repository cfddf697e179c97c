from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from seqrecord import NotFoundError, StorageError, TransientError
from seqrecord.ranges import ByteRange
from seqrecord.storage import LocalStorage, Storage, StorageWrapper
from seqrecord.storage import parallel as parallel_module
from seqrecord.storage import requests as requests_module
from seqrecord.storage.parallel import ParallelStorage
from seqrecord.storage.requests import fill, hurried, merge, missing_bytes, split
from seqrecord.storage.retrying import RetryingStorage
from seqrecord.threads import ThreadPool
from tests.storage_contract import DATA, PATH, StorageContract, get, put
from tests.storage_doubles import CountingStorage, FailAt, FailTransiently, FaultyStorage

MIB = 1 << 20


class Hooked(StorageWrapper):
    """Calls `hook(ranges)` before each read."""

    def __init__(self, inner: Storage, hook: Callable[[Sequence[ByteRange]], None]) -> None:
        super().__init__(inner)
        self.hook = hook

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        self.hook(ranges)
        super().read_ranges(path, ranges, buffers)


@pytest.fixture
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "MAX_REQUEST_BYTES", 8000)
    monkeypatch.setattr(requests_module, "MAX_GAP", 100)


@pytest.mark.usefixtures("small_requests")
class TestParallelStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        storage = ParallelStorage(LocalStorage(tmp_path / "dataset"), max_requests=4)
        yield storage
        storage.close()


# Which requests


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (1, [1]),
        (16 * MIB, [16 * MIB]),
        (16 * MIB + 1, [8 * MIB, 8 * MIB + 1]),
        (33 * MIB, [11 * MIB] * 3),
        (160 * MIB, [16 * MIB] * 10),
    ],
)
def test_long_ranges_are_cut_into_equal_pieces(length: int, expected: list[int]) -> None:
    buffer = memoryview(bytearray(length))
    parts = split([ByteRange(7, 7 + length)], [buffer])
    assert [sum(item.length for item in items) for items, _ in parts] == expected
    assert parts[0][0][0].start == 7
    assert parts[-1][0][-1].stop == 7 + length
    for items, views in parts:
        assert [item.length for item in items] == [view.nbytes for view in views]


def _random_call(seed: int) -> tuple[list[ByteRange], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, len(DATA) - 1000, rng.integers(1, 12))
    lengths = rng.choice([0, 1, 50, 300, 9000, 30_000], len(starts))
    ranges = [
        ByteRange(int(a), min(int(a + n), len(DATA))) for a, n in zip(starts, lengths, strict=True)
    ]
    return ranges, [np.full(item.length, 7, np.uint8) for item in ranges]


@pytest.mark.usefixtures("small_requests")
@pytest.mark.parametrize("seed", range(30))
def test_split_and_merge_cover_exactly_what_was_asked(seed: int) -> None:
    ranges, arrays = _random_call(seed)
    for items, views in split(ranges, [array.data for array in arrays]):
        for whole, targets in merge(items, views):
            assert whole.length == sum(target.nbytes for target in targets)
            assert fill(targets, [DATA[whole.start : whole.stop]]) == whole.length
    for item, array in zip(ranges, arrays, strict=True):
        assert array.tobytes() == DATA[item.start : item.stop]


def test_near_ranges_are_one_request() -> None:
    ranges = [ByteRange(*pair) for pair in [(300, 400), (0, 100), (5, 5), (100, 200)]]
    arrays = [np.zeros(item.length, np.uint8) for item in ranges]
    buffers = [array.data for array in arrays]
    [(items, views)] = split(ranges, buffers)
    [(whole, targets)] = merge(items, views)
    assert whole == (0, 400)
    assert [target.nbytes for target in targets] == [100, 100, 100, 100]
    fill(targets, [DATA[:250], DATA[250:400]])
    assert arrays[0].tobytes() == DATA[300:400]
    assert arrays[3].tobytes() == DATA[100:200]


def test_far_ranges_are_several() -> None:
    far = requests_module.MAX_GAP + 1
    ranges = [ByteRange(0, 10), ByteRange(10 + far, 20 + far), ByteRange(20 + far, 30 + far)]
    buffers = [memoryview(bytearray(10)) for _ in ranges]
    assert [items for items, _ in split(ranges, buffers)] == [ranges[:1], ranges[1:]]
    assert [whole for whole, _ in merge(ranges, buffers)] == [(0, 10), (10 + far, 30 + far)]


def test_buffers_of_other_items_are_cut_by_bytes() -> None:
    out = np.zeros((3 * MIB, 3), "<f8")
    parts = split([ByteRange(0, out.nbytes)], [out.data])
    assert len(parts) == 5
    for items, views in parts:
        fill(views, [bytes([1]) * items[0].length])
    assert (out.view(np.uint8) == 1).all()


@pytest.mark.parametrize("step", [1, 3, 100])
def test_chunks_of_any_length_fill_views_of_any_length(step: int) -> None:
    arrays = [np.zeros(n, np.uint8) for n in (1, 5, 2, 9)]
    chunks = [DATA[i : min(i + step, 20)] for i in range(0, 20, step)]
    assert fill([array.data for array in arrays], chunks) == 17
    assert b"".join(array.tobytes() for array in arrays) == DATA[:17]


def test_a_body_that_ends_early_is_told_by_its_length() -> None:
    array = np.zeros(10, np.uint8)
    assert fill([array.data], [b"123", b"4"]) == 4


def test_a_body_that_trickles_is_given_up() -> None:
    times = iter(range(0, 1000, 10))
    chunks = [bytes(640 << 10)] * 2 + [bytes(1000)] * 20  # 64 KiB a second, then next to nothing
    got = []
    with pytest.raises(TransientError, match=r"too slowly: \d+ bytes in 30 s; file: f"):
        got += list(hurried(iter(chunks), 15, "f", clock=lambda: next(times)))
    assert len(list(hurried(iter(chunks), 30, "f", clock=lambda: 1.0))) == 22


def test_missing_bytes_are_the_files_end_or_an_accident(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    put(storage, PATH, DATA)
    item = ByteRange(10, len(DATA))
    assert isinstance(missing_bytes(storage, PATH, "f", item, 5), TransientError)
    error = missing_bytes(storage, PATH, "f", ByteRange(10, len(DATA) + 1), 5)
    assert not isinstance(error, TransientError)
    assert "ended early" in str(error)


# How they run


@pytest.mark.usefixtures("small_requests")
def test_pieces_are_under_way_together_and_bounded(tmp_path: Path) -> None:
    put(LocalStorage(tmp_path), PATH, DATA)
    barrier = threading.Barrier(4, timeout=60)
    lock = threading.Lock()
    now, most = 0, 0

    def hook(_: Sequence[ByteRange]) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        barrier.wait()
        with lock:
            now -= 1

    storage = ParallelStorage(Hooked(LocalStorage(tmp_path), hook), max_requests=4)
    # Two calls of 8 pieces, which share the four places.
    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda start: get(storage, PATH, start, start + 64_000), (0, 9)))
    assert got == [DATA[:64_000], DATA[9:64_009]]
    assert most == 4


@pytest.mark.usefixtures("small_requests")
def test_no_thread_outlives_a_call(tmp_path: Path) -> None:
    storage = ParallelStorage(LocalStorage(tmp_path))
    put(storage, PATH, DATA)
    before = set(threading.enumerate())
    assert get(storage, PATH) == DATA
    assert set(threading.enumerate()) <= before


def test_one_piece_is_read_by_its_caller(tmp_path: Path) -> None:
    threads = []
    hooked = Hooked(LocalStorage(tmp_path), lambda _: threads.append(threading.current_thread()))
    put(hooked, PATH, DATA)
    get(ParallelStorage(hooked), PATH)
    assert threads == [threading.current_thread()]


@pytest.mark.usefixtures("small_requests")
def test_after_an_error_nothing_is_written_any_more(tmp_path: Path) -> None:
    """Buffers are reused: a piece that came in late would spoil somebody else's."""
    put(LocalStorage(tmp_path), PATH, DATA)
    failed, late = threading.Event(), threading.Event()

    def hook(ranges: Sequence[ByteRange]) -> None:
        if ranges[0].start == 0:
            failed.set()
            raise StorageError("the first piece fails")
        assert failed.wait(60)
        late.wait(0.05)  # returns while this piece is under way, if it could

    storage = ParallelStorage(Hooked(LocalStorage(tmp_path), hook), max_requests=2)
    out = np.zeros(len(DATA), np.uint8)
    with pytest.raises(StorageError, match="the first piece fails"):
        storage.read_ranges(PATH, [ByteRange(0, len(DATA))], [out.data])
    out[:] = 0
    late.set()
    assert not out.any()
    assert not [t for t in threading.enumerate() if t.name.startswith("seqrecord-read")]


@pytest.mark.usefixtures("small_requests")
def test_what_was_not_begun_is_left_after_an_error(tmp_path: Path) -> None:
    counting = CountingStorage(FaultyStorage(LocalStorage(tmp_path), FailAt("read")))
    put(counting, PATH, DATA)
    with pytest.raises(StorageError, match="as asked"):
        get(ParallelStorage(counting, max_requests=1), PATH, 0, 64_000)
    assert len(counting.ranges[PATH]) < 8


@pytest.mark.usefixtures("small_requests")
def test_each_piece_is_repeated_by_itself(tmp_path: Path) -> None:
    counting = CountingStorage(
        FaultyStorage(LocalStorage(tmp_path), FailTransiently(3, 0.4, ("read",)))
    )
    put(counting, PATH, DATA)
    retrying = RetryingStorage(counting)
    retrying._retrier._sleep = lambda _: None
    storage = ParallelStorage(retrying, max_requests=4)
    for _ in range(20):
        assert get(storage, PATH, 0, 64_000) == DATA[:64_000]
    counters = storage.counters()
    assert counters["retries"] > 20
    assert counting.bytes_read == 20 * 64_000 + counters["retries"] * 8000


def test_an_absent_file_is_not_found_whatever_is_asked(tmp_path: Path) -> None:
    storage = ParallelStorage(LocalStorage(tmp_path))
    with pytest.raises(NotFoundError):
        storage.read_ranges("nothing", [ByteRange(0, 0)], [memoryview(b"")])


def test_a_leaving_interpreter_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_requests: None
) -> None:
    class Leaving(ThreadPool):
        def submit(self, *_: object) -> object:  # type: ignore[override]
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    storage = ParallelStorage(LocalStorage(tmp_path))
    put(storage, PATH, DATA)
    monkeypatch.setattr(parallel_module, "ThreadPool", Leaving)
    with pytest.raises(StorageError, match="interpreter leaves"):
        get(storage, PATH)


def test_places_have_to_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="requests"):
        ParallelStorage(LocalStorage(tmp_path), max_requests=0)
