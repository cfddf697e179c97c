"""Lens distortion: models, and coefficients of mirrored images.

Coefficients have OpenCV's order, https://docs.opencv.org/4.x/d9/d0c/group__calib3d.html:

- `opencv`: k1 k2 p1 p2 [k3 [k4 k5 k6 [s1 s2 s3 s4 [tx ty]]]]
- `opencv_fisheye`: k1 k2 k3 k4
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.store.units import is_integer

FloatArray: TypeAlias = npt.NDArray[np.float64]

OPENCV, FISHEYE = "opencv", "opencv_fisheye"

_MODELS = {  # by their names in ROS, EuRoC, Kalibr, COLMAP, RealSense and OpenCV
    **dict.fromkeys(("plumb_bob", "rational_polynomial", "radial_tangential", "radtan"), OPENCV),
    **dict.fromkeys((OPENCV, "full_opencv", "brown_conrady", "radialtangential"), OPENCV),
    **dict.fromkeys(("equidistant", "equi", "fisheye", FISHEYE), FISHEYE),
    **dict.fromkeys(("kannala_brandt", "kannala_brandt4"), FISHEYE),
}

MODEL, COEFFICIENTS = "distortion_model", "distortion_coefficients"
"""Entries of a camera in the metadata `camera`."""

NUM_COEFFICIENTS = (4, 5, 8, 12, 14)
MAX_COEFFICIENTS = NUM_COEFFICIENTS[-1]

_FISHEYE_COEFFICIENTS = 4
_MIRRORED = (3, 8, 9, 13)  # p2, s1, s2 and ty: the terms that are odd in x


def model_of(name: str) -> str | None:
    """The distortion model of a name in any of the usual forms; `None` if unknown.

    Upper case, spaces and hyphens do not matter.
    """
    return _MODELS.get(re.sub("[- ]", "_", name.strip().lower()))


def lens_model(camera: Any, count: int) -> str | None:
    """The model of `count` coefficients, by a camera of the metadata; `None` if unknown.

    Without a name, more than four coefficients can only be OpenCV's.
    """
    name = camera.get(MODEL) if isinstance(camera, Mapping) else None
    if name is None:
        return OPENCV if count > _FISHEYE_COEFFICIENTS else None
    return model_of(str(name))


def mirror_factors(model: str, count: int) -> FloatArray:
    """Factors, 1 or -1, for the coefficients if images are mirrored: float64[count].

    A mirrored image is that of a mirrored scene. Fisheye lenses have no tangential terms.
    """
    factors = np.ones(count)
    if model == OPENCV:
        factors[[place for place in _MIRRORED if place < count]] = -1
    return factors


def lens_of(camera: Any) -> tuple[str, list[float]] | None:
    """Model and coefficients of a camera in the metadata; `None` if unknown or invalid.

    A camera without a model has no coefficients.
    """
    if not isinstance(camera, Mapping):
        return None
    numbers = camera.get(COEFFICIENTS, [] if camera.get(MODEL) is None else None)
    if not isinstance(numbers, list) or len(numbers) > MAX_COEFFICIENTS:
        return None
    if not all(isinstance(n, float) or is_integer(n) for n in numbers):
        return None
    model = lens_model(camera, len(numbers)) if numbers else OPENCV
    return None if model is None else (model, [float(n) for n in numbers])
