"""Columns of an exported LeRobot dataset, and the files in its `meta/` folder."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from seqrecord.errors import CodecError, SchemaError
from seqrecord.formats.sources.lerobot.language import EVENTS, PERSISTENT
from seqrecord.store.bfloat16 import BFLOAT16
from seqrecord.store.feature_kinds import OTHER_KINDS, is_image, known_kind
from seqrecord.store.reading.episode import Episode
from seqrecord.store.schema import CodecConfig, FeatureSpec, Schema
from seqrecord.store.statistics.by_feature import FeatureStatistics, Statistics
from seqrecord.store.statistics.collecting import StatisticsCollector
from seqrecord.store.text import repr_of
from seqrecord.video.config import VideoConfig, named_video
from seqrecord.video.container import CONTAINED

TASK = "task"
TIMESTAMP = "timestamp"
_RECORDED = "recorded_timestamp"  # column of a feature `timestamp` that differs from i / fps
OWN = ("frame_index", "episode_index", "index", "task_index")
_MOST_DIMENSIONS = 5
_AXES = ["height", "width", "channels"]

_FILE_MB = 100  # of rows; then the next episode starts a new file
_FILES_PER_CHUNK = 1000
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
STATISTIC_NAMES = ("min", "max", "mean", "std", *(f"q{round(100 * q):02d}" for q in QUANTILES))
"""Statistics of each feature in LeRobot's `stats.json`."""
_ROWS_AT_ONCE = 256  # episodes per write


def file_name(number: int) -> str:
    """Path of file `number` in its folder, without the suffix."""
    return f"chunk-{number // _FILES_PER_CHUNK:03d}/file-{number % _FILES_PER_CHUNK:03d}"


@dataclass(frozen=True)
class LeRobotColumn:
    """A column of the rows and its feature; `dtype` is LeRobot's name, such as `video`."""

    name: str
    spec: FeatureSpec
    dtype: str
    shape: tuple[int, ...]

    @property
    def feature(self) -> str:
        return self.spec.name

    @property
    def has_numbers(self) -> bool:
        return self.dtype not in ("string", "language")

    @property
    def is_video(self) -> bool:
        return self.dtype == "video"

    @property
    def is_picture(self) -> bool:
        return self.dtype in ("image", "video")

    @property
    def is_depth(self) -> bool:
        return self.is_picture and len(self.spec.shape) == 2

    def describe(self, names: Any, fps: Fraction) -> dict[str, Any]:
        """Entry of the column in `info.json`; lerobot's tools compare every field."""
        axis_names = names or (_AXES if self.is_picture else None)
        description = {"dtype": self.dtype, "shape": list(self.shape), "names": axis_names}
        info: dict[str, Any] = {}
        if self.is_video:
            height, width, channels = self.shape
            config = VideoConfig.from_json(self.spec.codec[0])
            info = {
                "video.height": height,
                "video.width": width,
                "video.codec": config.codec,
                "video.pix_fmt": config.pixel_format,
                "video.fps": int(fps),
                "video.channels": channels,
                "has_audio": False,
                "is_depth_map": False,
            }
            if config.depth is not None:
                info |= {f"video.{name}": value for name, value in vars(config.depth).items()}
        if self.is_depth:
            info |= {"is_depth_map": True, "depth_unit": self.spec.unit}
        return description | ({"info": info} if info else {})

    def array(self, values: Any) -> pa.Array:
        """Arrow column from frames [rows, *shape], or from a list of texts."""
        if self.dtype == "string":
            return pa.array(values, pa.string())
        if self.dtype == "image":
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            return pa.array(
                [{"bytes": _encode_image(image), "path": None} for image in values], kind
            )
        if self.dtype == "language":
            return language_array((json.loads(text) if text else [] for text in values), EVENTS)
        array = np.ascontiguousarray(values)
        column = pa.array(array.reshape(-1))
        if self.shape == (1,):
            return column
        if len(self.shape) == 1:
            return pa.FixedSizeListArray.from_arrays(column, self.shape[0])
        for size in reversed(self.shape):
            offsets = np.arange(0, len(column) + 1, size, dtype=np.int32)
            column = pa.ListArray.from_arrays(pa.array(offsets), column)
        return column


