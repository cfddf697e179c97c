"""Parse `meta/` of a LeRobot dataset: features, episodes, tasks, and positions of rows.

Layouts of lerobot 0.3.3 (v2.1) and 0.4.4 (v3.0), see
https://huggingface.co/docs/lerobot/lerobot-dataset-v3. All content is checked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.originals import find_files
from seqrecord.formats.sources.common.parquet_tables import ParquetTable, python_values
from seqrecord.formats.sources.common.specs import frame_rate
from seqrecord.in_place.boundary import reader_boundary
from seqrecord.in_place.files import is_file, json_object, lines_of, opened, read_bytes, size_of
from seqrecord.in_place.limits import check_size
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.text import repr_of

INFO = "meta/info.json"

EPISODES = {2: "meta/episodes.jsonl", 3: "meta/episodes"}
TASKS = {2: "meta/tasks.jsonl", 3: "meta/tasks.parquet"}
STATS, EPISODES_STATS = "meta/stats.json", "meta/episodes_stats.jsonl"
SUBTASKS = "meta/subtasks.parquet"
MODALITY = "meta/modality.json"  # GR00T only
_ANNOTATION = "annotation."
SUBTASK_INDEX = "subtask_index"
_TOTALS = ("total_episodes", "total_frames", "total_tasks")
_MAX_INFO_BYTES = 16 << 20
_SPARE_ROWS = 1000  # accepted beyond the declared ones: totals may be stale
_MAX_LINES_BYTES = 1 << 30
_MOST_SECONDS = 1e9
_MAX_STATS_BYTES = 64 << 20  # of all episodes
_FIELD = re.compile(r"\{(\w+)(?::0([1-9])d)?\}")


@dataclass(frozen=True)
class LeRobotFeature:
    """A feature as declared by `info.json`; `dtype` may be `image`, `video` or `string`.

    `depth` is the declaration of depth, as a video of codes or images; `None` for colours.
    `video_fps` is the declared frame rate of a video.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    names: Any
    depth: Mapping[str, Any] | None = None
    video_fps: float | None = None

    @property
    def depth_meaning(self) -> Mapping[str, Any]:
        """Kind and unit of depth images; empty for colours."""
        if self.depth is None:
            return {}
        unit = self.depth.get("depth_unit")
        return {"kind": "depth", "unit": unit if unit in ("m", "mm") else None}

    def check_size(self, file_spec: FeatureSpec, path: Path) -> None:
        """Raise `SourceError` if images in a file have another size than declared.

        The declared shape may be [C, H, W].
        """
        if math.prod(n or 1 for n in file_spec.shape) != math.prod(self.shape):
            noun = "video" if self.dtype == "video" else "image"
            raise SourceError(
                f"the {noun} size differs from info.json",
                file=str(path),
                feature=self.name,
                expected=list(self.shape),
                got=list(file_spec.shape),
            )


@dataclass(frozen=True)
class LeRobotInfo:
    """The used parts of `info.json`; `version` is 2 or 3.

    `totals` are the declared numbers of episodes, frames and tasks. `other_splits` are splits that
    are not ranges of episodes.
    """

    version: int
    fps: float
    features: Mapping[str, LeRobotFeature]
    data_path: str
    video_path: str | None
    chunks_size: int
    robot_type: str | None
    splits: Mapping[str, range]
    totals: Mapping[str, int]
    other_splits: Mapping[str, str]

    @property
    def videos(self) -> list[str]:
        """Names of features stored as video."""
        return [name for name, feature in self.features.items() if feature.dtype == "video"]

    def split_of(self, episode: int) -> str | None:
        """Return the last split of an episode number; `None` without one."""
        names = [name for name, numbers in self.splits.items() if episode in numbers]
        return names[-1] if names else None


@dataclass(frozen=True)
class LeRobotVideo:
    """Video file of an episode, below the root, and the time of the episode's first frame in it."""

    file: str
    begin: float  # seconds


