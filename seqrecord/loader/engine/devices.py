"""Devices of batches, which another part registers.

The loader allocates memory of the host only. With `device=` it loads the class of
`store.areas.DEVICE`, and calls nothing but the methods here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from seqrecord.loader.engine.buffers import BufferNeeds, Buffers
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
    def make_buffers(self, needs: BufferNeeds) -> Buffers[Any]:
        """Allocate the memory of an iteration."""


def device_class() -> type[Device]:
    """Load the class of devices; raises `MissingPackageError` without its part."""
    registered: type[Device] = load_entry(DEVICE)
    return registered
