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

from seqrecord import SeqRecordError, SeqRecordPipe, SeqRecordWriter
from seqrecord.loader.engine.shared_pools import SharedBufferPool, can_share
from tests.kit.clip_data import names
from tests.kit.datasets import write_small, written_once
from tests.kit.processes import in_fork

pytestmark = pytest.mark.skipif(not can_share(), reason="needs memfd_create and /proc")

FORK = mp.get_context("fork")


@contextmanager
def process(work: Callable[[Any], None]) -> Iterator[tuple[Any, Any]]:
    """Run `work` in a fork with one end of a pipe; yields the other end and the process."""
    ours, theirs = FORK.Pipe()

    def main() -> None:
        ours.close()  # else the child misses the end of the test
        with suppress(EOFError):
            work(theirs)

    child = FORK.Process(target=main)
    child.start()
    theirs.close()
    try:
        yield ours, child
    finally:
        ours.close()
        child.join(60)
        assert child.exitcode is not None
        gc.collect()


def send(pipe: Any, value: Any) -> None:
    """Send as multiprocessing's queues do."""
    pipe.send_bytes(ForkingPickler.dumps(value))


def mapped() -> dict[str, int]:
    """Mapped segments of this process, with their resident bytes.

    Read from `smaps`, which lists a segment under its file's name.
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
    "a slice": lambda tensor: tensor[1:3],
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
    # Not yet computed by torch.
    ("c8", torch.conj),
    ("c8", lambda tensor: torch.conj(tensor).imag),
]


def test_views_and_copies_of_a_tensor_arrive() -> None:
    def work(pipe: Any) -> None:
        torch.set_num_threads(1)  # as in any worker: OpenMP may hang in a fork
        for dtype, view in MADE:
            pool = SharedBufferPool((3, 4, 5), np.dtype(dtype), keep=2)
            tensor = pool.lease(numbers(pool))
            send(pipe, (view(tensor), tensor))
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


def test_a_tensor_sent_twice_is_freed_when_both_are_dropped() -> None:
    """Copies that a fork drops release nothing."""

    def work(pipe: Any) -> None:
        pool = SharedBufferPool((4,), np.dtype("i4"), keep=2)
        array = numbers(pool)
        address = array.ctypes.data
        tensor = pool.lease(array)
        send(pipe, tensor)
        send(pipe, tensor)
        del array, tensor
        while pipe.recv():
            pipe.send(pool.acquire().ctypes.data == address)

    with process(work) as (pipe, _):
        received = [pipe.recv(), pipe.recv()]

        def drop() -> None:
            received.clear()
            gc.collect()

        in_fork(drop)
        for reused in (False, False, True):
            pipe.send(True)
            assert pipe.recv() is reused
            del received[-1:]
        pipe.send(False)


def test_more_receivers_than_slots_get_copies() -> None:
    pool = SharedBufferPool((4,), np.dtype("i4"), keep=2)
    array = numbers(pool)
    address = array.ctypes.data
    tensor = pool.lease(array)
    del array
    sent = [ForkingPickler.dumps(tensor) for _ in range(os.sysconf("SC_PAGESIZE"))]
    expected = tensor.clone()
    assert len(sent[0]) < len(sent[-1])  # a copy contains its data
    del tensor
    while sent:
        assert pool.acquire().ctypes.data != address
        assert torch.equal(pickle.loads(sent.pop()), expected)
        if len(sent) > 2:  # the other copies are equal
            for message in sent[2:]:
                pickle.loads(message)
            del sent[2:]
    assert pool.acquire().ctypes.data == address


def test_the_receiver_frees_the_memory_of_an_ended_worker() -> None:
    def work(pipe: Any) -> None:
        pool = SharedBufferPool((1 << 20,), np.dtype("u1"), keep=2)
        send(pipe, pool.lease(numbers(pool)))
        pipe.recv()

    with process(work) as (pipe, child):
        before = mapped().keys()
        received = pipe.recv()
        assert received.sum() == 255 * 128 << 12
        del received
        [segment] = mapped().keys() - before
        assert mapped()[segment] >= 1 << 20  # kept for reuse
        pipe.send(None)
        child.join()
        assert mapped().get(segment, 0) <= os.sysconf("SC_PAGESIZE")


def test_leased_tensors_outlive_their_pool() -> None:
    def work(pipe: Any) -> None:
        before = descriptors()  # inherited from the test process
        pool = SharedBufferPool((1000,), np.dtype("i8"), keep=2)
        send(pipe, pool.lease(numbers(pool)))
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
        message = pipe.recv_bytes()  # in transit when the pool is deleted
        assert pipe.recv() == "gone"
        received = pickle.loads(message)
        assert received.tolist() == list(range(1000))
        del received
        assert mapped().keys() <= before
        pipe.send(None)
        assert pipe.recv() == 0
        pipe.send(None)


def descriptors() -> int:
    """Number of open segments of this process."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of the directory itself
            found += "memfd:seqrecord" in str(link.readlink())
    return found


