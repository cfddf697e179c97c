"""Crops at the gather: of the frames of a clip, only the window that is asked for is copied."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clips.transforms import CropStep, CropWindows
from seqrecord.errors import ClipError
from seqrecord.reading.frames import ArraySpec
from seqrecord.sampling.random_order import hash64, key_of

__all__ = ["ClipCrops", "Crop", "copy_window", "frames_in", "runs"]

_FEW_CHANNELS = 4  # NumPy copies items of other than 1, 2, 4 or 8 bytes slowly
_SALT = 0x63726F70  # the draws are not those of the order


@dataclass(frozen=True, eq=False)
class ClipCrops:
    """The steps of a `clip_transform` for features of known shapes; see `clip_transforms`."""

    steps: tuple[CropStep, ...]
    features: frozenset[str]
    flows: frozenset[str]  # of these: optical flows, whose first number is along x
    frame: tuple[int, int]  # height and width

    @classmethod
    def of(
        cls,
        steps: tuple[CropStep, ...],
        arrays: Mapping[str, ArraySpec],
        kinds: Mapping[str, str | None],
    ) -> ClipCrops:
        """For features of these shapes and kinds.

        Raises `ClipError` for features that have no height and width, or different ones, and for a
        crop larger than the frame.
        """
        features = steps[0].features
        if features is None:
            images = [n for n, s in arrays.items() if s.is_fixed and len(s.shape) >= 2]
            largest = max((arrays[n].shape[:2] for n in images), key=_area, default=())
            features = tuple(n for n in images if arrays[n].shape[:2] == largest)
        if unknown := [name for name in features if name not in arrays]:
            raise ClipError(
                "clip_transform is for a feature that is not read",
                expected=", ".join(arrays),
                got=", ".join(unknown),
            )
        specs = [arrays[name] for name in features]
        sizes = {spec.shape[:2] for spec in specs}
        if len(sizes) != 1 or not all(spec.is_fixed and len(spec.shape) >= 2 for spec in specs):
            raise ClipError(
                "clip_transform is for features with a height and a width, the same for all",
                expected="frames [height, width, …]",
                got=", ".join(f"{name}: {arrays[name]}" for name in features) or "none such",
            )
        ((height, width),) = sizes
        assert height is not None
        assert width is not None
        flows = frozenset(
            name for name in features if _is_flow(name, arrays[name], kinds.get(name))
        )
        crops = cls(steps, frozenset(features), flows, (height, width))
        crops.size  # noqa: B018 - an error is better here and now
        return crops

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the windows."""
        size = self.frame
        for step in self.steps:
            size = step.size(*size)
        return size

    def specs(self, arrays: Mapping[str, ArraySpec]) -> dict[str, ArraySpec]:
        """What the features of a frame look like in a batch."""
        return {
            name: replace(spec, shape=(*self.size, *spec.shape[2:]))
            if name in self.features
            else spec
            for name, spec in arrays.items()
        }

    def windows(self, seed: int, epoch: int, clips: npt.NDArray[np.int64]) -> CropWindows:
        """The windows of clips; int64[n] tells them apart, and is the same in every epoch."""
        windows = CropWindows.whole(len(clips), *self.frame)
        for number, step in enumerate(self.steps):
            draws = [
                hash64(key_of(_SALT, seed, epoch, number, i), clips) >> np.uint64(11)
                for i in range(step.num_draws)
            ]
            windows = step.apply(windows, np.array(draws, np.float64) * 2.0**-53)
        return windows


