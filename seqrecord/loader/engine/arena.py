"""Preallocated rows of frames, and ragged features of batches.

Rows also store frames of variable shapes, and texts. In a batch, frames of variable shapes are
packed into one buffer, which takes only their size and is reused like that of fixed shapes::

    frames    | 0     | 1 | 2         | 3   |                      largest x frames
    memory    [ . . . . . . . . . . . . . . | never touched …                     ]
"""

# ruff: noqa: ARG002 (each form needs some of the arguments only)

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError
from seqrecord.loader.engine.mapped_rows import PlacedRows
from seqrecord.loader.engine.pools import BufferPool, page_aligned, touched_bytes
from seqrecord.loader.engine.tensors import tensor_of, torch_dtype
from seqrecord.loader.frames.array_specs import ArraySpec, mask_name
from seqrecord.loader.reading.mapped_frames import MIN_FRAME_BYTES
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.tables.grids import IntArray
from seqrecord.store.value_kinds import (
    BLOBS,
    FIXED_ARRAYS,
    RAGGED_ARRAYS,
    ROW_ALIGNMENT,
    SHAPE_DTYPE,
    TEXTS,
    ValueKind,
)

if TYPE_CHECKING:
    from seqrecord.store.reading.chunks import ChunkReader
    from seqrecord.store.reading.pages import Page

_BYTE = np.dtype(np.uint8)


class FeatureRows(Protocol):
    """Rows by feature: an array [rows, …], or an object whose `make` returns arrays."""

    def __getitem__(self, feature: str) -> Any: ...


