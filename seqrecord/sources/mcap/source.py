"""Source for MCAP files and rosbag2 folders: messages of topics, aligned to a clock topic."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.feature_kinds import pixel_kind
from seqrecord.processes.forks import cached_property
from seqrecord.schema import EncodedImage, FeatureSpec, Frame, Schema
from seqrecord.sources.base import EpisodeInfo, SourceFormat
from seqrecord.sources.common.aligning import ALIGNMENTS, AlignedMessages
from seqrecord.sources.common.embedded import embedded_spec, embedded_value
from seqrecord.sources.common.orientation import Orientation, is_alone
from seqrecord.sources.common.originals import FirstError, Originals, has_file
from seqrecord.sources.common.specs import check_like_first, feature_name, feature_spec, text_spec
from seqrecord.sources.inventory import NOT_SELECTED, Account, LeftOut, group_names, unread_files
from seqrecord.sources.mcap.bags import BAG_ENDINGS, Recording, Topic, find_recordings
from seqrecord.sources.mcap.messages import READABLE, Encoded, Message, can_read, decoder
from seqrecord.text import counted, repr_of

_logger = logging.getLogger("seqrecord")

LOG_TIME = "log_time"
"""Name of the feature with the frames' times."""

_OF_ROS = ("/rosout", "/parameter_events")  # in every recording of all topics
_SIDE_FILES = ("-wal", "-shm", "-journal")  # SQLite's log files
_IMAGES = ("Image", "CompressedImage", "RawImage")  # ends of type names


