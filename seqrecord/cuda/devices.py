"""The class that the loader loads for `device=`: see `seqrecord.store.areas.DEVICE`."""

from __future__ import annotations

import torch

from seqrecord.cuda.buffers import DeviceBuffers
from seqrecord.cuda.streams import check_device, find_device, side_stream
from seqrecord.loader.engine.buffers import BufferNeeds
from seqrecord.loader.engine.devices import Device


class StreamDevice(Device):
    """A device with a side stream, which all its buffers use."""

    check = staticmethod(check_device)
    find = staticmethod(find_device)

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._stream = side_stream(device)

    def make_buffers(self, needs: BufferNeeds) -> DeviceBuffers:
        """See `Device`."""
        return DeviceBuffers(needs, self._stream)
