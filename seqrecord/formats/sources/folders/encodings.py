"""Notes on images that may encode other data, by feature name and image format.

Sources of a known layout decode such images. Other sources store them unchanged, with a note.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.formats.sources.common.specs import kind_of
from seqrecord.store.feature_kinds import pixel_kind

_CODES: Mapping[tuple[str, str, int], str] = {
    ("depth", "u1", 4): "4 x uint8, perhaps the bytes of float32 as in TartanAir V2 (order BGRA)",
    ("depth", "u1", 3): "3 x uint8 depth, perhaps 24 bits as in CARLA, or colours for display",
    ("depth", "u1", 1): "uint8 depth, perhaps scaled for display",
    ("depth", "u2", 1): "uint16 depth without a unit in the files: mm (ScanNet, 7-Scenes), cm "
    "(Virtual KITTI), 1/256 m (KITTI) or 1/5000 m (TUM)? Set it by --unit",
    ("depth", "u2", 3): "3 x uint16 depth of an unknown encoding",
    ("disparity", "u1", 4): "4 x uint8 disparity, perhaps the bytes of float32",
    ("disparity", "u1", 3): "3 x uint8 disparity, perhaps 4 R + G/64 + B/16384 as in Sintel, or "
    "colours for display",
    ("disparity", "u2", 1): "uint16 disparity, perhaps 256 a pixel as in KITTI",
    ("flow", "u1", 3): "3 x uint8 flow, perhaps colours for display",
    ("flow", "u2", 3): "3 x uint16 flow, perhaps (value - 32768) / 64 and a mask as in KITTI (RGB: "
    "x, y, valid) or TartanAir V2 (RGB: mask, y, x)",
    ("normals", "u1", 3): "integer-coded normals, perhaps 2 x value / 255 - 1",
    ("normals", "u2", 3): "integer-coded normals, perhaps 2 x value / 65535 - 1",
    **{
        (kind, "u1", channels): "colours that encode labels; interpolation and lossy codecs "
        "would mix them"
        for kind in ("mask", "segmentation")
        for channels in (3, 4)
    },
}
"""Possible encodings by kind, dtype and number of channels."""

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


def known_meaning(pattern: str | None, first_file: str) -> Mapping[str, str]:
    """Return kind and unit of single-frame files like `first_file`; empty if unknown."""
    ending = Path(first_file).suffix.lower()
    return _MEANINGS.get(ending) or _MEANINGS.get(f"{pattern}{ending}", {})


def encoding_note(name: str, dtype: np.dtype[Any], shape: Sequence[int | None]) -> str | None:
    """Return a note on values that images of this name may encode; `None` for plain images.

    `name` is the feature's name with its file names; `shape` is [H, W] or [H, W, C].
    """
    kind = pixel_kind(name, np.dtype(np.float32), shape) or ""
    channels = (shape[2] or 0) if len(shape) == 3 else 1
    return _CODES.get((kind, f"{dtype.kind}{dtype.itemsize}", channels))


def kind_of_values(name: str, dtype: np.dtype[Any], shape: Sequence[int | None]) -> str | None:
    """Like `kind_of`, but `None` for depth, disparity and flow encoded in image channels.

    Such codes must not be resized or flipped as values.
    """
    kind = kind_of(name, dtype, shape)
    is_coded = dtype.kind == "u" and len(shape) == 3 and shape[2] != 1
    return None if is_coded and kind in ("depth", "disparity", "flow") else kind