@dataclass(frozen=True)
class McapSource(Originals):
    """MCAP files and rosbag2 folders: each recording is an episode.

    ::

        ROOT/…/NAME.mcap                                    one recording
        ROOT/…/NAME/metadata.yaml, NAME_0.mcap, NAME_1.…    rosbag2: one recording, .mcap or .db3

    Each message of the clock topic makes a frame. A frame gets one message of each other topic: the
    nearest one in time, or the last one before, if it is within `tolerance`; otherwise the frame
    lacks the topic. The episode's metadata counts messages by topic (`topics`: `messages`, `used`,
    `dropped`, `frames_without`), and the total of dropped messages is logged.

    Supported types: ROS 2 (CDR) Image, CompressedImage, Imu, JointState, PoseStamped, Twist,
    TwistStamped, Odometry, and String, numbers and arrays of std_msgs; Foxglove (protocol buffers
    or JSON) RawImage and CompressedImage. Topics of other types are left out, and empty ones,
    unless `map` names them.

    `/camera/image_raw` becomes the feature `camera.image_raw`. Messages with several values give
    several features, for example `imu.data.orientation` [x, y, z, w], `imu.data.angular_velocity`
    and `imu.data.linear_acceleration`. Joints are in the order of the first message; the metadata
    has their `names`. `log_time` int64 [] is the log time of the clock's message in ns.

    Args:
        root: a folder or a file.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        clock: topic whose messages make the frames; by default the only image topic, or the only
            topic.
        map: topics by feature name, `{"image": "/camera/image_raw"}`; other topics are not read.
        align: `nearest` or `last`.
        tolerance: seconds.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file and episode for inconsistent or unreadable data.
    """

    clock: str | None = None
    map: Mapping[str, str] | None = None
    align: str = "nearest"
    tolerance: float = 0.1

    takes_files = True
    unpickled = ("_recordings", "_episodes", "_times")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.align not in ALIGNMENTS:
            raise SourceError(
                "invalid align", expected=" or ".join(ALIGNMENTS), got=repr_of(self.align, 50)
            )
        given: object = self.tolerance
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given < 1e9:
            raise SourceError(
                "invalid tolerance", expected="seconds, 0 or more", got=repr_of(self.tolerance, 50)
            )

    def exists(self) -> bool:
        """Return whether there is a recording below `root`."""
        return has_file(self.path, lambda path: path.suffix in BAG_ENDINGS)

    def schema(self) -> Schema:
        return self._schema

    def episodes(self) -> Sequence[EpisodeInfo]:
        return self._episodes

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        path = self.path
        with located(SourceError, episode=info.key):
            if info.key not in self._recordings:
                raise SourceError("no such episode", file=str(path))
            recording = self._recordings[info.key]
            aligned = self._aligned(recording)
            read = self._reader(recording)
            for row, values in enumerate(aligned.frames(recording, read)):
                frame: dict[str, Any] = {LOG_TIME: np.array(aligned.clock[row], "<i8")}
                for each in values.values():
                    frame |= each
                yield {name: frame[name] for name in self.schema() if name in frame}

    def account(self) -> Account:
        """Report topics that are not read, unused messages, and other files."""
        bags = [each for each in self._recordings.values() if each.metadata]
        kinds = [("rosbag2 folder", len(bags)), ("file", len(self._recordings) - len(bags))]
        reason = " and ".join(counted(n, kind) for kind, n in kinds if n)
        places = {LOG_TIME: f"{self._clock}: log time"}
        for topic, each in self._topics.items():
            for suffix, spec in each.specs.items():
                places[spec.name] = f"{topic} {suffix}".rstrip()
        return Account(
            f"{reason} of messages",
            places,
            (*self._unread_topics(), *self._unread_records(), *self._unread_files()),
            tuple(self._dropped()),
        )

    def _unread_topics(self) -> Iterator[LeftOut]:
        """Yield topics without a feature, with their messages in all recordings."""
        counts: Counter[str] = Counter()
        types: dict[str, Topic] = {}
        for recording in self._recordings.values():
            with suppress(SourceError):  # raised by `frames`
                counts.update(self._times.get(recording.key, {}))
                types |= recording.topics
        for topic, count in sorted(counts.items()):
            if topic in self._topics:
                continue
            reason, is_data = "missing in the first recording", True
            if not count:
                reason, is_data = "empty topic", False
            elif not can_read(types[topic]):
                reason = f"no reader for {_type(types[topic])}"
                is_data = self.map is None and self.features is None and topic not in _OF_ROS
            elif topic in self._offered:
                reason, is_data = f"{NOT_SELECTED} or map=", False
            yield LeftOut(f"topic {topic}", count, reason, "messages", is_data)

    def _unread_records(self) -> Iterator[LeftOut]:
        """Yield attachments and metadata records; rosbag2 adds metadata records to every file."""
        counts: Counter[str] = Counter()
        for recording in self._recordings.values():
            with suppress(SourceError):  # raised by `frames`
                counts.update(recording.extras())
        for name, count in sorted(counts.items()):
            yield LeftOut(f"{name} of MCAP", count, "no reader", "records", name == "attachments")

    def _unread_files(self) -> Iterator[LeftOut]:
        taken = {path for each in self._recordings.values() for path in each.paths}
        taken |= {each.metadata for each in self._recordings.values() if each.metadata}
        unlisted = [path for each in self._recordings.values() for path in each.unlisted]
        yield from group_names(unlisted, self.path, "not listed in metadata.yaml")
        taken |= {Path(f"{path}{ending}") for path in taken for ending in _SIDE_FILES}
        yield from unread_files(self.path, lambda path: path in taken or path in unlisted)

    def _dropped(self) -> Iterator[str]:
        for topic in self._topics:
            each = [info.metadata["topics"][topic] for info in self._episodes if not _failed(info)]
            dropped, total = (sum(n[key] for n in each) for key in ("dropped", "messages"))
            if dropped:
                yield f"{dropped:,} of {total:,} messages of {topic} dropped: in no frame"
            if without := sum(n["frames_without"] for n in each):
                yield f"{without:,} frames lack {topic}"

    @cached_property
    def _times(self) -> dict[str, dict[str, int]]:
        """Number of messages by recording and topic."""
        found = {}
        for recording in self._recordings.values():
            with suppress(SourceError):
                found[recording.key] = {t: len(each) for t, each in recording.times().items()}
        return found

    def _reader(self, recording: Recording) -> Callable[[str, bytes, Path], dict[str, Any]]:
        """Return a function from a message to its values by feature."""
        offered, path = recording.topics, recording.paths[0]
        decoders = {}
        for topic in self._topics:
            if topic not in offered:
                continue
            if not can_read(offered[topic]):
                raise SourceError(
                    "the topic's type differs from the first recording",
                    file=str(path),
                    expected=READABLE,
                    got=f"{topic} ({_type(offered[topic])})",
                )
            decoders[topic] = decoder(offered[topic], path)
        beside = [text for topic in offered.values() for text in (topic.name, topic.type)]
        orientation = Orientation(self.exif, lambda: is_alone(self.schema(), beside))
        return lambda topic, data, file: self._topics[topic].frame(
            decoders[topic](data, file), file, orientation
        )

    @cached_property
    def _recordings(self) -> dict[str, Recording]:
        found = {recording.key: recording for recording in find_recordings(self.path)}
        if not found:
            raise SourceError("no recording found", file=str(self.root), expected=FORMAT.layout)
        return found

    # --- topics and features ----------------------------------------------------------------

    @cached_property
    def _offered(self) -> dict[str, Topic]:
        """Topics of the first readable recording."""
        errors = FirstError()
        for recording in self._recordings.values():
            with errors.skipped(episode=recording.key):
                return recording.topics
        assert errors.first is not None
        raise errors.first

    @cached_property
    def _prefixes(self) -> dict[str, str]:
        """Topics to read, with the name or name prefix of their features."""
        if self.map is not None:
            chosen = {topic: name for name, topic in self.map.items()}
            if unknown := [topic for topic in chosen if topic not in self._offered]:
                raise self._refused("no such topic", ", ".join(unknown))
        else:
            chosen = {topic: feature_name(topic) for topic in self._offered}
        refused = [topic for topic in chosen if not can_read(self._offered[topic])]
        if self.map is None and len(refused) < len(chosen):
            chosen = {topic: name for topic, name in chosen.items() if topic not in refused}
        elif refused:
            types = (f"{topic} ({_type(self._offered[topic])})" for topic in refused)
            raise self._refused(
                "unsupported types of topics; select the topics to read by --map NAME=TOPIC, or "
                "their features by --features",
                ", ".join(types),
            )
        return chosen

    @cached_property
    def _topics(self) -> dict[str, _TopicFeatures]:
        """Features of each selected topic, from its first message."""
        found: dict[str, _TopicFeatures] = {}
        names = self.features or ()
        for topic, prefix in self._prefixes.items():
            if names and not any(n == prefix or n.startswith(f"{prefix}.") for n in names):
                continue
            features = None
            with self.unless_unreadable(prefix):
                features = self._first(topic, prefix)
            if features is not None:
                found[topic] = features
            elif self.map is not None or names:
                raise self._refused("the selected topic has no messages", topic)
        offered = [spec.name for each in found.values() for spec in each.specs.values()]
        if twice := sorted({name for name in offered if offered.count(name) > 1}):
            raise self._refused(
                "two topics give the same feature name; rename by --map NAME=TOPIC",
                ", ".join(twice),
            )
        if unknown := [name for name in dict.fromkeys(names) if name not in (*offered, LOG_TIME)]:
            raise self._refused("no such feature", ", ".join(unknown))
        return {topic: features for topic, features in found.items() if features.specs}

    def _first(self, topic: str, prefix: str) -> _TopicFeatures | None:
        """Return features from the first readable message; `None` if there is no message."""
        errors = FirstError()
        for recording in self._recordings.values():
            with errors.skipped(episode=recording.key):
                for _, data, path in recording.messages([topic]):
                    message = decoder(recording.topics[topic], path)(data, path)
                    how = {"keep_encoded": self.keep_encoded, "exif": self.exif}
                    return _TopicFeatures(prefix, message, path, self.features or None, **how)
        if errors.first is not None:
            raise errors.first
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
                raise self._refused("no such clock topic", self.clock)
            return self.clock
        images = [t for t in self._topics if self._offered[t].type.endswith(_IMAGES)]
        for candidates in (images, [*self._topics]):
            if len(candidates) == 1:
                return candidates[0]
        raise self._refused(
            "no clock topic; choose the one that makes frames (--source-option clock=TOPIC)",
            ", ".join(self._topics) or "no topic with messages",
        )

    def _aligned(self, recording: Recording) -> AlignedMessages:
        tolerance = round(self.tolerance * 1e9)
        return AlignedMessages(recording, [*self._topics], self._clock, self.align, tolerance)

    @cached_property
    def _episodes(self) -> list[EpisodeInfo]:
        found, dropped, total = [], 0, 0
        clock = self._clock  # raises for the source as a whole
        for recording in self._recordings.values():
            try:
                aligned = self._aligned(recording)
            except SourceError as error:
                found.append(EpisodeInfo(recording.key, 1, {"error": error.message}))
                continue
            topics = {topic: aligned.counts(topic) for topic in self._topics}
            dropped += sum(each["dropped"] for each in topics.values())
            total += sum(each["messages"] for each in topics.values())
            found.append(self._info(recording, aligned, topics))
        if dropped:
            _logger.warning(
                "%s: %d of %d messages dropped: frames are at the times of %s, with "
                "one message per topic, the %s one within %g s",
                self.root, dropped, total, clock, self.align, self.tolerance,
            )  # fmt: skip
        return found

    def _info(
        self, recording: Recording, aligned: AlignedMessages, topics: dict[str, dict[str, int]]
    ) -> EpisodeInfo:
        others = {t: n for t, n in aligned.num_messages.items() if t not in topics and n}
        names = {
            spec.name: list(each.names)
            for each in self._topics.values()
            for spec in each.specs.values()
            if each.names
        }
        metadata: dict[str, Any] = {
            "files": [path.name for path in recording.paths],
            "clock": self._clock,
            "start_ns": int(aligned.clock[0]),
            "topics": topics,
        }
        if others:
            metadata["topics_not_read"] = others
        if names:
            metadata["names"] = names
        return EpisodeInfo(recording.key, len(aligned.clock), metadata, fps=aligned.fps)

    def _refused(self, message: str, got: str) -> SourceError:
        works = ", ".join(f"{t} ({_type(o)})" for t, o in self._offered.items() if can_read(o))
        return SourceError(
            message,
            file=str(self.root),
            expected=f"topics among {works}" if works else f"topics of type {READABLE}",
            got=got[:500],
        )


