"""Inventory of a LeRobot dataset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path

from seqrecord.formats.sources.common.parquet_tables import ParquetTable
from seqrecord.formats.sources.inventory import Account, LeftOut, not_selected, unread_files
from seqrecord.formats.sources.lerobot.language import PERSISTENT
from seqrecord.formats.sources.lerobot.layout import (
    EPISODES,
    EPISODES_STATS,
    INFO,
    MODALITY,
    STATS,
    SUBTASK_INDEX,
    SUBTASKS,
    TASKS,
    LeRobotEpisode,
    LeRobotInfo,
    episode_tables,
    listed_columns,
)
from seqrecord.formats.sources.lerobot.pairing import Jitter
from seqrecord.formats.sources.video.files import VideoFile
from seqrecord.formats.sources.video.notes import FileNotes
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import is_file
from seqrecord.in_place.remote import remote_files
from seqrecord.store.schema import Schema
from seqrecord.store.text import counted

_logger = logging.getLogger("seqrecord")

_USED = {"episode_index", "length", "tasks", "dataset_from_index", "dataset_to_index"}
_USED_GROUPS = ("data/", "videos/", "meta/", "stats/")


def account_of(
    root: Path,
    info: LeRobotInfo,
    episodes: Collection[LeRobotEpisode],
    schema: Schema,
    *,
    derived: Collection[str],
    numbered: Mapping[str, str],
    language: Mapping[str, object],
    jitter: Jitter,
) -> Account:
    """Return the account of a dataset.

    Reads file names, the columns of the first row and episode tables, and the tables of videos. On
    a URL, videos are not opened.

    Args:
        derived: columns that the dataset does not store, since they follow from a frame's position.
        numbered: index column by text feature.
        language: resolver by text feature.
        jitter: takes the episodes of all videos.
    """
    good_episodes = [episode for episode in episodes if episode.error is None]
    num_frames = sum(episode.length for episode in good_episodes)
    files = {episode.file for episode in good_episodes} | {
        v.file for episode in good_episodes for v in episode.videos.values()
    }
    files |= {path.relative_to(root).as_posix() for path in episode_tables(root, info)}
    files |= {INFO, TASKS[info.version], STATS, EPISODES_STATS}
    if SUBTASK_INDEX in numbered.values():
        files.add(SUBTASKS)
    if any(name == column for name, column in numbered.items()):  # GR00T's annotations
        files.add(MODALITY)
    left_out = unread_files(root, lambda path: path.relative_to(root).as_posix() in files)
    if len(good_episodes) < len(episodes):  # the files of broken episodes are unknown
        left_out = []
    reason = "recomputed"
    left_out += [
        LeftOut(name, 1, reason, is_data=False)
        for name in (STATS, EPISODES_STATS)
        if is_file(root / name)
    ]
    positions = [name for name in derived if name in info.features and name != "task_index"]
    if positions:
        shown = f"features {', '.join(positions)}"
        reason = "follows from the frame's position"
        left_out.append(LeftOut(shown, len(positions), reason, "features", is_data=False))
    offered = dict.fromkeys([*info.features, *numbered, *language])
    hidden_names = {PERSISTENT, *derived, *numbered.values()} - {*numbered}
    for name in offered:
        if name not in schema and name not in hidden_names:
            also = " or without_video="
            left_out.append(not_selected(f"feature {name}", num_frames, "frames", also=also))
    left_out += [
        LeftOut(f"column {name} of data/", num_frames, "not declared in meta/info.json", "rows")
        for name in _columns(root, good_episodes)
        if name not in info.features and not name.startswith("__index_level_")
    ]
    left_out += [
        LeftOut(f"{name} in {EPISODES[info.version]}", len(episodes), "no reader", "episodes")
        for name in listed_columns(root, info)
        if name not in _USED and not name.startswith(_USED_GROUPS)
    ]
    notes = _notes(info)
    if PERSISTENT in info.features:
        notes.append(f"{PERSISTENT}: in the metadata of episodes")
    irregular = FileNotes()
    for name in info.videos:
        if name in schema:
            places = _by_file(good_episodes, name)
            if remote_files(root) is not None:  # opening takes a request per file
                notes.append(f"{name}: frames outside of episodes are not counted on a URL")
                continue
            extra = _extra_frames(root, places, irregular, partial(jitter.add, name))
            if extra and len(good_episodes) == len(episodes):
                left_out.append(
                    LeftOut(f"frames of {name}", extra, "outside of all episodes", "frames")
                )
    notes += irregular.lines()
    for note in jitter.lines():
        _logger.warning("%s: %s", root, note)
        notes.append(note)
    reason = f"{INFO} of LeRobot v{info.version}, {counted(len(episodes), 'episode')}"
    return Account(reason, _places(schema, info, numbered, language), tuple(left_out), tuple(notes))


def _by_file(episodes: Iterable[LeRobotEpisode], name: str) -> dict[str, list[LeRobotEpisode]]:
    """Return the episodes of each file of a video feature."""
    places: dict[str, list[LeRobotEpisode]] = {}
    for episode in episodes:
        if name in episode.videos:
            places.setdefault(episode.videos[name].file, []).append(episode)
    return places


def _extra_frames(
    root: Path,
    places: Mapping[str, Collection[LeRobotEpisode]],
    irregular: FileNotes,
    look: Callable[[VideoFile, Collection[LeRobotEpisode]], None],
) -> int:
    """Count frames in video files beyond the episodes' frames, if the files' tables have counts.

    `irregular` collects the files' notes; `look` is called with each file and its episodes.
    """
    extra = 0
    for place, episodes in places.items():
        with skipping_unreadable(), VideoFile(root / place) as file:  # raised by reading
            extra += max(0, (file.known_count() or 0) - sum(e.length for e in episodes))
            irregular.add(file)
            look(file, episodes)
    return extra


def _columns(root: Path, episodes: Collection[LeRobotEpisode]) -> list[str]:
    for episode in episodes:
        with skipping_unreadable():  # raised by reading
            return ParquetTable(root / episode.file).names
    return []


def _places(
    schema: Schema,
    info: LeRobotInfo,
    numbered: Mapping[str, str],
    language: Mapping[str, object],
) -> dict[str, str]:
    def place(name: str) -> str:
        if name in info.videos:
            folder = f"{name}/*" if info.version == 3 else f"*/{name}"
            return f"videos/{folder}/*.mp4"
        if name in numbered:
            texts = SUBTASKS if name == "subtask" else TASKS[info.version]
            return f"data/*/*.parquet, column {numbered[name]}; {texts}"
        return f"data/*/*.parquet, {language.get(name, f'column {name}')}"

    return {name: place(name) for name in schema}


def _notes(info: LeRobotInfo) -> list[str]:
    notes = [
        f"split {name} ignored: {value} is not a range of episodes"
        for name, value in info.other_splits.items()
    ]
    rates = {name: info.features[name].video_fps for name in info.videos}
    return notes + [
        f"{name}: declared frame rate {rate:g} differs from the dataset's {info.fps:g}"
        for name, rate in rates.items()
        if rate is not None and rate != info.fps
    ]
