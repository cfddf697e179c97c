"""MCAP files and rosbag2 folders: messages of several topics, aligned to the times of one."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError, located
from seqrecord.forks import cached_property
from seqrecord.schema import FeatureSpec, Frame, Schema
from seqrecord.sources.aligning import ALIGNMENTS
from seqrecord.sources.bag_files import Topic
from seqrecord.sources.bag_topics import IMAGES, READABLE, TopicFeatures, can_read, decoder
from seqrecord.sources.bags import BAG_ENDINGS, Recording, Timeline, find_recordings
from seqrecord.sources.base import EpisodeInfo, SourceFormat
from seqrecord.sources.originals import Originals, has_file
from seqrecord.sources.specs import feature_name
from seqrecord.text import repr_of

__all__ = ["FORMAT", "LOG_TIME", "Mcap"]

_logger = logging.getLogger("seqrecord")

LOG_TIME = "log_time"
"""The feature that holds the clock's times."""


@dataclass(frozen=True)
class Mcap(Originals):
    """MCAP files and rosbag2 folders as a source: an episode a recording, a frame a message of the
    clock's topic.

    ::

        ROOT/…/NAME.mcap                                    a recording by itself
        ROOT/…/NAME/metadata.yaml, NAME_0.mcap, NAME_1.…    rosbag2: one recording, .mcap or .db3

    A frame holds, of each topic, the message that was recorded nearest to that of the clock, or
    the last one before it, if it is not farther away than `tolerance`; else it lacks the topic.
    What each topic's messages came to is in the episode's metadata (`topics`: `messages`, `used`,
    `dropped`, `frames_without`), and the totals of dropped messages are logged.

    Types: of ROS 2 (CDR) Image, CompressedImage, Imu, JointState, PoseStamped, Twist,
    TwistStamped, Odometry, and the String, numbers and arrays of std_msgs; of Foxglove (protocol
    buffers or JSON) RawImage and CompressedImage.
    Any other type is refused, unless `map` or `features` leave it out.

    Features: `/camera/image_raw` is `camera.image_raw`; of several values, as an Imu has, each is
    one (`imu.data.orientation` [x, y, z, w], `.angular_velocity`, `.linear_acceleration`). Joints
    are in the order of the first message, and their names in the metadata (`names`). `log_time`
    int64 [] is when the clock's message was recorded, in ns.

    Args:
        root: a folder, or one file.
        features: names of the features to read, in that order; by default all.
        keep_encoded: leave RGB images that are PNG or JPEG as they are.
        clock: the topic whose messages make the frames; by default the only topic of images, or
            the only topic.
        map: topics by the name of their feature, as `{"image": "/camera/image_raw"}`; others are
            not read.
        align: `nearest` or `last`.
        tolerance: seconds.
    """

    clock: str | None = None
    map: Mapping[str, str] | None = None
    align: str = "nearest"
    tolerance: float = 0.1

    takes_files = True
    unpickled = ("_recordings", "_episodes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.align not in ALIGNMENTS:
            raise SourceError(
                "no such alignment", expected=" or ".join(ALIGNMENTS), got=repr_of(self.align, 50)
            )
        given: object = self.tolerance  # of a user
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < 1e9:
            raise SourceError(
                "not a tolerance", expected="seconds, 0 or more", got=repr_of(self.tolerance, 50)
            )

    def exists(self) -> bool:
        """Whether there is a recording below `root`."""
        return has_file(self.path, lambda path: path.suffix in BAG_ENDINGS)

    def schema(self) -> Schema:
        return self._schema

    def episodes(self) -> Sequence[EpisodeInfo]:
        if not self._recordings:
            raise SourceError("no MCAP file", file=str(self.root), expected=FORMAT.layout)
        return self._episodes

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        path = self.path
        row = -1
        with located(SourceError, episode=info.key):
            if info.key not in self._recordings:
                raise SourceError("no such episode", file=str(path))
            recording = self._recordings[info.key]
            timeline = self._timeline(recording)
            read = _Reading(recording, self._topics)
            for row, values in enumerate(timeline.frames(recording, read)):
                frame: dict[str, Any] = {LOG_TIME: np.array(timeline.clock[row], "<i8")}
                for each in values.values():
                    frame |= each
                yield {name: frame[name] for name in self.schema() if name in frame}

    @cached_property
    def _recordings(self) -> dict[str, Recording]:
        return {recording.key: recording for recording in find_recordings(self.path)}

    # --- which topics, and their features ---------------------------------------------------

    @cached_property
    def _offered(self) -> dict[str, Topic]:
        """The topics of the first recording that can be read."""
        first: SourceError | None = None
        for recording in self._recordings.values():
            try:
                return recording.topics()
            except SourceError as error:
                error.located(episode=recording.key)
                first = first or error
        raise first or SourceError("no MCAP file", file=str(self.root), expected=FORMAT.layout)

    @cached_property
    def _prefixes(self) -> dict[str, str]:
        """The topics to read, and the names of their features or how those begin."""
        if self.map is not None:
            chosen = {topic: name for name, topic in self.map.items()}
            if unknown := [topic for topic in chosen if topic not in self._offered]:
                raise self._refused("no such topic", ", ".join(unknown))
        else:
            chosen = {topic: feature_name(topic) for topic in self._offered}
        refused = [topic for topic in chosen if not can_read(self._offered[topic])]
        if self.map is None and self.features is not None:
            chosen = {topic: name for topic, name in chosen.items() if topic not in refused}
        elif refused:
            types = (f"{topic} ({_type(self._offered[topic])})" for topic in refused)
            raise self._refused(
                "topics of types that cannot be read; name those to read by --map NAME=TOPIC, or "
                "their features by --features",
                ", ".join(types),
            )
        return chosen

    @cached_property
    def _topics(self) -> dict[str, TopicFeatures]:
        """The features of each topic that is read, as its first message has them."""
        found: dict[str, TopicFeatures] = {}
        names = {} if self.features is None else dict.fromkeys(self.features)
        for topic, prefix in self._prefixes.items():
            if names and not any(n == prefix or n.startswith(f"{prefix}.") for n in names):
                continue
            features = self._first(topic, prefix)
            if features is not None:
                found[topic] = features.select(names) if names else features
        offered = [spec.name for each in found.values() for spec in each.specs.values()]
        if twice := sorted({name for name in offered if offered.count(name) > 1}):
            raise self._refused(
                "two topics of one name; name them by --map NAME=TOPIC", ", ".join(twice)
            )
        if unknown := [name for name in names if name not in (*offered, LOG_TIME)]:
            raise self._refused("no such feature", ", ".join(unknown))
        return {topic: features for topic, features in found.items() if features.specs}

    def _first(self, topic: str, prefix: str) -> TopicFeatures | None:
        """From the first message that can be read; `None` where no recording has one."""
        first: SourceError | None = None
        for recording in self._recordings.values():
            try:
                message = recording.first_message(topic)
                if message is None:
                    continue
                data, path = message
                decode = decoder(recording.topics()[topic], path)
                try:
                    return TopicFeatures(prefix, decode(data), path, keep_encoded=self.keep_encoded)
                except ValueError as error:
                    if isinstance(error, SourceError):
                        raise
                    raise _not_readable(topic, path, error) from error
            except SourceError as error:
                error.located(episode=recording.key)
                first = first or error
        if first is not None:
            raise first
        return None

    @cached_property
    def _schema(self) -> Schema:
        specs = {spec.name: spec for each in self._topics.values() for spec in each.specs.values()}
        specs[LOG_TIME] = FeatureSpec(LOG_TIME, np.dtype("<i8"), (), kind="timestamp", unit="ns")
        return Schema([specs[name] for name in self.features or specs])

    # --- the clock --------------------------------------------------------------------------

    @cached_property
    def _clock(self) -> str:
        if self.clock is not None:
            if self.clock not in self._offered:
                raise self._refused("no such topic for the clock", self.clock)
            return self.clock
        images = [t for t in self._topics if self._offered[t].type.endswith(IMAGES)]
        for candidates in (images, [*self._topics]):
            if len(candidates) == 1:
                return candidates[0]
        raise self._refused(
            "no clock: name the topic whose messages make the frames (--source-option clock=TOPIC)",
            ", ".join(self._topics) or "no topic with messages",
        )

    def _timeline(self, recording: Recording) -> Timeline:
        tolerance = round(self.tolerance * 1e9)
        return Timeline(recording, [*self._topics], self._clock, self.align, tolerance)

    @cached_property
    def _episodes(self) -> list[EpisodeInfo]:
        found, dropped, total = [], 0, 0
        clock = self._clock  # a wrong one concerns the source as a whole, not an episode
        for recording in self._recordings.values():
            try:
                timeline = self._timeline(recording)
            except SourceError as error:
                found.append(EpisodeInfo(recording.key, 1, {"error": error.message}))
                continue
            topics = {topic: _counts(timeline, topic) for topic in self._topics}
            dropped += sum(each["dropped"] for each in topics.values())
            total += sum(each["messages"] for each in topics.values())
            found.append(self._info(recording, timeline, topics))
        if dropped:
            _logger.warning(
                "%s: %d of %d messages are in no frame: frames are at the times of %s, and hold "
                "one message of each topic, the %s one within %g s",
                self.root, dropped, total, clock, self.align, self.tolerance,
            )  # fmt: skip
        return found

    def _info(
        self, recording: Recording, timeline: Timeline, topics: dict[str, dict[str, int]]
    ) -> EpisodeInfo:
        others = {t: n for t, n in timeline.num_messages.items() if t not in topics and n}
        names = {
            spec.name: list(each.names)
            for each in self._topics.values()
            for spec in each.specs.values()
            if each.names
        }
        metadata: dict[str, Any] = {
            "files": [path.name for path in recording.paths],
            "clock": self._clock,
            "start_ns": int(timeline.clock[0]),
            "topics": topics,
        }
        if others:
            metadata["topics_not_read"] = others
        if names:
            metadata["names"] = names
        return EpisodeInfo(recording.key, len(timeline.clock), metadata, fps=timeline.fps)

    def _refused(self, message: str, got: str) -> SourceError:
        works = ", ".join(f"{t} ({_type(o)})" for t, o in self._offered.items() if can_read(o))
        return SourceError(
            message,
            file=str(self.root),
            expected=f"some of {works}" if works else f"topics of {READABLE}",
            got=got[:500],
        )


class _Reading:
    """Decodes the messages of a recording's topics into values of frames."""

    def __init__(self, recording: Recording, topics: Mapping[str, TopicFeatures]) -> None:
        offered, path = recording.topics(), recording.paths[0]
        self._topics = topics
        for topic in topics:
            if topic in offered and not can_read(offered[topic]):
                raise SourceError(
                    "a topic of another type than in the first recording",
                    file=str(path),
                    expected=READABLE,
                    got=f"{topic} ({_type(offered[topic])})",
                )
        self._decoders = {t: decoder(offered[t], path) for t in topics if t in offered}

    def __call__(self, topic: str, data: bytes, path: Path) -> dict[str, Any]:
        try:
            return self._topics[topic].frame(self._decoders[topic](data), path)
        except ValueError as error:
            raise _not_readable(topic, path, error) from error


FORMAT = SourceFormat(
    "mcap",
    "NAME.mcap, or a rosbag2 folder: metadata.yaml with .mcap or .db3 files",
    Mcap,
    options=("clock", "map", "align", "tolerance"),
    takes_files=True,
    takes_urls=True,
)


def _counts(timeline: Timeline, topic: str) -> dict[str, int]:
    messages, used = timeline.num_messages.get(topic, 0), timeline.used(topic)
    return {
        "messages": messages,
        "used": used,
        "dropped": messages - used,
        "frames_without": timeline.missing(topic),
    }


def _not_readable(topic: str, path: Path, error: ValueError) -> SourceError:
    return SourceError(
        "a message that cannot be read", file=str(path), expected=topic, got=str(error)[:500]
    )


def _type(topic: Topic) -> str:
    return f"{topic.type or 'no type'}, {topic.encoding}"