class VariableRows:
    """Rows of a feature with a variable shape, each with room for the largest frame."""

    def __init__(self, spec: ArraySpec, num_rows: int) -> None:
        assert spec.max_nbytes is not None, "spec.max_nbytes is set"
        self._dtype = spec.dtype
        row = -(-spec.max_nbytes // ROW_ALIGNMENT) * ROW_ALIGNMENT
        self._memory = page_aligned((num_rows, row), _BYTE)
        self._shapes = np.zeros((num_rows, len(spec.shape)), SHAPE_DTYPE)

    @property
    def nbytes(self) -> int:
        return self._memory.nbytes + self._shapes.nbytes

    @property
    def touched_bytes(self) -> int:
        """Bytes that take memory; see `touched_bytes` of `pools`."""
        return touched_bytes(self._memory) + touched_bytes(self._shapes)

    def make(self, start: int, shapes: Sequence[tuple[int, ...]]) -> list[npt.NDArray[Any]]:
        """Return writable arrays of these shapes, in the rows from `first` on."""
        self._shapes[start : start + len(shapes)] = shapes
        return [self[start + i] for i in range(len(shapes))]

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

    def __init__(self, spec: ArraySpec, num_rows: int) -> None:
        super().__init__([None] * num_rows)
        self.nbytes, self._dtype = num_rows * spec.nbytes, spec.dtype

    @property
    def touched_bytes(self) -> int:
        """Bytes of the values; rows may share one."""
        return sys.getsizeof(self) + sum(map(sys.getsizeof, {id(v): v for v in self}.values()))

    def make(self, start: int, shapes: Sequence[tuple[int, ...]]) -> list[npt.NDArray[Any]]:
        """Return new arrays of these shapes, in the rows from `first` on."""
        arrays = [np.empty(shape, self._dtype) for shape in shapes]
        self[start : start + len(arrays)] = arrays
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
            name: FORMS[spec.value_kind].rows(spec, num_rows) for name, spec in specs.items()
        }
        self._placed: dict[str, PlacedRows] = {}
        self.num_changes = 0
        """Of mapped files with rows, when loaded frames were last forgotten."""

    def __getitem__(self, feature: str) -> Any:
        """Writable rows of a feature."""
        return self._arrays[feature]

    @property
    def nbytes(self) -> int:
        """Size of all rows in bytes."""
        return sum(array.nbytes for array in self._arrays.values())

    def places(self, feature: str) -> PlacedRows | None:
        """Places of a feature's rows, which loads may set; `None` if it has none.

        For large frames of a fixed shape.
        """
        array = self._arrays[feature]
        is_large = self.specs[feature].nbytes >= MIN_FRAME_BYTES
        if not isinstance(array, np.ndarray) or not len(array) or not is_large:
            return None
        if (placed_rows := self._placed.get(feature)) is None:
            placed_rows = self._placed.setdefault(feature, PlacedRows(array))
        return placed_rows

    def source(self, feature: str, rows: npt.NDArray[np.int64]) -> tuple[Any, IntArray]:
        """Memory to copy from, and the given rows of a feature in it."""
        placed_rows = self._placed.get(feature)
        if placed_rows is not None and placed_rows.are_mapped:
            return placed_rows.source(rows)
        return self._arrays[feature], rows

    @property
    def touched_bytes(self) -> int:
        """Bytes of rows that take memory. Rows in mapped files, and those that no load has written
        to, take none.
        """
        return sum(
            touched_bytes(rows) if isinstance(rows, np.ndarray) else rows.touched_bytes
            for rows in self._arrays.values()
        ) + sum(rows.nbytes for rows in self._placed.values())

    def forget_placed(self, num_changes: int) -> None:
        """Forget the loaded frames in mapped files if somebody may have written to these: their
        number of changes is another one than in the last call. Loads check them again.
        """
        if num_changes != self.num_changes:
            self.num_changes = num_changes
            for placed_rows in self._placed.values():
                self.is_read[placed_rows.in_files(slice(None))] = False

    def check(self, feature: str, rows: npt.NDArray[np.int64]) -> int:
        """Raise `StorageError` if a mapped file with any of these rows has become shorter.

        Returns the number of rows in mapped files.
        """
        placed_rows = self._placed.get(feature)
        if placed_rows is None or not placed_rows.are_mapped:
            return 0
        return placed_rows.check(rows)

    def gather(self, feature: str, rows: npt.NDArray[np.int64], out: npt.NDArray[Any]) -> None:
        """Copy rows, int64[n], of a feature with a fixed shape to `out` [n, …]. Without the GIL."""
        placed_rows = self._placed.get(feature)
        if placed_rows is not None and placed_rows.are_mapped:
            placed_rows.gather(rows, out)
            return
        # With "raise", NumPy would use a temporary of the whole batch.
        self._arrays[feature].take(rows, axis=0, out=out, mode="clip")

    def sizes(self, feature: str, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Height and width of variable-shape frames in rows, int64[n]; int64[n, 2]."""
        sizes: npt.NDArray[np.int64] = self._arrays[feature].sizes(rows)
        return sizes

    def find_list(self, feature: str, rows: npt.NDArray[np.int64]) -> list[Any]:
        """Frames of variable shape in rows: views that are valid until the rows are overwritten.

        Texts are returned as values.
        """
        frames: VariableRows | ObjectRows = self._arrays[feature]
        return [*map(frames.__getitem__, rows.tolist())]


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

    def __init__(self, spec: ArraySpec, size: int, pool: BufferPool | None) -> None:
        assert pool is not None, "a pool"
        self._pool, self._num_clips = pool, size
        self._memory = pool.acquire()
        self._used = 0
        self._shapes: list[tuple[int, ...]] = []
        self._results: dict[int, Sequence[npt.NDArray[Any]]] = {}  # of functions, in any order
        self._dtype = torch_dtype(spec.dtype)

    def gather(self, slots: npt.NDArray[np.int64], frames: Sequence[Any]) -> None:
        """Append copies of frames, for slots in ascending order; see `Column`."""
        for frame in frames:
            self._shapes.append(frame.shape)
            self._memory[self._used : self._used + frame.nbytes] = frame.reshape(-1).view(_BYTE)
            self._used += frame.nbytes

    def put(self, slot: int, frames: Sequence[npt.NDArray[Any]]) -> None:
        """See `Column`."""
        self._results[slot] = frames

    def finish(self) -> PackedFrames:
        """End packing. The memory returns to the pool after the last frame is deleted."""
        for slot in sorted(self._results):
            self.gather(np.array([slot]), self._results.pop(slot))
        self._values = self._pool.lease(self._memory, self._used).view(self._dtype)
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


class ObjectColumn:
    """A batch's texts: a list per clip, `None` for a clip whose source lacks the feature."""

    def __init__(self, spec: ArraySpec, size: int, pool: BufferPool | None) -> None:
        self._clips: list[list[Any] | None] = [None] * size

    def gather(self, slots: npt.NDArray[np.int64], frames: list[Any]) -> None:
        """See `Column`."""
        for slot, texts in zip(slots.tolist(), clips_of(frames, len(slots)), strict=True):
            self._clips[slot] = texts

    def put(self, slot: int, frames: Sequence[Any]) -> None:
        """See `Column`."""
        self._clips[slot] = [*frames]

    def finish(self) -> list[Any]:
        """See `Column`."""
        return self._clips


class PoolClasses(NamedTuple):
    """Classes of pools: for stacked frames, and for packed ones."""

    stacked: type[BufferPool]
    packed: type[BufferPool]


class FrameForm(ABC):
    """How loaders hold a kind's frames: rows in arenas, columns in batches."""

    is_stacked: ClassVar[bool] = False
    """Whether a batch has one array [clips, frames, …], which loads and views can write directly.
    Other frames have a `Column`."""

    takes_ragged: ClassVar[bool] = False
    """Whether a batch has differently shaped tensors, which the argument `ragged` pads or nests.
    Such features keep their axis of frames."""

    fits_rows: ClassVar[bool] = True
    """Whether rows for all frames take about as much memory as the frames."""

    stays_with_others: ClassVar[bool] = False
    """Whether frames are resident if the other features are, since most are short."""

    rows: Callable[[ArraySpec, int], Any]
    """Makes memory for frames, given their number."""

    column: Callable[[ArraySpec, int, BufferPool | None], Column]
    """Makes a batch's column, given its number of clips, for frames that are not stacked."""

    item_nbytes: ClassVar[int] = 0
    """Bytes per frame in a batch, beside its values."""

    @abstractmethod
    def clear(self, spec: FeatureSpec, target: FeatureRows, start: int, count: int) -> None:
        """Clear a feature's rows, for frames that lack it."""

    @abstractmethod
    def decode(
        self,
        reader: ChunkReader,
        page: Page,
        data: memoryview,
        frames: list[int],
        target: FeatureRows,
        row: int,
    ) -> None:
        """Decode frames of a page, relative to the chunk's first frame, into rows from `row` on."""

    def pool(
        self, spec: ArraySpec, shape: tuple[int, int], keep: int, pools: PoolClasses
    ) -> BufferPool | None:
        """Memory for `keep` batches with this `shape`, [clips, frames]; `None` for objects."""
        return None

    def missing(self, spec: ArraySpec, shape: tuple[int, ...]) -> Any:
        """Values of `shape`, [clips, …], without the feature: zeros, `None` for objects."""
        whole: Any = (*shape, *spec.shape)
        return tensor_of(np.zeros(whole, spec.dtype))


class Column(Protocol):
    """A feature's frames in a batch, if they are not stacked."""

    def gather(self, slots: npt.NDArray[np.int64], frames: list[Any]) -> None:
        """Take consecutive clips' frames for these slots; they may be views."""

    def put(self, slot: int, frames: Sequence[Any]) -> None:
        """Set a clip's frames, a function's result."""

    def finish(self) -> RaggedFrames | list[Any]:
        """Return all clips' frames."""


class StackedForm(FrameForm):
    """Arrays of one shape: rows of one array, on the host or a device."""

    is_stacked = True

    @staticmethod
    def rows(spec: ArraySpec, num_rows: int) -> Any:
        return page_aligned((num_rows, *spec.shape), spec.dtype)  # type: ignore[arg-type]

    def clear(self, spec: FeatureSpec, target: FeatureRows, start: int, count: int) -> None:
        rows = target[spec.name]
        if isinstance(rows, np.ndarray):
            rows[start : start + count] = 0
        else:
            rows.clear(start, count)

    def decode(
        self,
        reader: ChunkReader,
        page: Page,
        data: memoryview,
        frames: list[int],
        target: FeatureRows,
        row: int,
    ) -> None:
        out = target[page.feature][row : row + len(frames)]
        reader.decode(page, data, _as_range(frames), out)

    def pool(
        self, spec: ArraySpec, shape: tuple[int, int], keep: int, pools: PoolClasses
    ) -> BufferPool:
        return pools.stacked((*shape, *spec.shape), spec.dtype, keep)  # type: ignore[arg-type]


class RaggedForm(FrameForm):
    """Arrays whose shape varies: with room for the largest in a row, packed in batches.

    Padded rows are an array, with one for their mask.
    """

    takes_ragged = True
    fits_rows = False
    item_nbytes = 1 << 10  # a tensor of its own
    rows = VariableRows
    column = PackedFrames

    def clear(self, spec: FeatureSpec, target: FeatureRows, start: int, count: int) -> None:
        rows = target[spec.name]
        if isinstance(rows, np.ndarray):  # padded
            rows[start : start + count] = 0
            target[mask_name(spec.name)][start : start + count] = False
        else:
            rows.make(start, [tuple(size or 0 for size in spec.shape)] * count)

    def decode(
        self,
        reader: ChunkReader,
        page: Page,
        data: memoryview,
        frames: list[int],
        target: FeatureRows,
        row: int,
    ) -> None:
        rows = target[page.feature]
        if isinstance(rows, np.ndarray):
            padded = Padded(reader.features[page.feature], rows, target[mask_name(page.feature)])
            _put_each(reader, page, data, frames, padded, row)
            return
        shape_of = reader.shapes(page, data)
        shapes = [*map(shape_of.__getitem__, page.positions(frames).tolist())]
        reader.decode(page, data, frames, rows.make(row, shapes))

    def pool(
        self, spec: ArraySpec, shape: tuple[int, int], keep: int, pools: PoolClasses
    ) -> BufferPool:
        assert spec.max_nbytes is not None, "spec.max_nbytes is set"
        return pools.packed((math.prod(shape) * spec.max_nbytes,), _BYTE, keep)


class ObjectForm(FrameForm):
    """`str` or `bytes`: lists."""

    stays_with_others = True
    rows = ObjectRows
    column = ObjectColumn

    def clear(self, spec: FeatureSpec, target: FeatureRows, start: int, count: int) -> None:
        rows, empty = target[spec.name], spec.value_kind.user_value(np.empty(0, _BYTE))
        for row in range(start, start + count):
            rows.put(row, empty)

    def decode(
        self,
        reader: ChunkReader,
        page: Page,
        data: memoryview,
        frames: list[int],
        target: FeatureRows,
        row: int,
    ) -> None:
        _put_each(reader, page, data, frames, target[page.feature], row)

    def missing(self, spec: ArraySpec, shape: tuple[int, ...]) -> list[Any]:
        return [None] * shape[0]


FORMS: Mapping[ValueKind, FrameForm] = {
    FIXED_ARRAYS: StackedForm(),
    RAGGED_ARRAYS: RaggedForm(),
    TEXTS: ObjectForm(),
    BLOBS: ObjectForm(),
}


def stacked(specs: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
    """The features whose frames are rows of an array."""
    return {name: spec for name, spec in specs.items() if FORMS[spec.value_kind].is_stacked}


def _as_range(frames: list[int]) -> range | list[int]:
    """Convert evenly spaced frames to a range, which is decoded in one call.

    A list of frames may repeat one, so the distance of two may be 0.
    """
    step = (frames[1] - frames[0] if len(frames) > 1 else 0) or 1
    run = range(frames[0], frames[0] + step * len(frames), step)
    return run if list(run) == frames else frames


def _put_each(
    reader: ChunkReader,
    page: Page,
    data: memoryview,
    frames: list[int],
    rows: ObjectRows | Padded,
    row: int,
) -> None:
    """Decode frames one by one, and put their values into rows from `row` on."""
    shapes, dtype = reader.shapes(page, data), reader.features[page.feature].dtype
    places = page.positions(frames).tolist()
    for at, (frame, place) in enumerate(zip(frames, places, strict=True), row):
        array = np.empty(shapes[place], dtype)
        reader.decode(page, data, [frame], [array])
        try:
            if isinstance(rows, Padded):
                rows.put(at, array)
            else:
                rows.put(at, reader.value(page, array, frame))
        except ClipError as error:
            raise error.located(frame=page.chunk.first_frame + frame) from None


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
    squeezed = dict(features)
    for name in names:
        item = squeezed[name]
        if isinstance(item, torch.Tensor):
            squeezed[name] = item.squeeze(1)
        else:
            clips = item if isinstance(item, list) else item.lists()
            squeezed[name] = [
                clip and clip[0] for clip in clips
            ]  # empty if the source lacks the feature
    return squeezed


def cut(features: Mapping[str, Any], lengths: Sequence[int], *, as_nested: bool) -> dict[str, Any]:
    """Cut features of a batch to the lengths of its clips: lists of clips, or nested tensors."""
    lists = dict[str, Any]()
    for name, item in features.items():
        lists[name] = [clip[:length] for clip, length in zip(item, lengths, strict=True)]
        if as_nested and isinstance(item, torch.Tensor):
            lists[name] = nested(lists[name])
    return lists


def split(
    features: Mapping[str, Any], lengths: Sequence[int], *, as_nested: bool
) -> dict[str, Any]:
    """Divide features of a batch, whose frames are clips of one frame each, into clips of these
    lengths: lists of clips, or nested tensors without a copy.
    """
    clips, ends = dict[str, Any](), [*accumulate(lengths)]
    for name, item in features.items():
        if not isinstance(item, torch.Tensor):
            frames = [frame for clip in item for frame in clip]
            clips[name] = [frames[end - n : end] for end, n in zip(ends, lengths, strict=True)]
        elif as_nested:
            clips[name] = _jagged(item.squeeze(1), lengths)
        else:
            clips[name] = [*torch.split_with_sizes(item.squeeze(1), lengths)]
    return clips


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
    jagged: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        values, ends, min_seqlen=min(lengths), max_seqlen=max(lengths)
    )
    return jagged


def upload(host: torch.Tensor, device: torch.device, *, is_late: bool) -> torch.Tensor:
    """Queue a copy of memory that is never written to again, on the current stream.

    If `is_late`, through pinned memory: otherwise this thread would wait for all queued work.
    """
    return (host.pin_memory() if is_late else host).to(device, non_blocking=is_late)
