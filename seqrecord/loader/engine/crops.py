"""Crops clips while gathering: only the window is copied or resized.

Per-frame intrinsics follow the windows of their camera.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import ClipError
from seqrecord.loader.clips.transforms import (
    BatchResize,
    Camera,
    CropStep,
    HorizontalFlip,
    RandomResizedCrop,
    Resize,
)
from seqrecord.loader.engine.crop_features import crop_features
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.sampling.random_order import Purpose, hash64, key_of
from seqrecord.store.bfloat16 import BFLOAT16
from seqrecord.store.cameras.crop_windows import CropWindows, FloatArray
from seqrecord.store.codecs.resizing import nearest_pixels
from seqrecord.store.feature_kinds import is_flow, is_image, is_normals, known_kind
from seqrecord.store.tables.grids import IntArray

if TYPE_CHECKING:
    from typing_extensions import Self

_FEW_CHANNELS = 4  # NumPy is slow for items that are not 1, 2, 4 or 8 bytes
_RESIZING = Resize | RandomResizedCrop | BatchResize


DrawBatch: TypeAlias = Callable[[int], float]
"""Draws a number in [0, 1) for a batch, equal on all ranks, by the number of its purpose."""


@dataclass(frozen=True, eq=False)
class ClipCrops:
    """The steps of a `clip_transform` for the features of one camera; see `clips.transforms`.

    `frame` is (height, width), `None` if they vary. All frames of an episode have one size.
    """

    steps: tuple[CropStep, ...]
    features: frozenset[str]
    flows: frozenset[str]  # optical flow: the first two numbers are x and y
    smooth: frozenset[str]  # resized by interpolation
    frame: tuple[int | None, int | None]
    name: str | None = None  # of the camera, if there are several
    disparities: frozenset[str] = frozenset()  # values scale with the width
    normals: frozenset[str] = frozenset()  # the first number is x
    note: str | None = None  # on features chosen by their size alone

    @classmethod
    def of(
        cls,
        camera: Camera,
        arrays: Mapping[str, ArraySpec],
        kinds: Mapping[str, str | None],
    ) -> ClipCrops:
        """Build the crops for features with these shapes and kinds.

        Raises `ClipError` as `crop_features`, for a crop larger than the frame, and for a flip or a
        resize of vectors coded as integers.
        """
        selection = crop_features(camera.features, arrays, kinds)
        features, kind = selection.names, kinds.get
        kind_of = {name: known_kind(name, arrays[name], kind(name)) for name in features}
        for name in features:
            _check_coded(name, arrays[name], kind_of[name], camera.steps)
        crops = cls(
            camera.steps,
            frozenset(features),
            frozenset(name for name in features if is_flow(name, arrays[name], kind_of[name])),
            frozenset(name for name in features if is_image(arrays[name], kind_of[name])),
            selection.frame,
            camera.features[0] if camera.is_named and camera.features else None,
            frozenset(name for name in features if kind_of[name] == "disparity"),
            frozenset(name for name in features if is_normals(arrays[name], kind_of[name])),
            selection.note,
        )
        crops.size  # noqa: B018 - raises errors early
        return crops

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in batches."""
        height, width = self.frame
        for step in self.steps:
            height, width = step.size(height, width)
        if height is None or width is None:
            raise ClipError(
                "clip_transform: height and width of the result vary",
                feature=min(self.features),
                expected="a crop or Resize to a fixed size",
                got=", ".join(map(repr, self.steps)),
            )
        return height, width

    @property
    def needs_centers(self) -> bool:
        """Whether windows need principal points."""
        return any(step.needs_centers for step in self.steps)

    @property
    def per_batch(self) -> bool:
        """Whether batches differ in size."""
        return any(step.per_batch for step in self.steps)

    def size_in(self, draw_batch: DrawBatch) -> tuple[int, int]:
        """Height and width in the batch with these draws."""
        height, width = self.frame
        for step, number, own_key in self._purposes():
            draw = (
                draw_batch(key_of(Purpose.CROPS_OF_BATCH, *number, *own_key))
                if step.per_batch
                else 0.0
            )
            height, width = step.size_of(height, width, draw)
        assert height is not None
        assert width is not None
        return height, width

    def _purposes(self) -> Iterator[tuple[CropStep, tuple[int, int], tuple[int, ...]]]:
        """The steps, and numbers for the draws of each: of the step, and of this camera unless it
        shares the draws.
        """
        seen: Counter[tuple[str, bool]] = Counter()
        for step in self.steps:
            own_key = () if step.shared or self.name is None else (_number_of(self.name),)
            yield step, (_number_of(step.purpose), seen[step.purpose, step.shared]), own_key
            seen[step.purpose, step.shared] += 1

    def specs(self, arrays: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
        """Specs of the features in batches."""
        return {
            name: replace(spec, shape=(*self.size, *spec.shape[2:]), max_nbytes=None)
            if name in self.features
            else spec
            for name, spec in arrays.items()
        }

    def windows(
        self,
        seed: int,
        epoch: int,
        clips: IntArray,
        frames: IntArray | None = None,
        draw_batch: DrawBatch | None = None,
        centers: FloatArray | None = None,
    ) -> CropWindows:
        """Windows of clips. `clips`, int64[n], identifies them in all epochs.

        The draws of a step depend on its purpose and its index among the steps of it with the
        same `shared`. Cameras share draws whatever their other steps are. `frames`, int64[n, 2],
        are heights and widths, if these vary. `draw_batch` makes the draws of the clips' batch.
        `centers`, float64[n, 2], are principal points, if `needs_centers`.
        """
        if frames is None:
            frames = np.broadcast_to(np.array(self.frame, np.int64), (len(clips), 2))
        windows = replace(CropWindows.whole(*frames.T), centers=centers)
        for step, number, own_key in self._purposes():
            if step.per_batch:
                draw = (
                    0.0
                    if draw_batch is None
                    else draw_batch(key_of(Purpose.CROPS_OF_BATCH, *number, *own_key))
                )
                windows = step.apply(windows, np.full((1, len(clips)), draw))
                continue
            draws = [
                hash64(key_of(Purpose.CROPS, seed, epoch, *number, i, *own_key), clips)
                >> np.uint64(11)
                for i in range(step.num_draws)
            ]
            windows = step.apply(windows, np.array(draws, np.float64) * 2.0**-53)
        return windows


class Place(NamedTuple):
    """Window of a clip in its frames, and its change on the way to the batch."""

    top: int
    left: int
    height: int
    width: int
    flipped: bool
    size: tuple[int, int] | None  # (height, width) after resizing
    is_smooth: bool  # resized by interpolation
    flow: tuple[float, float] = (1.0, 1.0)  # factors of x and y
    disparity: float = 1.0  # factor of all values

    def scaled(self, out: Any) -> Iterator[tuple[Any, float]]:
        """Yield views of `out` [frames, …], an array or a tensor, with factors of values."""
        if self.disparity != 1:
            yield out, self.disparity
        for axis, factor in enumerate(self.flow):
            if factor != 1:
                yield out[..., axis], factor

    @property
    def pixels(self) -> tuple[slice, slice, slice]:
        """Index of the window in frames [n, height, width, …]."""
        height = slice(self.top, self.top + self.height)
        return slice(None), height, slice(self.left, self.left + self.width)


@dataclass(frozen=True, eq=False)
class Crop:
    """Windows of clips by feature, and changes of intrinsics, distortion and points.

    `partners` are features that are exchanged in flipped clips.
    """

    parts: Mapping[str, tuple[ClipCrops, CropWindows]]
    changes: Mapping[str, ValuesChange] = field(default_factory=dict)
    partners: Mapping[str, str] = field(default_factory=dict)

    @property
    def features(self) -> Set[str]:
        return self.parts.keys() | self.changes.keys()

    def take(self, clips: IntArray) -> Crop:
        """The windows and changes of some clips, int64[n]."""
        parts = {
            name: (crops, windows.take(clips)) for name, (crops, windows) in self.parts.items()
        }
        changes = {name: change.take(clips) for name, change in self.changes.items()}
        return Crop(parts, changes, self.partners)

    def target(self, name: str, clip: int) -> str:
        """The feature of the batch that a feature of clip number `clip` becomes."""
        if name not in self.partners or not self.parts[name][1].flipped[clip]:
            return name
        return self.partners[name]

    def place(self, name: str, clip: int) -> Place:
        """Place of a feature in clip number `clip`.

        A feature that becomes its partner has the partner's window, which columns describe.
        """
        crops, windows = self.parts[name][0], self.parts[self.target(name, clip)][1]
        columns = (windows.top, windows.left, windows.height, windows.width)
        top, left, height, width = (int(column[clip]) for column in columns)
        flipped = bool(windows.flipped[clip])
        place = Place(top, left, height, width, flipped, windows.size, name in crops.smooth)
        if name in crops.normals:
            return place._replace(flow=(-1.0 if flipped else 1.0, 1.0))
        if name not in crops.flows and name not in crops.disparities:
            return place
        along_x, along_y = (float(scale[clip]) for scale in windows.scale)
        if name in crops.disparities:
            return place._replace(disparity=along_x)
        return place._replace(flow=(-along_x if flipped else along_x, along_y))

    def copy(self, name: str, clip: int, array: Any, rows: IntArray, out: npt.NDArray[Any]) -> None:
        """Copy the windows of clip number `clip` from `rows` of `array` to `out` [frames, …].

        `array` is an array or `VariableRows`. Frames are resized one by one.
        """
        if name in self.changes:
            out[...] = self.changes[name].view(clip, array[rows])
            return
        place = self.place(name, clip)
        if place.size is None and isinstance(array, np.ndarray):
            for target, source in runs(rows):
                corner = place.top, place.left
                copy_window(array[source], out[target], corner, flipped=place.flipped)
        else:
            for target, row in zip(out, rows.tolist(), strict=True):
                seen = _resized(array[row][None][place.pixels][0], place)
                copy_window(seen[None], target[None], (0, 0), flipped=place.flipped)
        for numbers, factor in place.scaled(out):
            if out.dtype.kind == "f":
                scaled = numbers * out.dtype.type(factor)
            else:
                limits = np.iinfo(out.dtype)
                scaled = np.rint(numbers * factor).clip(limits.min, limits.max)
            np.copyto(numbers, scaled, "unsafe")

    def change_lists(self, name: str, frames: list[Any], clips: Sequence[int]) -> list[Any]:
        """Change these clips' variable-shape frames, one clip after the other.

        Features without a change are returned as they are.
        """
        if (change := self.changes.get(name)) is None:
            return frames
        length = len(frames) // len(clips)
        return [change.view(clips[i // length], frame[None])[0] for i, frame in enumerate(frames)]

    def view(self, name: str, clip: int, array: Any, rows: IntArray) -> npt.NDArray[Any]:
        """The windows that `copy` copies, [frames, …].

        A view, unless they are flipped, resized or scattered.
        """
        if name in self.changes:
            return self.changes[name].view(clip, array[rows])
        place = self.place(name, clip)
        if not place.flipped and place.size is None and isinstance(array, np.ndarray):
            return frames_in(array[place.pixels], rows)
        size = place.size or (place.height, place.width)
        frame = array[int(rows[0])]
        out = np.empty((len(rows), *size, *frame.shape[2:]), frame.dtype)
        self.copy(name, clip, array, rows, out)
        return out


def _resized(window: npt.NDArray[Any], place: Place) -> npt.NDArray[Any]:
    """Resize a window [height, width, …]."""
    if place.size is None:
        return window
    if not place.is_smooth:
        height, width = nearest(place)
        return window[height[:, None], width]
    # Contiguous: torch then starts no threads for uint8.
    whole = torch.from_numpy(np.ascontiguousarray(window)[None])
    return interpolated(whole, place.size)[0].numpy()


def nearest(place: Place) -> tuple[IntArray, IntArray]:
    """Nearest rows and columns of a window for each output pixel."""
    height, width = place.size or (place.height, place.width)
    return nearest_pixels(place.height, height), nearest_pixels(place.width, width)


def interpolated(frames: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Resize frames [n, height, width, …] linearly, antialiased when they shrink.

    Keeps the dtype.
    """
    planes = frames.reshape(*frames.shape[:3], -1).permute(0, 3, 1, 2)
    if frames.dtype != torch.uint8 or frames.device.type != "cpu":
        is_exact = frames.element_size() <= 2 or frames.dtype == torch.float32
        planes = planes.to(torch.float32 if is_exact else torch.float64)
    scaled = torch.nn.functional.interpolate(planes, size, mode="bilinear", antialias=True)
    if not frames.is_floating_point() and scaled.is_floating_point():
        scaled = scaled.round()
    scaled = scaled.permute(0, 2, 3, 1).to(frames.dtype)
    return scaled.reshape(len(frames), *size, *frames.shape[3:])


def frames_in(array: npt.NDArray[Any], rows: IntArray) -> npt.NDArray[Any]:
    """Frames in rows, [n, …]: a view if the rows ascend evenly, else a copy.

    Never a view with negative strides: torch does not support them.
    """
    pieces = runs(rows)
    if len(pieces) == 1 and (pieces[0][1].step or 1) > 0:
        return array[pieces[0][1]]
    return array[rows]


def copy_window(
    frames: npt.NDArray[Any], out: npt.NDArray[Any], corner: tuple[int, int], *, flipped: bool
) -> None:
    """Copy the window at `corner` (top, left) of `frames` [n, H, W, …] to `out` [n, h, w, …]."""
    top, left = corner
    height, width = out.shape[1:3]
    window = frames[:, top : top + height, left : left + width]
    if not flipped:
        np.copyto(out, window)
        return
    window, out = _pixels(window), _pixels(out)
    if window.ndim == 3:
        np.copyto(out, window[:, :, ::-1])
        return
    for channel in range(window.shape[3]):
        np.copyto(out[..., channel], window[:, :, ::-1, channel])


def _pixels(frames: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Reinterpret frames [n, H, W, …] for a fast mirrored copy.

    [n, H, W] if a pixel is one integer or is large, else [n, H, W, channels].
    """
    nbytes = math.prod(frames.shape[3:]) * frames.itemsize
    if frames.ndim == 3:
        return frames
    channels = frames.reshape(*frames.shape[:3], -1)
    if nbytes in (2, 4, 8):
        return channels.view(f"u{nbytes}")[..., 0]
    return channels if channels.shape[3] <= _FEW_CHANNELS else channels.view(f"V{nbytes}")[..., 0]


def runs(rows: IntArray) -> list[tuple[slice, slice]]:
    """Split rows into evenly spaced slices, also descending: positions in `rows`, and the rows."""
    if len(rows) == 1:
        return [(slice(0, 1), slice(int(rows[0]), int(rows[0]) + 1))]
    steps = np.diff(rows)
    pieces: list[tuple[slice, slice]] = []
    begin = 0
    for end in [*(np.flatnonzero(steps != steps[0]) + 1).tolist(), len(rows)]:
        if begin == end:
            continue
        low, high = int(rows[begin]), int(rows[end - 1])
        step = int(steps[begin]) if end - begin > 1 else 1
        if step == 0:
            singles = [slice(row, row + 1) for row in rows[begin:end].tolist()]
            pieces += [(slice(begin + i, begin + i + 1), piece) for i, piece in enumerate(singles)]
        elif step > 0:
            pieces.append((slice(begin, end), slice(low, high + 1, step)))
        else:
            pieces.append((slice(begin, end), slice(low, high - 1 if high else None, step)))
        begin = end
    return pieces


_CHANGING = ("image", "flow", "normals", "disparity")
"""Kinds whose values a flip or a resize changes."""


def _check_coded(name: str, spec: ArraySpec, kind: str | None, steps: tuple[CropStep, ...]) -> None:
    """Raise `ClipError` for a flip or resize of vectors coded as integers, whose encoding is
    unknown, and of numbers in bfloat16 that it would change.
    """
    is_coded = (kind == "normals" and spec.dtype.kind != "f") or (
        kind == "flow" and spec.dtype.kind in "ub"
    )
    flips = any(isinstance(step, HorizontalFlip) and step.p for step in steps)
    is_resized = any(isinstance(step, _RESIZING) for step in steps)
    resizes = kind == "flow" and is_resized
    # NumPy and torch interpolate no bfloat16 on the CPU, and its 8 bits would round the results.
    if spec.dtype == BFLOAT16 and kind in _CHANGING and (flips or is_resized):
        raise ClipError(
            f"{'HorizontalFlip' if flips else 'Resize'} of {kind} in bfloat16",
            feature=name,
            expected=f"float32 {kind}, for example from a frame_transform; or steps with features= "
            "without it",
            got=str(spec),
        )
    if is_coded and (flips or resizes):
        raise ClipError(
            f"{'HorizontalFlip' if flips else 'Resize'} of {kind} coded as integers",
            feature=name,
            expected=f"float {kind}, for example from a frame_transform; steps with features= "
            f"without it; or another kind: `seqrecord edit describe PATH --kind {name}=image`",
            got=str(spec.dtype),
        )


def unknown_size(start: int, **place: str) -> ClipError:
    """The error for the clip at a frame with an unknown image, if sizes vary between episodes."""
    return ClipError(
        "a frame without a value has no size, and a crop of images of several sizes needs one",
        **place,  # type: ignore[arg-type]
        expected='Latest or Next without unknown="zeros", which skip such clips; or resize=, for '
        "images of one size",
        got=f"no value in the clip that starts at frame {start}",
    )


@lru_cache(maxsize=256)
def _number_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "little")


_NUMBERS = 4  # fx, fy, cx, cy


@dataclass(frozen=True, eq=False)
class ValuesChange(ABC):
    """Base class for changes to numbers of a window: `factor` and `offset` of n clips.

    Each is float64[n, numbers].
    """

    factor: FloatArray
    offset: FloatArray

    @staticmethod
    @abstractmethod
    def apply(values: torch.Tensor, factor: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        """Numbers in batches, float64, from numbers of stored frames, [clips, frames, …]."""

    def take(self, clips: IntArray | slice) -> Self:
        """The changes of some clips."""
        return replace(self, factor=self.factor[clips], offset=self.offset[clips])

    def view(self, clip: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The numbers of one clip, [frames, …], in their dtype."""
        numbers: npt.NDArray[Any] = self.take(slice(clip, clip + 1)).view_all(values[None])[0]
        return numbers

    def view_all(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The numbers of all clips, [clips, frames, …], in their dtype."""
        columns = torch.from_numpy(self.factor), torch.from_numpy(self.offset)
        numbers = torch.from_numpy(np.ascontiguousarray(values))
        return self.apply(numbers, *columns).numpy().astype(values.dtype)


@dataclass(frozen=True, eq=False)
class DistortionChange(ValuesChange):
    """Changes the distortion coefficients of stored frames for mirrored frames."""

    @staticmethod
    def apply(values: torch.Tensor, factor: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        return values.to(torch.float64) * factor[:, None] + offset[:, None]  # no negative zeros


@dataclass(frozen=True, eq=False)
class IntrinsicsChange(ValuesChange):
    """Changes stored intrinsics to intrinsics of n clips' windows; float64[n, 2], x and y.

    A pixel at x is at `factor * x + offset` in the batch. The factor is negative if mirrored;
    focal lengths are positive.
    """

    @classmethod
    def of(
        cls, windows: CropWindows | None, resized: CropWindows | None, count: int
    ) -> IntrinsicsChange:
        """Create from crops of frames that were `resized` before, for `count` clips."""
        zero, at_one = (np.tile([1.0, 1.0, at, at], (count, 1)) for at in (0.0, 1.0))
        for change in (resized, windows):
            if change is not None:
                zero, at_one = change.intrinsics(zero), change.intrinsics(at_one)
        return cls(at_one[:, 2:] - zero[:, 2:], zero[:, 2:])

    @staticmethod
    def apply(values: torch.Tensor, factor: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        values, factor, offset = values.to(torch.float64), factor[:, None], offset[:, None]
        if values.shape[-1] == _NUMBERS:
            sizes, center = values[..., :2] * factor.abs(), values[..., 2:] * factor + offset
            return torch.cat((sizes, center), dim=-1)
        bottom_row = values[..., 2:, :]
        rows = values[..., :2, :] * factor[..., None] + bottom_row * offset[..., None]
        changed = torch.cat((rows, bottom_row), dim=-2)
        changed[..., 0] *= factor[..., :1].sign()  # of a mirrored scene
        return changed + 0.0  # no negative zeros


def whole_windows(frame: tuple[int, int], size: tuple[int, int], count: int) -> CropWindows:
    """Windows of whole frames with this height and width, resized to `size`."""
    height, width = (np.full(count, side, np.int64) for side in frame)
    return replace(CropWindows.whole(height, width), size=size)
