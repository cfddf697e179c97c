"""Conversion of values to LeRobot's form."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


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
