"""Side streams: copies and gathers on a device, beside the user's work.

A CUDA stream is a queue. Work in one stream runs in order; work in two streams runs in any order,
unless one waits for an event of the other. The thread that queues work does not wait for it. Three
conditions follow:

- Host memory must not be overwritten before a copy from it is done: `Mark.wait`. `Staging` waits
  before it reuses memory.
- The user's stream must not read unfinished results of the side stream: `give_to_current` makes it
  wait, on the device, without blocking a thread.
- Memory allocated by the side stream returns to it when its tensor is deleted; the side stream may
  then overwrite it while the user's stream still reads: `give_to_current` calls `record_stream`, so
  that the allocator waits for the user's queued work.

A new thread has GPU 0 as its current device, and most CUDA calls create a context on the current
device (hundreds of megabytes), even for another device. Threads of this package therefore call
`bind_thread` first. Calls in user threads set the stream's device as current, and restore it.

A device without streams works synchronously: the same code runs without waiting.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError

_ALIGNMENT = 64  # bytes; a cache line, enough for any dtype
_MAX_PENDING_BUFFERS = 2  # pending buffers, in addition to acquired ones

_CUDA: Any = torch.cuda  # torch types it in part


class Mark(ABC):
    """A point in a stream, after all work queued before it."""

    @abstractmethod
    def wait(self) -> None:
        """Block this thread until the work is done, without the GIL."""

    @property
    @abstractmethod
    def is_reached(self) -> bool:
        """Whether the work is done."""

    @property
    @abstractmethod
    def time(self) -> float:
        """Time of completion in seconds of `perf_counter`. Valid once reached."""

    @abstractmethod
    def seconds_since(self, earlier: Mark) -> float:
        """Seconds since an earlier mark of the stream. Valid once both are reached."""


class QueueLimit:
    """Limits how far a consumer runs ahead of its device: at most `limit` batches.

    Memory deleted by the consumer is reused only when the device has reached that point. Without a
    limit, a consumer that queues steps faster than the device executes them would use more and more
    memory.
    """

    def __init__(self, limit: int = 2) -> None:
        self._limit = limit
        self._deliveries: deque[Mark] = deque()

    def add(self, delivery: Mark) -> None:
        """Record a delivery at a mark of the consumer's stream."""
        self._deliveries.append(delivery)

    def wait(self) -> None:
        """Wait until the device is near enough, before allocating more memory."""
        while len(self._deliveries) > self._limit:
            self._deliveries.popleft().wait()


