"""ROS 2 messages in CDR, of the types that become features.

CDR is the serialization of DDS (OMG DDS-XTYPES, "plain" version 1): a header of 4 bytes that says
the byte order, then the fields, each aligned to its size counted from behind the header. The
messages' fields are those of https://github.com/ros2/common_interfaces.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.sources.images import pixels

__all__ = ["NUMBERS", "ROS_TYPES", "Encoded", "Message", "check_definition", "decode_ros"]


@dataclass(frozen=True)
class Encoded:
    """The bytes of a PNG or JPEG."""

    data: bytes


Value: TypeAlias = "npt.NDArray[Any] | Encoded | str"


@dataclass(frozen=True)
class Message:
    """What of a message becomes features: by the end of the feature's name, which may be empty.

    `kind` says what they are, and `units` are those of the ones that have one. `names` are those of
    the elements of 1-dimensional arrays, where the message names them.
    """

    values: dict[str, Value]
    kind: str | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()


def decode_ros(type_name: str, data: bytes | memoryview) -> Message:
    """A message of one of `ROS_TYPES`; raises `ValueError` for bytes that are none."""
    try:
        return ROS_TYPES[type_name][1](_Cdr(memoryview(data)))
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a {type_name}: {error}") from error


def check_definition(type_name: str, definition: str) -> None:
    """Raise `ValueError` unless the message's own definition has the fields that are decoded.

    Only the message itself is compared: what lies behind `====` defines the types in it.
    """
    want = [each.strip() for each in ROS_TYPES[type_name][0].split(";")]
    got = []
    for raw in definition.split("=" * 20)[0].splitlines():
        words = raw.partition("#")[0].split()
        if len(words) >= 2 and "=" not in raw.partition("#")[0]:  # else a constant
            got.append(f"{words[0].split('/')[-1]} {words[1]}")
    if got != want:
        raise ValueError(
            f"another definition of {type_name} than ROS's: {'; '.join(got)[:200]}, "
            f"expected {'; '.join(want)}"
        )


class _Cdr:
    """Reads fields one after the other; `struct.error` or `ValueError` behind the end."""

    def __init__(self, data: memoryview) -> None:
        if len(data) < 4 or data[0] != 0 or data[1] not in (0, 1):
            begin = bytes(data[:4]).hex()
            if begin == "28b52ffd":
                raise ValueError("a message compressed by itself; `ros2 bag convert` undoes that")
            raise ValueError(f"not plain CDR of version 1: it begins with {begin}")
        self._data, self._at = data[4:], 0
        self.order = "<" if data[1] else ">"

    def number(self, code: str) -> int:
        size = struct.calcsize(code)
        self._at = -(-self._at // size) * size
        (value,) = struct.unpack_from(self.order + code, self._data, self._at)
        self._at += size
        return int(value)

    def doubles(self, count: int) -> npt.NDArray[np.float64]:
        return self.array("f8", count)

    def array(self, code: str, count: int) -> npt.NDArray[Any]:
        dtype = np.dtype(self.order + code)
        if count:  # an empty sequence is not aligned
            self._at = -(-self._at // dtype.itemsize) * dtype.itemsize
        if count * dtype.itemsize > len(self._data) - self._at:
            raise ValueError(f"{count} numbers in the last {len(self._data) - self._at} bytes")
        values = np.frombuffer(self._data, dtype, count, self._at if count else 0)
        self._at += count * dtype.itemsize
        return values.astype(dtype.newbyteorder("<"))

    def double_list(self) -> npt.NDArray[np.float64]:
        return self.doubles(self.number("I"))

    def bytes_(self) -> memoryview:
        size = self.number("I")
        if size > len(self._data) - self._at:
            raise ValueError(f"{size} bytes in the last {len(self._data) - self._at}")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        return bytes(self.bytes_()).rstrip(b"\0").decode()

    def texts(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.number("I")))

    def header(self) -> None:
        """std_msgs/Header: its time is the sender's, and times here are the recorder's."""
        self.number("i")
        self.number("I")
        self.text()


_IMAGE_FIELDS = (
    "Header header; uint32 height; uint32 width; string encoding; uint8 is_bigendian; "
    "uint32 step; uint8[] data"
)
_IMU_FIELDS = (
    "Header header; Quaternion orientation; float64[9] orientation_covariance; "
    "Vector3 angular_velocity; float64[9] angular_velocity_covariance; "
    "Vector3 linear_acceleration; float64[9] linear_acceleration_covariance"
)


def _image(cdr: _Cdr) -> Message:
    cdr.header()
    height, width = cdr.number("I"), cdr.number("I")
    encoding, big_endian, step = cdr.text(), bool(cdr.number("B")), cdr.number("I")
    image = pixels(
        cdr.bytes_(),
        height=height,
        width=width,
        encoding=encoding,
        step=step,
        big_endian=big_endian,
    )
    return Message({"": image}, "image")


def _compressed_image(cdr: _Cdr) -> Message:
    cdr.header()
    format_, data = cdr.text(), bytes(cdr.bytes_())
    if "compressedDepth" in format_:
        if not format_.startswith("16UC1"):
            raise ValueError(f"quantized depth, which is not decoded: {format_[:80]}")
        data = data[12:]  # a header of numbers that only quantized depth uses
    return Message({"": Encoded(data)}, "image")


def _imu(cdr: _Cdr) -> Message:
    cdr.header()
    values: dict[str, Value] = {}
    for name, count in (("orientation", 4), ("angular_velocity", 3), ("linear_acceleration", 3)):
        value, covariance = cdr.doubles(count), cdr.doubles(9)
        if covariance[0] != -1:  # which says that it is not measured
            values[name] = value
    units = {"angular_velocity": "rad/s", "linear_acceleration": "m/s^2"}
    return Message(values, "imu", units)


def _joint_state(cdr: _Cdr) -> Message:
    cdr.header()
    names = cdr.texts()
    values: dict[str, Value] = {}
    for name in ("position", "velocity", "effort"):
        value = cdr.double_list()
        if len(value):
            values[name] = value
            if len(value) != len(names):
                raise ValueError(f"{len(value)} of {name} for {len(names)} joints")
    return Message(values, "state", names=names)


def _pose(cdr: _Cdr) -> Message:
    cdr.header()
    return Message({"": cdr.doubles(7)}, "pose", {"": "m"})


def _twist(cdr: _Cdr) -> Message:
    return Message({"": cdr.doubles(6)})


def _twist_stamped(cdr: _Cdr) -> Message:
    cdr.header()
    return _twist(cdr)


def _odometry(cdr: _Cdr) -> Message:
    cdr.header()
    cdr.text()
    pose, _, twist = cdr.doubles(7), cdr.doubles(36), cdr.doubles(6)
    return Message({"pose": pose, "twist": twist}, "pose", {"pose": "m"})


def _text(cdr: _Cdr) -> Message:
    return Message({"": cdr.text()}, "text")


def _scalar(code: str) -> Callable[[_Cdr], Message]:
    return lambda cdr: Message({"": cdr.array(code, 1).reshape(())})


def _multi_array(code: str) -> Callable[[_Cdr], Message]:
    """An array of the shape that its layout says; one without dimensions is [N]."""

    def decode(cdr: _Cdr) -> Message:
        shape = []
        for _ in range(cdr.number("I")):
            cdr.text()
            shape.append(cdr.number("I"))
            cdr.number("I")  # the stride, which follows from the sizes
        if cdr.number("I"):
            raise ValueError("an array with an offset")
        values = cdr.array(code, cdr.number("I"))
        if shape and math.prod(shape) != len(values):
            raise ValueError(f"{len(values)} numbers in an array of {shape}")
        return Message({"": values.reshape(shape or [len(values)])})

    return decode


NUMBERS = {
    "Int8": "i1",
    "Int16": "i2",
    "Int32": "i4",
    "Int64": "i8",
    "UInt8": "u1",
    "UInt16": "u2",
    "UInt32": "u4",
    "UInt64": "u8",
    "Float32": "f4",
    "Float64": "f8",
}
"""The numbers of std_msgs: dtypes by the beginning of the types' names."""

