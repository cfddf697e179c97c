"""Numbers of a page that point at faults: each is a column in the list of episodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.errors import ClipError
from seqrecord.loader.clips.sample_tables import table_columns
from seqrecord.store.statistics.moments import Moments, merge_moments
from seqrecord.tools.viewer.page_pictures import Tile, resized

TASK_NAMES = ("task", "tasks", "language_instruction", "instruction")
"""Names of metadata that hold an episode's task; the page's script has the same."""

_STILL = 0.25  # of 255: mean difference of two pictures that are the same
_THUMBNAIL = (6, 8)  # pixels of the pictures that are compared
_NEIGHBOURS = 3  # episodes of a task. 1: a single other mistake hides one
_BLOCK_ROWS = 256  # of a matrix of distances

Thumbnail = npt.NDArray[np.float32]


def share_still(tiles: list[Tile]) -> float:
    """Share of successive pictures without a change."""
    changes = [float(np.abs(a.astype(np.int16) - b).mean()) for a, b in pairwise(tiles)]
    return sum(change < _STILL for change in changes) / len(changes) if changes else 0.0


def thumbnail(tiles: list[Tile]) -> Thumbnail:
    """A camera's first, mean and last picture in few pixels, float32[n]."""
    small_tiles = np.stack([resized(tile, _THUMBNAIL, smooth=True) for tile in tiles])
    pictures = np.stack([small_tiles[0], small_tiles.mean(axis=0), small_tiles[-1]])
    return pictures.astype(np.float32).ravel()


def task_of(row: Mapping[str, Any]) -> str:
    """The task in an episode's metadata, else its first caption of the feature `task`, or ""."""
    for name, value in row["metadata"]:
        if name in TASK_NAMES:
            return str(value)
    runs = row.get("texts", {}).get("task", {}).get("runs")
    return str(runs[0][2]) if runs else ""


def add_unlikeness(rows: list[dict[str, Any]]) -> None:
    """Add to each row how unlike its task the pictures are.

    The number is the mean distance to the three nearest episodes of the same task, divided by the
    mean distance to the three nearest of other tasks. Above 1, the task may be wrong. A row lacks
    the number if fewer than three episodes have its task, or another one, or if the pictures of
    other tasks are the same.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    for place, row in enumerate(rows):
        if "thumbnail" in row and task_of(row):  # of one source, and as many cameras
            groups.setdefault((row.get("source", 0), len(row["thumbnail"])), []).append(place)
    for places in groups.values():
        tasks = np.unique([task_of(rows[place]) for place in places], return_inverse=True)[1]
        thumbnails = np.stack([rows[place]["thumbnail"] for place in places])
        for place, ratio in zip(places, _unlikeness(thumbnails, tasks), strict=True):
            if math.isfinite(ratio):
                rows[place].setdefault("numbers", {})["unlike"] = float(f"{ratio:.3g}")
    for row in rows:
        row.pop("thumbnail", None)


def _unlikeness(thumbnails: Thumbnail, tasks: npt.NDArray[np.int64]) -> Iterator[float]:
    """Each thumbnail's ratio of distances, or NaN; see `add_unlikeness`."""
    squares = (thumbnails**2).sum(axis=1)
    for start in range(0, len(tasks), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        products = thumbnails[block] @ thumbnails.T
        distances = np.sqrt(np.maximum(squares[block, None] + squares - 2 * products, 0))
        for number, row_distances in enumerate(distances, start):
            same_task = tasks == tasks[number]
            other_distances = row_distances[~same_task]
            same_task[number] = False
            own_distances = row_distances[same_task]
            if min(len(own_distances), len(other_distances)) < _NEIGHBOURS:
                yield math.nan
                continue
            own, other = (
                float(np.partition(part, _NEIGHBOURS - 1)[:_NEIGHBOURS].mean())
                for part in (own_distances, other_distances)
            )
            is_same = other < _STILL * math.sqrt(thumbnails.shape[1])
            yield math.nan if is_same else own / other


def add_outliers(rows: list[dict[str, Any]], names: Mapping[int, tuple[str, ...]]) -> None:
    """Add each row's greatest distance from a mean over all rows, in standard deviations.

    `names` are the features that count, by source.
    """
    totals: dict[tuple[int, str], list[Moments]] = {}
    for row in rows:
        for name, channels in row.get("moments", {}).items():
            place = row.get("source", 0), name
            merge_moments(totals.setdefault(place, [Moments() for _ in channels]), channels)
    for row in rows:
        greatest, source = 0.0, row.get("source", 0)
        for name, channels in row.pop("moments", {}).items():
            if name in names[source]:
                pairs = zip(channels, totals[source, name], strict=True)
                greatest = max([greatest, *(_farthest(*pair) for pair in pairs)])
        if greatest:
            row.setdefault("numbers", {})["outlier"] = float(f"{greatest:.3g}")


def _farthest(moments: Moments, total: Moments) -> float:
    """The greatest distance from the mean of `total`, in its deviations; 0 if it has none."""
    if moments.min is None or moments.max is None or not total.std:
        return 0.0
    distance = max(total.mean - moments.min, moments.max - total.mean) / total.std
    return distance if math.isfinite(distance) else 0.0


def add_quality(rows: list[dict[str, Any]], path: Path) -> list[str]:
    """Add numbers of a quality table to rows by episode; returns its columns.

    Raises `ClipError` if the file is no such table, or if an episode of it is in several sources.
    """
    table = table_columns(path)
    columns = {
        name: values.to_pylist()
        for name, values in table.items()
        if values.type in (pa.int64(), pa.float64())
    }
    if "episode" not in table or not columns:
        raise ClipError(
            "not a table of `seqrecord doctor --quality`",
            file=str(path),
            expected="a column `episode` and numbers",
            got=", ".join(table)[:200],
        )
    places = {key: place for place, key in enumerate(table["episode"].to_pylist())}
    counts = Counter(row["key"] for row in rows)
    if shared := next((key for key in places if counts[key] > 1), None):
        raise ClipError(
            "the table does not tell of which source an episode is",
            file=str(path),
            episode=shared,
            expected="a table of one source, and a page of it",
            got=f"{counts[shared]} sources with this episode",
        )
    for row in rows:
        if (place := places.get(row["key"])) is not None:
            numbers = {name: values[place] for name, values in columns.items()}
            row["quality"] = {
                name: float(f"{value:.4g}")
                for name, value in numbers.items()
                if value is not None and math.isfinite(value)
            }
    return [name for name in columns if name != "num_frames"]
