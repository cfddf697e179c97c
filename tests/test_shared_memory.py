from __future__ import annotations

import gc
import multiprocessing as mp
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from seqrecord import SeqRecordError, SeqRecordIterableDataset, SeqRecordPipe, SeqRecordWriter
from seqrecord.engine.pools import SharedBufferPool, can_share
from tests.clip_data import names
from tests.datasets import write_small

pytestmark = pytest.mark.skipif(not can_share(), reason="needs memfd_create and /proc")

FORK = mp.get_context("fork")


@contextmanager
def process(work: Callable[[Any], None]) -> Iterator[tuple[Any, Any]]:
    """A fork that does `work` with one end of a pipe, the other end, and the process."""
    ours, theirs = FORK.Pipe()

    def alone() -> None:
        ours.close()  # so that the end of the test is the end of what it waits for
        with suppress(EOFError):
            work(theirs)

    child = FORK.Process(target=alone)
    child.start()
    theirs.close()
    try:
        yield ours, child
    finally:
        ours.close()
        child.join(60)
        assert child.exitcode is not None
        gc.collect()


def say(pipe: Any, value: Any) -> None:
    """Send as multiprocessing's queues do."""
    pipe.send_bytes(ForkingPickler.dumps(value))


def mapped() -> dict[str, int]:
    """The segments that are mapped here, and how many bytes of each are in memory.

    From the system's table of this process, in which a segment is called by its file's name.
    """
    gc.collect()
    found: dict[str, int] = {}
    name = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            name = " ".join(line.split()[:5]) if "memfd:seqrecord " in line else None
        elif name is not None and line.startswith("Rss:"):
            found[name] = int(line.split()[1]) * 1024
    return found


def numbers(pool: SharedBufferPool, first: int = 0) -> np.ndarray[Any, Any]:
    array = pool.acquire()
    array[:] = of_numbers(array.shape, array.dtype, first)
    return array


def of_numbers(shape: tuple[int, ...], dtype: Any, first: int = 0) -> np.ndarray[Any, Any]:
    made = np.arange(first, first + np.prod(shape)).reshape(shape)
    return (made * (1 + 2j) if np.dtype(dtype).kind == "c" else made).astype(dtype)


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a clip": lambda tensor: tensor[2],
    "some clips": lambda tensor: tensor[1:3],
    "a transposition": lambda tensor: tensor.permute(2, 0, 1),
    "every other frame": lambda tensor: tensor[:, ::2],
    "nothing": lambda tensor: tensor[:0],
    "another dtype": lambda tensor: tensor.view(torch.uint8),
    "an expansion": lambda tensor: tensor[0, 0].expand(7, 5),
    "a copy": lambda tensor: tensor * 2,
    "a leaf": lambda tensor: tensor.clone().requires_grad_(),
    "a number": lambda tensor: tensor.sum(),
    "all": lambda tensor: tensor,
}
DTYPES = ["u1", "i2", "u2", "f2", "f4", "i8", "f8", "?"]
MADE = [
    *((dtype, VIEWS["all"]) for dtype in DTYPES),
    *(("f4", view) for view in VIEWS.values()),
    # What torch has not computed yet.
    ("c8", torch.conj),
    ("c8", lambda tensor: torch.conj(tensor).imag),
]


def test_what_was_made_of_a_tensor_arrives() -> None:
    def work(pipe: Any) -> None:
        torch.set_num_threads(1)  # as in any worker: OpenMP may hang in a fork
        for dtype, view in MADE:
            pool = SharedBufferPool((3, 4, 5), np.dtype(dtype), keep=2)
            tensor = pool.lease(numbers(pool))
            say(pipe, (view(tensor), tensor))
            pipe.recv()

    with process(work) as (pipe, _):
        for dtype, view in MADE:
            expected = torch.from_numpy(of_numbers((3, 4, 5), dtype))
            made, tensor = pipe.recv()
            assert tensor.dtype == expected.dtype
            assert torch.equal(tensor, expected)
            assert torch.equal(made, view(expected))
            assert made.requires_grad == view(expected).requires_grad
            pipe.send(None)


