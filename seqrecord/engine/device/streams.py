"""Side streams: where a device copies and gathers beside the user's own work.

A CUDA stream is a queue. The work of one stream runs in the order in which it was queued; that of
two streams runs in any order, unless one waits for an event of the other. And the thread that
queues work doesn't wait for it. So there are three things to get right, and all of them are here:

- Host memory that is copied from must not be written to before the copy is done: `Mark.wait`.
  `Staging` is such memory, which waits before it is used again.
- The user's stream must not read what the side stream has yet to write: `give_to_current` makes it
  wait, on the device; no thread does.
- Memory that the side stream allocated goes back to the side stream when its tensor is dropped,
  which may then write to it while the user's stream still reads: `give_to_current` calls
  `record_stream`, so that the allocator first waits for what the user had queued by then.

And one more: a thread begins with GPU 0 as its current device, and most calls to CUDA make a
context on the current device, hundreds of megabytes, whatever device they are about. So threads of
this package's own call `bind_thread` before anything else, and in the user's threads every call is
made with the device of the stream as the current one, which is put back afterwards.

A device without streams does its work before the call returns: then nothing needs to wait, and
the same code runs.
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
from seqrecord.processes.forks import PerProcess

_ALIGNMENT = 64  # of what is carved: a cache line, and more than any dtype wants
_MOST_UNDER_WAY = 2  # buffers being copied from, beside those that are acquired

_CUDA: Any = torch.cuda  # torch types it in part


class Mark(ABC):
    """A point in a stream: behind all work that had been queued when it was made."""

    @abstractmethod
    def wait(self) -> None:
        """Let this thread sleep until the work is done. Without the GIL."""

    @property
    @abstractmethod
    def is_reached(self) -> bool:
        """Whether the work is done."""

    @property
    @abstractmethod
    def time(self) -> float:
        """When the work was done, in seconds of `perf_counter`. Only once it is."""

    @abstractmethod
    def seconds_since(self, earlier: Mark) -> float:
        """Between two marks of a stream. Only once they are reached."""


class QueueLimit:
    """Lets a consumer run ahead of its device by `limit` things that it has taken, and no more.

    Memory that a consumer has dropped is used again only when its device has come to that. A
    consumer that queues steps far faster than its device does them would so take more and more.
    """

    def __init__(self, limit: int = 2) -> None:
        self._limit = limit
        self._taken: deque[Mark] = deque()

    def add(self, taken: Mark) -> None:
        """Something was taken, at this mark of the consumer's stream."""
        self._taken.append(taken)

    def wait(self) -> None:
        """Wait, before memory is taken for more, until the device has come near enough."""
        while len(self._taken) > self._limit:
            self._taken.popleft().wait()


