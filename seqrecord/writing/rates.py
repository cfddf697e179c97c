"""Compares frame rates with timestamps.

An episode has an `fps` only if each timestamp is within a quarter of a frame period of `i / fps`,
counted from the first frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.feature_kinds import size_in
from seqrecord.format.footer import EpisodePart
from seqrecord.format.time_spans import clock_of, is_plausible, signed
from seqrecord.schema import Schema
from seqrecord.text import counted

_TOLERANCE = 0.25 * (1 + 1e-6)  # of a frame period
_PENDING = 1 << 12  # timestamps compared together
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}  # candidates if the unit is unknown


@dataclass(frozen=True)
class IrregularEpisode:
    """An episode whose timestamps contradict its fps, and the first such frame."""

    episode: str
    fps: float
    clock: str  # timestamp feature and its unit
    frame: int
    seconds: float  # since the first frame

    def __str__(self) -> str:
        return (
            f"episode {self.episode}, frame {self.frame}: {self.seconds:.6g} s after the first "
            f"({self.clock}), expected {self.frame / self.fps:.6g} s at {self.fps:g} frames per "
            "second"
        )


def irregular_note(found: Sequence[IrregularEpisode]) -> str:
    """One line about episodes without fps because of their timestamps."""
    return (
        f"fps ignored for {counted(len(found), 'episode')}: timestamps contradict it, and Seconds "
        f"uses them instead; {found[0]}"
    )


class RateCheck:
    """Compares fps and timestamps of one episode after the other.

    `feature` is the timestamp feature of the schema, or `None`: then timestamps are in seconds.
    """

    def __init__(self, schema: Schema) -> None:
        self.feature = clock_of(schema)
        unit = None if self.feature is None else schema[self.feature].unit
        size = size_in(unit, "s")
        self._sizes = _UNITS if size is None else {str(unit): size}
        self._is_known = size is not None
        if self.feature is None:  # timestamps of the original
            self._sizes, self._is_known = {"": 1.0}, True
        self._episode: EpisodePart | None = None

    def begin(self, episode: EpisodePart) -> None:
        """Start an episode."""
        self._episode = None if episode.fps is None else episode
        self._first: tuple[Any, int] | None = None  # timestamp and number
        self._found: dict[str, IrregularEpisode] = {}  # by unit
        self._step = 0.0  # in the timestamps' unit
        self._pending: list[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]] = []
        self._num_pending = 0

    def add(self, times: npt.NDArray[Any], numbers: npt.NDArray[np.int64]) -> None:
        """Add timestamps, a real dtype [n], and their frame numbers, int64 [n], in order."""
        if self._episode is not None and len(self._found) < len(self._sizes):
            self._pending.append((times.copy(), numbers))
            self._num_pending += len(numbers)
            if self._num_pending >= _PENDING:
                self._compare()

    def contradiction(self) -> IrregularEpisode | None:
        """The first frame so far whose timestamp contradicts the fps."""
        self._compare()
        if self._is_known:
            return next(iter(self._found.values()), None)
        # Unknown unit: seconds if plausible, else the only plausible unit.
        units = [name for name, size in self._sizes.items() if is_plausible(self._step * size)]
        unit = units[0] if units[:1] == ["s"] or len(units) == 1 else ""
        return self._found.get(unit)

    def _compare(self) -> None:
        pending, self._pending, self._num_pending = self._pending, [], 0
        if self._episode is None or not pending:
            return
        times, numbers = map(np.concatenate, zip(*pending, strict=True))
        times = signed(times)
        if self._first is None:
            self._first = times[0], int(numbers[0])
        time, number = self._first
        with np.errstate(invalid="ignore", over="ignore"):
            passed, rough = times - time, times.astype(np.float64) - float(time)
            passed = np.where(np.abs(rough) < 2.0**62, passed, rough)  # integers overflow
        later, fps = numbers - number, float(self._episode.fps or 1)
        if later[-1] > 0:
            self._step = float(passed[-1]) / int(later[-1])
        for unit, size in self._sizes.items():
            seconds = passed * size
            wrong = np.flatnonzero(np.abs(seconds * fps - later) > _TOLERANCE)
            if len(wrong) and unit not in self._found:
                at = int(wrong[0])
                place = int(numbers[at]), float(seconds[at])
                self._found[unit] = IrregularEpisode(
                    self._episode.key, fps, self._clock(unit), *place
                )

    def _clock(self, unit: str) -> str:
        if self.feature is None:
            return "timestamps of the original"
        return f"{self.feature} in {unit}" + ("" if self._is_known else ", assumed unit")
