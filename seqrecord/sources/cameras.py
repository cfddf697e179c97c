"""Files of camera parameters beside frames, found by their names alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.sources.files import read_bytes
from seqrecord.sources.number_files import read_numbers

_NAME = re.compile(
    r"(?:(?:.*[_.\- ])?(?:K|intrinsics?|extrinsics?|calib\w*|cameras?)(?:[_.\- ].*|\d*))"
    r"\.(?:txt|csv|json|ya?ml|xml|ini)",
    re.IGNORECASE,
)
_MAX_BYTES = 1 << 20
_FIELDS = ("fx", "fy", "cx", "cy")


def is_camera_name(name: str) -> bool:
    """Whether a file's name is that of camera parameters: `K.txt`, `intrinsics.json`, …"""
    return bool(_NAME.fullmatch(name))


def pinhole(path: Path) -> tuple[float, float, float, float] | None:
    """fx, fy, cx, cy of a file of one camera; `None` if the file is anything else.

    Text: fx, fy, cx and cy as four numbers, or a 3x3 or 4x4 matrix of them, in rows or in one row.
    JSON: an object of `fx`, `fy`, `cx` and `cy`.
    """
    if "extrinsic" in path.name.lower():
        return None
    try:
        if path.suffix.lower() == ".json":
            found: Any = json.loads(read_bytes(path, _MAX_BYTES))
            values = [found[name] for name in _FIELDS] if isinstance(found, dict) else []
            numbers = np.array(values, np.float64)
        else:
            numbers = np.asarray(read_numbers(path).matrix())
    except (SourceError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if numbers.size in (9, 16):
        side = int(numbers.size**0.5)
        matrix = numbers.reshape(side, side)
        wanted = np.eye(side)
        for row, column in ((0, 0), (1, 1), (0, 2), (1, 2)):
            wanted[row, column] = matrix[row, column]
        if not np.array_equal(matrix, wanted):  # skewed, or no camera
            return None
        numbers = matrix[[0, 1, 0, 1], [0, 1, 2, 2]]
    if numbers.shape != (4,) or not np.isfinite(numbers).all() or numbers[:2].min() <= 0:
        return None
    fx, fy, cx, cy = numbers.tolist()
    return fx, fy, cx, cy
