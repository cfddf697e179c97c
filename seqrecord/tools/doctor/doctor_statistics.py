"""Compares a LeRobot dataset's statistics with its rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from seqrecord.formats.sources.lerobot.layout import LeRobotInfo, read_stats
from seqrecord.formats.sources.lerobot.stats import NAMES, add_moments, stored_moments
from seqrecord.store.statistics.moments import Moments
from seqrecord.tools.doctor.doctor_report import Findings

_EXTREMES, _MEANS = 1e-3, 0.05  # tolerances, relative to range and standard deviation
_ROUNDING = 1e-6
_INDEX_COLUMNS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
"""LeRobot's own edits leave the statistics of these columns stale, and no training reads them."""


def check_statistics(
    root: Path, info: LeRobotInfo, found: Mapping[str, list[Moments]], findings: Findings
) -> None:
    """Compare the stored statistics with `found`, the moments of the rows by feature."""
    stored: dict[str, list[Moments]] = {}
    named: set[str] = set()
    scaled: set[str] = set()  # images with statistics outside 0 to 1
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
                    if _is_scaled(stored_moments(entry, 1)) and name not in scaled:
                        scaled.add(name)
                        message = "statistics of images are outside 0 to 1"
                        findings.add("statistics", message, file=file, feature=name)
            if found.get(name):
                with findings.caught("statistics", file=file, feature=name):
                    add_moments(stored, name, stored_moments(entry, found[name][0].count))
    for name, feature in info.features.items():
        facts = {"file": file, "feature": name}
        if name in _INDEX_COLUMNS:
            facts["severity"] = "warning"
        if name not in named and feature.dtype not in ("string", "language"):
            findings.add("statistics", "a feature without statistics", **facts)
        elif name in stored:
            _compare(stored[name], found[name], findings, **facts)


def _is_scaled(stored: list[Moments]) -> bool:
    return any((each.min or 0) < 0 or (each.max or 0) > 1 for each in stored)


def _compare(stored: list[Moments], found: list[Moments], findings: Findings, **facts: str) -> None:
    """Report at most one finding: the first number that differs."""
    message = "statistics differ from the rows"
    if len(stored) != len(found):
        expected, got = (f"{len(each)} elements" for each in (found, stored))
        findings.add("statistics", message, expected=expected, got=got, **facts)
        return
    theirs, ours = (
        {name: np.array([getattr(each, name) for each in some], np.float64) for name in NAMES}
        for some in (stored, found)
    )
    span = ours["max"] - ours["min"]
    rounding = _ROUNDING * np.maximum(np.abs(ours["min"]), np.abs(ours["max"]))
    allowed = _EXTREMES * span + rounding
    for name in NAMES:
        if name in ("mean", "std"):
            allowed = _EXTREMES * span + rounding + _MEANS * ours["std"]
        wrong = ~(np.abs(theirs[name] - ours[name]) <= allowed)
        if wrong.any():
            at = int(np.argmax(wrong))
            where = f"{name} of element {at}: "
            expected, got = (f"{where}{each[name][at]:.6g}" for each in (ours, theirs))
            findings.add("statistics", message, expected=expected, got=got, **facts)
            return
    if stored[0].count != found[0].count:
        expected, got = (f"{each[0].count} rows" for each in (found, stored))
        findings.add("statistics", message, expected=expected, got=got, **facts)
