"""Depth in metres of codes in a video, as lerobot 0.6 stores it.

The formulas are from its `datasets/depth_utils.py`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

NUM_CODES = 4096


@dataclass(frozen=True)
class DepthScale:
    """Depth in metres of the 12-bit codes of a LeRobot depth video.

    Args:
        depth_min: metres of code 0.
        depth_max: metres of code 4095.
        shift: added to metres before the logarithm.
        use_log: codes are evenly spaced in log(metres + shift) instead of metres.

    Raises `ValueError` for invalid values.

    Example:
        from seqrecord.sources import DepthScale

        scale = DepthScale(0.1, 10.0, 0.0, use_log=False)
        print(scale.metres()[4095])
    """

    depth_min: float
    depth_max: float
    shift: float
    use_log: bool

    def __post_init__(self) -> None:
        values: Mapping[str, Any] = vars(self)  # unchecked types
        for name in ("depth_min", "depth_max", "shift"):
            value = values[name]
            if isinstance(value, bool) or not (
                isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
            ):
                raise ValueError(f"{name}: expected a finite number, got {value!r:.40}")
            object.__setattr__(self, name, float(value))
        if not isinstance(values["use_log"], bool):
            raise ValueError(f"use_log: expected true or false, got {self.use_log!r:.40}")
        if not self.depth_min < self.depth_max:
            raise ValueError(
                f"depth_max: expected more than {self.depth_min} m, got {self.depth_max}"
            )
        if self.use_log and not self.depth_min + self.shift > 0:
            raise ValueError(f"shift: expected more than {-self.depth_min} m, got {self.shift}")
        if not np.isfinite(self.metres()).all():
            raise ValueError("depth_max: expected a value in the range of float32")

    @classmethod
    def from_json(cls, value: object) -> DepthScale:
        """Parse the scale in a video configuration. Raises `ValueError` if invalid."""
        if not isinstance(value, dict) or value.keys() != cls.__dataclass_fields__.keys():
            raise ValueError(f"depth needs {', '.join(cls.__dataclass_fields__)}")
        return cls(**value)

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> DepthScale:
        """Parse a LeRobot feature's `info`. Raises `ValueError` if invalid."""
        parameters: Any = {name: info.get(f"video.{name}") for name in cls.__dataclass_fields__}
        return cls(**parameters)

    def metres(self) -> npt.NDArray[np.float32]:
        """Return the metres of each code, float32 [4096], read-only.

        Computed in float32 steps as in lerobot, so linear scales are equal bit by bit. Logarithmic
        scales may differ in the last bits: exponentials are rounded correctly here.
        """
        return _metres(self)

    def decode(self, codes: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
        """Return the metres of codes. Raises `ValueError` for a code above 4095."""
        if codes.size and codes.max() >= NUM_CODES:
            raise ValueError(f"expected depth codes below {NUM_CODES}, got {codes.max()}")
        return self.metres()[codes]


@lru_cache(maxsize=64)
def _metres(scale: DepthScale) -> npt.NDArray[np.float32]:
    start, stop = scale.depth_min, scale.depth_max
    if scale.use_log:
        start, stop = math.log(start + scale.shift), math.log(stop + scale.shift)
    with np.errstate(over="ignore", invalid="ignore"):
        step = np.float32((stop - start) / (NUM_CODES - 1))
        values = np.arange(NUM_CODES, dtype=np.float32) * step + np.float32(start)
        if scale.use_log:
            values = np.exp(values.astype(np.float64)).astype(np.float32)
            values -= np.float32(scale.shift)
        limits = np.float32(scale.depth_min), np.float32(scale.depth_max)
        metres = np.asarray(np.clip(values, *limits), np.float32)
    metres.flags.writeable = False
    return metres
