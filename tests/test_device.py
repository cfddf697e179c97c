"""Streams and staging of a device: what is there when it is needed, and not before.

Tests run on every kind of stream that there is here, see `side_streams`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqrecord import ClipError, prefetch_to_device
from seqrecord.engine.device.streams import (
    CudaStream,
    SideStream,
    Staging,
    StagingBuffer,
    find_device,
)
from tests.side_streams import STREAMS, LateStream, make_stream


@pytest.fixture(params=STREAMS)
def stream(request: pytest.FixtureRequest) -> SideStream:
    return make_stream(request.param)


# ---- the stream that the others are tested with


def test_a_late_stream_shows_what_is_not_waited_for() -> None:
    stream = LateStream()
    source, target = torch.arange(3), torch.zeros(3, dtype=torch.int64)
    with stream.use():
        target.copy_(source, non_blocking=True)
        copied = target.clone()
    source += 1  # too early
    assert target.tolist() == [0, 0, 0]
    stream.mark().wait()
    assert target.tolist() == copied.tolist() == [1, 2, 3]


@pytest.mark.parametrize("device", ["nowhere", "cpu:x", 1.5])
def test_no_such_device(device: Any) -> None:
    with pytest.raises(ClipError, match="not a device"):
        find_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_no_gpu() -> None:
    with pytest.raises(ClipError, match=r"finds no such device here; expected: cpu; got: cuda:0"):
        prefetch_to_device([], "cuda:0")


class FakeCuda:
    """Notes what is asked of streams and events, in order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.current = self.Stream("current")

    def Stream(self, name: Any) -> Any:  # noqa: N802
        calls = self.calls

        class Stream:
            def wait_event(self, event: Any) -> None:
                calls.append(f"{name} waits for {event}")

            def __str__(self) -> str:
                return str(name)

        return Stream()

    def Event(self, *, enable_timing: bool, blocking: bool) -> Any:  # noqa: N802
        assert enable_timing
        assert blocking, "a thread must not spin"
        calls = self.calls

        class Event:
            def record(self, stream: Any) -> None:
                self.number = sum(call.startswith("mark") for call in calls)
                calls.append(f"mark {self.number} in {stream}")

            def synchronize(self) -> None:
                calls.append(f"thread waits for {self}")

            def query(self) -> bool:
                return True

            def elapsed_time(self, end: Any) -> float:
                return float(1000 * (end.number - self.number))

            def __str__(self) -> str:
                return str(self.number)

        return Event()

    def stream(self, stream: Any) -> Any:
        self.calls.append(f"in {stream}:")
        return nullcontext()

    def set_device(self, device: Any) -> None:
        self.calls.append(f"thread has {device}")

    def device(self, device: Any) -> Any:
        assert str(device) == "cuda:1"
        return nullcontext()

    def current_stream(self, device: Any) -> Any:
        assert str(device) == "cuda:1"
        return self.current

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return 1


def test_what_cuda_is_asked_for() -> None:
    cuda = FakeCuda()
    stream = CudaStream(find_device("cuda", cuda), cuda)
    assert stream.device == torch.device("cuda:1")
    assert find_device("cuda:0", cuda) == torch.device("cuda:0")
    with pytest.raises(ClipError, match="finds no such device here; expected: at most cuda:1"):
        find_device("cuda:2", cuda)

    class Tensor:
        def record_stream(self, stream: Any) -> None:
            cuda.calls.append(f"memory waits for {stream}")

    tensors: Any = [Tensor(), Tensor()]
    begin = stream.mark()
    with stream.use():
        cuda.calls.append("work")
    end = stream.mark()
    before = stream.give_to_current(end, tensors)
    before.wait()
    assert cuda.calls == [
        "mark 0 in cuda:1",  # whose time is known
        "thread waits for 0",
        "mark 1 in cuda:1",
        "in cuda:1:",
        "work",
        "mark 2 in cuda:1",
        "mark 3 in current",
        "current waits for 2",
        "memory waits for current",
        "memory waits for current",
        "thread waits for 3",
    ]
    assert end.is_reached
    assert end.seconds_since(begin) == 1
    assert end.time - begin.time == pytest.approx(1)


class ContextCuda:
    """Enough of `torch.cuda` to know on which devices it makes a context.

    As CUDA 12 does it: a thread begins with device 0, and a call makes a context on the device
    that is current. `device` puts back the one before without touching it, `stream` touches it.
    """

    def __init__(self) -> None:
        self.contexts: set[int] = set()
        self._thread = threading.local()

    @property
    def now(self) -> int:
        return getattr(self._thread, "device", 0)

    def touch(self, *_: Any) -> Any:
        self.contexts.add(self.now)
        return self

    def set_device(self, device: torch.device) -> None:
        self._thread.device = device.index
        self.touch()

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self._thread.device = self.now, device.index
        yield
        self._thread.device = before

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before = self.now
        self.set_device(torch.device("cuda", 1))
        yield
        self.set_device(torch.device("cuda", before))

    def Stream(self, device: torch.device) -> Any:  # noqa: N802 - torch's name
        with self.device(device):
            return self.touch()

    def Event(self, **_: Any) -> Any:  # noqa: N802 - torch's name
        return self.touch()

    def current_stream(self, device: torch.device) -> Any:
        return self

    def elapsed_time(self, other: Any) -> float:
        self.touch()
        return 1.0

    record = synchronize = query = wait_event = record_stream = touch


@pytest.mark.parametrize("is_ours", [True, False])
def test_no_context_is_made_on_another_gpu(is_ours: bool) -> None:
    """In a thread of ours, and in one of the user's, whose current device stays what it was."""
    cuda = ContextCuda()

    def work() -> int:
        stream = CudaStream(torch.device("cuda:1"), cuda)
        if is_ours:
            stream.bind_thread()
        stream.set_clock()
        first = stream.mark()
        with stream.use():
            cuda.touch()  # an allocation
        last = stream.mark()
        before = stream.give_to_current(last, [cuda])  # type: ignore[list-item]
        before.wait()
        assert last.is_reached
        assert last.time
        assert last.seconds_since(first)
        return cuda.now

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result() == (1 if is_ours else 0)
    assert cuda.contexts == {1}


# ---- staging


def test_a_buffer_is_written_to_again_only_when_it_was_copied(stream: SideStream) -> None:
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
    with staging.acquire([10]) as small:
        pass
    with staging.acquire([5]) as again:
        assert again is small
    with staging.acquire([1000]) as large:
        assert large.nbytes >= 1000
    with staging.acquire([10]) as kept:
        assert kept is large


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
