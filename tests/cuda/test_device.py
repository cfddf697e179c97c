"""Streams and staging of a device: data is complete when it is used.

Tests run on every kind of stream available here, see `side_streams`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import ClipError
from seqrecord.cuda.streams import (
    CudaStream,
    SideStream,
    Staging,
    StagingBuffer,
    find_device,
)
from seqrecord.loader.engine.arena import upload
from seqrecord.loader.engine.batches import OpenBatch
from tests.cuda.fake_cuda import FakeCuda, FakeTensor
from tests.cuda.side_streams import STREAMS, LateStream, make_stream

NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(params=STREAMS)
def stream(request: pytest.FixtureRequest) -> SideStream:
    return make_stream(request.param)


# ---- the stream used by other tests


def test_a_late_stream_shows_missing_waits() -> None:
    stream = LateStream()
    of_host = torch.arange(3)
    with stream.use():
        source, target = of_host.pin_memory(), torch.zeros(3, dtype=torch.int64)
        target.copy_(source, non_blocking=True)
        doubled = 2 * target.flip(0)
    source += 1  # too early
    assert target.tolist() == [0, 0, 0]
    stream.mark().wait()
    assert target.tolist() == [1, 2, 3]
    assert doubled.tolist() == [6, 4, 2]
    assert not stream.stalls
    with stream.use():
        target.copy_(of_host)
        for message, work in (
            ("pageable memory that nobody waits for", lambda: target.copy_(of_host, True)),
            ("pinned memory that waits", lambda: target.copy_(source)),
            ("of memory of the host", lambda: torch.index_select(target, 0, of_host)),
            ("tells the host a value", lambda: target.sum().item()),
        ):
            with pytest.raises(AssertionError, match=message):
                work()
    assert (target.tolist(), stream.stalls) == ([0, 1, 2], 1)


def test_a_late_stream_whose_work_another_thread_does_at_once() -> None:
    """A mark of another thread may be waited for between any two steps of a call."""

    class Eager(LateStream):
        def queue(self, work: Any) -> None:
            super().queue(work)
            self.do(self._queued)

    stream = Eager()
    with stream.use():
        source = torch.arange(3).pin_memory()
        moved = source.to("cpu", torch.float64, non_blocking=True)
        selected = torch.index_select(moved, 0, source)
        zeros = selected.new_zeros(3)
    assert (moved.tolist(), selected.tolist(), zeros.tolist()) == ([0, 1, 2], [0, 1, 2], [0, 0, 0])


@pytest.mark.parametrize(
    ("device", "message"),
    [
        *((device, "invalid device") for device in ("nowhere", "cpu:x", 1.5)),
        *((device, f"device not available; .*; got: {device}") for device in ("vulkan", "xla:1")),
        pytest.param("cuda:0", "device not available; expected: cpu; got: cuda:0", marks=NO_CUDA),
    ],
)
def test_no_such_device(device: Any, message: str) -> None:
    with pytest.raises(ClipError, match=message):
        find_device(device)


@pytest.mark.parametrize("is_ours", [True, False])
def test_cuda_calls_and_contexts(is_ours: bool) -> None:
    """In a thread of ours, and in a user's thread, whose current device does not change;
    no context is made on another GPU."""
    cuda: Any = FakeCuda()
    assert find_device("cuda:0", cuda) == torch.device("cuda:0")
    with pytest.raises(ClipError, match="device not available; expected: at most cuda:1"):
        find_device("cuda:2", cuda)

    def work() -> int:
        stream = CudaStream(find_device("cuda", cuda), cuda)
        assert stream.device == torch.device("cuda:1")
        if is_ours:
            stream.bind_thread()
        begin = stream.mark()
        with stream.use():
            cuda.note("work")  # an allocation
        end = stream.mark()
        tensors: Any = [FakeTensor(cuda), FakeTensor(cuda)]
        stream.give_to_current(end, tensors).wait()
        assert end.is_reached
        assert end.seconds_since(begin) == 1
        assert end.time - begin.time == pytest.approx(1)
        return int(cuda.now)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == (1 if is_ours else 0)
    assert cuda.contexts == {1}
    assert cuda.calls == [
        "mark 0 in cuda:1",  # the reference of times
        "thread waits for 0",
        *(["thread has cuda:1"] if is_ours else []),
        "mark 1 in cuda:1",
        "in cuda:1:",
        "work",
        "mark 2 in cuda:1",
        "current waits for 2",
        "mark 3 in current",
        "memory waits for current",
        "memory waits for current",
        "thread waits for 3",
    ]


def test_uploads_do_not_block() -> None:
    calls: list[Any] = []

    class Host:
        def pin_memory(self) -> Host:
            calls.append("pinned")
            return self

        def to(self, *args: Any, **kwargs: Any) -> None:
            calls.append((args, kwargs))

    host: Any = Host()
    for device, is_late in ((torch.device("cuda:1"), True), (torch.device("cpu"), False)):
        upload(host, device, is_late=is_late)
    assert calls == [
        "pinned",
        ((torch.device("cuda:1"),), {"non_blocking": True}),
        ((torch.device("cpu"),), {"non_blocking": False}),
    ]


# ---- staging


def test_a_buffer_is_reused_only_after_its_copy(stream: SideStream) -> None:
    staging = Staging(stream)
    targets, addresses = [], set()
    for number in range(9):
        with staging.acquire([8]) as buffer:
            piece, array = buffer.array((2,), np.dtype("<i4"))
            array[:] = number
            addresses.add(array.ctypes.data)
            with stream.use():
                target = torch.empty(8, dtype=torch.uint8, device=stream.device)
                target.copy_(piece, non_blocking=True)
            targets.append(target)
    stream.mark().wait()
    assert [t.cpu().view(torch.int32).tolist() for t in targets] == [[n, n] for n in range(9)]
    assert len(addresses) <= 3


def test_buffers_grow() -> None:
    staging = Staging(make_stream("cpu"))
    made = []
    for size in (10, 5, 1000, 10):
        with staging.acquire([size]) as buffer:
            assert buffer.nbytes >= size
            made.append(buffer)
    assert made[0] is made[1] is not made[2]
    assert made[2] is made[3]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["u1", "<f8", "?", "<u2"]))))
def test_pieces_of_a_buffer_do_not_overlap(wanted: list[tuple[int, str]]) -> None:
    dtypes = [np.dtype(name) for _, name in wanted]
    counts = [count for count, _ in wanted]
    sizes = [count * dtype.itemsize for count, dtype in zip(counts, dtypes, strict=True)]
    buffer = StagingBuffer(StagingBuffer.room(sizes), pin=False)
    made = [buffer.array((count,), dtype) for count, dtype in zip(counts, dtypes, strict=True)]
    for number, (_, array) in enumerate(made):
        array[:] = number
    for number, (memory, array) in enumerate(made):
        assert array.dtype == dtypes[number]
        assert array.tolist() == [dtypes[number].type(number)] * counts[number]
        assert memory.numpy().tobytes() == array.tobytes()


def test_a_batch_with_memory_does_not_wait_for_the_lock() -> None:
    """Another source of a mix may wait for the device while it has the lock shared by batches."""
    lock = threading.Lock()
    builder: Any = object()
    batch = OpenBatch(1, lambda: builder, lock)
    batch.allocate()
    with ThreadPoolExecutor(1) as pool, lock:
        assert pool.submit(batch.allocate).result(timeout=60) is builder
