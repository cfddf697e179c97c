"""The columns of a LeRobot dataset that is written, and the files in its `meta/`."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from seqrecord.codecs.video.container import CONTAINED
from seqrecord.errors import SchemaError
from seqrecord.reading.episode import Episode
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.statistics.by_feature import FeatureStatistics, Statistics

__all__ = [
    "FILE_MB",
    "TASK",
    "TIMESTAMP",
    "EpisodeRow",
    "LeRobotColumn",
    "LeRobotMeta",
    "file_name",
    "plan_columns",
]

TASK = "task"
TIMESTAMP = "timestamp"
_RECORDED = "recorded_timestamp"  # the column of a feature `timestamp` that is not regular
_OWN = ("frame_index", "episode_index", "index", "task_index")
_MOST_DIMENSIONS = 5
_AXES = ["height", "width", "channels"]

FILE_MB = 100
"""Of rows; the next episode goes to the next file."""
_FILES_PER_CHUNK = 1000
_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
_SAMPLES = 32  # frames, of a camera without statistics
_PIXELS = 4  # of each axis one in so many


def file_name(number: int) -> str:
    """Of the file of this number, in its folder, without the ending."""
    return f"chunk-{number // _FILES_PER_CHUNK:03d}/file-{number % _FILES_PER_CHUNK:03d}"


@dataclass(frozen=True)
class LeRobotColumn:
    """A column and the feature that it is made of; `dtype` is LeRobot's name, such as `video`."""

    name: str
    feature: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_video(self) -> bool:
        return self.dtype == "video"

    @property
    def is_picture(self) -> bool:
        return self.dtype in ("image", "video")

    def described(self, names: Any) -> dict[str, Any]:
        """As `info.json` has it."""
        return {
            "dtype": self.dtype,
            "shape": list(self.shape),
            "names": _AXES if self.is_picture else names,
        }

    def array(self, values: Any) -> pa.Array:
        """The column of these frames: [rows, *shape], or a list of texts."""
        if self.dtype == "string":
            return pa.array(values, pa.string())
        if self.dtype == "image":
            kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            return pa.array([{"bytes": _png(image), "path": None} for image in values], kind)
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


def plan_columns(features: Schema, keeps_times: bool) -> Iterator[LeRobotColumn]:
    """The columns for these features. `keeps_times` says that `timestamp` is one of them.

    Raises `SchemaError` for a feature that LeRobot has no form for.
    """
    for name, spec in features.items():
        if name != TIMESTAMP:
            yield _column(name, spec)
        elif keeps_times:
            yield _column(_RECORDED, spec)


def _column(name: str, spec: FeatureSpec) -> LeRobotColumn:
    if name in (*_OWN, _RECORDED) and spec.name == name:
        raise _impossible(spec, "it is a column of LeRobot's own; choose other features")
    if spec.value == "text":
        return LeRobotColumn(name, spec.name, "string", (1,))
    if spec.value != "array" or not spec.is_fixed:
        raise _impossible(spec, "LeRobot has no form for bytes and for shapes that vary")
    shape = tuple(n or 0 for n in spec.shape) or (1,)
    if spec.codec and spec.codec[0]["id"] == "video" and spec.codec[0]["codec"] in CONTAINED:
        return LeRobotColumn(name, spec.name, "video", shape)
    if spec.dtype == np.uint8 and len(shape) == 3 and shape[2] == 3:
        return LeRobotColumn(name, spec.name, "image", shape)
    if spec.dtype.kind == "c" or len(shape) > _MOST_DIMENSIONS or 0 in shape:
        raise _impossible(
            spec, f"LeRobot has real numbers, of at most {_MOST_DIMENSIONS} dimensions"
        )
    return LeRobotColumn(name, spec.name, spec.dtype.name, shape)


def _impossible(spec: FeatureSpec, why: str) -> SchemaError:
    return SchemaError(
        f"a feature that cannot be exported: {why}", feature=spec.name, got=str(spec)
    )


def _png(image: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "png", compress_level=1)
    return stream.getvalue()


@dataclass(frozen=True)
class EpisodeRow:
    """What `meta/episodes` says of an episode; its video files have the number of the episode."""

    tasks: list[str]
    file: int
    first_row: int