@dataclass(frozen=True)
class LeRobotEpisode:
    """An episode: number, frames, tasks, and the Parquet file of its rows, below the root.

    `error` is the error in its row of the episode table; such an episode has no files.
    """

    index: int
    length: int
    tasks: tuple[str, ...]
    file: str
    videos: Mapping[str, LeRobotVideo]
    error: SourceError | None = None

    @property
    def key(self) -> str:
        return f"episode_{self.index:06d}"


def read_info(root: Path) -> LeRobotInfo:
    """Read `meta/info.json`. Raises `SourceError` for an unsupported version and invalid values."""
    path = root / INFO
    with located(SourceError, file=str(path)):
        info = json_object(read_bytes(path, _MAX_INFO_BYTES))
        version = info.get("codebase_version")
        if not isinstance(version, str) or version not in ("v2.0", "v2.1", "v3.0"):
            raise SourceError(
                "unsupported LeRobot version",
                expected="codebase_version v2.0, v2.1 or v3.0",
                got=repr_of(version, 50),
            )
        fps = frame_rate(info.get("fps"))
        size, data_path = info.get("chunks_size", 1000), info.get("data_path")
        if fps is None:
            raise _invalid_value("fps", "a number above 0", info.get("fps"))
        if not _is_count(size) or size < 1:
            raise _invalid_value("chunks_size", "1 or more", size)
        if not isinstance(data_path, str):
            raise _invalid_value("data_path", "text", data_path)
        features = _features(info.get("features"))
        videos = info.get("video_path")
        has_video = any(feature.dtype == "video" for feature in features.values())
        if not isinstance(videos, str) and (has_video or videos is not None):
            raise _invalid_value("video_path", "text", videos)
        robot = info.get("robot_type")
        splits, other_splits = _splits(info.get("splits"))
        return LeRobotInfo(
            version=int(version[1]),
            fps=fps,
            features=features,
            data_path=data_path,
            video_path=videos,
            chunks_size=size,
            robot_type=robot if isinstance(robot, str) else None,
            splits=splits,
            totals={name: info[name] for name in _TOTALS if _is_count(info.get(name))},
            other_splits=other_splits,
        )


def read_episodes(root: Path, info: LeRobotInfo) -> list[LeRobotEpisode]:
    """Return all episodes in the order of their numbers, which may have gaps."""
    place = root / EPISODES[info.version]
    with located(SourceError, file=str(place)):
        tables = episode_tables(root, info)
        episodes = [episode for path in tables for episode in listed_episodes(path, info)]
        first_error = episodes[0].error if episodes else None
        if first_error is not None and all(episode.error is not None for episode in episodes):
            raise first_error  # all episodes fail
        episodes.sort(key=lambda episode: episode.index)
        for episode, next_episode in pairwise(episodes):
            if episode.index == next_episode.index:
                raise SourceError("the episode is listed twice", episode=episode.key)
    return episodes


def episode_tables(root: Path, info: LeRobotInfo) -> list[Path]:
    """Return the files that list episodes. Raises `SourceError` if there are none."""
    place = root / EPISODES[info.version]
    if place.suffix:
        return [place]
    paths = find_files(place, lambda path: path.suffix == ".parquet")
    if not paths:
        raise SourceError("missing table of episodes", file=str(place), expected="*.parquet")
    return paths


def listed_episodes(path: Path, info: LeRobotInfo) -> Iterator[LeRobotEpisode]:
    """Yield the episodes of a file from `episode_tables`, in its order."""
    videos = [f"videos/{name}/{column}" for name in info.videos for column in _VIDEO_COLUMNS]
    with located(SourceError, file=str(path)):
        for row in _rows(path, [*_COLUMNS, *videos], info.totals.get("total_episodes")):
            yield _listed_episode(row, info, path)


def listed_columns(root: Path, info: LeRobotInfo) -> list[str]:
    """Return the column names of the episode list, from its first table or line."""
    place = episode_tables(root, info)[0]
    with located(SourceError, file=str(place)):
        return ParquetTable(place).names if info.version == 3 else [*next(_rows(place), ())]


