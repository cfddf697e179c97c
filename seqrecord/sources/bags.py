"""Recordings of messages, each in one file or several, read at the times of a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.forks import cached_property
from seqrecord.sources.aligning import NONE, align
from seqrecord.sources.bag_files import BagFile, Topic, open_bag_file
from seqrecord.sources.files import is_file, list_folder
from seqrecord.sources.originals import MAX_DEPTH, key_of, natural_order

__all__ = ["BAG_ENDINGS", "Recording", "Timeline", "find_recordings"]

BAG_ENDINGS = (".mcap", ".db3")
_METADATA = "metadata.yaml"


@dataclass(frozen=True)
class Recording:
    """One recording: `paths` follow each other in time. A rosbag2 folder may have several."""

    key: str
    paths: tuple[Path, ...]

    @cached_property
    def files(self) -> list[BagFile]:
        return [open_bag_file(path) for path in self.paths]

    def topics(self) -> dict[str, Topic]:
        """All topics, in the order of names; `SourceError` where two files disagree about one."""
        found: dict[str, Topic] = {}
        for file in self.files:
            for name, topic in file.topics().items():
                known = found.setdefault(name, topic)
                if (known.type, known.encoding) != (topic.type, topic.encoding):
                    raise SourceError(
                        "a topic of two types",
                        file=str(file.path),
                        expected=f"{name}: {known.type}",
                        got=topic.type,
                    )
        return dict(sorted(found.items()))

    def times(self) -> dict[str, npt.NDArray[np.int64]]:
        """By topic when its messages were recorded, in ns, in ascending order.

        Raises `SourceError` where a later file has a message of an earlier time.
        """
        found: dict[str, list[npt.NDArray[np.int64]]] = {}
        for file in self.files:
            for topic, times in file.times().items():
                runs = found.setdefault(topic, [])
                if runs and len(runs[-1]) and len(times) and times[0] < runs[-1][-1]:
                    raise SourceError(
                        "timestamps that go back from one file to the next",
                        file=str(file.path),
                        expected=f"{topic} at {runs[-1][-1]} ns or later",
                        got=f"{times[0]} ns",
                    )
                runs.append(times)
        return {topic: np.concatenate(runs) for topic, runs in found.items()}

    def first_message(self, topic: str) -> tuple[bytes, Path] | None:
        """The bytes of a topic's first message, and its file."""
        for file in self.files:
            if topic in file.topics():
                for _, data in file.messages([topic]):
                    return data, file.path
        return None


class Timeline:
    """Which messages of a recording make its frames.

    `clock` [N] are the frames' times in ns, of each message of the clock's topic; `picks` are by
    topic the numbers of the messages [N] that the frames hold, `NONE` where none is near enough.
    """

    def __init__(
        self, recording: Recording, topics: Sequence[str], clock: str, how: str, tolerance: int
    ) -> None:
        times = recording.times()
        self.clock = times.get(clock, np.empty(0, np.int64))
        if not len(self.clock):
            raise SourceError(
                "a recording without messages of the clock",
                file=str(recording.paths[0]),
                expected=clock,
                got=", ".join(sorted(times))[:300],
            )
        self.num_messages = {topic: len(each) for topic, each in times.items()}
        none = np.empty(0, np.int64)
        self.picks = {t: align(self.clock, times.get(t, none), how, tolerance) for t in topics}
        if clock in self.picks:  # also where two of its messages are of one time
            self.picks[clock] = np.arange(len(self.clock))

    @property
    def fps(self) -> float | None:
        """Frames a second, where the clock is steady: no step is a tenth off the mean."""
        steps = np.diff(self.clock)
        if not len(steps) or steps.min() <= 0:
            return None
        mean = float(self.clock[-1] - self.clock[0]) / len(steps)
        return 1e9 / mean if np.all(np.abs(steps - mean) <= 0.1 * mean) else None

    def used(self, topic: str) -> int:
        """How many messages of a topic are in frames."""
        picks = self.picks[topic]
        return len(np.unique(picks[picks != NONE]))

    def missing(self, topic: str) -> int:
        """How many frames lack the topic."""
        return int(np.count_nonzero(self.picks[topic] == NONE))

    def frames(
        self, recording: Recording, read: Callable[[str, bytes, Path], Any]
    ) -> Iterator[dict[str, Any]]:
        """What `read` makes of the messages of each frame, by topic; each is read once.

        At most the messages within the tolerance of a frame are held.
        """
        stream = _numbered(recording, list(self.picks))
        wanted = {t: iter(np.unique(picks[picks != NONE])) for t, picks in self.picks.items()}
        following = {topic: next(numbers, None) for topic, numbers in wanted.items()}
        held: dict[str, dict[int, Any]] = {topic: {} for topic in self.picks}
        for row in range(len(self.clock)):
            frame: dict[str, Any] = {}
            for topic, picks in self.picks.items():
                pick = int(picks[row])
                if pick == NONE:
                    continue
                while pick not in held[topic]:
                    name, number, data, path = _next(stream, topic, recording)
                    if number == following[name]:
                        following[name] = next(wanted[name], None)
                        held[name][number] = read(name, data, path)
                for old in [number for number in held[topic] if number < pick]:
                    del held[topic][old]
                frame[topic] = held[topic][pick]
            yield frame


def find_recordings(root: Path) -> list[Recording]:
    """All recordings below `root`, or in it if it is a file, by their paths.

    A folder with `metadata.yaml` is one recording, of all its files in the order of the numbers
    in their names; any other file is one by itself.
    """
    if is_file(root):
        return [Recording(root.stem, (root,))] if root.suffix in BAG_ENDINGS else []
    found = _find(root, root, 0)
    names = [recording.key for recording in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SourceError("two recordings of one name", file=str(root), got=", ".join(twice))
    return found


def _find(folder: Path, root: Path, depth: int) -> list[Recording]:
    entries = sorted(list_folder(folder))
    files = [folder / name for name, is_folder in entries if not is_folder]
    bags = [path for path in files if path.suffix in BAG_ENDINGS]
    if bags and folder / _METADATA in files:
        bags.sort(key=lambda path: natural_order(path.name))
        return [Recording(key_of(folder, root, ending=True), tuple(bags))]
    found = [Recording(key_of(path, root), (path,)) for path in bags]
    if depth > MAX_DEPTH:
        raise SourceError("folders nested too deeply", file=str(folder))
    for name, is_folder in entries:
        if is_folder:
            found += _find(folder / name, root, depth + 1)
    return sorted(found, key=lambda recording: natural_order(recording.key))


def _numbered(
    recording: Recording, topics: Sequence[str]
) -> Iterator[tuple[str, int, bytes, Path]]:
    """All messages of these topics, each with its number in its topic."""
    counts: dict[str, int] = dict.fromkeys(topics, 0)
    for file in recording.files:
        present = [topic for topic in topics if topic in file.topics()]
        for topic, data in file.messages(present) if present else ():
            yield topic, counts[topic], data, file.path
            counts[topic] += 1


def _next(
    stream: Iterator[tuple[str, int, bytes, Path]], topic: str, recording: Recording
) -> tuple[str, int, bytes, Path]:
    message = next(stream, None)
    if message is None:
        raise SourceError(
            "fewer messages than the file's index says",
            file=str(recording.paths[-1]),
            got=f"no more of {topic}",
        )
    return message
