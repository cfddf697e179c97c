"""Moving pictures for video tests, also as encoded GOPs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seqrecord.sources import Gop
from seqrecord.video.config import VideoConfig, named_video
from seqrecord.video.encoding import encode_gop

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


def config_of(name: str, size: tuple[int, int] = (HEIGHT, WIDTH)) -> VideoConfig:
    """The codec configuration of `--codec image=NAME`."""
    chain = named_video(name, np.dtype(np.uint8), (*size, 3))
    assert chain is not None
    return VideoConfig.from_json(chain[0])


def gops_of(name: str, frames: npt.NDArray[np.uint8], length: int) -> list[Gop]:
    """Encode frames [n, height, width, 3] as GOPs of `length` frames; the last may be shorter."""
    config = config_of(name, frames.shape[1:3])
    return [encode_gop(config, frames[i : i + length]) for i in range(0, len(frames), length)]