class SideStream(ABC):
    """A queue of work for a device, for any number of threads."""

    pins_memory: bool
    """Whether copies are done later, and only from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def bind_thread(self) -> None:  # noqa: B027 - there may be nothing to do
        """Make the device the current one of this thread, which is not the user's."""

    @abstractmethod
    def use(self) -> AbstractContextManager[object]:
        """A context in which this thread's work is queued here, and allocates memory for it."""

    @abstractmethod
    def mark(self) -> Mark:
        """The end of what has been queued here."""

    def set_clock(self) -> None:  # noqa: B027 - there may be nothing to do
        """Set the time of marks made from now on to the host's; a device's clock may drift."""

    @abstractmethod
    def give_to_current(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        """Give tensors of this stream to the calling thread's current stream.

        What that stream gets to do from now on waits for `mark`, and when the tensors are dropped
        their memory waits for it. Returns a mark of what it had to do before, and of that wait:
        what is dropped next is used again once the mark is reached.
        """


class DirectStream(SideStream):
    """For a device that has done its work when the call returns, as a CPU."""

    pins_memory = False

    def use(self) -> AbstractContextManager[object]:
        return nullcontext()

    def mark(self) -> Mark:
        return _Now()

    def give_to_current(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        del mark, tensors
        return _Now()


class CudaStream(SideStream):
    """A CUDA stream of its own; `cuda` stands for `torch.cuda`."""

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
        # The device first: `stream` alone would set the one before it again, and so touch it.
        with self._cuda.device(self.device), self._cuda.stream(self._stream):
            yield

    def mark(self) -> Mark:
        return self._mark(self._stream)

    def set_clock(self) -> None:
        # Events know only the time between each other: this one's is known on the host too.
        with self._cuda.device(self.device):
            origin = self._event(self._stream)
            origin.synchronize()
        self._origin = (origin, perf_counter())

    def give_to_current(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        assert isinstance(mark, _CudaMark), "a mark of another stream"
        with self._cuda.device(self.device):
            current = self._cuda.current_stream(self.device)
            current.wait_event(mark.event)
            taken = self._mark(current)
            for tensor in tensors:
                tensor.record_stream(current)
        return taken

    def _mark(self, stream: Any) -> _CudaMark:
        return _CudaMark(self._event(stream), self._origin, self.device, self._cuda)

    def _event(self, stream: Any) -> Any:
        with self._cuda.device(self.device):
            # "blocking": a thread that waits sleeps instead of spinning.
            event = self._cuda.Event(enable_timing=True, blocking=True)
            event.record(stream)
        return event


_Maker: TypeAlias = Callable[[torch.device], SideStream]

_make: dict[str, _Maker] = {"cuda": CudaStream}
_lasting = PerProcess(dict[tuple[_Maker, torch.device], SideStream])


def side_stream(device: torch.device) -> SideStream:
    """A new stream of a device from `find_device`."""
    return _maker(device)(device)


def lasting_stream(device: torch.device) -> SideStream:
    """The stream of a device that this process asks for here each time.

    For what is made anew for each epoch: what torch has of the memory of a stream, it gives to no
    other one.
    """
    make, streams = _maker(device), _lasting.get()
    if (found := streams.get((make, device))) is None:
        found = streams.setdefault((make, device), make(device))
    return found


def _maker(device: torch.device) -> _Maker:
    return _make.get(device.type, DirectStream)


@contextmanager
def streams_of(kind: str, make: _Maker) -> Iterator[None]:
    """In this context, streams of devices of a kind, such as "cpu", are what `make` gives.

    For all threads; for tests, which have streams that run as late as they may.
    """
    before = dict(_make)
    _make[kind] = make
    try:
        yield
    finally:
        _make.clear()
        _make.update(before)


def check_device(device: str | torch.device, cuda: Any = _CUDA) -> torch.device:
    """The device. Raises `ClipError` for one that is not there. Starts nothing on a GPU."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        raise ClipError("not a device", expected="such as cpu or cuda:0", got=device) from None
    if found.type != "cuda":
        try:
            torch.empty(0, device=found)
        except (AssertionError, ImportError, RuntimeError):  # whatever torch lacks for it
            raise ClipError(
                "torch finds no such device here", expected="such as cpu or cuda:0", got=device
            ) from None
        return found
    # Torch asks the driver's NVML for it. `is_available` asks CUDA, which no fork survives.
    count = cuda.device_count()
    if (_index(found) or 0) >= count:
        expected = f"at most cuda:{count - 1}" if count else "cpu"
        raise ClipError("torch finds no such device here", expected=expected, got=device)
    return found


def find_device(device: str | torch.device, cuda: Any = _CUDA) -> torch.device:
    """The device with its number: where none is given, that of this thread's current one.

    Raises `ClipError` for one that is not there.
    """
    found = check_device(device, cuda)
    if found.type == "cuda" and _index(found) is None:
        return torch.device("cuda", cuda.current_device())
    return found


def upload(host: torch.Tensor, device: torch.device, *, is_late: bool) -> torch.Tensor:
    """A copy of memory that nobody writes to any more, queued on the current stream.

    Where the device `is_late`, it comes from pinned memory: from any other, this thread would wait
    for all that is queued there.
    """
    return (host.pin_memory() if is_late else host).to(device, non_blocking=is_late)


def _index(device: torch.device) -> int | None:
    return device.index  # which torch types as an integer


class _Now(Mark):
    """Reached when it is made."""

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
    """Host memory, pinned where the device wants that, from which pieces are carved."""

    def __init__(self, nbytes: int, pin: bool) -> None:
        # Torch knows of copies from memory that it has pinned: were this dropped meanwhile,
        # its memory would not be used for anything else before they are done. That is why pieces
        # are made of this tensor, and not of an array's memory.
        with torch.inference_mode(False):  # else none but threads in that mode could write to it
            self._memory = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=pin)
        self._used = 0
        self._kept: list[torch.Tensor] = []

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes

    @staticmethod
    def room(sizes: Iterable[int]) -> int:
        """Bytes of a buffer that pieces of these sizes are carved from."""
        return sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)

    def carve(self, nbytes: int) -> torch.Tensor:
        """The next piece: uint8 [nbytes]."""
        begin, self._used = self._used, self._used + self.room([nbytes])
        assert self._used <= self.nbytes, "a buffer is larger than what is carved from it"
        return self._memory[begin : begin + nbytes]

    def array(
        self, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> tuple[torch.Tensor, npt.NDArray[Any]]:
        """The next piece as it is copied, uint8 [nbytes], and as it is written to, an array."""
        piece = self.carve(int(np.prod(shape)) * dtype.itemsize)
        return piece, piece.numpy().view(dtype).reshape(shape)

    def keep(self, source: torch.Tensor) -> None:
        """Refer to memory of others that is copied from too, until the buffer is used again."""
        self._kept.append(source)

    def clear(self) -> None:
        """Carve from the beginning again."""
        self._used = 0
        self._kept.clear()


class _Copied(NamedTuple):
    """A buffer that nobody holds, and when all copies from it are done."""

    buffer: StagingBuffer
    mark: Mark


class Staging:
    """Buffers for a stream. Any number of threads acquire one each.

    There are at most two more than are acquired at a time: one can be filled while others are
    copied from. Torch rounds pinned memory up to a power of two.
    """

    def __init__(self, stream: SideStream) -> None:
        self.stream = stream
        self._lock = threading.Lock()
        self._idle: deque[_Copied] = deque()  # in the order in which copies were queued

    @contextmanager
    def acquire(self, sizes: Iterable[int]) -> Iterator[StagingBuffer]:
        """A buffer for pieces of these sizes, from which copies may be queued in this context."""
        buffer = self._find(StagingBuffer.room(sizes))
        try:
            yield buffer
        finally:
            self._idle.append(_Copied(buffer, self.stream.mark()))

    def _find(self, nbytes: int) -> StagingBuffer:
        with self._lock:
            found = self._next()
        if found is not None:
            found.mark.wait()
            found.buffer.clear()
            if found.buffer.nbytes >= nbytes:
                return found.buffer
        del found  # its memory first
        with self.stream.use():  # memory is pinned for a device's context: not for another one's
            return StagingBuffer(nbytes, self.stream.pins_memory)

    def _next(self) -> _Copied | None:
        """One that is copied already, or else the first one that will be, or else none."""
        if self._idle and self._idle[0].mark.is_reached:
            return self._idle.popleft()
        return self._idle.popleft() if len(self._idle) >= _MOST_UNDER_WAY else None
