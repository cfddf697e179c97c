"""How a feature is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["Kind", "kind_of", "kind_of_frames"]

Kind = Literal["picture", "depth", "flow", "labels", "scale", "curves", "text"]

_LEAST_SIDE = 8  # pixels; a smaller array is no picture


def kind_of(name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> Kind:
    """How to show a feature, from the beginning of its name, its dtype and its frames' shape."""
    grid = len(shape) >= 2 and all(n is None or n >= _LEAST_SIDE for n in shape[:2])
    if grid and len(shape) == 2 and dtype.kind in "biuf":
        if dtype.kind == "b" or (name.startswith(("mask", "seg", "label")) and dtype.kind != "f"):
            return "labels"
        if name.startswith("depth"):
            return "depth"
        return "picture" if dtype == np.uint8 else "scale"
    if grid and len(shape) == 3 and dtype == np.uint8 and shape[2] in (3, 4):
        return "picture"
    if grid and len(shape) == 3 and dtype.kind == "f" and shape[2] == 2:
        return "flow"
    if len(shape) <= 1 and dtype.kind in "biuf" and None not in shape:
        return "curves"
    return "text"


def kind_of_frames(name: str, frames: Sequence[npt.NDArray[Any]]) -> Kind:
    """The same from the frames themselves, whose shapes may differ."""
    if len({frame.ndim for frame in frames}) != 1:
        return "text"
    sizes = zip(*(frame.shape for frame in frames), strict=True)
    shape = tuple(size[0] if len(set(size)) == 1 else None for size in sizes)
    return kind_of(name, frames[0].dtype, shape)
