"""Decode messages: ROS 2 in CDR, and images in Foxglove's schemas.

The package rosbags decodes ROS messages, with the fields of
https://github.com/ros2/common_interfaces. Foxglove's messages are protocol buffers, or JSON with
base64 for bytes: https://docs.foxglove.dev/docs/sdk/schemas.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from array import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.images import (
    EMBEDDED_FORMATS,
    UnknownEncodingError,
    embedded_format,
    foreign_format,
    pixels,
)
from seqrecord.formats.sources.common.points import split_points
from seqrecord.formats.sources.common.specs import UnsupportedError
from seqrecord.formats.sources.mcap.bags import Topic
from seqrecord.formats.sources.mcap.definitions import (
    MESSAGE_LANGUAGES,
    check_equal_definitions,
    message_fields,
)
from seqrecord.formats.sources.mcap.protobuf import FIXED32, FIXED64, fields
from seqrecord.formats.sources.mcap.recordings import Recording
from seqrecord.store.lazy import import_extra


@dataclass(frozen=True)
class Encoded:
    """The bytes of an image file. Quantized depth is A / (pixel - B), with `inverse` = (A, B)."""

    data: bytes
    inverse: tuple[float, float] | None = None

    def depth(self, image: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Return metres of quantized depth, NaN for pixels of 0."""
        a, b = map(np.float32, self.inverse or (0, 0))
        metres = np.full(image.shape, np.nan, np.float32)
        with np.errstate(divide="ignore"):
            np.divide(a, image.astype(np.float32) - b, out=metres, where=image != 0)
        return metres


@dataclass(frozen=True)
class Packet:
    """One frame of a video, encoded by a codec of `PASSTHROUGH`."""

    data: bytes
    codec: str


