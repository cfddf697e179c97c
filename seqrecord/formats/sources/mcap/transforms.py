"""Poses of frames in a root frame, from the transforms of `/tf` and `/tf_static`.

https://docs.ros.org/en/rolling/Concepts/Intermediate/About-Tf2.html. Poses are [N, 7]: x, y, z, and
the quaternion x, y, z, w of the rotation.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.mcap.bags import Topic
from seqrecord.formats.sources.mcap.messages import TRANSFORMS, pose_of, ros_message
from seqrecord.formats.sources.mcap.recordings import Recording
from seqrecord.store.cameras.rotations import unit_quaternions, vector_lengths

Floats = npt.NDArray[np.float64]
_MAX_DEPTH = 1000  # frames between a frame and the top of the tree
_LEAST_ANGLE = 1e-9  # radians; at smaller ones slerp is linear


def has_transforms(topic: Topic) -> bool:
    """Return whether messages have transforms between frames."""
    return topic.type in (*TRANSFORMS, "geometry_msgs/msg/TransformStamped")


def read_poses(
    recording: Recording,
    frames: Mapping[str, str],
    root: str,
    clock: npt.NDArray[np.int64],
    *,
    by_header: bool,
    within: int,
) -> dict[str, Floats]:
    """Read all transforms; return the poses of `frames` by feature at the times `clock` (ns).

    Transforms have log times, or with `by_header` the times of their headers. See
    `TransformTree.poses` for `within`.
    """
    topics = {name: topic for name, topic in recording.topics.items() if has_transforms(topic)}
    times = {name: iter(log_times.tolist()) for name, log_times in recording.times().items()}
    tree, path = TransformTree(), recording.paths[0]
    for name, data, path in recording.messages([*topics]):
        log_time = None if name.endswith("_static") else next(times[name])
        with located(SourceError, file=str(path)):
            try:
                for transform in _transforms(topics[name], data):
                    tree.add(
                        transform if by_header and log_time else transform._replace(time=log_time)
                    )
            except ValueError as error:
                raise SourceError(str(error), got=name) from error
    with located(SourceError, file=str(path)):
        return {name: tree.poses(frame, root, clock, within) for name, frame in frames.items()}


class Transform(NamedTuple):
    """The pose of frame `child` in frame `parent`; `time` in ns, `None` if it never changes."""

    parent: str
    child: str
    time: int | None
    pose: Sequence[float]


class TransformTree:
    """The transforms of a recording, 64 bytes each."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self._fixed: dict[str, Sequence[float]] = {}
        self._times: dict[str, array[int]] = {}
        self._poses: dict[str, array[float]] = {}

    def add(self, transform: Transform) -> None:
        """Add a transform; of equal times the last one counts. Raises `ValueError` if invalid."""
        time, pose = transform.time, transform.pose
        parent, child = _frame_id(transform.parent), _frame_id(transform.child)
        if self._parents.setdefault(child, parent) != parent:
            raise ValueError(f"frame {child} has two parents, {self._parents[child]} and {parent}")
        if not all(map(math.isfinite, pose[:3])):  # tracking failed: frames lack the pose
            pose = [math.nan] * 7
        elif not vector_lengths(pose[3:]) > 0:
            raise ValueError(f"frame {child} has an invalid pose in {parent}: {pose}")
        if time is None:
            self._fixed[child] = pose
            return
        self._times.setdefault(child, array("q")).append(time)
        self._poses.setdefault(child, array("d")).extend(pose)

    def poses(self, frame: str, root: str, times: npt.NDArray[np.int64], within: int) -> Floats:
        """Return poses of `frame` in `root` at `times` (ns), NaN where a transform is unknown.

        Between two samples that are at most `within` ns away, translations are interpolated
        linearly and rotations along the shortest arc. Raises `SourceError` if the frames are not
        connected.
        """
        frame, root = _frame_id(frame), _frame_id(root)
        frame_path, root_path = self._ancestors(frame), self._ancestors(root)
        while frame_path and root_path and frame_path[-1] == root_path[-1]:
            frame_path, root_path = frame_path[:-1], root_path[:-1]
        tops = {
            self._parents[path[-1]] if path else end
            for path, end in ((frame_path, frame), (root_path, root))
        }
        if len(tops) > 1:
            raise SourceError(
                "no transforms connect the frames (--source-option poses=FRAME,… and root=FRAME)",
                expected=f"{frame} and {root} in one tree",
                got=f"frames {', '.join(sorted({*self._parents, *self._parents.values()}))}"[:300],
            )
        pose, base = (self._chain(path, times, within) for path in (frame_path, root_path))
        return _compose(_inverse(base), pose)

    def _ancestors(self, frame: str) -> list[str]:
        """Return the frame and all above it that have a parent."""
        frames = []
        while frame in self._parents:
            frames.append(frame)
            frame = self._parents[frame]
            if len(frames) > _MAX_DEPTH:
                raise SourceError("transforms form a loop", got=", ".join(frames[:5]))
        return frames

    def _chain(self, path: Sequence[str], times: npt.NDArray[np.int64], within: int) -> Floats:
        pose = np.tile([0.0, 0, 0, 0, 0, 0, 1], (len(times), 1))
        for child in path:
            pose = _compose(self._at(child, times, within), pose)
        return pose

    def _at(self, child: str, times: npt.NDArray[np.int64], within: int) -> Floats:
        if child not in self._times:
            pose = np.tile(np.array(self._fixed[child], float), (len(times), 1))
            return _between(pose, pose, np.zeros(len(times)))
        backwards, poses = np.array(self._times[child])[::-1], np.array(self._poses[child])
        # The last one of equal times.
        sample_times, places = np.unique(backwards, return_index=True)
        poses = poses.reshape(-1, 7)[len(backwards) - 1 - places]
        next_rows = np.searchsorted(sample_times, times, "left")
        is_between = next_rows < len(sample_times)
        next_rows = np.minimum(next_rows, len(sample_times) - 1)
        previous_rows = np.where(
            sample_times[next_rows] == times, next_rows, np.maximum(next_rows - 1, 0)
        )
        time_to_next, time_since = (
            sample_times[next_rows] - times,
            times - sample_times[previous_rows],
        )
        is_between &= (time_since >= 0) & (time_since <= within) & (time_to_next <= within)
        interpolated = _between(
            poses[previous_rows],
            poses[next_rows],
            time_since / np.maximum(time_to_next + time_since, 1),
        )
        interpolated[~is_between] = np.nan
        return interpolated


