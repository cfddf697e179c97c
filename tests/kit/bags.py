"""ROS and MCAP recordings written by the formats' own libraries, with their expected content."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mcap.writer import Writer as McapWriter
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from tests.kit.datasets import encoded

STORE, STORE1 = get_typestore(Stores.ROS2_HUMBLE), get_typestore(Stores.ROS1_NOETIC)
VIDEO = "foxglove_msgs/msg/CompressedVideo"
IMAGE, IMU, JOINTS = (f"sensor_msgs/msg/{name}" for name in ("Image", "Imu", "JointState"))

Timed = tuple[str, int, Any]
"""Topic, time in ns, message."""


def message(type_name: str, *values: Any) -> Any:
    return STORE.types[type_name](*values)


def stamp(time: int) -> Any:
    return message("builtin_interfaces/msg/Time", time // 10**9, time % 10**9)


def header(time: int = 0, frame: str = "a frame") -> Any:
    return message("std_msgs/msg/Header", stamp(time), frame)


def image(pixels: npt.NDArray[Any], encoding: str, *, padding: int = 0, big: bool = False) -> Any:
    """sensor_msgs/Image whose rows end with `padding` unused bytes."""
    rows = np.ascontiguousarray(pixels.astype(pixels.dtype.newbyteorder(">" if big else "<")))
    rows = rows.view(np.uint8).reshape(len(pixels), -1)
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=7)
    height, width = pixels.shape[:2]
    return message(
        IMAGE, header(), height, width, encoding, int(big), rows.shape[1], rows.reshape(-1)
    )


def compressed(data: bytes, format_: str) -> Any:
    return message(
        "sensor_msgs/msg/CompressedImage", header(), format_, np.frombuffer(data, np.uint8)
    )


def imu(values: Sequence[float], *, oriented: bool = True) -> Any:
    """sensor_msgs/Imu with 10 numbers: orientation, angular velocity, linear acceleration."""
    none = np.full(9, 0.5)
    unknown = none.copy()
    unknown[0] = -1
    return message(
        IMU,
        header(),
        message("geometry_msgs/msg/Quaternion", *values[:4]),
        none if oriented else unknown,
        message("geometry_msgs/msg/Vector3", *values[4:7]),
        none,
        message("geometry_msgs/msg/Vector3", *values[7:]),
        none,
    )


def joints(names: Sequence[str], position: Sequence[float], effort: Sequence[float] = ()) -> Any:
    return message(
        JOINTS, header(), list(names), np.array(position, float), np.zeros(0), np.array(effort)
    )


def camera_info(
    size: tuple[int, int],
    k: Sequence[float],
    p: Sequence[float] = (0,) * 4,
    *,
    skew: float = 0,
    binning: int = 0,
    roi: Sequence[int] = (0, 0, 0, 0),
    time: int = 0,
    model: str = "plumb_bob",
    coefficients: Sequence[float] = (0.1, -0.2, 0.001, 0.002, 0.0),
) -> Any:
    """sensor_msgs/CameraInfo of (height, width), with fx, fy, cx, cy of K and P."""
    (fx, fy, cx, cy), (px, py, pcx, pcy) = k, p
    matrices = (
        np.array([fx, skew, cx, 0, fy, cy, 0, 0, 1.0]),
        np.eye(3).reshape(-1),
        np.array([px, 0, pcx, 0, 0, py, pcy, 0, 0, 0, 1.0, 0]),
    )
    region = message("sensor_msgs/msg/RegionOfInterest", *roi, False)
    name = "sensor_msgs/msg/CameraInfo"
    lens = model, np.array(coefficients, np.float64)
    values = (*size, *lens, *matrices, binning, binning, region)
    return message(name, header(time), *values)


def points(rows: npt.NDArray[Any], *, height: int = 1, padding: int = 0) -> Any:
    """sensor_msgs/PointCloud2 of rows of a structured dtype; rows of the cloud end in `padding`."""
    kinds = "i1 u1 i2 u2 i4 u4 f4 f8".split()  # noqa: SIM905
    is_big = any(rows.dtype[name].base.byteorder == ">" for name in rows.dtype.names or ())
    fields = [
        message(
            *("sensor_msgs/msg/PointField", name, at[1]),
            kinds.index(f"{at[0].base.kind}{at[0].base.itemsize}") + 1,
            int(np.prod(at[0].shape)),
        )
        for name, at in (rows.dtype.fields or {}).items()
    ]
    step = rows.dtype.itemsize
    data = np.frombuffer(rows.tobytes(), np.uint8).reshape(height, -1)
    data = np.pad(data, ((0, 0), (0, padding)), constant_values=9)
    name, width = "sensor_msgs/msg/PointCloud2", len(rows) // height
    sizes = (step, step * width + padding, data.reshape(-1), True)
    return message(name, header(), height, width, fields, is_big, *sizes)


def transform(parent: str, child: str, pose: Sequence[float], time: int) -> Any:
    """geometry_msgs/TransformStamped with x, y, z and a quaternion x, y, z, w."""
    moved = message(
        "geometry_msgs/msg/Transform",
        message("geometry_msgs/msg/Vector3", *pose[:3]),
        message("geometry_msgs/msg/Quaternion", *pose[3:]),
    )
    return message("geometry_msgs/msg/TransformStamped", header(time, parent), child, moved)


def png(pixels: npt.NDArray[Any]) -> bytes:
    return encoded(pixels)


def jpeg(pixels: npt.NDArray[Any]) -> bytes:
    return encoded(pixels, kind="jpeg")


def write_bag(folder: Path, messages: Sequence[Timed], *, sqlite: bool = False) -> Path:
    """Write a rosbag2 folder with MCAP or SQLite storage; returns the file of messages."""
    plugin = StoragePlugin.SQLITE3 if sqlite else StoragePlugin.MCAP
    with Writer(folder, version=9, storage_plugin=plugin) as writer:
        connections = {}
        for topic, time, each in messages:
            name = each.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, name, typestore=STORE)
            writer.write(connections[topic], time, STORE.serialize_cdr(each, name))
    (path,) = (each for each in folder.iterdir() if each.suffix in (".mcap", ".db3"))
    return path


def write_ros1(path: Path, messages: Sequence[Timed], compression: str | None = None) -> Path:
    """Write a bag of ROS 1, with chunks of BZ2 or LZ4; takes messages of ROS 2."""
    register(STORE1)
    writer = Writer1(path)
    if compression:
        writer.set_compression(Writer1.CompressionFormat[compression])
    with writer:
        connections = {}
        for topic, time, each in messages:
            name = each.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, name, typestore=STORE1)
            writer.write(connections[topic], time, STORE1.serialize_ros1(ros1(each), name))
    return path


def register(store: Any) -> None:
    """Add messages that rosbags lacks: that of `/tf` for ROS 1, and Foxglove's video."""
    lacking = {
        "tf2_msgs/msg/TFMessage": "geometry_msgs/TransformStamped[] transforms",
        VIDEO: "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format",
    }
    for name in lacking.keys() - store.fielddefs.keys():
        store.register(get_types_from_msg(lacking[name], name))


