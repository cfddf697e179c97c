"""Episodes of a page: rows of the list, and pictures, curves and captions of each episode."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from seqrecord.errors import ClipError, SeqRecordError
from seqrecord.store.processes.machine import usable_cores
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.reading.episode import Episode
from seqrecord.store.reading.filters import EpisodeDescription
from seqrecord.store.reading.measured_rates import measured_rate
from seqrecord.store.schema import FeatureSpec
from seqrecord.tools.viewer.kinds import Kind, kind_of
from seqrecord.tools.viewer.page_budget import Share
from seqrecord.tools.viewer.page_curves import Curves, captions, gaps
from seqrecord.tools.viewer.page_pictures import (
    PICTURE_KINDS,
    SPRITE_COLUMNS,
    PictureScale,
    Tile,
    encode_sprite,
    resized,
    tile_size,
)
from seqrecord.tools.viewer.page_sources import PageSource
from seqrecord.tools.viewer.view import spread

_MAX_METADATA = 1500  # characters of an episode's metadata
_MAX_VALUE = 300
_MAX_NAME = 60
_BLOCK_BYTES = 32 << 20  # of decoded frames, per thread
_SCALE_FRAMES = 8
_STILL = 0.25  # of 255: mean difference of two pictures that are the same

Row = dict[str, Any]
Store = Callable[[bytes], str]
"""Keeps an encoded picture and returns its address in the page."""


@dataclass(frozen=True)
class PageFeatures:
    """Features of a source by the way a page shows them, and scales of colors.

    `hidden` are those that it does not draw.
    """

    source: PageSource
    kinds: Mapping[str, Kind]
    pictures: tuple[str, ...]
    curves: tuple[str, ...]
    texts: tuple[str, ...]
    hidden: tuple[str, ...]
    scales: dict[str, PictureScale] = field(default_factory=dict)

    @classmethod
    def of(cls, source: PageSource) -> PageFeatures:
        """Sort the features by their plot types."""
        specs = source.dataset.features
        kinds = {n: kind_of(n, spec.dtype, spec.shape, spec.kind) for n, spec in specs.items()}
        arrays = [name for name, spec in specs.items() if spec.value == "array"]
        pictures = tuple(name for name in arrays if kinds[name] in PICTURE_KINDS)
        curves = tuple(name for name in arrays if kinds[name] == "curves")
        texts = tuple(name for name, spec in specs.items() if spec.value == "text")
        shown = {*pictures, *curves, *texts}
        hidden = tuple(name for name in specs if name not in shown)
        return cls(source, kinds, pictures, curves, texts, hidden)

    @property
    def num_channels(self) -> int:
        """Number of curves of an episode."""
        specs = self.source.dataset.features
        return sum(math.prod(n or 0 for n in specs[name].shape) for name in self.curves)

    @property
    def vectors(self) -> tuple[str, ...]:
        """Features whose outliers are counted."""
        specs = self.source.dataset.features
        return tuple(n for n in self.curves if specs[n].kind in ("state", "action", "pose"))

    def channel_names(self) -> dict[str, list[str]]:
        """Names of a vector's channels, as the first episode's metadata has them."""
        [number] = self.source.numbers[:1]
        names = self.source.dataset.contents.index.episode_metadata(number).get("names")
        return {
            name: [str(item)[:_MAX_NAME] for item in items]
            for name, items in (names.items() if isinstance(names, dict) else ())
            if name in self.curves
            and isinstance(items, list)
            and len(items) == math.prod(n or 0 for n in self.source.dataset.features[name].shape)
        }

    def fit_scales(self) -> None:
        """Fit the scales of colors to frames of evenly spaced episodes."""
        dataset = self.source.dataset
        chosen = spread(len(self.source.numbers), _SCALE_FRAMES)
        keys = dataset.contents.index.keys_of(np.array(self.source.numbers)[chosen])
        for name in self.pictures:
            kind, spec = self.kinds[name], dataset.features[name]
            needs_frames = kind in ("depth", "scale", "flow")
            frames = []
            for key in keys if needs_frames else ():
                with suppress(SeqRecordError):  # its row tells the error
                    episode = dataset.episodes[key]
                    having = np.flatnonzero(episode.present(name))
                    if len(having):
                        frame = int(having[len(having) // 2])
                        frames.append(episode.read([frame], features=[name])[name][0])
            sample = frames or [np.zeros((1, 1, 2) if kind == "flow" else (1, 1))]
            self.scales[name] = PictureScale.of(kind, sample, spec.unit)


def rows_of(number: int, source: PageSource) -> Iterator[Row]:
    """Rows of a source's episodes from the index, without frames."""
    dataset = source.dataset
    index, splits = dataset.contents.index, dataset.contents.manifest.splits
    gap_features = [n for n, spec in dataset.features.items() if len(index.group_of(n).gaps)]
    for episode_number in source.numbers:
        found = EpisodeDescription(index, splits, episode_number)
        row: Row = {"key": found.key, "frames": found.num_frames, "metadata": _metadata(found)}
        row |= {"source": number} if number else {}
        row |= {"fps": round(found.fps, 6)} if found.fps else {}
        row |= {"split": found.split} if found.split else {}
        if gap_features:
            episode = dataset.episodes[found.key]
            missing = {n: int((~episode.present(n)).sum()) for n in gap_features}
            missing = {name: count for name, count in missing.items() if count}
            row |= {"missing": missing} if missing else {}
        yield row


