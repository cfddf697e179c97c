"""Transforms of clips: crop, flip and resize, one window for all frames, and functions.

A chain of steps is composed into one window, flipped or not. Only that window is copied, once, or
resized::

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
from dataclasses import replace
from itertools import filterfalse
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, located
from seqrecord.store.cameras.crop_windows import CropWindows, FloatArray
from seqrecord.store.tables.grids import IntArray
from seqrecord.store.text import repr_of
from seqrecord.store.units import (
    MAX_INT,
    are_names,
    check,
    check_flag,
    is_integer,
    is_probability,
    is_word,
    raise_if,
)

if TYPE_CHECKING:
    from typing_extensions import Self


class CropStep(ABC):
    """Base class of crops, flips and resizing.

    Attributes:
        features: names of the transformed features; `None` for images and the features with pixels
            of their size, see `engine.crop_features`.
        num_draws: random numbers per clip.
        shared: whether cameras share the draws if their n-th steps have one type.
        per_batch: draw once for each batch, equal on all ranks, instead of for each clip.
        needs_centers: whether windows need principal points.
        purpose: name of its random numbers, which depend on no name of code.
    """

    features: tuple[str, ...] | None
    purpose = ""
    num_draws = 0
    shared = True
    per_batch = False
    needs_centers = False

    @abstractmethod
    def size(self, height: int | None, width: int | None) -> tuple[int | None, int | None]:
        """Output height and width; `None` if unknown before the first frame.

        Raises `ClipError` if the input is too small.
        """

    @abstractmethod
    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        """Apply the step to windows; `draws` are in [0, 1), float64[num_draws, clips]."""

    def size_of(
        self,
        height: int | None,
        width: int | None,
        draw: float,  # noqa: ARG002
    ) -> tuple[int | None, int | None]:
        """Output height and width in a batch; `draw` is its draw in [0, 1), with `per_batch`."""
        return self.size(height, width)

    def of_features(self, features: tuple[str, ...] | None) -> Self:
        """A copy of the step for these features."""
        step = copy.copy(self)
        step.features = features
        return step


ClipFunction: TypeAlias = (
    "Callable[[dict[str, Any], np.random.Generator], Mapping[str, npt.ArrayLike]]"
)
"""Maps a clip, arrays [frames, …] by feature and the columns of its sample, to values of the batch;
see `chain_of`.
"""


@runtime_checkable
class VaryingClipFunction(Protocol):
    """A `ClipFunction` with texts, or arrays of varying length, in its results.

    `example` has the largest of them by name: an array [most, …], whose first axis may be shorter
    in a result, or a text, of at most as many bytes. A batch has a list of tensors or texts, one
    per clip. The example determines the memory for them.

    Example:
        class Tokens:
            example = {"tokens": np.zeros(32, np.int64), "prompt": "x" * 100}

            def __call__(self, clip, generator):
                prompt = f"episode {clip['episode']} from frame {clip['start']}"
                return {"tokens": np.array([*prompt.encode()]), "prompt": prompt}

        pipe = seqrecord.SeqRecordPipe(
            "records/", clip_len=4, batch_size=2, clip_transform=Tokens()
        )
        batch = next(iter(pipe))  # batch["tokens"]: two tensors; batch["prompt"]: two texts
    """

    example: Mapping[str, npt.ArrayLike]

    def __call__(
        self, clip: dict[str, Any], generator: np.random.Generator, /
    ) -> Mapping[str, npt.ArrayLike]: ...


CropSteps: TypeAlias = "CropStep | Sequence[CropStep]"

ClipTransform: TypeAlias = (
    "CropStep | ClipFunction | Mapping[str, CropSteps]"
    " | Sequence[CropStep | ClipFunction | Mapping[str, CropSteps]]"
)


class Camera(NamedTuple):
    """Steps for features of one size; `None` for images and features with pixels of their size."""

    steps: tuple[CropStep, ...]
    features: tuple[str, ...] | None
    is_named: bool = False  # in a dict; batches have its columns under this name


class _Sized(CropStep):
    """Base class of transform steps with a fixed output `size`, (height, width) or one number."""

    _pair: str | None = None
    """See `checked_size`."""

    def __init__(
        self,
        size: int | Sequence[int],
        *,
        features: Sequence[str] | None = None,
        shared: bool = True,
    ) -> None:
        self._size = checked_size(type(self).__name__, size, pair=self._pair)
        self.features = _checked_names(type(self).__name__, features)
        self.shared = check_flag(f"{type(self).__name__}: shared", shared)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._size}{_more_of(self)})"

    def size(self, height: int | None, width: int | None) -> tuple[int, int]:  # noqa: ARG002
        return self._size


FRAME, PRINCIPAL_POINT = "frame", "principal_point"


class Crop(_Sized):
    """Base class of `RandomCrop` and `CenterCrop`; Python's errors of arguments name it."""

    def __init__(
        self,
        size: int | Sequence[int],
        *,
        features: Sequence[str] | None = None,
        shared: bool = True,
        around: str = FRAME,
    ) -> None:
        super().__init__(size, features=features, shared=shared)
        expected = f"{FRAME!r} or {PRINCIPAL_POINT!r}"
        is_right = is_word(around, (FRAME, PRINCIPAL_POINT))
        check(f"{type(self).__name__}: around", around, is_right, expected)
        self.needs_centers = around == PRINCIPAL_POINT

    def _area(self, windows: CropWindows, *, grow: bool) -> CropWindows:
        """The parts of windows inside which crops are, see `CropWindows.around_centers`."""
        self._room(windows)  # raises for crops that are too large
        return windows.around_centers(self._size, grow=grow) if self.needs_centers else windows

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
        """Window size minus crop size. Raises `ClipError` if negative."""
        room = windows.height - self._size[0], windows.width - self._size[1]
        for clip in np.flatnonzero((room[0] < 0) | (room[1] < 0))[:1]:
            self.size(int(windows.height[clip]), int(windows.width[clip]))
        return room


