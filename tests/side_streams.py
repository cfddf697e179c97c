"""Side streams to test with: a GPU's, the CPU's, and one that puts off its work until it must.

A GPU runs behind the thread that queues its work, mostly by little, and so hides what is not waited
for. A `LateStream` runs behind as far as it may: what reads too early, or writes to memory that is
yet to be copied from, finds it out.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from seqrecord.engine.device.prefetch import map_tensors
from seqrecord.engine.device.streams import Mark, SideStream, find_device, side_stream

__all__ = ["NO_GPU", "STREAMS", "LateStream", "OutrunStream", "make_stream", "on_host"]

NO_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here")

STREAMS: list[Any] = ["cpu", "late", pytest.param("cuda", marks=NO_GPU)]
"""Kinds of streams, as parameters of a test."""


def make_stream(kind: str) -> SideStream:
    return LateStream() if kind == "late" else side_stream(find_device(kind))


def on_host(item: Any) -> Any:
    """An item with all of its tensors on the host."""
    return map_tensors(item, torch.Tensor.cpu)


class LateStream(SideStream):
    """Does what was queued, in order, up to the mark that is waited for or given away."""

    pins_memory = False

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.given: list[list[torch.Tensor]] = []
        self._lock = threading.Lock()
        self._todo: deque[Callable[[], object]] = deque()
        self._queued = self._done = 0

    def use(self) -> _PutOff:
        return _PutOff(self)

    def mark(self) -> Mark:
        return _LateMark(self, self._queued)

    def give_to_current(self, mark: Mark, tensors: Iterable[torch.Tensor]) -> Mark:
        mark.wait()  # the consumer of these tests has no stream that could
        self.given.append(list(tensors))
        return mark

    def queue(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._todo.append(work)
            self._queued += 1

    def do(self, number: int) -> None:
        with self._lock:
            while self._done < number:
                self._todo.popleft()()
                self._done += 1

    def is_done(self, number: int) -> bool:
        return self._done >= number


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
    """Queues what copies, and does all else, as views and allocations, at once."""

    def __init__(self, stream: LateStream) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stream = stream

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        if func in (torch.ops.aten.copy_.default, torch.ops.aten.index_copy_.default):
            self._stream.queue(lambda: func(*args, **kwargs))
            return args[0]
        if func is torch.ops.aten.index_select.out:
            self._stream.queue(lambda: func(*args, **kwargs))
            return kwargs["out"]
        if func is torch.ops.aten.clone.default:
            made = torch.empty_like(args[0])
            self._stream.queue(lambda: made.copy_(args[0]))
            return made
        return func(*args, **kwargs)


class OutrunStream(LateStream):
    """Whose consumer's device never comes to a mark before somebody waits for it.

    `waited` gets the numbers of the marks that are waited for, counted as they are given away.
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
