"""Numbers that `meta/` of a LeRobot dataset declares, compared with each other.

Datasets that lerobot's own `delete_episodes` and `aggregate_datasets` have written pass: both write
the totals and the places in videos anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from seqrecord.errors import SourceError
from seqrecord.sources.lerobot.layout import EPISODES, INFO, TASKS, LeRobotEpisode, LeRobotInfo


def check_totals(root: Path, info: LeRobotInfo, episodes: Sequence[LeRobotEpisode]) -> None:
    """Raise `SourceError` if `info.json` declares other numbers of episodes or frames than are
    listed, or splits of other episodes. `episodes` are in the order of their numbers."""
    if not episodes:
        return
    what = EPISODES[info.version]
    _check_total(root, info, "total_episodes", len(episodes), what)
    if all(each.error is None for each in episodes):
        _check_total(root, info, "total_frames", sum(each.length for each in episodes), what)
    last = episodes[-1].index
    for name, numbers in info.splits.items():
        if numbers.stop > last + 1:
            raise SourceError(
                f"the split {name} has episodes that are not listed",
                file=str(root / INFO),
                expected=f"episodes up to {last}",
                got=f"{numbers.start}:{numbers.stop}",
            )


def check_tasks(root: Path, info: LeRobotInfo, num_tasks: int) -> None:
    """Raise `SourceError` if `info.json` declares more tasks than the table of tasks has."""
    if num_tasks < info.totals.get("total_tasks", 0):
        _check_total(root, info, "total_tasks", num_tasks, TASKS[info.version])


def frames_in_files(
    episodes: Collection[LeRobotEpisode], file_of: Callable[[LeRobotEpisode], str]
) -> dict[str, int]:
    """The rows or frames that episodes have in each file; empty if an episode cannot be listed."""
    found = Counter[str]()
    for each in episodes:
        if each.error is not None:
            return {}
        found[file_of(each)] += each.length
    return found


def limits_in_videos(
    episodes: Iterable[LeRobotEpisode], info: LeRobotInfo, name: str
) -> dict[str, float]:
    """By key of an episode the seconds before which its last frame in a video of v3.0 is shown:
    half a frame before the next episode in the file."""
    by_file: dict[str, list[tuple[float, str]]] = {}
    for each in episodes:
        if each.error is None and each.length:
            video = each.videos[name]
            by_file.setdefault(video.file, []).append((video.begin, each.key))
    return {
        one[1]: following[0] - 0.5 / info.fps
        for places in by_file.values()
        for one, following in pairwise(sorted(places))
    }


def _check_total(root: Path, info: LeRobotInfo, name: str, found: int, what: str) -> None:
    """Raise `SourceError` unless `info.json` declares the number that was found, or none."""
    declared = info.totals.get(name, found)
    if declared != found:
        raise SourceError(
            f"{name} is not what {what} has: the dataset is incomplete, or being recorded, "
            "or info.json is wrong; `seqrecord doctor PATH` lists every difference",
            file=str(root / INFO),
            expected=f"{name} {declared}",
            got=found,
        )
