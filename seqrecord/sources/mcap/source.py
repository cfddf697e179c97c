"""Source for MCAP files and rosbag2 folders: messages of topics, aligned to a clock topic."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.originals.protocol import EpisodeInfo, SourceFormat
from seqrecord.processes.forks import cached_property
from seqrecord.schema import FeatureSpec, Frame, Schema
from seqrecord.sources.common.aligning import ALIGNMENTS, NONE, AlignedMessages
from seqrecord.sources.common.originals import FirstError, Originals, has_file
from seqrecord.sources.common.specs import feature_name
from seqrecord.sources.inventory import NOT_SELECTED, Account, LeftOut, group_names, unread_files
from seqrecord.sources.mcap.bags import BAG_ENDINGS, Recording, Topic, find_recordings
from seqrecord.sources.mcap.cameras import CAMERA_INFO, ImageCameras
from seqrecord.sources.mcap.features import TopicFeatures
from seqrecord.sources.mcap.messages import (
    READABLE,
    TRANSFORMS,
    VIDEOS,
    can_read,
    decoder,
    header_times,
    stamp_reader,
)
from seqrecord.sources.mcap.transforms import has_transforms, read_poses
from seqrecord.sources.mcap.videos import TopicVideo, decoded, is_start, num_before_start
from seqrecord.text import counted, repr_of

_logger = logging.getLogger("seqrecord")

_OF_ROS = ("/rosout", "/parameter_events")  # in every recording of all topics
_SIDE_FILES = ("-wal", "-shm", "-journal")  # SQLite's log files
_IMAGES = ("Image", "CompressedImage", "RawImage", "CompressedVideo")  # ends of type names
_INTRINSICS = ("constant", "frames")
_TIMES = ("log", "header")
_COVARIANCES = ("/Imu", "/Odometry")  # ends of type names


@dataclass(frozen=True)
class McapSource(Originals):
    """MCAP files, rosbag2 folders and ROS 1 bags: each recording is an episode.

    ::

        ROOT/…/NAME.mcap, NAME.bag                          one recording each
        ROOT/…/NAME/metadata.yaml, NAME_0.mcap, NAME_1.…    rosbag2: one recording, .mcap or .db3

    Each message of the clock topic makes a frame. A frame gets one message of each other topic: the
    nearest one in time, or the last one before, if it is within `tolerance`; otherwise the frame
    lacks the topic. The episode's metadata counts messages by topic (`topics`: `messages`, `used`,
    `dropped`, `frames_without`), and the total of dropped messages is logged.

    Supported types: of ROS Image, CompressedImage, CameraInfo, PointCloud2, Imu, JointState,
    PoseStamped, TransformStamped, Twist(Stamped), Wrench(Stamped), Odometry, and String, numbers
    and arrays of std_msgs; of Foxglove (protocol buffers or JSON) RawImage, CompressedImage and
    CompressedVideo (also as ROS message). Topics of other types are left out, and empty ones,
    unless `map` names them.

    The CameraInfo beside an image (`/front/camera_info` for `/front/image_raw`) is its `camera` in
    the metadata: intrinsics, size and distortion, for `/front/image_rect…` from `P`.

    `/camera/image_raw` becomes the feature `camera.image_raw`. Messages with several values give
    several features, for example `imu.data.orientation` [x, y, z, w], `imu.data.angular_velocity`
    and `imu.data.linear_acceleration`. Joints are in the order of the first message; the metadata
    has their `names`. `log_time` or `header_time` int64 [] is the time of the clock's message, in
    ns.

    Args:
        root: a folder or a file.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        clock: topic whose messages make the frames; by default the only image topic, or the only
            topic.
        map: topics by feature name, `{"image": "/camera/image_raw"}`; other topics are not read.
        align: `nearest` or `last`.
        tolerance: seconds.
        time: `log` or `header`: the clock and alignment by log times or header stamps.
        poses: frames of the robot, as a list or comma-separated text: `camera_link`. Each has a
            feature `pose.camera_link` float64 [7], its pose in `root_frame`: x, y, z in metres and
            a quaternion x, y, z, w, interpolated between the transforms of `/tf`.
        root_frame: frame id.
        intrinsics: `constant`: `camera` in the metadata; a camera that changes is an error.
            `frames`: a feature `<image>_intrinsics` float64 [4], fx, fy, cx, cy in pixels.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file and episode for inconsistent or unreadable data.
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
    unpickled = ("_recordings", "_episodes", "_times")

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.poses, str):
            object.__setattr__(self, "poses", tuple(self.poses.split(",")))
        if bool(self.poses) != bool(self.root_frame):
            raise SourceError("poses= and root_frame= need each other", expected="frame ids of /tf")
        limited = (("align", ALIGNMENTS), ("intrinsics", _INTRINSICS), ("time", _TIMES))
        for name, values in limited:
            if (value := getattr(self, name)) not in values:
                raise SourceError(
                    f"invalid {name}", expected=" or ".join(values), got=repr_of(value, 50)
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
            every = recording.messages([*self._topics, *self._cameras.topics])
            checked, videos = self._cameras.checked(recording, every), self._videos(recording)
            read = self._reader(recording, videos)
            picked = (each for each in checked if each[0] in aligned.picks)
            messages = decoded(picked, videos)
            poses = self._poses_of(recording, aligned.clock) if self.poses else {}
            for row, values in enumerate(aligned.frames(messages, read)):
                frame: dict[str, Any] = {self._time_name: np.array(aligned.clock[row], "<i8")}
                frame |= {n: each[row] for n, each in poses.items() if np.isfinite(each[row, 0])}
                for each in values.values():
                    frame |= each
                yield {name: frame[name] for name in self.schema() if name in frame}

    def account(self) -> Account:
        """Report topics that are not read, unused messages, and other files."""
        bags = [each for each in self._recordings.values() if each.metadata]
        kinds = [("rosbag2 folder", len(bags)), ("file", len(self._recordings) - len(bags))]
        reason = " and ".join(counted(n, kind) for kind, n in kinds if n)
        places = {self._time_name: f"{self._clock}: {self.time} time"}
        places |= {n: f"/tf: {frame} in {self.root_frame}" for n, frame in self._frame_ids.items()}
        for topic, each in self._topics.items():
            for suffix, spec in each.specs.items():
                places[spec.name] = f"{topic} {suffix}".rstrip()
        return Account(
            f"{reason} of messages",
            places,
            (*self._unread_topics(), *self._unread_records(), *self._unread_files()),
            (*self._dropped(), *self._assumed()),
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
            is_pose = bool(self.poses) and has_transforms(types[topic])
            if topic in self._topics or topic in self._cameras.topics or is_pose:
                continue
            reason, is_data = "missing in the first recording", True
            if not count:
                reason, is_data = "empty topic", False
            elif types[topic].type == CAMERA_INFO:
                reason, is_data = "the camera of no packed image", False
            elif types[topic].type in TRANSFORMS:
                reason = "choose frames by --source-option poses=FRAME,… and root_frame=FRAME"
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

    def _assumed(self) -> Iterator[str]:
        if self.time == "log":
            yield "times are log times; --source-option time=header uses header stamps"
        for topic in self._topics if self.time == "header" else ():
            if stamp_reader(self._offered[topic]) is None:
                yield f"{topic}: log times, for its messages have no header"
        for topic in self._topics:
            if self._offered[topic].type.endswith(_COVARIANCES):
                yield f"{topic}: covariances are not packed"
        for recording in self._recordings.values():
            with suppress(SourceError):  # raised by `frames`
                for topic in self._videos(recording):
                    if count := num_before_start(recording, topic):
                        yield f"{recording.key}: {topic} has {count} messages before a keyframe"
        unknown = Counter(
            (name, reason)
            for info in self._episodes
            for name, reason in info.metadata.get("camera_unknown", {}).items()
        )
        for (name, reason), count in sorted(unknown.items()):
            yield f"camera of {name} unknown in {counted(count, 'episode')}: {reason}"

    @property
    def _time_name(self) -> str:
        return f"{self.time}_time"

    @cached_property
    def _times(self) -> dict[str, dict[str, int]]:
        """Number of messages by recording and topic."""
        found = {}
        for recording in self._recordings.values():
            with suppress(SourceError):
                found[recording.key] = {t: len(each) for t, each in recording.times().items()}
        return found

    def _videos(self, recording: Recording) -> dict[str, TopicVideo]:
        """Return decoders of the recording's videos by topic."""
        return {
            topic: TopicVideo(recording, topic, each.specs[""])
            for topic, each in self._topics.items()
            if _is_video(self._offered[topic])
            and topic in recording.topics
            and _is_video(recording.topics[topic])
        }

    def _reader(
        self, recording: Recording, videos: Mapping[str, TopicVideo]
    ) -> Callable[[str, Any, Path], dict[str, Any]]:
        """Return a function from a message, or a frame of a video, to its values by feature."""
        offered, path = recording.topics, recording.paths[0]
        decoders = {}
        for topic in self._topics:
            if topic not in offered:
                continue
            kinds = {_is_video(each[topic]) for each in (self._offered, offered)}
            if not can_read(offered[topic]) or len(kinds) > 1:
                raise SourceError(
                    "the topic's type differs from the first recording",
                    file=str(path),
                    expected=READABLE,
                    got=f"{topic} ({_type(offered[topic])})",
                )
            decoders[topic] = decoder(offered[topic], path)

        def read(topic: str, data: Any, file: Path) -> dict[str, Any]:
            if topic in videos:
                return videos[topic].value(data, file)
            if topic in decoders:
                return self._topics[topic].frame(decoders[topic](data, file), file, self.exif)
            return self._cameras.frame(offered[topic], data, file)

        return read

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
            chosen = {
                name: feature_name(name)
                for name, topic in self._offered.items()
                if topic.type != CAMERA_INFO
            }
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
    def _topics(self) -> dict[str, TopicFeatures]:
        """Features of each selected topic, from its first message."""
        found: dict[str, TopicFeatures] = {}
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
        return {topic: features for topic, features in found.items() if features.specs}

    def _first(self, topic: str, prefix: str) -> TopicFeatures | None:
        """Return features from the first readable message; `None` if there is no message."""
        errors = FirstError()
        for recording in self._recordings.values():
            with errors.skipped(episode=recording.key):
                path = None
                for _, data, path in recording.messages([topic]):
                    message = decoder(recording.topics[topic], path)(data, path)
                    if not is_start(message):
                        continue
                    how = {"keep_encoded": self.keep_encoded, "exif": self.exif}
                    return TopicFeatures(prefix, message, path, self.features or None, **how)
                if path is not None:
                    raise SourceError("video without a keyframe", file=str(path), got=topic)
        if errors.first is not None:
            raise errors.first
        return None

    @cached_property
    def _schema(self) -> Schema:
        specs = {spec.name: spec for each in self._topics.values() for spec in each.specs.values()}
        for name in self._frame_ids:
            specs[name] = FeatureSpec(name, np.dtype("<f8"), (7,), kind="pose", unit="m")
        specs |= {spec.name: spec for spec in self._cameras.specs}
        name = self._time_name
        specs[name] = FeatureSpec(name, np.dtype("<i8"), (), kind="timestamp", unit="ns")
        if unknown := [name for name in dict.fromkeys(self.features or ()) if name not in specs]:
            raise self._refused("no such feature", ", ".join(unknown))
        return Schema([specs[name] for name in self.features or specs])

    @cached_property
    def _cameras(self) -> ImageCameras:
        images = {topic: [*each.specs.values()] for topic, each in self._topics.items()}
        return ImageCameras(self._offered, images, is_constant=self.intrinsics == "constant")

    # --- poses ------------------------------------------------------------------------------

    @cached_property
    def _frame_ids(self) -> dict[str, str]:
        """Frames of the robot by feature name."""
        return {f"pose.{feature_name(frame)}": frame for frame in self.poses}

    def _poses_of(
        self, recording: Recording, clock: npt.NDArray[np.int64]
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Return poses by feature, NaN where unknown. Reads all transforms."""
        return read_poses(
            *(recording, self._frame_ids, str(self.root_frame), clock),
            by_header=self.time == "header",
            within=round(self.tolerance * 1e9),
        )

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
        times, path = self._times_of(recording), recording.paths[0]
        topics = self._aligned_topics
        aligned = AlignedMessages(times, topics, self._clock, self.align, tolerance, path)
        for topic in self._videos(recording):
            picks = aligned.picks[topic]
            picks[picks < num_before_start(recording, topic)] = NONE
        return aligned

    @property
    def _aligned_topics(self) -> list[str]:
        return [*self._topics, *(self._cameras.topics if self.intrinsics == "frames" else ())]

    def _times_of(self, recording: Recording) -> dict[str, npt.NDArray[np.int64]]:
        """Return the messages' times by topic: log times, or header stamps where there are any."""
        times = recording.times()
        if self.time == "log":
            return times
        stamped = header_times(recording, {*self._aligned_topics, self._clock})
        if self._clock in times and self._clock not in stamped:
            raise SourceError(
                "messages of the clock have no header; choose another clock, or omit time=header",
                file=str(recording.paths[0]),
                got=self._clock,
            )
        return {**times, **stamped}

    @cached_property
    def _episodes(self) -> list[EpisodeInfo]:
        found, dropped, total = [], 0, 0
        self.schema()  # raises for unknown features
        clock = self._clock  # raises for the source as a whole
        for recording in self._recordings.values():
            try:
                aligned = self._aligned(recording)
                topics = {topic: aligned.counts(topic) for topic in self._aligned_topics}
                found.append(self._info(recording, aligned, topics))
            except SourceError as error:
                found.append(EpisodeInfo(recording.key, 1, {"error": error.message}))
                continue
            dropped += sum(each["dropped"] for each in topics.values())
            total += sum(each["messages"] for each in topics.values())
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
        taken = {*topics, *self._cameras.topics}
        others = {t: n for t, n in aligned.num_messages.items() if t not in taken and n}
        names = {
            each.specs[suffix].name: list(names)
            for each in self._topics.values()
            for suffix, names in each.names.items()
            if suffix in each.specs
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
        metadata |= self._cameras.metadata(recording)
        return EpisodeInfo(recording.key, len(aligned.clock), metadata, fps=aligned.fps)

    def _refused(self, message: str, got: str) -> SourceError:
        works = ", ".join(f"{t} ({_type(o)})" for t, o in self._offered.items() if can_read(o))
        return SourceError(
            message,
            file=str(self.root),
            expected=f"topics among {works}" if works else f"topics of type {READABLE}",
            got=got[:500],
        )


FORMAT = SourceFormat(
    "mcap",
    "NAME.mcap, NAME.bag, or a rosbag2 folder: metadata.yaml with .mcap or .db3 files",
    McapSource,
    options=(
        *("clock", "map", "align", "tolerance", "intrinsics", "time"),
        *("poses", "root_frame", "exif"),
    ),
    takes_files=True,
    takes_urls=True,
)


def _failed(info: EpisodeInfo) -> bool:
    return "topics" not in info.metadata


def _is_video(topic: Topic) -> bool:
    return can_read(topic) and topic.type in VIDEOS


def _type(topic: Topic) -> str:
    return f"{topic.type or 'no type'}, {topic.encoding}"