def plan_columns(
    features: Schema,
    *,
    keeps_times: bool,
    has_persistent: bool,
    video: str | None,
    rename: Mapping[str, str],
) -> Iterator[LeRobotColumn]:
    """The columns for these features.

    Args:
        features: the features.
        keeps_times: adds a column for the feature `timestamp`.
        has_persistent: adds the column `language_persistent`, of the episodes' metadata.
        video: codec in which images become video; `None` leaves them images.
        rename: names of columns by feature.

    Raises `SchemaError` for a feature that LeRobot does not support, and for invalid names.
    """
    _check_names(features, rename)
    for name, spec in features.items():
        # Video loses the values of labels and of coded normals or depth.
        may_be_video = _is_colour(spec) and is_image(spec, known_kind(name, spec, spec.kind))
        if name != TIMESTAMP or name in rename:
            if video is not None and may_be_video and not VideoConfig.of(spec) and spec.is_fixed:
                spec = replace(spec, codec=_video_codec(video, spec))
            yield _column(rename.get(name, name), spec)
        elif keeps_times:
            yield _column(_RECORDED, spec)
    if has_persistent:
        spec = FeatureSpec(PERSISTENT, np.dtype(np.uint8), (None,), value="text")
        yield LeRobotColumn(PERSISTENT, spec, "language", (1,))


def _check_names(features: Schema, rename: Mapping[str, str]) -> None:
    is_names = isinstance(rename, Mapping)
    if not is_names or not all(isinstance(name, str) for pair in rename.items() for name in pair):
        raise SchemaError(
            "rename is not a map of names",
            expected='columns by feature, such as {"state": "observation.state"}',
            got=repr_of(rename, 100),
        )
    if rename:
        features.select(list(rename))  # raises for unknown features
    names = [rename.get(name, name) for name in features]
    for feature, name in zip(features, names, strict=True):
        if name in (TASK, EVENTS) and features[feature].value != "text":
            raise SchemaError(
                f"LeRobot's column {name} has texts; rename the feature (--rename {feature}=NAME)",
                feature=feature,
                expected="text",
                got=str(features[feature]),
            )
    for feature, name in rename.items():
        if name in (*OWN, TIMESTAMP, _RECORDED, PERSISTENT) or "/" in name or not name:
            raise SchemaError(
                "column cannot have this name: LeRobot reserves it, or it has a slash",
                feature=feature,
                expected="a name such as observation.state",
                got=repr_of(name, 100),
            )
        if names.count(name) > 1:
            raise SchemaError(
                "two columns would have the same name", feature=feature, got=repr_of(name, 100)
            )


def names_unseen_by_policies(columns: Sequence[LeRobotColumn]) -> list[str]:
    """Names of columns that LeRobot's policies ignore.

    They see `action` and `observation.…`, and of images those with such a name; the task; language
    columns. Rewards and ends of episodes, `next.…`, are for its reinforcement learning.
    """
    visible_names = ("action", TASK, _RECORDED, EVENTS, PERSISTENT)
    visible_prefixes = ("observation.", "next.")
    return [
        column.name
        for column in columns
        if column.name not in visible_names and not column.name.startswith(visible_prefixes)
    ]


def _video_codec(video: Any, spec: FeatureSpec) -> tuple[CodecConfig, ...]:
    try:
        codec = named_video(video, spec.dtype, spec.shape) if isinstance(video, str) else None
        if codec is None or codec[0]["codec"] not in CONTAINED:
            raise ValueError(f"expected one of {', '.join(CONTAINED)}")
    except ValueError as error:
        raise CodecError(f"video cannot be {video!r:.50}: {error}") from error
    return codec


def _column(name: str, spec: FeatureSpec) -> LeRobotColumn:
    if name in (*OWN, _RECORDED, PERSISTENT) and spec.name == name:
        raise _export_error(spec, "LeRobot reserves the name; choose other features")
    if spec.value == "text":
        return LeRobotColumn(name, spec, "language" if name == EVENTS else "string", (1,))
    if spec.value_kind.constant_nbytes(spec) is None:
        raise _export_error(spec, "LeRobot does not support bytes and varying shapes")
    if spec.dtype == BFLOAT16:
        problem = (
            "LeRobot and Parquet have no bfloat16; choose other features, or add it as float32"
        )
        raise _export_error(spec, f"{problem}: seqrecord.edit.add_feature")
    shape = tuple(n or 0 for n in spec.shape) or (1,)
    for dtype, channel, fits in _PICTURES:
        if fits(spec):
            return LeRobotColumn(name, spec, dtype, (*shape, *channel))
    if spec.dtype.kind == "c" or len(shape) > _MOST_DIMENSIONS:
        raise _export_error(
            spec, f"LeRobot supports real numbers, with at most {_MOST_DIMENSIONS} dimensions"
        )
    return LeRobotColumn(name, spec, spec.dtype.name, shape)


