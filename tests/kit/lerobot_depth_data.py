"""LeRobot datasets with depth video: written by lerobot, and made here in the same layout.

tests/golden/sources/lerobot_depth.zip was written and read by lerobot 0.6.1. It has two datasets,
one with a logarithmic and one with a linear scale, and `frames.npz`, lerobot's depth in metres of
every row. lerobot_depth_images.zip has depth as TIFF images, uint16 and float32, and the depth of
every row in both units. `tests.golden.make_lerobot` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.kit.lerobot_data import FPS, write_dataset
from tests.kit.lerobot_video_data import declare_video

IMAGE = "observation.images.depth"
DEPTH = ("observation.images.log", "observation.images.linear")
LENGTHS = (4, 6)
_HEIGHT, _WIDTH = 32, 48
INFO: Mapping[str, Any] = {
    "is_depth_map": True,
    "video.pix_fmt": "gray12le",
    "video.depth_min": 0.01,
    "video.depth_max": 10.0,
    "video.shift": 3.5,
    "video.use_log": True,
}
"""Metadata of a feature with lerobot's defaults."""


def codes_of(count: int, seed: int = 0) -> npt.NDArray[np.uint16]:
    """uint16 [count, 48, 64]: all codes of 12 bits; all frames differ."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 4096, (count, 48, 64), np.uint16)
    codes[0].reshape(-1)[:] = np.arange(48 * 64) * 4095 // (48 * 64 - 1)
    return codes


def with_depth(
    root: Path,
    codes: npt.NDArray[np.uint16],
    lengths: Sequence[int],
    name: str = DEPTH[0],
    *,
    info: Mapping[str, Any] = INFO,
    codec: str = "libx265",
    options: Mapping[str, str] | None = None,
    pixels: str = "gray12le",
) -> None:
    """Add a video of codes, uint16 [T, H, W], to a v3.0 dataset of tests/kit/lerobot_data.py."""
    import av

    shape = [*codes.shape[1:], 1]
    [path] = declare_video(root, lengths, name, shape, info=dict(info))
    quiet = {"x265-params": "log-level=none:pools=none:frame-threads=1:lossless=1"}
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream(codec, rate=FPS, options=dict(options or quiet))
        stream.height, stream.width = codes.shape[1:]
        stream.pix_fmt = pixels
        stream.codec_context.thread_count = 1
        for i, each in enumerate(codes):
            frame = av.VideoFrame.from_ndarray(each, format="gray12le")
            frame.pts, frame.time_base = i, Fraction(1, FPS)
            file.mux(stream.encode(frame.reformat(format=pixels)))
        file.mux(stream.encode())


def write(root: Path, lengths: Sequence[int] = LENGTHS) -> list[Path]:
    """Write the datasets of `DEPTH`, `log` and `linear`, by lerobot; returns their folders."""
    from lerobot.configs.video import DepthEncoderConfig

    shape = (_HEIGHT, _WIDTH, 1)
    names = ["height", "width", "channels"]
    y, x = np.mgrid[:_HEIGHT, :_WIDTH]
    places = [root / name.rpartition(".")[2] for name in DEPTH]
    for place, name, use_log in zip(places, DEPTH, (True, False), strict=True):
        info = {"is_depth_map": True}
        feature = {"dtype": "video", "shape": shape, "names": names, "info": info}
        # With B-frames, lerobot 0.6.1 misses the first frame of a second episode.
        lossless = {"x265-params": "lossless=1:bframes=0"}
        encoder = DepthEncoderConfig(use_log=use_log, depth_max=8.0, extra_options=lossless)
        # From 0 (no measurement) to above the scale's maximum.
        recorded = [
            [
                {name: (x * y / 150 + 0.1 * i + 0.4 * n * (x > 9)).astype("f4")[..., None]}
                for i in range(k)
            ]
            for n, k in enumerate(lengths)
        ]
        write_dataset(place, {name: feature}, recorded, depth_encoder=encoder)
    return places


def write_depth_images(root: Path, dtype: str, lengths: Sequence[int] = LENGTHS) -> None:
    """Write depth as TIFF images by lerobot: `u2` in millimetres, `f4` in metres."""
    names, info = ["height", "width", "channels"], {"is_depth_map": True}
    feature = {"dtype": "image", "shape": (6, 8, 1), "names": names, "info": info}
    y, x = np.mgrid[:6, :8]
    recorded = [
        [{IMAGE: (1 + x * y * 1300 + 7 * i + n).astype(dtype)[..., None]} for i in range(count)]
        for n, count in enumerate(lengths)
    ]
    write_dataset(root, {IMAGE: feature}, recorded, use_videos=False)
