"""Camera poses as text: one line a frame, `tx ty tz qx qy qz qw`."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.sources.files import read_bytes

__all__ = ["read_poses"]

_MAX_BYTES = 1 << 30  # five million lines


def read_poses(path: Path) -> npt.NDArray[np.float64]:
    """Poses as float64 [T, 7]: metres, then a quaternion.

    Raises `SourceError` for a line that is not seven finite numbers; empty lines at the end pass.
    """
    lines = read_bytes(path, _MAX_BYTES).rstrip().splitlines()
    poses = np.empty((len(lines), 7), np.float64)
    for number, line in enumerate(lines):
        values = _numbers(line)
        if len(values) != 7 or not all(map(math.isfinite, values)):
            raise SourceError(
                f"a bad pose in line {number + 1}",
                file=str(path),
                frame=number,
                expected="seven finite numbers: tx ty tz qx qy qz qw",
                got=repr(line[:120].decode("ascii", "replace")),
            )
        poses[number] = values
    return poses


def _numbers(line: bytes) -> list[float]:
    try:
        return [float(word) for word in line.split()]
    except ValueError:
        return []