def _is_colour(spec: FeatureSpec) -> bool:
    """Whether frames are three bytes per pixel, which PNG stores."""
    return spec.dtype == np.uint8 and spec.shape[2:] == (3,) and spec.kind not in OTHER_KINDS


def _is_contained(spec: FeatureSpec) -> bool:
    """Whether video files of LeRobot can contain the packets."""
    return VideoConfig.of(spec) is not None and spec.codec[0]["codec"] in CONTAINED


def _is_depth(spec: FeatureSpec) -> bool:
    return spec.kind == "depth" and spec.unit in ("m", "mm") and len(spec.shape) == 2


_PICTURES: tuple[tuple[str, tuple[int, ...], Callable[[FeatureSpec], bool]], ...] = (
    # lerobot reads grey video as depth codes
    ("video", (), lambda spec: _is_contained(spec) and len(spec.shape) == len(_AXES)),
    ("video", (1,), lambda s: _is_depth(s) and _is_contained(s) and "depth" in s.codec[0]),
    ("image", (1,), lambda spec: _is_depth(spec) and spec.dtype in (np.uint16, np.float32)),
    ("image", (), _is_colour),
)
"""Type of a picture's column, its channel axis if frames lack one, and the features; the first that
fits."""


def _export_error(spec: FeatureSpec, reason: str) -> SchemaError:
    return SchemaError(f"feature cannot be exported: {reason}", feature=spec.name, got=str(spec))


def _encode_image(image: Any) -> bytes:
    """An image as PNG, or depth as TIFF, as in lerobot."""
    stream = io.BytesIO()
    if image.ndim == 2:
        Image.fromarray(image).save(stream, "tiff")
    else:
        Image.fromarray(image).save(stream, "png", compress_level=1)
    return stream.getvalue()


def language_array(frames: Iterable[Any], name: str, begin: float = 0.0) -> pa.Array:
    """Arrow column of a language column, with times from `begin` on.

    Tool calls are JSON, as `datasets.Json` stores them. Raises `SchemaError` for frames that are no
    lists of LeRobot's rows.
    """
    times = [("timestamp", pa.float32())] if name == PERSISTENT else []
    texts = [(field, pa.string()) for field in ("role", "content", "style")]
    calls = ("tool_calls", pa.list_(pa.string()))
    kind = pa.list_(pa.struct([*texts, *times, ("camera", pa.string()), calls]))

    def encode(row: dict[str, Any]) -> dict[str, Any]:
        calls = row["tool_calls"]
        encoded = row | {"tool_calls": calls and [json.dumps(call) for call in calls]}
        return encoded | {key: row[key] - begin for key, _ in times}

    try:
        return pa.array([rows and [*map(encode, rows)] for rows in frames], kind)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise SchemaError(
            "LeRobot's language columns have other values; choose other features",
            feature=name,
            expected=f"a list of {', '.join(field.name for field in kind.value_type)}",
            got=f"{type(error).__name__}: {error}"[:200],
        ) from error


