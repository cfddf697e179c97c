"""Accelerators: an arena in a device's memory, and batches that are moved there ahead of time."""

from seqrecord.engine.device.prefetch import (
    DevicePrefetcher,
    prefetch_to_device,
)

__all__ = [
    "DevicePrefetcher",
    "prefetch_to_device",
]