def _frame_id(name: str) -> str:
    """Return a frame id without the slash of tf 1, as tf2 does: `/map` is `map`."""
    return name.lstrip("/")


def _between(first_poses: Floats, second_poses: Floats, share: Floats) -> Floats:
    """Interpolate linearly and by slerp (Shoemake 1985); `share` [N] from 0 to 1."""
    share = share[:, None]
    # Not (1 - share) * first + share * second: its rounding would move a still robot.
    translations = first_poses[:, :3] + share * (second_poses[:, :3] - first_poses[:, :3])
    first_turns, second_turns = (
        unit_quaternions(first_poses[:, 3:]),
        unit_quaternions(second_poses[:, 3:]),
    )
    second_turns = np.where(
        (first_turns * second_turns).sum(1)[:, None] < 0, -second_turns, second_turns
    )
    angle = 2 * np.arctan2(_length(first_turns - second_turns), _length(first_turns + second_turns))
    slerp = np.sin((1 - share) * angle) * first_turns + np.sin(share * angle) * second_turns
    line = first_turns + share * (second_turns - first_turns)
    rotations = np.where(angle > _LEAST_ANGLE, slerp, line)
    return np.hstack([translations, rotations / _length(rotations)])


def _length(vectors: Floats) -> Floats:
    lengths: Floats = np.linalg.norm(vectors, axis=1, keepdims=True)
    return lengths


def _compose(base: Floats, pose: Floats) -> Floats:
    """Return the pose `pose`, given in the frame of pose `base`, in the frame above."""
    p, q = base[:, 3:6], base[:, 6:]
    v, w = pose[:, 3:6], pose[:, 6:]
    rotations = np.hstack([q * v + w * p + np.cross(p, v), q * w - (p * v).sum(1)[:, None]])
    return np.hstack([base[:, :3] + _rotate(base, pose[:, :3]), rotations])


def _inverse(pose: Floats) -> Floats:
    back = pose * [0, 0, 0, -1, -1, -1, 1]
    return np.hstack([-_rotate(back, pose[:, :3]), back[:, 3:]])


def _rotate(pose: Floats, points: Floats) -> Floats:
    vector, scalar = pose[:, 3:6], pose[:, 6:]
    cross = np.cross(vector, points)
    rotated: Floats = points + 2 * (scalar * cross + np.cross(vector, cross))
    return rotated


def _transforms(topic: Topic, data: bytes) -> list[Transform]:
    message = ros_message(topic, data)
    return [
        Transform(
            *(transform.header.frame_id, transform.child_frame_id),
            *(
                transform.header.stamp.sec * 10**9 + transform.header.stamp.nanosec,
                pose_of(transform.transform),
            ),
        )
        for transform in getattr(message, "transforms", [message])
    ]
