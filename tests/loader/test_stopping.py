"""Stopping waits only for loads in progress, and not for a failing storage."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import NotFoundError, SeqRecordMix, SeqRecordPipe
from seqrecord.errors import ChecksumError, TransientError
from seqrecord.loader.engine.arena import Arena
from seqrecord.loader.engine.batches import Channel, ClosedError, OpenBatch
from seqrecord.loader.engine.run import Scheduler
from seqrecord.loader.engine.stats import EngineStats
from seqrecord.store.storage.base import Storage, StorageWrapper
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.ranges import ByteRange, unwanted_if
from tests.kit.clip_data import effective_arguments, no_leaks
from tests.kit.datasets import columns, noise, write_dataset, written_once
from tests.kit.faults import Fault, FaultyStorage
from tests.kit.processes import own_threads, run_code, wait_for, without_collector
from tests.kit.services.places import as_remote

# Waiting for a failing request takes DEADLINE, so an end within SOON has not waited, even on a busy
# machine: mean 0.1 s, standard deviation 0.1 s. Both are within the time limit of tests.
SOON = 30.0  # seconds
DEADLINE = 90.0  # of the last retry of a request
PIPE: dict[str, Any] = {
    "clip_len": 3,
    "batch_size": 4,
    "engine": seqrecord.EngineOptions(shuffle_buffer=16, num_threads=2),
    "memory_limit": "1MiB",
}


path = written_once(
    write_dataset,
    {f"set/{n}": columns(image=np.zeros((60, 64, 64, 3), np.uint8)) for n in range(4)},
    codecs="raw",
    chunk_frames=4,
)
"""A dataset of 3 MB: with `PIPE` most of it is read after the first batch."""


def transient(file: str = "file") -> TransientError:
    """A transient error whose retry delay exceeds the deadline."""
    error = TransientError("it is gone", file=file)
    error.retry_after = 300.0
    return error


class FailingReads:
    """After `left` successful reads, all further ones fail with transient errors."""

    def __init__(self) -> None:
        self.left = 1 << 30

    def __call__(self, operation: str, path: str, number: int) -> Exception | None:
        if operation != "read":
            return None
        self.left -= 1
        return transient(path) if self.left < 0 else None


def failing(path: Path, fault: Fault, **settings: int) -> Storage:
    faulty = FaultyStorage(LocalStorage(path), fault)
    return as_remote(faulty, DEADLINE, **settings)


@contextmanager
def soon() -> Iterator[None]:
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < SOON


def wait_for_retries(storage: Storage, count: int = 1) -> None:
    while storage.counters()["retries"] < count:
        time.sleep(0.01)


def iterate_until_failure(iterator: Iterator[Any], storage: Storage, gone: FailingReads) -> None:
    """Until a load ahead of the batches fails."""
    while not storage.counters()["retries"]:
        gone.left = 1 << 30
        next(iterator)
        gone.left = 0
        patience = time.monotonic() + 0.2
        while not storage.counters()["retries"] and time.monotonic() < patience:
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("way", "stride"),  # through the arena, and straight into clips
    [
        ("leave", 1),
        ("restart", 3),
        ("drop", 1),
        *(
            pytest.param(way, stride, marks=pytest.mark.slow)
            for way, stride in (("leave", 3), ("restart", 1), ("drop", 3))
        ),
    ],
)
def test_leaving_a_loop_with_a_failing_storage(path: Path, way: str, stride: int) -> None:
    gone = FailingReads()
    storage = failing(path, gone)
    with no_leaks(), seqrecord.open(storage) as dataset:
        pipe = SeqRecordPipe(dataset, stride=stride, **PIPE)
        iterator = iter(pipe)
        iterate_until_failure(iterator, storage, gone)
        with soon():
            if way == "leave":
                iterator.close()  # type: ignore[attr-defined]
            elif way == "restart":
                iter(pipe)  # waits for the memory of the previous iteration
            del iterator, pipe
            while own_threads("seqrecord-engine"):
                time.sleep(0.01)


class FailingFrom(StorageWrapper):
    """Reads at byte `start` of a record file or later fail with `error(path)`."""

    start = 1 << 60
    error: Callable[[str], Exception] = staticmethod(transient)

    def read_ranges(
        self, path: str, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]
    ) -> None:
        if path.startswith("records/") and any(item.start >= self.start for item in ranges):
            raise self.error(path)
        self.inner.read_ranges(path, ranges, buffers)


def test_an_error_does_not_wait_for_retried_loads(path: Path) -> None:
    gone = FailingFrom(LocalStorage(path))
    storage = as_remote(gone, DEADLINE)

    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        if gone.start == FailingFrom.start:  # creating a pipe transforms a frame
            return frame
        wait_for_retries(storage)  # of later loads
        raise ZeroDivisionError("mine")

    with no_leaks(), seqrecord.open(storage) as dataset:
        settings = effective_arguments({**PIPE, "shuffle": False})
        settings["memory_limit"] = "64MiB"  # several loads at a time
        pipe = SeqRecordPipe(dataset, frame_transform=transform, **settings)
        [table] = dataset.contents.index.groups
        gone.start = int(table.offset[1])  # the second chunk's; there is one file
        with soon(), pytest.raises(ZeroDivisionError, match="mine") as caught:
            list(pipe)
        del caught, pipe


BEGIN = """
import os, signal, sys, threading, time
from pathlib import Path
import seqrecord
from tests.loader.test_stopping import PIPE, FailingReads, failing
from tests.loader.test_stopping import iterate_until_failure, wait_for_retries

