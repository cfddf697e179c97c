"""export, as a LeRobot dataset of version 3.0.

::

    DESTINATION/meta/{info,stats}.json, tasks.parquet, episodes/chunk-000/file-000.parquet
    DESTINATION/data/chunk-000/file-000.parquet           rows of many episodes, PNG images in them
    DESTINATION/videos/FEATURE/chunk-000/file-000.mp4     one for each episode

The layout is that of lerobot 0.4.4, see https://huggingface.co/docs/lerobot/lerobot-dataset-v3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.codecs.video.gops import Gop
from seqrecord.errors import ClipError
from seqrecord.format.video_pages import parse_video_page
from seqrecord.reading.episode import Episode
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.reading.reader import DatasetLike, SeqRecordReader, opened
from seqrecord.storage import local_path
from seqrecord.writing.export import disk_errors, make_empty
from seqrecord.writing.lerobot_features import TASK, TIMESTAMP, LeRobotColumns, plan_columns
from seqrecord.writing.lerobot_meta import EpisodeRow, LeRobotMeta, file_name
from seqrecord.writing.mp4 import shown_only, write_mp4

__all__ = ["export_lerobot"]

_STEP_BYTES = 64 << 20  # of frames in memory
_SAME = 1e-4  # seconds: lerobot's tolerance


def export_lerobot(
    dataset: DatasetLike,
    destination: str | PathLike[str],
    *,
    episodes: EpisodeFilter = None,
    features: Sequence[str] | None = None,
    fps: float | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Path:
    """Write episodes as a LeRobot dataset of version 3.0; returns its folder.

    Video of H.264, HEVC, AV1 and VP9 is copied packet by packet into an MP4 file for each episode
    and camera; only groups of pictures of which frames are not shown are encoded anew, with a
    warning. Other images, uint8 [H, W, 3], become PNG, which loses nothing, in the rows; anything
    else becomes columns. Row i of an episode has the timestamp i / fps; a feature `timestamp` that
    says otherwise is written as `recorded_timestamp`. A text feature `task`, else the first of the
    episode's metadata `tasks`, is the task. Statistics are the dataset's own; for images that have
    none, and for video, those of frames that are drawn by a fixed seed.

    Args:
        dataset: local path or URL, or an open dataset.
        destination: a local folder that holds nothing, or is not there.
        episodes: keys, a glob, or a predicate on metadata; all by default. They are numbered in
            the dataset's order, and their keys are in `meta/seqrecord.json`.
        features: names of the features, all by default.
        fps: frames a second, for a dataset whose episodes do not say it.
        storage_options: for the filesystem that serves the dataset's URL.

    Raises `DestinationError` for a destination that holds something, `SchemaError` for a feature
    that LeRobot has no form for (bytes, complex numbers, shapes that vary, its own names), and
    `ClipError` for an episode of which frames lack a feature, or without a rate.
    """
    with opened(dataset, storage_options=storage_options) as reader:
        numbers = reader.find_episodes(episodes).tolist()
        chosen = reader.select(features)
        keys = list(chosen.episodes)
        writer = _Writer(chosen, [chosen.episodes[keys[n]] for n in numbers], fps)
        root = local_path(destination, "destination")
        with disk_errors("the dataset", root):
            make_empty(root, "the folder")
            writer.write(root)
        return root


class _Writer:
    def __init__(
        self, reader: SeqRecordReader, episodes: Sequence[Episode], fps: float | None
    ) -> None:
        self._reader, self._episodes = reader, episodes
        self._fps = _rate(episodes, fps)
        self._columns: LeRobotColumns = plan_columns(reader.features, self._keeps_times())
        names = episodes[0].metadata.get("names") if episodes else None
        self._meta = LeRobotMeta(self._columns, self._fps, names if isinstance(names, dict) else {})
        for episode in episodes:
            for name in reader.features:
                if not (present := episode.present(name)).all():
                    raise ClipError(
                        "LeRobot has no frames that lack a feature; choose other features",
                        episode=episode.key,
                        feature=name,
                        frame=int(np.argmin(present)),
                    )

    def write(self, root: Path) -> None:
        rows = self._meta.open_rows(root)
        for number, episode in enumerate(self._episodes):
            first, file = rows.position, rows.begin_episode()
            tasks = self._write_rows(rows, episode, number)
            for name in self._columns.videos:
                self._write_video(root, name, episode, number)
            self._meta.add(EpisodeRow(number, episode.key, len(episode), tasks, file, first))
        rows.close()
        self._meta.write(root, self._reader.statistics, self._episodes)

    def _write_rows(self, rows: Any, episode: Episode, number: int) -> list[str]:
        """The rows of an episode; returns its tasks in their order."""
        read = [*self._columns.read]
        step = max(1, min(4096, _STEP_BYTES // max(1, self._columns.frame_bytes)))
        tasks: dict[str, None] = {}
        default = _default_task(episode)
        for start in range(0, len(episode), step):
            frames = range(start, min(start + step, len(episode)))
            arrays = episode.read(frames, features=read) if read else {}
            texts = arrays.get(TASK) or [default] * len(frames)
            tasks.update(dict.fromkeys(texts))
            rows.add(arrays, frames, number, [self._meta.task_number(text) for text in texts])
        return list(tasks)

    def _write_video(self, root: Path, name: str, episode: Episode, number: int) -> None:
        spec = self._reader.features[name]
        path = root / f"videos/{name}/{file_name(number)}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        gops: list[Gop] = []
        chunks = self._reader.chunk_reader()
        group = self._reader.index.groups[spec.group]
        position = self._reader.index.positions[episode.key]
        numbers = group.chunks_of(position, np.arange(len(episode)))
        for row in dict.fromkeys(numbers.tolist()):
            [page] = chunks.pages(chunks.chunk_at(spec.group, row, position))
            [data] = chunks.read([page])
            gops += _gops(data, page.num_present, name)
        size = spec.shape[0] or 0, spec.shape[1] or 0
        shown = shown_only(gops, spec, f"{episode.key}, {name}")
        write_mp4(path, spec.codec[0]["codec"], size, shown, self._fps)

    def _keeps_times(self) -> bool:
        """Whether the dataset's own timestamps are other than those of regular frames."""
        spec = self._reader.features.get(TIMESTAMP)
        if spec is None or spec.shape not in ((), (1,)) or spec.dtype.kind != "f":
            return spec is not None
        for episode in self._episodes:
            times = episode.read(range(len(episode)), features=[TIMESTAMP])[TIMESTAMP]
            regular = np.arange(len(episode)) / float(self._fps)
            if np.abs(times.reshape(-1).astype(np.float64) - regular).max(initial=0) > _SAME:
                return True
        return False


