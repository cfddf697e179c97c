"""Frames in memory: their dtypes and shapes, and what a user's `frame_transform` makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, SeqRecordError
from seqrecord.format.pages import aligned
from seqrecord.reading.trials import check_signature, repeatable
from seqrecord.schema import ValueKind
from seqrecord.text import repr_of

FrameTransform: TypeAlias = "Callable[[dict[str, Any]], Mapping[str, npt.ArrayLike | str | bytes]]"
"""From the values of a frame (arrays, `str`, `bytes`) to those that clips are made of, of the same
dtypes and shapes for every frame."""


SHAPE_DTYPE = np.dtype(np.uint32)  # of a shape that varies, beside the frame that has it
_OBJECT_BYTES = 128  # of a `str` or `bytes`, beside what it holds, and of the reference to it
_CHARACTER_BYTES = 4  # of one in a `str`, at most; it has a byte at least in UTF-8


@dataclass(frozen=True)
class ArraySpec:
    """Dtype and shape of one feature of one frame as clips hold it; `None` in a shape varies.

    `largest` is the number of bytes of the largest frame, of a shape that varies. `value` is "text"
    or "bytes" where frames are `str` or `bytes`, which are the bytes of an array uint8 [?].
    `mask_of` is the feature whose padding this one tells, which is stored with it.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    largest: int | None = None
    value: ValueKind = "array"
    mask_of: str | None = None

    @property
    def is_fixed(self) -> bool:
        return None not in self.shape

    @property
    def nbytes(self) -> int:
        """Bytes of memory for one frame: of the largest, and for its shape, where that varies."""
        if self.value != "array":
            size = _CHARACTER_BYTES if self.value == "text" else 1
            return size * (self.largest or 0) + _OBJECT_BYTES
        if self.largest is not None:
            return aligned(self.largest) + len(self.shape) * SHAPE_DTYPE.itemsize
        return self.dtype.itemsize * math.prod(1 if n is None else n for n in self.shape)

    def __str__(self) -> str:
        if self.value != "array":
            return self.value
        return f"{self.dtype.name} [{', '.join('?' if n is None else str(n) for n in self.shape)}]"


def clip_nbytes(specs: Mapping[str, ArraySpec], lengths: Mapping[str, int]) -> int:
    """Bytes of memory for a clip: for so many frames of each feature."""
    return sum(spec.nbytes * lengths[name] for name, spec in specs.items())


def mask_name(feature: str) -> str:
    """The name of what tells which values of a padded feature are the frame's."""
    return f"{feature}_mask"


def named(what: str, result: Any) -> dict[str, Any]:
    """What a function of users gives. Raises `ClipError` unless that is something by name."""
    if not (isinstance(result, Mapping) and result and all(isinstance(n, str) for n in result)):
        raise ClipError(
            f"{what} does not give arrays by name",
            expected="a dict of arrays with at least one",
            got=repr_of(result, 100),
        )
    return dict(result)


def apply_transform(transform: FrameTransform, frame: dict[str, Any]) -> dict[str, Any]:
    """What `transform` makes of a frame: arrays, `str` and `bytes`.

    Raises `ClipError` unless it gives such by name.
    """
    return {
        name: value if isinstance(value, (str, bytes)) else np.asarray(value)
        for name, value in named("frame_transform", transform(frame)).items()
    }


def first_frame(transform: FrameTransform, frame: Mapping[str, Any]) -> dict[str, Any]:
    """The same of the first frame, which is not changed.

    Raises `ClipError`, too, for a function that does not take one frame, and for one that draws
    random numbers: each frame is transformed once, in any thread, and may stay in memory.
    """
    check_signature("frame_transform", transform, "frame")

    def call() -> dict[str, Any]:
        values = {n: np.array(v) if isinstance(v, np.ndarray) else v for n, v in frame.items()}
        return apply_transform(transform, values)

    return dict(
        repeatable(
            "frame_transform",
            call,
            expected="a result that depends on the frame alone; for random augmentations a "
            "function of clip_transform, with the generator that it is given",
        )
    )


def unchanged(
    given: Mapping[str, Any], copies: Mapping[str, Any], made: Mapping[str, Any]
) -> frozenset[str]:
    """The values that a function of users has left as they were, of one frame or clip.

    It was `given` these, of which there are `copies`. A copy that it `made` of zeros counts as
    changed: they are the same in every unit.
    """
    kept = set()
    for name in given.keys() & made.keys():
        value, before = made[name], copies[name]
        if not isinstance(value, np.ndarray) or not isinstance(before, np.ndarray):
            continue
        is_same = (value.dtype, value.shape) == (before.dtype, before.shape)
        is_telling = before.any() or np.may_share_memory(value, given[name])
        if is_same and is_telling and value.tobytes() == before.tobytes():
            kept.add(name)
    return frozenset(kept)


def check_text(what: str, name: str, value: Any, spec: ArraySpec) -> None:
    """`ClipError` unless `what` gives of a feature a text that memory was counted for."""
    kind = str if spec.value == "text" else bytes
    if not isinstance(value, kind):
        raise ClipError(
            f"{what} gives another type than of the first one",
            feature=name,
            expected=kind.__name__,
            got=type(value).__name__,
        )
    size = len(value.encode(errors="surrogatepass") if isinstance(value, str) else value)
    if size > (spec.largest or 0):
        raise ClipError(
            f"{what} gives a longer text than any frame of this feature has",
            feature=name,
            expected=f"at most {spec.largest} bytes, which memory was counted for",
            got=f"{size} bytes",
        )


def check_arrays(
    what: str,
    of: str,
    arrays: Mapping[str, Any],
    specs: Mapping[str, ArraySpec],
    check_texts: Callable[[str, str, Any, ArraySpec], None] = check_text,
) -> None:
    """`ClipError` unless what a function makes is like that of the first, which `specs` tell."""
    if arrays.keys() != specs.keys():
        raise ClipError(
            f"{what} gives other features than for the first {of}",
            expected=", ".join(specs),
            got=", ".join(arrays),
        )
    for name, spec in specs.items():
        if spec.value != "array":
            check_texts(what, name, arrays[name], spec)
            continue
        array = np.asarray(arrays[name])
        if (got := ArraySpec(array.dtype, array.shape)) != spec:
            raise ClipError(
                f"{what} gives another dtype or shape than for the first {of}",
                feature=name,
                expected=spec,
                got=got,
            )


def add_place(
    error: Exception, what: str, *, file: str, episode: str, frame: int | None = None
) -> None:
    """Add to an error that is being raised where it happened, in its message or in a note.

    A `StopIteration`, which would look like the end of the clips, becomes a `ClipError`.
    """
    if isinstance(error, StopIteration):
        raise ClipError(
            f"{what} raised StopIteration, which ends an iterator",
            file=file,
            episode=episode,
            frame=frame,
            expected="a result, or another error",
            got=repr_of(error, 100),
        ) from error
    if isinstance(error, SeqRecordError):
        error.located(file=file, episode=episode, frame=frame)
        return
    place = f"in {what} of episode {episode}"
    place += f", {file}" if frame is None else f", frame {frame}, {file}"
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(place)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} ({place})", *error.args[1:])