gone = FailingReads()
storage = failing(Path(sys.argv[1]), gone, max_bytes=1000)  # several requests per load

def interrupt():
    wait_for_retries(storage, 3)
    time.sleep(0.2)
    print(time.monotonic(), flush=True)
    os.kill(os.getpid(), signal.SIGINT)

interrupter = threading.Thread(target=interrupt, daemon=True)
"""
CTRL_C = """
interrupter.start()
for _ in seqrecord.SeqRecordPipe(seqrecord.open(storage), **PIPE):
    gone.left = 0
"""
CTRL_C_AT_THE_START = """
gone.left = 1  # the manifest; then the index fails
interrupter.start()
seqrecord.open(storage)
"""


LEAVES = """
import logging
logging.disable()
iterator = iter(seqrecord.SeqRecordPipe(seqrecord.open(storage), **PIPE))
iterate_until_failure(iterator, storage, gone)
print(time.monotonic(), flush=True)
"""


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        pytest.param(CTRL_C, -signal.SIGINT, ["KeyboardInterrupt"], id="Ctrl-C"),
        pytest.param(
            *(CTRL_C_AT_THE_START, -signal.SIGINT, ["KeyboardInterrupt"]),
            id="Ctrl-C at the start",
            marks=pytest.mark.slow,
        ),
        pytest.param(LEAVES, 0, [], id="leaves", marks=pytest.mark.slow),
    ],
)
def test_ending_a_process_with_a_failing_storage(
    path: Path, code: str, status: int, stderr: list[str]
) -> None:
    done = run_code(BEGIN + code, path, status=status, timeout=DEADLINE + SOON)
    assert time.monotonic() - float(done.stdout) < SOON  # all processes have the same clock
    assert done.stderr.splitlines()[-1:] == stderr


def test_ctrl_c_while_an_iteration_starts_its_thread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread runs before `start` returns, and must end without a reference to it."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.endswith("-scheduler"):
            raise KeyboardInterrupt

    stream = SeqRecordPipe(path, clip_len=2, batch_size=1)
    with no_leaks():
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(iter(stream))
        del stream


def test_deleted_loaders_are_closed_at_once(path: Path) -> None:
    """They are in no reference cycle, which would need a garbage collection."""

    def use() -> None:
        next(iter(SeqRecordPipe(path, clip_len=2, batch_size=1)))
        next(iter(SeqRecordPipe(path, **PIPE)))
        next(iter(SeqRecordPipe(path, clip_len=2).shuffle().batch(2).collate(seqrecord.collate)))
        seqrecord.SeqRecordMapDataset(path, clip_len=2)[0]
        assert seqrecord.open(path).episodes["set/0"][0]

    def files() -> list[str]:
        links = (os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())
        return [link for link in links if link.startswith(str(path))]

    with without_collector():
        use()
        patience = time.monotonic() + 30
        while files() and time.monotonic() < patience:
            time.sleep(0.01)
        assert files() == []


def num_arenas() -> int:
    return sum(isinstance(item, Arena) for item in gc.get_objects())


@contextmanager
def memory_is_free_again() -> Iterator[int]:
    """Assert that iterations keep no arena; yields the number of arenas before."""
    before = num_arenas()
    yield before
    wait_for(lambda: not own_threads("seqrecord-engine"))
    assert num_arenas() == before


def test_memory_is_free_after_an_iteration_that_stops_while_it_reads(path: Path) -> None:
    """The errors of cancelled loads and of chunks read ahead refer to the arena."""

    gone = FailingFrom(LocalStorage(path))
    storage = as_remote(gone, DEADLINE)
    settings = {**PIPE, "memory_limit": "2MiB"}  # with room for chunks read ahead
    with no_leaks(), seqrecord.open(storage) as dataset, without_collector():
        for _ in range(3):
            with memory_is_free_again() as before:
                gone.start = FailingFrom.start
                iterator = iter(SeqRecordPipe(dataset, **settings))
                next(iterator)
                assert num_arenas() > before
                gone.start = 0
                wait_for_retries(storage, storage.counters()["retries"] + 1)
                del iterator


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_memory_is_free_after_an_error(path: Path, kind: str) -> None:
    """Of a load, after the caller has dropped it."""

    gone = FailingFrom(LocalStorage(path))
    gone.error = lambda file: seqrecord.StorageError("it is gone", file=file)
    storage: Storage = gone if kind == "local" else as_remote(gone, DEADLINE)
    with no_leaks(), seqrecord.open(storage) as dataset, without_collector():
        for _ in range(3):
            with memory_is_free_again():
                gone.start = FailingFrom.start
                iterator = iter(SeqRecordPipe(dataset, **PIPE))
                next(iterator)
                gone.start = 0
                with pytest.raises(seqrecord.StorageError, match="it is gone"):
                    list(iterator)
                del iterator


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of PNGs."""
    frames = {f"set/{n}": columns(image=noise(40, 32, 32, 3, seed=n)) for n in range(3)}
    folder = tmp_path_factory.mktemp("pictures") / "records"
    write_dataset(folder, frames, codecs={"image": "png"}, chunk_frames=4)
    return folder