class _TopicFeatures:
    """The features of one topic from its first message, restricted to `wanted` if given."""

    def __init__(
        self,
        prefix: str,
        message: Message,
        path: Path,
        wanted: Container[str] | None,
        **how: Any,
    ) -> None:
        self.names = message.names
        self.specs: dict[str, FeatureSpec] = {}
        for suffix, value in message.values.items():
            name = f"{prefix}.{suffix}" if suffix else prefix
            if wanted is not None and name not in wanted:
                continue
            if isinstance(value, Encoded):
                spec = embedded_spec(name, value.data, path, **how)
                if message.kind == "depth":
                    spec = replace(spec, kind="depth", unit=message.units.get(suffix))
            elif isinstance(value, str):
                spec = text_spec(name, path)
            else:
                kind, unit = message.kind, message.units.get(suffix)
                if kind == "image":
                    kind = pixel_kind(name, value.dtype, value.shape) or kind
                    unit = unit if kind == "depth" else None
                meaning = {"kind": kind, "unit": unit}
                spec = feature_spec(name, value.dtype, value.shape, path, **meaning)
            self.specs[suffix] = spec

    def frame(
        self, message: Message, path: Path, orientation: Orientation
    ) -> dict[str, npt.NDArray[Any] | EncodedImage | str]:
        """Return a later message's values by feature, without missing ones.

        Named elements are reordered like the first message. Raises `SourceError` for another dtype,
        shape or set of names.
        """
        frame: dict[str, npt.NDArray[Any] | EncodedImage | str] = {}
        order = self._order(message, path)
        for suffix, spec in self.specs.items():
            value = message.values.get(suffix)
            if isinstance(value, Encoded):
                frame[spec.name] = embedded_value(value.data, spec, path, orientation)
            elif isinstance(value, str):
                frame[spec.name] = value
            elif value is not None:
                check_like_first("the message", value.dtype, value.shape, spec, path)
                frame[spec.name] = value if order is None else value[order]
        return frame

    def _order(self, message: Message, path: Path) -> list[int] | None:
        """Return indices that reorder named elements like the first message; `None` if equal."""
        if message.names == self.names:
            return None
        places = {name: i for i, name in enumerate(message.names)}
        if places.keys() != {*self.names} or len(places) != len(message.names):
            raise SourceError(
                "the message has other joints than the first one",
                file=str(path),
                feature=next((spec.name for spec in self.specs.values()), None),
                expected=", ".join(self.names)[:200],
                got=", ".join(message.names)[:200],
            )
        return [places[name] for name in self.names]


FORMAT = SourceFormat(
    "mcap",
    "NAME.mcap, or a rosbag2 folder: metadata.yaml with .mcap or .db3 files",
    McapSource,
    options=("clock", "map", "align", "tolerance", "exif"),
    takes_files=True,
    takes_urls=True,
)


def _failed(info: EpisodeInfo) -> bool:
    return "topics" not in info.metadata


def _type(topic: Topic) -> str:
    return f"{topic.type or 'no type'}, {topic.encoding}"
