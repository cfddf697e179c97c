"""A stand-in for `torch.cuda`, for tests of the calls that streams make."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class FakeCuda:
    """Part of `torch.cuda` that logs calls of streams and events in order, and the devices on
    which a context is made.

    Like CUDA 12: a thread begins with device 0, and a call makes a context on the device
    that is current. `device` restores the previous one without a call to it, `stream` with one.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.contexts: set[int] = set()
        self._thread = threading.local()

    @property
    def now(self) -> int:
        return getattr(self._thread, "device", 0)

    def note(self, call: str) -> None:
        self.contexts.add(self.now)
        self.calls.append(call)

    def set_device(self, device: torch.device) -> None:
        self._thread.device = device.index
        self.note(f"thread has {device}")

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self._thread.device = self.now, device.index
        yield
        self._thread.device = before

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self._thread.device = self.now, 1
        self.note(f"in {stream}:")
        yield
        self._thread.device = before
        self.contexts.add(before)

    def Stream(self, device: Any) -> FakeStream:  # noqa: N802 - torch's name
        with self.device(device):
            return FakeStream(self, str(device))

    def Event(self, *, enable_timing: bool, blocking: bool) -> FakeEvent:  # noqa: N802
        assert enable_timing
        assert blocking, "a thread must not spin"
        return FakeEvent(self)

    def current_stream(self, device: Any) -> FakeStream:
        assert str(device) == "cuda:1"
        return FakeStream(self, "current")

    def is_available(self) -> bool:
        raise AssertionError("it starts CUDA, which no fork survives")

    def device_count(self) -> int:
        return 2

    def current_device(self) -> int:
        return 1


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name
        cuda.contexts.add(cuda.now)

    def wait_event(self, event: FakeEvent) -> None:
        self.cuda.note(f"{self.name} waits for {event.number}")

    def __str__(self) -> str:
        return self.name


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        cuda.contexts.add(cuda.now)

    def record(self, stream: FakeStream) -> None:
        self.number = sum(call.startswith("mark") for call in self.cuda.calls)
        self.cuda.note(f"mark {self.number} in {stream}")

    def synchronize(self) -> None:
        self.cuda.note(f"thread waits for {self.number}")

    def query(self) -> bool:
        self.cuda.contexts.add(self.cuda.now)
        return True

    def elapsed_time(self, end: FakeEvent) -> float:
        self.cuda.contexts.add(self.cuda.now)
        return float(1000 * (end.number - self.number))


class FakeTensor:
    def __init__(self, cuda: FakeCuda) -> None:
        self.record_stream = lambda stream: cuda.note(f"memory waits for {stream}")
