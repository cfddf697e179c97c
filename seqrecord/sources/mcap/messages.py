"""Decode messages: ROS 2 in CDR, and images in Foxglove's schemas.

The package rosbags decodes ROS messages, with the fields of
https://github.com/ros2/common_interfaces. Foxglove's messages are protocol buffers, or JSON with
base64 for bytes: https://docs.foxglove.dev/docs/sdk/schemas.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.lazy import import_extra
from seqrecord.sources.common.images import pixels
from seqrecord.sources.mcap.bags import Topic
from seqrecord.sources.mcap.protobuf import fields


@dataclass(frozen=True)
class Encoded:
    """The bytes of a PNG or JPEG."""

    data: bytes


@dataclass(frozen=True)
class Value:
    """A value of a message. `names` name the elements along the last axis, if known.

    `camera` is the camera of intrinsics, in the form of the metadata `camera`.
    """

    data: npt.NDArray[Any] | Encoded | str
    kind: str | None = None
    unit: str | None = None
    names: tuple[str, ...] = ()
    camera: Mapping[str, Any] = field(default_factory=dict)


Message: TypeAlias = "dict[str, Value]"
"""The values of a message by feature name suffix, which may be empty."""


def can_read(topic: Topic) -> bool:
    """Return whether messages of this topic are supported."""
    if topic.encoding == "cdr":
        return topic.type in ROS_TYPES
    return topic.encoding in ("protobuf", "json") and topic.type in FOXGLOVE_TYPES


def decoder(topic: Topic, path: Path) -> Callable[[bytes, Path], Message]:
    """Return a decoder for messages of a supported topic: bytes and file to `Message`.

    Both raise `SourceError`; this function if the file's definition of the type differs.
    """
    numbers = None
    try:
        if topic.encoding == "protobuf":
            numbers = field_numbers(topic.definition, topic.type)
        elif topic.definition and topic.definition_encoding == "ros2msg":
            check_definition(topic.type, topic.definition.decode(errors="replace"))
    except ValueError as error:
        raise SourceError(str(error)[:500], file=str(path), got=topic.name[:200]) from error

    def decode(data: bytes, file: Path) -> Message:
        try:
            if topic.encoding == "cdr":
                return decode_ros(topic.type, data)
            return decode_foxglove(topic.type, data, numbers)
        except ValueError as error:
            raise SourceError(
                "cannot decode a message",
                file=str(file),
                expected=topic.name,
                got=str(error)[:500],
            ) from error

    return decode


# --- ROS ---------------------------------------------------------------------------------------


def decode_ros(type_name: str, data: bytes | memoryview) -> Message:
    """Decode a message of a type in `ROS_TYPES`. Raises `ValueError` for invalid bytes."""
    store = _store()
    if bytes(data[:4]) == b"\x28\xb5\x2f\xfd":
        raise ValueError("compressed message; decompress by `ros2 bag convert`")
    try:
        message = store.deserialize_cdr(memoryview(data), type_name)
    except Exception as error:  # rosbags raises many types for invalid bytes
        raise ValueError(f"not a {type_name}: {error}") from error
    return ROS_TYPES[type_name](message)


def check_definition(type_name: str, definition: str) -> None:
    """Raise `ValueError` if the message's own definition has other fields than the decoder expects.

    Only the message itself is compared, not the nested types after `====`.
    """
    want = _fields(_store().generate_msgdef(type_name, ros_version=2)[0])
    if (got := _fields(definition)) != want:
        raise ValueError(
            f"the definition of {type_name} differs from ROS's: got {got[:200]}, expected {want}"
        )


def _fields(definition: str) -> str:
    """Return the fields as text: `Header header; uint32 height`."""
    found = []
    for raw in definition.split("=" * 20)[0].splitlines():
        line = raw.partition("#")[0]
        words = line.split()
        if len(words) >= 2 and "=" not in line:  # else a constant
            found.append(f"{words[0].split('/')[-1]} {words[1]}")
    return "; ".join(found)


@cache
def _store() -> Any:
    hint = "ROS messages need rosbags, the extra `mcap`: pip install rosbags"
    types = import_extra("rosbags.typesys", hint)
    return types.get_typestore(types.Stores.ROS2_HUMBLE)


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
        if not message.format.startswith("16UC1"):
            raise ValueError(f"unsupported quantized depth: {message.format[:80]}")
        data = data[12:]  # a header used by quantized depth only
        return {"": Value(Encoded(data), "depth", "mm")}
    return {"": Value(Encoded(data), "image")}


def _camera_info(message: Any) -> Message:
    """Return the intrinsics of raw images, and of `rectified` ones; none if uncalibrated (K = 0).

    https://github.com/ros2/common_interfaces/blob/rolling/sensor_msgs/msg/CameraInfo.msg: K refers
    to all pixels of the sensor, before a region of interest and binning.
    """
    roi = message.roi
    crop = (roi.x_offset, roi.y_offset, roi.width or message.width, roi.height or message.height)
    if max(message.binning_x, message.binning_y) > 1:
        raise ValueError("unsupported camera: K before binning of pixels")
    if crop != (0, 0, message.width, message.height):
        raise ValueError("unsupported camera: K of a sensor with a region of interest")
    found: Message = {}
    raw = {
        "distortion_model": message.distortion_model,
        "distortion_coefficients": _own(message, "d").tolist(),
    }
    for suffix, matrix, more in (("", "k", raw), ("rectified", "p", {})):
        (fx, skew, cx), (_, fy, cy) = _own(message, matrix).reshape(3, -1)[:2, :3].tolist()
        if skew:
            raise ValueError(f"unsupported camera: {matrix.upper()} with the skew {skew}")
        if fx and fy:
            camera = {"fx": fx, "fy": fy, "cx": cx, "cy": cy}
            size = {"width": message.width, "height": message.height}
            values = np.array([*camera.values()], "<f8")
            found[suffix] = Value(values, "intrinsics", "px", camera={**camera, **size, **more})
    return found


def _own(message: Any, name: str) -> Any:
    """Return a field whose name is in capitals in ROS 1."""
    return getattr(message, name) if hasattr(message, name) else getattr(message, name.upper())


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
            if len(value) != len(names):
                raise ValueError(f"{name}: {len(value)} values for {len(names)} joints")
    return values


def _pose(message: Any) -> Message:
    pose = message.pose
    return {"": Value(_numbers(pose.position, pose.orientation), "pose", "m")}


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
    shape = [each.size for each in message.layout.dim]
    if message.layout.data_offset:
        raise ValueError("unsupported array with an offset")
    if shape and math.prod(shape) != len(values):
        raise ValueError(f"expected an array of shape {shape}, got {len(values)} numbers")
    return {"": Value(values.astype(values.dtype.newbyteorder("<")).reshape(shape or -1))}


CAMERA_INFO = "sensor_msgs/msg/CameraInfo"

_NUMBERS = "Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64 Float32 Float64".split()  # noqa: SIM905
"""The number types of std_msgs, named like dtypes."""

ROS_TYPES: dict[str, Callable[[Any], Message]] = {
    "sensor_msgs/msg/Image": _image,
    "sensor_msgs/msg/CompressedImage": _compressed_image,
    CAMERA_INFO: _camera_info,
    "sensor_msgs/msg/Imu": _imu,
    "sensor_msgs/msg/JointState": _joint_state,
    "geometry_msgs/msg/PoseStamped": _pose,
    "geometry_msgs/msg/Twist": _twist,
    "geometry_msgs/msg/TwistStamped": lambda message: _twist(message.twist),
    "geometry_msgs/msg/Wrench": _wrench,
    "geometry_msgs/msg/WrenchStamped": lambda message: _wrench(message.wrench),
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
}
"""Fields that are read, by type."""


def decode_foxglove(
    type_name: str, data: bytes | memoryview, numbers: dict[int, str] | None
) -> Message:
    """Decode a message of a type in `FOXGLOVE_TYPES`. Raises `ValueError` for invalid bytes.

    `numbers` maps field numbers of the protocol buffer to names; `None` for JSON.
    """
    found = _json(data) if numbers is None else _protobuf(memoryview(data), numbers)
    image = found.get("data", b"")
    if type_name == "foxglove.CompressedImage":
        return {"": Value(Encoded(bytes(image)), "image")}
    sizes = {name: found.get(name, 0) for name in ("width", "height", "step")}
    if not all(isinstance(size, int) for size in sizes.values()):
        raise ValueError(f"expected integer sizes, got {sizes}"[:200])
    encoding = str(found.get("encoding", ""))
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
                found = {}
                for each in _children(message, 2):
                    number = next((v for n, _, v in fields(each) if n == 3), None)
                    if isinstance(number, int):
                        found[number] = _string(each, 1)
                if set(FOXGLOVE_TYPES[type_name]) <= {*found.values()}:
                    return found
    raise ValueError(f"missing definition of {type_name}, {', '.join(FOXGLOVE_TYPES[type_name])}")


def _protobuf(data: memoryview, numbers: dict[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, _, value in fields(data):
        name = numbers.get(number)
        if name in ("encoding", "format"):
            value = bytes(value).decode() if isinstance(value, memoryview) else ""  # type: ignore[assignment]
        if name is not None:
            found[name] = value
    if not isinstance(found.get("data", b""), (bytes, memoryview)):
        raise ValueError("expected bytes in the field data")
    return found


def _json(data: bytes | memoryview) -> dict[str, Any]:
    try:
        found = json.loads(bytes(data))
        if not isinstance(found, dict):
            raise ValueError("not an object")
        return {**found, "data": base64.b64decode(found.get("data", ""), validate=True)}
    except (TypeError, RecursionError) as error:
        raise ValueError(f"invalid JSON message: {error}") from error


def _children(message: memoryview, number: int) -> list[memoryview]:
    return [v for n, _, v in fields(message) if n == number and isinstance(v, memoryview)]


def _string(message: memoryview, number: int) -> str:
    found = _children(message, number)
    return bytes(found[-1]).decode() if found else ""


READABLE = f"{', '.join(ROS_TYPES)} (cdr), {', '.join(FOXGLOVE_TYPES)} (protobuf, json)"
"""The supported message types, for errors."""
