"""Side streams for tests: of a GPU, of the CPU, and a stream that delays work as long as possible.

A GPU runs only slightly behind the thread that queues its work, and so hides missing waits. A
`LateStream` runs behind as far as allowed: code that reads too early, or overwrites memory before
it is copied, gets wrong values. It distinguishes device, pinned and pageable memory, although all
of it is the host's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from seqrecord.cuda.streams import Mark, SideStream, find_device, side_stream, streams_of

__all__ = [
    "NO_GPU",
    "STREAMS",
    "LateStream",
    "OutrunStream",
    "device_of",
    "late_streams",
    "make_stream",
    "on_host",
    "streams_of",
]

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")

STREAMS: list[Any] = ["cpu", "late", pytest.param("cuda", marks=NO_GPU)]
"""Kinds of streams, as parameters of a test."""


def make_stream(kind: str) -> SideStream:
    return LateStream() if kind == "late" else side_stream(find_device(kind))


@contextmanager
def late_streams() -> Iterator[list[LateStream]]:
    """Let loaders use late streams on the CPU; yields the list of created streams."""
    made: list[LateStream] = []

    def make(_: torch.device) -> LateStream:
        made.append(LateStream())
        return made[-1]

    with streams_of("cpu", make):
        yield made


@contextmanager
def device_of(kind: str) -> Iterator[str]:
    """The device of a kind of stream; loaders use such streams in this context."""
    with late_streams() if kind == "late" else nullcontext():
        yield "cpu" if kind == "late" else kind


def on_host(item: Any) -> Any:
    """An item with its tensors on the host."""
    if isinstance(item, torch.Tensor):
        return item.cpu()
    if isinstance(item, dict):
        return {name: on_host(value) for name, value in item.items()}
    return [on_host(value) for value in item] if isinstance(item, list) else item


class LateStream(SideStream):
    """Does the queued work, in order, up to the mark that is waited for or passed on.

    All work except views and allocations is queued. Allocations in `use` count as memory of the
    device, or pinned memory. Raises for work on other memory except blocking copies, for blocking
    copies from pinned memory, and for its copies of non-dense tensors, which block in torch.
    `stalls` counts blocking copies.
    """

    pins_memory = True

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.given: list[list[torch.Tensor]] = []
        self.stalls = 0
        self._lock = threading.Lock()
        self._todo: deque[Callable[[], object]] = deque()
        self._queued = self._done = 0
        self._is_pinned: dict[StorageWeakRef, bool] = {}  # device and pinned memory

    def use(self) -> _PutOff:
        return _PutOff(self)

    def mark(self) -> Mark:
        return _LateMark(self, self._queued)

    def give_to_current(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        mark.wait()  # the consumer has no stream that could wait
        self.given.append(list(tensors))
        return mark

    def queue(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._todo.append(work)
            self._queued += 1

    def do(self, number: int) -> None:
        with self._lock, _disable_current_modes():  # a wait inside `use` must queue nothing
            while self._done < number:
                self._todo.popleft()()
                self._done += 1

    def is_done(self, number: int) -> bool:
        return self._done >= number

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Handle a torch operation in `use`."""
        aten = torch.ops.aten
        tensors = [item for item in tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        if func is aten.is_pinned.default:
            return self.kind(args[0]) == "pinned"
        if func is aten._pin_memory.default:
            return self._note(args[0].clone(), is_pinned=True)
        if func.is_view:
            return func(*args, **kwargs)
        if not tensors or func.namespace != "aten":  # an allocation, or a decoder
            is_pinned = bool(kwargs.pop("pin_memory", False))
            return self._note(func(*args, **kwargs), is_pinned=is_pinned)
        kinds = {self.kind(tensor) for tensor in tensors}
        if func is aten.copy_.default:
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
            if "host" in kinds:
                assert waits, "a copy from or to pageable memory that nobody waits for"
                self.stalls += 1
                self.do(self._queued)
                return func(*args, **kwargs)
            if "pinned" in kinds:
                assert not waits, "a copy from pinned memory that waits"
                assert args[0].stride() == args[1].stride(), "a copy of non-dense memory"
        assert "host" not in kinds, f"{func} of memory of the host"
        if func._schema.is_mutable:
            self.queue(lambda: func(*args, **kwargs))
            return kwargs.get("out", args[0])
        result = func(*args, **kwargs)  # its shape, for now
        assert isinstance(result, torch.Tensor), f"{func} tells the host a value"
        self._note(result.fill_(1), is_pinned=False)  # before another thread does the work
        self.queue(lambda: result.copy_(func(*args, **kwargs)))
        return result

    def _note(self, result: Any, *, is_pinned: bool) -> Any:
        for item in tree_leaves(result):
            if isinstance(item, torch.Tensor):
                self._is_pinned[_storage(item)] = is_pinned
        return result

    def kind(self, tensor: torch.Tensor) -> str:
        is_pinned = self._is_pinned.get(_storage(tensor))
        return "host" if is_pinned is None else "pinned" if is_pinned else "device"


def _storage(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


class _LateMark(Mark):
    def __init__(self, stream: LateStream, number: int) -> None:
        self._stream = stream
        self._number = number

    def wait(self) -> None:
        self._stream.do(self._number)

    @property
    def is_reached(self) -> bool:
        return self._stream.is_done(self._number)

    @property
    def time(self) -> float:
        assert self.is_reached
        return perf_counter()

    def seconds_since(self, earlier: Mark) -> float:
        assert self.is_reached
        assert earlier.is_reached
        return 0.0


class _PutOff(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, stream: LateStream) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stream = stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return self._stream.call(func, args, dict(kwargs or {}))


class OutrunStream(LateStream):
    """A stream whose marks are never reached before the consumer waits for them.

    `waited` gets the numbers of these marks, counted in the order of `give_to_current`.
    """

    def __init__(self, waited: list[int]) -> None:
        super().__init__()
        self._waited = waited

    def give_to_current(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        super().give_to_current(mark, tensors)
        return _Taken(len(self.given) - 1, self._waited)


class _Taken(Mark):
    is_reached, time = False, 0.0

    def __init__(self, number: int, waited: list[int]) -> None:
        self._number, self._waited = number, waited

    def wait(self) -> None:
        self._waited.append(self._number)

    def seconds_since(self, earlier: Mark) -> float:
        raise NotImplementedError
