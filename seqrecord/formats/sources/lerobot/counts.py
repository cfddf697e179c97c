"""Consistency checks of the counts in `meta/` of a LeRobot dataset.

Datasets written by lerobot's `delete_episodes` and `aggregate_datasets` pass: both recompute totals
and positions in videos.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from seqrecord.errors import SourceError
from seqrecord.formats.sources.lerobot.layout import (
    EPISODES,
    INFO,
    TASKS,
    LeRobotEpisode,
    LeRobotInfo,
)


def wrong_totals(
    root: Path, info: LeRobotInfo, episodes: Sequence[LeRobotEpisode]
) -> Iterator[SourceError]:
    """Yield disagreements of `info.json` with the listed episodes, frames and splits.

    `episodes` are in the order of their numbers.
    """
    table = EPISODES[info.version]
    yield from _wrong_total(root, info, "total_episodes", len(episodes), table)
    if all(episode.error is None for episode in episodes):
        frames = sum(episode.length for episode in episodes)
        yield from _wrong_total(root, info, "total_frames", frames, table)
    last_number = max((episode.index for episode in episodes), default=-1)
    for name, numbers in info.splits.items():
        if numbers.stop > last_number + 1:
            yield SourceError(
                f"the split {name} has episodes beyond the listed ones",
                file=str(root / INFO),
                expected=f"episodes up to {last_number}",
                got=f"{numbers.start}:{numbers.stop}",
            )


def check_tasks(root: Path, info: LeRobotInfo, num_tasks: int) -> None:
    """Raise `SourceError` if `info.json` declares more tasks than the task table has."""
    if num_tasks < info.totals.get("total_tasks", 0):
        for error in _wrong_total(root, info, "total_tasks", num_tasks, TASKS[info.version]):
            raise error


def frames_in_files(
    episodes: Collection[LeRobotEpisode], file_of: Callable[[LeRobotEpisode], str]
) -> dict[str, int]:
    """Count rows or frames of episodes by file; empty if an episode is broken."""
    counts = Counter[str]()
    for episode in episodes:
        if episode.error is not None:
            return {}
        counts[file_of(episode)] += episode.length
    return counts


def limits_in_videos(
    episodes: Iterable[LeRobotEpisode], info: LeRobotInfo, name: str
) -> dict[str, float]:
    """Return the end time of each episode in its v3.0 video file: seconds by episode key.

    The end is half a frame before the file's next episode. Last episodes of a file have no entry.
    """
    by_file: dict[str, list[tuple[float, str]]] = {}
    for episode in episodes:
        if episode.error is None and episode.length:
            video = episode.videos[name]
            by_file.setdefault(video.file, []).append((video.begin, episode.key))
    return {
        place[1]: next_place[0] - 0.5 / info.fps
        for places in by_file.values()
        for place, next_place in pairwise(sorted(places))
    }


def _wrong_total(
    root: Path, info: LeRobotInfo, name: str, count: int, table: str
) -> Iterator[SourceError]:
    """Yield an error if `info.json` declares another number than `count`."""
    declared = info.totals.get(name, count)
    if declared != count:
        yield SourceError(
            f"{name} disagrees with {table}: the dataset is incomplete or still being recorded, "
            "or info.json is wrong; `seqrecord doctor PATH` lists all differences",
            file=str(root / INFO),
            expected=f"{name} {declared}",
            got=count,
        )
