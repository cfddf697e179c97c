"""GOPs of moving pictures, encoded and decoded by the package."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord import FeatureSpec
from seqrecord.sources import Gop
from seqrecord.video.config import VideoConfig, named_video
from seqrecord.video.decoding import decode_gop
from seqrecord.video.encoding import encode_gop
from seqrecord.video.gops import DecodedFrame
from tests.kit.video_data import HEIGHT, WIDTH


def config_of(name: str, size: tuple[int, int] = (HEIGHT, WIDTH)) -> VideoConfig:
    """The codec configuration of `--codec image=NAME`."""
    chain = named_video(name, np.dtype(np.uint8), (*size, 3))
    assert chain is not None
    return VideoConfig.from_json(chain[0])


def gops_of(name: str, frames: npt.NDArray[np.uint8], length: int) -> list[Gop]:
    """Encode frames [n, height, width, 3] as GOPs of `length` frames; the last may be shorter."""
    config = config_of(name, frames.shape[1:3])
    return [encode_gop(config, frames[i : i + length]) for i in range(0, len(frames), length)]


def decode_gops_of(spec: FeatureSpec, parts: Iterable[Gop | DecodedFrame]) -> npt.NDArray[Any]:
    """Frames of a feature's GOPs, decoded one by one: [T, H, W, 3], or [T, H, W] of deep grey."""
    height, width = (n or 0 for n in spec.shape[:2])
    config = VideoConfig.from_json(spec.codec[0])
    frames = [
        (config.depth.decode(part.pixels) if config.depth else part.pixels)[None]
        if isinstance(part, DecodedFrame)
        else decode_gop(part.config or config, height, width, part)
        for part in parts
    ]
    return np.concatenate([np.empty((0, *config.shape(height, width)), config.dtype), *frames])