class RandomCrop(Crop):
    """Crop `size` = (height, width) pixels at a random position, drawn once per clip.

    All frames of a clip and all cropped features share the window. Its position is uniform over
    the frame of the clip's episode.

    Args:
        size: height and width in pixels, or one number for both.
        features: names of the cropped features. Default: images, or without images other features
            with pixels (depth, masks, …), and all features with pixels of the same height and
            width; depth, flow or masks of another size are a `ClipError`. Not allowed in a dict of
            cameras.
        shared: in a dict of cameras, draw one relative position for all of them; `False` draws
            a position per camera. The n-th `RandomCrop` of one camera shares its draw with the
            n-th of the others.
        around: "frame" (default), or "principal_point": positions are uniform over the largest part
            of the frame with the camera's principal point in its middle, so that principal points
            of crops are around their middle. A crop larger than this part is as near to it as the
            frame allows. Requires `camera=` of the loader, and K of each clip.

    Example:
        pipe = seqrecord.SeqRecordPipe(
            "records/", clip_len=4, batch_size=2, clip_transform=seqrecord.RandomCrop((32, 40))
        )
        image = next(iter(pipe))["image"]  # uint8 [2, 4, 32, 40, 3]
    """

    purpose = "RandomCrop"
    num_draws = 2

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        windows = self._area(windows, grow=True)
        room = self._room(windows)
        return self._cut(
            windows, _integers(draws[0], room[0] + 1), _integers(draws[1], room[1] + 1)
        )


