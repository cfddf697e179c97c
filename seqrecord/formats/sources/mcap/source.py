"""Source for MCAP files and rosbag2 folders: messages of topics, aligned to a clock topic."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.aligning import NONE, AlignedMessages
from seqrecord.formats.sources.common.originals import has_file
from seqrecord.formats.sources.inventory import Account
from seqrecord.formats.sources.mcap.bags import BAG_ENDINGS
from seqrecord.formats.sources.mcap.mcap_account import account_of, lacking_poses
from seqrecord.formats.sources.mcap.messages import (
    READABLE,
    can_read,
    decoder,
    header_times,
)
from seqrecord.formats.sources.mcap.recordings import Recording
from seqrecord.formats.sources.mcap.topics import LAYOUT, TopicSource, is_video, type_of
from seqrecord.formats.sources.mcap.transforms import read_poses
from seqrecord.formats.sources.mcap.videos import TopicVideo, decode_videos, num_before_start
from seqrecord.in_place.boundary import reader_boundary
from seqrecord.store.cameras.intrinsics import CAMERA_POSES
from seqrecord.store.originals.protocol import EpisodeInfo, SourceFormat
from seqrecord.store.processes.forks import cached_property
from seqrecord.store.schema import Frame

_logger = logging.getLogger("seqrecord")


@dataclass(frozen=True)
class McapSource(TopicSource):
    """MCAP files, rosbag2 folders and ROS 1 bags: each recording is an episode.

    ::

        ROOT/…/NAME.mcap, NAME.bag                          one recording each
        ROOT/…/NAME/metadata.yaml, NAME_0.mcap, NAME_1.…    rosbag2: one recording, .mcap or .db3

    Each message of the clock topic makes a frame. A frame gets one message of each other topic: the
    nearest one in time, or the last one before, if it is within `tolerance`; otherwise the frame
    lacks the topic. The episode's metadata counts messages by topic (`topics`: `messages`, `used`,
    `dropped`, `frames_without`), and `frames_without_pose`. The totals of dropped messages and of
    missing poses are logged.

    Supported types: of ROS Image, CompressedImage, CameraInfo, PointCloud2, Imu, JointState,
    PoseStamped, TransformStamped, Twist(Stamped), Wrench(Stamped), Odometry, and String, numbers
    and arrays of std_msgs; of Foxglove (protocol buffers or JSON) RawImage, CompressedImage and
    CompressedVideo (also as ROS message). Compressed images are PNG and JPEG, or are decoded: WebP,
    BMP, TIFF and Netpbm. Topics of other types and image formats are left out, and empty ones,
    unless `map` names them.

    The CameraInfo beside an image (`/front/camera_info` for `/front/image_raw`) is its `camera` in
    the metadata: intrinsics, size and distortion, for `/front/image_rect…` from `P`. It does not
    depend on the selected features. If `poses` has its frame, `camera_poses` in the metadata names
    the feature with the camera's poses.

    `/camera/image_raw` becomes the feature `camera.image_raw`. Messages with several values give
    several features, for example `imu.data.orientation` [x, y, z, w], `imu.data.angular_velocity`
    and `imu.data.linear_acceleration`. The first message of a topic decides which; values that only
    later ones have are logged, and not read. Joints are in the order of the first message; the
    metadata has their `names`. `log_time` or `header_time` int64 [] is the time of the clock's
    message, in ns.

    Args:
        root: a folder or a file.
        features: names to read, in that order; all by default.
        keep_encoded: keep RGB images as PNG or JPEG.
        clock: topic whose messages make the frames; by default the only image topic, or the only
            topic, whether `features` selects it or not. Of several, the one in `features`.
        map: topics by feature name, `{"image": "/camera/image_raw"}`; other topics are not read.
        align: `nearest` or `last`.
        tolerance: seconds.
        time: `log` or `header`: the clock and alignment by log times or header stamps.
        poses: frames of the robot, as a list or comma-separated text: `camera_link`. Each has a
            feature `pose.camera_link` float64 [7], its pose in `root_frame`: x, y, z in metres and
            a quaternion x, y, z, w, interpolated between the transforms of `/tf`. A frame without
            transforms within `tolerance` before and after it lacks the pose.
        root_frame: frame id; a leading slash is ignored, here and in `poses`.
        intrinsics: `constant`: `camera` in the metadata; a camera that changes is an error.
            `frames`: a feature `<image>_intrinsics` float64 [4], fx, fy, cx, cy in pixels.
        exif: `apply` or `ignore` the EXIF orientation of images.

    Raises `SourceError` with file and episode for inconsistent or unreadable data.
    """

    unpickled = ("recordings", "_episodes", "_last_clock")

    def exists(self) -> bool:
        """Return whether there is a recording below `root`."""
        return has_file(self.path, lambda path: path.suffix in BAG_ENDINGS)

    def episodes(self) -> Sequence[EpisodeInfo]:
        return self._episodes

    def frames(self, info: EpisodeInfo) -> Iterator[Frame]:
        path = self.path
        with located(SourceError, episode=info.key):
            if info.key not in self.recordings:
                raise SourceError("no such episode", file=str(path))
            recording = self.recordings[info.key]
            aligned = self._aligned(recording)
            all_messages = recording.messages([*self.topics, *self.cameras.read_topics])
            checked_messages = self.cameras.check_messages(recording, all_messages)
            videos = {
                topic: TopicVideo(recording, topic, self.topics[topic].specs[""])
                for topic in self.videos_of(recording)
            }
            unread_counts = Counter[str]()
            read = self._reader(recording, videos, unread_counts)
            picked_messages = (
                message for message in checked_messages if message[0] in aligned.picks
            )
            messages = decode_videos(picked_messages, videos)
            poses = self._poses_of(recording, aligned)
            lost_counts = Counter[str]()
            for row, values in enumerate(aligned.frames(messages, read)):
                frame: dict[str, Any] = {self.time_name: np.array(aligned.clock[row], "<i8")}
                frame |= {
                    n: feature_poses[row]
                    for n, feature_poses in poses.items()
                    if np.isfinite(feature_poses[row]).all()
                }
                for topic, topic_values in values.items():
                    frame |= topic_values
                    if topic in self.topics:
                        lost_counts.update(self.topics[topic].poses - topic_values.keys())
                yield {name: frame[name] for name in self.schema() if name in frame}
            for name, count in lost_counts.items():
                _logger.warning(
                    "%s: %d of %d frames of %s lack %s: translations that are not finite",
                    *(self.root, count, len(aligned.clock), info.key, name),
                )
            for name, count in unread_counts.items():
                _logger.warning(
                    "%s: %d messages of %s have %s, which the first message of its topic lacks, so "
                    "it is not read",
                    *(self.root, count, info.key, name),
                )

    def _poses_of(
        self, recording: Recording, aligned: AlignedMessages
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Return the poses of `poses`, float64 [T, 7] by feature; NaN where they are unknown."""
        if not self.poses:
            return {}
        return read_poses(
            *(recording, self.frame_ids, str(self.root_frame), aligned.clock),
            by_header=self.time == "header",
            within=round(self.tolerance * 1e9),
        )

    def timestamps(self, info: EpisodeInfo) -> npt.NDArray[np.float64]:
        """Return the times of the clock's messages in seconds since the first one, float64 [T]."""
        with located(SourceError, episode=info.key):
            if info.key not in self.recordings:
                raise SourceError("no such episode", file=str(self.path))
            clock = self._last_clock.get(info.key)
            if clock is None:
                clock = self._aligned(self.recordings[info.key]).clock
            return np.asarray((clock - clock[0]) * 1e-9, np.float64)

    def account(self) -> Account:
        """Report topics that are not read, unused messages, and other files."""
        return account_of(self, self._episodes)

    def _reader(
        self, recording: Recording, videos: Mapping[str, TopicVideo], unread_counts: Counter[str]
    ) -> Callable[[str, Any, Path], dict[str, Any]]:
        """Return a function from a message, or a frame of a video, to its values by feature.

        It counts values that the first message of the topic lacks, by name.
        """
        offered, path = recording.topics, recording.paths[0]
        decoders = {}
        for topic in self.topics:
            if topic not in offered:
                continue
            kinds = {is_video(topics[topic]) for topics in (self.offered, offered)}
            if not can_read(offered[topic]) or len(kinds) > 1:
                raise SourceError(
                    "the topic's type differs from the first recording",
                    file=str(path),
                    expected=READABLE,
                    got=f"{topic} ({type_of(offered[topic])})",
                )
            decoders[topic] = decoder(recording, topic)

        def read(topic: str, data: Any, file: Path) -> dict[str, Any]:
            if topic in videos:
                return videos[topic].value(data, file)
            if topic in decoders:
                message, features = decoders[topic](data, file), self.topics[topic]
                unread_counts.update(features.unread(message))
                return features.frame(message, file, self.exif)
            return self.cameras.frame(offered[topic], data, file)

        return read

    def _aligned(self, recording: Recording) -> AlignedMessages:
        tolerance = round(self.tolerance * 1e9)
        times, path = self._times_of(recording), recording.paths[0]
        topics = self._aligned_topics
        aligned = AlignedMessages(times, topics, self.clock_topic, self.align, tolerance, path)
        for topic in self.videos_of(recording):
            picks = aligned.picks[topic]
            picks[picks < num_before_start(recording, topic)] = NONE
        self._last_clock.clear()
        self._last_clock[recording.key] = aligned.clock
        return aligned

    @cached_property
    def _last_clock(self) -> dict[str, npt.NDArray[np.int64]]:
        """Times of the recording that was aligned last, by its key: reading them may take long."""
        return {}

    @property
    def _aligned_topics(self) -> list[str]:
        return [*self.topics, *(self.cameras.read_topics if self.intrinsics == "frames" else ())]

    def _times_of(self, recording: Recording) -> dict[str, npt.NDArray[np.int64]]:
        """Return the messages' times by topic: log times, or header stamps where there are any."""
        times = recording.times()
        if self.time == "log":
            return times
        header_stamps = header_times(recording, {*self._aligned_topics, self.clock_topic})
        if self.clock_topic in times and self.clock_topic not in header_stamps:
            raise SourceError(
                "messages of the clock have no header; choose another clock, or omit time=header",
                file=str(recording.paths[0]),
                got=self.clock_topic,
            )
        return {**times, **header_stamps}

    @cached_property
    def _episodes(self) -> list[EpisodeInfo]:
        episodes, num_dropped, num_messages = [], 0, 0
        self.schema()  # raises for unknown features
        clock = self.clock_topic  # raises for the source as a whole
        for recording in self.recordings.values():
            try:
                with reader_boundary():
                    aligned = self._aligned(recording)
                    topics = {topic: aligned.counts(topic) for topic in self._aligned_topics}
                    episodes.append(self._info(recording, aligned, topics))
            except SourceError as error:  # raised by `frames`
                episodes.append(EpisodeInfo(recording.key, 1, {"error": error.message}))
                continue
            num_dropped += sum(counts["dropped"] for counts in topics.values())
            num_messages += sum(counts["messages"] for counts in topics.values())
        if num_dropped:
            _logger.warning(
                "%s: %d of %d messages dropped: frames are at the times of %s, with "
                "one message per topic, the %s one within %g s",
                self.root, num_dropped, num_messages, clock, self.align, self.tolerance,
            )  # fmt: skip
        for note in lacking_poses(self, episodes):
            _logger.warning("%s: %s", self.root, note)
        return episodes

    def _info(
        self, recording: Recording, aligned: AlignedMessages, topics: dict[str, dict[str, int]]
    ) -> EpisodeInfo:
        read_topics = {*topics, *self.cameras.topics}
        unread_counts = {
            t: n for t, n in aligned.num_messages.items() if t not in read_topics and n
        }
        names = {
            features.specs[suffix].name: list(names)
            for features in self.topics.values()
            for suffix, names in features.names.items()
            if suffix in features.specs
        }
        metadata: dict[str, Any] = {
            "files": [path.name for path in recording.paths],
            "clock": self.clock_topic,
            "start_ns": int(aligned.clock[0]),
            "topics": topics,
        }
        poses = self._poses_of(recording, aligned)
        missing_poses = {
            n: int((~np.isfinite(feature_poses).all(axis=1)).sum())
            for n, feature_poses in poses.items()
        }
        if any(missing_poses.values()):
            metadata["frames_without_pose"] = missing_poses
        if unread_counts:
            metadata["topics_not_read"] = unread_counts
        if names:
            metadata["names"] = names
        metadata |= self.cameras.metadata(recording)
        if camera_poses := self.cameras.pose_features(recording, self.frame_ids):
            metadata[CAMERA_POSES] = camera_poses
        return EpisodeInfo(recording.key, len(aligned.clock), metadata, fps=aligned.fps)


FORMAT = SourceFormat(
    "mcap",
    LAYOUT,
    McapSource,
    options=(
        *("clock", "map", "align", "tolerance", "intrinsics", "time"),
        *("poses", "root_frame", "exif"),
    ),
    takes_files=True,
    takes_urls=True,
)
