"""Memory that is allocated once: the arena of resident frames, and batch buffers that are reused.

The arena gives every cursor of a plan a ring of rows. Frames enter a ring in the order in which
they are loaded and leave it in the same order, so a row is found by counting::

    ring of 8 rows        . . f f f f . .
    frames freed              ^ 2       ^ 6     frames loaded
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.format.pages import aligned
from seqrecord.frames import SHAPE_DTYPE, ArraySpec

__all__ = ["Arena", "BufferPool", "Ring", "VariableRows", "find_rows", "page_aligned"]

_FRAMES = 1 << 40  # more than an episode has


class Ring:
    """Which rows of the arena hold which frames of one cursor. Counts only, in a plan's order."""

    def __init__(self, first_row: int, num_rows: int) -> None:
        self.first_row = first_row
        self.num_rows = num_rows
        self._loaded = 0
        self._freed = 0
        self._next = (-1, -1)  # run and frame that would continue the last stretch
        self._stretches: deque[Stretch] = deque()

    def has_room(self, count: int) -> bool:
        return self._loaded + count - self._freed <= self.num_rows

    @property
    def resident(self) -> int:
        """Frames held."""
        return self._loaded - self._freed

    @property
    def stretches(self) -> Iterable[Stretch]:
        """The stretches of consecutive frames that are held, in the order of their loads."""
        return self._stretches

    def load(self, run: int, first: int, count: int, step: int) -> npt.NDArray[np.int64]:
        """Rows for frames `first`, `first + step`, …; they follow the stretch, or begin another."""
        assert self.has_room(count), "the plan holds more frames than it said"
        if (run, first) == self._next:
            self._stretches[-1] = self._stretches[-1]._replace(stop=self._loaded + count)
        else:
            origin = self._loaded - first // step
            self._stretches.append(Stretch(run, first, origin, self._loaded + count))
        self._next = (run, first + count * step)
        self._loaded += count
        positions = np.arange(self._loaded - count, self._loaded)
        rows: npt.NDArray[np.int64] = self.first_row + positions % self.num_rows
        return rows

    def free(self, count: int) -> None:
        """Forget the `count` frames that were loaded first."""
        self._freed += count
        while self._stretches and self._stretches[0].stop <= self._freed:
            self._stretches.popleft()
        if not self._stretches:
            self._next = (-1, -1)


class Stretch(NamedTuple):
    """Frames of a run from `first` on, which a ring holds one after the other.

    Frame `f` is at place `(origin + f // step) % num_rows` of the ring, up to place `stop`.
    """

    run: int
    first: int
    origin: int
    stop: int


def find_rows(
    rings: Sequence[Ring],
    run: npt.NDArray[np.int64],
    start: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where clips' frames are: origin, ring's first row and number of rows; int64[n] each.

    Clip `i` starts at frame `start[i]` of run `run[i]`; all of its frames are held. Runs ascend
    over the rings, and within each. Frame `f` is in row `first + (origin + f // step) % number`.
    """
    held = [(s.run, s.first, s.origin, r.first_row, r.num_rows) for r in rings for s in r.stretches]
    table = np.array(held, np.int64).reshape(-1, 5)
    sought = run * _FRAMES + start
    at = np.searchsorted(table[:, 0] * _FRAMES + table[:, 1], sought, side="right") - 1
    return table[at, 2], table[at, 3], table[at, 4]


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


class Arena:
    """Rows of frames, a feature an array [rows, …]; `VariableRows` where the shape varies."""

    def __init__(self, specs: Mapping[str, ArraySpec], num_rows: int) -> None:
        self.specs = dict(specs)
        self.num_rows = num_rows
        self._arrays: dict[str, Any] = {
            name: page_aligned((num_rows, *spec.shape), spec.dtype)  # type: ignore[arg-type]
            if spec.is_fixed
            else VariableRows(num_rows, spec)
            for name, spec in specs.items()
        }

    def __getitem__(self, feature: str) -> Any:
        """A feature's rows, to be written to."""
        return self._arrays[feature]

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return sum(array.nbytes for array in self._arrays.values())

    def load(self, rows: npt.NDArray[np.int64]) -> tuple[Arena, npt.NDArray[np.int64]]:
        """Where to write the frames of a load that gets these rows, and at which rows of that."""
        return self, rows

    def gather(self, feature: str, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        """Copy rows, int64[n], of a feature of fixed shape into `out` [n, …]. Without the GIL."""
        # With "raise", NumPy would check by copying through a temporary of the whole batch.
        np.take(self._arrays[feature], rows, axis=0, out=out, mode="clip")

    def find_list(self, feature: str, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.generic]]:
        """The frames in these rows, for a variable shape: views, until the rows are loaded anew."""
        frames: VariableRows = self._arrays[feature]
        return [frames[row] for row in rows.tolist()]


def page_aligned(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Fresh memory that begins at a page: the kernel reads faster into it than to where large
    NumPy arrays begin. See `python -m benchmarks.buffers`."""
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.empty(nbytes + mmap.PAGESIZE, np.uint8)
    begin = -memory.ctypes.data % mmap.PAGESIZE
    return memory[begin : begin + nbytes].view(dtype).reshape(shape)


class BufferPool:
    """Arrays of one shape and dtype that are lent as tensors and come back when unused.

    An array returns when the last tensor, view or array on its memory is gone, wherever that
    happens. The pool keeps at most `keep` of those that are back, and nothing once it is gone.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], keep: int) -> None:
        self._shape = shape
        self._dtype = dtype
        # A deque, not a lock: arrays come back from finalizers, which may run anywhere, even
        # inside this class's own methods.
        self._free: deque[npt.NDArray[Any]] = deque(maxlen=keep)

    def take(self) -> npt.NDArray[Any]:
        """An array to fill; fresh memory only if none is back."""
        try:
            return self._free.pop()
        except IndexError:
            return self._allocate()

    def lend(self, array: npt.NDArray[Any], count: int | None = None) -> torch.Tensor:
        """The array, or its first `count` rows, as a tensor whose end brings the array back."""
        lent = array[:count]
        # Every tensor and view on this memory refers to `lent`, in the end, and `lent` to `array`.
        finalizer = weakref.finalize(lent, _give_back, weakref.ref(self), array)
        finalizer.atexit = False
        return torch.from_numpy(lent)

    def give_back(self, array: npt.NDArray[Any]) -> None:
        """Have an array back that was taken."""
        self._free.append(array)

    def _allocate(self) -> npt.NDArray[Any]:
        return page_aligned(self._shape, self._dtype)


def _give_back(pool: weakref.ref[BufferPool], array: npt.NDArray[Any]) -> None:
    # Not a bound method: what the user holds must not keep a pool and its other arrays alive.
    if (alive := pool()) is not None:
        alive.give_back(array)