class RowFile:
    """The open Parquet file of a folder, with whole episodes, many to a file."""

    def __init__(self, folder: Path) -> None:
        self.number = -1
        self._folder = self._path = folder
        self._file: Any = None

    def begin_episode(self) -> None:
        """Begin the next file if the open one is full."""
        if self._file is None or self._path.stat().st_size >= _FILE_MB << 20:
            self.close()
            self.number += 1
            self._path = self._folder / f"{file_name(self.number)}.parquet"
            self._path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, table: pa.Table) -> None:
        import pyarrow.parquet as pq  # here, since it takes long to import

        if self._file is None:
            self._file = pq.ParquetWriter(self._path, table.schema, compression="snappy")
        self._file.write_table(table)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class LeRobotMeta:
    """Writes the `meta/` folder: episodes one by one, the other files at the end."""

    def __init__(
        self,
        root: Path,
        columns: Sequence[LeRobotColumn],
        episodes: Sequence[Episode],
        fps: Fraction,
        splits: Mapping[str | None, int],
    ) -> None:
        self._root, self._columns, self._episodes, self._fps = root, columns, episodes, fps
        self._splits = splits  # successive episodes of each, `None` for no split
        self._tasks: dict[str, int] = {}  # with their numbers
        self._file = RowFile(root / "meta/episodes")
        self._rows: list[dict[str, Any]] = []  # not written yet
        self._num_rows = 0
        self._statistics = Statistics(0, {})

    def task_number(self, task: str) -> int:
        """Number of a task; new tasks get the next number."""
        return self._tasks.setdefault(task, len(self._tasks))

    def add(
        self,
        tasks: Sequence[str],
        file: int,
        first_row: int,
        video_starts: Mapping[str, int],
        statistics: Statistics,
    ) -> None:
        """Add the next episode: tasks, number of its data file, first row, frames in its videos
        before its first, statistics."""
        number, length = self._num_rows, len(self._episodes[self._num_rows])
        row: dict[str, Any] = {
            "episode_index": number,
            "tasks": list(tasks),
            "length": length,
            "data/chunk_index": file // _FILES_PER_CHUNK,
            "data/file_index": file % _FILES_PER_CHUNK,
            "dataset_from_index": first_row,
            "dataset_to_index": first_row + length,
        }
        for name, begin in video_starts.items():
            row[f"videos/{name}/chunk_index"] = number // _FILES_PER_CHUNK
            row[f"videos/{name}/file_index"] = number % _FILES_PER_CHUNK
            row[f"videos/{name}/from_timestamp"] = begin / float(self._fps)
            row[f"videos/{name}/to_timestamp"] = (begin + length) / float(self._fps)
        for name, stats in self._stats(statistics).items():
            row |= {f"stats/{name}/{key}": value for key, value in stats.items()}
        self._rows.append(row)
        self._num_rows += 1
        self._statistics = self._statistics.merged(statistics) if number else statistics
        if len(self._rows) >= _ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        self._file.begin_episode()
        number = self._file.number
        for row in self._rows:
            row["meta/episodes/chunk_index"] = number // _FILES_PER_CHUNK
            row["meta/episodes/file_index"] = number % _FILES_PER_CHUNK
        self._file.write(pa.Table.from_pylist(self._rows))
        self._rows = []

    def close(self, stored_statistics: Statistics) -> None:
        """Write the remaining files of `meta/`; `info.json`, which makes the dataset valid, is
        last.

        `stored_statistics` has the dataset's own statistics of these episodes, possibly none.
        """
        import pyarrow.parquet as pq  # here, since it takes long to import

        if self._rows or not self._num_rows:
            self._flush()
        self._file.close()
        folder = self._root / "meta"
        pq.write_table(task_table(self._tasks), folder / "tasks.parquet")
        column_statistics = {
            column.name: stored_statistics[column.feature]
            for column in self._columns
            if column.feature in stored_statistics
        }
        statistics = Statistics(
            self._statistics.num_frames, {**self._statistics, **column_statistics}
        )
        stats = self._stats(statistics)
        for name in (
            name
            for name, feature_stats in column_statistics.items()
            if not feature_stats.num_drawn.all()
        ):
            stats[name] = {key: value for key, value in stats[name].items() if key[0] != "q"}
        _write_json(folder / "stats.json", stats)
        keys = [episode.key for episode in self._episodes]
        _write_json(folder / "seqrecord.json", {"keys": keys})
        _write_json(folder / "info.json", self._info())

    def _info(self) -> dict[str, Any]:
        robots = [episode.metadata.get("robot_type") for episode in self._episodes]
        robot = robots[0] if robots and robots.count(robots[0]) == len(robots) else None
        names = self._episodes[0].metadata.get("names") if self._episodes else None
        axis_names = names if isinstance(names, dict) else {}
        return dataset_info(
            {
                column.name: column.describe(axis_names.get(column.feature), self._fps)
                for column in self._columns
                if column.name != TASK
            },
            int(self._fps) if self._fps.denominator == 1 else float(self._fps),
            map(len, self._episodes),
            len(self._tasks),
            robot,
            self._splits,
        )

    def _stats(self, statistics: Statistics) -> dict[str, Any]:
        """Statistics in lerobot's format: images per channel [3, 1, 1] from 0 to 1, depth [1, 1, 1]
        in its unit, arrays [last axis]."""
        stats_by_column = {}
        pictures = {column.name for column in self._columns if column.is_picture}
        depths = {column.name for column in self._columns if column.is_depth}
        shapes = {column.name: column.shape for column in self._columns}
        for name, stats in statistics.items():
            last_axis = None if name in pictures else shapes.get(name, (1,))[-1]
            stats_by_column[name] = describe_statistics(
                stats, last_axis, 1 if name in depths else 255
            )
        return stats_by_column


