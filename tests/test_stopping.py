"""What is not wanted any more is not tried again: leaving never waits for a storage that fails."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord.errors import NotFoundError, StorageError, TransientError
from seqrecord.pipes import SeqRecordPipe
from seqrecord.ranges import ByteRange
from seqrecord.storage import FaultyStorage, LocalStorage, Storage
from seqrecord.storage import requests as requests_module
from seqrecord.storage.azure.upload import AzureUpload
from seqrecord.storage.parallel import ParallelStorage
from seqrecord.storage.retrying import Retrier, RetryingStorage
from seqrecord.storage.stopping import check_wanted, unwanted_if
from seqrecord.storage.wrappers import Fault
from seqrecord.writer import SeqRecordWriter
from tests.clip_data import leaves_nothing

SOON = 1.5  # seconds
DEADLINE = 20.0  # for so long a request is tried again
PIPE: dict[str, Any] = {
    "clip_len": 3,
    "batch_size": 4,
    "shuffle_buffer": 16,
    "memory_limit": "1MiB",
    "num_threads": 2,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 3 MB: with `PIPE` most of it is read after the first batch."""
    path = tmp_path_factory.mktemp("stopping") / "records"
    with SeqRecordWriter(path, codecs="raw", chunk_frames=4) as writer:
        for number in range(4):
            with writer.episode(f"set/{number}") as episode:
                for _ in range(60):
                    episode.append({"image": np.zeros((64, 64, 3), np.uint8)})
    return path


class Gone:
    """Once `left` reads have gone well, all fail as if they may go well later; they never do."""

    def __init__(self) -> None:
        self.left = 1 << 30

    def __call__(self, operation: str, path: str, number: int) -> Exception | None:
        if operation != "read":
            return None
        self.left -= 1
        return TransientError("it is gone", file=path) if self.left < 0 else None


def failing(path: Path, fault: Fault) -> Storage:
    faulty = FaultyStorage(LocalStorage(path), fault)
    return ParallelStorage(RetryingStorage(faulty, deadline=DEADLINE))


@contextmanager
def soon() -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < SOON


def engine_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("seqrecord-engine")]


def wait_for_retries(storage: Storage) -> None:
    while not storage.counters()["retries"]:
        time.sleep(0.01)


def go_on_until_it_fails(iterator: Iterator[Any], storage: Storage) -> None:
    """What was read before comes yet; loads run ahead of it."""
    while not storage.counters()["retries"]:
        next(iterator)
        time.sleep(0.05)


@pytest.mark.parametrize("stride", [1, 3])  # through the arena, and straight into clips
@pytest.mark.parametrize("way", ["leave", "begin anew", "drop"])
def test_leaving_a_loop_whose_storage_is_gone(path: Path, way: str, stride: int) -> None:
    gone = Gone()
    storage = failing(path, gone)
    with leaves_nothing(), seqrecord.open(storage) as dataset:
        pipe = SeqRecordPipe(dataset, stride=stride, **PIPE)
        iterator = iter(pipe)
        next(iterator)
        gone.left = 0
        go_on_until_it_fails(iterator, storage)
        with soon():
            if way == "leave":
                iterator.close()  # type: ignore[attr-defined]
            elif way == "begin anew":
                iter(pipe)  # which waits for the memory of the one before
            del iterator, pipe
            while engine_threads():
                time.sleep(0.01)


def test_an_error_does_not_wait_for_loads_that_are_tried_again(path: Path) -> None:
    gone = Gone()
    storage = failing(path, gone)

    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        if gone.left < 100:
            wait_for_retries(storage)
            raise ZeroDivisionError("mine")
        return frame

    with leaves_nothing(), seqrecord.open(storage) as dataset:
        settings = {**PIPE, "memory_limit": "64MiB"}  # several loads at a time
        pipe = SeqRecordPipe(dataset, frame_transform=transform, **settings)
        gone.left = 1
        with soon(), pytest.raises(ZeroDivisionError, match="mine") as caught:
            list(pipe)
        del caught, pipe


CTRL_C = """
import os, signal, sys, threading, time
from pathlib import Path
import seqrecord
from tests.test_stopping import PIPE, Gone, failing, wait_for_retries

gone = Gone()
storage = failing(Path(sys.argv[1]), gone)

def interrupt():
    wait_for_retries(storage)
    time.sleep(0.2)
    print(time.time(), flush=True)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
for _ in seqrecord.SeqRecordPipe(seqrecord.open(storage), **PIPE):
    gone.left = 0
"""


def test_ctrl_c_while_a_storage_is_gone(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, str(path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        timeout=60,
        check=False,
    )
    assert time.time() - float(done.stdout) < 2 * SOON
    assert done.returncode == -signal.SIGINT
    assert done.stderr.splitlines()[-1] == "KeyboardInterrupt"


# Several requests of one call


@pytest.fixture
def small_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "MAX_REQUEST_BYTES", 1000)


@pytest.mark.usefixtures("small_requests")
def test_a_request_that_fails_ends_those_that_are_tried_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4000))
    fails = [*[TransientError("it is gone")] * 3, NotFoundError("no such file")]

    def fault(operation: str, path: str, number: int) -> Exception:
        time.sleep(0.1 if number == 3 else 0)
        return fails[min(number, 2)] if number != 3 else fails[3]

    storage = ParallelStorage(RetryingStorage(FaultyStorage(LocalStorage(tmp_path), fault)))
    with soon(), pytest.raises(NotFoundError):
        storage.read_ranges("file", [ByteRange(0, 4000)], [memoryview(bytearray(4000))])


@pytest.mark.usefixtures("small_requests")
def test_a_reader_that_has_stopped_reads_no_more_pieces(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(9000))
    reads = []
    stopped = threading.Event()

    def fault(operation: str, path: str, number: int) -> None:
        reads.append(number)
        stopped.set()

    faulty = FaultyStorage(LocalStorage(tmp_path), fault)
    storage = ParallelStorage(faulty, max_requests=1)
    with unwanted_if(stopped.is_set), pytest.raises(StorageError, match="nobody waits"):
        storage.read_ranges("file", [ByteRange(0, 9000)], [memoryview(bytearray(9000))])
    assert reads == [0]


# Uploads


class _Gone:
    """A `BlobClient` whose service is gone."""

    def stage_block(self, *_: Any, **__: Any) -> None:
        raise TransientError("it is gone")


def test_an_upload_that_is_given_up_sends_nothing_more() -> None:
    retrier = Retrier(deadline=DEADLINE)
    upload = AzureUpload(
        "file",
        _Gone(),
        "az://box/file",
        replace=False,
        retrier=retrier,
        check=lambda: None,
        ended=lambda _: None,
    )
    upload.write(bytes(9 << 20))
    while not retrier.counters()["retries"]:
        time.sleep(0.01)
    with soon():
        upload.abort()


# The condition itself


def test_conditions_add_up_and_end() -> None:
    inner, outer = threading.Event(), threading.Event()
    with unwanted_if(outer.is_set):
        with unwanted_if(inner.is_set):
            check_wanted("file")
            inner.set()
            with pytest.raises(StorageError, match="nobody waits for it any more; file: file"):
                check_wanted("file")
        check_wanted("file")
        outer.set()
        with unwanted_if(lambda: False), pytest.raises(StorageError):
            check_wanted("file")
    check_wanted("file")
