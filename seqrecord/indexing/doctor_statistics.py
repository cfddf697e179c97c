"""Whether a LeRobot dataset's statistics are those of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.indexing.doctor_report import Findings
from seqrecord.sources.lerobot_layout import LeRobotInfo, read_stats

_NAMES = ("min", "max", "mean", "std")
_EXTREMES, _MEANS = 1e-3, 0.05  # of the range, of the deviation: what may differ
_ROUNDING = 1e-6
_INDEX_COLUMNS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""LeRobot's own edits leave their statistics behind, and no training reads them."""


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """Count, mean, sum of squared differences from it, and extremes: of each element [elements]."""

    count: int
    mean: npt.NDArray[np.float64]
    squares: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> RowStatistics:
        """Of one row or more: [rows, …]."""
        rows = values.reshape(len(values), -1).astype(np.float64)
        mean = rows.mean(0)
        return cls(len(rows), mean, ((rows - mean) ** 2).sum(0), rows.min(0), rows.max(0))

    @classmethod
    def of_entry(cls, entry: Mapping[str, Any], count: int) -> RowStatistics:
        """What LeRobot says; raises `SourceError`. `count` is that of an entry without one."""
        try:
            low, high, mean, std = (np.array(entry[n], np.float64).ravel() for n in _NAMES)
            count = int(np.array(entry.get("count", count)).item())
            if not len(low) == len(high) == len(mean) == len(std) or count < 1:
                raise ValueError("numbers of several lengths, or of nothing")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SourceError(
                "statistics that cannot be",
                expected="min, max, mean and std",
                got=str(error)[:200],
            ) from error
        return cls(count, mean, std**2 * count, low, high)

    def merged(self, other: RowStatistics | None) -> RowStatistics:
        """Those of both; `SourceError` where they have other elements."""
        if other is None:
            return self
        if self.mean.shape != other.mean.shape:
            raise SourceError("statistics of other sizes", expected=len(other.mean))
        count = self.count + other.count
        apart = self.mean - other.mean
        return RowStatistics(
            count,
            self.mean - apart * (other.count / count),
            self.squares + other.squares + apart**2 * (self.count * other.count / count),
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    def numbers(self) -> dict[str, npt.NDArray[np.float64]]:
        std = np.sqrt(self.squares / self.count)
        return {"min": self.low, "max": self.high, "mean": self.mean, "std": std}


def check_statistics(
    root: Path, info: LeRobotInfo, found: Mapping[str, RowStatistics], findings: Findings
) -> None:
    """Compare what the dataset says with `found`, which the rows have, by feature."""
    stored: dict[str, RowStatistics] = {}
    named: set[str] = set()
    scaled: set[str] = set()  # pictures whose statistics are not from 0 to 1
    place, records = read_stats(root, info)
    file = place.relative_to(root).as_posix()
    for record in records:
        for name in info.features:
            if not isinstance(entry := record.get(name), dict):
                continue
            named.add(name)
            feature = info.features[name]
            if feature.dtype in ("image", "video") and feature.depth is None:
                with findings.caught("statistics", file=file, feature=name):
                    if _is_scaled(RowStatistics.of_entry(entry, 1)) and name not in scaled:
                        scaled.add(name)
                        message = "statistics of pictures that are not from 0 to 1"
                        findings.add("statistics", message, file=file, feature=name)
            if name in found:
                with findings.caught("statistics", file=file, feature=name):
                    rows = found[name].count
                    stored[name] = RowStatistics.of_entry(entry, rows).merged(stored.get(name))
    for name, feature in info.features.items():
        facts = {"file": file, "feature": name}
        if name in _INDEX_COLUMNS:
            facts["severity"] = "warning"
        if name not in named and feature.dtype != "string":
            findings.add("statistics", "a feature without statistics", **facts)
        elif name in stored:
            _compare(stored[name], found[name], findings, **facts)


def _is_scaled(stored: RowStatistics) -> bool:
    return not (stored.low.min() >= 0 and stored.high.max() <= 1)


def _compare(stored: RowStatistics, found: RowStatistics, findings: Findings, **facts: str) -> None:
    """One finding at most: the first number that does not fit."""
    message = "statistics that are not those of the rows"
    if stored.mean.shape != found.mean.shape:
        expected, got = (f"{len(each.mean)} elements" for each in (found, stored))
        findings.add("statistics", message, expected=expected, got=got, **facts)
        return
    theirs, ours = stored.numbers(), found.numbers()
    span = found.high - found.low
    rounding = _ROUNDING * np.maximum(np.abs(found.low), np.abs(found.high))
    allowed = _EXTREMES * span + rounding
    for name in _NAMES:
        if name in ("mean", "std"):
            allowed = _EXTREMES * span + rounding + _MEANS * ours["std"]
        wrong = ~(np.abs(theirs[name] - ours[name]) <= allowed)
        if wrong.any():
            at = int(np.argmax(wrong))
            where = f"{name} of element {at}: "
            expected, got = (f"{where}{each[name][at]:.6g}" for each in (ours, theirs))
            findings.add("statistics", message, expected=expected, got=got, **facts)
            return
    if stored.count != found.count:
        expected, got = (f"{each.count} rows" for each in (found, stored))
        findings.add("statistics", message, expected=expected, got=got, **facts)