@dataclass(frozen=True)
class Value:
    """A value of a message. `names` name the elements along the last axis, if known.

    The first dimension varies between messages if `is_ragged`.
    """

    data: npt.NDArray[Any] | Encoded | Packet | str
    kind: str | None = None
    unit: str | None = None
    names: tuple[str, ...] = ()
    is_ragged: bool = False

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Shape of an array in all messages."""
        assert isinstance(self.data, np.ndarray)
        return (None, *self.data.shape[1:]) if self.is_ragged else self.data.shape


Message: TypeAlias = "dict[str, Value]"
"""The values of a message by feature name suffix, which may be empty."""


def can_read(topic: Topic) -> bool:
    """Return whether messages of this topic are supported."""
    if topic.encoding in STORES:
        return topic.type in ROS_TYPES
    return topic.encoding in ("protobuf", "json") and topic.type in FOXGLOVE_TYPES


def decoder(recording: Recording, name: str) -> Callable[[bytes, Path], Message]:
    """Return a decoder for messages of a supported topic: bytes and file to `Message`.

    Each file's own definition of the type counts. Both raise `SourceError`; this function if the
    first definition differs from the type's.
    """
    topic = recording.topics[name]
    try:
        if topic.encoding in STORES:
            check_definition(topic)
        _own_numbers(topic)
    except ValueError as error:
        path = str(recording.paths[0])
        raise SourceError(str(error)[:500], file=path, got=name[:200]) from error

    def decode(data: bytes, file: Path) -> Message:
        topic = recording.topics_of[file][name]
        try:
            if topic.encoding in STORES:
                return ROS_TYPES[topic.type](ros_message(topic, data))
            return decode_foxglove(topic.type, data, _own_numbers(topic))
        except ValueError as error:
            kind = UnsupportedError if isinstance(error, UnknownEncodingError) else SourceError
            raise kind(
                "cannot decode a message",
                file=str(file),
                expected=topic.name,
                got=str(error)[:500],
            ) from error

    return decode


@lru_cache(maxsize=1024)
def _own_numbers(topic: Topic) -> dict[int, str] | None:
    """Return the type's fields by number in the topic's definitions; `None` without protobuf.

    Raises `ValueError` if two definitions number a field that is read differently.
    """
    if topic.encoding != "protobuf":
        return None
    definitions = [definition.data for definition in topic.definitions] or [b""]
    first_fields, *other_fields = (field_numbers(data, topic.type) for data in definitions)
    first_numbers = _read_numbers(first_fields, topic.type)
    for fields_by_number in other_fields:
        if (numbers := _read_numbers(fields_by_number, topic.type)) != first_numbers:
            raise ValueError(
                f"two definitions of {topic.type} number their fields differently: "
                f"{first_numbers}, and {numbers}"
            )
    return first_fields


def _read_numbers(fields_by_number: Mapping[int, str], type_name: str) -> dict[str, int]:
    names = FOXGLOVE_TYPES[type_name]
    return {name: number for number, name in fields_by_number.items() if name in names}


# --- ROS ---------------------------------------------------------------------------------------


def ros_message(topic: Topic, data: bytes | memoryview) -> Any:
    """Decode a message by rosbags. Raises `ValueError` for invalid bytes and another definition."""
    check_definition(topic)
    store = _store(topic.encoding)
    if bytes(data[:4]) == b"\x28\xb5\x2f\xfd":
        raise ValueError("compressed message; decompress by `ros2 bag convert`")
    decode = store.deserialize_cdr if topic.encoding == "cdr" else store.deserialize_ros1
    try:
        return decode(memoryview(data), topic.type)
    except Exception as error:  # rosbags raises many types for invalid bytes
        raise ValueError(f"not a {topic.type}: {error}") from error


@lru_cache(maxsize=1024)
def check_definition(topic: Topic) -> None:
    """Raise `ValueError` if a definition of the topic has other fields than the decoder expects.

    Of the message itself; fields of nested types must be equal in all definitions.
    """
    texts = [
        definition.data.decode(errors="replace")
        for definition in topic.definitions
        if definition.language in MESSAGE_LANGUAGES
    ]
    if texts:
        store, version = _store(topic.encoding), 2 if topic.encoding == "cdr" else 1
        expected_fields = message_fields(store.generate_msgdef(topic.type, ros_version=version)[0])
        for got in map(message_fields, texts):
            if got != expected_fields:
                raise ValueError(
                    f"the definition of {topic.type} differs from ROS's: got {got[:200]}, expected "
                    f"{expected_fields}"
                )
    check_equal_definitions(topic)


def stamp_reader(topic: Topic) -> Callable[[bytes], int] | None:
    """Return a function from a message to its header's time in ns; `None` for types without one.

    It raises `ValueError` for invalid bytes and unset times. In CDR and in ROS 1, whose headers
    begin with a number, the time follows four bytes. A time may also be the first field itself.
    """
    if topic.encoding not in STORES:
        return None
    parts = _store(topic.encoding).fielddefs.get(topic.type, ((), ()))[1]
    kind = parts[0][1][1] if parts else None
    if kind not in ("std_msgs/msg/Header", "builtin_interfaces/msg/Time"):
        return None
    at = 0 if topic.encoding == "ros1" and kind == "builtin_interfaces/msg/Time" else 4

    def stamp(data: bytes) -> int:
        if len(data) < 12:
            raise ValueError(f"truncated message of {topic.name}")
        is_big = topic.encoding == "cdr" and data[1] % 2 == 0
        seconds, nanoseconds = struct.unpack_from(">iI" if is_big else "<iI", data, at)
        if (time := seconds * 10**9 + nanoseconds) <= 0:
            raise ValueError(f"unset time in a header of {topic.name}")
        return int(time)

    return stamp


def header_times(recording: Recording, topics: Collection[str]) -> dict[str, npt.NDArray[np.int64]]:
    """Read the times of headers in ns, for topics with headers.

    Raises `SourceError` unless they are set and ascending.
    """
    offered = recording.topics
    readers = {name: stamp_reader(offered[name]) for name in offered.keys() & topics}
    stamp_readers = {
        name: (read_stamp, array("q")) for name, read_stamp in readers.items() if read_stamp
    }
    for topic, data, path in recording.messages([*stamp_readers]):
        read_stamp, stamps = stamp_readers[topic]
        try:
            stamps.append(read_stamp(data))
        except ValueError as error:
            raise SourceError(f"{error}; omit time=header", file=str(path)) from error
        if stamps[-1] < stamps[max(len(stamps) - 2, 0)]:
            raise SourceError(
                "header stamps are not ascending; omit time=header",
                file=str(path),
                expected=f"{topic} at {stamps[-2]} ns or later",
                got=f"{stamps[-1]} ns",
            )
    return {topic: np.array(stamps, np.int64) for topic, (_, stamps) in stamp_readers.items()}


STORES = {"cdr": "ROS2_HUMBLE", "ros1": "ROS1_NOETIC"}
"""Names of rosbags' types by encoding."""


