"""Conversion of batches to LeRobot's form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

_CAMERAS = "observation.image"  # how LeRobot calls them


def to_lerobot(
    batch: Mapping[str, Any],
    *,
    cameras: Collection[str] | None = None,
    return_uint8: bool = False,
) -> dict[str, Any]:
    """Convert a batch of a LeRobot dataset's loader to the form of LeRobot's batches.

    Images, uint8 [batch, …, H, W, C], become float32 [batch, …, C, H, W] in [0, 1], or keep uint8
    with `return_uint8`. Other integers become int64, other floats float32. `start` becomes
    `frame_index`. If the loader has `windows`, `pad="edge"` and `squeeze_time=True`, the result
    equals LeRobot's batches for the same `delta_timestamps`, without `index` and `task_index`; but
    depth keeps its unit and shape.

    Args:
        batch: clips of a loader with `batch_size`, or of `seqrecord.collate`. NumPy arrays become
            tensors.
        cameras: names of image features. Default: all names with the prefix `observation.image`.
        return_uint8: keep images as uint8.

    Usage::

        pipe = seqrecord.SeqRecordPipe("lerobot/", clip_len=1, squeeze_time=True, batch_size=2)
        batch = seqrecord.lerobot.to_lerobot(next(iter(pipe)))
    """
    columns = {}
    for name, value in batch.items():
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if name in cameras if cameras is not None else name.startswith(_CAMERAS):
            value = channels_first(value, return_uint8=return_uint8)
        else:
            value = numbers(value)
        columns["frame_index" if name == "start" else name] = value
    return columns


def channels_first(images: Any, *, return_uint8: bool) -> Any:
    """Convert uint8 images [batch, …, H, W, C] to [batch, …, C, H, W], float32 in [0, 1] or uint8.

    Other values, such as masks and depth, are converted by `numbers`.
    """
    if not isinstance(images, torch.Tensor) or images.dtype != torch.uint8:
        return numbers(images)
    # NumPy, because torch's threads wait for each other, and one thread takes twice as long.
    pixels = np.ascontiguousarray(np.moveaxis(images.numpy(), -1, -3))
    return torch.from_numpy(pixels if return_uint8 else pixels / np.float32(255))


def numbers(value: Any) -> Any:
    """Convert to torch's default dtypes: int64, float32 or bool."""
    if not isinstance(value, torch.Tensor) or value.dtype == torch.bool:
        return value
    return value.to(torch.float32 if value.is_floating_point() else torch.int64)


def depth_in(unit: str, depth: torch.Tensor, stored_unit: str | bool | None) -> torch.Tensor:
    """Convert depth to a unit, float32, as LeRobot does.

    `stored_unit` is true for metres of a video, which become whole millimetres, and for images
    their unit, `None` if unknown.
    """
    if stored_unit is True:
        return depth if unit == "m" else (depth * 1000.0).round_().clamp_(0, 65535)
    depth = depth.to(torch.float32)
    if stored_unit in (None, unit):
        return depth
    return depth * 1000.0 if stored_unit == "m" else depth / 1000.0
