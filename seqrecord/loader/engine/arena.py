"""Preallocated rows of frames, and ragged features of batches.

Rows also store frames of variable shapes, and texts. In a batch, frames of variable shapes are
packed into one buffer, which takes only their size and is reused like that of fixed shapes::

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

from seqrecord.errors import ClipError
from seqrecord.loader.engine.pools import BufferPool, page_aligned
from seqrecord.store.format.pages import aligned
from seqrecord.store.reading.array_specs import SHAPE_DTYPE, ArraySpec, mask_name
from seqrecord.store.schema import FeatureSpec

_BYTE = np.dtype(np.uint8)


class FeatureRows(Protocol):
    """Rows by feature: an array [rows, …], or an object whose `make` returns arrays."""

    def __getitem__(self, feature: str) -> Any: ...


class VariableRows:
    """Rows of a feature with a variable shape, each with room for the largest frame."""

    def __init__(self, num_rows: int, spec: ArraySpec) -> None:
        assert spec.largest is not None, "spec.largest is set"
        self._dtype = spec.dtype
        self._memory = page_aligned((num_rows, aligned(spec.largest)), np.dtype(np.uint8))
        self._shapes = np.zeros((num_rows, len(spec.shape)), SHAPE_DTYPE)

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes + self._shapes.nbytes

    def make(self, first: int, shapes: Sequence[tuple[int, ...]]) -> list[npt.NDArray[Any]]:
        """Return writable arrays of these shapes, in the rows from `first` on."""
        self._shapes[first : first + len(shapes)] = shapes
        return [self[first + i] for i in range(len(shapes))]

    def sizes(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Height and width of the frames in rows, int64[n]; int64[n, 2]."""
        return self._shapes[rows, :2].astype(np.int64)

    def __getitem__(self, row: int) -> npt.NDArray[Any]:
        """View of the frame in a row."""
        shape = tuple(self._shapes[row].tolist())
        nbytes = math.prod(shape) * self._dtype.itemsize
        assert nbytes <= self._memory.shape[1], "a frame larger than the largest"
        return self._memory[row, :nbytes].view(self._dtype).reshape(shape)


class ObjectRows(list[Any]):
    """Rows of a feature with `str` or `bytes` values, or with arrays of variable shapes."""

    def __init__(self, num_rows: int, spec: ArraySpec) -> None:
        super().__init__([None] * num_rows)
        self.nbytes, self._dtype = num_rows * spec.nbytes, spec.dtype

    def make(self, first: int, shapes: Sequence[tuple[int, ...]]) -> list[npt.NDArray[Any]]:
        """Return new arrays of these shapes, in the rows from `first` on."""
        arrays = [np.empty(shape, self._dtype) for shape in shapes]
        self[first : first + len(arrays)] = arrays
        return arrays

    def put(self, row: int, value: str | bytes) -> None:
        """Store a value in a row."""
        self[row] = value