@cache
def _store(encoding: str) -> Any:
    hint = "ROS messages need rosbags, the extra `mcap`: pip install rosbags"
    types = import_extra("rosbags.typesys", hint)
    store = types.get_typestore(types.Stores[STORES[encoding]])
    for name in {*_LACKING} - {*store.fielddefs}:
        store.register(types.get_types_from_msg(_LACKING[name], name))
    return store


def _image(message: Any) -> Message:
    image = pixels(
        memoryview(message.data),
        height=message.height,
        width=message.width,
        encoding=message.encoding,
        step=message.step,
        big_endian=bool(message.is_bigendian),
    )
    return {"": Value(image, "image", _DEPTH_UNITS.get(message.encoding))}


_DEPTH_UNITS = {"16UC1": "mm", "32FC1": "m"}
"""Units of depth images by encoding, by REP 118."""


def _compressed_image(message: Any) -> Message:
    data = message.data.tobytes()
    if "compressedDepth" in message.format:
        # codec.cpp of compressed_depth_image_transport, github.com/ros-perception
        encoding = message.format[:5]
        if encoding not in _DEPTH_UNITS or "rvl" in message.format or len(data) < 12:
            problem = f"unsupported depth: {message.format[:80]}; expected 16UC1 or 32FC1"
            raise ValueError(problem) if len(data) < 12 else UnknownEncodingError(problem)
        a_and_b = struct.unpack_from("<ff", data, 4) if encoding == "32FC1" else None
        return {"": Value(Encoded(data[12:], a_and_b), "depth", _DEPTH_UNITS[encoding])}
    return _encoded_image(data, message.format)


def _encoded_image(data: bytes, declared_format: str) -> Message:
    """Return an image file. Raises `UnknownEncodingError` for a format without a reader.

    The bytes decide. If they are of no image, `declared_format` separates damage from other
    formats: `rgb8; jpeg compressed bgr8`, `h264`.
    """
    if embedded_format(data) is None:
        words = {*re.findall(r"\w+", declared_format.lower())}
        unread_format = "" if not words or words & _READ_FORMATS else declared_format
        if format_ := foreign_format(data) or unread_format:
            raise UnknownEncodingError(
                f"unsupported image format {format_[:50]!r}; expected {EMBEDDED_FORMATS}"
            )
    return {"": Value(Encoded(data), "image")}


_READ_FORMATS = frozenset("png jpeg jpg webp bmp tiff tif pbm pgm ppm pnm".split())  # noqa: SIM905


def _video(data: bytes, name: Any) -> Message:
    if name not in _CODECS:
        expected = ", ".join(_CODECS)
        raise UnknownEncodingError(f"unsupported video format {name!r:.50}; expected {expected}")
    return {"": Value(Packet(data, _CODECS[name]), "image")}


def _point_cloud(message: Any) -> Message:
    """Return all points in the order of the message, those without coordinates included."""
    order, width = ">" if message.is_bigendian else "<", message.width * message.point_step
    if not message.fields or not {field.datatype for field in message.fields} <= {*_POINT_TYPES}:
        raise ValueError("points without fields, or with fields of an unknown datatype")
    kinds = [f"{order}{_POINT_TYPES[field.datatype]}" for field in message.fields]
    shapes = [(max(field.count, 1),) for field in message.fields]
    dtype = np.dtype(
        {
            "names": [field.name for field in message.fields],
            "formats": [*zip(kinds, shapes, strict=True)],
            "offsets": [field.offset for field in message.fields],
            "itemsize": message.point_step,
        }
    )
    step = message.row_step if message.height > 1 else width
    if step < width or message.height * step > len(message.data):
        sizes = f"{message.height} rows of {step} bytes, {message.width} points in each"
        raise ValueError(f"truncated points: {len(message.data)} bytes, {sizes}")
    rows = message.data[: message.height * step].reshape(message.height, step)[:, :width]
    points = split_points(np.ascontiguousarray(rows).reshape(-1).view(dtype))
    return {
        suffix: Value(part.values, "points", names=part.names, is_ragged=True)
        for suffix, part in points.items()
    }


