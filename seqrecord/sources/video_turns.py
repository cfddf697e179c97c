"""How players turn a video: phones write portrait video lying, and a matrix beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError


@dataclass(frozen=True)
class Turn:
    """By quarters, mirrored, or both: first rows become columns, where `is_transposed`, then rows
    and columns whose step is -1 are put in the opposite order."""

    is_transposed: bool = False
    rows: int = 1
    columns: int = 1

    @classmethod
    def of(cls, matrix: bytes) -> Turn:
        """That of a display matrix, nine int32; raises `SourceError` for any other angle.

        A decoded pixel (x, y) is shown at (a x + c y, b x + d y) plus an offset, where a, b are the
        first values and c, d the fourth and fifth (libavutil/display.h). Scales do not count.
        """
        a, b, _, c, d = np.sign(np.frombuffer(matrix, "=i4", 5)).tolist()
        if a and d and not (b or c):
            return cls(False, d, a)
        if b and c and not (a or d):
            return cls(True, b, c)
        raise SourceError("a video that is shown at an angle", expected="a turn by quarters")

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Of a frame as it is shown."""
        return (width, height) if self.is_transposed else (height, width)

    def frame(self, image: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The frame [H, W, C] as it is shown."""
        turned = image.transpose(1, 0, 2) if self.is_transposed else image
        return turned[:: self.rows, :: self.columns]


UPRIGHT = Turn()