def number_columns(root: Path, info: LeRobotInfo) -> dict[str, str]:
    """Return text features stored as index columns: feature name to column.

    GR00T's annotations are task numbers under other names, see
    https://github.com/NVIDIA/Isaac-GR00T (getting_started/LeRobot_compatible_data_schema.md).
    """
    columns = {} if "task" in info.features else {"task": "task_index"}
    if SUBTASK_INDEX in info.features and "subtask" not in info.features:
        columns |= {"subtask": SUBTASK_INDEX} if is_file(root / SUBTASKS) else {}
    annotations = [
        name
        for name, feature in info.features.items()
        if name.startswith(_ANNOTATION) and "int" in feature.dtype
    ]
    if annotations and is_file(root / MODALITY):
        columns |= {name: name for name in annotations}
    return columns


def read_texts(root: Path, info: LeRobotInfo, column: str) -> dict[int, str]:
    """Return the texts of a column from `number_columns`, by number."""
    text = "subtask" if column == SUBTASK_INDEX else "task"
    number = f"{text}_index"
    place = root / (SUBTASKS if column == SUBTASK_INDEX else TASKS[info.version])
    with located(SourceError, file=str(place)):
        texts = dict[int, str]()
        max_rows = None if text == "subtask" else info.totals.get("total_tasks")
        for row in _rows(place, max_rows=max_rows):
            # pandas stores the text as the index, named `__index_level_0__` or like the column.
            key, value = row.get(number), row.get(text, row.get("__index_level_0__"))
            if not isinstance(key, int) or not isinstance(value, str):
                raise _invalid_value(text, "a number and a text", row)
            if texts.setdefault(key, value) != value:
                got = f"{key}: {texts[key][:100]!r}, {value[:100]!r}"
                raise SourceError("two texts have one number", expected=f"{number} once", got=got)
        return texts


def read_stats(root: Path, info: LeRobotInfo) -> tuple[Path, Iterator[dict[str, Any]]]:
    """Return the statistics file and its contents by feature: per episode in v2.1, else one."""
    if info.version == 2 and is_file(by_episode := root / EPISODES_STATS):
        rows = (row.get("stats") for row in _rows(by_episode))
        return by_episode, (row for row in rows if isinstance(row, dict))
    return root / STATS, iter([json_object(read_bytes(root / STATS, _MAX_STATS_BYTES))])


_COLUMNS = ("episode_index", "length", "tasks", "data/chunk_index", "data/file_index")
_VIDEO_COLUMNS = ("chunk_index", "file_index", "from_timestamp")


def _listed_episode(row: Mapping[str, Any], info: LeRobotInfo, place: Path) -> LeRobotEpisode:
    """Return the episode of a row. An invalid row gives an episode with its number and an error."""
    index = row.get("episode_index")
    try:
        with reader_boundary(), located(SourceError, file=str(place)):
            return _episode(row, info)
    except SourceError as error:
        if not _is_count(index):
            raise
        return LeRobotEpisode(index, 0, (), "", {}, error)


def _episode(row: Mapping[str, Any], info: LeRobotInfo) -> LeRobotEpisode:
    index, length = row.get("episode_index"), row.get("length")
    if not _is_count(index) or not _is_count(length):
        raise _invalid_value("episode", "episode_index and length, 0 or more", row)
    tasks = row.get("tasks") or ()
    if not isinstance(tasks, (list, tuple)) or not all(isinstance(task, str) for task in tasks):
        raise _invalid_value("tasks", "a list of text", tasks)
    videos = {}
    for name in info.videos:
        begin = row.get(f"videos/{name}/from_timestamp", 0.0 if info.version == 2 else None)
        if not isinstance(begin, (int, float)) or not 0 <= begin < _MOST_SECONDS:
            raise _invalid_value(f"videos/{name}/from_timestamp"[:150], "seconds", begin)
        values = {**_numbers(row, f"videos/{name}", info), "video_key": name}
        assert info.video_path is not None
        videos[name] = LeRobotVideo(_fill("video_path", info.video_path, values), float(begin))
    file = _fill("data_path", info.data_path, _numbers(row, "data", info))
    return LeRobotEpisode(index, length, tuple(tasks), file, videos)


