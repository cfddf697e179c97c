"""Cameras of images: `/front/camera_info` beside `/front/image_raw`, as in image_transport."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.cameras import Camera
from seqrecord.formats.sources.mcap.bags import Topic
from seqrecord.formats.sources.mcap.messages import ros_message
from seqrecord.formats.sources.mcap.recordings import Recording
from seqrecord.store.clips.cameras import OWN_INTRINSICS
from seqrecord.store.clips.distortion import MODELS, OPENCV
from seqrecord.store.feature_kinds import PIXEL_KINDS
from seqrecord.store.schema import FeatureSpec

CAMERA_INFO = "sensor_msgs/msg/CameraInfo"

_TRANSPORTS = ("compressed", "compressedDepth")  # last parts of topics of image_transport
_SAME = slice(12, None)  # bytes of a message after its time


class ImageCameras:
    """The cameras of a recording's images.

    Args:
        offered: all topics.
        images: features by topic.
        is_constant: whether a camera that changes is an error; else only its distortion may not.

    `topics` are the used topics of CameraInfo.
    """

    def __init__(
        self,
        offered: Mapping[str, Topic],
        images: Mapping[str, list[FeatureSpec]],
        *,
        is_constant: bool,
    ) -> None:
        self._is_constant = is_constant
        self.topics: dict[str, dict[str, tuple[str, int, int]]] = {}  # matrix, height and width
        for topic, specs in images.items():
            above, _, last = topic.rpartition("/")
            if last in _TRANSPORTS:
                above, _, last = above.rpartition("/")
            info = f"{above}/camera_info"
            for spec in specs if info in offered and offered[info].type == CAMERA_INFO else ():
                if spec.kind in PIXEL_KINDS and spec.is_fixed:
                    matrix = "p" if last.startswith("image_rect") else "k"
                    height, width = (int(n or 0) for n in spec.shape[:2])
                    self.topics.setdefault(info, {})[spec.name] = matrix, height, width

    @property
    def specs(self) -> Iterator[FeatureSpec]:
        """Features of intrinsics per frame."""
        for images in self.topics.values():
            for name in () if self._is_constant else images:
                own, dtype = f"{name}{OWN_INTRINSICS}", np.dtype("<f8")
                yield FeatureSpec(own, dtype, (4,), kind="intrinsics", unit="px")

    def frame(self, topic: Topic, data: bytes, path: Path) -> dict[str, Any]:
        """Return the values of `specs` in a message."""
        found = self._cameras(topic, data, path)
        return {f"{n}{OWN_INTRINSICS}": np.array(c.intrinsics) for n, c in found.items() if c}

    def metadata(self, recording: Recording) -> dict[str, Any]:
        """Return `camera` of the first messages, and `camera_unknown` with reasons."""
        every = self._first(recording)
        known = {name: each for name, each in every.items() if isinstance(each, Camera)}
        camera = {n: c.to_json() if self._is_constant else c.distortion for n, c in known.items()}
        unknown = {name: each for name, each in every.items() if name not in known}
        found = {"camera": camera if any(camera.values()) else {}, "camera_unknown": unknown}
        return {name: each for name, each in found.items() if each}

    def checked(
        self, recording: Recording, messages: Iterator[tuple[str, bytes, Path]]
    ) -> Iterator[tuple[str, bytes, Path]]:
        """Yield the messages. Raises `SourceError` if the metadata does not hold for one of them.

        A CameraInfo is decoded only if its bytes differ from the message before.
        """
        known = self._first(recording)
        last: dict[str, bytes] = {}
        for topic, data, path in messages:
            if topic in self.topics and last.get(topic) != data[_SAME]:
                last[topic] = data[_SAME]
                if any(isinstance(known[name], Camera) for name in self.topics[topic]):
                    now = self._cameras(recording.topics[topic], data, path)
                    for name, camera in now.items():
                        self._check(name, known[name], camera, path)
            yield topic, data, path

    def _check(self, name: str, first: Camera | str, now: Camera | None, path: Path) -> None:
        if isinstance(first, str) or (now is None and not self._is_constant):
            return
        is_same = now is not None and now.distortion == first.distortion
        if not is_same or (self._is_constant and now != first):
            raise SourceError(
                "the camera changes within the recording; --source-option intrinsics=frames "
                "packs intrinsics per frame, of one distortion",
                file=str(path),
                feature=name,
                expected=f"{first}, the first message"[:300],
                got=str(now)[:300],
            )

    def _first(self, recording: Recording) -> dict[str, Camera | str]:
        """Return the cameras in the first messages, or why they are unknown."""
        found: dict[str, Camera | str] = {}
        for topic, images in self.topics.items():
            found |= dict.fromkeys(images, f"{topic} has no message")
            try:
                for _, data, path in islice(recording.messages([topic]), 1):
                    first = self._cameras(recording.topics[topic], data, path)
                    found |= {name: each or f"K of {topic} is 0" for name, each in first.items()}
            except SourceError as error:
                found |= dict.fromkeys(images, f"{topic}: {error.message}, got {error.got}")
        return found

    def _cameras(self, topic: Topic, data: bytes, path: Path) -> dict[str, Camera | None]:
        """Return the cameras of images, scaled to their size; `None` if K or P is 0."""
        found = _decoded(topic, data, path)
        return {
            name: found[matrix].scaled(height, width, path) if matrix in found else None
            for name, (matrix, height, width) in self.topics[topic.name].items()
        }


def _decoded(topic: Topic, data: bytes, path: Path) -> dict[str, Camera]:
    """Decode a CameraInfo: cameras by matrix, `k` of raw and `p` of rectified images, unless 0.

    https://github.com/ros2/common_interfaces/blob/rolling/sensor_msgs/msg/CameraInfo.msg: K refers
    to all pixels of the sensor, before a region of interest and binning.
    """
    if topic.type != CAMERA_INFO:
        raise SourceError("another type", file=str(path), expected=CAMERA_INFO, got=topic.type)
    try:
        message = ros_message(topic, data)
    except ValueError as error:
        raise SourceError(str(error), file=str(path)) from error
    names = "kpd" if topic.encoding == "cdr" else "KPD"
    k, p, d = (getattr(message, name) for name in names)
    roi, size = message.roi, (message.width, message.height)
    crop = (roi.x_offset, roi.y_offset, roi.width or size[0], roi.height or size[1])
    if max(message.binning_x, message.binning_y) > 1 or crop != (0, 0, *size) or k[1] or p[1]:
        raise SourceError(
            "unsupported camera: binning, region of interest or skew",
            file=str(path),
            expected="K of the whole image, without skew",
            got=f"binning {message.binning_x}, region {crop} of {size}, skew {k[1]}",
        )
    named = message.distortion_model
    model = MODELS.get(named, named or OPENCV) if d.any() else None
    how = {"k": {"model": model, "coefficients": d.tolist()}, "p": {}}
    numbers = {"k": k[[0, 4, 2, 5]], "p": p[[0, 5, 2, 6]]}
    return {
        matrix: Camera.of(each.tolist(), size, path, **how[matrix])
        for matrix, each in numbers.items()
        if each[:2].all()
    }
