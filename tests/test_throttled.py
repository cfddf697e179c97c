from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from seqrecord.storage import LocalStorage, Storage
from seqrecord.storage.wrappers import Throttled
from tests.storage_contract import DATA, PATH, StorageContract, get, put


class TestThrottledStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Iterator[Storage]:
        storage = Throttled(LocalStorage(tmp_path / "dataset"), latency=0, bytes_per_second=1e12)
        yield storage
        storage.close()


def test_a_request_takes_its_latency_and_its_bytes(tmp_path: Path) -> None:
    put(LocalStorage(tmp_path), PATH, DATA)
    storage = Throttled(LocalStorage(tmp_path), latency=0.05, bytes_per_second=1e6)
    start = time.monotonic()
    get(storage, PATH, 0, 50_000)
    assert 0.1 <= time.monotonic() - start < 0.5
    start = time.monotonic()
    storage.size(PATH)
    assert time.monotonic() - start >= 0.05


def test_streams_do_not_slow_each_other(tmp_path: Path) -> None:
    put(LocalStorage(tmp_path), PATH, DATA)
    storage = Throttled(LocalStorage(tmp_path), latency=0.2, bytes_per_second=1e9)
    start = time.monotonic()
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda i: get(storage, PATH, i, i + 10), range(10)))
    assert time.monotonic() - start < 1.0
