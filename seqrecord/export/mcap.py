"""Export as ROS 2 recordings in MCAP files.

::

    DESTINATION/KEY/metadata.yaml     rosbag2 of version 9; an episode is a recording
    DESTINATION/KEY/NAME.mcap         NAME is the last part of KEY

ROS 2 plays the files, Foxglove shows them, and `seqrecord.sources.McapSource` packs them again.
Message types are from https://github.com/ros2/common_interfaces, written with the package rosbags.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import DestinationError, SchemaError
from seqrecord.export.files import disk_errors, new_folder
from seqrecord.feature_kinds import size_in
from seqrecord.indexing.opening import opened
from seqrecord.lazy import import_extra
from seqrecord.reading.dataset import DatasetLike
from seqrecord.reading.episode import Episode, values_in_order
from seqrecord.reading.filters import EpisodeFilter
from seqrecord.schema import FeatureSpec
from seqrecord.sources.common.specs import feature_name
from seqrecord.sources.mcap.source import LOG_TIME
from seqrecord.storage import local_path
from seqrecord.writing.convert_jobs import Meter, Progress

_VERSION = 9  # of rosbag2's metadata

_ENCODINGS = {("u1", 3): "rgb8", ("u1", 4): "rgba8", ("u1", 1): "mono8", ("u2", 1): "mono16"}
_SIGNS = {"u": "U", "i": "S", "f": "F"}
_IMAGE_SIDE = 8  # pixels; smaller arrays are not images
_POSES = ("pose", None)  # kinds of features that may be poses

MakeMessage = Callable[[Any, int], Any]
"""Makes a message from a frame's value and its time in ns."""


