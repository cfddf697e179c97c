"""Pixels that are codes of something else, recognised by a feature's name and its image format.

Sources of a known layout decode them. In any other place they are stored as they are, with a note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_DEPTH = frozenset(("depth", "depths", "zdepth", "deptht"))
_DISPARITY = frozenset(("disp", "disparity", "disparities"))
_FLOW = frozenset(("flow", "flows", "optflow", "opticalflow"))
_LABELS = frozenset(
    "seg segs segmentation segmentations semantic semantics label labels mask masks instance "  # noqa: SIM905
    "instances panoptic classes annotation annotations".split()
)
_NORMALS = frozenset(("normal", "normals"))

_MEANINGS: Mapping[str, Mapping[str, str]] = {
    "frame-{:06d}.color.png": {"kind": "image"},
    "frame-{:06d}.depth.png": {"kind": "depth", "unit": "mm"},
    "frame-{:06d}.pose.txt": {"kind": "pose", "unit": "m"},
    ".flo": {"kind": "flow", "unit": "px"},
    ".dpt": {"kind": "depth"},
}
"""Kind and unit by ending, and by the pattern of 7-Scenes' names.

https://www.microsoft.com/en-us/research/project/rgb-d-dataset-7-scenes/
"""


def known_meaning(pattern: str | None, first: str) -> Mapping[str, str]:
    """Kind and unit of files of one frame, of which `first` is one; empty if unknown."""
    ending = Path(first).suffix.lower()
    return _MEANINGS.get(ending) or _MEANINGS.get(f"{pattern}{ending}", {})


def encoding_note(name: str, dtype: np.dtype[Any], shape: Sequence[int | None]) -> str | None:
    """What the values of images of this name may be codes of; `None` for plain images.

    `name` is that of the feature with its files' names; `shape` is [H, W] or [H, W, C].
    """
    words = {*re.findall("[a-z]+", name.lower())}
    channels = shape[2] if len(shape) == 3 else 1
    kind = dtype.kind + str(dtype.itemsize), channels or 0
    if words & (_DEPTH | _DISPARITY) and kind == ("u1", 4):
        return "4 x uint8, perhaps the bytes of float32 as in TartanAir V2 (order BGRA)"
    if words & _DISPARITY:
        return {
            ("u2", 1): "uint16 disparity, perhaps 256 a pixel as in KITTI",
            ("u1", 3): "3 x uint8 disparity, perhaps 4 R + G/64 + B/16384 as in Sintel, or colours",
        }.get(kind)
    if words & _DEPTH:
        return {
            ("u2", 1): "uint16 depth of unknown unit: mm (ScanNet, 7-Scenes), cm (Virtual KITTI), "
            "1/256 m (KITTI) or 1/5000 m (TUM); name it by --unit",
            ("u1", 1): "uint8 depth, perhaps scaled for display",
            ("u1", 3): "3 x uint8 depth, perhaps 24 bits as in CARLA, or colours for display",
            ("u2", 3): "3 x uint16 depth of an unknown encoding",
        }.get(kind)
    if words & _FLOW:
        return {
            ("u2", 3): "3 x uint16 flow, perhaps (value - 32768) / 64 and a mask as in KITTI (RGB: "
            "x, y, valid) or TartanAir V2 (RGB: mask, y, x)",
            ("u1", 3): "3 x uint8 flow, perhaps colours for display",
            ("u2", 4): "4 x uint16 flow, perhaps 2 (value / 65535 - 1/2) of the size as in Virtual "
            "KITTI",
        }.get(kind)
    if words & _LABELS and dtype == np.uint8 and channels in (3, 4):
        return "colours that stand for labels; interpolation and lossy codecs would mix them"
    if words & _NORMALS and dtype.kind == "u" and channels == 3:
        return f"integer-coded normals, perhaps 2 x value / {np.iinfo(dtype).max} - 1"
    return None
