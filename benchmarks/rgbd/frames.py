"""Where the frames of RGB-D recordings lie, how they are read, and how they are resized.

A recording is a folder with `image_left/000000.jpg` and `depth_left/000000.png`, 16-bit
millimetres, 0 where nothing was measured. Training has them at 192x256, depth in metres.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image

__all__ = [
    "DEPTH",
    "IMAGE",
    "ONCE",
    "PER_CLIP",
    "SIZE",
    "decode",
    "frame_file",
    "read_frame",
    "resize",
    "resize_clip",
]

IMAGE = "image_left"
DEPTH = "depth_left"
SIZE = (192, 256)  # height and width in pixels, of the frames of clips

ONCE = "each frame resized once"
PER_CLIP = "each frame resized again for every clip that it is in"

_SUFFIXES = {IMAGE: "jpg", DEPTH: "png"}
_MODES = {IMAGE: "RGB", DEPTH: "I;16"}
_METRES = np.float32(0.001)

Arrays = dict[str, npt.NDArray[Any]]


def frame_file(root: Path, key: str, feature: str, index: int) -> Path:
    """One feature of one frame of a recording."""
    return root / key / feature / f"{index:06d}.{_SUFFIXES[feature]}"


def decode(file: Path | BinaryIO, feature: str) -> npt.NDArray[Any]:
    """uint8 [H, W, 3] or uint16 [H, W]."""
    with Image.open(file) as image:
        assert image.mode == _MODES[feature], f"{file} is {image.mode}"
        return np.asarray(image)


def read_frame(root: Path, key: str, index: int, features: tuple[str, ...]) -> Arrays:
    """A frame at its full size."""
    return {name: decode(frame_file(root, key, name, index), name) for name in features}


def resize(frame: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """What clips have of a frame: uint8 [192, 256, 3], bilinear, and float32 [192, 256], nearest.

    Depth is not averaged: between an edge's two sides there is nothing.
    """
    return {name: RESIZE[name](array) for name, array in frame.items()}


def resize_clip(clip: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """The same for arrays [N, …], frame by frame."""
    return {name: np.stack([RESIZE[name](array) for array in clip[name]]) for name in clip}


def _resize_image(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    height, width = SIZE
    pixels = Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(pixels)


def _resize_depth(depth: npt.NDArray[Any]) -> npt.NDArray[Any]:
    rows, columns = (
        (2 * np.arange(wanted) + 1) * there // (2 * wanted)
        for wanted, there in zip(SIZE, depth.shape, strict=True)
    )
    metres: npt.NDArray[np.float32] = depth[rows[:, None], columns] * _METRES
    return metres


RESIZE = {IMAGE: _resize_image, DEPTH: _resize_depth}
