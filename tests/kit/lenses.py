"""Pixels of points, by brute force: projected through a lens, and moved by crops and flips."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def project(scene: Array, numbers: Any, lens: Any, model: str, skew: float = 0.0) -> Array:
    """Pixels [n, 2] of points [n, 3], by the formulas of OpenCV's documentation."""
    x, y = scene[:, 0] / scene[:, 2], scene[:, 1] / scene[:, 2]
    k = [*map(float, lens), *[0.0] * 14]
    r2 = x * x + y * y
    if model in ("opencv_fisheye", "equidistant"):
        r = np.sqrt(r2)
        angle = np.arctan(r)
        scale = angle * (1 + sum(k[i] * angle ** (2 * i + 2) for i in range(4))) / r
        x, y = x * scale, y * scale
    else:
        scale = (1 + k[0] * r2 + k[1] * r2**2 + k[4] * r2**3) / (
            1 + k[5] * r2 + k[6] * r2**2 + k[7] * r2**3
        )
        x, y = (
            x * scale + 2 * k[2] * x * y + k[3] * (r2 + 2 * x * x) + k[8] * r2 + k[9] * r2**2,
            y * scale + k[2] * (r2 + 2 * y * y) + 2 * k[3] * x * y + k[10] * r2 + k[11] * r2**2,
        )
        (cos_x, cos_y), (sin_x, sin_y) = np.cos(k[12:14]), np.sin(k[12:14])
        about_x = np.array([[1, 0, 0], [0, cos_x, sin_x], [0, -sin_x, cos_x]])
        turn = np.array([[cos_y, 0, -sin_y], [0, 1, 0], [sin_y, 0, cos_y]]) @ about_x
        onto = np.array([[turn[2, 2], 0, -turn[0, 2]], [0, turn[2, 2], -turn[1, 2]], [0, 0, 1]])
        x, y, z = onto @ turn @ np.stack([x, y, np.ones_like(x)])
        x, y = x / z, y / z
    fx, fy, cx, cy = map(float, numbers)
    return np.stack([fx * x + skew * y + cx, fy * y + cy], axis=1)


def moved(pixels: Array, batch: dict[str, Any], clip: int) -> Array:
    """Pixels of the stored frame in a clip's window."""
    height, width = batch["image"].shape[2:4]
    top, left, high, wide = batch["crop"][clip].tolist()
    x = (pixels[:, 0] - left + 0.5) * width / wide - 0.5
    y = (pixels[:, 1] - top + 0.5) * height / high - 0.5
    return np.stack([width - 1 - x if batch["flipped"][clip] else x, y], axis=1)
