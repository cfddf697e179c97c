"""The statistics that a LeRobot dataset has of itself, for `seqrecord.add_statistics(given=…)`."""

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
    """Counts, means, deviations and extremes; of version 2.1 merged from those of its episodes.

    There are no quantiles: LeRobot averages those of episodes. Images are from 0 to 255, as they
    are stored, and counted by frames that LeRobot has looked at. Features whose statistics LeRobot
    has by element, where there are fewer channels here, have none.
    """
    found: dict[str, list[Sketch]] = {}
    place, records = read_stats(root, info)
    with located(SourceError, file=str(place)):
        for record in records:
            for name, spec in schema.items():
                said, known = record.get(name), info.features.get(name)
                if isinstance(said, dict) and known is not None and known.depth is None:
                    scale = 255 if known.dtype in ("image", "video") else 1
                    add_moments(found, name, _sketches(said, spec, scale))
    return Statistics(
        num_frames,
        {
            name: FeatureStatistics(min(sketches[0].count, num_frames), tuple(sketches))
            for name, sketches in found.items()
            if sketches
        },
    )


def add_moments(totals: dict[str, list[_M]], name: str, more: list[_M]) -> None:
    """Add what each element of a feature has; raises `SourceError` for other numbers of elements.

    Sketches have no levels.
    """
    if len(before := totals.setdefault(name, more)) != len(more):
        raise SourceError("statistics of other sizes", expected=len(before), got=len(more))
    if before is not more:
        for one, other in zip(before, more, strict=True):
            one.add_moments(other)


def _sketches(said: Mapping[str, Any], spec: FeatureSpec, scale: int) -> list[Sketch]:
    """One without levels for each channel; none where there are other channels here."""
    dtype, channels = sketch_dtype(spec.dtype), num_channels(spec)
    if dtype is None or channels is None:
        return []
    with located(SourceError, feature=spec.name):
        moments = stored_moments(said)
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


def stored_moments(said: Mapping[str, Any], count: int | None = None) -> list[Moments]:
    """What LeRobot says of a feature, by element; raises `SourceError`.

    `count` is that of an entry without one.
    """
    try:
        numbers = [np.array(said[name], np.float64).ravel() for name in NAMES]
        count = int(np.array(said["count"] if count is None else said.get("count", count)).item())
        elements = np.stack(numbers, 1)
        if not elements.size or count < 1 or not np.isfinite(elements).all():
            raise ValueError("numbers of nothing, or that are not finite")
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise _not_statistics(error) from error
    return [
        Moments(count=count, **dict(zip(NAMES, each, strict=True))) for each in elements.tolist()
    ]


def _not_statistics(error: Exception) -> SourceError:
    expected = f"{', '.join(NAMES)} and count"
    return SourceError("statistics that cannot be", expected=expected, got=str(error)[:200])