def _imu(message: Any) -> Message:
    units = {"orientation": None, "angular_velocity": "rad/s", "linear_acceleration": "m/s^2"}
    return {
        name: Value(_numbers(getattr(message, name)), "imu", unit)
        for name, unit in units.items()
        if getattr(message, f"{name}_covariance")[0] != -1  # -1: not measured
    }


def _joint_state(message: Any) -> Message:
    names = tuple(message.name)
    values: Message = {}
    for name in ("position", "velocity", "effort"):
        value = getattr(message, name)
        if len(value):
            values[name] = Value(value.astype("<f8"), "state", names=names)
            if names and len(value) != len(names):
                raise ValueError(f"{name}: {len(value)} values for {len(names)} joints")
    return values


def _pose(message: Any) -> Message:
    pose = message.pose
    return {"": Value(_numbers(pose.position, pose.orientation), "pose", "m")}


def pose_of(transform: Any) -> list[float]:
    """Return a geometry_msgs/Transform as a pose."""
    move, turn = transform.translation, transform.rotation
    return [move.x, move.y, move.z, turn.x, turn.y, turn.z, turn.w]


def _twist(message: Any) -> Message:
    return {"": Value(_numbers(message.linear, message.angular))}


def _odometry(message: Any) -> Message:
    return {"pose": _pose(message.pose)[""], "twist": _twist(message.twist.twist)[""]}


def _wrench(message: Any) -> Message:
    return {
        "force": Value(_numbers(message.force), "state", "N"),
        "torque": Value(_numbers(message.torque), "state", "Nm"),
    }


def _text(message: Any) -> Message:
    return {"": Value(message.data, "text")}


def _numbers(*parts: Any) -> npt.NDArray[np.float64]:
    """Concatenate vectors and quaternions: x, y, z and w."""
    return np.array([getattr(part, c) for part in parts for c in "xyzw" if hasattr(part, c)], "<f8")


def _scalar(dtype: str) -> Callable[[Any], Message]:
    return lambda message: {"": Value(np.array(message.data, dtype))}


def _multi_array(message: Any) -> Message:
    """Return an array with the shape of its layout; [N] without dimensions."""
    values = message.data
    shape = [dimension.size for dimension in message.layout.dim]
    if message.layout.data_offset:
        raise ValueError("unsupported array with an offset")
    if shape and math.prod(shape) != len(values):
        raise ValueError(f"expected an array of shape {shape}, got {len(values)} numbers")
    return {"": Value(values.astype(values.dtype.newbyteorder("<")).reshape(shape or -1))}


TRANSFORMS = ("tf2_msgs/msg/TFMessage", "tf/msg/tfMessage")
VIDEOS = ("foxglove_msgs/msg/CompressedVideo", "foxglove.CompressedVideo")
_LACKING = {
    **dict.fromkeys(TRANSFORMS, "geometry_msgs/TransformStamped[] transforms"),
    VIDEOS[0]: "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format",
}
"""Definitions of types that rosbags lacks."""

_CODECS = {"h264": "h264", "h265": "hevc", "vp9": "vp9", "av1": "av1"}
"""Codecs by Foxglove's names: https://docs.foxglove.dev/docs/sdk/schemas/compressed-video."""

_POINT_TYPES = dict(enumerate("i1 u1 i2 u2 i4 u4 f4 f8".split(), 1))  # noqa: SIM905

_NUMBERS = "Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64 Float32 Float64".split()  # noqa: SIM905
"""The number types of std_msgs, named like dtypes."""

ROS_TYPES: dict[str, Callable[[Any], Message]] = {
    "sensor_msgs/msg/Image": _image,
    "sensor_msgs/msg/CompressedImage": _compressed_image,
    VIDEOS[0]: lambda message: _video(message.data.tobytes(), message.format),
    "sensor_msgs/msg/PointCloud2": _point_cloud,
    "sensor_msgs/msg/Imu": _imu,
    "sensor_msgs/msg/JointState": _joint_state,
    "geometry_msgs/msg/PoseStamped": _pose,
    "geometry_msgs/msg/Twist": _twist,
    "geometry_msgs/msg/TwistStamped": lambda message: _twist(message.twist),
    "geometry_msgs/msg/Wrench": _wrench,
    "geometry_msgs/msg/WrenchStamped": lambda message: _wrench(message.wrench),
    "geometry_msgs/msg/TransformStamped": lambda message: {
        "": Value(np.array(pose_of(message.transform)), "pose", "m")
    },
    "nav_msgs/msg/Odometry": _odometry,
    "std_msgs/msg/String": _text,
    "std_msgs/msg/Bool": _scalar("?"),
    **{f"std_msgs/msg/{name}": _scalar(name.lower()) for name in _NUMBERS},
    **{f"std_msgs/msg/{name}MultiArray": _multi_array for name in _NUMBERS},
}
"""Converters from rosbags' decoded messages, by type."""


