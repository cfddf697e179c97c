"""Source for LeRobot datasets: Parquet rows and images, video packets, and depth videos."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SchemaError, SourceError, located
from seqrecord.formats.sources.common.embedded import embedded_spec
from seqrecord.formats.sources.common.originals import FirstError, InPlace, files_below
from seqrecord.formats.sources.common.specs import UnsupportedError, select_names, text_spec
from seqrecord.formats.sources.common.splits import stored_split
from seqrecord.formats.sources.inventory import Account
from seqrecord.formats.sources.lerobot.counts import (
    check_tasks,
    frames_in_files,
    listed_overlaps,
    wrong_totals,
)
from seqrecord.formats.sources.lerobot.language import (
    EVENTS,
    PERSISTENT,
    Resolver,
    Rows,
    parse_resolvers,
    persistent_rows,
)
from seqrecord.formats.sources.lerobot.layout import (
    INFO,
    LeRobotEpisode,
    LeRobotFeature,
    LeRobotInfo,
    number_columns,
    read_episodes,
    read_info,
    read_texts,
)
from seqrecord.formats.sources.lerobot.lerobot_account import LeRobotAccount
from seqrecord.formats.sources.lerobot.pairing import Jitter
from seqrecord.formats.sources.lerobot.rows import EpisodeRows, NumberedTexts, image_bytes
from seqrecord.formats.sources.lerobot.videos import LeRobotVideos, depth_scale, read_spec
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import is_file
from seqrecord.in_place.references import external_files, identity_of_files
from seqrecord.store.format.manifest import SPLIT_NAME
from seqrecord.store.format.references import ExternalFile
from seqrecord.store.originals.protocol import EpisodeInfo, SourceFormat
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import Block, FeatureSpec, Frame, Schema
from seqrecord.video.gops import DecodedFrame, Gop
from seqrecord.video.references import ReferencedGops

_DERIVED = ("frame_index", "episode_index", "index", "task_index")
"""Columns that are not packed: a row's position, or a number that stands for a text."""

_MOST_TRIED = 32  # episodes of a table whose first image is tried
_NO_FEATURES = {*_DERIVED, PERSISTENT}

_AXES = {"height", "width", "channel", "channels"}


