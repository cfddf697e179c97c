"""Value kinds: what a feature's frames are in Python, and everything that depends on it.

A kind is one object. A `FeatureSpec` or an `ArraySpec` selects it by its `value` and by whether its
shape varies::

    value    shape varies    kind
    array    no              FixedArrays    rows of one array
    array    yes             RaggedArrays   arrays of their own
    text     always          Texts          str
    bytes    always          Blobs          bytes

Callers ask the kind. `FORMS` of `loader.engine.arena` adds what loaders do with a kind, `LISTS` of
`cuda.buffers` what devices do.
"""

# ruff: noqa: ARG002 (each kind needs some of the arguments only)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, CodecError, FrameError
from seqrecord.store.bfloat16 import BFLOAT16, dtype_name, numbers_of
from seqrecord.store.text import repr_of, shape_text

ValueName = Literal["array", "text", "bytes"]
"""Type of a frame's value in Python: NumPy array, `str` or `bytes`."""

Shape: TypeAlias = "tuple[int | None, ...]"
"""Shape of a frame; `None` is a dimension that varies between frames."""

FrameFunction: TypeAlias = "Callable[[dict[str, Any]], Mapping[str, npt.ArrayLike | str | bytes]]"
"""Maps a frame's values (arrays, `str`, `bytes`) to the values of clips, with the same dtypes and
shapes for every frame.
"""

SHAPE_DTYPE = np.dtype(np.uint32)  # of shapes beside frames, in pages and in memory

ROW_ALIGNMENT = 64  # bytes of rows in memory: a cache line, for any dtype
_OBJECT_BYTES = 128  # overhead of a `str` or `bytes` object and its reference
_CHARACTER_BYTES = 4  # maximum for a character of `str`, which has at least a byte in UTF-8
_BYTE = np.dtype(np.uint8)


class Frames(Protocol):
    """Dtype and shape of a feature's frames, such as a `FeatureSpec`."""

    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> Shape: ...
    @property
    def value_kind(self) -> ValueKind: ...


class ValueKind(ABC):
    """Base class of value kinds. The methods here are right for arrays of any shape."""

    value: ClassVar[ValueName]

    types: ClassVar[tuple[type, ...]] = ()
    """Types in Python that a writer takes, beginning with that of users; none for arrays."""

    stored_form: ClassVar[tuple[str, Shape] | None] = None
    """The only dtype and shape in which it is stored; `None` if any."""

    are_short: ClassVar[bool] = False
    """Whether most frames are a few bytes, although none is limited: such features are stored raw
    by default, in long chunks, and are read as a whole beside frames that are read one by one."""

    file_ending: ClassVar[str | None] = None
    """Ending of a file with a frame's bytes; `None` if dtype or format need a file format."""

    def __reduce__(self) -> Any:  # one object per kind, also after pickling and copying
        return _kind_at, (self.value, self is VALUE_KINDS[self.value][True])

    # ---- description

    def dtype_text(self, spec: Frames) -> str:
        """The dtype's name, or that in Python."""
        return dtype_name(spec.dtype)

    def value_shape(self, shape: Shape) -> Shape:
        """A frame's shape as users see it: () for an object."""
        return shape

    def shape_text(self, spec: Frames) -> str:
        """`480 x 640 x 3`; empty for objects."""
        return shape_text(spec.shape)

    def describe(self, spec: Frames) -> str:
        """`uint8 [480, ?, 3]`, or the type in Python."""
        return self.describe_clip(spec, ())

    def describe_clip(self, spec: Frames, frames: Shape) -> str:
        """`uint8 [4, 480, ?, 3]`, `text [4]`: dtype and shape of a clip's frames."""
        shape = (*frames, *self.value_shape(spec.shape))
        sizes = ", ".join("?" if n is None else str(n) for n in shape)
        return f"{self.dtype_text(spec)} [{sizes}]"

    def number_dtype(self, spec: Frames) -> np.dtype[Any] | None:
        """The numbers' dtype for NumPy's users; `None` if frames have no numbers, as texts.

        Numbers can have a unit and statistics.
        """
        return np.dtype(np.float32) if spec.dtype == BFLOAT16 else spec.dtype

    @abstractmethod
    def is_scalar(self, spec: Frames) -> bool:
        """Whether a frame is one number or one text, by which clips can be sampled."""

    # ---- sizes

    @abstractmethod
    def constant_nbytes(self, spec: Frames) -> int | None:
        """Decoded bytes per frame; `None` if frames differ."""

    @abstractmethod
    def row_nbytes(self, spec: Frames, largest: int | None) -> int:
        """Memory for a frame in bytes, given the largest frame's bytes."""

    # ---- values of users

    def stored_array(self, feature: str, item: Any) -> npt.NDArray[Any]:
        """A user's value as the array that is stored. Raises `FrameError` for another type."""
        return np.asarray(item)

    def column_encoder(
        self,
        feature: str,
        encode_block: Callable[[Any], Any],
        encode_frame: Callable[[Any], Any],
        encode_each: Callable[[Any, Any], list[Any]],
    ) -> Callable[[Any], Any]:
        """Encoder for users' values in consecutive frames, given the arrays' encoders.

        `encode_each` calls a function for each frame.
        """
        return encode_block

    def user_value(self, array: npt.NDArray[Any]) -> Any:
        """The user's value of a decoded frame. Raises `CodecError` for text that is not UTF-8."""
        return numbers_of(array)

    def of_foreign(self, item: Any, dtype: np.dtype[Any]) -> Any:
        """Convert another format's item to the user's value: an array, or an object."""
        return np.asarray(item, dtype, order="C")

    @abstractmethod
    def check_result(
        self, function: str, unit: str, name: str, value: Any, spec: Frames, largest: int | None
    ) -> None:
        """Raise `ClipError` unless a function's result fits `spec`, from its first result.

        `unit` is what the function is called with, "frame" or "clip". `largest` is the reserved
        memory in bytes, for values whose size varies.
        """

    @abstractmethod
    def allocate(self, spec: Frames, count: int) -> Any:
        """Uninitialized column for `count` frames: one array, or a list."""


