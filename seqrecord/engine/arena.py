"""Memory of the host that is allocated once: the arena of resident frames, and pools of buffers."""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.format.pages import aligned
from seqrecord.reading.frames import SHAPE_DTYPE, ArraySpec

__all__ = [
    "Arena",
    "BufferPool",
    "FreshRows",
    "ObjectRows",
    "Rows",
    "VariableRows",
    "page_aligned",
]


class Rows(Protocol):
    """Rows of frames by feature: an array [rows, …], or what can `make` arrays in its rows."""

    def __getitem__(self, feature: str) -> Any: ...


class VariableRows:
    """Rows of a feature with a variable shape: each is long enough for the largest frame."""

    def __init__(self, num_rows: int, spec: ArraySpec) -> None:
        assert spec.largest is not None, "the largest frame is known"
        self._dtype = spec.dtype
        self._memory = page_aligned((num_rows, aligned(spec.largest)), np.dtype(np.uint8))
        self._shapes = np.zeros((num_rows, len(spec.shape)), SHAPE_DTYPE)

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes + self._shapes.nbytes

    def make(self, first: int, shapes: Sequence[tuple[int, ...]]) -> list[npt.NDArray[Any]]:
        """Arrays of these shapes in the rows from `first` on, to be written to."""
        self._shapes[first : first + len(shapes)] = shapes
        return [self[first + i] for i in range(len(shapes))]

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        """The frame in a row."""
        shape = tuple(self._shapes[row].tolist())
        nbytes = math.prod(shape) * self._dtype.itemsize
        assert nbytes <= self._memory.shape[1], "a frame larger than the largest"
        return self._memory[row, :nbytes].view(self._dtype).reshape(shape)


class FreshRows(list[Any]):
    """Rows of a feature with a variable shape: fresh arrays, which others may go on to use."""

    def __init__(self, num_rows: int, dtype: np.dtype[Any]) -> None:
        super().__init__([None] * num_rows)
        self._dtype = dtype

    def make(self, first: int, shapes: Sequence[tuple[int, ...]]) -> list[npt.NDArray[Any]]:
        """Arrays of these shapes in the rows from `first` on, to be written to."""
        arrays = [np.empty(shape, self._dtype) for shape in shapes]
        self[first : first + len(arrays)] = arrays
        return arrays


class ObjectRows(list[Any]):
    """Rows of a feature whose frames are `str` or `bytes`."""

    def __init__(self, num_rows: int, spec: ArraySpec) -> None:
        super().__init__([None] * num_rows)
        self.nbytes = num_rows * spec.nbytes

    def put(self, row: int, value: str | bytes) -> None:
        """Keep a value in a row."""
        self[row] = value


class Arena:
    """Rows of frames, a feature an array [rows, …]; `VariableRows` where the shape varies, and
    `ObjectRows` of texts."""

    def __init__(self, specs: Mapping[str, ArraySpec], num_rows: int) -> None:
        self.specs = dict(specs)
        self.num_rows = num_rows
        self.is_read: npt.NDArray[np.bool_] = np.zeros(num_rows, np.bool_)
        """Which rows hold their frames, where each frame has a row."""
        self._arrays: dict[str, Any] = {
            name: _rows_of(spec, num_rows) for name, spec in specs.items()
        }

    def __getitem__(self, feature: str) -> Any:
        """A feature's rows, to be written to."""
        return self._arrays[feature]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(array.nbytes for array in self._arrays.values())

    def gather(self, feature: str, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        """Copy rows, int64[n], of a feature of fixed shape into `out` [n, …]. Without the GIL."""
        # With "raise", NumPy would check by copying through a temporary of the whole batch.
        np.take(self._arrays[feature], rows, axis=0, out=out, mode="clip")

    def find_list(self, feature: str, rows: npt.NDArray[np.int64]) -> list[Any]:
        """The frames in these rows, for a variable shape: views, until the rows are loaded anew.

        Of texts the values, which stay.
        """
        frames: VariableRows | ObjectRows = self._arrays[feature]
        return [frames[row] for row in rows.tolist()]


def _rows_of(spec: ArraySpec, num_rows: int) -> Any:
    if spec.value != "array":
        return ObjectRows(num_rows, spec)
    if not spec.is_fixed:
        return VariableRows(num_rows, spec)
    return page_aligned((num_rows, *spec.shape), spec.dtype)  # type: ignore[arg-type]


def page_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Fresh memory that begins at a page: the kernel reads faster into it than to where large
    NumPy arrays begin. See `python -m benchmarks.buffers`."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
    begin = -memory.ctypes.data % mmap.PAGESIZE
    return memory[begin : begin + nbytes].view(dtype).reshape(shape)


class BufferPool:
    """Arrays of one shape and dtype that are leased as tensors, and used again after that.

    A lease ends when the last tensor, view or array on its memory is gone, wherever that happens.
    The pool keeps at most `keep` arrays that nobody uses, and nothing once it is gone.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], keep: int) -> None:
        self._shape = shape
        self._dtype = dtype
        # A deque, not a lock: finalizers release arrays, which may run anywhere, even inside
        # this class's own methods.
        self._free: deque[npt.NDArray[Any]] = deque(maxlen=keep)

    def acquire(self) -> npt.NDArray[Any]:
        """An array to fill; fresh memory only if all are in use."""
        try:
            return self._free.pop()
        except IndexError:
            return self._allocate()

    def lease(self, array: npt.NDArray[Any], count: int | None = None) -> torch.Tensor:
        """The array, or its first `count` rows, as a tensor whose end releases the array."""
        rows = array[:count]
        # Every tensor and view on this memory refers to `rows`, in the end, and `rows` to `array`.
        finalizer = weakref.finalize(rows, _release, weakref.ref(self), array)
        finalizer.atexit = False
        return torch.from_numpy(rows)

    def release(self, array: npt.NDArray[Any]) -> None:
        """Take back an array that was acquired."""
        self._free.append(array)

    def _allocate(self) -> npt.NDArray[Any]:
        return page_aligned(self._shape, self._dtype)


def _release(pool: weakref.ref[BufferPool], array: npt.NDArray[Any]) -> None:
    # Not a bound method: what the user holds must not keep a pool and its other arrays alive.
    if (alive := pool()) is not None:
        alive.release(array)