# --- Foxglove ----------------------------------------------------------------------------------

FOXGLOVE_TYPES = {
    "foxglove.RawImage": ("width", "height", "encoding", "step", "data"),
    "foxglove.CompressedImage": ("data", "format"),
    VIDEOS[1]: ("data", "format"),
}
"""Fields that are read, by type."""


def decode_foxglove(
    type_name: str, data: bytes | memoryview, numbers: dict[int, str] | None
) -> Message:
    """Decode a message of a type in `FOXGLOVE_TYPES`. Raises `ValueError` for invalid bytes.

    `numbers` maps field numbers of the protocol buffer to names; `None` for JSON.
    """
    message = _json(data) if numbers is None else _protobuf(memoryview(data), numbers)
    image = message.get("data", b"")
    if type_name == "foxglove.CompressedImage":
        return _encoded_image(bytes(image), str(message.get("format", "")))
    if type_name == VIDEOS[1]:
        return _video(bytes(image), str(message.get("format", "")))
    sizes = {name: message.get(name, 0) for name in ("width", "height", "step")}
    if not all(isinstance(size, int) for size in sizes.values()):
        raise ValueError(f"expected integer sizes, got {sizes}"[:200])
    encoding = str(message.get("encoding", ""))
    array = pixels(memoryview(image), encoding=encoding, big_endian=False, **sizes)
    return {"": Value(array, "image", _DEPTH_UNITS.get(encoding))}


def field_numbers(descriptors: bytes, type_name: str) -> dict[int, str]:
    """Return a message's field names by number, from a `FileDescriptorSet`.

    https://github.com/protocolbuffers/protobuf/blob/main/src/google/protobuf/descriptor.proto.
    Raises `ValueError` if the message or a required field is missing.
    """
    package, _, name = type_name.rpartition(".")
    for file in _children(memoryview(descriptors), 1):
        if _string(file, 2) != package:
            continue
        for message in _children(file, 4):
            if _string(message, 1) == name:
                names_by_number = {}
                for field in _children(message, 2):
                    number = next((v for n, _, v in fields(field) if n == 3), None)
                    if isinstance(number, int):
                        names_by_number[number] = _string(field, 1)
                if set(FOXGLOVE_TYPES[type_name]) <= {*names_by_number.values()}:
                    return names_by_number
    raise ValueError(f"missing definition of {type_name}, {', '.join(FOXGLOVE_TYPES[type_name])}")


def _protobuf(data: memoryview, numbers: dict[int, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for number, kind, value in fields(data):
        name = numbers.get(number)
        if kind in (FIXED32, FIXED64) and not isinstance(value, int):
            value = int.from_bytes(value, "little")
        if name in ("encoding", "format"):
            value = bytes(value).decode() if isinstance(value, memoryview) else ""  # type: ignore[assignment]
        if name is not None:
            values[name] = value
    if not isinstance(values.get("data", b""), (bytes, memoryview)):
        raise ValueError("expected bytes in the field data")
    return values


def _json(data: bytes | memoryview) -> dict[str, Any]:
    try:
        message = json.loads(bytes(data))
        if not isinstance(message, dict):
            raise ValueError("not an object")
        return {**message, "data": base64.b64decode(message.get("data", ""), validate=True)}
    except (TypeError, RecursionError) as error:
        raise ValueError(f"invalid JSON message: {error}") from error


def _children(message: memoryview, number: int) -> list[memoryview]:
    return [v for n, _, v in fields(message) if n == number and isinstance(v, memoryview)]


def _string(message: memoryview, number: int) -> str:
    texts = _children(message, number)
    return bytes(texts[-1]).decode() if texts else ""


READABLE = f"{', '.join(ROS_TYPES)} (cdr, ros1), {', '.join(FOXGLOVE_TYPES)} (protobuf, json)"
"""The supported message types, for errors."""
