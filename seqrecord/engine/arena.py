"""Rows of frames in memory that is allocated once, also of shapes that vary, and texts; and what a
batch has of such frames.

In a batch, frames of shapes that vary lie one after the other in one piece of memory. So a batch
takes what its frames take, in memory that is used again as that of fixed shapes is::

    frames    | 0     | 1 | 2         | 3   |                      largest x frames
    memory    [ . . . . . . . . . . . . . . | never touched …                     ]
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.engine.device.streams import upload
from seqrecord.engine.pools import BufferPool, page_aligned
from seqrecord.errors import ClipError
from seqrecord.format.pages import aligned
from seqrecord.reading.frames import SHAPE_DTYPE, ArraySpec, mask_name
from seqrecord.schema import FeatureSpec

_BYTE = np.dtype(np.uint8)


class FeatureRows(Protocol):
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

    def sizes(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Height and width of the frames in these rows, int64[n]; int64[n, 2]."""
        return self._shapes[rows, :2].astype(np.int64)

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
        self._arrays[feature].take(rows, axis=0, out=out, mode="clip")

    def sizes(self, feature: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Height and width of the frames in these rows, int64[n], of a feature of variable shape;
        int64[n, 2]."""
        found: npt.NDArray[np.int64] = self._arrays[feature].sizes(rows)
        return found

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


class Padded:
    """Rows of a feature of variable shape that is padded with zeros, and of its mask.

    `rows` is [rows, …] and `mask` bool [rows, the variable dimensions], which is true for what is
    the frame's; the spec's shape has `None` for these dimensions.
    """

    def __init__(self, spec: FeatureSpec, rows: npt.NDArray[Any], mask: npt.NDArray[Any]) -> None:
        self._name, self._rows, self._mask = spec.name, rows, mask
        self._varies = [axis for axis, size in enumerate(spec.shape) if size is None]

    def put(self, row: int, frame: npt.NDArray[Any]) -> None:
        """Copy a frame to a row. Raises `ClipError` for one that is too large."""
        target, mask = self._rows[row], self._mask[row]
        if any(size > room for size, room in zip(frame.shape, target.shape, strict=True)):
            raise ClipError(
                "a frame is larger than what it is padded to",
                feature=self._name,
                expected=f"at most {[target.shape[axis] for axis in self._varies]}",
                got=[frame.shape[axis] for axis in self._varies],
            )
        target[...] = 0
        target[tuple(map(slice, frame.shape))] = frame
        mask[...] = False
        mask[tuple(slice(frame.shape[axis]) for axis in self._varies)] = True


def clear_rows(spec: FeatureSpec, target: FeatureRows, first: int, count: int) -> None:
    """Make zeros of rows of a feature: no values where the shape varies, and empty texts."""
    rows = target[spec.name]
    if isinstance(rows, np.ndarray):
        rows[first : first + count] = 0
        if not spec.is_fixed:
            target[mask_name(spec.name)][first : first + count] = False
    elif spec.value != "array":
        for row in range(first, first + count):
            rows.put(row, "" if spec.value == "text" else b"")
    elif spec.is_fixed:  # a device's
        rows.clear(first, count)
    else:
        rows.make(first, [tuple(size or 0 for size in spec.shape)] * count)


def pad(
    spec: FeatureSpec, frames: Sequence[npt.NDArray[Any]], sizes: Sequence[int | None]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Frames of a feature as one array [frames, *sizes], and its mask; in fresh memory."""
    shape = [size or 0 for size in sizes]
    varies = [shape[axis] for axis, size in enumerate(spec.shape) if size is None]
    rows = np.empty((len(frames), *shape), spec.dtype)
    mask = np.empty((len(frames), *varies), np.bool_)
    padded = Padded(spec, rows, mask)
    for row, frame in enumerate(frames):
        padded.put(row, frame)
    return rows, mask


class RaggedFrames(Protocol):
    """The frames of a feature of variable shape in a batch, clip after clip."""

    def lists(self) -> list[list[torch.Tensor]]:
        """A list of frames for each clip."""

    def nested(self) -> torch.Tensor:
        """One nested tensor [clips * frames, ?, …]; of a feature whose first dimension varies."""


class Frames:
    """Frames that are tensors of their own, [clips][frames]."""

    def __init__(self, clips: list[list[torch.Tensor]]) -> None:
        self._clips = clips

    def lists(self) -> list[list[torch.Tensor]]:
        return self._clips

    def nested(self) -> torch.Tensor:
        return nested(chain.from_iterable(self._clips))


class PackedFrames:
    """Frames that are put one after the other into memory of a pool, for so many clips."""

    def __init__(self, spec: ArraySpec, pool: BufferPool) -> None:
        self._pool = pool
        self._memory = pool.acquire()
        self._used = 0
        self._shapes: list[tuple[int, ...]] = []
        self._dtype = torch.from_numpy(np.empty(0, spec.dtype)).dtype

    def append(self, frame: npt.NDArray[np.generic]) -> None:
        """Copy a frame, which comes next."""
        self._shapes.append(frame.shape)
        self._memory[self._used : self._used + frame.nbytes] = frame.reshape(-1).view(_BYTE)
        self._used += frame.nbytes

    def finish(self, num_clips: int) -> PackedFrames:
        """All frames are there; the memory is released when the last one is dropped."""
        self._values = self._pool.lease(self._memory, self._used).view(self._dtype)
        self._num_clips = num_clips
        return self

    def lists(self) -> list[list[torch.Tensor]]:
        ends = accumulate(map(math.prod, self._shapes), initial=0)
        frames = [
            self._values[begin : begin + math.prod(shape)].view(shape)
            for begin, shape in zip(ends, self._shapes, strict=False)
        ]
        return clips_of(frames, self._num_clips)

    def nested(self) -> torch.Tensor:
        shape = (sum(shape[0] for shape in self._shapes), *self._shapes[0][1:])
        return _jagged(self._values.view(shape), [shape[0] for shape in self._shapes])


def for_users(
    features: Mapping[str, Any], as_nested: Collection[str], squeezed: Collection[str] = ()
) -> dict[str, Any]:
    """The features of a batch as users get them: ragged ones as lists, and some nested; some
    without their axis of frames."""
    return {
        name: item
        if isinstance(item, (torch.Tensor, list))
        else item.nested()
        if name in as_nested
        else item.lists()
        for name, item in squeeze(features, squeezed).items()
    }


def squeeze(features: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The features of a batch, those of these names without their axis of frames."""
    found = dict(features)
    for name in names:
        item = found[name]
        if isinstance(item, torch.Tensor):
            found[name] = item.squeeze(1)
        else:
            clips = item if isinstance(item, list) else item.lists()
            found[name] = [clip and clip[0] for clip in clips]  # none of a source without it
    return found


def clips_of(frames: list[Any], num_clips: int) -> list[list[Any]]:
    """Frames of so many clips, one clip's after the other's, by clip."""
    length = len(frames) // num_clips
    return [frames[at : at + length] for at in range(0, len(frames), length)]


def nested(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """One nested tensor of tensors [?, …], or of nested tensors of these, in fresh memory."""
    values: list[torch.Tensor] = []
    lengths: list[int] = []
    part: Any
    for part in parts:
        if part.is_nested:
            values.append(part.values())
            lengths += part.offsets().diff().tolist()
        else:
            values.append(part)
            lengths.append(len(part))
    return _jagged(torch.cat(values), lengths)


def _jagged(values: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    # Nothing waits for a device: neither for this copy, nor to find the extremes.
    ends = torch.tensor([0, *accumulate(lengths)], device="cpu")
    ends = upload(ends, values.device, is_late=values.device.type == "cuda")
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        values, ends, min_seqlen=min(lengths), max_seqlen=max(lengths)
    )
    return made
