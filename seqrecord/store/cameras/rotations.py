"""Lengths of vectors, and rotations from quaternions."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]


def vector_lengths(vectors: npt.ArrayLike) -> FloatArray:
    """Lengths [...] of vectors [..., n]; NaN where float64 cannot compute them.

    Those are vectors with numbers that are not finite, and vectors whose squares overflow or
    underflow: their length would be infinite, 0, or of a few digits, and what is divided by it
    another vector.
    """
    numbers = np.asarray(vectors, np.float64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        squares = (numbers * numbers).sum(axis=-1)
    is_zero = np.logical_not(numbers.any(axis=-1))
    is_exact = (squares >= np.finfo(np.float64).tiny) & np.isfinite(squares)
    lengths: FloatArray = np.sqrt(np.where(is_exact | is_zero, squares, np.nan))
    return lengths


def unit_quaternions(quaternions: npt.ArrayLike) -> FloatArray:
    """Quaternions [..., 4] divided by their lengths; NaN for 0, and as of `vector_lengths`."""
    numbers = np.asarray(quaternions, np.float64)
    lengths = vector_lengths(numbers)[..., None]
    units: FloatArray = numbers / np.where(lengths > 0, lengths, np.nan)
    return units


def rotations_of(units: FloatArray) -> FloatArray:
    """Rotation matrices [..., 3, 3] of unit quaternions x y z w, [..., 4]."""
    x, y, z, w = np.moveaxis(units, -1, 0)
    rows: Any = (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    matrices: FloatArray = np.moveaxis(np.array(rows), (0, 1), (-2, -1))
    return matrices