@dataclass(frozen=True)
class LeRobotSource(InPlace):
    """A LeRobot dataset of version 2.0, 2.1 or 3.0.

    ::

        ROOT/meta/info.json                                 features, fps, names
        ROOT/data/chunk-000/file-000.parquet                v3.0: rows of many episodes
        ROOT/videos/KEY/chunk-000/file-000.mp4              v3.0: frames of many episodes
        ROOT/data/chunk-000/episode_000000.parquet          v2.x: rows of one episode
        ROOT/videos/chunk-000/KEY/episode_000000.mp4        v2.x: frames of one episode

    Episode keys are `episode_000000` by number. Features have their LeRobot names. Shape [1]
    becomes a scalar, as in LeRobot; images are uint8 [H, W, 3]; `timestamp` is in seconds from the
    episode's start. `frame_index`, `episode_index` and `index` are not packed.

    Index columns become texts, since the numbers differ between datasets: `task_index` becomes the
    feature `task`; `subtask_index` becomes `subtask` if there is `meta/subtasks.parquet`; so do
    GR00T's `annotation.…` columns if there is `meta/modality.json`. An episode's metadata has
    `episode_index` (its number in this dataset), `tasks`, `robot_type`, and `names` of feature
    elements. Splits of `info.json` are splits of the dataset, unless all episodes are in `train`,
    which is what LeRobot writes if nobody divides them: `seqrecord split` does. A name that no
    split may have is `split` in the metadata.

    Of lerobot's language columns, `language_persistent` is in an episode's metadata;
    `language_events` is a text feature, each frame's list as JSON, empty without events. `language`
    adds text features, see `Resolver`: their frames lack a text if no row matches.

    Packets of H.264, HEVC, AV1 and VP9 are stored unchanged. Depth of lerobot 0.6 is float32 [H, W]
    in metres as video, see `DepthScale`, and as TIFF images uint16 [H, W] in millimetres or float32
    [H, W] in metres.

    Args:
        root: folder of the dataset.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        without_video: exclude all features stored as video.
        tolerance: each row gets the frame nearest to its timestamp, which must be less than
            `tolerance` seconds away, as in lerobot. Default 0.1 ms; rows whose times jitter around
            those of their frames are then paired with them in order, with a warning.
        in_place: reference video packets instead of copying them.
        language: expressions of lerobot's recipes by text feature, for example
            `{"subtask": "active_at(t, style=subtask)"}`, also as JSON.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file, episode and feature for inconsistent or unreadable data.
    """

    without_video: bool = False
    tolerance: float | None = None
    language: Mapping[str, str | Resolver] | str = field(default_factory=dict)

    keeps_in_place = None
    unpickled = ("_episodes", "_rows", "_videos")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "language", parse_resolvers(self.language))

    def exists(self) -> bool:
        """Return whether `root` has `meta/info.json`."""
        return is_file(self.path / INFO)

    def schema(self) -> Schema:
        return self._schema

    def episodes(self) -> Sequence[EpisodeInfo]:
        if not self._episodes:
            raise SourceError("LeRobot dataset without episodes", file=str(self.root))
        return [self._info_of(episode) for episode in self._episodes.values()]

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        for block in self.blocks(info):
            yield from block.frames()

    def blocks(self, info: EpisodeInfo) -> Iterator[Block]:
        """Yield the frames in blocks, one per batch of rows; with images frame by frame."""
        episode = self._episode(info)
        with located(SourceError, episode=info.key):
            yield from self._rows.blocks(episode)

    def timestamps(self, info: EpisodeInfo) -> npt.NDArray[np.float64]:
        """Return the rows' timestamps in seconds, float64 [T]."""
        with located(SourceError, episode=info.key):
            return self._rows.times(self._episode(info))

    def account(self) -> Account:
        return LeRobotAccount(
            root=self.path,
            info=self._info,
            episodes=self._episodes.values(),
            schema=self.schema(),
            derived=_DERIVED,
            numbered=self._numbered,
            language=self._resolvers,
            jitter=Jitter(self._info.fps, self._rows.times, self.tolerance),
        ).account()

    def is_whole(self) -> bool:
        """Return whether the folder contains nothing but the dataset."""
        return True

    def identity(self) -> str:
        """Return a hash that changes with any file."""
        return identity_of_files(self.path, self._files("meta", "data", "videos"))

    def copied_files(self) -> dict[str, ExternalFile]:
        """Return the files from which an index copies values: all except videos."""
        return external_files(self.path, sorted(self._files("meta", "data")))

    def _files(self, *folders: str) -> Iterator[Path]:
        return filter(is_file, chain.from_iterable(files_below(self.path / f) for f in folders))

    def content(self, previous_content: str = "") -> str:
        """Return a number of episodes and a hash of their content, except video files.

        `previous_content` is an earlier result: its number of episodes is used; by default all
        episodes.
        """
        count = int(previous_content.partition(" ")[0] or len(self._episodes))
        episodes = [*self._episodes.values()][:count]
        tables = dict.fromkeys(episode.file for episode in episodes if episode.error is None)
        paths = (self.path / table for table in tables)
        files = external_files(self.path, filter(is_file, paths)).values()
        # A new episode may claim frames of an earlier one, which is bad then too.
        bad_keys = listed_overlaps(self._episodes.values(), self._info)
        facts = (
            *(self.schema().to_json(), [self._info_of(episode) for episode in episodes], episodes),
            [episode.key for episode in episodes if episode.key in bad_keys],
            [self._texts(column) for column in self._numbered.values()],
            [(file.path, file.size, file.identity) for file in files],
        )
        return f"{count} {hashlib.sha256(repr(facts).encode()).hexdigest()}"

    def external_files(self) -> dict[str, ExternalFile]:
        """Return the video files that GOPs may reference, by path."""
        good_episodes = [episode for episode in self._episodes.values() if episode.error is None]
        files = dict.fromkeys(
            episode.videos[name].file for episode in good_episodes for name in self._videos
        )
        return external_files(self.path, [self.path / file for file in files])

    def videos(self, info: EpisodeInfo) -> dict[str, Iterator[Gop | ReferencedGops | DecodedFrame]]:
        """Return the GOPs of an episode's video features; its frames omit these features."""
        episode = self._episode(info)
        with located(SourceError, episode=info.key):
            return {
                name: video.gops(episode, self._rows.times(episode))
                for name, video in self._videos.items()
            }

    def _episode(self, info: EpisodeInfo) -> LeRobotEpisode:
        episode = self._episodes.get(info.key)
        if episode is None:
            raise SourceError("no such episode", file=str(self.root), episode=info.key)
        persistent = self._persistent.get(episode.index)
        error = episode.error or (persistent if isinstance(persistent, SourceError) else None)
        if error is not None:
            facts = {**error.context(), "episode": info.key}
            raise SourceError(error.message, **facts) from error
        if not episode.length:
            file = str(self.path / episode.file)
            raise SourceError("episode without frames", file=file, episode=info.key)
        return episode

    @cached_property
    def _info(self) -> LeRobotInfo:
        return read_info(self.path)

    @cached_property
    def _episodes(self) -> dict[str, LeRobotEpisode]:
        episodes = read_episodes(self.path, self._info)
        for error in wrong_totals(self.path, self._info, episodes) if episodes else ():
            raise error
        return {episode.key: episode for episode in episodes}

    @cached_property
    def _rows(self) -> EpisodeRows:
        schema = self.schema()
        texts = {
            name: NumberedTexts(column, self._texts(column))
            for name, column in self._numbered.items()
            if name in schema
        }
        columns = {n: spec for n, spec in schema.items() if n not in self._info.videos}
        num_rows = frames_in_files(self._episodes.values(), lambda episode: episode.file)
        return EpisodeRows(
            *(self.path, columns, texts),
            num_rows=num_rows,
            exif=self.exif,
            language={n: resolver for n, resolver in self._resolvers.items() if n in schema},
            persistent=self._persistent_of,
        )

    def _persistent_of(self, episode: LeRobotEpisode) -> Rows:
        rows = self._persistent.get(episode.index)
        return None if isinstance(rows, SourceError) else rows

    @property
    def _resolvers(self) -> Mapping[str, Resolver]:
        return self.language  # type: ignore[return-value]

    @cached_property
    def _persistent(self) -> dict[int, Rows | SourceError]:
        """Persistent rows of each episode, by number."""
        rows_by_episode: dict[int, Rows | SourceError] = {}
        files = {episode.file for episode in self._episodes.values() if episode.error is None}
        for file in sorted(files) if PERSISTENT in self._info.features else ():
            with skipping_unreadable():  # raised by reading the rows
                rows_by_episode |= persistent_rows(self.path / file)
        return rows_by_episode

    def _texts(self, column: str) -> dict[int, str]:
        texts = read_texts(self.path, self._info, column)
        if column == "task_index":
            check_tasks(self.path, self._info, len(texts))
        return texts

    @cached_property
    def _numbered(self) -> dict[str, str]:
        """Index column by text feature."""
        return number_columns(self.path, self._info)

    @cached_property
    def _videos(self) -> dict[str, LeRobotVideos]:
        features, schema, episodes = self._info.features, self.schema(), self._episodes.values()
        return {
            name: LeRobotVideos(
                *(self.path, features[name], schema[name], self.tolerance),
                fps=self._info.fps,
                episodes=episodes,
                span_of=self._rows.span,
                in_place=self.in_place,
            )
            for name in schema
            if name in self._info.videos
        }

    @cached_property
    def _schema(self) -> Schema:
        replaced_names = {*_NO_FEATURES, *self._numbered.values()}
        offered = {
            n: feature for n, feature in self._info.features.items() if n not in replaced_names
        }
        # Text features, stored as numbers in the rows.
        offered |= {n: LeRobotFeature(n, "string", (1,), None) for n in self._numbered}
        self._check_language(offered)
        offered |= {n: LeRobotFeature(n, "language", (1,), None) for n in self.language}
        selection = self.features
        if selection is None and self.without_video:
            selection = [name for name in offered if name not in self._info.videos]
        names = select_names(offered, selection, self.path / INFO, "no such feature")
        specs = self.specs_of(
            {n: offered[n] for n in names}, lambda _, feature: self._spec(feature)
        )
        self.check_any(specs)
        return Schema(specs)

    def _check_language(self, offered: Collection[str]) -> None:
        """Raise `SourceError` for a resolver without its column, or with the name of a feature."""
        for name, resolver in self._resolvers.items():
            column = EVENTS if resolver.is_of_events else PERSISTENT
            if name in offered or column not in self._info.features:
                raise SourceError(
                    "language names a feature of the dataset"
                    if name in offered
                    else f"the dataset has no {column}",
                    file=str(self.path / INFO),
                    feature=name[:100],
                    got=str(resolver),
                )

    def _spec(self, feature: LeRobotFeature) -> FeatureSpec:
        path = self.path / INFO
        try:
            if feature.dtype == "video" and feature.depth is not None:
                depth_scale(feature, path)
            if feature.dtype in ("image", "video"):
                return self._first_spec(feature)
            if feature.dtype == "string" or feature.name in (EVENTS, *self.language):
                return text_spec(feature.name, path)
            shape = () if feature.shape == (1,) else feature.shape
            kind, unit = _meaning(feature.name)
            return FeatureSpec(feature.name, np.dtype(feature.dtype), shape, kind=kind, unit=unit)
        except (SchemaError, TypeError, ValueError, SyntaxError) as error:
            raise UnsupportedError(
                f"unsupported feature; select others (--features): {error}"[:300],
                file=str(path),
                feature=feature.name[:100],
                got=f"{feature.dtype} {list(feature.shape)}"[:100],
            ) from error

    def _first_spec(self, feature: LeRobotFeature) -> FeatureSpec:
        """Return the spec from the first readable episode: the declared shape may be [C, H, W].

        A file of many episodes may be damaged in one of them.
        """
        is_video = feature.dtype == "video"
        errors, num_tried, rows = FirstError(), Counter[str](), Counter[str]()
        for episode in self._episodes.values():
            if episode.error is not None:  # without files
                continue
            file = episode.videos[feature.name].file if is_video else episode.file
            first_row = rows[file]
            rows[file] += episode.length
            # A video has one table for all its episodes; a table has images of each.
            if num_tried[file] >= (1 if is_video else _MOST_TRIED):
                continue
            num_tried[file] += 1
            path = self.path / file
            with errors.skipped(episode=episode.key, feature=feature.name):
                if is_video:
                    spec = read_spec(feature, path, self.path / INFO)
                else:
                    data = image_bytes(path, feature.name, first_row)
                    keep_encoded = self.keep_encoded
                    spec = embedded_spec(
                        feature.name,
                        data,
                        path,
                        keep_encoded=keep_encoded,
                        exif=self.exif,
                        palettes=self.palettes,
                    )
                    spec = replace(spec, **feature.depth_meaning)
                feature.check_size(spec, path)
                return spec
        raise errors.first or SourceError("LeRobot dataset without episodes", file=str(self.root))

    def _info_of(self, episode: LeRobotEpisode) -> EpisodeInfo:
        metadata: dict[str, Any] = {"episode_index": episode.index, "tasks": list(episode.tasks)}
        if self._info.robot_type is not None:
            metadata["robot_type"] = self._info.robot_type
        split = self._info.split_of(episode.index)
        if split is not None and not SPLIT_NAME.fullmatch(split):
            metadata["split"] = split
        if names := self._names:
            metadata["names"] = names
        if (rows := self._persistent_of(episode)) is not None:
            metadata[PERSISTENT] = rows
        num_frames, split = max(episode.length, 1), stored_split(split, self._split_names)
        return EpisodeInfo(episode.key, num_frames, metadata, self._info.fps, split)

    @cached_property
    def _split_names(self) -> frozenset[str | None]:
        """Splits of all episodes; `None` of those without one."""
        return frozenset(self._info.split_of(e.index) for e in self._episodes.values())

    @cached_property
    def _names(self) -> dict[str, Any]:
        """Names of features' elements, except names of image axes."""
        features = self._info.features
        element_names = {name: features[name].names for name in self.schema() if name in features}
        return {
            name: names
            for name, names in element_names.items()
            if names and not (isinstance(names, list) and _AXES.issuperset(map(str, names)))
        }


def _meaning(name: str) -> tuple[str | None, str | None]:
    """Return kind and unit of LeRobot's standard feature names."""
    if name == "timestamp":
        return "timestamp", "s"
    if name == "action" or name.startswith("action."):
        return "action", None
    if name.startswith(("observation.state", "observation.environment_state")):
        return "state", None
    return None, None


FORMAT = SourceFormat(
    "lerobot",
    "meta/info.json and data/chunk-000/*.parquet",
    LeRobotSource,
    options=("without_video", "tolerance", "exif", "language"),
    takes_urls=True,
)