class Arena:
    """Rows of frames: per feature an array [rows, …], `VariableRows` or `ObjectRows`."""

    def __init__(self, specs: Mapping[str, ArraySpec], num_rows: int) -> None:
        self.specs = dict(specs)
        self.num_rows = num_rows
        self.is_read: npt.NDArray[np.bool_] = np.zeros(num_rows, np.bool_)
        """Rows with loaded frames, if each frame has its own row."""
        self._arrays: dict[str, Any] = {
            name: _rows_of(spec, num_rows) for name, spec in specs.items()
        }

    def __getitem__(self, feature: str) -> Any:
        """Writable rows of a feature."""
        return self._arrays[feature]

    @property
    def nbytes(self) -> int:
        """Size of all rows in bytes."""
        return sum(array.nbytes for array in self._arrays.values())

    def gather(self, feature: str, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        """Copy rows, int64[n], of a feature with a fixed shape to `out` [n, …]. Without the GIL."""
        # With "raise", NumPy would use a temporary of the whole batch.
        self._arrays[feature].take(rows, axis=0, out=out, mode="clip")

    def sizes(self, feature: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Height and width of frames of variable shape in rows, int64[n]; int64[n, 2]."""
        found: npt.NDArray[np.int64] = self._arrays[feature].sizes(rows)
        return found

    def find_list(self, feature: str, rows: npt.NDArray[np.int64]) -> list[Any]:
        """Frames of variable shape in rows: views that are valid until the rows are overwritten.

        Texts are returned as values.
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
    """Rows of a feature with a variable shape, padded with zeros, and its mask.

    `rows` is [rows, …]. `mask`, bool [rows, variable dimensions], is true inside the frame.
    Variable dimensions are `None` in the spec's shape.
    """

    def __init__(self, spec: FeatureSpec, rows: npt.NDArray[Any], mask: npt.NDArray[Any]) -> None:
        self._name, self._rows, self._mask = spec.name, rows, mask
        self._varies = [axis for axis, size in enumerate(spec.shape) if size is None]

    def put(self, row: int, frame: npt.NDArray[Any]) -> None:
        """Copy a frame to a row. Raises `ClipError` if it is too large."""
        target, mask = self._rows[row], self._mask[row]
        if any(size > room for size, room in zip(frame.shape, target.shape, strict=True)):
            raise ClipError(
                "a frame exceeds the padded size",
                feature=self._name,
                expected=f"at most {[target.shape[axis] for axis in self._varies]}",
                got=[frame.shape[axis] for axis in self._varies],
            )
        target[...] = 0
        target[tuple(map(slice, frame.shape))] = frame
        mask[...] = False
        mask[tuple(slice(frame.shape[axis]) for axis in self._varies)] = True


def clear_rows(spec: FeatureSpec, target: FeatureRows, first: int, count: int) -> None:
    """Clear rows of a feature: zeros, empty arrays if the shape varies, empty texts."""
    rows = target[spec.name]
    if isinstance(rows, np.ndarray):
        rows[first : first + count] = 0
        if not spec.is_fixed:
            target[mask_name(spec.name)][first : first + count] = False
    elif spec.value != "array":
        for row in range(first, first + count):
            rows.put(row, "" if spec.value == "text" else b"")
    elif spec.is_fixed:  # of a device
        rows.clear(first, count)
    else:
        rows.make(first, [tuple(size or 0 for size in spec.shape)] * count)


def pad(
    spec: FeatureSpec, frames: Sequence[npt.NDArray[Any]], sizes: Sequence[int | None]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Pad frames to one array [frames, *sizes] in new memory; also returns the mask."""
    shape = [size or 0 for size in sizes]
    varies = [shape[axis] for axis, size in enumerate(spec.shape) if size is None]
    rows = np.empty((len(frames), *shape), spec.dtype)
    mask = np.empty((len(frames), *varies), np.bool_)
    padded = Padded(spec, rows, mask)
    for row, frame in enumerate(frames):
        padded.put(row, frame)
    return rows, mask


class RaggedFrames(Protocol):
    """Frames of a feature with a variable shape in a batch, clip by clip."""

    def lists(self) -> list[list[torch.Tensor]]:
        """Lists of frames, one per clip."""

    def nested(self) -> torch.Tensor:
        """One nested tensor [clips * frames, ?, …]. Requires a variable first dimension."""


class Frames:
    """Frames as separate tensors, [clips][frames]."""

    def __init__(self, clips: list[list[torch.Tensor]]) -> None:
        self._clips = clips

    def lists(self) -> list[list[torch.Tensor]]:
        return self._clips

    def nested(self) -> torch.Tensor:
        return nested(chain.from_iterable(self._clips))


class PackedFrames:
    """Frames packed consecutively into one buffer of a pool."""

    def __init__(self, spec: ArraySpec, pool: BufferPool) -> None:
        self._pool = pool
        self._memory = pool.acquire()
        self._used = 0
        self._shapes: list[tuple[int, ...]] = []
        self._dtype = torch.from_numpy(np.empty(0, spec.dtype)).dtype

    def append(self, frame: npt.NDArray[np.generic]) -> None:
        """Append a copy of a frame."""
        self._shapes.append(frame.shape)
        self._memory[self._used : self._used + frame.nbytes] = frame.reshape(-1).view(_BYTE)
        self._used += frame.nbytes

    def finish(self, num_clips: int) -> PackedFrames:
        """End packing. The memory returns to the pool after the last frame is deleted."""
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
    """Convert the features of a batch to user types: lists or nested tensors for ragged features.

    Features in `squeezed` lose their axis of frames.
    """
    return {
        name: item
        if isinstance(item, (torch.Tensor, list))
        else item.nested()
        if name in as_nested
        else item.lists()
        for name, item in squeeze(features, squeezed).items()
    }


def squeeze(features: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Remove the axis of frames from the named features."""
    found = dict(features)
    for name in names:
        item = found[name]
        if isinstance(item, torch.Tensor):
            found[name] = item.squeeze(1)
        else:
            clips = item if isinstance(item, list) else item.lists()
            found[name] = [
                clip and clip[0] for clip in clips
            ]  # empty if the source lacks the feature
    return found


def cut(features: Mapping[str, Any], lengths: Sequence[int], *, as_nested: bool) -> dict[str, Any]:
    """Cut features of a batch to the lengths of its clips: lists of clips, or nested tensors."""
    found = dict[str, Any]()
    for name, item in features.items():
        found[name] = [clip[:length] for clip, length in zip(item, lengths, strict=True)]
        if as_nested and isinstance(item, torch.Tensor):
            found[name] = nested(found[name])
    return found


def clips_of(frames: list[Any], num_clips: int) -> list[list[Any]]:
    """Split consecutive frames into lists, one per clip."""
    length = len(frames) // num_clips
    return [frames[at : at + length] for at in range(0, len(frames), length)]


def nested(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    """Join tensors [?, …], or nested tensors of them, to one nested tensor in new memory."""
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
    # Neither this copy nor min and max wait for the device.
    ends = torch.tensor([0, *accumulate(lengths)], device="cpu")
    ends = upload(ends, values.device, is_late=values.device.type == "cuda")
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        values, ends, min_seqlen=min(lengths), max_seqlen=max(lengths)
    )
    return made


def upload(host: torch.Tensor, device: torch.device, *, is_late: bool) -> torch.Tensor:
    """Queue a copy of memory that is never written to again, on the current stream.

    If `is_late`, through pinned memory: otherwise this thread would wait for all queued work.
    """
    return (host.pin_memory() if is_late else host).to(device, non_blocking=is_late)