@dataclass
class LeRobotMeta:
    """Collects what stands in `meta/`."""

    columns: Sequence[LeRobotColumn]
    episodes: Sequence[Episode]
    fps: Fraction
    tasks: dict[str, int] = field(default_factory=dict)
    """The tasks with their numbers."""
    rows: list[EpisodeRow] = field(default_factory=list)

    def task_number(self, task: str) -> int:
        """The number of a task."""
        return self.tasks.setdefault(task, len(self.tasks))

    def write(self, root: Path, statistics: Statistics) -> None:
        """All files in `meta/`; `info.json`, with which a dataset begins, is the last."""
        import pyarrow.parquet as pq  # here, since it takes long to import

        folder = root / "meta/episodes/chunk-000"
        folder.mkdir(parents=True)
        pq.write_table(self._episode_table(), folder / "file-000.parquet")
        pq.write_table(self._task_table(), root / "meta/tasks.parquet")
        _write_json(root / "meta/stats.json", self._stats(statistics))
        keys = [episode.key for episode in self.episodes]
        _write_json(root / "meta/seqrecord.json", {"keys": keys})
        _write_json(root / "meta/info.json", self._info())

    def _episode_table(self) -> pa.Table:
        rows = []
        for number, (each, episode) in enumerate(zip(self.rows, self.episodes, strict=True)):
            row: dict[str, Any] = {
                "episode_index": number,
                "tasks": each.tasks,
                "length": len(episode),
                "data/chunk_index": each.file // _FILES_PER_CHUNK,
                "data/file_index": each.file % _FILES_PER_CHUNK,
                "dataset_from_index": each.first_row,
                "dataset_to_index": each.first_row + len(episode),
            }
            for name in (column.name for column in self.columns if column.is_video):
                row[f"videos/{name}/chunk_index"] = number // _FILES_PER_CHUNK
                row[f"videos/{name}/file_index"] = number % _FILES_PER_CHUNK
                row[f"videos/{name}/from_timestamp"] = 0.0
                row[f"videos/{name}/to_timestamp"] = len(episode) / float(self.fps)
            row["meta/episodes/chunk_index"] = row["meta/episodes/file_index"] = 0
            rows.append(row)
        return pa.Table.from_pylist(rows)

    def _task_table(self) -> pa.Table:
        """As pandas writes a frame whose index is the tasks: lerobot asks for the index."""
        index = "__index_level_0__"
        about = {
            "index_columns": [index],
            "column_indexes": [],
            "columns": [
                {
                    "name": name,
                    "field_name": field,
                    "pandas_type": kind,
                    "numpy_type": kind.replace("unicode", "object"),
                    "metadata": None,
                }
                for name, field, kind in (
                    ("task_index", "task_index", "int64"),
                    (None, index, "unicode"),
                )
            ],
            "creator": {"library": "pyarrow", "version": pa.__version__},
            "pandas_version": "2.0.0",
        }
        table = pa.table({"task_index": list(self.tasks.values()), index: list(self.tasks)})
        return table.replace_schema_metadata({"pandas": json.dumps(about)})

    def _info(self) -> dict[str, Any]:
        own = {TIMESTAMP: "float32"} | dict.fromkeys(_OWN, "int64")
        fps = int(self.fps) if self.fps.denominator == 1 else float(self.fps)
        robots = {episode.metadata.get("robot_type") for episode in self.episodes}
        [robot] = robots if len(robots) == 1 else [None]
        names = self.episodes[0].metadata.get("names") if self.episodes else None
        known = names if isinstance(names, dict) else {}
        return {
            "codebase_version": "v3.0",
            "robot_type": robot if isinstance(robot, str) else None,
            "total_episodes": len(self.episodes),
            "total_frames": sum(map(len, self.episodes)),
            "total_tasks": len(self.tasks),
            "chunks_size": _FILES_PER_CHUNK,
            "data_files_size_in_mb": FILE_MB,
            "video_files_size_in_mb": 200,
            "fps": fps,
            "splits": {"train": f"0:{len(self.episodes)}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
            if any(each.is_video for each in self.columns)
            else None,
            "features": {
                each.name: each.described(known.get(each.name))
                for each in self.columns
                if each.name != TASK
            }
            | {name: {"dtype": kind, "shape": [1], "names": None} for name, kind in own.items()},
        }

    def _stats(self, statistics: Statistics) -> dict[str, Any]:
        """Those of pictures per channel, [3, 1, 1], of colours from 0 to 1, as lerobot has them."""
        found = {}
        for each in self.columns:
            known = statistics.get(each.feature)
            if each.is_picture and known is None:
                found[each.name] = _of_drawn(each.feature, self.episodes)
            elif each.is_picture and known is not None:
                found[each.name] = _of_known(known, 255, (-1, 1, 1))
            elif known is not None and len(each.shape) == 1 and each.shape[0] == len(known.count):
                found[each.name] = _of_known(known, 1, (-1,))
        return found


def _of_drawn(feature: str, episodes: Sequence[Episode]) -> dict[str, Any]:
    """Statistics of some pixels of some frames."""
    lengths = np.cumsum([len(episode) for episode in episodes])
    rng = np.random.default_rng(0)
    total = int(lengths[-1])
    drawn = np.sort(rng.choice(total, min(_SAMPLES, total), replace=False))
    pixels = []
    for number in drawn.tolist():
        episode = int(np.searchsorted(lengths, number, side="right"))
        frame = number - int(lengths[episode]) + len(episodes[episode])
        [image] = episodes[episode].read([frame], features=[feature])[feature]
        pixels.append(image[::_PIXELS, ::_PIXELS].reshape(-1, image.shape[-1]) / 255)
    values = np.concatenate(pixels)
    found = [values.min(0), values.max(0), values.mean(0), values.std(0)]
    quantiles = np.quantile(values, _QUANTILES, axis=0)
    return _as_json([*found, *quantiles], (-1, 1, 1), len(drawn))


def _of_known(known: FeatureStatistics, scale: float, shape: tuple[int, ...]) -> dict[str, Any]:
    quantiles = known.quantile(_QUANTILES) if known.num_drawn.all() else ()
    found = [known.min, known.max, known.mean, known.std, *quantiles]
    return _as_json([value / scale for value in found], shape, known.num_frames)


def _as_json(values: Sequence[Any], shape: tuple[int, ...], count: int) -> dict[str, Any]:
    names = ["min", "max", "mean", "std", *(f"q{round(100 * q):02d}" for q in _QUANTILES)]
    found = (np.asarray(value).reshape(shape).tolist() for value in values)
    return {**dict(zip(names, found, strict=False)), "count": [count]}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
