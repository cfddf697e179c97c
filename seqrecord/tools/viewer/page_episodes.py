"""Episodes of a page: rows of the list, and pictures, curves and captions of each episode."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
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
from seqrecord.tools.viewer.page_budget import Contents, Share
from seqrecord.tools.viewer.page_curves import Curves, captions, gaps
from seqrecord.tools.viewer.page_faults import share_still, thumbnail
from seqrecord.tools.viewer.page_pictures import (
    PICTURE_KINDS,
    SPRITE_COLUMNS,
    PictureScale,
    Tile,
    encode_sprite,
    pixel_bytes,
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
_SAMPLE_PIXELS = 128 * 96  # of pictures whose bytes are measured
_DECODED_PIXELS = 8_000_000_000  # of all video: about 20 s of a core
_BINARY = 0.75  # of base64's size
_PICTURE_BYTES = 90  # of the JSON around a picture

Row = dict[str, Any]
Store = Callable[[int, int, bytes], str]
"""Keeps a picture by its numbers of episode and feature; returns its address in the page."""


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
    pixel_sizes: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, source: PageSource) -> PageFeatures:
        """Sort the features by their plot types."""
        specs = source.dataset.features
        dtypes = {name: spec.value_kind.number_dtype(spec) for name, spec in specs.items()}
        kinds = {
            n: kind_of(n, dtypes[n] or spec.dtype, spec.shape, spec.kind)
            for n, spec in specs.items()
        }
        arrays = [name for name, dtype in dtypes.items() if dtype is not None]
        pictures = tuple(name for name in arrays if kinds[name] in PICTURE_KINDS)
        curves = tuple(name for name in arrays if kinds[name] == "curves")
        texts = tuple(name for name, spec in specs.items() if spec.value == "text")
        shown = {*pictures, *curves, *texts}
        hidden = tuple(name for name in specs if name not in shown)
        return cls(source, kinds, pictures, curves, texts, hidden)

    @property
    def contents(self) -> Contents:
        """Numbers for the page's budget, after `fit_scales`."""
        specs = self.source.dataset.features
        channels = sum(math.prod(n or 0 for n in specs[name].shape) for name in self.curves)
        sizes = sum(self.pixel_sizes.values())
        counts = len(self.pictures), len(self.curves), channels, len(self.texts)
        frames = self.source.dataset.contents.index.num_frames[self.source.numbers]
        return Contents(*counts, max_frames=int(frames.max()), pixel_bytes=sizes)

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
        sampled_episodes = spread(len(self.source.numbers), _SCALE_FRAMES)
        keys = dataset.contents.index.keys_of(np.array(self.source.numbers)[sampled_episodes])
        for name in self.pictures:
            kind, spec = self.kinds[name], dataset.features[name]
            needs_scale = kind in ("depth", "scale", "flow")
            frames = []
            for key in keys if needs_scale else keys[:: max(1, len(keys) // 2)]:
                with suppress(SeqRecordError):  # its row tells the error
                    episode = dataset.episodes[key]
                    frames_with_feature = np.flatnonzero(episode.present(name))
                    places = spread(len(frames_with_feature), -(-_SCALE_FRAMES // len(keys)))
                    for place in places:
                        number = [int(frames_with_feature[place])]
                        frames.append(episode.read(number, features=[name])[name][0])
            sample = frames or [np.zeros((1, 1, 2) if kind == "flow" else (1, 1))]
            scale = PictureScale.of(kind, sample, spec.unit)
            tiles = [scale.colours(frame) for frame in sample[:2]]
            sizes = [tile_size(tile.shape[0], tile.shape[1], _SAMPLE_PIXELS) for tile in tiles]
            small_tiles = [resized(t, n, smooth=True) for t, n in zip(tiles, sizes, strict=True)]
            self.scales[name], self.pixel_sizes[name] = scale, pixel_bytes(small_tiles)


def rows_of(number: int, source: PageSource) -> Iterator[Row]:
    """Rows of a source's episodes from the index, without frames."""
    dataset = source.dataset
    index, splits = dataset.contents.index, dataset.contents.manifest.splits
    gap_features = [n for n, spec in dataset.features.items() if len(index.group_of(n).gaps)]
    for episode_number in source.numbers:
        description = EpisodeDescription(index, splits, episode_number)
        row: Row = {
            "key": description.key,
            "frames": description.num_frames,
            "metadata": _metadata(description),
        }
        row |= {"source": number} if number else {}
        row |= {"fps": round(description.fps, 6)} if description.fps else {}
        row |= {"split": description.split} if description.split else {}
        if gap_features:
            episode = dataset.episodes[description.key]
            missing_counts = {n: int((~episode.present(n)).sum()) for n in gap_features}
            missing_counts = {name: count for name, count in missing_counts.items() if count}
            row |= {"missing": missing_counts} if missing_counts else {}
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
    """Reads episodes of one source in threads. Each thread needs about 32 MiB for frames.

    `num_episodes` is the number in the whole page, whose time for decoding is limited: of video
    with distant keyframes, only keyframes are shown where it does not suffice.
    """

    def __init__(
        self, features: PageFeatures, share: Share, store: Store, *, num_episodes: int
    ) -> None:
        self._features, self._share, self._store = features, share, store
        dataset = features.source.dataset
        self._dataset = dataset
        specs = dataset.features
        self._videos = [name for name in features.pictures if specs[name].is_video]
        pixels = sum(math.prod(n or 0 for n in specs[name].shape[:2]) for name in self._videos)
        self._max_decoded = _DECODED_PIXELS // max(1, pixels * num_episodes)
        self._tiles = {name: self._tile(dataset, name) for name in features.pictures}
        total = sum(features.pixel_sizes.values())
        self._limits = {
            name: max(0, int(share.pictures * size / total * _BINARY) - _PICTURE_BYTES)
            for name, size in features.pixel_sizes.items()
        }
        self._small = dataset
        for name in self._tiles if share.pictures else ():
            # Refused for flow, whose values depend on the size, and for some others.
            with suppress(ClipError):
                sizes = {**self._small.contents.sizes, name: self._tiles[name] or (0, 0)}
                if self._tiles[name]:
                    self._small = self._small.resized(sizes)

    def _tile(self, dataset: Dataset, name: str) -> tuple[int, int] | None:
        height, width = dataset.features[name].shape[:2]
        if height is None or width is None or not self._share.pictures:
            return None
        return tile_size(height, width, self._share.pixels)

    def read(self, rows: list[tuple[int, Row]]) -> Iterator[None]:
        """Add pictures, curves and captions to numbered rows; yields after each."""
        with ThreadPoolExecutor(usable_cores(), "page") as threads:
            try:
                yield from threads.map(self._add, rows)
            finally:
                threads.shutdown(cancel_futures=True)

    def _add(self, numbered: tuple[int, Row]) -> None:
        number, row = numbered
        try:
            self._read(number, row)
        except SeqRecordError as error:
            row["error"] = str(error)[:500]

    def _read(self, place: int, row: Row) -> None:
        key, share, features = row["key"], self._share, self._features
        episode, small_episode = self._dataset.episodes[key], self._small.episodes[key]
        numbers: dict[str, float] = {}
        rate = measured_rate(episode)
        if rate is not None:
            numbers |= {"rate": rate.mean_fps, "step": rate.max_step}
        for name in row.get("missing", ()):
            row.setdefault("gaps", {})[name] = gaps(episode, name)
        if share.points:
            curves, moments = dict[str, Any](), dict[str, Any]()
            for name in features.curves:
                curve = Curves(episode, self._dataset.features[name], share.points)
                curves[name], moments[name] = curve.to_json(), curve.moments
            row["curves"], row["moments"] = curves, moments
        if share.text:
            row["texts"] = {name: captions(episode, name, share.text) for name in features.texts}
        brightness, still_shares, thumbnails = list[float](), list[float](), list[Any]()
        if share.pictures:
            pictures, page_frames = dict[str, Any](), self._frames_of(episode)
            for number, name in enumerate(features.pictures):
                frames, tiles = self._tiles_of(episode, small_episode, name, page_frames)
                if tiles and features.kinds[name] == "picture":
                    brightness.append(float(np.mean([tile.mean() for tile in tiles])) / 2.55)
                    still_shares.append(share_still(tiles))
                    thumbnails.append(thumbnail(tiles))
                store = partial(self._store, place, number)
                if (picture := self._picture(frames, tiles, self._limits[name], store)) is not None:
                    pictures[name] = picture
            row["pictures"] = pictures
        if thumbnails:
            row["thumbnail"] = np.concatenate(thumbnails)
            numbers |= {"light": min(brightness), "still": 100 * max(still_shares)}
        row["numbers"] = {name: float(f"{value:.4g}") for name, value in numbers.items()}

    def _frames_of(self, episode: Episode) -> list[int]:
        """Evenly spaced frames, the same for all cameras.

        Moved towards starts of chunks, which are keyframes, if decoding a video takes too long.
        """
        frames = spread(len(episode), self._share.tiles)
        for name in self._videos:
            table = self._dataset.contents.index.group_of(name)
            number = self._dataset.contents.index.positions[episode.key]
            starts = np.maximum(table.first_frame[table.rows_of(number)], 0)
            chunk = np.searchsorted(starts, frames, side="right") - 1
            last_frames = {int(i): frame for i, frame in zip(chunk, frames, strict=True)}
            cost = sum(frame + 1 - int(starts[i]) for i, frame in last_frames.items())
            if cost > self._max_decoded:
                # Frames near a start are cheap; others move to the last of these, or to a start.
                reach = max(1, self._max_decoded // len(last_frames)) - 1
                earlier = np.minimum(frames, starts[chunk] + reach)
                later = np.append(starts, 2 * len(episode))[chunk + 1]
                is_nearer = later - frames < frames - earlier
                return sorted({*np.where(is_nearer, later, earlier).tolist()})
        return frames

    def _tiles_of(
        self, episode: Episode, small_episode: Episode, name: str, page_frames: list[int]
    ) -> tuple[list[int], list[Tile]]:
        """Numbers and tiles of the chosen frames that have the feature."""
        scale = self._features.scales[name]
        spec: FeatureSpec = small_episode.features[name]
        present = episode.present(name)
        frames = [n for n in page_frames if present[n]]
        nbytes = spec.value_kind.constant_nbytes(spec) or _BLOCK_BYTES
        block_frames = max(1, _BLOCK_BYTES // nbytes)
        tiles: list[Tile] = []
        size = self._tiles[name]
        for start in range(0, len(frames), block_frames):
            block = frames[start : start + block_frames]
            for frame in small_episode.read(block, features=[name])[name]:
                tile = scale.colours(frame)
                size = size or tile_size(tile.shape[0], tile.shape[1], self._share.pixels)
                tiles.append(resized(tile, size, smooth=scale.kind != "labels"))
        return frames, tiles

    def _picture(
        self, frames: list[int], tiles: list[Tile], limit: int, store: Callable[[bytes], str]
    ) -> dict[str, Any] | None:
        """A sprite of at most `limit` bytes; of every second frame and so on if all take more."""
        while tiles:
            data = encode_sprite(tiles, limit)
            if data is not None:
                height, width = tiles[0].shape[:2]
                columns = min(SPRITE_COLUMNS, len(tiles))
                form = {"frames": frames, "size": [height, width], "columns": columns}
                return {"src": store(data), **form}
            if len(tiles) == 1:
                return None
            tiles, frames = tiles[::2], frames[::2]
        return None
