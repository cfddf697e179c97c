"""Moving pictures for video tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

HEIGHT, WIDTH = 96, 112


def moving(
    count: int, *, seed: int = 0, size: tuple[int, int] = (HEIGHT, WIDTH)
) -> npt.NDArray[np.uint8]:
    """Frames [count, height, width, 3] of coloured squares that move: no two are equal."""
    height, width = size
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (height // 8 + 34, width // 8 + 34, 3), np.uint8)
    picture = blocks.repeat(8, axis=0).repeat(8, axis=1)
    places = [(3 * i % 256, 5 * i % 256) for i in range(count)]
    return np.stack([picture[y : y + height, x : x + width] for y, x in places])