def _numbers(row: Mapping[str, Any], prefix: str, info: LeRobotInfo) -> dict[str, Any]:
    """Return the numbers in file names: the episode in v2, chunk and file index in v3."""
    if info.version == 2:
        index = row["episode_index"]
        return {"episode_index": index, "episode_chunk": index // info.chunks_size}
    return {name: row.get(f"{prefix}/{name}") for name in ("chunk_index", "file_index")}


def _fill(field: str, template: str, values: Mapping[str, Any]) -> str:
    """Fill in a path template, `data/chunk-{chunk_index:03d}/…`, and check that it is below
    root."""

    def value(match: re.Match[str]) -> str:
        number = values.get(match[1])
        if isinstance(number, str) and not match[2]:
            return number
        if not isinstance(number, int) or number < 0:
            raise _invalid_value(match[1], f"a number for {field}", number)
        return f"{number:0{match[2] or 1}d}"

    path = _FIELD.sub(value, template)
    if {"{", "}"} & {*path} or path.startswith("/") or ".." in path.split("/"):
        raise _invalid_value(field, "a path below the dataset", template)
    return path


def _features(value: object) -> dict[str, LeRobotFeature]:
    if not isinstance(value, dict) or not value:
        raise _invalid_value("features", "an object of features", value)
    features = {}
    for name, description in value.items():
        shape = description.get("shape") if isinstance(description, dict) else None
        if (
            not isinstance(shape, list)
            or not all(isinstance(n, int) and not isinstance(n, bool) for n in shape)
            or not isinstance(description.get("dtype"), str)
        ):
            raise _invalid_value(
                f"features.{name}"[:100], "an object of dtype and shape", description
            )
        # Of earlier versions, and of later ones.
        infos = (
            description.get("video_info"),
            description.get("info"),
        )
        facts = {k: v for info in infos if isinstance(info, dict) for k, v in info.items()}
        features[name] = LeRobotFeature(
            *(name, description["dtype"], tuple(shape), description.get("names")),
            depth=facts if _is_depth(facts) else None,
            video_fps=frame_rate(facts.get("video.fps")),
        )
    return features


def _is_depth(facts: Mapping[str, Any]) -> bool:
    """Return whether a feature's `info` declares a video of 12-bit depth codes."""
    return bool(
        facts.get("is_depth_map")
        or facts.get("video.is_depth_map")
        or str(facts.get("video.pix_fmt")).startswith("gray1")
        or any(str(key).startswith("video.depth") for key in facts)
    )


def _splits(value: object) -> tuple[dict[str, range], dict[str, str]]:
    """Parse splits, `{"train": "0:50"}`: ranges of episodes by name, and other values as text."""
    ranges, other_splits = {}, {}
    for name, split in value.items() if isinstance(value, dict) else ():
        match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", split) if isinstance(split, str) else None
        if match:
            ranges[str(name)] = range(int(match[1]), int(match[2]))
        else:
            other_splits[str(name)[:80]] = repr_of(split, 80)
    return ranges, other_splits


def _rows(
    place: Path, columns: Sequence[str] | None = None, max_rows: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON Lines file, or of a table that should have `max_rows` rows."""
    if place.suffix == ".jsonl":
        with opened(place) as file:
            check_size("file", size_of(place), _MAX_LINES_BYTES)
            for number, line in enumerate(lines_of(file), 1):
                if line.strip():
                    yield json_object(line, f" in line {number}")
        return
    table = ParquetTable(place)
    if max_rows is not None:
        table.check_rows(max_rows, INFO, _SPARE_ROWS)
    for batch in table.batches(columns):
        yield from python_values(batch)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _invalid_value(field: str, expected: str, got: object) -> SourceError:
    return SourceError(f"invalid {field}", expected=expected, got=repr_of(got))
