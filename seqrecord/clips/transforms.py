"""What is made of clips: one window for all frames of a clip, mirrored, resized, and functions.

A chain of steps comes to one window of the frame, mirrored or not, so that only the window is
copied, once, or resized::

    frame H x W     . . . . . . . .        top 1, left 3
                    . . . a b c . .
                    . . . d e f . .        flipped:  c b a
                    . . . . . . . .                  f e d
"""

from __future__ import annotations

import copy
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import IntArray
from seqrecord.errors import ClipError
from seqrecord.text import repr_of
from seqrecord.units import MAX_INT, is_integer

if TYPE_CHECKING:
    from typing_extensions import Self

FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CropWindows:
    """A window of the frame for each clip, `[top, top + height)` by `[left, left + width)`.

    These are int64[clips], `flipped` is bool[clips]: the window is mirrored from left to right.
    Pixels are those of the whole frame. `size` is the height and width that windows are resized
    to, or `None`.
    """

    top: IntArray
    left: IntArray
    height: IntArray
    width: IntArray
    flipped: npt.NDArray[np.bool_]
    size: tuple[int, int] | None = None

    @classmethod
    def whole(cls, height: IntArray, width: IntArray) -> CropWindows:
        """The whole frames of clips, int64[clips] each."""
        zero = np.zeros(len(height), np.int64)
        return cls(zero, zero, height, width, np.zeros(len(height), np.bool_))

    def __len__(self) -> int:
        return len(self.top)

    def crop(self, top: IntArray, left: IntArray, height: IntArray, width: IntArray) -> CropWindows:
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
        return np.stack((self.top, self.left, self.height, self.width), axis=1)

    @property
    def scale(self) -> tuple[FloatArray, FloatArray]:
        """How much larger what is seen is than the window: along x and along y, float64[clips]."""
        height, width = self.size or (self.height, self.width)
        return width / self.width, height / self.height

    def intrinsics(self, camera: FloatArray) -> FloatArray:
        """fx, fy, cx, cy of what is seen, of those of the frame; float64[clips, 4] each.

        The middle of the pixel in row 0 and column 0 is at (0, 0), as in OpenCV.
        """
        (fx, fy, cx, cy), (along_x, along_y) = camera.T, self.scale
        cx, cy = cx - self.left, cy - self.top
        if self.size is not None:  # pixels begin half a pixel before their middles
            cx, cy = (cx + 0.5) * along_x - 0.5, (cy + 0.5) * along_y - 0.5
        width = self.width if self.size is None else self.size[1]
        cx = np.where(self.flipped, width - 1 - cx, cx)
        return np.stack((fx * along_x, fy * along_y, cx, cy), axis=1)


class CropStep(ABC):
    """A step that chooses windows.

    Attributes:
        features: what it is for; `None` for whatever has the size of the largest feature.
        num_draws: how many numbers it draws for a clip.
        shared: whether cameras share the draws, by the type of a step and its index in that type.
    """

    features: tuple[str, ...] | None
    num_draws = 0
    shared = True

    @abstractmethod
    def size(self, height: int | None, width: int | None) -> tuple[int | None, int | None]:
        """Height and width of what is left; `None` is not known before there is a frame.

        Raises `ClipError` where there is too little.
        """

    @abstractmethod
    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        """The windows after the step; `draws` are in [0, 1), float64[num_draws, clips]."""

    def of_features(self, features: tuple[str, ...] | None) -> Self:
        """The same step, for these features."""
        made = copy.copy(self)
        made.features = features
        return made


ClipFunction: TypeAlias = (
    "Callable[[dict[str, Any], np.random.Generator], Mapping[str, npt.ArrayLike]]"
)
"""From the arrays of a clip, [frames, …] by feature, to those that batches have; see `chain_of`."""

CropSteps: TypeAlias = "CropStep | Sequence[CropStep]"

ClipTransform: TypeAlias = (
    "CropStep | ClipFunction | Mapping[str, CropSteps]"
    " | Sequence[CropStep | ClipFunction | Mapping[str, CropSteps]]"
)