@dataclass(frozen=True, eq=False)
class Crop:
    """The windows of some clips, and the features that have them."""

    crops: ClipCrops
    windows: CropWindows

    @property
    def features(self) -> frozenset[str]:
        return self.crops.features

    def place(self, clip: int) -> tuple[tuple[int, int], bool]:
        """Top and left of clip number `clip`, and whether it is flipped."""
        windows = self.windows
        return (int(windows.top[clip]), int(windows.left[clip])), bool(windows.flipped[clip])

    def copy(
        self,
        name: str,
        clip: int,
        array: npt.NDArray[Any],
        rows: npt.NDArray[np.int64],
        out: npt.NDArray[Any],
    ) -> None:
        """Copy clip number `clip`: of these rows of `array` the windows, into `out` [frames, …]."""
        corner, flipped = self.place(clip)
        for target, source in runs(rows):
            copy_window(array[source], out[target], corner, flipped=flipped)
        if flipped and name in self.crops.flows:
            np.negative(out[..., 0], out=out[..., 0])

    def view(
        self, name: str, clip: int, array: npt.NDArray[Any], rows: npt.NDArray[np.int64]
    ) -> npt.NDArray[Any]:
        """What `copy` copies, [frames, …]: a view, unless it is flipped or its rows lie apart."""
        (top, left), flipped = self.place(clip)
        height, width = self.windows.height, self.windows.width
        if not flipped:
            window = array[:, top : top + height, left : left + width]
            return frames_in(window, rows)
        out = np.empty((len(rows), height, width, *array.shape[3:]), array.dtype)
        self.copy(name, clip, array, rows, out)
        return out


def frames_in(array: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """The frames in these rows, [n, …]: a view where the rows ascend evenly, else a copy.

    Not a view in reverse, which torch does not take.
    """
    found = runs(rows)
    if len(found) == 1 and (found[0][1].step or 1) > 0:
        return array[found[0][1]]
    return array[rows]


def copy_window(
    frames: npt.NDArray[Any], out: npt.NDArray[Any], corner: tuple[int, int], *, flipped: bool
) -> None:
    """Copy of `frames` [n, H, W, …] the window at (top, left) into `out` [n, h, w, …]."""
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
    """Frames [n, H, W, …] on the same memory, so that pixels in reverse are copied fast.

    That is [n, H, W], where a pixel is one integer or is large, else [n, H, W, channels].
    """
    nbytes = math.prod(frames.shape[3:]) * frames.itemsize
    if frames.ndim == 3:
        return frames
    channels = frames.reshape(*frames.shape[:3], -1)
    if nbytes in (2, 4, 8):
        return channels.view(f"u{nbytes}")[..., 0]
    return channels if channels.shape[3] <= _FEW_CHANNELS else channels.view(f"V{nbytes}")[..., 0]


def runs(rows: npt.NDArray[np.int64]) -> list[tuple[slice, slice]]:
    """Evenly spaced rows as slices, maybe in reverse: where they come in `rows`, and which they
    are."""
    if len(rows) == 1:
        return [(slice(0, 1), slice(int(rows[0]), int(rows[0]) + 1))]
    steps = np.diff(rows)
    found: list[tuple[slice, slice]] = []
    begin = 0
    for end in [*(np.flatnonzero(steps != steps[0]) + 1).tolist(), len(rows)]:
        if begin == end:
            continue
        first, last = int(rows[begin]), int(rows[end - 1])
        step = int(steps[begin]) if end - begin > 1 else 1
        if step == 0:
            singles = [slice(row, row + 1) for row in rows[begin:end].tolist()]
            found += [(slice(begin + i, begin + i + 1), one) for i, one in enumerate(singles)]
        elif step > 0:
            found.append((slice(begin, end), slice(first, last + 1, step)))
        else:
            found.append((slice(begin, end), slice(first, last - 1 if last else None, step)))
        begin = end
    return found


def _area(shape: Any) -> int:
    return math.prod(shape)


def _is_flow(name: str, spec: ArraySpec, kind: str | None) -> bool:
    if kind is not None and kind != "flow":
        return False
    is_flow = kind == "flow" or "flow" in name.lower()
    if not is_flow or len(spec.shape) != 3 or spec.shape[2] is None or spec.shape[2] < 2:
        return False
    return spec.dtype.kind in "fi"
