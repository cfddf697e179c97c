"""A LeRobot dataset's own statistics, to compare with its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.store.statistics.moments import Moments, merge_moments

NAMES = ("min", "max", "mean", "std")


def add_moments(totals: dict[str, list[Moments]], name: str, moments: list[Moments]) -> None:
    """Add a feature's moments to `totals`. Raises `SourceError` if their lengths differ."""
    if len(feature_totals := totals.setdefault(name, moments)) != len(moments):
        raise SourceError(
            "statistics differ in size", expected=len(feature_totals), got=len(moments)
        )
    if feature_totals is not moments:
        merge_moments(feature_totals, moments)


def stored_moments(raw: Mapping[str, Any], count: int) -> list[Moments]:
    """Return LeRobot's statistics of a feature by element. Raises `SourceError` if invalid.

    `count` is the default for entries without a count.
    """
    try:
        numbers = [np.array(raw[name], np.float64).ravel() for name in NAMES]
        count = int(np.array(raw.get("count", count)).item())
        elements = np.stack(numbers, 1)
        if not elements.size or count < 1 or not np.isfinite(elements).all():
            raise ValueError("empty or non-finite numbers")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        expected = f"{', '.join(NAMES)} and count"
        raise SourceError("invalid statistics", expected=expected, got=str(error)[:200]) from error
    return [
        Moments(count=count, **dict(zip(NAMES, element, strict=True)))
        for element in elements.tolist()
    ]
