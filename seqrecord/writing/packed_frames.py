"""Frames as one piece of memory each: copied once, queued, spilled to a file and read again."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.schema import EncodedImage, Frame

__all__ = ["BufferPool", "FramePlan", "PackedFrame"]

_ALIGNMENT = 64
_MAX_FREE = 64  # buffers that wait to be used again


@dataclass(frozen=True)
class _Field:
    """Where a feature lies in its frame's memory, and what it is."""

    name: str
    start: int
    stop: int
    kind: type  # ndarray, EncodedImage, str or bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def value(self, data: npt.NDArray[np.uint8]) -> Any:
        memory = data[self.start : self.stop]
        if self.kind is np.ndarray:
            return memory.view(self.dtype).reshape(self.shape)
        item = memory.tobytes()
        if self.kind is EncodedImage:
            return EncodedImage(item)
        return item.decode() if self.kind is str else item


class FramePlan:
    """How a frame will lie in memory: `nbytes` of it are needed. Nothing is copied yet."""

    def __init__(self, frame: Frame) -> None:
        self._items: list[tuple[_Field, npt.NDArray[Any]]] = []
        at = 0
        for name, item in frame.items():
            kind: type = np.ndarray
            if isinstance(item, (EncodedImage, str, bytes, bytearray, memoryview)):
                kind = type(item) if isinstance(item, (EncodedImage, str)) else bytes
                data = item.data if isinstance(item, EncodedImage) else item
                data = data.encode() if isinstance(data, str) else bytes(data)
                array: npt.NDArray[Any] = np.frombuffer(data, np.uint8)
            else:
                array = np.asarray(item)
            field = _Field(name, at, at + array.nbytes, kind, array.dtype, array.shape)
            self._items.append((field, array))
            at += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        self.nbytes = at

    def pack(self, memory: npt.NDArray[np.uint8]) -> PackedFrame:
        """Copy the frame into memory of `nbytes` or more."""
        for field, array in self._items:
            target = memory[field.start : field.stop].view(field.dtype).reshape(field.shape)
            np.copyto(target, array)
        return PackedFrame(tuple(field for field, _ in self._items), memory, self.nbytes)


@dataclass(frozen=True, eq=False)
class PackedFrame:
    """A frame in the first `nbytes` of `memory`."""

    fields: tuple[_Field, ...]
    memory: npt.NDArray[np.uint8]
    nbytes: int

    def unpack(self) -> Frame:
        """The frame; its arrays are views on the memory."""
        return {field.name: field.value(self.memory) for field in self.fields}


class BufferPool:
    """Memory for frames, used again: touching fresh memory takes several times as long as copying.

    Safe to use from many threads. At most `limit` bytes wait to be used.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._free: list[npt.NDArray[np.uint8]] = []
        self._free_bytes = 0

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """Memory of at least so many bytes, and at most a quarter more."""
        with self._lock:
            for number, buffer in enumerate(self._free):
                if nbytes <= buffer.nbytes <= nbytes * 1.25:
                    self._free_bytes -= buffer.nbytes
                    return self._free.pop(number)
        return np.empty(nbytes, np.uint8)

    def give(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Nothing uses this memory any more."""
        with self._lock:
            self._free.append(buffer)
            self._free_bytes += buffer.nbytes
            while self._free_bytes > self._limit or len(self._free) > _MAX_FREE:
                self._free_bytes -= self._free.pop(0).nbytes
