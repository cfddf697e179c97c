"""Export as a LeRobot dataset of version 3.0.

::

    DESTINATION/meta/{info,stats}.json, tasks.parquet, episodes/chunk-000/file-000.parquet
    DESTINATION/data/chunk-000/file-000.parquet           rows of many episodes, with PNG images
    DESTINATION/videos/FEATURE/chunk-000/file-000.mp4     one for each episode

The layout is that of lerobot 0.6.1, see https://huggingface.co/docs/lerobot/lerobot-dataset-v3.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from seqrecord.errors import ClipError, SchemaError, located
from seqrecord.formats.converting.convert_jobs import Meter
from seqrecord.formats.converting.dataset_source import DatasetSource
from seqrecord.formats.export.files import disk_errors, exported_features, new_folder
from seqrecord.formats.export.lerobot_meta import (
    OWN,
    TASK,
    TIMESTAMP,
    LeRobotColumn,
    LeRobotMeta,
    RowFile,
    collector,
    file_name,
    language_array,
    names_unseen_by_policies,
    plan_columns,
)
from seqrecord.formats.sources.lerobot.language import PERSISTENT
from seqrecord.store.reading.dataset import Dataset, DatasetLike
from seqrecord.store.reading.episode import Episode
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.reading.measured_rates import measured_rate
from seqrecord.store.reading.opening import opened
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.statistics.by_feature import Statistics
from seqrecord.store.statistics.collecting import StatisticsCollector
from seqrecord.store.storage.url import local_path
from seqrecord.store.units import Progress, exact_rate
from seqrecord.video.config import VideoConfig
from seqrecord.video.container import TimedPacket, mux_mp4
from seqrecord.video.decoding import declares_colours, decode_gop, display_order
from seqrecord.video.encoding import encode_gop
from seqrecord.video.gops import Gop
from seqrecord.video.packages import video_errors
from seqrecord.video.page_tables import parse_video_page

_logger = logging.getLogger("seqrecord")

_STEP_BYTES = 64 << 20  # of frames in memory
_SAME = 1e-4  # seconds, lerobot's tolerance
_SAMPLED, _SAMPLED_IN_ALL = 8, 4096  # video frames for statistics: per episode, in all; at most
_TICKS = 512  # per frame, as other writers use


def to_lerobot(
    dataset: DatasetLike,
    destination: str | PathLike[str],
    *,
    episodes: EpisodeFilter = None,
    features: Sequence[str] | None = None,
    fps: float | None = None,
    video: str | None = None,
    rename: Mapping[str, str] | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Path:
    """Write episodes as a LeRobot dataset of version 3.0; returns its folder.

    H.264, HEVC, AV1 and VP9 video is copied packet by packet into an MP4 file per episode and
    camera. If an episode begins between two keyframes, its file begins at the keyframe before, and
    its `from_timestamp` is above 0, provided that all frames before it are in exported episodes.
    Groups of pictures with other frames that are decoded but not shown, for example trimmed ones,
    are encoded again, with a warning: they are not exported; so is all of such an episode if its
    H.264 does not itself declare its colours. Other images, uint8 [H, W, 3], become
    PNG in the rows, which is lossless, or with `video` are encoded; other features become columns.
    Depth in m or mm is a video of LeRobot's codes if it is one, and otherwise TIFF in the rows:
    float32 or uint16 [H, W, 1]. `language_events`, and `language_persistent` of the episodes'
    metadata, become LeRobot's language columns.

    Episodes, and LeRobot's `index` of frames, are in the dataset's order. Since LeRobot's splits
    are ranges, episodes of a split that are not consecutive are moved, with a warning.

    Row i of an episode has the timestamp i / fps; a warning names the largest difference from the
    dataset's timestamps. A different feature `timestamp` becomes `recorded_timestamp`. The task is
    a text feature `task`, or the first of `tasks` in the episode's metadata. Statistics of an
    episode cover its rows, and one to eight frames of its video. Statistics of the dataset are its
    own if all episodes are exported, without unknown quantiles; else merged from the episodes.

    lerobot 0.6.1 loads the dataset and trains on it, and its tools append, merge and delete
    episodes.

    Args:
        dataset: local path or URL, or an open dataset.
        destination: a local folder, empty or new.
        episodes: keys, a glob, or a predicate on metadata; all by default. `meta/seqrecord.json`
            lists their keys in the order of their numbers.
        features: names of the features, all by default.
        fps: frames per second, if the dataset lacks it.
        video: codec for images that are no video: "h264", "av1", …, with options as for
            `--codec`, such as "h264:quality=20". Not lossless.
        rename: names of columns by feature, `{"state": "observation.state"}`. LeRobot's policies
            see the columns `action`, `observation.…` and the task only; a warning lists others.
        progress: called from this thread, several times per second.
        storage_options: for the filesystem that serves the dataset's URL.

    Raises `DestinationError` for a folder that is not empty, `SchemaError` for a feature that
    LeRobot does not support (bytes, bfloat16, complex numbers, varying shapes, reserved names,
    values of texts), for other values in language columns, and for an unknown, repeated or
    reserved name in `rename`, `ClipError` for an episode with frames that lack a feature, or
    without a frame rate, and `CodecError` for an invalid `video`.

    Example:
        from seqrecord import export

        folder = export.to_lerobot("records/", "exported/", features=["image", "action"], fps=10)
    """
    with opened(dataset, storage_options=storage_options) as reader:
        numbers = reader.contents.find_episodes(episodes).tolist()
        splits = reader.contents.index.split[numbers].tolist()
        first_places = {split: place for place, split in reversed([*enumerate(splits)])}
        order = sorted(range(len(numbers)), key=lambda place: (first_places[splits[place]], place))
        if order != [*range(len(numbers))]:
            _logger.warning(
                "%s: splits are not consecutive episodes, so numbers of episodes and frames differ",
                reader.url,
            )
        selection = exported_features(reader, features)
        keys = list(selection.episodes)
        episodes_in_order = [selection.episodes[keys[numbers[place]]] for place in order]
        writer = _Writer(reader, selection, episodes_in_order, fps, progress, video, rename or {})
        writer.warn_of_times()
        root = local_path(destination, "destination")
        with disk_errors("the dataset", root), new_folder(root, "the folder", "meta") as target:
            writer.write(target)
        return root


class _Writer:
    def __init__(
        self,
        dataset: Dataset,
        reader: Dataset,
        episodes: Sequence[Episode],
        fps: float | None,
        progress: Callable[[Progress], None] | None,
        video: str | None,
        rename: Mapping[str, str],
    ) -> None:
        self._dataset = dataset  # whose timestamps count, selected or not
        self._reader, self._episodes = reader, episodes
        self._exported: dict[str, frozenset[bytes]] = {}  # packets by column, of a last GOP
        self._fps = _rate(episodes, fps)
        self._columns = [
            *plan_columns(
                reader.features,
                keeps_times=self._has_own_times(),
                has_persistent=any(PERSISTENT in episode.metadata for episode in episodes),
                video=video,
                rename=rename,
            )
        ]
        self._task_feature = next(
            (column.feature for column in self._columns if column.name == TASK), None
        )
        if unseen_names := names_unseen_by_policies(self._columns):
            _logger.warning(
                "%s: LeRobot's policies will not see %s: they see action, observation.… and the "
                "task; rename columns with rename= (--rename %s=observation.%s)",
                *(reader.url, ", ".join(unseen_names), unseen_names[0], unseen_names[0]),
            )
        self._meter = Meter(sum(map(len, episodes)), reader.features.frame_nbytes, progress)
        row_names = [column.feature for column in self._columns if not column.is_video]
        self._row_features = [name for name in row_names if name != PERSISTENT]
        for episode in episodes:
            for name in reader.features:
                if not (present := episode.present(name)).all():
                    raise ClipError(
                        "LeRobot does not support frames without a feature; choose other features",
                        episode=episode.key,
                        feature=name,
                        frame=int(np.argmin(present)),
                    )

    def warn_of_times(self) -> None:
        """Log the largest difference of the dataset's timestamps from i / fps."""
        fps, worst_deviation = float(self._fps), (_SAME, "", 0.0)
        for episode in self._episodes:
            if (rate := measured_rate(self._dataset.episodes[episode.key], fps)) is not None:
                worst_deviation = max(
                    worst_deviation, (rate.max_deviation, episode.key, rate.mean_fps)
                )
        seconds, key, mean_fps = worst_deviation
        if key:
            _logger.warning(
                "%s: rows have the times i / %g; timestamps differ by up to %.3g s (episode %s, "
                "%.6g frames per second on average)",
                *(self._dataset.url, fps, seconds, key, mean_fps),
            )

    def write(self, root: Path) -> None:
        index, names = self._reader.contents.index, self._reader.contents.manifest.splits
        numbers = (index.positions[episode.key] for episode in self._episodes)
        splits = Counter(index.split_of(number, names) for number in numbers)
        meta = LeRobotMeta(root, self._columns, self._episodes, self._fps, splits)
        file = RowFile(root / "data")
        first_row = 0
        for number, episode in enumerate(self._episodes):
            file.begin_episode()
            statistics = collector(self._columns)
            statistics.begin(episode.key)
            with located(SchemaError, episode=episode.key):
                tasks = self._write_rows(file, meta, statistics, episode, number, first_row)
            video_starts = {
                column.name: self._write_video(root, column, episode, number)
                for column in self._columns
                if column.is_video
            }
            self._collect_video_statistics(statistics, episode)
            statistics.skip(len(episode))
            statistics.keep()
            meta.add(tasks, file.number, first_row, video_starts, statistics.statistics())
            first_row += len(episode)
        file.close()
        is_all = len(self._episodes) == len(self._reader.episodes)
        meta.close(self._reader.statistics if is_all else Statistics(0, {}))
        self._meter.report()

    def _write_rows(
        self,
        file: RowFile,
        meta: LeRobotMeta,
        statistics: StatisticsCollector,
        episode: Episode,
        number: int,
        first_row: int,
    ) -> list[str]:
        """Write an episode's rows, from row `first_row` on; returns its tasks in order."""
        specs = [self._reader.features[name] for name in self._row_features]
        frame_bytes = sum(spec.value_kind.constant_nbytes(spec) or 0 for spec in specs)
        step = max(1, min(4096, _STEP_BYTES // max(1, frame_bytes)))
        tasks: dict[str, None] = {}
        default = _default_task(episode)
        persistent = self._persistent(episode)
        for start in range(0, len(episode), step):
            numbers = range(start, min(start + step, len(episode)))
            arrays = (
                episode.read(numbers, features=self._row_features) if self._row_features else {}
            )
            texts = arrays.get(self._task_feature or "") or [default] * len(numbers)
            frames = np.array(numbers)
            tasks.update(dict.fromkeys(texts))
            columns = {}
            for column in self._columns:
                if column.name == PERSISTENT:
                    columns[column.name] = persistent.take(
                        pa.array(np.zeros(len(frames), np.int64))
                    )
                elif not column.is_video and column.name != TASK:
                    columns[column.name] = column.array(arrays[column.feature])
                    if column.has_numbers:
                        statistics.add_frames(column.name, arrays[column.feature], frames)
            index_values = [
                frames,
                np.full(len(frames), number),
                frames + first_row,
                np.array([*map(meta.task_number, texts)]),
            ]
            times = (frames / float(self._fps)).astype(np.float32)
            for name, values in zip((TIMESTAMP, *OWN), (times, *index_values), strict=True):
                columns[name] = pa.array(values)
                statistics.add_frames(name, values, frames)
            file.write(pa.table(columns))
            self._meter.add(len(numbers))
        return list(tasks)

    def _persistent(self, episode: Episode) -> pa.Array:
        """The persistent rows of an episode, with times from its first frame on."""
        rows = episode.metadata.get(PERSISTENT) or []
        return language_array([rows], PERSISTENT, self._first_time(episode) if rows else 0.0)

    def _first_time(self, episode: Episode) -> float:
        """The `timestamp` of an episode's first frame, exported or not; 0 without a finite one."""
        episode = self._dataset.episodes[episode.key]
        spec = episode.features.get(TIMESTAMP)
        is_number = spec is not None and spec.shape in ((), (1,)) and spec.dtype.kind in "iuf"
        if not is_number or not episode.present(TIMESTAMP)[0]:
            return 0.0
        time = float(np.ravel(episode.read([0], features=[TIMESTAMP])[TIMESTAMP])[0])
        return time if math.isfinite(time) else 0.0

    def _collect_video_statistics(self, statistics: StatisticsCollector, episode: Episode) -> None:
        names = {column.feature: column.name for column in self._columns if column.is_video}
        count = max(1, min(_SAMPLED, _SAMPLED_IN_ALL // len(self._episodes), len(episode)))
        sampled_frames = np.linspace(0, len(episode) - 1, count).astype(np.int64)
        if names:
            images = episode.read(sampled_frames.tolist(), features=list(names))
            for feature, name in names.items():
                statistics.add_frames(name, images[feature], sampled_frames)

    def _write_video(self, root: Path, column: LeRobotColumn, episode: Episode, number: int) -> int:
        """Write an episode's video; returns the number of frames before the episode's first."""
        name, spec = column.feature, column.spec
        path = root / f"videos/{column.name}/{file_name(number)}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        gops: list[Gop] = []
        if VideoConfig.of(self._reader.features[name]) is not None:
            for count, data in DatasetSource(self._reader).pages(name, episode.key):
                gops += _gops(data, count, name)
        else:
            gops += self._encoded(column, episode)
        config = gops[0].config or VideoConfig.from_json(spec.codec[0])
        exported = self._exported.get(column.name, frozenset[bytes]())
        shown_gops, num_hidden = _unify_gops(gops, config, spec, f"{episode.key}, {name}", exported)
        # The next episode may begin in this GOP.
        self._exported[column.name] = frozenset(
            packet
            for packet, place in zip(gops[-1].packets, gops[-1].order, strict=True)
            if place >= 0 or packet in exported
        )
        # Frames are decoded up to this many packets before they are shown.
        delay = max(
            position - frame for gop in shown_gops for position, frame in enumerate(gop.order)
        )
        mux_mp4(
            str(path),
            config,
            (spec.shape[0] or 0, spec.shape[1] or 0),
            shown_gops[0].packets,
            _packet_times(shown_gops, delay),
            tick=Fraction(1, 1) / self._fps / _TICKS,
            duration=_TICKS,
            options={"movflags": "faststart"},
        )
        return num_hidden

    def _encoded(self, column: LeRobotColumn, episode: Episode) -> Iterator[Gop]:
        config = VideoConfig.from_json(column.spec.codec[0])
        size = config.encoding(*column.shape[:2]).gop or 1
        for start in range(0, len(episode), size):
            numbers = range(start, min(start + size, len(episode)))
            frames = episode.read(numbers, features=[column.feature])[column.feature]
            yield encode_gop(config, frames)

    def _has_own_times(self) -> bool:
        """Whether the dataset's timestamps differ from i / fps."""
        spec = self._reader.features.get(TIMESTAMP)
        if spec is None or spec.shape not in ((), (1,)) or spec.dtype.kind != "f":
            return spec is not None
        for episode in self._episodes:
            times = episode.read(range(len(episode)), features=[TIMESTAMP])[TIMESTAMP]
            regular_times = np.arange(len(episode)) / float(self._fps)
            deviations = np.abs(times.reshape(-1).astype(np.float64) - regular_times)
            if not (deviations <= _SAME).all():  # NaN differs, too
                return True
        return False


def _default_task(episode: Episode) -> str:
    task = episode.metadata.get("tasks") or episode.metadata.get("task")
    task = task[0] if isinstance(task, list) and task else task
    return task if isinstance(task, str) else ""


def _rate(episodes: Sequence[Episode], fps: float | None) -> Fraction:
    """Frames per second: `fps`, or the common rate of all episodes."""
    rates: list[Any] = [*{episode.fps for episode in episodes}] if fps is None else [fps]
    rate: Any = rates[0] if len(rates) == 1 else None
    is_number = isinstance(rate, (Real, Decimal))
    if not is_number or not 0 < rate < 1e6:
        raise ClipError(
            "LeRobot needs one frame rate for all episodes; pass fps (--fps)",
            expected="frames per second",
            got=", ".join(map(str, sorted(rates, key=str)))[:100],
        )
    return exact_rate(float(rate))


def _gops(data: memoryview, count: int, feature: str) -> Iterator[Gop]:
    """The GOPs of a page with `count` frames."""
    table = parse_video_page(data, count, feature)
    packets = [bytes(data[a:b]) for a, b in pairwise(table.offsets.tolist())]
    first_frames = table.first_frame.tolist()
    for (start, stop), first_frame in zip(
        pairwise(table.first_packet.tolist()), first_frames, strict=False
    ):
        order = [-1 if n < 0 else n - first_frame for n in table.order[start:stop].tolist()]
        yield Gop(tuple(packets[start:stop]), tuple(order), table.config)


class _Shown(NamedTuple):
    """Packets of a GOP, with the display position of each one's frame."""

    packets: Sequence[bytes]
    order: Sequence[int]


def _packet_times(gops: Sequence[_Shown], delay: int) -> Iterator[TimedPacket]:
    """Packets of GOPs; frame i is shown at i frame periods."""
    first_frame = 0
    for gop in gops:
        for place, (data, frame) in enumerate(zip(gop.packets, gop.order, strict=True)):
            pts, dts = (first_frame + frame) * _TICKS, (first_frame + place - delay) * _TICKS
            yield TimedPacket(data, pts, dts, place == 0)
        first_frame += len(gop.packets)


def _unify_gops(
    gops: Sequence[Gop],
    config: VideoConfig,
    spec: FeatureSpec,
    place: str,
    exported: Collection[bytes],
) -> tuple[list[_Shown], int]:
    """The GOPs in one configuration, and the number of frames before the first one of the episode.

    GOPs of another configuration, and with hidden frames behind or between the visible ones, are
    encoded again, with a warning about `place`. So are GOPs with hidden frames before the visible
    ones whose packets are not `exported`: they were trimmed, or are of other episodes. Encoded GOPs
    declare their colours, which H.264 keeps for those that do not: then all are encoded again.
    """
    feature_config = VideoConfig.from_json(spec.codec[0])
    height, width = (n or 0 for n in spec.shape[:2])
    kept_gops = list[_Shown | None]()
    for gop in gops:
        is_same, kept_gop = (gop.config or feature_config) == config, None
        if is_same and -1 not in gop.order:
            kept_gop = _Shown(gop.packets, gop.order)
        elif is_same and not kept_gops and _are_exported(gop, exported):
            kept_gop = _from_keyframe(gop, config.codec)
        kept_gops.append(kept_gop)
    keeps_colours = config.codec == "h264" and None in kept_gops
    if keeps_colours and not declares_colours(config, gops[0].packets):
        kept_gops = [None] * len(gops)
    shown_gops, count = list[_Shown](), 0
    for gop, kept_gop in zip(gops, kept_gops, strict=True):
        if kept_gop is None:
            count += gop.num_frames
            pixels = decode_gop(gop.config or feature_config, height, width, gop)
            encoded_gop = encode_gop(config, pixels)
            kept_gop = _Shown(encoded_gop.packets, encoded_gop.order)
        shown_gops.append(kept_gop)
    if count:
        reason = "their GOPs have hidden frames, or another codec"
        _logger.warning("%s: re-encoded %d frames (%s)", place, count, reason)
    return shown_gops, len(shown_gops[0].packets) - gops[0].num_frames


def _are_exported(gop: Gop, exported: Collection[bytes]) -> bool:
    """Whether all hidden packets of a GOP are exported with other episodes."""
    pairs = zip(gop.packets, gop.order, strict=True)
    return all(packet in exported for packet, place in pairs if place < 0)


def _from_keyframe(gop: Gop, codec: str) -> _Shown | None:
    """A GOP with its hidden frames shown, or `None` if some are not before the visible ones."""
    order: list[int] = []
    with suppress(*video_errors()):  # `decode_gop` raises a better error
        order = display_order(codec, gop.packets)
    visible_order = [gop.order[packet] for packet in order][-gop.num_frames :]
    if len(order) < len(gop.packets) or visible_order != [*range(gop.num_frames)]:
        return None
    return _Shown(gop.packets, np.argsort(order).tolist())