def video_message(packet: bytes, format_: str, time: int = 0) -> Any:
    """foxglove_msgs/CompressedVideo"""
    register(STORE)
    return message(VIDEO, stamp(time), "a frame", np.frombuffer(packet, np.uint8), format_)


def ros1(value: Any) -> Any:
    """The message of ROS 1 with the values of one of ROS 2."""
    if isinstance(value, list):
        return [ros1(each) for each in value]
    if not hasattr(value, "__msgtype__"):
        return value
    values = vars(value)
    if value.__msgtype__ == "std_msgs/msg/Header":
        values = {"seq": 3, **values}
    return STORE1.types[value.__msgtype__](*map(ros1, values.values()))


def write_mcap(
    path: Path,
    messages: Sequence[Timed],
    *,
    definitions: bool = True,
    add: Callable[[McapWriter], object] = lambda _: None,
    **options: Any,
) -> Path:
    """Write ROS 2 messages by the mcap package, in small chunks by default.

    Calls `add` with the writer after the last message.
    """
    with path.open("wb") as stream:
        writer = McapWriter(stream, **{"chunk_size": 2000, **options})
        writer.start("ros2", "a test")
        channels: dict[str, int] = {}
        for topic, time, each in messages:
            name = each.__msgtype__
            if topic not in channels:
                text = STORE.generate_msgdef(name, ros_version=2)[0] if definitions else ""
                schema = writer.register_schema(name, "ros2msg", text.encode())
                channels[topic] = writer.register_channel(topic, "cdr", schema)
            data = bytes(STORE.serialize_cdr(each, name))
            writer.add_message(channels[topic], time, data, time)
        add(writer)
        writer.finish()  # type: ignore[no-untyped-call]
    return path


def write_json(path: Path, messages: Sequence[tuple[str, str, int, dict[str, Any]]]) -> Path:
    """Write Foxglove messages (topic, type, time, message) as JSON to an MCAP file."""
    encoded: list[Any] = [(*about, json.dumps(each).encode()) for *about, each in messages]
    return write_raw(path, encoded, "json", "jsonschema", b"{}")


def write_raw(
    path: Path,
    messages: Sequence[tuple[str, str, int, bytes]],
    encoding: str = "cdr",
    schema_encoding: str = "ros2msg",
    definition: bytes = b"",
) -> Path:
    """Write encoded messages (topic, type, time, bytes) to an MCAP file."""
    with path.open("wb") as stream:
        writer = McapWriter(stream)
        writer.start()
        for topic, name, time, data in messages:
            schema = writer.register_schema(name, schema_encoding, definition)
            channel = writer.register_channel(topic, encoding, schema)
            writer.add_message(channel, time, data, time)
        writer.finish()  # type: ignore[no-untyped-call]
    return path


def write_channels(
    path: Path, name: str, encoding: str, channels: Sequence[tuple[str, bytes, bytes]]
) -> Path:
    """Write an MCAP file whose topic `/x` has a channel per language, definition and message.

    The channels send twice, in turn, at 1, 2, … ns.
    """
    with path.open("wb") as stream:
        writer = McapWriter(stream)
        writer.start()
        numbers = []
        for language, definition, _ in channels:
            schema = writer.register_schema(name, language, definition)
            numbers.append(writer.register_channel("/x", encoding, schema))
        for time in range(1, 2 * len(channels) + 1):
            place = (time - 1) % len(channels)
            writer.add_message(numbers[place], time, channels[place][-1], time)
        writer.finish()  # type: ignore[no-untyped-call]
    return path
