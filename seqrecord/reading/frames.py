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

__all__ = [
    "SHAPE_DTYPE",
    "ArraySpec",
    "FrameTransform",
    "add_place",
    "apply_transform",
    "check_arrays",
]

FrameTransform: TypeAlias = "Callable[[dict[str, npt.NDArray[Any]]], Mapping[str, npt.ArrayLike]]"
"""From the arrays of a frame to those that clips are made of, of the same dtypes and shapes for
every frame."""


SHAPE_DTYPE = np.dtype(np.uint32)  # of a shape that varies, beside the frame that has it


@dataclass(frozen=True)
class ArraySpec:
    """Dtype and shape of one feature of one frame as clips hold it; `None` in a shape varies.

    `largest` is the number of bytes of the largest frame, of a shape that varies.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    largest: int | None = None

    @property
    def is_fixed(self) -> bool:
        return None not in self.shape

    @property
    def nbytes(self) -> int:
        """Bytes of memory for one frame: of the largest, and for its shape, where that varies."""
        if self.largest is not None:
            return aligned(self.largest) + len(self.shape) * SHAPE_DTYPE.itemsize
        return self.dtype.itemsize * math.prod(1 if n is None else n for n in self.shape)

    def __str__(self) -> str:
        return f"{self.dtype.name} [{', '.join('?' if n is None else str(n) for n in self.shape)}]"


def apply_transform(
    transform: FrameTransform, frame: dict[str, npt.NDArray[Any]]
) -> dict[str, npt.NDArray[Any]]:
    """The arrays that `transform` makes of a frame. `ClipError` unless it gives arrays by name."""
    result: Any = transform(frame)
    if not (isinstance(result, Mapping) and result and all(isinstance(n, str) for n in result)):
        raise ClipError(
            "frame_transform does not give arrays by name",
            expected="a dict of arrays with at least one",
            got=repr(result)[:100],
        )
    return {name: np.asarray(value) for name, value in result.items()}


def check_arrays(arrays: Mapping[str, npt.NDArray[Any]], specs: Mapping[str, ArraySpec]) -> None:
    """`ClipError` unless a transformed frame is like the first one, after which `specs` are."""
    if arrays.keys() != specs.keys():
        raise ClipError(
            "frame_transform gives other features than for the first frame",
            expected=", ".join(specs),
            got=", ".join(arrays),
        )
    for name, spec in specs.items():
        got = ArraySpec(arrays[name].dtype, arrays[name].shape)
        if got != spec:
            raise ClipError(
                "frame_transform gives another dtype or shape than for the first frame",
                feature=name,
                expected=spec,
                got=got,
            )


def add_place(
    error: Exception, what: str, *, file: str, episode: str, frame: int | None = None
) -> None:
    """Add to an error that is being raised where it happened, in its message or in a note."""
    if isinstance(error, SeqRecordError):
        error.located(file=file, episode=episode, frame=frame)
        return
    place = f"in {what} of episode {episode}"
    place += f", {file}" if frame is None else f", frame {frame}, {file}"
    if hasattr(error, "add_note"):  # Python 3.11
        error.add_note(place)
    elif error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} ({place})", *error.args[1:])