class Camera(NamedTuple):
    """Steps for some features of one size; `None` for all that have the size of the largest one."""

    steps: tuple[CropStep, ...]
    features: tuple[str, ...] | None
    is_named: bool = False  # by a dict: batches tell of it under its name


class _Sized(CropStep):
    """A step after which all clips have one `size`."""

    def __init__(
        self,
        size: int | Sequence[int],
        *,
        features: Sequence[str] | None = None,
        shared: bool = True,
    ) -> None:
        self._size = checked_size(type(self).__name__, size)
        self.features = _checked_names(type(self).__name__, features)
        self.shared = _checked_flag(type(self).__name__, shared)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}{_more_of(self)})"

    def size(self, height: int | None, width: int | None) -> tuple[int, int]:  # noqa: ARG002
        return self._size


class _Crop(_Sized):
    def size(self, height: int | None, width: int | None) -> tuple[int, int]:
        if (height or MAX_INT) < self._size[0] or (width or MAX_INT) < self._size[1]:
            raise ClipError(
                f"{type(self).__name__}: the crop is larger than the frame",
                expected=f"at most {height or '?'} x {width or '?'} pixels",
                got=f"{self._size[0]} x {self._size[1]}",
            )
        return self._size

    def _cut(self, windows: CropWindows, top: IntArray, left: IntArray) -> CropWindows:
        return windows.crop(top, left, *(np.full(len(windows), side) for side in self._size))

    def _room(self, windows: CropWindows) -> tuple[IntArray, IntArray]:
        """By how much windows are higher and wider than the crop. Raises `ClipError`."""
        room = windows.height - self._size[0], windows.width - self._size[1]
        for clip in np.flatnonzero((room[0] < 0) | (room[1] < 0))[:1]:
            self.size(int(windows.height[clip]), int(windows.width[clip]))
        return room


class RandomCrop(_Crop):
    """A window of `size` = (height, width) pixels anywhere in the frame, another for each clip.

    All frames of a clip have the same window, and so have all of the chosen features. Where
    episodes differ in size, it is anywhere in the frames of the clip's own episode.

    Args:
        size: height and width, or one number for both.
        features: names of what is cropped; by default all features whose frames begin with the
            height and the width of the largest one, or all whose height and width vary. Not in a
            dict of cameras.
        shared: whether cameras that a dict names have their windows at the same place of their
            frames, in proportion; or each is drawn on its own. The first `RandomCrop` of a camera
            shares with the first one of the others, the second one with the second.
    """

    num_draws = 2

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        room = self._room(windows)
        return self._cut(
            windows, _integers(draws[0], room[0] + 1), _integers(draws[1], room[1] + 1)
        )


