"""Compares a LeRobot dataset's statistics with its rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from seqrecord.formats.sources.lerobot.layout import LeRobotFeature, LeRobotInfo, read_stats
from seqrecord.formats.sources.lerobot.stats import NAMES, add_moments, stored_moments
from seqrecord.store.statistics.moments import Moments
from seqrecord.tools.doctor.doctor_report import Findings

_EXTREMES, _MEANS = 1e-3, 0.05  # tolerances, relative to range and standard deviation
_ROUNDING = 1e-6
_OF_POLICIES = ("observation", "action")
"""Prefixes of features that LeRobot's policies normalise, as in its dataset_to_policy_features.

LeRobot's own edits leave the statistics of other columns stale, or compute none for an added one,
and no training reads them.
"""


def check_statistics(
    root: Path, info: LeRobotInfo, row_moments: Mapping[str, list[Moments]], findings: Findings
) -> None:
    """Compare the stored statistics with `row_moments`, the moments of the rows by feature.

    Findings are errors for features that policies normalise, and warnings for others.
    """
    file_moments: dict[str, list[Moments]] = {}
    names_with_statistics: set[str] = set()
    scaled_names: set[str] = set()  # images with statistics outside 0 to 1
    place, records = read_stats(root, info)
    file = place.relative_to(root).as_posix()
    for record in records:
        for name in info.features:
            if not isinstance(entry := record.get(name), dict):
                continue
            names_with_statistics.add(name)
            feature = info.features[name]
            facts = {"file": file, "feature": name, "severity": _severity(name, feature)}
            if feature.dtype in ("image", "video") and feature.depth is None:
                with findings.caught("statistics", **facts):
                    if _is_scaled(stored_moments(entry, 1)) and name not in scaled_names:
                        scaled_names.add(name)
                        message = "statistics of images are outside 0 to 1"
                        findings.add("statistics", message, **facts)
            if row_moments.get(name):
                with findings.caught("statistics", **facts):
                    add_moments(
                        file_moments, name, stored_moments(entry, row_moments[name][0].count)
                    )
    for name, feature in info.features.items():
        facts = {"file": file, "feature": name, "severity": _severity(name, feature)}
        if name not in names_with_statistics and feature.dtype not in ("string", "language"):
            findings.add("statistics", "a feature without statistics", **facts)
        elif name in file_moments:
            _compare(file_moments[name], row_moments[name], findings, **facts)


def _severity(name: str, feature: LeRobotFeature) -> str:
    is_normalised = feature.dtype in ("image", "video") or name.startswith(_OF_POLICIES)
    return "error" if is_normalised else "warning"


def _is_scaled(elements: list[Moments]) -> bool:
    return any((moments.min or 0) < 0 or (moments.max or 0) > 1 for moments in elements)


def _compare(
    file_moments: list[Moments], row_moments: list[Moments], findings: Findings, **facts: str
) -> None:
    """Report at most one finding: the first number that differs."""
    message = "statistics differ from the rows"
    if len(file_moments) != len(row_moments):
        expected, got = (f"{len(moments)} elements" for moments in (row_moments, file_moments))
        findings.add("statistics", message, expected=expected, got=got, **facts)
        return
    theirs, ours = (
        {
            name: np.array([getattr(moments, name) for moments in elements], np.float64)
            for name in NAMES
        }
        for elements in (file_moments, row_moments)
    )
    span = ours["max"] - ours["min"]
    rounding = _ROUNDING * np.maximum(np.abs(ours["min"]), np.abs(ours["max"]))
    allowed = _EXTREMES * span + rounding
    for name in NAMES:
        if name in ("mean", "std"):
            allowed = _EXTREMES * span + rounding + _MEANS * ours["std"]
        differs = ~(np.abs(theirs[name] - ours[name]) <= allowed)
        if differs.any():
            at = int(np.argmax(differs))
            where = f"{name} of element {at}: "
            expected, got = (f"{where}{moments[name][at]:.6g}" for moments in (ours, theirs))
            findings.add("statistics", message, expected=expected, got=got, **facts)
            return
    if file_moments[0].count != row_moments[0].count:
        expected, got = (f"{moments[0].count} rows" for moments in (row_moments, file_moments))
        findings.add("statistics", message, expected=expected, got=got, **facts)
