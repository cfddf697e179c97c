"""Checks a LeRobot dataset before training."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.nested import check_nested
from seqrecord.formats.sources.common.originals import find_files
from seqrecord.formats.sources.common.parquet_tables import ParquetTable
from seqrecord.formats.sources.lerobot.counts import wrong_totals
from seqrecord.formats.sources.lerobot.layout import (
    INFO,
    LeRobotEpisode,
    LeRobotInfo,
    episode_tables,
    listed_episodes,
    read_info,
)
from seqrecord.formats.sources.lerobot.rows import number_column
from seqrecord.formats.sources.video.files import VIDEO_ENDINGS
from seqrecord.in_place.boundary import boundary
from seqrecord.in_place.files import find_original, is_file, json_object, read_bytes, size_of
from seqrecord.in_place.remote import RemoteFiles, is_url
from seqrecord.store.storage.opening import StorageLike, open_storage
from seqrecord.store.units import Progress
from seqrecord.tools.doctor.doctor_report import DoctorReport, Findings
from seqrecord.tools.doctor.doctor_rows import RowChecker
from seqrecord.tools.doctor.doctor_statistics import check_statistics
from seqrecord.tools.doctor.doctor_videos import VideoChecker

_MAX_INFO_BYTES = 16 << 20
_RANGE = ("episode_index", "dataset_from_index", "dataset_to_index", "length")


def examine(
    location: StorageLike,
    *,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DoctorReport:
    """Check a LeRobot dataset of version 2.0, 2.1 or 3.0.

    A damaged file is a finding; the other files are still checked. For videos, only headers are
    read if they suffice, and one keyframe a minute is decoded. Memory: the list of episodes, the
    timestamps of episodes that deviate from the frame rate, and the data of one file.

    Args:
        location: local path or URL.
        progress: called from the calling thread, after every file.
        storage_options: for the filesystem of the URL.

    Raises `SourceError` for other data (with a list of nested LeRobot datasets), and if
    `meta/info.json` is unreadable. Raises `StorageError` if the storage does not answer.
    """
    files = None
    if is_url(location) or not isinstance(location, (str, os.PathLike)):
        files = RemoteFiles(open_storage(location, storage_options))
        root, shown = files.root, files.storage.url
    else:
        root = find_original(location)
        shown = str(location)
    if not is_file(root / INFO):
        check_nested(root, only_lerobot=True)
        raise SourceError(
            "not a LeRobot dataset; of other data, --quality counts NaN and infinities by episode",
            file=shown,
            expected=INFO,
        )
    with boundary(file=shown):
        report = _Examination(root, read_info(root), progress).report(shown)
    del files  # the paths needed its files until here
    return report


class _Examination:
    def __init__(
        self, root: Path, info: LeRobotInfo, progress: Callable[[Progress], None] | None
    ) -> None:
        self._root, self._info, self._progress = root, info, progress
        self._findings = Findings(root)

    def report(self, location: str) -> DoctorReport:
        info, findings = self._info, self._findings
        rows = RowChecker(self._root, info, findings)
        cameras = {
            name: VideoChecker(self._root, info.features[name], info.fps, findings)
            for name in info.videos
        }
        document = json_object(read_bytes(self._root / INFO, _MAX_INFO_BYTES))
        episodes = self._episodes()

        tables: dict[str, list[LeRobotEpisode]] = {}
        videos: dict[tuple[str, str], list[LeRobotEpisode]] = {}
        for episode in episodes:
            if episode.error is None:
                tables.setdefault(episode.file, []).append(episode)
                for name, video in episode.videos.items():
                    videos.setdefault((name, video.file), []).append(episode)
        unnamed_files = self._unnamed({*tables, *(file for _, file in videos)})
        total = len(tables) + len(videos) + len(unnamed_files)
        num_done = 0

        def advance() -> None:
            nonlocal num_done
            num_done += 1
            if self._progress is not None:
                self._progress(Progress(num_done, total))

        for file, file_episodes in tables.items():
            if self._is_there(file, file_episodes, None):
                rows.examine(file, file_episodes)
            else:
                rows.are_all_read = False
            advance()
        for file in unnamed_files:
            if file.endswith(".parquet"):
                rows.examine(file, [])
            advance()
        self._check_ranges(rows)
        for (name, file), file_episodes in videos.items():
            if self._is_there(file, file_episodes, name):
                cameras[name].examine(file, file_episodes, rows.times)
            advance()
        counts = tuple(camera.count() for camera in cameras.values())
        with findings.caught("statistics", severity="warning"):
            check_statistics(self._root, info, rows.statistics, findings)
        return DoctorReport(
            location=location,
            version=str(document["codebase_version"]),
            fps=info.fps,
            num_episodes=len(episodes),
            num_frames=sum(episode.length for episode in episodes),
            num_tables=len(rows.sizes),
            num_rows=sum(rows.sizes.values()),
            cameras=counts,
            findings=tuple(findings.kept),
            counts=dict(findings.counts),
        )

    def _episodes(self) -> list[LeRobotEpisode]:
        """Return the episodes listed in `meta`, by number, without duplicates.

        Reports list errors.
        """
        episodes_by_index: dict[int, LeRobotEpisode] = {}
        tables: list[Path] = []
        with self._findings.caught("metadata"):
            tables = episode_tables(self._root, self._info)
        for path in tables:
            file = path.relative_to(self._root).as_posix()
            with self._findings.caught("metadata", file=file):
                for episode in listed_episodes(path, self._info):
                    facts = {"file": file, "episode": episode.key}
                    if episode.error is not None:
                        self._findings.failed(episode.error, "metadata", **facts)
                    if episode.index in episodes_by_index:
                        self._findings.add("metadata", "an episode is listed twice", **facts)
                    elif episode.error is None and not episode.length:
                        self._findings.add("metadata", "an episode has no frames", **facts)
                    episodes_by_index.setdefault(episode.index, episode)
        episodes = [episodes_by_index[index] for index in sorted(episodes_by_index)]
        for error in wrong_totals(self._root, self._info, episodes):
            self._findings.failed(error, "metadata")
        return episodes

    def _check_ranges(self, rows: RowChecker) -> None:
        """Check the row ranges of v3.0, counted over all tables in order."""
        if self._info.version == 2 or not rows.are_all_read:
            return
        begins: dict[str, int] = {}
        total = 0
        for file in sorted(rows.sizes):
            begins[file] = total
            total += rows.sizes[file]
        paths = []
        with suppress(SourceError):  # already reported
            paths = episode_tables(self._root, self._info)
        for path in paths:
            file = path.relative_to(self._root).as_posix()
            with self._findings.caught("metadata", file=file):
                for batch in ParquetTable(path).batches(_RANGE):
                    columns = (number_column(batch, name).tolist() for name in _RANGE)
                    for index, begin, end, length in zip(*columns, strict=True):
                        table, first_row = rows.firsts.get(index, ("", 0))
                        expected_begin = begins.get(table, begin) + first_row
                        if (begin, end) != (expected_begin, expected_begin + length):
                            self._findings.add(
                                "row_range",
                                "dataset_from_index and dataset_to_index differ from the rows",
                                file=file,
                                episode=f"episode_{index:06d}",
                                expected=f"{expected_begin} to {expected_begin + length}",
                                got=f"{begin} to {end}",
                            )

    def _unnamed(self, named_files: set[str]) -> list[str]:
        """Return tables and videos that belong to no episode."""
        files: list[str] = []
        for folder in ("data", "videos"):
            with self._findings.caught(file=folder):
                paths = find_files(
                    self._root / folder,
                    lambda path: path.name.lower().endswith((".parquet", *VIDEO_ENDINGS)),
                )
                files += [path.relative_to(self._root).as_posix() for path in paths]
        unnamed_files = [file for file in files if file not in named_files]
        for file in unnamed_files:
            self._findings.add("unnamed_file", "a file belongs to no episode", file=file)
        return unnamed_files

    def _is_there(self, file: str, episodes: list[LeRobotEpisode], name: str | None) -> bool:
        """Check that a file named by episodes exists and is not empty."""
        facts: dict[str, Any] = {"file": file, "episode": episodes[0].key, "feature": name}
        with self._findings.caught(**facts):
            path = self._root / file
            if not is_file(path):
                self._findings.add(
                    "missing_file",
                    "a file is missing",
                    expected=f"{sum(e.length for e in episodes)} frames of {len(episodes)} "
                    "episodes",
                    **facts,
                )
            elif not size_of(path):
                self._findings.add("empty_file", "a file is empty", **facts)
            else:
                return True
        return False
