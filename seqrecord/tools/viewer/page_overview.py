"""Overview of a page: facts, features, statistics, rates, splits, versions and the inventory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from seqrecord.errors import SeqRecordError
from seqrecord.store.format.inventory import Inventory
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.summary import FeatureSummary, Summary, summarize
from seqrecord.store.reading.versions import list_versions
from seqrecord.store.statistics.by_feature import FeatureStatistics
from seqrecord.store.text import codec_text, number_text, shown_place
from seqrecord.store.units import format_size
from seqrecord.tools.viewer.page_episodes import PageFeatures

_MAX_CHANNELS = 32  # of a feature's statistics
_MAX_ITEMS = 200  # of an inventory, versions, bad episodes
_BINS = 40
_HISTOGRAM = (160, 28)  # width and height

Facts = list[tuple[str, str]]


def overview(features: PageFeatures) -> dict[str, Any]:
    """Values for the page's template; texts are not escaped."""
    source = features.source
    dataset, summary = source.dataset, summarize(source.dataset)
    return {
        "name": source.name,
        "place": shown_place(dataset.url),
        "facts": _facts(summary, len(source.numbers)),
        "features": [_feature(feature) for feature in summary.features],
        "hidden": list(features.hidden),
        "statistics": list(_statistics(dataset)),
        "rates": _rates(dataset),
        "splits": _splits(dataset),
        "versions": _versions(dataset),
        "inventories": [_inventory(inventory) for inventory in summary.inventories],
        "bad": list(dataset.bad_episodes.items())[:_MAX_ITEMS],
        "num_bad": len(dataset.bad_episodes),
    }


def _facts(summary: Summary, num_shown: int) -> Facts:
    lengths = f"{summary.shortest_episode:,} to {summary.longest_episode:,} frames"
    raw = summary.raw_bytes
    facts = [
        ("episodes", f"{summary.num_episodes:,}"),
        ("shown here", f"{num_shown:,}" if num_shown < summary.num_episodes else ""),
        ("frames", f"{summary.num_frames:,}"),
        ("length of an episode", f"{lengths}, median {summary.median_episode:,.10g}"),
        ("joined with", ", ".join(summary.companions)),
        ("record files", f"{summary.num_record_files:,}, {format_size(summary.record_bytes)}"),
        ("decoded", "" if raw is None else format_size(raw)),
        ("original files", ", ".join(summary.originals)),
        ("written by", summary.created_by),
        ("fingerprint", summary.fingerprint),
    ]
    return [(name, value) for name, value in facts if value]


def _feature(feature: FeatureSummary) -> dict[str, str]:
    spec, ratio = feature.spec, feature.ratio
    return {
        "name": spec.name,
        "kind": spec.kind or "",
        "unit": spec.unit or "",
        "dtype": spec.value_kind.dtype_text(spec),
        "shape": spec.value_kind.shape_text(spec),
        "codec": codec_text(spec.codec),
        "stored": format_size(feature.stored_bytes),
        "ratio": "" if ratio is None else f"{ratio:.2f}x",
        "missing": f"{feature.num_missing:,}" if feature.num_missing else "",
    }


def _statistics(dataset: Dataset) -> Iterator[dict[str, Any]]:
    """Stored statistics by feature, with a histogram for each channel."""
    with suppress(SeqRecordError):  # `info` and `verify` report damaged statistics
        for name, spec in dataset.features.items():
            if name in dataset.statistics and spec.kind not in ("mask", "segmentation"):
                statistics = dataset.statistics[name]
                count = len(statistics.sketches)
                yield {
                    "name": name,
                    "unit": spec.unit or "",
                    "channels": [_channel(statistics, i) for i in range(min(count, _MAX_CHANNELS))],
                    "more": max(0, count - _MAX_CHANNELS),
                    "wrong": statistics.non_finite_text() if statistics.non_finite else "",
                }


def _channel(statistics: FeatureStatistics, number: int) -> dict[str, str]:
    sketch = statistics.sketches[number]
    is_known = sketch.count > 0
    values = (sketch.min, sketch.max, sketch.mean, sketch.std) if is_known else ()
    low, high, mean, std = (number_text(float(v or 0)) for v in values) if values else [""] * 4
    num_wrong = int(statistics.num_nan[number] + statistics.num_infinite[number])
    return {
        "number": str(number),
        "low": low,
        "high": high,
        "mean": mean,
        "std": std,
        "wrong": f"{num_wrong:,}" if num_wrong else "",
        "path": _histogram(statistics, number) if is_known else "",
    }


def _histogram(statistics: FeatureStatistics, number: int) -> str:
    """Path of an SVG: the share of the values in bins from the minimum to the maximum."""
    sketch = statistics.sketches[number]
    low, high = float(sketch.min or 0), float(sketch.max or 0)
    width, height = _HISTOGRAM
    if not low < high or not np.isfinite(high - low):
        return f"M{width / 2 - 2} {height}v-{height}h4v{height}z"
    shares = np.linspace(0, 1, 4 * _BINS + 1)
    values = sketch.quantiles(shares.tolist()).astype(np.float64)
    bins, _ = np.histogram(values, _BINS, (low, high))
    tops = height * (1 - bins / bins.max())
    step = width / _BINS
    steps = " ".join(f"V{top:.1f}h{step:g}" for top in tops)
    return f"M0 {height} {steps} V{height}z"


def _rates(dataset: Dataset) -> Facts:
    """Declared rates with the number of episodes."""
    rates = dataset.contents.index.fps.tolist()
    counts = Counter(f"{fps:g}" if fps else "unknown" for fps in rates)
    return [(fps, f"{count:,}") for fps, count in counts.most_common(10)]


def _splits(dataset: Dataset) -> Facts:
    splits = {name: len(keys) for name, keys in dataset.splits.items()}
    num_without_split = len(dataset.episodes) - sum(splits.values())
    facts = [(name, f"{count:,}") for name, count in splits.items()]
    return [*facts, ("none", f"{num_without_split:,}")] if splits and num_without_split else facts


def _versions(dataset: Dataset) -> list[dict[str, str]]:
    if dataset.contents.externals is not None:
        return []  # an index of an original has none of its own
    try:
        versions = list_versions(dataset.contents.storage)
    except SeqRecordError:  # a web server cannot list files
        return []
    return [
        {
            "id": version.id,
            "until": "current" if version.until is None else f"{version.until:%Y-%m-%d %H:%M} UTC",
            "episodes": f"{version.num_episodes:,}",
            "frames": f"{version.num_frames:,}",
            "command": version.command or "",
        }
        for version in versions[:_MAX_ITEMS]
    ]


def _inventory(inventory: Inventory) -> dict[str, Any]:
    minor_omissions = [omission for omission in inventory.left_out if not omission.is_data]
    return {
        "format": f"{inventory.format}: {inventory.reason}",
        "left_out": [str(omission) for omission in inventory.left_out_data][:_MAX_ITEMS],
        "others": [str(omission) for omission in minor_omissions][:_MAX_ITEMS],
        "notes": list(inventory.notes)[:_MAX_ITEMS],
        "features": [str(feature) for feature in inventory.features][:_MAX_ITEMS],
    }