def _default_task(episode: Episode) -> str:
    found = episode.metadata.get("tasks") or episode.metadata.get("task")
    found = found[0] if isinstance(found, list) and found else found
    return found if isinstance(found, str) else ""


def _rate(episodes: Sequence[Episode], fps: float | None) -> Fraction:
    """Frames a second: those given, else those of all episodes."""
    known = {episode.fps for episode in episodes} if fps is None else {fps}
    [rate] = known if len(known) == 1 else [None]
    if rate is None or not 0 < rate < 1e6:
        raise ClipError(
            "LeRobot needs one rate for all episodes: give fps (--fps)",
            expected="frames a second",
            got=", ".join(map(str, sorted(known, key=str)))[:100],
        )
    return Fraction(rate).limit_denominator(1001)


def _gops(data: memoryview, count: int, feature: str) -> Iterator[Gop]:
    """The groups of pictures of a page of `count` frames."""
    table = parse_video_page(data, count, feature)
    packets = [bytes(data[a:b]) for a, b in pairwise(table.offsets.tolist())]
    firsts = table.first_frame.tolist()
    for (start, stop), first in zip(pairwise(table.first_packet.tolist()), firsts, strict=False):
        order = [-1 if n < 0 else n - first for n in table.order[start:stop].tolist()]
        yield Gop(tuple(packets[start:stop]), tuple(order))
