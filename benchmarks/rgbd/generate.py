"""Recordings of a walk through a rendered hall, as an RGB-D camera saves them.

The same arguments give the same pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.rgbd.frames import DEPTH, IMAGE, frame_file
from benchmarks.tartanair.camera import Intrinsics, camera_path
from benchmarks.tartanair.render import render
from benchmarks.tartanair.scene import RING, Scene

__all__ = ["generate"]

_HALL = 1  # an odd seed gives a hall: what an RGB-D camera can measure
_JPEG_QUALITY = 90
_FARTHEST = 65_535  # millimetres


def generate(root: Path, episodes: Sequence[int], *, height: int = 480, width: int = 640) -> None:
    """Write a folder for each of `episodes`, which are their numbers of frames."""
    scene, intrinsics = Scene.from_seed(_HALL), Intrinsics.v1(height, width)
    for number, frames in enumerate(episodes):
        key = f"{number:04d}"
        for feature in (IMAGE, DEPTH):
            frame_file(root, key, feature, 0).parent.mkdir(parents=True)
        path = camera_path(frames, seed=_HALL, episode=number, radius=RING)
        for index, pose in enumerate(path):
            seen = render(scene, pose, intrinsics)
            image, depth = (frame_file(root, key, name, index) for name in (IMAGE, DEPTH))
            Image.fromarray(seen.rgb).save(image, quality=_JPEG_QUALITY)
            millimetres = np.round(seen.depth * 1000)
            measured = np.where(millimetres <= _FARTHEST, millimetres, 0).astype(np.uint16)
            Image.fromarray(measured).save(depth)