class FixedArrays(ValueKind):
    """Arrays of one shape: frames are rows of one array."""

    value = "array"

    def is_scalar(self, spec: Frames) -> bool:
        return math.prod(spec.shape) == 1  # type: ignore[arg-type]

    def constant_nbytes(self, spec: Frames, largest: int | None = None) -> int:
        return spec.dtype.itemsize * math.prod(spec.shape)  # type: ignore[arg-type]

    row_nbytes = constant_nbytes  # a row has no more than a frame

    def allocate(self, spec: Frames, count: int) -> npt.NDArray[Any]:
        return np.empty((count, *spec.shape), spec.dtype)  # type: ignore[arg-type]

    def check_result(
        self, function: str, unit: str, name: str, value: Any, spec: Frames, largest: int | None
    ) -> None:
        array = np.asarray(value)
        if (array.dtype, array.shape) != (spec.dtype, spec.shape):
            raise ClipError(
                f"{function} returns another dtype or shape than for the first {unit}",
                feature=name,
                expected=self.describe(spec),
                got=f"{dtype_name(array.dtype)} {[*array.shape]}",
            )


class RaggedArrays(ValueKind):
    """Arrays whose shape varies between frames."""

    value = "array"

    def is_scalar(self, spec: Frames) -> bool:
        return False

    def constant_nbytes(self, spec: Frames) -> None:
        return None

    def row_nbytes(self, spec: Frames, largest: int | None) -> int:
        """Room for the largest frame and its shape; a size of 1 counts if it is unknown."""
        if largest is None:
            return spec.dtype.itemsize * math.prod(1 if n is None else n for n in spec.shape)
        row = -(-largest // ROW_ALIGNMENT) * ROW_ALIGNMENT
        return row + len(spec.shape) * SHAPE_DTYPE.itemsize

    def allocate(self, spec: Frames, count: int) -> list[Any]:
        return [np.empty(0)] * count

    def check_result(
        self, function: str, unit: str, name: str, value: Any, spec: Frames, largest: int | None
    ) -> None:
        is_alike = isinstance(value, np.ndarray) and value.ndim and value.dtype == spec.dtype
        if not is_alike or value.shape[1:] != spec.shape[1:] or value.nbytes > (largest or 0):
            raise ClipError(
                f"{function} returns an array that does not fit its example",
                feature=name,
                expected=f"{self.describe(spec)} of at most {largest} bytes",
                got=f"{dtype_name(value.dtype)} {[*value.shape]}"
                if isinstance(value, np.ndarray)
                else repr_of(value, 50),
            )


class Objects(ValueKind):
    """Base class of values that are one object of Python, stored as uint8 [?]."""

    stored_form = ("|u1", (None,))
    file_ending = ".bin"

    def dtype_text(self, spec: Frames) -> str:
        return self.value

    def value_shape(self, shape: Shape) -> Shape:
        return ()

    def shape_text(self, spec: Frames) -> str:
        return ""

    def describe(self, spec: Frames) -> str:
        return self.value

    def number_dtype(self, spec: Frames) -> None:
        return None

    def is_scalar(self, spec: Frames) -> bool:
        return False

    def constant_nbytes(self, spec: Frames) -> None:
        return None

    def row_nbytes(self, spec: Frames, largest: int | None) -> int:
        return (largest or 0) + _OBJECT_BYTES

    def allocate(self, spec: Frames, count: int) -> list[Any]:
        return [None] * count

    def nbytes_of(self, value: Any) -> int:
        """Bytes of a value as stored."""
        return len(value)

    def copied(self, value: Any) -> Any:
        """The value, or a copy if it can change."""
        return deepcopy(value)

    def check_result(
        self, function: str, unit: str, name: str, value: Any, spec: Frames, largest: int | None
    ) -> None:
        if not isinstance(value, self.types[0]):
            raise ClipError(
                f"{function} returns another type than for the first one",
                feature=name,
                expected=self.types[0].__name__,
                got=type(value).__name__,
            )
        if (size := self.nbytes_of(value)) > (largest or 0):
            problem = "returns a longer text than any frame of this feature, or than its example"
            raise ClipError(
                f"{function} {problem}",
                feature=name,
                expected=f"at most {largest} bytes, the reserved memory",
                got=f"{size} bytes",
            )

    def column_encoder(
        self,
        feature: str,
        encode_block: Callable[[Any], Any],
        encode_frame: Callable[[Any], Any],
        encode_each: Callable[[Any, Any], list[Any]],
    ) -> Callable[[Any], Any]:
        return partial(encode_each, lambda item: encode_frame(self.stored_array(feature, item)))


class Texts(Objects):
    """Texts, `str`, stored in UTF-8."""

    value = "text"
    types = (str,)
    are_short = True
    file_ending = ".txt"

    def is_scalar(self, spec: Frames) -> bool:
        return True

    def row_nbytes(self, spec: Frames, largest: int | None) -> int:
        return _CHARACTER_BYTES * (largest or 0) + _OBJECT_BYTES

    def nbytes_of(self, value: str) -> int:
        return len(value.encode(errors="surrogatepass"))

    def stored_array(self, feature: str, item: Any) -> npt.NDArray[np.uint8]:
        if not isinstance(item, str):
            raise _misfit(feature, "str", item)
        try:
            return np.frombuffer(item.encode(), _BYTE)
        except UnicodeEncodeError as error:
            problem = "text cannot be encoded as UTF-8"
            got = str(error)
            raise FrameError(problem, feature=feature, expected="Unicode", got=got) from error

    def column_encoder(
        self,
        feature: str,
        encode_block: Callable[[Any], Any],
        encode_frame: Callable[[Any], Any],
        encode_each: Callable[[Any, Any], list[Any]],
    ) -> Callable[[Any], Any]:
        encode = super().column_encoder(feature, encode_block, encode_frame, encode_each)
        return partial(_encode_distinct, encode)

    def user_value(self, array: npt.NDArray[Any]) -> str:
        data = array.tobytes()
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            message = "text that is not UTF-8"
            raise CodecError(message, expected="UTF-8", got=data[:50]) from error

    def of_foreign(self, item: Any, dtype: np.dtype[Any]) -> str:
        return str(item)


class Blobs(Objects):
    """Bytes of any length, `bytes` and similar buffers."""

    value = "bytes"
    types = (bytes, bytearray, memoryview)

    def stored_array(self, feature: str, item: Any) -> npt.NDArray[np.uint8]:
        if isinstance(item, np.ndarray) and (item.dtype != _BYTE or item.ndim != 1):
            raise _misfit(feature, "bytes, or uint8 [n]", item)
        if not isinstance(item, (bytes, bytearray, memoryview, np.ndarray)):
            raise _misfit(feature, "bytes", item)
        return np.frombuffer(bytes(item), _BYTE)

    def copied(self, value: Any) -> bytes:
        return bytes(value)

    def user_value(self, array: npt.NDArray[Any]) -> bytes:
        return array.tobytes()

    def of_foreign(self, item: Any, dtype: np.dtype[Any]) -> bytes:
        return bytes(item)


FIXED_ARRAYS, RAGGED_ARRAYS, TEXTS, BLOBS = FixedArrays(), RaggedArrays(), Texts(), Blobs()

VALUE_KINDS: Mapping[str, tuple[ValueKind, ValueKind]] = {
    "array": (FIXED_ARRAYS, RAGGED_ARRAYS),
    "text": (TEXTS, TEXTS),
    "bytes": (BLOBS, BLOBS),
}
"""By `value`: the kind if frames have one shape, and if it varies."""


def _kind_at(value: str, varies: bool) -> ValueKind:
    return VALUE_KINDS[value][varies]


def object_kind(value: object) -> Objects | None:
    """The kind of a value that is one object; `None` for others, which are arrays."""
    kinds = (kind for kind, _ in VALUE_KINDS.values() if isinstance(kind, Objects))
    return next((kind for kind in kinds if isinstance(value, kind.types)), None)


def _encode_distinct(
    encode_all: Callable[[Sequence[Any]], list[Any]], items: Sequence[Any]
) -> list[Any]:
    """Encode equal texts once, such as the task of consecutive frames."""
    if not {str}.issuperset(map(type, items)):
        return encode_all(items)
    texts = [*dict.fromkeys(items)]
    try:
        encoded = dict(zip(texts, encode_all(texts), strict=True))
    except (FrameError, CodecError) as error:
        error.frame = items.index(texts[error.frame or 0])
        raise
    return [encoded[item] for item in items]


def _misfit(feature: str, expected: str, item: object) -> FrameError:
    got = type(item).__name__
    if isinstance(item, np.ndarray):
        got = f"{item.dtype} {list(item.shape)}"
    problem = "value does not fit its feature"
    return FrameError(problem, feature=feature, expected=expected, got=got)
