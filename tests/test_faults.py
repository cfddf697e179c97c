"""An epoch from a service that fails: the same clips as without failures, or a clear error."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import EngineOptions, SeqRecordPipe, SeqRecordWriter
from seqrecord.storage import Storage, StorageWrapper, open_storage
from seqrecord.storage.retrying import Retrier, RetryingStorage
from tests.clip_data import digest, digests
from tests.fault_proxy import FaultProxy, Request, Scripted, Seeded
from tests.obstore_runtime import obstore_is
from tests.places import giving_up, hastened
from tests.services import Azurite
from tests.services.process import wait_for

BACKENDS = ["obstore", "urllib3"]
PIPE: dict[str, Any] = {
    "clip_len": 3,
    "batch_size": 4,
    "engine": EngineOptions(shuffle_buffer=16),
    "seed": 2,
}


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """Clients close their connections when they are collected: in the test that made them."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def obstore_reads_what_is_small() -> Iterator[None]:
    with obstore_is(used=True):
        yield


@pytest.fixture(scope="module")
def quiet(path: Path) -> list[Any]:
    return digests(SeqRecordPipe(path, **PIPE))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Too large to be read before anyone looks, with little memory."""
    path = tmp_path_factory.mktemp("faults") / "large"
    rng = np.random.default_rng(0)
    with SeqRecordWriter(path, codecs="raw", chunk_frames=4, max_file_size=1 << 20) as writer:
        for number in range(4):
            with writer.episode(f"set/{number}") as episode:
                for _ in range(60):
                    episode.append({"image": rng.integers(0, 256, (64, 64, 3), np.uint8)})
    return path


SMALL_MEMORY: dict[str, Any] = {
    "clip_len": 3,
    "batch_size": 2,
    "engine": EngineOptions(shuffle_buffer=4, num_cursors=2),
    "memory_limit": "2MiB",
    "seed": 1,
}


def store(azurite: Azurite, folder: Path, container: str) -> None:
    for file in folder.rglob("*.*"):
        azurite.put(container, f"set/{file.relative_to(folder)}", file.read_bytes())


def opened(
    azurite: Azurite, container: str, endpoint: str | None = None, **options: Any
) -> Storage:
    text = azurite.connection_string_at(endpoint or azurite.endpoint)
    return hastened(open_storage(f"az://{container}/set", {"connection_string": text, **options}))


def epoch(storage: Storage, settings: dict[str, Any]) -> list[Any]:
    with seqrecord.open(storage) as dataset:
        return digests(SeqRecordPipe(dataset, **settings))


def proxied(azurite: Azurite, proxy: FaultProxy) -> str:
    return f"http://{proxy.host}/{azurite.account}"


@pytest.fixture
def stored(azurite: Azurite, container: str, path: Path) -> str:
    store(azurite, path, container)
    return container


def _of_records(request: Request) -> bool:
    return request.method == "GET" and "/records/" in request.path


# Epochs


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("seed", [1, 2])
def test_an_epoch_through_faults_is_that_of_a_quiet_run(
    azurite: Azurite, container: str, large: Path, backend: str, seed: int
) -> None:
    expected = digests(SeqRecordPipe(large, **SMALL_MEMORY))
    store(azurite, large, container)
    with FaultProxy(azurite.host, Seeded(seed, 0.3), retry_after=0) as p:
        storage = opened(azurite, container, proxied(azurite, p), backend=backend)
        clips = epoch(storage, SMALL_MEMORY)
        counters = storage.counters()
        storage.close()
        faults = sum(p.faults.values())
    assert clips == expected
    assert faults > 10
    if backend == "urllib3":  # it asks for a length before it reads a whole file
        assert 0 < counters["retries"] <= faults
    else:
        assert counters["retries"] == faults
        assert counters["requests"] == p.requests


@pytest.mark.parametrize("backend", BACKENDS)
def test_servers_that_hang_and_that_trickle(
    azurite: Azurite, stored: str, quiet: list[Any], backend: str
) -> None:
    fault = Scripted(["hang", "slow"], of=_of_records)
    with FaultProxy(azurite.host, fault, slow_seconds=1.0) as proxy:
        # An attempt is given up after a quarter of the deadline without a byte.
        storage = opened(azurite, stored, proxied(azurite, proxy), backend=backend, deadline=8)
        giving_up(storage, 60)
        clips = epoch(storage, PIPE)
        retries = storage.counters()["retries"]
        storage.close()
        assert proxy.faults == {"hang": 1, "slow": 1}
    assert clips == quiet
    assert retries >= 1


def test_an_epoch_given_up_amid_faults_leaves_nothing(azurite: Azurite, stored: str) -> None:
    with FaultProxy(azurite.host, Seeded(3, 0.3), retry_after=0) as proxy:
        endpoint = proxied(azurite, proxy)
        # What lasts as long as the process: obstore's threads, and the proxy's for its clients.
        warm = opened(azurite, stored, endpoint, backend="urllib3")
        epoch(warm, PIPE)
        warm.close()

        def threads() -> set[str]:
            return {thread.name for thread in threading.enumerate() if "seqrecord" in thread.name}

        before = threads()
        storage = opened(azurite, stored, endpoint, backend="urllib3")
        with seqrecord.open(storage) as dataset:
            batches = iter(SeqRecordPipe(dataset, **PIPE))
            next(batches)
            del batches
        wait_for(lambda: not threads() - before)


# A service that dies


@contextlib.contextmanager
def back_when(azurite: Azurite, has_failed: Callable[[], bool]) -> Iterator[None]:
    """Kill it, and start it again amid what follows, when that has failed."""
    over = threading.Event()

    def restart() -> None:
        while not has_failed() and not over.wait(0.01):
            pass
        azurite.restart()
        over.wait()  # it ends with the thread that started it

    thread = threading.Thread(target=restart)
    azurite.kill()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_service_that_dies_and_returns(
    mortal_azurite: Azurite, large: Path, backend: str
) -> None:
    expected = digests(SeqRecordPipe(large, **SMALL_MEMORY))
    azurite = mortal_azurite
    container = azurite.new_container()
    store(azurite, large, container)
    azurite.save()
    storage = opened(azurite, container, backend=backend)
    with seqrecord.open(storage) as dataset:
        batches = iter(SeqRecordPipe(dataset, **SMALL_MEMORY))
        clips = [digest(next(batches)) for _ in range(2)]
        before = storage.counters()
        with back_when(azurite, lambda: storage.counters()["retries"] > before["retries"]):
            clips += [digest(batch) for batch in batches]
        after = storage.counters()
    assert clips == expected
    assert after["retries"] > before["retries"]
    assert after["requests"] > before["requests"] + 5


def test_what_is_said_while_a_service_is_gone(
    mortal_azurite: Azurite, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning after a while, another when it recovers; no more of what clients say."""
    container = mortal_azurite.new_container()
    store(mortal_azurite, path, container)
    mortal_azurite.save()
    inner = opened(mortal_azurite, container)
    while isinstance(inner, StorageWrapper):
        inner = inner.inner
    storage = RetryingStorage(inner, retrier=Retrier(patience=0.5))

    def ours() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.name == "seqrecord"]

    with back_when(mortal_azurite, lambda: bool(ours())), seqrecord.open(storage) as dataset:
        assert dataset.num_frames == 75
    said = [record.getMessage() for record in ours()]
    assert all(record.levelno == logging.WARNING for record in ours())
    assert re.search(r"az://\S+: the storage failed: .*; tried again for \d+ s more", said[0])
    assert re.fullmatch(r"az://\S+: recovered after \d+ s", said[-1])
