"""Windows of images that are cropped, flipped and resized, and their intrinsics."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.store.tables.grids import IntArray

FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CropWindows:
    """Windows of clips: rows `[top, top + height)`, columns `[left, left + width)`.

    Each is int64[clips]. Coordinates are pixels of the whole frame. `flipped`, bool[clips], mirrors
    a window from left to right. `size` is (height, width) after resizing, or `None`. `centers` are
    the principal points x and y of the whole frames, float64[clips, 2], if a step needs them.
    """

    top: IntArray
    left: IntArray
    height: IntArray
    width: IntArray
    flipped: npt.NDArray[np.bool_]
    size: tuple[int, int] | None = None
    centers: FloatArray | None = None

    @classmethod
    def whole(cls, height: IntArray, width: IntArray) -> CropWindows:
        """Windows of whole frames; int64[clips] each."""
        zero = np.zeros(len(height), np.int64)
        return cls(zero, zero, height, width, np.zeros(len(height), np.bool_))

    def __len__(self) -> int:
        return len(self.top)

    def take(self, clips: IntArray) -> CropWindows:
        """The windows of some clips, int64[n]."""
        edges = self.top[clips], self.left[clips], self.height[clips], self.width[clips]
        centers = None if self.centers is None else self.centers[clips]
        return CropWindows(*edges, self.flipped[clips], self.size, centers)

    def crop(self, top: IntArray, left: IntArray, height: IntArray, width: IntArray) -> CropWindows:
        """Crop the windows. In a flipped window, `left` counts from its right edge."""
        left = np.where(self.flipped, self.width - width - left, left)
        top, left = self.top + top, self.left + left
        return replace(self, top=top, left=left, height=height, width=width)

    def around_centers(self, size: tuple[int, int], *, grow: bool) -> CropWindows:
        """The part of each window with its principal point in the middle.

        Of `size` = (height, width), or with `grow` the largest with at least this size. If it
        does not fit, its middle is as near as the window allows.
        """
        assert self.centers is not None, "principal points"
        x, y = self.centers.T + 0.5  # from pixel edges
        x, y = x - self.left, y - self.top
        top, height = _around(y, self.height, size[0], grow=grow)
        left, width = _around(x, self.width, size[1], grow=grow)
        left = np.where(self.flipped, self.width - width - left, left)  # as `crop` counts
        return self.crop(top, left, height, width)

    def flip(self, clips: npt.NDArray[np.bool_]) -> CropWindows:
        """Flip the windows of a mask, bool[clips]."""
        return replace(self, flipped=self.flipped ^ clips)

    @property
    def crops(self) -> IntArray:
        """Top, left, height and width, int64[clips, 4]."""
        return np.stack((self.top, self.left, self.height, self.width), axis=1)

    @property
    def scale(self) -> tuple[FloatArray, FloatArray]:
        """Scale factors from window to output along x and y, float64[clips] each."""
        height, width = self.size or (self.height, self.width)
        return width / self.width, height / self.height

    def intrinsics(self, camera: FloatArray) -> FloatArray:
        """Convert intrinsics fx, fy, cx, cy from the frame to the output; float64[clips, 4] each.

        The center of the pixel in row 0, column 0 is at (0, 0), as in OpenCV.
        """
        (fx, fy, cx, cy), (along_x, along_y) = camera.T, self.scale
        cx, cy = cx - self.left, cy - self.top
        if self.size is not None:  # pixel edges are half a pixel before the centers
            cx, cy = (cx + 0.5) * along_x - 0.5, (cy + 0.5) * along_y - 0.5
        width = self.width if self.size is None else self.size[1]
        cx = np.where(self.flipped, width - 1 - cx, cx)
        return np.stack((fx * along_x, fy * along_y, cx, cy), axis=1)


def _around(
    middle: FloatArray, side: IntArray, least: int, *, grow: bool
) -> tuple[IntArray, IntArray]:
    """Start and length of intervals around `middle` inside [0, side], see `around_centers`."""
    length = np.full(len(side), least, np.int64)
    if grow:
        half = np.minimum(middle, side - middle)
        length = np.maximum(length, np.floor(2 * half).astype(np.int64))
    start = np.floor(middle - length / 2 + 0.5).astype(np.int64)
    return np.clip(start, 0, side - length), length