class CenterCrop(_Crop):
    """A window of `size` = (height, width) pixels in the middle of the frame.

    Args:
        size: height and width, or one number for both.
        features: as `RandomCrop`'s.
    """

    def __init__(self, size: int | Sequence[int], *, features: Sequence[str] | None = None) -> None:
        super().__init__(size, features=features)

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:  # noqa: ARG002
        room = self._room(windows)
        return self._cut(windows, room[0] // 2, room[1] // 2)


class Resize(_Sized):
    """All of the window, or of the frame, resized to `size` = (height, width) pixels.

    The last step but for flips. Features of kind `image` are interpolated linearly, with
    antialiasing where they become smaller. So are uint8 features with three or four channels and
    without a kind, unless their name is that of a mask or a segmentation (`mask`, `seg_left`). All
    others take the nearest pixel: depth, masks, labels, normals. Optical flow is scaled too, x by
    the width and y by the height, and disparity by the width; `intrinsics` are those of the result.
    Optical flow coded as unsigned integers is an error.

    Args:
        size: height and width, or one number for both.
        features: as `RandomCrop`'s.
    """

    def __init__(self, size: int | Sequence[int], *, features: Sequence[str] | None = None) -> None:
        super().__init__(size, features=features)

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:  # noqa: ARG002
        return replace(windows, size=self._size)


class RandomResizedCrop(_Sized):
    """A window of a drawn area and shape anywhere in the frame, resized to `size`; see `Resize`.

    The area is drawn evenly from `scale`; the logarithm of width to height evenly from those of
    `ratio` with which the window lies in the frame. Where none does, the window is the largest one
    of the nearest ratio. Sides are rounded to pixels.

    Args:
        size: height and width, or one number for both.
        scale: least and most area, as shares of the frame's.
        ratio: least and most of width to height.
        features, shared: as `RandomCrop`'s.
    """

    num_draws = 4

    def __init__(
        self,
        size: int | Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        *,
        features: Sequence[str] | None = None,
        shared: bool = True,
    ) -> None:
        super().__init__(size, features=features, shared=shared)
        self._scale = _checked_range("scale", scale, 1.0)
        self._ratio = _checked_range("ratio", ratio, float(MAX_INT))

    def __repr__(self) -> str:
        return f"RandomResizedCrop({self._size}, {self._scale}, {self._ratio}{_more_of(self)})"

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        high, wide, (low, most) = windows.height, windows.width, self._ratio
        area = high * wide * (self._scale[0] + draws[0] * (self._scale[1] - self._scale[0]))
        least, greatest = (
            np.log(np.maximum(low, area / high**2)),
            np.log(np.minimum(most, wide**2 / area)),
        )
        ratio = np.exp(least + draws[1] * (greatest - least))
        ratio = np.where(greatest < least, np.clip(wide / high, low, most), ratio)
        area = np.minimum(area, np.minimum(high**2 * ratio, wide**2 / ratio))
        height = np.clip(np.rint(np.sqrt(area / ratio)).astype(np.int64), 1, high)
        width = np.clip(np.rint(np.sqrt(area * ratio)).astype(np.int64), 1, wide)
        top, left = _integers(draws[2], high - height + 1), _integers(draws[3], wide - width + 1)
        return replace(windows.crop(top, left, height, width), size=self._size)


class HorizontalFlip(CropStep):
    """Mirrors a clip from left to right with probability `p`.

    Changes the sign of x in optical flow (kind `flow`, or without a kind and with "flow" in the
    name and two or more numbers a pixel) and in float normals (kind `normals`, or named so).
    Normals coded as integers and flow coded as unsigned integers are an error. Poses and actions
    stay as they are. The names of left and right cameras stay too: exchange the two cameras of a
    flipped stereo pair, whose disparity is then still positive.

    Args:
        p: the probability.
        features, shared: as `RandomCrop`'s.
    """

    num_draws = 1

    def __init__(
        self, p: float = 0.5, *, features: Sequence[str] | None = None, shared: bool = True
    ) -> None:
        if not is_probability(p):
            raise ClipError(
                "HorizontalFlip: not a probability", expected="0 to 1", got=repr_of(p, 50)
            )
        self.p = float(p)
        self.features = _checked_names("HorizontalFlip", features)
        self.shared = _checked_flag("HorizontalFlip", shared)

    def __repr__(self) -> str:
        return f"HorizontalFlip({self.p}{_more_of(self)})"

    def size(self, height: int | None, width: int | None) -> tuple[int | None, int | None]:
        return height, width

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        return windows.flip(draws[0] < self.p)


def chain_of(transform: Any) -> tuple[tuple[Camera, ...], tuple[ClipFunction, ...]]:
    """The steps of a `clip_transform`, by camera, and the functions after them.

    Raises `ClipError` for what is none, and for a step after a function: only the window is copied,
    so it must be known before.
    """
    chain = tuple(transform) if isinstance(transform, (list, tuple)) else (transform,)
    named = [item for item in chain if isinstance(item, Mapping)]
    steps = tuple(step for step in chain if _is_step(step))
    is_first = [isinstance(item, Mapping) or _is_step(item) for item in chain]
    functions = tuple(item for item, first in zip(chain, is_first, strict=True) if not first)
    if not chain or not all(callable(f) and not isinstance(f, type) for f in functions):
        raise ClipError(
            "clip_transform is not valid",
            expected="RandomCrop, CenterCrop, RandomResizedCrop, Resize, HorizontalFlip, a dict of "
            "these by feature, a function of a clip and a generator, or a list of them",
            got=repr_of(transform, 100),
        )
    if not all(is_first[: len(chain) - len(functions)]):
        raise ClipError(
            "clip_transform has a function before a crop or flip",
            expected="crops and flips first, then functions",
            got=repr_of(transform),
        )
    if named:
        cameras = tuple(_camera_of(*item, transform) for one in named for item in one.items())
        if steps or len(named) > 1 or not cameras:
            raise ClipError(
                "clip_transform has steps for named cameras, and others",
                expected="one dict of all features that have steps",
                got=repr_of(transform),
            )
    else:
        cameras = (Camera(steps, steps[0].features),) if steps else ()
    for camera in cameras:
        _check_steps(camera, transform)
    return cameras, functions


def _camera_of(name: Any, steps: Any, transform: Any) -> Camera:
    chain = tuple(steps) if isinstance(steps, (list, tuple)) else (steps,)
    if not isinstance(name, str) or not chain or not all(map(_is_step, chain)):
        raise ClipError(
            "clip_transform is not valid for a camera",
            feature=name if isinstance(name, str) else repr_of(name, 50),
            expected="a feature's name, and crops, flips and Resize, or a list of them",
            got=repr_of(steps, 100),
        )
    if any(step.features is not None for step in chain):
        raise ClipError(
            "a step for a named camera chooses features",
            feature=name,
            expected="a step without features",
            got=repr_of(transform),
        )
    return Camera(tuple(step.of_features((name,)) for step in chain), (name,), is_named=True)


def _check_steps(camera: Camera, transform: Any) -> None:
    if len({step.features for step in camera.steps}) > 1:
        raise ClipError(
            "the steps of clip_transform choose different features",
            expected="the same ones for all steps, for they have one window",
            got=repr_of(transform),
        )
    sized = [step for step in camera.steps if isinstance(step, _Sized)]
    if any(isinstance(step, (Resize, RandomResizedCrop)) for step in sized[:-1]):
        raise ClipError(
            "clip_transform crops or resizes what was resized",
            expected="crops, in pixels of the stored frame, and then one Resize",
            got=repr_of(transform),
        )


def _is_step(step: object) -> bool:
    return isinstance(step, CropStep) and not isinstance(step, type)


def is_probability(p: Any) -> bool:
    """Whether this is a number of 0 to 1, Python's or NumPy's."""
    is_number = isinstance(p, (int, float, np.integer, np.floating))
    # NumPy says that a duration is an integer.
    return is_number and not isinstance(p, (bool, np.timedelta64)) and bool(0 <= p <= 1)


def _integers(draws: FloatArray, count: IntArray) -> IntArray:
    """Integers of [0, count), int64[n]."""
    return np.minimum((draws * count).astype(np.int64), count - 1)


def checked_size(name: str, size: Any) -> tuple[int, int]:
    """Height and width of one number or of two. Raises `ClipError`."""
    sides = [size, size] if is_integer(size) else size
    try:
        if not isinstance(sides, Collection) or len(sides) != 2:
            raise TypeError
        if any(isinstance(side, bool | np.bool_) for side in sides):
            raise TypeError
        height, width = map(operator.index, sides)
        if not (0 < height <= MAX_INT and 0 < width <= MAX_INT):
            raise ValueError
    except (TypeError, ValueError):
        raise ClipError(
            f"{name}: not a size",
            expected="(height, width) in pixels, or one number for both",
            got=repr_of(size, 50),
        ) from None
    return height, width


def _checked_range(name: str, given: Any, most: float) -> tuple[float, float]:
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        low, high = 0.0, 0.0
    if not 0 < low <= high <= most:
        raise ClipError(
            f"RandomResizedCrop: {name} is not valid",
            expected=f"two numbers above 0 and up to {most:g}, the smaller one first",
            got=repr_of(given, 50),
        )
    return low, high


def _checked_flag(name: str, shared: Any) -> bool:
    if not isinstance(shared, (bool, np.bool_)):
        raise ClipError(f"{name}: shared is not True or False", got=repr_of(shared, 50))
    return bool(shared)


def _more_of(step: CropStep) -> str:
    chosen = "" if step.features is None else f", features={list(step.features)}"
    return chosen + ("" if step.shared else ", shared=False")


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
