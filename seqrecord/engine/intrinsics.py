"""Changes of per-frame intrinsics with the windows of their camera."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.clips.transforms import CropWindows, FloatArray

_NUMBERS = 4  # fx, fy, cx, cy


@dataclass(frozen=True, eq=False)
class IntrinsicsChange:
    """From the intrinsics of stored frames to those of n clips' windows; float64[n, 2], x and y.

    A pixel at x is at `factor * x + offset` in the batch. The factor is negative if mirrored;
    focal lengths stay positive.
    """

    factor: FloatArray
    offset: FloatArray

    @classmethod
    def of(
        cls, windows: CropWindows | None, resized: CropWindows | None, count: int
    ) -> IntrinsicsChange:
        """Create from crops of frames that were `resized` before, for `count` clips."""
        zero, one = (np.tile([1.0, 1.0, at, at], (count, 1)) for at in (0.0, 1.0))
        for each in (resized, windows):
            if each is not None:
                zero, one = each.intrinsics(zero), each.intrinsics(one)
        return cls(one[:, 2:] - zero[:, 2:], zero[:, 2:])

    def view(self, clip: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The intrinsics of one clip, [frames, …], in their dtype."""
        one = slice(clip, clip + 1)
        columns = torch.from_numpy(self.factor[one]), torch.from_numpy(self.offset[one])
        whole = torch.from_numpy(np.ascontiguousarray(values)[None])
        return changed_intrinsics(whole, *columns)[0].numpy().astype(values.dtype)


def changed_intrinsics(
    values: torch.Tensor, factor: torch.Tensor, offset: torch.Tensor
) -> torch.Tensor:
    """The intrinsics in batches: float64 [clips, frames, 4] or [clips, frames, 3, 3].

    `values`, of the same shape, are those of stored frames; `factor` and `offset` as in
    `IntrinsicsChange`.
    """
    values, factor, offset = values.to(torch.float64), factor[:, None], offset[:, None]
    if values.shape[-1] == _NUMBERS:
        sizes, center = values[..., :2] * factor.abs(), values[..., 2:] * factor + offset
        return torch.cat((sizes, center), dim=-1)
    last = values[..., 2:, :]
    rows = values[..., :2, :] * factor[..., None] + last * offset[..., None]
    found = torch.cat((rows, last), dim=-2)
    found[..., 0] *= factor[..., :1].sign()  # of a mirrored scene
    return found + 0.0  # no negative zeros


def whole_windows(frame: tuple[int, int], size: tuple[int, int], count: int) -> CropWindows:
    """Windows of whole frames of this height and width, resized to `size`."""
    height, width = (np.full(count, side, np.int64) for side in frame)
    return replace(CropWindows.whole(height, width), size=size)
