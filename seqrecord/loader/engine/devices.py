"""Where iterations get their memory: from the host or a device, or from the last iteration.

The loader allocates memory of the host only. With `device=` it loads the class of
`store.areas.DEVICE`, which another part registers, and calls nothing but the methods here.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch

from seqrecord.loader.engine.buffers import BufferNeeds, Buffers, HostBuffers
from seqrecord.store.areas import DEVICE, load_entry


class Device(ABC):
    """A device for arenas and batches. All iterations of a loader or mix share it.

    Args:
        device: a device from `find`.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    @staticmethod
    @abstractmethod
    def check(device: str | torch.device) -> torch.device:
        """Check a device, without initializing it. Raises `ClipError` if it is not available."""

    @staticmethod
    @abstractmethod
    def find(device: str | torch.device) -> torch.device:
        """Check a device and add its number, by default that of the thread's current device."""

    @abstractmethod
    def compute(self, function: Callable[[], torch.Tensor]) -> npt.NDArray[Any]:
        """Return a function's result from tensors of a batch, before any other use of these.

        Waits for the work that fills batches, and not for the work of the thread's stream.
        """

    @abstractmethod
    def make_buffers(self, needs: BufferNeeds) -> Buffers[Any]:
        """Allocate the memory of an iteration."""


def device_class() -> type[Device]:
    """Load the class of devices; raises `MissingPackageError` without its part."""
    registered: type[Device] = load_entry(DEVICE)
    return registered


class BufferCache:
    """Keeps the buffers of the last iteration for the next. Empty after pickling.

    A loader thus keeps the memory of one epoch until it is deleted, never that of two.
    """

    def __init__(self) -> None:
        self._idle: deque[Buffers[Any]] = deque(maxlen=1)
        self._process = os.getpid()
        self._device: Device | None = None

    def __reduce__(self) -> tuple[type[BufferCache], tuple[()]]:
        return BufferCache, ()

    def acquire(self, needs: BufferNeeds, device: Device | None) -> Buffers[Any]:
        """Return the kept buffers if they match `needs`; otherwise free them and make new ones.

        Without a `device`, they are in host memory.
        """
        if self._process != os.getpid():  # a fork: they belong to the other process
            self._idle.clear()
            self._process = os.getpid()
        try:
            kept = self._idle.pop()
            if kept.needs == needs:
                return kept
            del kept
        except IndexError:
            pass
        return HostBuffers(needs) if device is None else device.make_buffers(needs)

    def device(self, device: torch.device | None) -> Device | None:
        """Return a device, the same one for all iterations.

        Torch does not reuse the memory of one stream in another.
        """
        if device is None:
            return None
        if self._device is None or self._device.device != device:
            self._device = device_class()(device)
        return self._device

    def release(self, buffers: Buffers[Any]) -> None:
        """Keep acquired buffers for the next iteration."""
        self._idle.append(buffers)

    def clear(self) -> None:
        """Free the kept buffers."""
        self._idle.clear()