def _metadata(entries: Mapping[str, Any]) -> list[list[str]]:
    pairs: list[list[str]] = []
    room = _MAX_METADATA
    for name, value in entries.items():
        text = _value_text(value)
        text = text[:_MAX_VALUE] + "…" * (len(text) > _MAX_VALUE)
        room -= len(name) + len(text)
        if room < 0:
            pairs.append(["…", f"{len(entries) - len(pairs)} more entries"])
            break
        pairs.append([name, text])
    return pairs


def _value_text(value: Any) -> str:
    """A metadata value as text: lists of texts without JSON's quotes."""
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class EpisodePages:
    """Reads episodes of one source in threads. Each thread holds about 32 MiB of frames."""

    def __init__(self, features: PageFeatures, share: Share, store: Store) -> None:
        self._features, self._share, self._store = features, share, store
        dataset = features.source.dataset
        self._dataset = dataset
        self._tiles = {name: self._tile(dataset, name) for name in features.pictures}
        self._small = dataset
        for name in self._tiles if share.picture else ():
            # Refused for flow, whose values depend on the size, and for some others.
            with suppress(ClipError):
                sizes = {**self._small.contents.sizes, name: self._tiles[name] or (0, 0)}
                if self._tiles[name]:
                    self._small = self._small.resized(sizes)

    def _tile(self, dataset: Dataset, name: str) -> tuple[int, int] | None:
        height, width = dataset.features[name].shape[:2]
        if height is None or width is None or not self._share.picture:
            return None
        return tile_size(height, width, self._share.pixels)

    def read(self, rows: list[Row]) -> Iterator[None]:
        """Add pictures, curves and captions to rows; yields after each."""
        with ThreadPoolExecutor(usable_cores(), "page") as threads:
            try:
                yield from threads.map(self._add, rows)
            finally:
                threads.shutdown(cancel_futures=True)

    def _add(self, row: Row) -> None:
        try:
            self._read(row)
        except SeqRecordError as error:
            row["error"] = str(error)[:500]

    def _read(self, row: Row) -> None:
        key, share, features = row["key"], self._share, self._features
        episode, small = self._dataset.episodes[key], self._small.episodes[key]
        numbers: dict[str, float] = {}
        rate = measured_rate(episode)
        if rate is not None:
            numbers |= {"rate": rate.mean_fps, "step": rate.max_step}
        for name in row.get("missing", ()):
            row.setdefault("gaps", {})[name] = gaps(episode, name)
        if share.points:
            curves = {n: self._curves(episode, n) for n in features.curves}
            row["curves"] = {name: curve.to_json() for name, curve in curves.items()}
            row["sums"] = {n: (c.sums, c.low, c.high) for n, c in curves.items()}
        if share.text:
            row["texts"] = {name: captions(episode, name, share.text) for name in features.texts}
        pictures, light, still = {}, [], []
        for name in features.pictures if share.picture else ():
            frames, tiles = self._tiles_of(episode, small, name)
            if tiles and features.kinds[name] == "picture":
                light.append(float(np.mean([tile.mean() for tile in tiles])) / 2.55)
                still.append(_share_still(tiles))
            if (picture := self._picture(frames, tiles)) is not None:
                pictures[name] = picture
        if share.picture:
            row["pictures"] = pictures
        numbers |= {"light": min(light), "still": 100 * max(still)} if light else {}
        row["numbers"] = {name: float(f"{value:.4g}") for name, value in numbers.items()}

    def _curves(self, episode: Episode, name: str) -> Curves:
        return Curves(episode, self._dataset.features[name], self._share.points)

    def _tiles_of(
        self, episode: Episode, small: Episode, name: str
    ) -> tuple[list[int], list[Tile]]:
        """Numbers and tiles of evenly spaced frames that have the feature."""
        scale = self._features.scales[name]
        spec: FeatureSpec = small.features[name]
        present = episode.present(name)
        frames = [n for n in spread(len(episode), self._share.tiles) if present[n]]
        at_once = max(1, _BLOCK_BYTES // max(1, spec.nbytes)) if spec.is_fixed else 1
        tiles: list[Tile] = []
        size = self._tiles[name]
        for start in range(0, len(frames), at_once):
            block = frames[start : start + at_once]
            for frame in small.read(block, features=[name])[name]:
                tile = scale.colours(frame)
                size = size or tile_size(tile.shape[0], tile.shape[1], self._share.pixels)
                tiles.append(resized(tile, size, smooth=scale.kind != "labels"))
        return frames, tiles

    def _picture(self, frames: list[int], tiles: list[Tile]) -> dict[str, Any] | None:
        """A sprite within the share; of every second frame and so on if all take more."""
        while tiles:
            data = encode_sprite(tiles, self._share.picture * 3 // 4 - 100)
            if data is not None:
                height, width = tiles[0].shape[:2]
                columns = min(SPRITE_COLUMNS, len(tiles))
                form = {"frames": frames, "size": [height, width], "columns": columns}
                return {"src": self._store(data), **form}
            if len(tiles) == 1:
                return None
            tiles, frames = tiles[::2], frames[::2]
        return None


def _share_still(tiles: list[Tile]) -> float:
    """Share of successive pictures without a change."""
    changes = [float(np.abs(a.astype(np.int16) - b).mean()) for a, b in pairwise(tiles)]
    return sum(change < _STILL for change in changes) / len(changes) if changes else 0.0


def add_outliers(rows: list[Row], names: Mapping[int, tuple[str, ...]]) -> None:
    """Add each row's greatest distance from a mean over all rows, in standard deviations.

    `names` are the features that count, by source.
    """
    totals: dict[tuple[int, str], Any] = {}
    for row in rows:
        for name, (sums, _, _) in row.get("sums", {}).items():
            place = row.get("source", 0), name
            totals[place] = totals.get(place, 0) + sums
    for row in rows:
        greatest = []
        for name, (_, low, high) in row.pop("sums", {}).items():
            source = row.get("source", 0)
            if name in names[source]:
                count, total, squares = totals[source, name]
                mean = total / np.maximum(count, 1)
                deviation = np.sqrt(np.maximum(squares / np.maximum(count, 1) - mean**2, 0))
                far = np.fmax(np.abs(low - mean), np.abs(high - mean))[deviation > 0]
                greatest += (far / deviation[deviation > 0])[np.isfinite(far)].tolist()
        if greatest:
            row["numbers"]["outlier"] = float(f"{max(greatest):.3g}")