class CenterCrop(Crop):
    """Crop `size` = (height, width) pixels at the center of the frame.

    Args:
        size: height and width in pixels, or one number for both.
        features: see `RandomCrop`.
        around: "frame" (default), or "principal_point": with the camera's principal point in the
            middle, see `RandomCrop`.

    Example:
        dataset = seqrecord.SeqRecordMapDataset(
            "records/", clip_len=4, clip_transform=seqrecord.CenterCrop(32)
        )
        print(dataset[0]["image"].shape)  # [4, 32, 32, 3]
    """

    def __init__(
        self,
        size: int | Sequence[int],
        *,
        features: Sequence[str] | None = None,
        around: str = FRAME,
    ) -> None:
        super().__init__(size, features=features, around=around)

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:  # noqa: ARG002
        windows = self._area(windows, grow=False)
        room = self._room(windows)
        return self._cut(windows, room[0] // 2, room[1] // 2)


class Resize(_Sized):
    """Resize the frame, or the window of earlier crops, to `size` = (height, width) pixels.

    Only flips may follow. Interpolation is linear for features of kind `image`, with antialiasing
    when they shrink, and for uint8 features without a kind that have 3 or 4 channels, unless the
    name is a mask's or a segmentation's (`mask`, `seg_left`). It is nearest-neighbor for all other
    features: depth, masks, labels, normals. Values of optical flow are scaled with the frame (x by
    width, y by height), values of disparity by width. Features of kind `intrinsics` describe the
    resized frame. Optical flow coded as unsigned integers is an error.

    Args:
        size: height and width in pixels. One number, which elsewhere is the shorter edge, raises
            `ClipError`.
        features: see `RandomCrop`.

    Example:
        steps = [seqrecord.CenterCrop(40), seqrecord.Resize((20, 20))]
        dataset = seqrecord.SeqRecordMapDataset("records/", clip_len=4, clip_transform=steps)
        print(dataset[0]["image"].shape)  # [4, 20, 20, 3]
    """

    _pair = "height and width in pixels: Resize((H, W))"

    def __init__(self, size: Sequence[int], *, features: Sequence[str] | None = None) -> None:
        super().__init__(size, features=features)

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:  # noqa: ARG002
        return replace(windows, size=self._size)


class RandomResizedCrop(_Sized):
    """Crop a random area and aspect ratio, drawn once per clip, and resize it to `size`.

    The area is uniform over `scale`. The logarithm of the aspect ratio is uniform over the part of
    `ratio` for which the window fits into the frame. If no ratio fits, the window is the largest
    one with the nearest ratio. Sides are rounded to pixels. Interpolation: see `Resize`.

    Args:
        size: height and width in pixels, or one number for both.
        scale: minimum and maximum area, as fractions of the frame's area.
        ratio: minimum and maximum of width / height.
        features: see `RandomCrop`.
        shared: see `RandomCrop`.

    Example:
        pipe = seqrecord.SeqRecordPipe(
            "records/",
            clip_len=4,
            batch_size=2,
            clip_transform=seqrecord.RandomResizedCrop(32, scale=(0.5, 1.0)),
        )
        image = next(iter(pipe))["image"]  # uint8 [2, 4, 32, 32, 3]
    """

    purpose = "RandomResizedCrop"
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
        self._scale = _checked_range("RandomResizedCrop: scale", scale, 1.0)
        self._ratio = _checked_range("RandomResizedCrop: ratio", ratio, float(MAX_INT))

    def __repr__(self) -> str:
        return f"RandomResizedCrop({self._size}, {self._scale}, {self._ratio}{_more_of(self)})"

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        frame_height, frame_width = windows.height, windows.width
        (min_scale, max_scale), (min_ratio, max_ratio) = self._scale, self._ratio
        area = frame_height * frame_width * (min_scale + draws[0] * (max_scale - min_scale))
        log_min = np.log(np.maximum(min_ratio, area / frame_height**2))
        log_max = np.log(np.minimum(max_ratio, frame_width**2 / area))
        ratio = np.exp(log_min + draws[1] * (log_max - log_min))
        ratio = np.where(
            log_max < log_min, np.clip(frame_width / frame_height, min_ratio, max_ratio), ratio
        )
        area = np.minimum(area, np.minimum(frame_height**2 * ratio, frame_width**2 / ratio))
        height = np.clip(np.rint(np.sqrt(area / ratio)).astype(np.int64), 1, frame_height)
        width = np.clip(np.rint(np.sqrt(area * ratio)).astype(np.int64), 1, frame_width)
        top = _integers(draws[2], frame_height - height + 1)
        left = _integers(draws[3], frame_width - width + 1)
        return replace(windows.crop(top, left, height, width), size=self._size)


class BatchResize(_Sized):
    """Resize to a size drawn once for each batch, equal on all ranks at each step.

    The window is the largest one at the center of the frame, or of the window that earlier crops
    left, that has the aspect ratio of the size. Only flips may follow. All cameras with a
    `BatchResize` share the draw: cameras with as many sizes get the size with the same number.
    Interpolation and values: see `Resize`. Requires a `batch_size`, of the loader or of the mix
    around it; a mix requires the same `BatchResize` in all sources. Excludes functions in
    `clip_transform`, `order="sequences"` and `SeqRecordMapDataset`.

    Args:
        sizes: sizes to draw from, (height, width) in pixels or one number for both.
        weights: relative frequency of each size, above 0. Default: equal.
        features: see `RandomCrop`.
        shared: see `RandomCrop`.

    Example:
        sizes = [(24, 32), (32, 32), (32, 24)]
        pipe = seqrecord.SeqRecordPipe(
            "records/",
            clip_len=4,
            batch_size=2,
            clip_transform=seqrecord.BatchResize(sizes, weights=[2, 1, 1]),
        )
        image = next(iter(pipe))["image"]  # uint8 [2, 4, 24, 32, 3], or of another size
    """

    purpose = "BatchResize"
    num_draws = 1
    per_batch = True

    def __init__(
        self,
        sizes: Sequence[int | Sequence[int]],
        weights: Sequence[float] | None = None,
        *,
        features: Sequence[str] | None = None,
        shared: bool = True,
    ) -> None:
        argument: Any = sizes
        is_list = isinstance(argument, Sequence) and not isinstance(argument, str)
        is_list = is_list and len(argument) > 0
        check("sizes of BatchResize", sizes, is_list, "a list such as [(384, 512), (512, 512)]")
        self.sizes = tuple(checked_size("BatchResize", size) for size in sizes)
        self._ends = _cumulative(weights, len(sizes))
        super().__init__(
            max(self.sizes, key=lambda size: size[0] * size[1]), features=features, shared=shared
        )

    @classmethod
    def of_aspects(
        cls,
        width: int,
        aspects: Sequence[float],
        *,
        multiple: int = 1,
        features: Sequence[str] | None = None,
        shared: bool = True,
    ) -> Self:
        """Resize to a fixed width, and to a height drawn by its ratio to the width.

        The ratio is uniform in [least, most]; the height is rounded down to a multiple of
        `multiple` pixels, for example a transformer's patches.

        Args:
            width: width in pixels.
            aspects: least and greatest height / width, such as `(0.33, 1.0)`.
            multiple: divisor of all heights.
            features: see `RandomCrop`.
            shared: see `RandomCrop`.

        Example:
            step = seqrecord.BatchResize.of_aspects(56, (0.33, 1.0), multiple=14)
            print(step.sizes)  # ((14, 56), (28, 56), (42, 56), (56, 56))
        """
        (_, width), (_, unit) = checked_size("width", width), checked_size("multiple", multiple)
        min_units, max_units = (
            width / unit * aspect
            for aspect in _checked_range("BatchResize: aspects", aspects, float(MAX_INT))
        )
        first_number, last_number = int(min_units + 1e-9), int(max_units + 1e-9)
        problem = "BatchResize: the least height is below one multiple"
        raise_if(not first_number, problem, f"aspects of at least {unit / width:g}", aspects)
        numbers = range(first_number, last_number + 1)
        shares = [min(max_units, n + 1) - max(min_units, n) for n in numbers]
        pairs = [(n, share) for n, share in zip(numbers, shares, strict=True) if share > 1e-9]
        pairs = pairs or [(first_number, 1.0)]
        sizes = [(n * unit, width) for n, _ in pairs]
        return cls(sizes, [share for _, share in pairs], features=features, shared=shared)

    def __repr__(self) -> str:
        weights = [round(weight, 6) for weight in np.diff(self._ends, prepend=0).tolist()]
        return f"BatchResize({list(self.sizes)}, {weights}{_more_of(self)})"

    def size_of(self, height: int | None, width: int | None, draw: float) -> tuple[int, int]:
        del height, width  # of the frame: any
        return self.sizes[int(np.searchsorted(self._ends, draw, side="right"))]

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        if not len(windows):
            return replace(windows, size=self._size)
        size = self.size_of(None, None, float(draws[0, 0]))
        ratio = size[1] / size[0]
        frame_height, frame_width = windows.height, windows.width
        width = np.clip(np.rint(frame_height * ratio).astype(np.int64), 1, frame_width)
        height = np.clip(np.rint(frame_width / ratio).astype(np.int64), 1, frame_height)
        top, left = (frame_height - height) // 2, (frame_width - width) // 2
        return replace(windows.crop(top, left, height, width), size=size)


def _cumulative(weights: Any, count: int) -> FloatArray:
    """The cumulative shares of weights, float64[count]; the last is 1."""
    sequence = [1.0] * count if weights is None else weights
    try:
        if isinstance(sequence, (str, bytes)):
            raise TypeError
        numbers = np.array([float(weight) for weight in sequence], np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.zeros(0)
    is_right = len(numbers) == count and bool(np.isfinite(numbers).all() and (numbers > 0).all())
    expected = f"{count} numbers above 0, one for each size"
    check("weights of BatchResize", weights, is_right, expected)
    ends: FloatArray = np.cumsum(numbers) / numbers.sum()
    ends[-1] = 1.0
    return ends


class HorizontalFlip(CropStep):
    """Mirror all frames of a clip from left to right with probability `p`.

    Negates x of optical flow (kind `flow`, or without a kind "flow" in the name and 2 or more
    numbers per pixel) and of float normals (kind `normals`, or "normal" in the name). Normals coded
    as integers and flow coded as unsigned integers are an error. Intrinsics and distortion describe
    the mirrored image. Stored poses and actions are unchanged. With `camera=` of the
    loader, the columns of cameras and features of kind `points` move into the mirrored world,
    stereo pairs are exchanged, and a flip of only some images is an error. Without, swap
    the two images of a flipped stereo pair yourself; its disparity remains positive.

    Args:
        p: probability in [0, 1].
        features: see `RandomCrop`.
        shared: see `RandomCrop`.

    Example:
        pipe = seqrecord.SeqRecordPipe(
            "records/", clip_len=4, batch_size=2, clip_transform=seqrecord.HorizontalFlip(0.5)
        )
        for batch in pipe:
            flow = batch["flow"]  # x is negated in flipped clips
    """

    purpose = "HorizontalFlip"
    num_draws = 1

    def __init__(
        self, p: float = 0.5, *, features: Sequence[str] | None = None, shared: bool = True
    ) -> None:
        check("HorizontalFlip: p", p, is_probability(p), "a probability: 0 to 1")
        self.p = float(p)
        self.features = _checked_names("HorizontalFlip", features)
        self.shared = check_flag("HorizontalFlip: shared", shared)

    def __repr__(self) -> str:
        return f"HorizontalFlip({self.p}{_more_of(self)})"

    def size(self, height: int | None, width: int | None) -> tuple[int | None, int | None]:
        return height, width

    def apply(self, windows: CropWindows, draws: FloatArray) -> CropWindows:
        return windows.flip(draws[0] < self.p)


def chain_of(transform: Any) -> tuple[tuple[Camera, ...], tuple[ClipFunction, ...]]:
    """Parse a `clip_transform`: the steps of each camera, and the functions after them.

    Raises `ClipError` for an invalid value, and for a step after a function: the window must be
    known before it is copied.
    """
    chain = tuple(transform) if isinstance(transform, (list, tuple)) else (transform,)
    camera_dicts = [part for part in chain if isinstance(part, Mapping)]
    steps = tuple(filter(_is_step, chain))
    functions = tuple(filterfalse(_has_steps, chain))
    is_right = bool(chain) and all(callable(f) and not isinstance(f, type) for f in functions)
    expected = (
        "RandomCrop, CenterCrop, RandomResizedCrop, Resize, BatchResize or HorizontalFlip, a "
    )
    expected += "dict of these by feature, a function of a clip and a generator, or a list"
    check("clip_transform", transform, is_right, expected)
    is_wrong = not all(map(_has_steps, chain[: len(chain) - len(functions)]))
    expected = "crops, flips and Resize first, then functions"
    raise_if(is_wrong, "clip_transform has a function before a step", expected, transform)
    if camera_dicts:
        cameras = tuple(
            _camera_of(*pair, transform) for part in camera_dicts for pair in part.items()
        )
        is_wrong = bool(steps) or len(camera_dicts) > 1 or not cameras
        problem = "clip_transform mixes a dict of cameras with other steps"
        raise_if(is_wrong, problem, "one dict with the steps of all cameras", transform)
    else:
        cameras = (Camera(steps, steps[0].features),) if steps else ()
    for camera in cameras:
        _check_steps(camera, transform)
    return cameras, functions


def _camera_of(name: Any, steps: Any, transform: Any) -> Camera:
    chain = tuple(steps) if isinstance(steps, (list, tuple)) else (steps,)
    is_right = isinstance(name, str) and bool(chain) and all(map(_is_step, chain))
    expected = "a step (crop, flip, Resize) or a list of steps, by feature"
    check(f"clip_transform of camera {repr_of(name, 50)}", steps, is_right, expected)
    with located(ClipError, feature=name):
        problem = "a step in a dict of cameras has the argument features"
        is_wrong = any(step.features is not None for step in chain)
        raise_if(is_wrong, problem, "no argument features", transform)
    return Camera(tuple(step.of_features((name,)) for step in chain), (name,), is_named=True)


def _check_steps(camera: Camera, transform: Any) -> None:
    is_wrong = len({step.features for step in camera.steps}) > 1
    expected = "the same features for all steps: they share a window"
    raise_if(is_wrong, "the steps of clip_transform choose different features", expected, transform)
    sized = [step for step in camera.steps if isinstance(step, _Sized)]
    resizes = Resize, RandomResizedCrop, BatchResize
    is_wrong = any(isinstance(step, resizes) for step in sized[:-1])
    expected = "crops in pixels of the stored frame, then at most one Resize"
    raise_if(is_wrong, "clip_transform crops or resizes after Resize", expected, transform)


def _is_step(step: object) -> bool:
    return isinstance(step, CropStep) and not isinstance(step, type)


def _has_steps(part: object) -> bool:
    """Whether a part of a `clip_transform` is a step or a dict of steps, not a function."""
    return isinstance(part, Mapping) or _is_step(part)


def _integers(draws: FloatArray, count: IntArray) -> IntArray:
    """Map draws in [0, 1) to integers in [0, count), int64[n]."""
    return np.minimum((draws * count).astype(np.int64), count - 1)


def checked_size(name: str, size: Any, *, pair: str | None = None) -> tuple[int, int]:
    """Check a size given as one number or two. Raises `ClipError`.

    With `pair`, the form of the argument, one number is refused: other packages resize the shorter
    edge to it, and keep the ratio.
    """
    sides = [size, size] if is_integer(size) and pair is None else size
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
            f"{name}: invalid size",
            expected=pair or "(height, width) in pixels, or one number for both",
            got=repr_of(size, 50),
        ) from None
    return height, width


def _checked_range(name: str, bounds: Any, maximum: float) -> tuple[float, float]:
    try:
        if isinstance(bounds, (str, bytes)):
            raise TypeError
        low, high = map(float, bounds)
    except (TypeError, ValueError, OverflowError):
        low, high = 0.0, 0.0
    expected = f"two ascending numbers in (0, {maximum:g}]"
    check(name, bounds, 0 < low <= high <= maximum, expected)
    return low, high


def _more_of(step: CropStep) -> str:
    features_text = "" if step.features is None else f", features={list(step.features)}"
    around_text = f", around={PRINCIPAL_POINT!r}" if step.needs_centers else ""
    return features_text + ("" if step.shared else ", shared=False") + around_text


def _checked_names(name: str, features: Any) -> tuple[str, ...] | None:
    if features is None:
        return None
    is_list = are_names(features) and not isinstance(features, str) and len(features) > 0
    return tuple(check(f"{name}: features", features, is_list, "a list of names"))