def test_a_pool_keeps_at_most_its_number_of_buffers() -> None:
    before = descriptors()
    pool = SharedBufferPool((100,), np.dtype("u1"), keep=2)
    leased = [pool.lease(pool.acquire()) for _ in range(5)]
    leased.clear()
    pool.release(pool.acquire())
    assert descriptors() - before == 2 * 2  # Python's mmap has one of its own
    del pool
    assert descriptors() == before


def test_the_error_names_a_killed_worker() -> None:
    def work(pipe: Any) -> None:
        pool = SharedBufferPool((4,), np.dtype("i4"), keep=2)
        send(pipe, pool.lease(numbers(pool)))
        os.kill(os.getpid(), signal.SIGKILL)

    with process(work) as (pipe, child):
        child.join()
        with pytest.raises(SeqRecordError, match=f"/proc/{child.pid}/fd/.*16 bytes"):
            pipe.recv()


# Through a DataLoader.


records = written_once(write_small, missing=False)


BATCH: dict[str, Any] = {
    "clip_len": 3,
    "batch_size": 2,
    "features": ["image_left", "step"],
    "seed": 3,
}


def loader_of(records: Path, kind: Any = SeqRecordPipe, workers: int = 1, **options: Any) -> Any:
    options = {"persistent_workers": True, "num_workers": workers, **options}
    return DataLoader(kind(records, **BATCH), batch_size=None, **options)


@pytest.mark.parametrize("context", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_batches_arrive_in_place_and_may_be_kept(records: Path, context: str) -> None:
    more: dict[str, Any] = {"persistent_workers": False, "multiprocessing_context": context}
    loader = loader_of(records, workers=2, **more)
    before = mapped().keys()
    seen: dict[tuple[str, int], Any] = {}
    for batch in loader:  # only views are kept
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


class CountingPipe(SeqRecordPipe):
    """Adds the worker's number of segments and an unpooled tensor to each batch."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield {**batch, "segments": descriptors(), "own": torch.zeros(1)}


def test_workers_reuse_the_same_memory(records: Path) -> None:
    most = []
    loader = loader_of(records, CountingPipe)
    for batch in chain.from_iterable(loader for _ in range(6)):
        most.append(batch["segments"])
        batch["own"] += 1
        assert batch["own"].is_shared()  # a user's small tensor stays shared
    assert len(most) > 2 * 7
    # Two features with two descriptors each, of six batches: two requested by the loader, two of
    # the consumer, one in the engine, and the last one, which the stream above still refers to.
    assert 0 < max(most) <= 2 * 2 * 6


@pytest.mark.parametrize("most", [pytest.param(10_000, marks=pytest.mark.slow), 30])
def test_mappings_do_not_grow_with_epochs(most: int, tmp_path: Path) -> None:
    """Batches are mostly released before their worker retires their segments."""
    with SeqRecordWriter(tmp_path / "records") as writer:
        for number in range(5):
            with writer.episode(f"{number}") as episode:
                for _ in range(40):
                    episode.append({f"{name}": np.zeros(9, np.uint8) for name in range(3)})
    pipe: Any = SeqRecordPipe(tmp_path / "records", clip_len=4, batch_size=4)
    loader: Any = DataLoader(pipe, batch_size=None, num_workers=2, persistent_workers=True)
    counts = []
    for _ in range(6):
        for _ in islice(loader, most):
            pass
        counts.append(len(mapped()))
    assert 0 < max(counts) <= 1.5 * max(counts[:2])


@pytest.mark.parametrize("has_forked", [False, True])
def test_a_batch_kept_by_a_fork_does_not_change(records: Path, has_forked: bool) -> None:
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
