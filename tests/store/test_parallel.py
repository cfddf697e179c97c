from __future__ import annotations

import io
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import NotFoundError, StorageError
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.parallel import ParallelStorage
from seqrecord.store.storage.ranges import ByteRange, check_wanted, coalesce, plan, unwanted_if
from tests.kit.processes import own_threads, without_collector
from tests.store.storage_contract import DATA, PATH, StorageContract, get, put

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


def small(inner: Storage, **settings: int) -> ParallelStorage:
    """With short requests: many per call."""
    return ParallelStorage(inner, max_bytes=8000, max_gap=100, **settings)


class TestParallelStorage(StorageContract):
    make = staticmethod(lambda folder: small(LocalStorage(folder), max_requests=4))


# Planned requests


def fill(views: Sequence[memoryview], data: bytes) -> None:
    """The response to a request: exactly as long as its buffers."""
    with io.BytesIO(data) as response:
        assert sum(response.readinto(view) for view in views) == len(data)
        assert len(data) == sum(view.nbytes for view in views)


def test_long_ranges_are_split_into_equal_pieces() -> None:
    for length, expected in {
        1: [1],
        16 * MIB: [16 * MIB],
        16 * MIB + 1: [8 * MIB, 8 * MIB + 1],
        33 * MIB: [11 * MIB] * 3,
        160 * MIB: [16 * MIB] * 10,
    }.items():
        parts = plan([ByteRange(7, 7 + length)], [memoryview(bytearray(length))])
        assert [sum(item.length for item in items) for items, _ in parts] == expected
        assert parts[0][0][0].start == 7
        assert parts[-1][0][-1].stop == 7 + length
    out = np.zeros((3 * MIB, 3), "<f8")  # a buffer of larger items is split by bytes
    parts = plan([ByteRange(0, out.nbytes)], [out.data])
    assert len(parts) == 5
    for items, views in parts:
        fill(views, bytes([1]) * items[0].length)
    assert (out.view(np.uint8) == 1).all()


_FILE = np.random.default_rng(3).bytes(90)
_SPLIT = st.lists(
    st.builds(lambda a, n: ByteRange(a, a + n), st.integers(0, 60), st.integers(0, 30)), max_size=9
)


@given(_SPLIT, st.integers(0, 8), st.integers(1, 40))
def test_a_plan_matches_brute_force(ranges: list[ByteRange], max_gap: int, max_bytes: int) -> None:
    arrays = [np.full(item.length, 7, np.uint8) for item in ranges]
    parts = plan(ranges, [array.data for array in arrays], max_gap=max_gap, max_bytes=max_bytes)
    requested = {byte for item in ranges for byte in range(item.start, item.stop)}
    for items, views in parts:
        assert [item.length for item in items] == [view.nbytes for view in views]
        assert all(a.stop == b.start for a, b in pairwise(items))
        whole = ByteRange(items[0].start, items[-1].stop)
        assert 0 < whole.length <= max_bytes
        assert _longest_gap(whole, requested) <= max_gap
        fill(views, _FILE[whole.start : whole.stop])
    for item, array in zip(ranges, arrays, strict=True):
        assert array.tobytes() == _FILE[item.start : item.stop]
    starts = [items[0].start for items, _ in parts]
    assert starts == sorted(starts)
    pieces = _pieces(ranges, max_bytes)
    if all(a.stop <= b.start for a, b in pairwise(pieces)):
        assert len(parts) == _fewest(pieces, max_gap, max_bytes)


def _longest_gap(whole: ByteRange, requested: set[int]) -> int:
    longest = current = 0
    for byte in range(whole.start, whole.stop):
        current = 0 if byte in requested else current + 1
        longest = max(longest, current)
    return longest


