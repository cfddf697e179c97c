"""The topics of recordings that a source reads, and their features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import filterfalse

import numpy as np

from seqrecord.errors import MissingPackageError, SourceError
from seqrecord.formats.sources.common.aligning import ALIGNMENTS
from seqrecord.formats.sources.common.originals import FirstError, Originals
from seqrecord.formats.sources.common.specs import feature_name, select_schema
from seqrecord.formats.sources.mcap.bags import Topic
from seqrecord.formats.sources.mcap.cameras import CAMERA_INFO, ImageCameras, info_topic
from seqrecord.formats.sources.mcap.features import TopicFeatures
from seqrecord.formats.sources.mcap.messages import READABLE, VIDEOS, can_read, decoder
from seqrecord.formats.sources.mcap.recordings import Recording, find_recordings
from seqrecord.formats.sources.mcap.videos import is_start
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.text import repr_of

LAYOUT = "NAME.mcap, NAME.bag, or a rosbag2 folder: metadata.yaml with .mcap or .db3 files"

_IMAGES = ("Image", "CompressedImage", "RawImage", "CompressedVideo")  # ends of type names
_INTRINSICS = ("constant", "frames")
_TIMES = ("log", "header")


@dataclass(frozen=True)
class TopicSource(Originals):
    """Base class of `McapSource`: its options, and the topics and features that they choose.

    The first readable recording determines the topics, the first message of each its features.
    """

    clock: str | None = None
    map: Mapping[str, str] | None = None
    align: str = "nearest"
    tolerance: float = 0.1
    intrinsics: str = "constant"
    time: str = "log"
    poses: Sequence[str] = ()
    root_frame: str | None = None

    takes_files = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.poses, str):
            object.__setattr__(self, "poses", tuple(self.poses.split(",")))
        if bool(self.poses) != bool(self.root_frame):
            raise SourceError("poses= and root_frame= need each other", expected="frame ids of /tf")
        choices = (("align", ALIGNMENTS), ("intrinsics", _INTRINSICS), ("time", _TIMES))
        for name, values in choices:
            if (value := getattr(self, name)) not in values:
                raise SourceError(
                    f"invalid {name}", expected=" or ".join(values), got=repr_of(value, 50)
                )
        tolerance: object = self.tolerance
        if (
            isinstance(tolerance, bool)
            or not isinstance(tolerance, (int, float))
            or not 0 <= tolerance < 1e9
        ):
            raise SourceError(
                "invalid tolerance", expected="seconds, 0 or more", got=repr_of(self.tolerance, 50)
            )

    @cached_property
    def recordings(self) -> dict[str, Recording]:
        recordings = {recording.key: recording for recording in find_recordings(self.path)}
        if not recordings:
            raise SourceError("no recording found", file=str(self.root), expected=LAYOUT)
        return recordings

    @property
    def time_name(self) -> str:
        return f"{self.time}_time"

    @cached_property
    def offered(self) -> dict[str, Topic]:
        """Topics of the first readable recording."""
        errors = FirstError()
        for recording in self.recordings.values():
            with errors.skipped(episode=recording.key):
                return recording.topics
        assert errors.first is not None
        raise errors.first

    @cached_property
    def _prefixes(self) -> dict[str, str]:
        """Topics to read, with the name or name prefix of their features."""
        if self.map is not None:
            prefixes = {topic: name for name, topic in self.map.items()}
            if unknown := [*filterfalse(self.offered.__contains__, prefixes)]:
                raise self._topic_error("no such topic", ", ".join(unknown))
            if len(prefixes) < len(self.map):
                topics = [topic for topic, n in Counter(self.map.values()).items() if n > 1]
                raise self._topic_error("map names a topic twice", ", ".join(topics))
        else:
            prefixes = {
                name: feature_name(name)
                for name, topic in self.offered.items()
                if topic.type != CAMERA_INFO
            }
        unsupported = {topic: None for topic in prefixes if not can_read(self.offered[topic])}
        if self.map is None and len(unsupported) < len(prefixes):
            prefixes = {topic: name for topic, name in prefixes.items() if topic not in unsupported}
        elif unsupported:
            types = (f"{topic} ({type_of(self.offered[topic])})" for topic in unsupported)
            raise self._topic_error(
                "unsupported types of topics; select the topics to read by --map NAME=TOPIC, or "
                "their features by --features",
                ", ".join(types),
            )
        return prefixes

    @cached_property
    def topics(self) -> dict[str, TopicFeatures]:
        """Features of each selected topic, from its first message with a value."""
        features_by_topic: dict[str, TopicFeatures] = {}
        for topic, prefix in self._prefixes.items():
            if not self._selects(prefix):
                continue
            features = None
            with self.unless_unreadable(prefix):
                features = self._first_features(topic, prefix, self.features)
            if features is not None:
                features_by_topic[topic] = features
            elif prefix in self.unreadable and (self.map is not None or topic == self.clock):
                raise self.unreadable[prefix]
            elif self.map is not None or self.features is not None:
                raise self._topic_error("the selected topic has no messages with values", topic)
        if self.unreadable and not features_by_topic:
            raise next(iter(self.unreadable.values()))
        offered_names = [
            spec.name
            for topic_features in features_by_topic.values()
            for spec in topic_features.specs.values()
        ]
        if duplicate_names := sorted(Counter(offered_names) - Counter({*offered_names})):
            raise self._topic_error(
                "two topics give the same feature name; rename by --map NAME=TOPIC",
                ", ".join(duplicate_names),
            )
        return {topic: features for topic, features in features_by_topic.items() if features.specs}

    def _selects(self, prefix: str) -> bool:
        """Return whether `features` may name one of the features with this prefix."""
        names = self.features
        return names is None or any(f"{name}.".startswith(f"{prefix}.") for name in names)

    def _first_features(
        self, topic: str, prefix: str, selected_names: Sequence[str] | None
    ) -> TopicFeatures | None:
        """Return features from the first message with a value; `None` if there is none."""
        errors = FirstError()
        for recording in self.recordings.values():
            with errors.skipped(episode=recording.key):
                path = None
                for _, data, file in recording.messages([topic]):
                    message = decoder(recording, topic)(data, file)
                    if not message:  # such as a JointState of empty arrays
                        continue
                    path = file
                    if not is_start(message):
                        continue
                    image_options = {
                        "keep_encoded": self.keep_encoded,
                        "exif": self.exif,
                        "palettes": self.palettes,
                    }
                    return TopicFeatures(prefix, message, path, selected_names, **image_options)
                if path is not None:
                    raise SourceError("video without a keyframe", file=str(path), got=topic)
        if errors.first is not None:
            raise errors.first
        return None

    @cached_property
    def _schema(self) -> Schema:
        specs = {
            spec.name: spec for features in self.topics.values() for spec in features.specs.values()
        }
        for name in self.frame_ids:
            specs[name] = FeatureSpec(name, np.dtype("<f8"), (7,), kind="pose", unit="m")
        specs |= {spec.name: spec for spec in self.cameras.specs}
        name = self.time_name
        specs[name] = FeatureSpec(name, np.dtype("<i8"), (), kind="timestamp", unit="ns")
        return select_schema(specs.values(), self.features, self.path)

    def schema(self) -> Schema:
        return self._schema

    def videos_of(self, recording: Recording) -> list[str]:
        """Return the topics of videos in a recording."""
        return [
            topic
            for topic in self.topics
            if topic in recording.topics
            and all(map(is_video, (self.offered[topic], recording.topics[topic])))
        ]

    @cached_property
    def cameras(self) -> ImageCameras:
        """Cameras of all images: an episode's metadata must not depend on the selected features."""
        images = {topic: self._image_specs(topic, name) for topic, name in self._prefixes.items()}
        is_constant = self.intrinsics == "constant"
        return ImageCameras(self.offered, images, self.features, is_constant=is_constant)

    def _image_specs(self, topic: str, prefix: str) -> list[FeatureSpec]:
        """Return the features of a topic, also of an image that is not selected."""
        features = self.topics.get(topic)
        is_image = self.offered[topic].type.endswith(_IMAGES)
        has_camera = is_image and info_topic(topic) in self.offered
        if features is None and self.features is not None and has_camera:
            with suppress(SourceError, MissingPackageError):  # raised where it is selected
                features = self._first_features(topic, prefix, None)
        return [] if features is None else [*features.specs.values()]

    @cached_property
    def frame_ids(self) -> dict[str, str]:
        """Frames of the robot by feature name."""
        return {f"pose.{feature_name(frame)}": frame for frame in self.poses}

    @cached_property
    def clock_topic(self) -> str:
        """The option `clock`; else the only image topic or the only topic, of all or selected ones.

        All topics come first, since a recording's frames must not depend on the selected features.
        """
        if self.clock is not None:
            if self.clock not in self.offered:
                raise self._topic_error("no such clock topic", self.clock)
            return self.clock
        for topics in (self._readable_topics, [*self.topics]):
            images = [topic for topic in topics if self.offered[topic].type.endswith(_IMAGES)]
            for candidates in (images, topics):
                if len(candidates) == 1:
                    return candidates[0]
        raise self._topic_error(
            "no clock topic; choose the one that makes frames (--source-option clock=TOPIC)",
            ", ".join(self._readable_topics) or "no topic with messages",
        )

    @cached_property
    def _readable_topics(self) -> list[str]:
        """The topics that are read without `features`."""
        return [
            topic
            for topic, prefix in self._prefixes.items()
            if topic in self.topics
            or (self.features is not None and self._is_readable(topic, prefix))
        ]

    def _is_readable(self, topic: str, prefix: str) -> bool:
        try:
            return self._first_features(topic, prefix, None) is not None
        except MissingPackageError:  # the clock must not depend on installed packages
            return True
        except SourceError:  # left out without `features`, or damaged
            return False

    def why_unreadable(self, topic: str) -> str:
        """The reason that messages of a topic cannot be read; empty if they can."""
        error = self.unreadable.get(self._prefixes.get(topic, ""))
        return "" if error is None else f"{error.message}: {error.got}"

    def _topic_error(self, message: str, got: str) -> SourceError:
        readable_topics = ", ".join(
            f"{t} ({type_of(o)})" for t, o in self.offered.items() if can_read(o)
        )
        return SourceError(
            message,
            file=str(self.root),
            expected=f"topics among {readable_topics}"
            if readable_topics
            else f"topics of type {READABLE}",
            got=got[:500],
        )


def is_video(topic: Topic) -> bool:
    """Return whether the topic's messages are a video's."""
    return can_read(topic) and topic.type in VIDEOS


def type_of(topic: Topic) -> str:
    """Return type and encoding of a topic, for messages."""
    return f"{topic.type or 'no type'}, {topic.encoding}"
