"""An epoch from a service that fails: the same clips as without failures, or a clear error."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import EngineOptions, SeqRecordPipe
from seqrecord.errors import AccessError, DeadlineError, NotFoundError, StorageError
from seqrecord.storage import Storage, StorageWrapper, open_storage
from seqrecord.storage.ranges import ByteRange
from seqrecord.storage.retrying import Retrier, RetryingStorage
from seqrecord.writing.writer import SeqRecordWriter
from tests.clip_data import digest
from tests.fault_proxy import FaultProxy, Planned, Request, Scripted, Seeded
from tests.obstore_runtime import obstore_is
from tests.places import giving_up, hastened
from tests.services import Azurite

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
    return [digest(batch) for batch in SeqRecordPipe(path, **PIPE)]


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
    for file in folder.rglob("*"):
        if file.is_file():
            azurite.put(container, f"set/{file.relative_to(folder)}", file.read_bytes())


def opened(
    azurite: Azurite, container: str, endpoint: str | None = None, **options: Any
) -> Storage:
    text = azurite.connection_string_at(endpoint or azurite.endpoint)
    return hastened(open_storage(url(container), {"connection_string": text, **options}))


def url(container: str, folder: str = "set") -> str:
    return f"az://{container}/{folder}"


def epoch(storage: Storage, settings: dict[str, Any]) -> list[Any]:
    with seqrecord.open(storage) as dataset:
        return [digest(batch) for batch in SeqRecordPipe(dataset, **settings)]


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
    expected = [digest(batch) for batch in SeqRecordPipe(large, **SMALL_MEMORY)]
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
@pytest.mark.parametrize("kind", ["reset", "cut", "short", "500", "503", "429"])
def test_each_fault_is_overcome(
    azurite: Azurite, stored: str, quiet: list[Any], backend: str, kind: str
) -> None:
    fault = Scripted([kind, None, kind], of=_of_records)
    with FaultProxy(azurite.host, fault, retry_after=0) as proxy:
        storage = opened(azurite, stored, proxied(azurite, proxy), backend=backend)
        clips = epoch(storage, PIPE)
        retries = storage.counters()["retries"]
        storage.close()
        assert proxy.faults == {kind: 2}
    assert clips == quiet
    assert retries == 2 or backend == "urllib3"


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


@pytest.mark.parametrize("backend", ["urllib3"])
def test_a_server_that_says_when_is_left_alone_until_then(
    azurite: Azurite, stored: str, backend: str
) -> None:
    with FaultProxy(azurite.host, Scripted(["503"], of=_of_records), retry_after=2) as proxy:
        storage = opened(azurite, stored, proxied(azurite, proxy), backend=backend)
        record = storage.files("records")[0].path
        buffer = bytearray(100)
        start = time.monotonic()
        storage.read_ranges(record, [ByteRange(0, 100)], [memoryview(buffer)])
        assert time.monotonic() - start >= 2
        storage.close()


def test_an_epoch_given_up_amid_faults_leaves_nothing(azurite: Azurite, stored: str) -> None:
    with FaultProxy(azurite.host, Seeded(3, 0.3), retry_after=0) as proxy:
        endpoint = proxied(azurite, proxy)
        # What lasts as long as the process: obstore's threads, and the proxy's for its clients.
        warm = opened(azurite, stored, endpoint, backend="urllib3")
        epoch(warm, PIPE)
        warm.close()
        threads = {t.name for t in threading.enumerate() if "seqrecord" in t.name}
        storage = opened(azurite, stored, endpoint, backend="urllib3")
        with seqrecord.open(storage) as dataset:
            batches = iter(SeqRecordPipe(dataset, **PIPE))
            next(batches)
            del batches
        patience = time.monotonic() + 60
        while {t.name for t in threading.enumerate() if "seqrecord" in t.name} - threads:
            assert time.monotonic() < patience
            time.sleep(0.01)


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
    expected = [digest(batch) for batch in SeqRecordPipe(large, **SMALL_MEMORY)]
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


# What will not pass


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_deadline(azurite: Azurite, stored: str, backend: str) -> None:
    def always(request: Request) -> str | None:
        return "500" if _of_records(request) else None

    fault: Planned = always
    with FaultProxy(azurite.host, fault) as proxy:
        storage = opened(azurite, stored, proxied(azurite, proxy), backend=backend)
        giving_up(storage, 1)
        start = time.monotonic()
        with pytest.raises(
            DeadlineError,
            match=r"bytes \d+ to \d+ could not be read: \d+ attempts? in \d+ s; "
            r"at last the storage failed: .*HTTP status 500.*; file: az://.*/set/records/.*seqrec",
        ):
            epoch(storage, PIPE)
        assert 1 <= time.monotonic() - start < 60  # of the 120 that are the default
        storage.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_service_that_never_comes(
    azurite: Azurite, stored: str, backend: str, path: Path
) -> None:
    endpoint = f"http://127.0.0.1:1/{azurite.account}"
    storage = opened(azurite, stored, endpoint, backend=backend, deadline=0.5)
    with pytest.raises(
        DeadlineError, match=r"it failed: \d+ attempts? in \d+ s; at last .*manifest"
    ):
        seqrecord.open(storage)
    storage.close()


def _at_once(proxy: FaultProxy, storage: Storage, kind: type[StorageError], says: str) -> str:
    start = time.monotonic()
    with pytest.raises(kind, match=says) as caught:
        seqrecord.open(storage)
    assert time.monotonic() - start < 60  # of 120
    # Of what is missing it asks what exactly, what lies there, and whether that is an original.
    assert proxy.requests <= 8
    assert storage.counters()["retries"] == 0
    storage.close()
    return str(caught.value)


@pytest.mark.parametrize("backend", BACKENDS)
def test_refusals_are_told_at_once(azurite: Azurite, stored: str, backend: str) -> None:
    with FaultProxy(azurite.host) as proxy:
        endpoint = proxied(azurite, proxy)
        for minutes, permission in ((-10, "rl"), (10, "w")):
            sas = azurite.sas(stored, permission, minutes=minutes)
            options = {
                "account_name": azurite.account,
                "endpoint": endpoint,
                "sas_token": sas,
                "backend": backend,
            }
            storage = open_storage(url(stored), options)
            said = _at_once(proxy, storage, AccessError, "SAS")
            assert re.search(r"sig=([^&]+)", sas)[1] not in said  # type: ignore[index]
            proxy.reset()
        key = "c2VjcmV0LWtleQ=="
        text = azurite.connection_string_at(endpoint).replace(azurite.key, key)
        options = {"connection_string": text, "backend": backend}
        storage = open_storage(url(stored), options)
        assert key not in _at_once(proxy, storage, AccessError, "check the key")
        proxy.reset()
        nowhere = opened(azurite, "nowhere", endpoint, backend=backend)
        _at_once(proxy, nowhere, NotFoundError, "no such container")
        proxy.reset()
        options = {"connection_string": azurite.connection_string_at(endpoint), "backend": backend}
        nothing = open_storage(url(stored, "other"), options)
        _at_once(proxy, nothing, NotFoundError, "other")
