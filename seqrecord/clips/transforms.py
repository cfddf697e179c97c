"""What is made of clips: crops and flips, one window for all frames of a clip, and any functions.

A chain of steps comes to one window of the frame, mirrored or not, so that only the window is
copied, once::

    frame H x W     . . . . . . . .        top 1, left 3
                    . . . a b c . .
                    . . . d e f . .        flipped:  c b a
                    . . . . . . . .                  f e d
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import IntArray
from seqrecord.errors import ClipError
from seqrecord.text import repr_of
from seqrecord.units import MOST, is_integer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "CenterCrop",
    "ClipFunction",
    "ClipTransform",
    "CropStep",
    "CropWindows",
    "HorizontalFlip",
    "RandomCrop",
    "chain_of",
    "is_probability",
]

FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CropWindows:
    """A window of the frame for each clip, `[top, top + height)` by `[left, left + width)`.

    `top` and `left` are int64[clips], `flipped` is bool[clips]: the window is mirrored from left to
    right. Pixels are those of the whole frame.
    """

    top: IntArray
    left: IntArray
    height: int
    width: int
    flipped: npt.NDArray[np.bool_]

    @classmethod
    def whole(cls, num_clips: int, height: int, width: int) -> CropWindows:
        """The whole frame, for so many clips."""
        zero = np.zeros(num_clips, np.int64)
        return cls(zero, zero, height, width, np.zeros(num_clips, np.bool_))

    def __len__(self) -> int:
        return len(self.top)

    def crop(self, top: IntArray, left: IntArray, height: int, width: int) -> CropWindows:
        """The windows of these windows; `left` counts in what is seen, so from right to left in a
        flipped one."""
        left = np.where(self.flipped, self.width - width - left, left)
        return CropWindows(self.top + top, self.left + left, height, width, self.flipped)

    def flip(self, chosen: npt.NDArray[np.bool_]) -> CropWindows:
        """Some of the windows mirrored."""
        return replace(self, flipped=self.flipped ^ chosen)

    @property
    def crops(self) -> IntArray:
        """Top, left, height and width, int64[clips, 4]."""
        size = np.broadcast_to(np.array([self.height, self.width]), (len(self), 2))
        return np.concatenate((self.top[:, None], self.left[:, None], size), axis=1)

    def intrinsics(self, camera: FloatArray) -> FloatArray:
        """fx, fy, cx, cy of what is seen, of those of the frame; float64[clips, 4] each.

        The middle of the pixel in row 0 and column 0 is at (0, 0), as in OpenCV.
        """
        fx, fy, cx, cy = camera.T
        cx, cy = cx - self.left, cy - self.top
        cx = np.where(self.flipped, self.width - 1 - cx, cx)
        return np.stack((fx, fy, cx, cy), axis=1)


@runtime_checkable
class CropStep(Protocol):
    """A step that chooses windows."""

    @property
    def features(self) -> tuple[str, ...] | None:
        """What it is for; `None` for whatever has the size of the largest feature."""

    @property
    def num_draws(self) -> int:
        """How many numbers it draws for a clip."""

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of what is left; `ClipError` where there is too little."""

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        """The windows after the step; `draws` are in [0, 1), float64[num_draws, clips]."""

    def of_features(self, features: tuple[str, ...]) -> CropStep:
        """The same step, for these features."""


ClipFunction: TypeAlias = (
    "Callable[[dict[str, Any], np.random.Generator], Mapping[str, npt.ArrayLike]]"
)
"""From the arrays of a clip, [frames, …] by feature, to those that batches have; see `chain_of`."""

ClipTransform: TypeAlias = "CropStep | ClipFunction | Sequence[CropStep | ClipFunction]"


class _Step:
    features: tuple[str, ...] | None

    def of_features(self, features: tuple[str, ...]) -> Self:
        made = copy.copy(self)
        made.features = features
        return made


class _Crop(_Step):
    num_draws = 0

    def __init__(self, size: int | Sequence[int], *, features: Sequence[str] | None = None) -> None:
        self._size = _checked_size(type(self).__name__, size)
        self.features = _checked_names(type(self).__name__, features)

    def __repr__(self) -> str:
        chosen = "" if self.features is None else f", features={list(self.features)}"
        return f"{type(self).__name__}({self._size}{chosen})"

    def size(self, height: int, width: int) -> tuple[int, int]:
        if self._size[0] > height or self._size[1] > width:
            raise ClipError(
                f"{type(self).__name__}: the crop is larger than the frame",
                expected=f"at most {height} x {width} pixels",
                got=f"{self._size[0]} x {self._size[1]}",
            )
        return self._size


