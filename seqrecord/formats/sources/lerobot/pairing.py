"""Pair rows whose times jitter with the frames of their episode.

Recorders store the time at which a row was taken, and frames at the frame rate: their times differ
by a few milliseconds, although row i is taken with frame i.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_MOST_SPREAD = 0.25  # steps between the largest and the smallest difference
_MOST_MEDIAN = 1e-3  # seconds


def pair_in_order(
    times: FloatArray, frames: FloatArray, begin: float, step: float
) -> tuple[FloatArray, float] | None:
    """Return the times of the frames that belong to rows one to one, and the largest difference.

    The first row belongs to the episode's first frame, and each further one to the next frame.
    Jitter scatters the differences of their times by less than a quarter step around zero; a frame
    that is missing, a shift, a drift or another frame rate does not. Then there is no result.

    Args:
        times: ascending seconds of rows by the file's clock: float64 [rows].
        frames: ascending seconds of the file's frames: float64 [frames].
        begin: seconds of the episode's first frame.
        step: seconds between frames.
    """
    count = len(times)
    first = int(np.searchsorted(frames, begin - _MOST_SPREAD * step))
    own = frames[first : first + count]
    if not count or len(own) < count or abs(own[0] - begin) > _MOST_SPREAD * step:
        return None
    away = times - own
    if not np.ptp(away) < _MOST_SPREAD * step or not abs(np.median(away)) < _MOST_MEDIAN:
        return None
    return own, float(np.abs(away).max())
