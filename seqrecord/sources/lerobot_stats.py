"""The statistics that a LeRobot dataset has of itself, for `seqrecord.add_statistics(given=…)`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import FormatError, SourceError, located
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.sources.lerobot_layout import LeRobotInfo, read_stats
from seqrecord.statistics.by_feature import FeatureStatistics, Statistics, num_channels
from seqrecord.statistics.sketch import Sketch, sketch_dtype


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
                    sketches = _sketches(said, spec, scale)
                    for one, more in zip(found.setdefault(name, sketches), sketches, strict=True):
                        if one is not more:
                            one.merge(more)
    return Statistics(
        num_frames,
        {
            name: FeatureStatistics(min(sketches[0].count, num_frames), tuple(sketches))
            for name, sketches in found.items()
            if sketches
        },
    )


def _sketches(said: Mapping[str, Any], spec: FeatureSpec, scale: int) -> list[Sketch]:
    """One without levels for each channel; none where there are other channels here."""
    dtype, channels = sketch_dtype(spec.dtype), num_channels(spec)
    if dtype is None or channels is None:
        return []
    with located(SourceError, feature=spec.name):
        try:
            mean, std, low, high = (
                np.array(said[key], np.float64).ravel() * scale
                for key in ("mean", "std", "min", "max")
            )
            count = int(np.array(said["count"]).item())
            if not len(mean) == len(std) == len(low) == len(high) == channels:
                return []
            if dtype.kind in "iu":
                low, high = np.rint(low), np.rint(high)
            ends = [
                (dtype.type(a).item(), dtype.type(b).item()) for a, b in zip(low, high, strict=True)
            ]
            empty = Sketch(dtype).to_json()
            return [
                Sketch.from_json(
                    {**empty, "count": count, "mean": m, "std": s, "min": a, "max": b}, dtype
                )
                for m, s, (a, b) in zip(mean.tolist(), std.tolist(), ends, strict=True)
            ]
        except (KeyError, TypeError, ValueError, OverflowError, FormatError) as error:
            raise SourceError(
                "statistics that cannot be",
                expected="mean, std, min, max and count",
                got=str(error)[:200],
            ) from error