def _pieces(ranges: list[ByteRange], max_bytes: int) -> list[ByteRange]:
    """The ranges in order, each cut into the fewest pieces, equal to within a byte."""
    pieces = []
    for start, stop in ranges:
        count = next(n for n in range(100) if n * max_bytes >= stop - start)
        ends = [start + (stop - start) * i // max(1, count) for i in range(count + 1)]
        pieces += list(map(ByteRange, ends, ends[1:]))
    return sorted(pieces)


def _fewest(pieces: list[ByteRange], max_gap: int, max_bytes: int) -> int:
    """Minimum number of requests over all ways to split the pieces within the limits."""
    best = [0]
    for stop in range(1, len(pieces) + 1):
        counts = []
        for start in range(stop):
            part = pieces[start:stop]
            gaps = [b.start - a.stop for a, b in pairwise(part)]
            if part[-1].stop - part[0].start <= max_bytes and max(gaps, default=0) <= max_gap:
                counts.append(best[start] + 1)
        best.append(min(counts))
    return best[-1]


# Concurrency


def test_concurrent_requests_are_limited(tmp_path: Path) -> None:
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

    storage = small(Hooked(LocalStorage(tmp_path), hook), max_requests=4)
    # Two calls of 8 pieces share four slots.
    with ThreadPoolExecutor(2) as pool:
        got = list(pool.map(lambda start: get(storage, PATH, start, start + 64_000), (0, 9)))
    assert got == [DATA[:64_000], DATA[9:64_009]]
    assert most == 4


def test_no_piece_is_written_after_an_error(tmp_path: Path) -> None:
    """Buffers are reused: a late piece would overwrite other data."""
    put(LocalStorage(tmp_path), PATH, DATA)
    failed, late = threading.Event(), threading.Event()

    def hook(ranges: Sequence[ByteRange]) -> None:
        if ranges[0].start == 0:
            failed.set()
            raise StorageError("the first piece fails")
        assert failed.wait(60)
        late.wait(0.05)  # a premature return would happen while this piece is read

    storage = small(Hooked(LocalStorage(tmp_path), hook), max_requests=2)
    out = np.zeros(len(DATA), np.uint8)
    with pytest.raises(StorageError, match="the first piece fails"):
        storage.read_ranges(PATH, [ByteRange(0, len(DATA))], [out.data])
    out[:] = 0
    late.set()
    assert not out.any()
    assert own_threads("seqrecord-read") == []


def test_an_error_keeps_no_buffer_alive(tmp_path: Path) -> None:
    """The error refers to the frames that it left, which must not refer to its future."""
    put(LocalStorage(tmp_path), PATH, DATA)

    def hook(_: Sequence[ByteRange]) -> None:
        raise StorageError("as asked")

    storage = small(Hooked(LocalStorage(tmp_path), hook), max_requests=2)

    def read() -> weakref.ref[Any]:
        out = np.zeros(len(DATA), np.uint8)
        with pytest.raises(StorageError, match="as asked"):
            storage.read_ranges(PATH, [ByteRange(0, len(DATA))], [out.data])
        return weakref.ref(out)

    with without_collector():
        assert read()() is None


def test_pieces_not_started_are_skipped_after_an_error(tmp_path: Path) -> None:
    """Even if the caller sees the error late: a started piece waits for the cancellation here."""
    put(LocalStorage(tmp_path), PATH, DATA)
    begun: list[Sequence[ByteRange]] = []

    def hook(ranges: Sequence[ByteRange]) -> None:
        begun.append(ranges)
        if len(begun) == 1:
            raise StorageError("as asked")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            check_wanted(PATH)  # raises when cancelled
            time.sleep(0.001)
        pytest.fail("the caller does not cancel its pieces")

    with pytest.raises(StorageError, match="as asked"):
        get(small(Hooked(LocalStorage(tmp_path), hook), max_requests=1), PATH, 0, 64_000)
    assert len(begun) <= 2


def test_requests_in_the_calling_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One piece is read by the caller; if no thread can start, requests are sequential."""
    threads = []
    hooked = Hooked(LocalStorage(tmp_path), lambda _: threads.append(threading.current_thread()))
    put(hooked, PATH, DATA)
    get(ParallelStorage(hooked), PATH)
    assert threads == [threading.current_thread()]
    with pytest.raises(NotFoundError):
        ParallelStorage(hooked).read_ranges("nothing", [ByteRange(0, 0)], [memoryview(b"")])
    with pytest.raises(ValueError, match="requests"):
        ParallelStorage(hooked, max_requests=0)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")  # or at a limit

    monkeypatch.setattr(threading.Thread, "start", start)
    assert get(small(hooked), PATH) == DATA


# Properties of coalesce() for any ranges

_RANGES = st.lists(
    st.builds(lambda a, n: ByteRange(a, a + n), st.integers(0, 60), st.integers(0, 20))
)


@given(_RANGES, st.integers(0, 8), st.integers(0, 40))
def test_coalesce(ranges: list[ByteRange], max_gap: int, max_length: int) -> None:
    reads = coalesce(ranges, max_gap=max_gap, max_length=max_length)
    assert sorted(member for _, members in reads for member in members) == list(range(len(ranges)))
    for read, members in reads:
        inside = [ranges[member] for member in members]
        assert read == ByteRange(min(r.start for r in inside), max(r.stop for r in inside))
        assert read.length <= max(max_length, *(r.length for r in inside))
        # An empty range is a neighbour too.
        first, *others = sorted(inside)
        stops = accumulate((r.stop for r in [first, *others]), max)
        gaps = [b.start - stop for stop, b in zip(stops, others, strict=False)]
        assert all(gap <= max_gap for gap in gaps)
    assert [read.start for read, _ in reads] == sorted(read.start for read, _ in reads)
    # Neighbours are merged unless a limit forbids it.
    for (a, _), (b, _) in pairwise(reads):
        merged = max(a.stop, b.stop) - a.start
        assert b.start - a.stop > max_gap or merged > max_length


def test_examples() -> None:
    ranges = [ByteRange(100, 110), ByteRange(0, 10), ByteRange(12, 20), ByteRange(5, 8)]
    reads = [(ByteRange(0, 20), [1, 3, 2]), (ByteRange(100, 110), [0])]
    assert coalesce(ranges, max_gap=2, max_length=20) == reads
    assert coalesce([ByteRange(0, 99)], max_gap=0, max_length=10) == [(ByteRange(0, 99), [0])]
    for bad in (ByteRange(-1, 3), ByteRange(4, 3)):
        with pytest.raises(ValueError, match="not a byte range"):
            coalesce([ByteRange(0, 1), bad], max_gap=0, max_length=1)


# Reads that are no longer needed


def test_nested_conditions_all_apply_until_their_block_ends() -> None:
    inner, outer = threading.Event(), threading.Event()
    with unwanted_if(outer.is_set):
        with unwanted_if(inner.is_set):
            check_wanted("file")
            inner.set()
            with pytest.raises(StorageError, match="no longer needed; file: file"):
                check_wanted("file")
        check_wanted("file")
        outer.set()
        with unwanted_if(lambda: False), pytest.raises(StorageError):
            check_wanted("file")
    check_wanted("file")