def to_mcap(
    dataset: DatasetLike,
    destination: str | PathLike[str],
    *,
    episodes: EpisodeFilter = None,
    features: Sequence[str] | None = None,
    fps: float | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write each episode as a rosbag2 folder with an MCAP file; returns the folders.

    A feature becomes a topic: `camera.left` becomes `/camera/left`. Message types:
    `sensor_msgs/Image` for arrays [H, W] and [H, W, 1 to 4] (`rgb8`, `mono8`, `mono16`, else
    `32FC1` and so on), `geometry_msgs/PoseStamped` for poses of seven float64, `std_msgs/String`
    for text, scalars of `std_msgs` for numbers, and `std_msgs/…MultiArray` with the shape as layout
    for other arrays. Lossless, except that `bool` arrays become `uint8`. A frame without a feature
    has no message of it. An episode's metadata is stored as JSON in the `custom_data` of
    `metadata.yaml`. Memory: 32 frames.

    Messages of frame i have the time `i / fps`. If all frames of an episode have a feature
    `log_time`, int64 [], it has the times instead, even if `features` lacks it; it does not become
    a topic. Its unit is ns if the dataset lacks one.

    Args:
        dataset: local path or URL, or an open dataset.
        destination: a local folder; each episode gets a folder below it, named by its key.
        episodes: keys, a glob, or a predicate on metadata; all by default.
        features: names of the features, all by default.
        fps: frames per second of episodes without their own.
        progress: called from this thread, several times per second.
        storage_options: for the filesystem that serves the dataset's URL.

    Raises `DestinationError` if a recording's folder is not empty or an episode has no times,
    `SchemaError` for a feature without a message type (bytes, complex numbers, float16) and for two
    features with the same topic, and `MissingPackageError` without rosbags.

    Example:
        from seqrecord import export

        folders = export.to_mcap("records/", "bags/", features=["image", "action"], fps=10)
    """
    rosbag2, store = _require_rosbags()
    root = local_path(destination, "destination")
    with opened(dataset, features=features, storage_options=storage_options) as reader:
        numbers, index = reader.find_episodes(episodes), reader.contents.index
        total = int(index.num_frames[numbers].sum())
        meter = Meter(total, reader.features.frame_nbytes, progress)
        topics = _topics(reader.features, store.types)
        stored = reader.contents.manifest.schema.active.get(LOG_TIME)
        clock = reader if stored is None or not _is_clock(stored) else reader.select([LOG_TIME])
        folders = []
        for key in map(str, index.keys.take(numbers).to_pylist()):
            folder = root / key
            episode = reader.episodes[key]
            times = _times(clock.episodes[key], fps)
            subject, first = "the recording's folder", "metadata.yaml"
            with disk_errors(subject, folder, key), new_folder(folder, subject, first, key) as new:
                _write(rosbag2, store, new, episode, topics, times, meter)
            folders.append(folder)
        meter.report()
        return folders


def _write(
    rosbag2: Any,
    store: Any,
    folder: Path,
    episode: Episode,
    topics: Mapping[str, tuple[str, str, MakeMessage]],
    times: npt.NDArray[np.int64],
    meter: Meter,
) -> None:
    bag = rosbag2.Writer(folder, version=_VERSION, storage_plugin=rosbag2.StoragePlugin.MCAP)
    with bag:
        bag.set_custom_data("seqrecord", json.dumps(dict(episode.metadata)))
        connections = {
            name: bag.add_connection(topic, kind, typestore=store)
            for name, (topic, kind, _) in topics.items()
        }
        frames = range(len(episode))
        values = {name: values_in_order(episode, name, frames) for name in topics}
        for time in times.tolist():
            for name, (_, kind, make) in topics.items():
                if (value := next(values[name])) is not None:
                    data = store.serialize_cdr(make(value, time), kind)
                    bag.write(connections[name], time, data)
            meter.add(1)


def _times(episode: Episode, fps: float | None) -> npt.NDArray[np.int64]:
    """Times of the frames in ns, int64 [T]."""
    spec = episode.features.get(LOG_TIME)
    if spec is not None and _is_clock(spec) and episode.present(LOG_TIME).all():
        read = episode.read(range(len(episode)), features=[LOG_TIME])[LOG_TIME]
        return np.asarray(read, np.int64) * _nanoseconds(spec)
    rate = episode.fps or fps
    if not rate or not 0 < rate < 1e9:
        raise DestinationError(
            "messages need times; pass fps (--fps), or add a feature log_time",
            episode=episode.key,
            expected="frames per second",
            got=rate,
        )
    times: npt.NDArray[np.int64] = (np.arange(len(episode)) * (1e9 / rate)).round().astype(np.int64)
    return times


def _nanoseconds(spec: FeatureSpec) -> int:
    """Nanoseconds in a unit of `log_time`. Raises `DestinationError` unless it is a whole
    number."""
    size = (size_in(spec.unit or "ns", "s") or 0.0) * 1e9
    if size < 1 or abs(size - round(size)) > 1e-6:
        raise DestinationError(
            "unit of log_time is not a multiple of nanoseconds; correct it with "
            "`seqrecord edit describe`",
            feature=LOG_TIME,
            expected="ns, us, ms or s",
            got=spec.unit,
        )
    return round(size)


def _is_clock(spec: FeatureSpec) -> bool:
    return spec.dtype == np.dtype("<i8") and spec.shape == ()


def _topics(
    features: Mapping[str, FeatureSpec], types: Any
) -> dict[str, tuple[str, str, MakeMessage]]:
    """Topic, message type and function that makes messages, by feature."""
    found: dict[str, tuple[str, str, MakeMessage]] = {}
    for name, spec in features.items():
        if name == LOG_TIME and _is_clock(spec):
            continue
        topic = "/" + feature_name(name).replace(".", "/").replace("-", "_")
        if other := next((n for n, (known, _, _) in found.items() if known == topic), None):
            raise SchemaError(
                "two features have the same topic", feature=name, got=f"{topic}, {other}"
            )
        found[name] = (topic, *_message(name, spec, types))
    return found


def _message(name: str, spec: FeatureSpec, types: Any) -> tuple[str, MakeMessage]:
    """Message type of a feature, and a function that makes its messages."""
    dtype = spec.dtype
    if spec.value == "text":
        text = types["std_msgs/msg/String"]
        return "std_msgs/msg/String", lambda value, _: text(data=value)
    if spec.value == "array" and dtype.kind in "biuf" and dtype != np.dtype("f2"):
        code = "u1" if dtype.kind == "b" else f"{dtype.kind}{dtype.itemsize}"
        if encoding := _encoding(code, spec.shape):
            return "sensor_msgs/msg/Image", partial(_image, types, encoding)
        if code == "f8" and spec.shape == (7,) and spec.kind in _POSES and "pose" in name:
            return "geometry_msgs/msg/PoseStamped", partial(_pose, types)
        if spec.shape == ():
            number = "Bool" if dtype.kind == "b" else _number(code)
            scalar = types[f"std_msgs/msg/{number}"]
            return f"std_msgs/msg/{number}", lambda value, _: scalar(data=value.item())
        kind = f"std_msgs/msg/{_number(code)}MultiArray"
        return kind, partial(_array, types, kind, np.dtype(code))
    raise SchemaError("no message type for this feature", feature=name, got=str(spec))


def _number(code: str) -> str:
    """Type name of a number in std_msgs, such as Float32 for `f4`."""
    kind = {"f": "Float", "i": "Int", "u": "UInt"}[code[0]]
    return f"{kind}{8 * int(code[1])}"


def _encoding(code: str, shape: tuple[int | None, ...]) -> str | None:
    """ROS encoding for images with such pixels; `None` for arrays that are not images."""
    sides, channels = shape[:2], shape[2] if len(shape) == 3 else 1
    if len(shape) not in (2, 3) or any(n is not None and n < _IMAGE_SIDE for n in sides):
        return None
    if channels is None or channels > 4 or (len(shape) == 3 and channels == 1):
        return None
    if named := _ENCODINGS.get((code, channels)):
        return named
    if code in ("u8", "i8"):
        return None
    return f"{8 * int(code[1])}{_SIGNS[code[0]]}C{channels}"


def _header(types: Any, time: int) -> Any:
    stamp = types["builtin_interfaces/msg/Time"](sec=time // 10**9, nanosec=time % 10**9)
    return types["std_msgs/msg/Header"](stamp=stamp, frame_id="")


def _image(types: Any, encoding: str, value: npt.NDArray[Any], time: int) -> Any:
    data = np.ascontiguousarray(value)
    return types["sensor_msgs/msg/Image"](
        header=_header(types, time),
        height=value.shape[0],
        width=value.shape[1],
        encoding=encoding,
        is_bigendian=0,
        step=data.nbytes // len(data),
        data=data.view(np.uint8).reshape(-1),
    )


def _pose(types: Any, value: npt.NDArray[Any], time: int) -> Any:
    x, y, z, *rotation = map(float, value)
    turned = dict(zip("xyzw", rotation, strict=True))
    pose = types["geometry_msgs/msg/Pose"](
        position=types["geometry_msgs/msg/Point"](x=x, y=y, z=z),
        orientation=types["geometry_msgs/msg/Quaternion"](**turned),
    )
    return types["geometry_msgs/msg/PoseStamped"](header=_header(types, time), pose=pose)


def _array(types: Any, kind: str, dtype: np.dtype[Any], value: npt.NDArray[Any], _: int) -> Any:
    strides = [int(np.prod(value.shape[i:])) for i in range(value.ndim)]
    dimensions = [
        types["std_msgs/msg/MultiArrayDimension"](label="", size=size, stride=stride)
        for size, stride in zip(value.shape, strides, strict=True)
    ]
    layout = types["std_msgs/msg/MultiArrayLayout"](dim=dimensions, data_offset=0)
    return types[kind](layout=layout, data=np.ascontiguousarray(value, dtype).reshape(-1))


def _require_rosbags() -> tuple[Any, Any]:
    """Import rosbags: its module rosbag2, and the message types of ROS 2."""
    why = "MCAP export needs rosbags, the extra `mcap`: pip install rosbags"
    typesys = import_extra("rosbags.typesys", why)
    return import_extra("rosbags.rosbag2", why), typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