def test_a_tensor_sent_twice_is_free_when_both_are_dropped() -> None:
    """The copies that a fork has, and drops, release nothing."""

    def work(pipe: Any) -> None:
        pool = SharedBufferPool((4,), np.dtype("i4"), keep=2)
        array = numbers(pool)
        address = array.ctypes.data
        tensor = pool.lease(array)
        say(pipe, tensor)
        say(pipe, tensor)
        del array, tensor
        while pipe.recv():
            pipe.send(pool.acquire().ctypes.data == address)

    with process(work) as (pipe, _):
        received = [pipe.recv(), pipe.recv()]
        if not (child := os.fork()):
            received.clear()
            gc.collect()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for reused in (False, False, True):
            pipe.send(True)
            assert pipe.recv() is reused
            del received[-1:]
        pipe.send(False)


def test_more_holders_than_slots_get_copies() -> None:
    pool = SharedBufferPool((4,), np.dtype("i4"), keep=2)
    array = numbers(pool)
    address = array.ctypes.data
    tensor = pool.lease(array)
    del array
    sent = [ForkingPickler.dumps(tensor) for _ in range(os.sysconf("SC_PAGESIZE"))]
    expected = tensor.clone()
    assert len(sent[0]) < len(sent[-1])  # a copy says more than where it is
    del tensor
    while sent:
        assert pool.acquire().ctypes.data != address
        assert torch.equal(pickle.loads(sent.pop()), expected)
        if len(sent) > 2:  # as many of them say nothing new
            for message in sent[2:]:
                pickle.loads(message)
            del sent[2:]
    assert pool.acquire().ctypes.data == address


def test_a_worker_that_ends_leaves_no_memory_with_the_receiver() -> None:
    def work(pipe: Any) -> None:
        pool = SharedBufferPool((1 << 20,), np.dtype("u1"), keep=2)
        say(pipe, pool.lease(numbers(pool)))
        pipe.recv()

    with process(work) as (pipe, child):
        before = mapped().keys()
        received = pipe.recv()
        assert received.sum() == 255 * 128 << 12
        del received
        [segment] = mapped().keys() - before
        assert mapped()[segment] >= 1 << 20  # for the next time
        pipe.send(None)
        child.join()
        assert mapped().get(segment, 0) <= os.sysconf("SC_PAGESIZE")


def test_a_pool_that_is_gone_leaves_what_is_lent() -> None:
    def work(pipe: Any) -> None:
        before = descriptors()  # what the test process had
        pool = SharedBufferPool((1000,), np.dtype("i8"), keep=2)
        say(pipe, pool.lease(numbers(pool)))
        del pool
        gc.collect()
        pipe.send("gone")
        pipe.recv()
        SharedBufferPool((1,), np.dtype("u1"), keep=1).acquire()
        gc.collect()
        pipe.send(descriptors() - before)
        pipe.recv()

    with process(work) as (pipe, _):
        before = mapped().keys()
        message = pipe.recv_bytes()  # on its way when the pool goes
        assert pipe.recv() == "gone"
        received = pickle.loads(message)
        assert received.tolist() == list(range(1000))
        del received
        assert mapped().keys() <= before
        pipe.send(None)
        assert pipe.recv() == 0
        pipe.send(None)


