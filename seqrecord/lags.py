"""Lags: how much time passes from a frame to a later one, at least and at most, in a whole dataset.

They bound at which frames the times of a window can lie, without any timestamp being read::

    frames later      1     2     4     8    16  …
    at least       0.09  0.19  0.39  0.79  1.59         nothing is more than 8 frames later
    at most        0.11  0.21  0.41  0.82  1.62         within 0.8 s, nor less than 7
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import FormatError

__all__ = ["LagCollector", "Lags", "has_lags"]

_STEPS = tuple(1 << i for i in range(13))  # frames later
_TAIL = _STEPS[-1]
_PENDING = 1 << 12  # timestamps that wait
_MOST = 1 << 20  # frames of a window in time


def has_lags(kind: str | None, shape: tuple[int | None, ...]) -> bool:
    """Whether a feature of this kind and shape is one timestamp a frame."""
    return kind == "timestamp" and shape in ((), (1,))


@dataclass(frozen=True)
class Lags:
    """The least and the most that timestamps of an episode grow in 1, 2, 4, …, 4096 frames.

    In the unit of the feature; infinity and its negative for what no episode is long enough for.
    `is_whole` is false where a frame has no timestamp, or one that is not finite: then nothing is
    known.
    """

    least: tuple[float, ...]
    most: tuple[float, ...]
    is_whole: bool = True

    @classmethod
    def none(cls) -> Lags:
        """Those of no frames."""
        return cls((math.inf,) * len(_STEPS), (-math.inf,) * len(_STEPS))

    def merged(self, other: Lags) -> Lags:
        """Those of what both have seen."""
        return Lags(
            tuple(map(min, self.least, other.least)),
            tuple(map(max, self.most, other.most)),
            self.is_whole and other.is_whole,
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON; see docs/format.md."""
        known = sum(map(math.isfinite, self.least))
        return {
            "least": list(self.least[:known]),
            "most": list(self.most[:known]),
            "is_whole": self.is_whole,
        }

    @classmethod
    def from_json(cls, value: object) -> Lags:
        """Raises `FormatError` for what `to_json` does not give."""
        if isinstance(value, dict) and set(value) == {"least", "most", "is_whole"}:
            least, most, is_whole = value["least"], value["most"], value["is_whole"]
            if (
                isinstance(is_whole, bool)
                and _are_numbers(least)
                and _are_numbers(most)
                and len(least) == len(most) <= len(_STEPS)
                and all(a <= b for a, b in zip(least, most, strict=True))
            ):
                none, rest = cls.none(), len(least)
                return cls(
                    (*map(float, least), *none.least[rest:]),
                    (*map(float, most), *none.most[rest:]),
                    is_whole,
                )
        raise FormatError("lags of timestamps that make no sense", got=repr(value)[:100])

    def frames_within(self, time: float) -> tuple[int, int] | None:
        """How many frames later the last frame is that lies at most `time` later, 0 or more.

        At least and at most so many, unless the episode ends before; `None` where timestamps do not
        ascend, or there is no bound below 2^20.
        """
        if not self.is_whole or not self.least[0] > 0:
            return None
        least, most = (_whole(lags) for lags in (self.least, self.most))
        for i in range(1, len(most)):  # short episodes may have longer lags, and count too
            most[i] = max(most[i], sum(most[:i]))
        return _count(most, time), min(_count(least, time), _MOST)


class LagCollector:
    """Collects the lags of episodes, of which it sees all timestamps in order."""

    def __init__(self) -> None:
        self._kept = Lags.none()
        self._open = Lags.none()
        self._tail = np.zeros(0)
        self._pending: list[npt.NDArray[Any]] = []
        self._num_pending = self._number = 0

    def begin(self) -> None:
        """Start an episode; forget what was not kept of the one before."""
        self._open, self._tail = Lags.none(), np.zeros(0)
        self._pending, self._num_pending, self._number = [], 0, 0

    def add(self, times: npt.NDArray[Any], numbers: npt.NDArray[np.int64]) -> None:
        """The timestamps of frames of these numbers; int64[n] or a real dtype, and int64[n]."""
        if not len(numbers):
            return
        first, last = int(numbers[0]), int(numbers[-1])
        follows = first == self._number and last - first == len(numbers) - 1
        if not follows or not np.isfinite(times).all():
            self._open = Lags(self._open.least, self._open.most, is_whole=False)
        self._number = last + 1
        whole = np.int64 if times.dtype.kind in "iu" else np.float64
        self._pending.append(times.reshape(-1).astype(whole))
        self._num_pending += len(numbers)
        if self._num_pending >= _PENDING:
            self._look()

    def keep(self, num_frames: int) -> None:
        """The episode's frames so far count: so many, all of which must have had a timestamp."""
        self._look()
        is_whole = self._open.is_whole and self._number == num_frames
        self._kept = self._kept.merged(Lags(self._open.least, self._open.most, is_whole))

    @property
    def lags(self) -> Lags:
        """Those of what was kept."""
        return self._kept

    def _look(self) -> None:
        if not self._pending or not self._open.is_whole:
            self._pending, self._num_pending = [], 0
            return
        count = self._num_pending
        times = np.concatenate([self._tail.astype(self._pending[0].dtype), *self._pending])
        self._pending, self._num_pending = [], 0
        least, most = list(self._open.least), list(self._open.most)
        for i, step in enumerate(_STEPS):
            if step >= len(times):
                break
            later = times[max(step, len(times) - count) :]
            grown = later - times[len(times) - len(later) - step : len(times) - step]
            least[i] = min(least[i], float(grown.min()))
            most[i] = max(most[i], float(grown.max()))
        self._open = Lags(tuple(least), tuple(most))
        self._tail = times[-_TAIL:].copy()


def _whole(lags: Sequence[float]) -> list[float]:
    """Those that episodes are long enough for."""
    return [lag for lag in lags if math.isfinite(lag)]


def _count(lags: list[float], time: float) -> int:
    """The most frames for which the sum of such lags, one for each power of two, is at most `time`.

    The least that timestamps grow over a number of frames is at least the sum of the least for its
    parts, and the most is at most the sum of the most.
    """
    if not lags:
        return 0
    number = int(time // lags[-1])
    left, found = time - number * lags[-1], number << (len(lags) - 1)
    for i in range(len(lags) - 2, -1, -1):
        if lags[i] <= left:
            left, found = left - lags[i], found + (1 << i)
    return found


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(n, (int, float)) and not isinstance(n, bool) and math.isfinite(n) for n in value
    )
