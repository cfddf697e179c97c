"""Cameras of images: `/front/camera_info` beside `/front/image_raw`, as in image_transport."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.cameras import Camera
from seqrecord.formats.sources.mcap.bags import Topic
from seqrecord.formats.sources.mcap.messages import ros_message
from seqrecord.formats.sources.mcap.recordings import Recording
from seqrecord.store.cameras.distortion import FISHEYE, OPENCV, model_of
from seqrecord.store.cameras.intrinsics import OWN_INTRINSICS
from seqrecord.store.feature_kinds import PIXEL_KINDS
from seqrecord.store.schema import FeatureSpec

CAMERA_INFO = "sensor_msgs/msg/CameraInfo"

_TRANSPORTS = ("compressed", "compressedDepth")  # last parts of topics of image_transport
_CONTENT = slice(12, None)  # bytes of a message after its time


class ImageCameras:
    """The cameras of a recording's images, selected or not.

    Args:
        offered: all topics.
        images: features by topic.
        selected: names of features; `None` for all.
        is_constant: whether a camera that changes is an error; else only its distortion may not.

    `topics` are the used topics of CameraInfo. `read_topics` are those of which all messages are
    read; of the others, the metadata has the camera of the first message.
    """

    def __init__(
        self,
        offered: Mapping[str, Topic],
        images: Mapping[str, list[FeatureSpec]],
        selected: Collection[str] | None,
        *,
        is_constant: bool,
    ) -> None:
        self._is_constant, self._selected = is_constant, selected
        self.topics: dict[str, dict[str, tuple[str, int, int]]] = {}  # matrix, height and width
        for topic, specs in images.items():
            info = info_topic(topic)
            for spec in specs if info in offered and offered[info].type == CAMERA_INFO else ():
                if spec.kind in PIXEL_KINDS and spec.is_fixed:
                    matrix = "p" if _split_topic(topic)[1].startswith("image_rect") else "k"
                    height, width = (int(n or 0) for n in spec.shape[:2])
                    self.topics.setdefault(info, {})[spec.name] = matrix, height, width
        self.read_topics = [
            topic for topic, names in self.topics.items() if any(map(self._is_read, names))
        ]

    def _is_read(self, image: str) -> bool:
        """Whether an image or its intrinsics are selected."""
        names = {image, f"{image}{OWN_INTRINSICS}"}
        return self._selected is None or not names.isdisjoint(self._selected)

    @property
    def specs(self) -> Iterator[FeatureSpec]:
        """Features of intrinsics per frame."""
        for images in self.topics.values():
            for name in () if self._is_constant else images:
                intrinsics_name, dtype = f"{name}{OWN_INTRINSICS}", np.dtype("<f8")
                yield FeatureSpec(intrinsics_name, dtype, (4,), kind="intrinsics", unit="px")

    def frame(self, topic: Topic, data: bytes, path: Path) -> dict[str, Any]:
        """Return the values of selected `specs` in a message."""
        cameras = self._cameras(topic, data, path, self._read_images(topic.name))
        return {f"{n}{OWN_INTRINSICS}": np.array(c.intrinsics) for n, c in cameras.items() if c}

    def _read_images(self, topic: str) -> list[str]:
        return [*filter(self._is_read, self.topics[topic])]

    def metadata(self, recording: Recording) -> dict[str, Any]:
        """Return `camera` of the first messages, and `camera_unknown` with reasons."""
        first_cameras = self._first_cameras(recording)
        known_cameras = {
            name: first_camera
            for name, first_camera in first_cameras.items()
            if isinstance(first_camera, Camera)
        }
        camera = {
            n: c.to_json() if self._is_constant else c.distortion for n, c in known_cameras.items()
        }
        reasons = {
            name: reason for name, reason in first_cameras.items() if name not in known_cameras
        }
        metadata = {"camera": camera if any(camera.values()) else {}, "camera_unknown": reasons}
        return {name: content for name, content in metadata.items() if content}

    def pose_features(self, recording: Recording, frames: Mapping[str, str]) -> dict[str, str]:
        """Return the feature with the poses of each image's camera.

        The frame of a CameraInfo is its camera's optical frame. `frames` has frames by feature.
        """
        features = {frame.strip("/"): feature for feature, frame in frames.items()}
        poses: dict[str, str] = {}
        for topic, images in self.topics.items() if features else ():
            with suppress(SourceError, ValueError):  # reported where the camera is read
                for _, data, _ in islice(recording.messages([topic]), 1):
                    frame = ros_message(recording.topics[topic], data).header.frame_id.strip("/")
                    if frame in features:
                        poses |= dict.fromkeys(images, features[frame])
        return poses

    def check_messages(
        self, recording: Recording, messages: Iterator[tuple[str, bytes, Path]]
    ) -> Iterator[tuple[str, bytes, Path]]:
        """Yield the messages. Raises `SourceError` if the metadata does not hold for one of them.

        A CameraInfo is decoded only if its bytes differ from the message before.
        """
        first_cameras = self._first_cameras(recording)
        known_images = {
            topic: [n for n in self._read_images(topic) if isinstance(first_cameras[n], Camera)]
            for topic in self.read_topics
        }
        previous_data: dict[str, bytes] = {}
        for topic, data, path in messages:
            if topic in known_images and previous_data.get(topic) != data[_CONTENT]:
                previous_data[topic] = data[_CONTENT]
                if images := known_images[topic]:
                    cameras = self._cameras(recording.topics[topic], data, path, images)
                    for name, camera in cameras.items():
                        self._check(name, first_cameras[name], camera, path)
            yield topic, data, path

    def _check(
        self, name: str, first_camera: Camera | str, camera: Camera | None, path: Path
    ) -> None:
        if isinstance(first_camera, str) or (camera is None and not self._is_constant):
            return
        is_same = camera is not None and camera.distortion == first_camera.distortion
        if not is_same or (self._is_constant and camera != first_camera):
            raise SourceError(
                "the camera changes within the recording; --source-option intrinsics=frames "
                "packs intrinsics per frame, of one distortion",
                file=str(path),
                feature=name,
                expected=f"{first_camera}, the first message"[:300],
                got=str(camera)[:300],
            )

    def _first_cameras(self, recording: Recording) -> dict[str, Camera | str]:
        """Return the cameras in the first messages, or why they are unknown."""
        cameras: dict[str, Camera | str] = {}
        for topic, images in self.topics.items():
            cameras |= dict.fromkeys(images, f"{topic} has no message")
            with _reasons(cameras, topic, images):
                for _, data, path in islice(recording.messages([topic]), 1):
                    for name in images:
                        with _reasons(cameras, topic, [name]):
                            declaration = recording.topics[topic]
                            camera = self._cameras(declaration, data, path, [name])[name]
                            cameras[name] = camera or f"K of {topic} is 0"
        return cameras

    def _cameras(
        self, topic: Topic, data: bytes, path: Path, images: Iterable[str]
    ) -> dict[str, Camera | None]:
        """Return the cameras of `images`, scaled to their size; `None` if K or P is 0."""
        cameras_by_matrix, forms = _decode_info(topic, data, path), self.topics[topic.name]
        cameras: dict[str, Camera | None] = {}
        for name in images:
            matrix, height, width = forms[name]
            camera = cameras_by_matrix.get(matrix)
            cameras[name] = None if camera is None else camera.scaled(height, width, path)
        return cameras


def info_topic(image_topic: str) -> str:
    """Return the topic of the CameraInfo beside an image."""
    return f"{_split_topic(image_topic)[0]}/camera_info"


def _split_topic(image_topic: str) -> tuple[str, str]:
    """Return the namespace of an image's topic, and its name there without the transport."""
    parent, _, leaf = image_topic.rpartition("/")
    if leaf in _TRANSPORTS:
        parent, _, leaf = parent.rpartition("/")
    return parent, leaf


@contextmanager
def _reasons(cameras: dict[str, Camera | str], topic: str, images: Iterable[str]) -> Iterator[None]:
    """Store an error of the block as the reason why cameras of `images` are unknown."""
    try:
        yield
    except SourceError as error:
        cameras.update(dict.fromkeys(images, f"{topic}: {error.message}, got {error.got}"))


def _decode_info(topic: Topic, data: bytes, path: Path) -> dict[str, Camera]:
    """Decode a CameraInfo: cameras by matrix, `k` for raw and `p` for rectified images, unless 0.

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
    name = message.distortion_model or OPENCV
    model = model_of(name) or name
    if model != FISHEYE and not d.any():  # a fisheye without coefficients is no pinhole
        model = None
    lens: dict[str, Any] = {"model": model, "coefficients": d.tolist() or [0.0] * 4}
    options = {"k": lens, "p": {}}
    numbers = {"k": k[[0, 4, 2, 5]], "p": p[[0, 5, 2, 6]]}
    return {
        matrix: Camera.of(values.tolist(), size, path, **options[matrix])
        for matrix, values in numbers.items()
        if values[:2].all()
    }