class RandomCrop(_Crop):
    """A window of `size` = (height, width) pixels anywhere in the frame, another for each clip.

    All frames of a clip have the same window, and so have all of the chosen features.

    Args:
        size: height and width, or one number for both.
        features: names of what is cropped; by default all features whose frames begin with the
            height and the width of the largest one.
    """

    num_draws = 2

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        height, width = self.size(windows.height, windows.width)
        top = _integers(draws[0], windows.height - height + 1)
        left = _integers(draws[1], windows.width - width + 1)
        return windows.crop(top, left, height, width)


class CenterCrop(_Crop):
    """A window of `size` = (height, width) pixels in the middle of the frame.

    Args:
        size: height and width, or one number for both.
        features: as `RandomCrop`'s.
    """

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:  # noqa: ARG002
        height, width = self.size(windows.height, windows.width)
        middle = np.zeros(len(windows), np.int64)
        top, left = (windows.height - height) // 2, (windows.width - width) // 2
        return windows.crop(middle + top, middle + left, height, width)


class HorizontalFlip(_Step):
    """Mirrors a clip from left to right with probability `p`.

    The x of an optical flow changes its sign: of features of kind `flow`, and of those without a
    kind that have "flow" in their name and two or more numbers a pixel. Poses, actions and whatever
    is not an image are left as they are, and so are the names of left and right cameras.

    Args:
        p: the probability.
        features: as `RandomCrop`'s.
    """

    num_draws = 1

    def __init__(self, p: float = 0.5, *, features: Sequence[str] | None = None) -> None:
        if not is_probability(p):
            raise ClipError(
                "HorizontalFlip: not a probability", expected="0 to 1", got=repr_of(p, 50)
            )
        self.p = float(p)
        self.features = _checked_names("HorizontalFlip", features)

    def __repr__(self) -> str:
        chosen = "" if self.features is None else f", features={list(self.features)}"
        return f"HorizontalFlip({self.p}{chosen})"

    def size(self, height: int, width: int) -> tuple[int, int]:
        return height, width

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        return windows.flip(draws[0] < self.p)


def chain_of(transform: Any) -> tuple[tuple[CropStep, ...], tuple[ClipFunction, ...]]:
    """The steps of a `clip_transform`, and the functions after them.

    Raises `ClipError` for what is none, and for a step after a function: only the window is copied,
    so it must be known before.
    """
    chain = tuple(transform) if isinstance(transform, (list, tuple)) else (transform,)
    steps = tuple(step for step in chain if _is_step(step))
    functions = tuple(step for step in chain if not _is_step(step))
    if not chain or not all(callable(f) and not isinstance(f, type) for f in functions):
        raise ClipError(
            "clip_transform is not valid",
            expected="RandomCrop, CenterCrop, HorizontalFlip, a function of a clip and a "
            "generator, or a list of them",
            got=repr_of(transform, 100),
        )
    if len({step.features for step in steps}) > 1:
        raise ClipError(
            "the steps of clip_transform choose different features",
            expected="the same ones for all steps, for they have one window",
            got=repr_of(transform),
        )
    if not all(_is_step(step) for step in chain[: len(steps)]):
        raise ClipError(
            "clip_transform has a function before a crop or flip",
            expected="crops and flips first, then functions",
            got=repr_of(transform),
        )
    return steps, functions


def _is_step(step: object) -> bool:
    return isinstance(step, CropStep) and not isinstance(step, type)


def is_probability(p: Any) -> bool:
    """Whether this is a number of 0 to 1, Python's or NumPy's."""
    is_number = isinstance(p, (int, float, np.integer, np.floating))
    # NumPy says that a duration is an integer.
    return is_number and not isinstance(p, (bool, np.timedelta64)) and bool(0 <= p <= 1)


def _integers(draws: FloatArray, count: int) -> IntArray:
    """Integers of [0, count)."""
    return np.minimum((draws * count).astype(np.int64), count - 1)


def _checked_size(name: str, size: Any) -> tuple[int, int]:
    sides = [size, size] if is_integer(size) else size
    try:
        if not isinstance(sides, Collection) or len(sides) != 2:
            raise TypeError
        if any(isinstance(side, bool | np.bool_) for side in sides):
            raise TypeError
        height, width = map(operator.index, sides)
        if not (0 < height <= MOST and 0 < width <= MOST):
            raise ValueError
    except (TypeError, ValueError):
        raise ClipError(
            f"{name}: not a size",
            expected="(height, width) in pixels, or one number for both",
            got=repr_of(size, 50),
        ) from None
    return height, width


def _checked_names(name: str, features: Any) -> tuple[str, ...] | None:
    if features is None:
        return None
    is_list = isinstance(features, Collection) and not isinstance(features, str)
    is_list = is_list and getattr(features, "ndim", 1) > 0  # else it is no collection after all
    if not is_list or not all(isinstance(item, str) for item in features):
        raise ClipError(f"{name}: features is a list of names", got=repr_of(features, 100))
    if not features:
        raise ClipError(f"{name}: no features", expected="at least one name")
    return tuple(features)
