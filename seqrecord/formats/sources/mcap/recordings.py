"""Recordings of messages: one or several files each.

Times of all messages are read first, from the index of an MCAP file; then the messages of selected
topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.originals import by_key, find_files, key_of, natural_order
from seqrecord.formats.sources.mcap.bag_metadata import MAX_BYTES, METADATA, read_metadata
from seqrecord.formats.sources.mcap.bags import BAG_ENDINGS, Topic, open_bag
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import is_file, read_bytes
from seqrecord.store.processes.forks import cached_property


@dataclass(frozen=True)
class Recording:
    """One recording. `paths` are its files in the order of time; rosbag2 folders may have several.

    `metadata` is the path of its `metadata.yaml`, if any. `unlisted` are files beside it that it
    does not list.
    """

    key: str
    paths: tuple[Path, ...]
    metadata: Path | None = None
    unlisted: tuple[Path, ...] = ()

    @property
    def place(self) -> Path:
        """The file that stands for it in errors."""
        return self.metadata or self.paths[0]

    @cached_property
    def topics(self) -> dict[str, Topic]:
        """All topics in the order of names. Raises `SourceError` if files disagree on a type."""
        topics: dict[str, Topic] = {}
        for path in self.paths:
            for name, topic in self.topics_of[path].items():
                earlier_topic = topics.setdefault(name, topic)
                if (earlier_topic.type, earlier_topic.encoding) != (topic.type, topic.encoding):
                    raise SourceError(
                        "the topic has two types",
                        file=str(path),
                        expected=f"{name}: {earlier_topic.type}",
                        got=topic.type,
                    )
        return dict(sorted(topics.items()))

    @cached_property
    def topics_of(self) -> dict[Path, dict[str, Topic]]:
        """Topics of each file, with the file's own definitions of their types."""
        topics_by_file = {}
        for path in self.paths:
            with open_bag(path) as file:
                topics_by_file[path] = file.topics()
        return topics_by_file

    def times(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the messages' log times in ns by topic, ascending.

        Raises `SourceError` if files overlap in time, or if the number of messages differs from the
        metadata.
        """
        declared = None if self.metadata is None else read_metadata(self.metadata)
        runs_by_topic: dict[str, list[npt.NDArray[np.int64]]] = {}
        by_file: dict[str, int] = {}
        for path in self.paths:
            with open_bag(path) as file:
                times_of = file.times()
            by_file[path.name] = sum(map(len, times_of.values()))
            for topic, times in times_of.items():
                runs = runs_by_topic.setdefault(topic, [])
                if runs and len(runs[-1]) and len(times) and times[0] < runs[-1][-1]:
                    raise SourceError(
                        "timestamps are not ascending across files",
                        file=str(path),
                        expected=f"{topic} at {runs[-1][-1]} ns or later",
                        got=f"{times[0]} ns",
                    )
                runs.append(times)
        times_by_topic = {topic: np.concatenate(runs) for topic, runs in runs_by_topic.items()}
        if declared is not None:
            declared.check(
                {topic: len(topic_times) for topic, topic_times in times_by_topic.items()}, by_file
            )
        return times_by_topic

    def extras(self) -> Counter[str]:
        """Return the numbers of attachments and metadata records."""
        counts = Counter[str]()
        for path in self.paths:
            with open_bag(path) as file:
                counts.update(file.extras())
        return counts

    def messages(self, topics: Sequence[str]) -> Iterator[tuple[str, bytes, Path]]:
        """Yield topic, bytes and file of all messages on these topics."""
        for path in self.paths:
            if present := [topic for topic in topics if topic in self.topics_of[path]]:
                with open_bag(path) as file:
                    for topic, data in file.messages(present):
                        yield topic, data, path


def find_recordings(root: Path) -> list[Recording]:
    """Return all recordings below `root`, or the one in the file `root`, in natural order of keys.

    A folder with `metadata.yaml` is one recording: of the listed files, or of all files in natural
    order if none are listed. Folders below it are ignored. Any other file is a recording of its
    own.
    """
    paths = find_files(root, lambda path: path.suffix in BAG_ENDINGS)
    if is_file(root):
        return [Recording(path.stem, (path,)) for path in paths]
    parents = {path.parent for path in paths}
    marks = find_files(root, lambda path: path.name == METADATA)
    folders = {mark.parent for mark in marks if mark.parent in parents or _is_bag(mark)}
    files_by_place: dict[Path, list[Path]] = {folder: [] for folder in sorted(folders)}
    for path in paths:
        outermost = next(filter(folders.__contains__, reversed(path.parents)), path)
        if outermost in (path, path.parent):
            files_by_place.setdefault(outermost, []).append(path)
    recordings = [
        _folder_recording(key_of(place, root, ending=True), place, files)
        if place in folders
        else Recording(key_of(place, root), tuple(files))
        for place, files in files_by_place.items()
        if files or folders.isdisjoint(place.parents)
    ]
    # Checks keys.
    by_key((recording.key, recording.place) for recording in recordings)
    return sorted(recordings, key=lambda recording: natural_order(recording.key))


def _is_bag(path: Path) -> bool:
    """Return whether a `metadata.yaml` belongs to rosbag2."""
    try:
        return b"rosbag2_bagfile_information" in read_bytes(path, MAX_BYTES)
    except SourceError:
        return False


def _folder_recording(key: str, folder: Path, files: Sequence[Path]) -> Recording:
    """Return the recording of a folder, with the files listed in its metadata, in that order.

    Reading the recording raises for missing files.
    """
    mark, unlisted = folder / METADATA, list[Path]()
    paths = tuple(files)
    with skipping_unreadable():  # raised by `times`
        if names := read_metadata(mark).files:
            paths = tuple(folder / name for name in names)
            unlisted = [path for path in files if path not in paths]
    return Recording(key, paths, mark, tuple(unlisted))