class SideStream(ABC):
    """A queue of work for a device; thread-safe."""

    pins_memory: bool
    """Whether copies are asynchronous, which requires pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def bind_thread(self) -> None:  # noqa: B027 - there may be nothing to do
        """Make the device current in a thread of this package."""

    @abstractmethod
    def use(self) -> AbstractContextManager[object]:
        """Context in which this thread's work and allocations use the stream."""

    @abstractmethod
    def mark(self) -> Mark:
        """Mark the end of the queued work."""

    def set_clock(self) -> None:  # noqa: B027 - there may be nothing to do
        """Synchronize the clock of later marks with the host's; device clocks may drift."""

    @abstractmethod
    def give_to_current(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        """Give tensors of this stream to the calling thread's current stream.

        Later work of that stream waits for `mark`, and the memory of the tensors is reused only
        after it. Returns a mark after that stream's earlier work and this wait: once it is reached,
        memory deleted from now on can be reused.
        """


class DirectStream(SideStream):
    """Stream of a synchronous device, such as a CPU."""

    pins_memory = False

    def use(self) -> AbstractContextManager[object]:
        return nullcontext()

    def mark(self) -> Mark:
        return _Now()

    def give_to_current(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        del mark, tensors
        return _Now()


class CudaStream(SideStream):
    """A new CUDA stream; `cuda` replaces `torch.cuda` in tests."""

    pins_memory = True

    def __init__(self, device: torch.device, cuda: Any = _CUDA) -> None:
        super().__init__(device)
        self._cuda = cuda
        self._stream = cuda.Stream(device)
        self.set_clock()

    def bind_thread(self) -> None:
        self._cuda.set_device(self.device)

    @contextmanager
    def use(self) -> Iterator[None]:
        # `stream` alone would restore the previous device, and initialize it.
        with self._cuda.device(self.device), self._cuda.stream(self._stream):
            yield

    def mark(self) -> Mark:
        return self._mark(self._stream)

    def set_clock(self) -> None:
        # Events only measure differences: this one has a host time, too.
        # tests/cuda/test_device_pipe.py::test_copies_are_in_the_trace
        with self._cuda.device(self.device):
            origin = self._event(self._stream)
            origin.synchronize()
        self._origin = (origin, perf_counter())

    def give_to_current(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        assert isinstance(mark, _CudaMark), "a mark of another stream"
        with self._cuda.device(self.device):
            current = self._cuda.current_stream(self.device)
            current.wait_event(mark.event)
            delivery = self._mark(current)
            for tensor in tensors:
                tensor.record_stream(current)
        return delivery

    def _mark(self, stream: Any) -> _CudaMark:
        return _CudaMark(self._event(stream), self._origin, self.device, self._cuda)

    def _event(self, stream: Any) -> Any:
        with self._cuda.device(self.device):
            # "blocking": waiting threads sleep instead of spinning.
            event = self._cuda.Event(enable_timing=True, blocking=True)
            event.record(stream)
        return event


_Maker: TypeAlias = Callable[[torch.device], SideStream]

_stream_makers: dict[str, _Maker] = {"cuda": CudaStream}


def side_stream(device: torch.device) -> SideStream:
    """Create a stream for a device from `find_device`."""
    return _stream_makers.get(device.type, DirectStream)(device)


@contextmanager
def streams_of(kind: str, make: _Maker) -> Iterator[None]:
    """Context in which `make` creates the streams of one device kind, such as "cpu".

    Applies to all threads. For tests with streams that run as late as possible.
    """
    old_makers = dict(_stream_makers)
    _stream_makers[kind] = make
    try:
        yield
    finally:
        _stream_makers.clear()
        _stream_makers.update(old_makers)


def check_device(device: str | torch.device, cuda: Any = _CUDA) -> torch.device:
    """Check a device. Raises `ClipError` if it is not available. Initializes no GPU."""
    try:
        checked_device = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ClipError("invalid device", expected="such as cpu or cuda:0", got=device) from None
    if checked_device.type != "cuda":
        try:
            torch.empty(0, device=checked_device)
        except (AssertionError, ImportError, RuntimeError):  # torch lacks support for it
            raise ClipError(
                "device not available", expected="such as cpu or cuda:0", got=device
            ) from None
        return checked_device
    # Torch counts by NVML. `is_available` would initialize CUDA, which breaks later forks.
    # tests/cuda/test_device.py::test_cuda_calls_and_contexts
    count = cuda.device_count()
    if (_index(checked_device) or 0) >= count:
        expected = f"at most cuda:{count - 1}" if count else "cpu"
        raise ClipError("device not available", expected=expected, got=device)
    return checked_device


def find_device(device: str | torch.device, cuda: Any = _CUDA) -> torch.device:
    """Check a device and add its number, by default that of the current device.

    Raises `ClipError` if it is not available.
    """
    checked_device = check_device(device, cuda)
    if checked_device.type == "cuda" and _index(checked_device) is None:
        return torch.device("cuda", cuda.current_device())
    return checked_device


def _index(device: torch.device) -> int | None:
    return device.index  # typed as an integer by torch


class _Now(Mark):
    """A mark that is reached immediately."""

    def __init__(self) -> None:
        self._time = perf_counter()

    def wait(self) -> None:
        pass

    @property
    def is_reached(self) -> bool:
        return True

    @property
    def time(self) -> float:
        return self._time

    def seconds_since(self, earlier: Mark) -> float:
        return self.time - earlier.time


class _CudaMark(Mark):
    def __init__(
        self, event: Any, origin: tuple[Any, float], device: torch.device, cuda: Any
    ) -> None:
        self.event = event
        self._origin = origin
        self._device = device
        self._cuda = cuda

    def wait(self) -> None:
        with self._cuda.device(self._device):
            self.event.synchronize()

    @property
    def is_reached(self) -> bool:
        with self._cuda.device(self._device):
            return bool(self.event.query())

    @property
    def time(self) -> float:
        event, time = self._origin
        return time + self._seconds_from(event)

    def seconds_since(self, earlier: Mark) -> float:
        assert isinstance(earlier, _CudaMark), "a mark of another stream"
        return self._seconds_from(earlier.event)

    def _seconds_from(self, event: Any) -> float:
        with self._cuda.device(self._device):
            return float(event.elapsed_time(self.event)) / 1e3


class StagingBuffer:
    """Host memory, pinned if the device needs it, divided into pieces."""

    def __init__(self, nbytes: int, pin: bool) -> None:
        # Torch tracks copies from memory that it has pinned: after the tensor is deleted, its
        # memory is reused only when they are done. Pieces are therefore views of this tensor.
        with torch.inference_mode(False):  # other threads must be able to write to it
            self._memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=pin)
        self._used = 0

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    @staticmethod
    def room(sizes: Iterable[int]) -> int:
        """Size of a buffer for pieces of these sizes, in bytes."""
        return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)

    def array(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[torch.Tensor, npt.NDArray[Any]]:
        """Return the next piece as a tensor, uint8 [nbytes], and as a writable array."""
        nbytes = int(np.prod(shape)) * dtype.itemsize
        begin, self._used = self._used, self._used + self.room([nbytes])
        assert self._used <= self.nbytes, "the pieces fit into the buffer"
        piece = self._memory[begin : begin + nbytes]
        return piece, piece.numpy().view(dtype).reshape(shape)

    def clear(self) -> None:
        """Start again from the beginning."""
        self._used = 0


class _IdleBuffer(NamedTuple):
    """An idle buffer, and the end of copies from it."""

    buffer: StagingBuffer
    mark: Mark


class Staging:
    """Staging buffers of a stream; thread-safe.

    At most two buffers are kept in addition to acquired ones, so that one can be filled while
    others are copied. Torch rounds pinned memory up to a power of two.
    """

    def __init__(self, stream: SideStream) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._idle: deque[_IdleBuffer] = deque()  # in the order in which copies were queued

    @contextmanager
    def acquire(self, sizes: Iterable[int]) -> Iterator[StagingBuffer]:
        """Context with a buffer for pieces of these sizes; queue copies from it inside."""
        buffer = self._buffer_of(StagingBuffer.room(sizes))
        try:
            yield buffer
        finally:
            self._idle.append(_IdleBuffer(buffer, self.stream.mark()))

    def _buffer_of(self, nbytes: int) -> StagingBuffer:
        with self._lock:
            idle_buffer = self._take_idle()
        if idle_buffer is not None:
            idle_buffer.mark.wait()
            idle_buffer.buffer.clear()
            if idle_buffer.buffer.nbytes >= nbytes:
                return idle_buffer.buffer
        del idle_buffer  # frees its memory first
        with self.stream.use():  # pinned in this device's context
            return StagingBuffer(nbytes, self.stream.pins_memory)

    def _take_idle(self) -> _IdleBuffer | None:
        """Take a buffer without pending copies, or the oldest one if enough exist, or none."""
        if self._idle and self._idle[0].mark.is_reached:
            return self._idle.popleft()
        return self._idle.popleft() if len(self._idle) >= _MAX_PENDING_BUFFERS else None