def descriptors() -> int:
    """How many segments this process has open."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of the directory itself
            found += "memfd:seqrecord" in str(link.readlink())
    return found


def test_a_pool_keeps_no_more_than_it_may() -> None:
    before = descriptors()
    pool = SharedBufferPool((100,), np.dtype("u1"), keep=2)
    leased = [pool.lease(pool.acquire()) for _ in range(5)]
    leased.clear()
    pool.release(pool.acquire())
    assert descriptors() - before == 2 * 2  # Python's mmap has one of its own
    del pool
    assert descriptors() == before


def test_a_worker_that_was_killed_is_named() -> None:
    def work(pipe: Any) -> None:
        pool = SharedBufferPool((4,), np.dtype("i4"), keep=2)
        say(pipe, pool.lease(numbers(pool)))
        os.kill(os.getpid(), signal.SIGKILL)

    with process(work) as (pipe, child):
        child.join()
        with pytest.raises(SeqRecordError, match=f"/proc/{child.pid}/fd/.*16 bytes"):
            pipe.recv()


# Through a DataLoader.


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "records"
    write_small(path, missing=False)
    return path


BATCH: dict[str, Any] = {
    "clip_len": 3,
    "batch_size": 2,
    "features": ["image_left", "step"],
    "seed": 3,
}


def loader_of(
    records: Path, kind: Any = SeqRecordIterableDataset, workers: int = 1, **options: Any
) -> Any:
    options = {"persistent_workers": True, "num_workers": workers, **options}
    return DataLoader(kind(records, **BATCH), batch_size=None, **options)


@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_batches_arrive_in_place_and_may_be_kept(records: Path, context: str) -> None:
    more: dict[str, Any] = {"persistent_workers": False, "multiprocessing_context": context}
    loader = loader_of(records, workers=2, **more)
    before = mapped().keys()
    seen: dict[tuple[str, int], Any] = {}
    for batch in loader:  # of which only views are kept
        views = (clip[1:] for clip in batch["image_left"].numpy())
        seen.update(zip(names(batch), views, strict=True))
    del batch
    assert mapped().keys() - before  # else they were copied
    count = 0
    for batch in SeqRecordPipe(records, **BATCH):
        for name, clip in zip(names(batch), batch["image_left"], strict=True):
            assert np.array_equal(seen[name], clip[1:])
            count += 1
    assert count == len(seen)
    seen.clear()
    gc.collect()
    assert mapped().keys() <= before


class CountingStream(SeqRecordIterableDataset):
    """Says with each batch how many segments the worker has, and gives a tensor of its own."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield {**batch, "segments": descriptors(), "own": torch.zeros(1)}


def test_workers_fill_the_same_memory_again_and_again(records: Path) -> None:
    most = []
    loader = loader_of(records, CountingStream)
    for batch in chain.from_iterable(loader for _ in range(6)):
        most.append(batch["segments"])
        batch["own"] += 1
        assert batch["own"].is_shared()  # a small tensor of a user's own stays so
    assert len(most) > 2 * 7
    # Two features, two descriptors each, of two batches that the loader has asked for, the two that
    # the consumer has when it takes another, the one that the engine makes, and the one that the
    # stream above refers to until it is asked for the next.
    assert 0 < max(most) <= 2 * 2 * 6


@pytest.mark.parametrize("most", [pytest.param(10_000, marks=pytest.mark.slow), 30])
def test_mappings_do_not_grow_with_epochs(most: int, tmp_path: Path) -> None:
    """Batches are mostly released before their worker retires their segments."""
    with SeqRecordWriter(tmp_path / "records") as writer:
        for number in range(5):
            with writer.episode(f"{number}") as episode:
                for _ in range(40):
                    episode.append({f"{name}": np.zeros(9, np.uint8) for name in range(3)})
    stream = SeqRecordIterableDataset(tmp_path / "records", clip_len=4, batch_size=4)
    loader: Any = DataLoader(stream, batch_size=None, num_workers=2, persistent_workers=True)
    counts = []
    for _ in range(6):
        for _ in islice(loader, most):
            pass
        counts.append(len(mapped()))
    assert 0 < max(counts) <= 1.5 * max(counts[:2])


@pytest.mark.parametrize("has_forked", [False, True])
def test_a_batch_that_a_fork_keeps_stays_as_it_is(records: Path, has_forked: bool) -> None:
    loader = loader_of(records)
    kept = [next(iter(loader))]
    expected = kept[0]["image_left"].clone()

    def compare(pipe: Any) -> None:
        if has_forked and (child := os.fork()):  # the fork of a fork compares
            os.waitpid(child, 0)
            return
        while pipe.recv():
            pipe.send(torch.equal(kept[0]["image_left"], expected))

    with process(compare) as (copy, _):
        kept.clear()
        for _ in range(3):
            list(loader)
            copy.send(True)
            assert copy.recv()
        copy.send(False)
