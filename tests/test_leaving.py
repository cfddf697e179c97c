"""Leaving the interpreter waits for the loads under way, and for none that is queued."""

from __future__ import annotations

import json
import threading
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqrecord import SeqRecordWriter
from seqrecord.processes.threads import ThreadPool
from tests.own_threads import own_threads
from tests.torch_process import run_code

PATIENCE = 60  # seconds; what hangs fails

# Iterates over clips until every loading thread is inside a load, with more of them queued, and
# leaves. Loads last until the engine has been told to end: none can end before, none should begin
# after that.
_LEAVES = """
import atexit, json, os, signal, sys, threading, time

path, way, out = sys.argv[1:]
lock, begun, inside = threading.Lock(), [], []
all_busy = threading.Event()
FREE, NUM_THREADS = 6, 3

@atexit.register  # before the engine's, so it runs after that
def report():
    with open(out, "w") as file:
        names = [thread.name for thread in threading.enumerate()]
        json.dump({"begun": len(begun), "at the end": names}, file)

import torch
import seqrecord
from seqrecord import SeqRecordError, SeqRecordPipe
from seqrecord.storage import LocalStorage
from seqrecord.storage.ranges import check_wanted

def is_wanted(path):
    try:
        check_wanted(path)
    except SeqRecordError:
        return False
    return True

class Slow(LocalStorage):
    def read_ranges(self, path, ranges, buffers):
        if path.endswith(".seqrec"):
            waits = ranges[0].start >= held_from
            with lock:
                begun.append(path)
                inside.extend([path] * waits)
                if len(inside) == NUM_THREADS:
                    all_busy.set()
            while waits and is_wanted(path):
                time.sleep(0.001)
        super().read_ranges(path, ranges, buffers)

dataset = seqrecord.open(Slow(path))
held_from = int(dataset.contents.index.groups[0].offset[FREE])  # there is one record file
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


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 20 chunks of 4 frames, several of which one thread loads, one after the other."""
    path = tmp_path_factory.mktemp("leaving") / "records"
    with (
        SeqRecordWriter(path, codecs="raw", chunk_frames=4) as writer,
        writer.episode("walk") as episode,
    ):
        for _ in range(80):
            episode.append({"image": np.zeros((512, 600), np.uint8)})
    return path


@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("error", 1),
        ("Ctrl-C", -2),
        pytest.param("the end", 0, marks=pytest.mark.slow),
        pytest.param("sys.exit", 5, marks=pytest.mark.slow),
    ],
)
def test_leaving_waits_for_the_loads_under_way_alone(
    way: str, code: int, path: Path, tmp_path: Path
) -> None:
    done = run_code(_LEAVES, path, way, tmp_path / "report.json")
    assert done.returncode == code, done.stderr
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


def test_a_thread_that_outlives_the_main_thread_goes_on(path: Path) -> None:
    done = run_code(_USER_THREAD, path)
    assert (done.returncode, done.stdout.split()) == (0, ["40", "40"]), done.stderr


# The pool


def test_a_pool_drops_what_is_queued_and_waits_for_what_has_begun() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), []

    def work(number: int) -> int:
        begun.set()
        assert go_on.wait(PATIENCE)
        done.append(number)
        return number

    with ThreadPool(1, "some") as pool:
        futures = [pool.submit(work, number) for number in range(5)]
        assert begun.wait(PATIENCE)
        threading.Timer(0.05, go_on.set).start()
    assert done == [0]
    assert futures[0].result() == 0
    for future in futures[1:]:
        with pytest.raises(CancelledError):
            future.result()
    with pytest.raises(RuntimeError):
        pool.submit(work, 9)
    assert own_threads("some") == []


def test_a_pool_does_all_in_as_many_threads_as_there_are_tasks() -> None:
    seen: set[str] = set()

    def work(number: int) -> int:
        seen.add(threading.current_thread().name)
        return number * number

    all_are_inside = threading.Barrier(4)
    with ThreadPool(4, "some") as pool:
        assert pool.submit(work, 2).result() == 4
        futures = [pool.submit(work, number) for number in range(1000)]
        assert [future.result() for future in futures] == [n * n for n in range(1000)]
        for _ in range(20):
            futures = [pool.submit(all_are_inside.wait, PATIENCE) for _ in range(4)]
            assert sorted(future.result() for future in futures) == [0, 1, 2, 3]
    assert seen <= {f"some_{i}" for i in range(4)}


def test_a_pool_hands_errors_over() -> None:
    def work(error: Any) -> None:
        raise error

    with ThreadPool(2, "some") as pool:
        for error in (ZeroDivisionError("mine"), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                pool.submit(work, error).result()
        assert pool.submit(len, "after").result() == 5
    pool = ThreadPool(2, "some")
    futures = [pool.submit(len, "ab") for _ in range(50)]
    pool.shutdown()
    assert [future.result() for future in futures] == [2] * 50
