"""The rows and the files in `meta/` of a LeRobot dataset that is written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from seqrecord.reading.episode import Episode
from seqrecord.statistics import FeatureStatistics, Statistics
from seqrecord.writing.lerobot_features import (
    TASK,
    TIMESTAMP,
    LeRobotColumn,
    LeRobotColumns,
    arrow_columns,
)

__all__ = ["EpisodeRow", "LeRobotMeta", "RowWriter", "file_name"]

_FILES_PER_CHUNK = 1000
_FILE_MB = 100  # of rows; the next episode goes to the next file
_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
_SAMPLES = 32  # frames, of a camera without statistics
_PIXELS = 4  # of each axis one in so many


@dataclass(frozen=True)
class EpisodeRow:
    """What `meta/episodes` says of an episode, which has video files of its own number."""

    number: int
    key: str
    length: int
    tasks: list[str]
    file: int
    first_row: int


def file_name(number: int) -> str:
    """Of the file of this number, in its folder, without the ending."""
    return f"chunk-{number // _FILES_PER_CHUNK:03d}/file-{number % _FILES_PER_CHUNK:03d}"


class RowWriter:
    """Writes `data/`: rows of many episodes a file, whole episodes each."""

    def __init__(self, root: Path, columns: LeRobotColumns, fps: Fraction) -> None:
        self.position = 0
        """Rows that were written."""
        self._root, self._columns, self._fps = root, columns, fps
        self._file: Any = None
        self._path = root
        self._number = -1

    def begin_episode(self) -> int:
        """The number of the file that the next episode goes to."""
        if self._file is None or self._path.stat().st_size >= _FILE_MB << 20:
            self.close()
            self._number += 1
            self._path = self._root / f"data/{file_name(self._number)}.parquet"
            self._path.parent.mkdir(parents=True, exist_ok=True)
        return self._number

    def add(
        self, arrays: Mapping[str, Any], frames: range, episode: int, tasks: Sequence[int]
    ) -> None:
        """Rows of consecutive frames of an episode."""
        import pyarrow.parquet as pq  # here, since it takes long to import

        count = len(frames)
        numbers = np.arange(frames.start, frames.stop)
        columns = arrow_columns(self._columns, arrays) | {
            TIMESTAMP: pa.array((numbers / float(self._fps)).astype(np.float32)),
            "frame_index": pa.array(numbers),
            "episode_index": pa.array(np.full(count, episode)),
            "index": pa.array(np.arange(self.position, self.position + count)),
            "task_index": pa.array(np.array(tasks, np.int64)),
        }
        table = pa.table(columns)
        if self._file is None:
            self._file = pq.ParquetWriter(self._path, table.schema, compression="snappy")
        self._file.write_table(table)
        self.position += count

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class LeRobotMeta:
    """Collects what stands in `meta/`."""

    def __init__(self, columns: LeRobotColumns, fps: Fraction, names: Mapping[str, Any]) -> None:
        self._columns, self._fps, self._names = columns, fps, names
        self._tasks: dict[str, int] = {}
        self._episodes: list[EpisodeRow] = []

    def open_rows(self, root: Path) -> RowWriter:
        return RowWriter(root, self._columns, self._fps)

    def task_number(self, task: str) -> int:
        """The number of a task."""
        return self._tasks.setdefault(task, len(self._tasks))

    def add(self, episode: EpisodeRow) -> None:
        self._episodes.append(episode)

    def write(self, root: Path, statistics: Statistics, episodes: Sequence[Episode]) -> None:
        """All files in `meta/`; `info.json`, with which a dataset begins, is the last."""
        import pyarrow.parquet as pq

        folder = root / "meta/episodes/chunk-000"
        folder.mkdir(parents=True)
        pq.write_table(self._episode_table(), folder / "file-000.parquet")
        pq.write_table(self._task_table(), root / "meta/tasks.parquet")
        _write_json(root / "meta/stats.json", self._stats(statistics, episodes))
        _write_json(root / "meta/seqrecord.json", {"keys": [each.key for each in self._episodes]})
        _write_json(root / "meta/info.json", self._info(episodes))

    def _episode_table(self) -> pa.Table:
        rows = []
        for each in self._episodes:
            row: dict[str, Any] = {
                "episode_index": each.number,
                "tasks": each.tasks,
                "length": each.length,
                "data/chunk_index": each.file // _FILES_PER_CHUNK,
                "data/file_index": each.file % _FILES_PER_CHUNK,
                "dataset_from_index": each.first_row,
                "dataset_to_index": each.first_row + each.length,
            }
            for name in self._columns.videos:
                row[f"videos/{name}/chunk_index"] = each.number // _FILES_PER_CHUNK
                row[f"videos/{name}/file_index"] = each.number % _FILES_PER_CHUNK
                row[f"videos/{name}/from_timestamp"] = 0.0
                row[f"videos/{name}/to_timestamp"] = each.length / float(self._fps)
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
        table = pa.table({"task_index": list(self._tasks.values()), index: list(self._tasks)})
        return table.replace_schema_metadata({"pandas": json.dumps(about)})

    def _info(self, episodes: Sequence[Episode]) -> dict[str, Any]:
        own = {TIMESTAMP: "float32"} | dict.fromkeys(
            ("frame_index", "episode_index", "index", "task_index"), "int64"
        )
        columns = [each for each in self._columns.columns if each.name != TASK]
        fps = int(self._fps) if self._fps.denominator == 1 else float(self._fps)
        robots = {episode.metadata.get("robot_type") for episode in episodes}
        [robot] = robots if len(robots) == 1 else [None]
        return {
            "codebase_version": "v3.0",
            "robot_type": robot if isinstance(robot, str) else None,
            "total_episodes": len(self._episodes),
            "total_frames": sum(each.length for each in self._episodes),
            "total_tasks": len(self._tasks),
            "chunks_size": _FILES_PER_CHUNK,
            "data_files_size_in_mb": _FILE_MB,
            "video_files_size_in_mb": 200,
            "fps": fps,
            "splits": {"train": f"0:{len(self._episodes)}"},
            "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
            "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
            if self._columns.videos
            else None,
            "features": {each.name: each.described(self._names.get(each.name)) for each in columns}
            | {name: {"dtype": kind, "shape": [1], "names": None} for name, kind in own.items()},
        }

    def _stats(self, statistics: Statistics, episodes: Sequence[Episode]) -> dict[str, Any]:
        found = {}
        for each in self._columns.columns:
            known = statistics.get(each.feature)
            if each.is_picture:
                found[each.name] = _of_pictures(each, known, episodes)
            elif known is not None and len(each.shape) == 1 and each.shape[0] == len(known.count):
                found[each.name] = _as_json(known, 1, (-1,))
        return found


def _of_pictures(
    column: LeRobotColumn, known: FeatureStatistics | None, episodes: Sequence[Episode]
) -> dict[str, Any]:
    """Per channel [3, 1, 1], of colours from 0 to 1, as lerobot has them."""
    if known is not None:
        return _as_json(known, 255, (-1, 1, 1))
    lengths = np.cumsum([len(episode) for episode in episodes])
    rng = np.random.default_rng(0)
    total = int(lengths[-1])
    drawn = np.sort(rng.choice(total, min(_SAMPLES, total), replace=False))
    pixels = []
    for number in drawn.tolist():
        episode = int(np.searchsorted(lengths, number, side="right"))
        frame = number - int(lengths[episode]) + len(episodes[episode])
        [image] = episodes[episode].read([frame], features=[column.feature])[column.feature]
        pixels.append(image[::_PIXELS, ::_PIXELS].reshape(-1, image.shape[-1]) / 255)
    values = np.concatenate(pixels)
    quantiles = np.quantile(values, _QUANTILES, axis=0)
    return {
        name: np.asarray(value).reshape(-1, 1, 1).tolist()
        for name, value in {
            "min": values.min(0),
            "max": values.max(0),
            "mean": values.mean(0),
            "std": values.std(0),
            **{_named(q): quantile for q, quantile in zip(_QUANTILES, quantiles, strict=True)},
        }.items()
    } | {"count": [len(drawn)]}


def _as_json(known: FeatureStatistics, scale: float, shape: tuple[int, ...]) -> dict[str, Any]:
    values = {
        "min": known.min,
        "max": known.max,
        "mean": known.mean,
        "std": known.std,
        **{_named(q): known.quantile(q) for q in _QUANTILES},
    }
    found = {name: (value / scale).reshape(shape).tolist() for name, value in values.items()}
    return found | {"count": [known.num_frames]}


def _named(quantile: float) -> str:
    return f"q{round(100 * quantile):02d}"


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False) + "\n", encoding="utf-8")
