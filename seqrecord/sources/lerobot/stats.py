"""A LeRobot dataset's own statistics, for `seqrecord.add_statistics(given=…)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from seqrecord.errors import FormatError, SourceError, located
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.sources.lerobot.layout import LeRobotInfo, read_stats
from seqrecord.statistics.by_feature import FeatureStatistics, Statistics, num_channels
from seqrecord.statistics.moments import Moments
from seqrecord.statistics.sketch import Sketch, sketch_dtype

NAMES = ("min", "max", "mean", "std")
_M = TypeVar("_M", bound=Moments)


def own_statistics(root: Path, info: LeRobotInfo, schema: Schema, num_frames: int) -> Statistics:
    """Return count, mean, standard deviation and range; for version 2.1 merged over its episodes.

    Quantiles are omitted: LeRobot averages those of episodes. Images range from 0 to 255, as
    raw, and count the frames that LeRobot sampled. Features with per-element statistics in
    LeRobot but fewer channels here have none.
    """
    found: dict[str, list[Sketch]] = {}
    place, records = read_stats(root, info)
    with located(SourceError, file=str(place)):
        for record in records:
            for name, spec in schema.items():
                raw, known = record.get(name), info.features.get(name)
                if isinstance(raw, dict) and known is not None and known.depth is None:
                    scale = 255 if known.dtype in ("image", "video") else 1
                    add_moments(found, name, _sketches(raw, spec, scale))
    return Statistics(
        num_frames,
        {
            name: FeatureStatistics(min(sketches[0].count, num_frames), tuple(sketches))
            for name, sketches in found.items()
            if sketches
        },
    )


def add_moments(totals: dict[str, list[_M]], name: str, more: list[_M]) -> None:
    """Add a feature's moments to `totals`. Raises `SourceError` if the numbers of elements differ.

    Sketches have no levels.
    """
    if len(before := totals.setdefault(name, more)) != len(more):
        raise SourceError("statistics differ in size", expected=len(before), got=len(more))
    if before is not more:
        for one, other in zip(before, more, strict=True):
            one.add_moments(other)


def _sketches(raw: Mapping[str, Any], spec: FeatureSpec, scale: int) -> list[Sketch]:
    """Return a sketch without levels per channel; empty if the number of channels differs."""
    dtype, channels = sketch_dtype(spec.dtype), num_channels(spec)
    if dtype is None or channels is None:
        return []
    with located(SourceError, feature=spec.name):
        moments = stored_moments(raw)
        if len(moments) != channels:
            return []
        try:
            return [_sketch(each, dtype, scale) for each in moments]
        except (ValueError, OverflowError, FormatError) as error:
            raise _not_statistics(error) from error


def _sketch(moments: Moments, dtype: np.dtype[Any], scale: int) -> Sketch:
    numbers = {name: getattr(moments, name) * scale for name in NAMES}
    for name in ("min", "max"):
        end = np.rint(numbers[name]) if dtype.kind in "iu" else numbers[name]
        numbers[name] = dtype.type(end).item()
    return Sketch.from_json({**Sketch(dtype).to_json(), "count": moments.count, **numbers}, dtype)


def stored_moments(raw: Mapping[str, Any], count: int | None = None) -> list[Moments]:
    """Return LeRobot's statistics of a feature by element. Raises `SourceError` if invalid.

    `count` is the default for entries without a count.
    """
    try:
        numbers = [np.array(raw[name], np.float64).ravel() for name in NAMES]
        count = int(np.array(raw["count"] if count is None else raw.get("count", count)).item())
        elements = np.stack(numbers, 1)
        if not elements.size or count < 1 or not np.isfinite(elements).all():
            raise ValueError("empty or non-finite numbers")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _not_statistics(error) from error
    return [
        Moments(count=count, **dict(zip(NAMES, each, strict=True))) for each in elements.tolist()
    ]


def _not_statistics(error: Exception) -> SourceError:
    expected = f"{', '.join(NAMES)} and count"
    return SourceError("invalid statistics", expected=expected, got=str(error)[:200])