def dataset_info(
    features: Mapping[str, Any],
    fps: float,
    lengths: Iterable[int],
    num_tasks: int,
    robot_type: Any,
    splits: Mapping[str | None, int] | None = None,
) -> dict[str, Any]:
    """Contents of `info.json`.

    Args:
        features: entries of the features, without LeRobot's own columns.
        fps: frames per second.
        lengths: each episode's number of frames.
        num_tasks: the number of tasks.
        robot_type: name of the robot; other values become `None`.
        splits: number of successive episodes by split; `None` for no split. Without a
            split, all episodes are in `train`.
    """
    index_dtypes = {TIMESTAMP: "float32"} | dict.fromkeys(OWN, "int64")
    counts = [*lengths]
    ends = [0, *accumulate((splits or {}).values())]
    ranges = {n: f"{a}:{b}" for n, (a, b) in zip(splits or {}, pairwise(ends), strict=True) if n}
    is_video = any(feature["dtype"] == "video" for feature in features.values())
    return {
        "codebase_version": "v3.0",
        "robot_type": robot_type if isinstance(robot_type, str) else None,
        "total_episodes": len(counts),
        "total_frames": sum(counts),
        "total_tasks": num_tasks,
        "chunks_size": _FILES_PER_CHUNK,
        "data_files_size_in_mb": _FILE_MB,
        "video_files_size_in_mb": 200,
        "fps": fps,
        "splits": ranges or {"train": f"0:{len(counts)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        if is_video
        else None,
        "features": {
            **features,
            **{
                name: {"dtype": kind, "shape": [1], "names": None}
                for name, kind in index_dtypes.items()
            },
        },
    }


def describe_statistics(
    stats: FeatureStatistics, last_axis: int | None, max_value: int = 255
) -> dict[str, Any]:
    """Entry of a feature in `stats.json`, of arrays [last], or of images [C, 1, 1] from 0 to
    `max_value` as from 0 to 1.
    """
    values = [stats.min, stats.max, stats.mean, stats.std, *stats.quantile(QUANTILES)]
    if last_axis is None:
        lists = [(value / max_value).reshape(-1, 1, 1).tolist() for value in values]
    else:
        lists = [np.broadcast_to(value, last_axis).tolist() for value in values]
    return {**dict(zip(STATISTIC_NAMES, lists, strict=True)), "count": [stats.num_frames]}


def task_table(tasks: Mapping[str, int]) -> pa.Table:
    """Tasks as a table with pandas metadata: lerobot reads the tasks as the pandas index."""
    kind = {"pandas_type": "unicode", "numpy_type": "object", "metadata": None}
    index = {"name": "task", "field_name": "task", **kind}
    pandas_metadata = {"index_columns": ["task"], "column_indexes": [], "columns": [index]}
    table = pa.table({"task_index": list(tasks.values()), "task": list(tasks)})
    return table.replace_schema_metadata({"pandas": json.dumps(pandas_metadata)})


def collector(columns: Sequence[LeRobotColumn]) -> StatisticsCollector:
    """Collector for the columns with statistics, and for LeRobot's own columns."""
    specs = [FeatureSpec(TIMESTAMP, np.dtype(np.float32), ())]
    specs += [FeatureSpec(name, np.dtype(np.int64), ()) for name in OWN]
    for column in columns:
        if column.has_numbers:
            kind = "depth" if column.is_depth else None
            specs.append(FeatureSpec(column.name, column.spec.dtype, column.spec.shape, kind=kind))
    return StatisticsCollector(Schema(specs))


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