ROS_TYPES: dict[str, tuple[str, Callable[[_Cdr], Message]]] = {
    "sensor_msgs/msg/Image": (_IMAGE_FIELDS, _image),
    "sensor_msgs/msg/CompressedImage": (
        "Header header; string format; uint8[] data",
        _compressed_image,
    ),
    "sensor_msgs/msg/Imu": (_IMU_FIELDS, _imu),
    "sensor_msgs/msg/JointState": (
        "Header header; string[] name; float64[] position; float64[] velocity; float64[] effort",
        _joint_state,
    ),
    "geometry_msgs/msg/PoseStamped": ("Header header; Pose pose", _pose),
    "geometry_msgs/msg/Twist": ("Vector3 linear; Vector3 angular", _twist),
    "geometry_msgs/msg/TwistStamped": ("Header header; Twist twist", _twist_stamped),
    "nav_msgs/msg/Odometry": (
        "Header header; string child_frame_id; PoseWithCovariance pose; TwistWithCovariance twist",
        _odometry,
    ),
    "std_msgs/msg/String": ("string data", _text),
    "std_msgs/msg/Bool": ("bool data", _scalar("?")),
    **{
        f"std_msgs/msg/{name}": (f"{name.lower()} data", _scalar(code))
        for name, code in NUMBERS.items()
    },
    **{
        f"std_msgs/msg/{name}MultiArray": (
            f"MultiArrayLayout layout; {name.lower()}[] data",
            _multi_array(code),
        )
        for name, code in NUMBERS.items()
    },
}
"""By name: the fields of the definition, and what decodes them."""