def test_memory_is_free_after_a_checksum_error(pictures: Path, tmp_path: Path) -> None:
    """Of a page that is not raw."""
    path = Path(shutil.copytree(pictures, tmp_path / "records"))
    [file] = (path / "records").iterdir()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with no_leaks(), without_collector(), memory_is_free_again():
        pipe = SeqRecordPipe(path, **PIPE)
        with pytest.raises(ChecksumError):
            list(pipe)
        del pipe


@pytest.mark.parametrize("is_left", [False, True])
def test_memory_is_free_after_a_mix(pictures: Path, path: Path, is_left: bool) -> None:
    sources = {"raw": path, "png": pictures}
    with no_leaks(), without_collector(), memory_is_free_again() as before:
        pipes = {name: SeqRecordPipe(place, clip_len=3) for name, place in sources.items()}
        mix = SeqRecordMix(pipes, batch_size=4, memory_limit="24MiB")
        for _ in mix:
            assert num_arenas() > before
            if is_left:
                break
        del pipes, mix, _


def test_an_error_that_is_not_raised_keeps_no_objects_alive() -> None:
    """A load's future has a reference to its error, and the error's frames to the future."""

    class Load:
        def __init__(self) -> None:
            self.done: Future[None] = Future()

        def run(self) -> None:
            self.done.set_exception(ClosedError())
            self.done.result()

    def no_batch(_: int) -> OpenBatch:
        raise AssertionError("no batch is requested")

    with without_collector():
        load = Load()
        alive = weakref.ref(load)
        channel = Channel(1, EngineStats(), no_batch)
        scheduler = Scheduler(channel, load.run)
        del load
        assert channel.take(os.getpid()) is None
        scheduler.close()
        assert alive() is None


# Several requests of one call


