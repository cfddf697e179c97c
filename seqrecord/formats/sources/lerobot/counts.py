"""Consistency checks of the counts in `meta/` of a LeRobot dataset.

Datasets written by lerobot's `delete_episodes` and `aggregate_datasets` pass: both recompute totals
and positions in videos.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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


def episodes_by_video(
    episodes: Iterable[LeRobotEpisode], name: str
) -> dict[str, list[LeRobotEpisode]]:
    """Return the episodes with frames of a video feature, by file."""
    by_file: dict[str, list[LeRobotEpisode]] = {}
    for episode in episodes:
        if episode.error is None and episode.length:
            by_file.setdefault(episode.videos[name].file, []).append(episode)
    return by_file


def listed_overlaps(episodes: Collection[LeRobotEpisode], info: LeRobotInfo) -> set[str]:
    """Return the episodes that claim frames of another one by their listed places and lengths."""
    step, keys = 1 / info.fps, set[str]()
    for name in info.videos:
        for members in episodes_by_video(episodes, name).values():
            begins = ((episode, episode.videos[name].begin) for episode in members)
            claims = {e.key: (begin, begin + (e.length - 1) * step) for e, begin in begins}
            keys |= overlapping(claims, step).keys()
    return keys


def overlapping(claims: Mapping[str, tuple[float, float]], step: float) -> dict[str, str]:
    """Return the episodes that claim frames of another one, each with such an episode.

    `claims` are the times of each episode's first and last frame in one video file, in seconds;
    frames are `step` seconds apart. Nothing tells which of two contradicting claims is true.
    """
    others: dict[str, str] = {}
    last_end, last_key = -math.inf, ""
    for key, (begin, end) in sorted(claims.items(), key=lambda claim: claim[1]):
        if begin - step / 2 <= last_end:
            others[key] = last_key
            others.setdefault(last_key, key)
        if end > last_end:
            last_end, last_key = end, key
    return others


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
