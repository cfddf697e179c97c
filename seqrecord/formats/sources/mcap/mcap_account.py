"""Inventory of recordings: topics that are not read, unused messages, and other files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from seqrecord.formats.sources.inventory import (
    NOT_SELECTED,
    Account,
    LeftOut,
    group_names,
    unread_files,
)
from seqrecord.formats.sources.mcap.bags import Topic
from seqrecord.formats.sources.mcap.cameras import CAMERA_INFO
from seqrecord.formats.sources.mcap.messages import TRANSFORMS, can_read, stamp_reader
from seqrecord.formats.sources.mcap.topics import TopicSource, type_of
from seqrecord.formats.sources.mcap.transforms import has_transforms
from seqrecord.formats.sources.mcap.videos import num_before_start
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.store.originals.protocol import EpisodeInfo
from seqrecord.store.text import counted

_OF_ROS = ("/rosout", "/parameter_events")  # in every recording of all topics
_SIDE_FILES = ("-wal", "-shm", "-journal")  # SQLite's log files
_COVARIANCES = ("/Imu", "/Odometry")  # ends of type names


def account_of(source: TopicSource, episodes: Sequence[EpisodeInfo]) -> Account:
    """Report topics that are not read, unused messages, and other files."""
    recordings = [*source.recordings.values()]
    folders = sum(recording.metadata is not None for recording in recordings)
    kinds = [("rosbag2 folder", folders), ("file", len(recordings) - folders)]
    reason = " and ".join(counted(n, kind) for kind, n in kinds if n)
    places = {source.time_name: f"{source.clock_topic}: {source.time} time"}
    places |= {n: f"/tf: {frame} in {source.root_frame}" for n, frame in source.frame_ids.items()}
    for topic, features in source.topics.items():
        for suffix, spec in features.specs.items():
            places[spec.name] = f"{topic} {suffix}".rstrip()
    return Account(
        f"{reason} of messages",
        places,
        (*_topics(source, episodes), *_records(source), *_files(source)),
        (
            *_dropped_notes(source, episodes),
            *lacking_poses(source, episodes),
            *_assumptions(source, episodes),
        ),
    )


def _topics(source: TopicSource, episodes: Sequence[EpisodeInfo]) -> Iterator[LeftOut]:
    """Yield topics without a feature, with their messages in all readable recordings."""
    counts: Counter[str] = Counter()
    types: dict[str, Topic] = {}
    for info in episodes:
        if "topics" in info.metadata:  # else it cannot be read
            types |= source.recordings[info.key].topics
            counts.update(info.metadata.get("topics_not_read", {}))
    for topic, declaration in sorted(types.items()):
        is_pose = bool(source.poses) and has_transforms(declaration)
        if topic in source.topics or topic in source.cameras.topics or is_pose:
            continue
        reason, is_data = "missing in the first recording", True
        if not counts[topic]:
            reason, is_data = "empty topic", False
        elif declaration.type == CAMERA_INFO:
            reason, is_data = "the camera of no packed image", False
        elif declaration.type in TRANSFORMS:
            reason = "choose frames by --source-option poses=FRAME,… and root_frame=FRAME"
        elif not can_read(declaration):
            reason = f"no reader for {type_of(declaration)}"
            is_data = source.map is None and source.features is None and topic not in _OF_ROS
        elif why := source.why_unreadable(topic):
            reason = why
        elif topic in source.offered:
            reason, is_data = f"{NOT_SELECTED} or map=", False
        yield LeftOut(f"topic {topic}", counts[topic], reason, "messages", is_data)


def _records(source: TopicSource) -> Iterator[LeftOut]:
    """Yield attachments and metadata records; rosbag2 adds metadata records to every file."""
    counts: Counter[str] = Counter()
    for recording in source.recordings.values():
        with skipping_unreadable():  # raised by `frames`
            counts.update(recording.extras())
    for name, count in sorted(counts.items()):
        yield LeftOut(f"{name} of MCAP", count, "no reader", "records", name == "attachments")


def _files(source: TopicSource) -> Iterator[LeftOut]:
    used_paths = {path for recording in source.recordings.values() for path in recording.paths}
    used_paths |= {
        recording.metadata for recording in source.recordings.values() if recording.metadata
    }
    unlisted = [path for recording in source.recordings.values() for path in recording.unlisted]
    yield from group_names(unlisted, source.path, "not listed in metadata.yaml")
    used_paths |= {Path(f"{path}{ending}") for path in used_paths for ending in _SIDE_FILES}
    yield from unread_files(source.path, lambda path: path in used_paths or path in unlisted)


def _dropped_notes(source: TopicSource, episodes: Sequence[EpisodeInfo]) -> Iterator[str]:
    counts = [info.metadata["topics"] for info in episodes if "topics" in info.metadata]
    for topic in source.topics:
        num_dropped, total, num_without = (
            sum(topic_counts[topic][key] for topic_counts in counts)
            for key in ("dropped", "messages", "frames_without")
        )
        if num_dropped:
            yield f"{num_dropped:,} of {total:,} messages of {topic} dropped: in no frame"
        if num_without:
            yield f"{num_without:,} frames lack {topic}"


def lacking_poses(source: TopicSource, episodes: Sequence[EpisodeInfo]) -> Iterator[str]:
    """Yield a line for each feature of `poses` that frames lack."""
    readable = [info for info in episodes if "topics" in info.metadata]
    total = sum(info.num_frames for info in readable)
    for name in source.frame_ids:
        counts = (info.metadata.get("frames_without_pose", {}).get(name, 0) for info in readable)
        if count := sum(counts):
            yield (
                f"{count:,} of {total:,} frames lack {name}: no transform at most "
                f"{source.tolerance:g} s before and after (--source-option tolerance=SECONDS)"
            )


def _assumptions(source: TopicSource, episodes: Sequence[EpisodeInfo]) -> Iterator[str]:
    if source.time == "log":
        yield "times are log times; --source-option time=header uses header stamps"
    for topic in source.topics if source.time == "header" else ():
        if stamp_reader(source.offered[topic]) is None:
            yield f"{topic}: log times, for its messages have no header"
    for topic in source.topics:
        if source.offered[topic].type.endswith(_COVARIANCES):
            yield f"{topic}: covariances are not packed"
    for topic, features in source.topics.items():
        if format_ := features.decoded_format:
            yield f"{topic}: {format_} images are decoded; only PNG and JPEG can be kept encoded"
    for recording in source.recordings.values():
        with skipping_unreadable():  # raised by `frames`
            for topic in source.videos_of(recording):
                if count := num_before_start(recording, topic):
                    yield f"{recording.key}: {topic} has {count} messages before a keyframe"
    unknown = Counter(
        (name, reason)
        for info in episodes
        for name, reason in info.metadata.get("camera_unknown", {}).items()
    )
    for (name, reason), count in sorted(unknown.items()):
        yield f"camera of {name} unknown in {counted(count, 'episode')}: {reason}"