def test_requests_of_a_call_end_together(tmp_path: Path) -> None:
    """When one fails, and when a reader has stopped."""
    (tmp_path / "file").write_bytes(bytes(9000))
    call = "file", [ByteRange(0, 9000)], [memoryview(bytearray(9000))]

    def fails(operation: str, path: str, number: int) -> Exception:
        if number < 3:
            return transient()
        wait_for_retries(storage, 3)
        return NotFoundError("no such file")

    storage = failing(tmp_path, fails, max_bytes=1000)
    with soon(), pytest.raises(NotFoundError):
        storage.read_ranges(*call)

    reads, stopped = [], threading.Event()

    def counts(operation: str, path: str, number: int) -> None:
        reads.append(number)
        stopped.set()

    faulty = FaultyStorage(LocalStorage(tmp_path), counts)
    pieces = as_remote(faulty, max_requests=1, max_bytes=1000)
    with (
        unwanted_if(stopped.is_set),
        pytest.raises(seqrecord.StorageError, match="no longer needed"),
    ):
        pieces.read_ranges(*call)
    assert reads == [0]


# ---- exit of the interpreter

PATIENCE = 60  # seconds; then a test fails

# Iterates over clips until every loading thread is inside a load, with more loads queued, and
# exits. Loads end when the engine stops, not before, and no load should begin after that.
_LEAVES = """
import atexit, json, os, signal, sys, threading, time

path, way, out = sys.argv[1:]
lock, begun, inside = threading.Lock(), [], []
all_busy = threading.Event()
FREE, NUM_THREADS = 6, 3

@atexit.register  # registered before the engine's handler, so it runs after it
def report():
    with open(out, "w") as file:
        names = [thread.name for thread in threading.enumerate()]
        json.dump({"begun": len(begun), "at the end": names}, file)

import torch
import seqrecord
from seqrecord import SeqRecordError, SeqRecordPipe
from seqrecord.store.storage.local import LocalStorage
from seqrecord.store.storage.ranges import check_wanted

def is_wanted(path):
    try:
        check_wanted(path)
    except SeqRecordError:
        return False
    return True

class Slow(LocalStorage):
    def read_ranges(self, path, ranges, buffers):
        if path.endswith(".seqrec"):
            waits = ranges[0].start >= slow_from
            with lock:
                begun.append(path)
                inside.extend([path] * waits)
                if len(inside) == NUM_THREADS:
                    all_busy.set()
            while waits and is_wanted(path):
                time.sleep(0.001)
        super().read_ranges(path, ranges, buffers)

dataset = seqrecord.open(Slow(path))
slow_from = int(dataset.contents.index.groups[0].offset[FREE])  # there is one record file
engine = seqrecord.EngineOptions(num_threads=NUM_THREADS)
pipe = SeqRecordPipe(dataset, clip_len=2, shuffle=False, engine=engine, batch_size=1)

def leave(iterator):
    next(iterator)
    assert all_busy.wait(60)
    if way == "sys.exit":
        sys.exit(5)
    if way == "error":
        raise KeyError("mine")
    if way == "Ctrl-C":
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGINT]).start()
        for _ in iterator:
            pass

iterator = iter(pipe)
leave(iterator)
"""


chunks = written_once(
    write_dataset,
    {"walk": [{"image": np.zeros((512, 600), np.uint8)}] * 80},
    codecs="raw",
    chunk_frames=4,
)
"""A dataset of 20 chunks of 4 frames."""


@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("Ctrl-C", -2),
        pytest.param("error", 1, marks=pytest.mark.slow),
        pytest.param("the end", 0, marks=pytest.mark.slow),
        pytest.param("sys.exit", 5, marks=pytest.mark.slow),
    ],
)
def test_leaving_waits_only_for_loads_in_progress(
    way: str, code: int, chunks: Path, tmp_path: Path
) -> None:
    done = run_code(_LEAVES, chunks, way, tmp_path / "report.json", status=code)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report == {"begun": 6 + 3, "at the end": ["MainThread"]}
    last = done.stderr.splitlines()[-1:]
    assert last == {"error": ["KeyError: 'mine'"], "Ctrl-C": ["KeyboardInterrupt"]}.get(way, [])


_USER_THREAD = """
import sys, threading
import seqrecord
from seqrecord import SeqRecordPipe

def train():
    threading.main_thread().join()
    for number in range(2):
        print(sum(1 for _ in pipe), flush=True)

pipe = SeqRecordPipe(sys.argv[1], clip_len=2, stride=2)
threading.Thread(target=train).start()
"""


def test_a_thread_that_outlives_the_main_thread_continues(chunks: Path) -> None:
    assert run_code(_USER_THREAD, chunks).stdout.split() == ["40", "40"]
