from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seqrecord.storage import LocalStorage, Storage
from tests import storage_doubles
from tests.storage_contract import DATA, PATH, StorageContract, get, put
from tests.storage_doubles import Throttled


class TestThrottledStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        storage = Throttled(LocalStorage(tmp_path / "dataset"), latency=0, bytes_per_second=1e12)
        yield storage
        storage.close()


class Clock:
    """In the place of the module `time`: nothing takes any but what sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_request_takes_its_latency_and_its_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(storage_doubles, "time", clock)
    put(LocalStorage(tmp_path), PATH, DATA)
    storage = Throttled(LocalStorage(tmp_path), latency=0.05, bytes_per_second=1e6)
    get(storage, PATH, 0, 50_000)
    assert clock.now == pytest.approx(0.1)
    storage.size(PATH)
    assert clock.now == pytest.approx(0.15)
    storage.files("records")
    assert clock.now == pytest.approx(0.2)


def test_streams_do_not_slow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(10, timeout=60)

    class Meeting(Clock):
        def sleep(self, seconds: float) -> None:
            assert seconds == 0.2
            together.wait()  # all of them, or it breaks

    monkeypatch.setattr(storage_doubles, "time", Meeting())
    put(LocalStorage(tmp_path), PATH, DATA)
    storage = Throttled(LocalStorage(tmp_path), latency=0.2, bytes_per_second=1e12)
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda i: get(storage, PATH, i, i), range(10)))
