"""Compares the fps of episodes with their timestamps; `format.frame_rates` has the rule.

An episode has an `fps` only if its timestamps agree with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.store.feature_kinds import size_in
from seqrecord.store.format.footer import EpisodePart
from seqrecord.store.format.frame_rates import RateComparison
from seqrecord.store.format.time_spans import clock_of, is_plausible
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.text import counted

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
    reason: str

    def __str__(self) -> str:
        return (
            f"episode {self.episode}, frame {self.frame}: {self.seconds:.6g} s after the first "
            f"({self.clock}), expected {self.frame / self.fps:.6g} s at {self.fps:g} frames per "
            f"second; {self.reason}"
        )


def irregular_notes(episodes: Sequence[IrregularEpisode]) -> list[str]:
    """One line about episodes without fps because of their timestamps, if there are any."""
    return [
        f"fps ignored for {counted(len(episodes), 'episode')}: timestamps contradict it, and "
        f"Seconds uses them instead; {episode}"
        for episode in episodes[:1]
    ]


class RateChecks:
    """Compares fps and timestamps of one episode after the other.

    Timestamps are those of the schema's clock, and of the original.
    """

    def __init__(self, schema: Schema) -> None:
        clock = clock_of(schema)
        feature = None if clock is None else schema[clock]
        # By feature; `None` for timestamps that no feature has.
        self._checks = {clock: _RateCheck(feature), None: _RateCheck(None)}

    def begin(self, episode: EpisodePart) -> None:
        """Start an episode."""
        for check in self._checks.values():
            check.begin(episode)

    def add(
        self, feature: str | None, times: npt.NDArray[Any], numbers: npt.NDArray[np.int64]
    ) -> None:
        """Add timestamps of a feature, or with `None` in seconds of the original, in order.

        Args:
            feature: the feature; another one than the clock counts for nothing.
            times: a real dtype [n].
            numbers: their frame numbers, int64 [n].
        """
        if feature in self._checks:
            self._checks[feature].add(times, numbers)

    def contradiction(self) -> IrregularEpisode | None:
        """What contradicts the fps in the timestamps so far, if anything."""
        contradictions = (check.contradiction() for check in self._checks.values())
        return next(filter(None, contradictions), None)


class _RateCheck:
    """Compares fps and timestamps of one clock.

    `clock` is the feature of the timestamps. `None`: they are of the original, in seconds.
    """

    def __init__(self, clock: FeatureSpec | None) -> None:
        self._feature = None if clock is None else clock.name
        unit = "s" if clock is None else clock.unit
        size = size_in(unit, "s")
        self._sizes = _UNITS if size is None else {str(unit): size}
        self._is_known = size is not None
        self._episode: EpisodePart | None = None

    def begin(self, episode: EpisodePart) -> None:
        """Start an episode."""
        self._episode = episode
        sizes = self._sizes if episode.fps is not None else {}
        fps = episode.fps or 1.0
        self._comparisons = {unit: RateComparison(fps, size) for unit, size in sizes.items()}
        self._batches: list[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]] = []
        self._num_pending = 0

    def add(self, times: npt.NDArray[Any], numbers: npt.NDArray[np.int64]) -> None:
        """Add timestamps, a real dtype [n], and their frame numbers, int64 [n], in order."""
        if self._comparisons:
            self._batches.append((times.copy(), numbers))
            self._num_pending += len(numbers)
            if self._num_pending >= _PENDING:
                self._compare()

    def contradiction(self) -> IrregularEpisode | None:
        """What contradicts the fps in the timestamps so far, if anything."""
        self._compare()
        if self._episode is None or not self._comparisons:
            return None
        unit = next(iter(self._comparisons))
        if not self._is_known:
            # Unknown unit: seconds if plausible, else the only plausible unit.
            units = [
                name
                for name, comparison in self._comparisons.items()
                if is_plausible(comparison.step_in_seconds())
            ]
            if units[:1] != ["s"] and len(units) != 1:
                return None
            unit = units[0]
        if (place := self._comparisons[unit].contradiction()) is None:
            return None
        fps, clock = float(self._episode.fps or 1), self._clock(unit)
        return IrregularEpisode(
            self._episode.key, fps, clock, place.frame, place.seconds, place.reason
        )

    def _compare(self) -> None:
        batches, self._batches, self._num_pending = self._batches, [], 0
        if batches:
            times, numbers = map(np.concatenate, zip(*batches, strict=True))
            for comparison in self._comparisons.values():
                comparison.add(times.reshape(-1), numbers)

    def _clock(self, unit: str) -> str:
        if self._feature is None:
            return "timestamps of the original"
        return f"{self._feature} in {unit}" + ("" if self._is_known else ", assumed unit")
