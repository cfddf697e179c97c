"""The class that the loader loads for `device=`: see `seqrecord.store.areas.DEVICE`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt
import torch

from seqrecord.cuda.buffers import DeviceBuffers
from seqrecord.cuda.streams import check_device, find_device, side_stream
from seqrecord.loader.engine.buffers import BufferNeeds
from seqrecord.loader.engine.devices import Device
from seqrecord.loader.engine.tensors import array_of


class StreamDevice(Device):
    """A device with a side stream, which all its buffers use."""

    check = staticmethod(check_device)
    find = staticmethod(find_device)

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = side_stream(device)

    def compute(self, function: Callable[[], torch.Tensor]) -> npt.NDArray[Any]:
        """See `Device`."""
        with self._stream.use():
            result = function().to("cpu", non_blocking=self._stream.pins_memory)
        self._stream.mark().wait()
        return array_of(result)

    def make_buffers(self, needs: BufferNeeds) -> DeviceBuffers:
        """See `Device`."""
        return DeviceBuffers(needs, self._stream)
