"""Inventory of a LeRobot dataset."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
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
from seqrecord.store.format.manifest import SPLIT_NAME
from seqrecord.store.schema import Schema
from seqrecord.store.text import counted, repr_of

_logger = logging.getLogger("seqrecord")

_USED = {"episode_index", "length", "tasks", "dataset_from_index", "dataset_to_index"}
_USED_GROUPS = ("data/", "videos/", "meta/", "stats/")


@dataclass(frozen=True, kw_only=True)
class LeRobotAccount:
    """Account of a dataset; a method for each kind of data that is not packed.

    Reads file names, the columns of the first row and episode tables, and the tables of videos. On
    a URL, videos are not opened.

    Args:
        derived: columns that the dataset does not store, since they follow from a frame's position.
        numbered: index column by text feature.
        language: resolver by text feature.
        jitter: takes the episodes of all videos.
    """

    root: Path
    info: LeRobotInfo
    episodes: Collection[LeRobotEpisode]
    schema: Schema
    derived: Collection[str]
    numbered: Mapping[str, str]
    language: Mapping[str, object]
    jitter: Jitter

    def account(self) -> Account:
        """Return the account: rows of each kind, and notes."""
        file_notes = FileNotes()
        left_out = (
            *(self.unread_files() if self.is_complete else ()),
            *self.statistics(),
            *self.positions(),
            *self.unselected_features(),
            *self.undeclared_columns(),
            *self.unread_episode_columns(),
            *self.video_frames(file_notes),
        )
        jitter_notes = self.jitter.lines()
        for note in jitter_notes:
            _logger.warning("%s: %s", self.root, note)
        notes = (*self.notes(), *file_notes.lines(), *jitter_notes)
        info = self.info
        reason = f"{INFO} of LeRobot v{info.version}, {counted(len(self.episodes), 'episode')}"
        return Account(reason, {n: self.place(n) for n in self.schema}, left_out, notes)

    @cached_property
    def good_episodes(self) -> list[LeRobotEpisode]:
        """Episodes whose row in the episode table is valid."""
        return [episode for episode in self.episodes if episode.error is None]

    @property
    def is_complete(self) -> bool:
        """Whether the files of all episodes are listed; a broken episode lists none."""
        return len(self.good_episodes) == len(self.episodes)

    @cached_property
    def num_frames(self) -> int:
        return sum(episode.length for episode in self.good_episodes)

    def unread_files(self) -> list[LeftOut]:
        """Files that belong to no episode and are not read for all."""
        files = {episode.file for episode in self.good_episodes}
        files |= {v.file for episode in self.good_episodes for v in episode.videos.values()}
        files |= {self._name(path) for path in episode_tables(self.root, self.info)}
        files |= {INFO, TASKS[self.info.version], STATS, EPISODES_STATS}
        if SUBTASK_INDEX in self.numbered.values():
            files.add(SUBTASKS)
        if any(name == column for name, column in self.numbered.items()):  # GR00T's annotations
            files.add(MODALITY)
        return unread_files(self.root, lambda path: self._name(path) in files)

    def statistics(self) -> Iterator[LeftOut]:
        """Files of statistics, which are computed again."""
        for name in (STATS, EPISODES_STATS):
            if is_file(self.root / name):
                yield LeftOut(name, 1, "recomputed", is_data=False)

    def positions(self) -> Iterator[LeftOut]:
        """Columns that follow from a frame's position."""
        names = [n for n in self.derived if n in self.info.features and n != "task_index"]
        if names:
            shown = f"features {', '.join(names)}"
            reason = "follows from the frame's position"
            yield LeftOut(shown, len(names), reason, "features", is_data=False)

    def unselected_features(self) -> Iterator[LeftOut]:
        """Features that the user did not select."""
        hidden_names = {PERSISTENT, *self.derived, *self.numbered.values()} - {*self.numbered}
        for name in dict.fromkeys([*self.info.features, *self.numbered, *self.language]):
            if name not in self.schema and name not in hidden_names:
                also = " or without_video="
                yield not_selected(f"feature {name}", self.num_frames, "frames", also=also)

    def undeclared_columns(self) -> Iterator[LeftOut]:
        """Columns of the first readable table that `info.json` does not declare."""
        names: list[str] = []
        for episode in self.good_episodes:
            with skipping_unreadable():  # raised by reading
                names = ParquetTable(self.root / episode.file).names
                break
        reason = "not declared in meta/info.json"
        for name in names:
            if name not in self.info.features and not name.startswith("__index_level_"):
                yield LeftOut(f"column {name} of data/", self.num_frames, reason, "rows")

    def unread_episode_columns(self) -> Iterator[LeftOut]:
        """Columns of the episode table without a reader."""
        table = EPISODES[self.info.version]
        for name in listed_columns(self.root, self.info):
            if name not in _USED and not name.startswith(_USED_GROUPS):
                yield LeftOut(f"{name} in {table}", len(self.episodes), "no reader", "episodes")

    def video_frames(self, file_notes: FileNotes) -> Iterator[LeftOut]:
        """Video frames that no episode has, if the files' tables have counts.

        `file_notes` collects the files' notes.
        """
        for name in self.videos if remote_files(self.root) is None else ():
            episodes_by_file: dict[str, list[LeRobotEpisode]] = {}
            for episode in self.good_episodes:
                if name in episode.videos:
                    episodes_by_file.setdefault(episode.videos[name].file, []).append(episode)
            extra = 0
            for place, episodes in episodes_by_file.items():
                with skipping_unreadable(), VideoFile(self.root / place) as file:  # raised later
                    extra += max(0, (file.known_count() or 0) - sum(e.length for e in episodes))
                    file_notes.add(file)
                    self.jitter.add(name, file, episodes)
            if extra and self.is_complete:
                yield LeftOut(f"frames of {name}", extra, "outside of all episodes", "frames")

    @property
    def videos(self) -> list[str]:
        """Selected features stored as video."""
        return [name for name in self.info.videos if name in self.schema]

    def notes(self) -> Iterator[str]:
        """Assumptions, and what is not checked."""
        for name, value in self.info.other_splits.items():
            yield f"split {name} ignored: {value} is not a range of episodes"
        for name in self.info.splits:
            if not SPLIT_NAME.fullmatch(name):
                shown, form = repr_of(name, 80), SPLIT_NAME.pattern
                yield f"split {shown} in the metadata only: its name is not {form}"
        ranges = sorted((n.start, n.stop) for n in self.info.splits.values() if n)
        if any(stop > start for (_, stop), (start, _) in pairwise(ranges)):
            yield "splits overlap: an episode gets the last of its splits"
        for name in self.info.videos:
            rate, fps = self.info.features[name].video_fps, self.info.fps
            if rate is not None and rate != fps:
                yield f"{name}: declared frame rate {rate:g} differs from the dataset's {fps:g}"
        if PERSISTENT in self.info.features:
            yield f"{PERSISTENT}: in the metadata of episodes"
        # Opening a video takes a request per file.
        for name in self.videos if remote_files(self.root) is not None else ():
            yield f"{name}: frames outside of episodes are not counted on a URL"

    def place(self, name: str) -> str:
        """Where the original has a feature."""
        if name in self.info.videos:
            folder = f"{name}/*" if self.info.version == 3 else f"*/{name}"
            return f"videos/{folder}/*.mp4"
        if name in self.numbered:
            texts = SUBTASKS if name == "subtask" else TASKS[self.info.version]
            return f"data/*/*.parquet, column {self.numbered[name]}; {texts}"
        return f"data/*/*.parquet, {self.language.get(name, f'column {name}')}"

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()
