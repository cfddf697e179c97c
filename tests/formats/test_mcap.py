"""MCAP files and rosbag2 folders: alignment, all types, broken files."""

from __future__ import annotations

import base64
import functools
import json
import logging
import math
import re
import sqlite3
import struct
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import example, given
from hypothesis import strategies as st
from mcap.writer import CompressionType, IndexType
from rosbags.rosbag1 import Writer as Writer1

import seqrecord
from seqrecord import EncodedImage, open_source
from seqrecord.errors import SourceError
from seqrecord.sources import McapSource, inventory_of
from tests.formats.format_cases.mcap import (
    CAMERA,
    CASES,
    MS,
    START,
    pictures,
    recorded_frames,
    recording,
)
from tests.formats.tf_records import messages_of
from tests.formats.video_gops import gops_of
from tests.kit.bags import (
    IMAGE,
    STORE,
    STORE1,
    camera_info,
    compressed,
    header,
    image,
    imu,
    joints,
    jpeg,
    message,
    png,
    points,
    ros1,
    transform,
    video_message,
    write_bag,
    write_channels,
    write_json,
    write_mcap,
    write_raw,
    write_ros1,
)
from tests.kit.command_line import run
from tests.kit.datasets import encoded
from tests.kit.source_faults import frames_of
from tests.kit.video_file_data import QUIET, decoded, write_video
from tests.kit.video_file_data import pictures as scenes

OPTIONS: dict[str, dict[str, Any]] = {
    "mcap": {},
    "lz4": {"compression": CompressionType.LZ4},
    "no chunks": {"use_chunking": False},
    "no index": {"index_types": IndexType.NONE},
    "no summary": {
        "use_statistics": False, "index_types": IndexType.NONE, "repeat_channels": False,
    },
}  # fmt: skip
KINDS = ["rosbag2", "sqlite", "ros1", *OPTIONS]


def write(path: Path, messages: list[tuple[str, int, Any]], kind: str) -> Path:
    if kind in OPTIONS:
        write_mcap(path / "run.mcap", messages, **OPTIONS[kind])
    elif kind == "ros1":
        write_ros1(path / "run.bag", messages)
    else:
        write_bag(path / "run", messages, sqlite=kind == "sqlite")
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_every_container(tmp_path: Path, kind: str) -> None:
    source = open_source(write(tmp_path, recording(), kind), clock=CAMERA)
    [info] = source.episodes()
    assert (info.key, info.num_frames, info.fps) == ("run", 5, 10.0)
    assert info.metadata["topics"] == {
        CAMERA: {"messages": 5, "used": 5, "dropped": 0, "frames_without": 0},
        "/imu/data": {"messages": 50, "used": 5, "dropped": 45, "frames_without": 0},
        "/joint_states": {"messages": 3, "used": 3, "dropped": 0, "frames_without": 0},
    }
    assert info.metadata["names"]["joint_states.position"] == ["a", "b"]
    CASES["mcap"].assert_frames(frames_of(source), recorded_frames())


def test_alignments_and_clocks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last message within a tolerance; another clock; one warning about dropped messages."""
    path = write(tmp_path, recording(), "mcap")
    source = open_source(path, clock=CAMERA, align="last", tolerance=0.06)
    frames = frames_of(source)  # at 0, 100, 200, 300, 400 ms; joints are 0, 100, 200, 50, 150 old
    assert ["joint_states.position" in frame for frame in frames] == [
        True,
        *(False,) * 2,
        True,
        False,
    ]
    topics = source.episodes()[0].metadata["topics"]
    assert topics["/joint_states"] == {
        "messages": 3, "used": 2, "dropped": 1, "frames_without": 3,
    }  # fmt: skip
    assert topics["/imu/data"]["frames_without"] == 1  # delayed by 20 ms
    source = open_source(path, clock="/imu/data", map={"image": CAMERA, "imu": "/imu/data"})
    frames = frames_of(source)
    assert [frame["log_time"] - START for frame in frames] == [*range(20 * MS, 520 * MS, 10 * MS)]
    assert [frame["imu.orientation"][0] for frame in frames] == [*range(0, 500, 10)]
    assert ["image" in frame for frame in frames] == [True] * 49 + [False]  # the last is at 400 ms
    assert "joint_states.position" not in source.schema()
    source = open_source(path, clock=CAMERA)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "seqrecord"):
        source.episodes()
        source.episodes()
    [message] = caplog.messages
    assert f"45 of 58 messages dropped: frames are at the times of {CAMERA}" in message


@pytest.mark.parametrize(
    "names",
    [["joint_states.position"], ["log_time", "imu.data.orientation", "joint_states.position"],
     ["log_time"], ["camera.image_raw"]],
)  # fmt: skip
def test_selected_features_do_not_change_the_frames(tmp_path: Path, names: list[str]) -> None:
    path = write_mcap(tmp_path / "a.mcap", recording())
    source = open_source(path, features=names)
    assert source.episodes()[0].metadata["clock"] == CAMERA
    want = [
        {name: frame[name] for name in names if name in frame}
        for frame in frames_of(open_source(path))
    ]
    np.testing.assert_equal(frames_of(source), want)
    seqrecord.convert(source, tmp_path / "r", workers=1)
    with seqrecord.open(tmp_path / "r") as dataset:
        assert len(dataset.episodes["a"]) == len(want) == 5


def test_a_clock_that_only_the_selection_determines(tmp_path: Path) -> None:
    """Of two image topics the selected one; else the error of all features."""
    rear = [("/rear", time + 5 * MS, each) for topic, time, each in recording() if topic == CAMERA]
    messages = sorted([*recording(), *rear], key=lambda each: each[1])
    path = write_mcap(tmp_path / "a.mcap", messages)
    for names, clock in (
        (["rear"], "/rear"),
        (["imu.data.orientation", "rear", "log_time"], "/rear"),
        (["joint_states.position", "joint_states.effort"], "/joint_states"),
    ):
        assert open_source(path, features=names).episodes()[0].metadata["clock"] == clock
    errors = []
    two = ["imu.data.orientation", "joint_states.position"]
    for selection in (None, ["rear", "camera.image_raw"], two, ["log_time"]):
        with pytest.raises(SourceError, match=r"no clock topic; choose .*clock=TOPIC") as caught:
            open_source(path, features=selection).episodes()
        errors.append(str(caught.value))
    assert errors == errors[:1] * 4
    other = [message for message in recording() if message[0] != CAMERA]
    with pytest.raises(SourceError, match=r"no clock topic; .*got: /imu/data, /joint_states"):
        open_source(write_mcap(path, other), features=two).episodes()
    assert open_source(path, features=two[:1]).episodes()[0].num_frames == 50


def test_the_clock_when_a_topic_cannot_be_read(tmp_path: Path) -> None:
    """A topic that is left out is no clock, also if features are selected."""
    yuv = [
        ("/raw", time + 5 * MS, image(each.data.reshape(6, 8, 3)[..., :2], "yuv422_yuy2"))
        for topic, time, each in recording()
        if topic == CAMERA
    ]
    messages = sorted([*recording(), *yuv], key=lambda each: each[1])
    path = write_mcap(tmp_path / "a.mcap", messages)
    for names in (None, ["joint_states.position"]):
        assert open_source(path, features=names).episodes()[0].metadata["clock"] == CAMERA


def test_irregular_times_and_messages_out_of_order(tmp_path: Path) -> None:
    for name, times in (("a", [0, 100, 209]), ("b", [0, 100, 230]), ("c", [0]), ("d", [0, 0])):
        messages = [("/imu", START + time * MS, imu([0.0] * 10)) for time in times]
        write_mcap(tmp_path / f"{name}.mcap", messages)
    rates = [info.fps for info in open_source(tmp_path).episodes()]
    assert rates == [pytest.approx(2e3 / 209), None, None, None]
    messages = recording()
    shuffled = [messages[i] for i in np.random.default_rng(1).permutation(len(messages))]
    sources = [
        open_source(write_mcap(tmp_path / f"{name}.mcap", each, **options), clock=CAMERA)
        for name, each, options in (
            *(("a", shuffled, {}), ("b", messages, {})),
            ("c", shuffled, OPTIONS["no chunks"]),
        )
    ]
    np.testing.assert_equal(frames_of(sources[0]), frames_of(sources[1]))
    with pytest.raises(SourceError, match=r"not ascending in a file without an index"):
        frames_of(sources[2])


def test_a_recording_of_several_files(tmp_path: Path) -> None:
    messages = recording(30)
    folder = tmp_path / "bags" / "run"
    folder.mkdir(parents=True)
    (folder / "metadata.yaml").write_text("rosbag2_bagfile_information: {}\n")
    cuts = [len(messages) * i // 12 for i in range(13)]
    for i, (begin, end) in enumerate(pairwise(cuts)):
        write_mcap(folder / f"run_{i}.mcap", messages[begin:end])
    split = open_source(tmp_path / "bags", clock=CAMERA)
    whole = open_source(write_mcap(tmp_path / "one.mcap", messages), clock=CAMERA)
    [info] = split.episodes()
    assert (info.key, info.num_frames) == ("run", 30)
    assert info.metadata["files"] == [f"run_{i}.mcap" for i in range(12)]
    assert info.metadata["topics"] == whole.episodes()[0].metadata["topics"]
    np.testing.assert_equal(frames_of(split), frames_of(whole))
    (folder / "run_3.mcap").rename(folder / "run_13.mcap")
    with pytest.raises(SourceError, match=r"not ascending across files; .*run_13.*episode"):
        frames_of(open_source(tmp_path / "bags", clock=CAMERA))
    path = write_mcap(folder / "run_14.mcap", [(CAMERA, START, joints(["a"], [1.0]))])
    with pytest.raises(SourceError, match="the topic has two types") as caught:
        open_source(tmp_path / "bags").schema()
    assert (caught.value.file, caught.value.got) == (str(path), "sensor_msgs/msg/JointState")


def test_a_tree_of_recordings(tmp_path: Path) -> None:
    for name in ("day2/run10", "day2/run9", "day1/a"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_mcap(tmp_path / f"{name}.mcap", recording(2))
    write_bag(tmp_path / "day3" / "bag", recording(3))
    (tmp_path / "day1" / "._a.mcap").write_bytes(b"junk")
    source = open_source(tmp_path, clock=CAMERA, map={"image": CAMERA})
    assert [(e.key, e.num_frames) for e in source.episodes()] == [
        ("day1/a", 2), ("day2/run9", 2), ("day2/run10", 2), ("day3/bag", 3),
    ]  # fmt: skip


# --- types -----------------------------------------------------------------------------------

ROS_TYPES = [
    *(f"sensor_msgs/msg/{name}" for name in ("Image", "CompressedImage", "Imu", "JointState")),
    *(f"geometry_msgs/msg/{name}" for name in ("PoseStamped", "Twist", "TwistStamped")),
    *("nav_msgs/msg/Odometry", "geometry_msgs/msg/WrenchStamped", "sensor_msgs/msg/PointCloud2"),
]
COLOURS = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
DEPTH = np.array([[0.5, 1.5, np.inf], [3.25, 0, 9]], np.float32)
SHORTS = np.array([[1, 256, 65535], [4, 5, 6]], np.uint16)
QUANTIZED = 101.0 * 100, 1 - 101.0 * 100 / 10  # A and B for z0 = 100 and a maximum of 10 m
HEADER = struct.pack("<iff", 0, *QUANTIZED)
INVERSE = np.array([[0, 256, 65535], [4, 5, 6]], np.uint16)


def test_encodings_of_images(tmp_path: Path) -> None:
    """In both byte orders, with and without padding after each row."""
    rgb, grey, twice = COLOURS[..., :3], COLOURS[..., 0], np.stack([DEPTH, DEPTH + 1], -1)
    images: list[tuple[str, Any, Any]] = [
        *(("rgb8", rgb, rgb), ("bgr8", rgb, rgb[..., ::-1]), ("rgba8", COLOURS, COLOURS)),
        *(("bgra8", COLOURS, COLOURS[..., [2, 1, 0, 3]]), ("8UC3", rgb, rgb)),
        *((encoding, grey, grey) for encoding in ("mono8", "8UC1", "bayer_rggb8")),
        *(("mono16", SHORTS, SHORTS), ("16UC1", SHORTS, SHORTS)),
        *(("32FC1", DEPTH, DEPTH), ("32FC2", twice, twice)),
    ]
    cases = {
        f"x{number}": (image(stored, encoding, padding=padding, big=big), want)
        for number, ((encoding, stored, want), padding, big) in enumerate(
            product(images, (0, 5), (False, True))
        )
    }
    messages = [(f"/{topic}", START, made) for topic, (made, _) in cases.items()]
    source = open_source(write_mcap(tmp_path / "a.mcap", messages), clock="/x0")
    [frame] = frames_of(source)
    for topic, (_, want) in cases.items():
        assert source.schema()[topic].dtype == want.dtype
        np.testing.assert_array_equal(frame[topic], want, topic)


def test_compressed_images(tmp_path: Path) -> None:
    picture = np.full((16, 24, 3), (200, 100, 50), np.uint8)
    files = {
        "/rgb/compressed": (compressed(jpeg(picture), "rgb8; jpeg compressed bgr8"), "jpeg"),
        "/png": (compressed(png(picture), "png"), "png"),
        "/grey": (compressed(png(picture[..., 0]), "mono8; png compressed "), None),
        "/depth": (compressed(bytes(12) + png(SHORTS), "16UC1; compressedDepth png"), None),
        "/float": (compressed(HEADER + png(INVERSE), "32FC1; compressedDepth"), None),
    }
    path = write_mcap(tmp_path / "a.mcap", [(t, START, each) for t, (each, _) in files.items()])
    [frame] = frames_of(open_source(path, clock="/png"))
    assert abs(frame["rgb.compressed"].astype(int) - picture).max() < 4
    for name, want in (("png", picture), ("grey", picture[..., 0]), ("depth", SHORTS)):
        np.testing.assert_array_equal(frame[name], want)
    metres = [np.nan if n == 0 else QUANTIZED[0] / (n - QUANTIZED[1]) for n in INVERSE.flat]
    np.testing.assert_allclose(frame["float"], np.reshape(metres, (2, 3)), rtol=1e-5)
    spec = open_source(path, clock="/png").schema()["float"]
    assert (str(spec), spec.kind, spec.unit) == ("float: float32 [2, 3]", "depth", "m")
    kept = open_source(path, clock="/png", keep_encoded=True)
    [frame] = frames_of(kept)
    for topic, (each, format_) in files.items():
        name = topic.strip("/").replace("/", ".")
        codec = () if format_ is None else ({"id": "seqrecord.image", "format": format_},)
        assert kept.schema()[name].codec == codec
        assert format_ is None or frame[name] == EncodedImage(bytes(each.data))
    rvl = ("/d", START, compressed(HEADER + b"1234", "16UC1; compressedDepth rvl"))
    with pytest.raises(SourceError, match=r"unsupported depth: 16UC1; compressedDepth rvl"):
        open_source(write_mcap(path, [rvl])).schema()


@pytest.mark.parametrize(
    ("kind", "name", "options"),
    [("webp", "webp", {"lossless": True}), ("bmp", "bmp", {}), ("tiff", "tiff", {}),
     ("ppm", "netpbm", {})],
)  # fmt: skip
def test_compressed_images_that_are_decoded(
    tmp_path: Path, kind: str, name: str, options: dict[str, Any]
) -> None:
    [picture] = pictures(1)
    small = compressed(encoded(picture, kind=kind, **options), kind)
    messages = [(CAMERA, START, image(picture, "rgb8")), ("/small", START, small)]
    path = write_mcap(tmp_path / "a.mcap", messages)
    for keep in (False, True):
        source = open_source(path, clock=CAMERA, keep_encoded=keep)
        [frame] = frames_of(source)
        np.testing.assert_array_equal(frame["small"], picture)
        note = f"/small: {name} images are decoded; only PNG and JPEG can be kept encoded"
        assert note in inventory_of(source).notes
        seqrecord.convert(source, tmp_path / f"{keep}", workers=1)
        with seqrecord.open(tmp_path / f"{keep}") as dataset:
            np.testing.assert_array_equal(dataset.episodes["a"][0]["small"], picture)


UNREAD = {
    "AVIF": ("avif", b"\0\0\0\x20ftypavif" + bytes(40)),
    "JPEG XL": ("jpeg", b"\xff\x0a" + bytes(40)),
    "QOI": ("", b"qoif" + bytes(60)),
    "h264": ("h264", b"\0\0\0\1\x67" + bytes(60)),
}


@pytest.mark.parametrize("format_", UNREAD)
@pytest.mark.parametrize("kind", ["rosbag2", "ros1", "json"])
def test_compressed_images_without_a_reader_are_left_out(
    tmp_path: Path, format_: str, kind: str
) -> None:
    """The other topics are read; the format is named in the inventory, and where it is selected."""
    (declared, data), [picture] = UNREAD[format_], pictures(1)
    if kind == "json":
        about = {"encoding": "rgb8", "width": 8, "height": 6, "step": 24}
        raw = about | {"data": base64.b64encode(picture.tobytes()).decode()}
        odd = {"format": declared, "data": base64.b64encode(data).decode()}
        write_json(tmp_path / "run.mcap", [
            ("/cam", "foxglove.RawImage", 5, raw), ("/odd", "foxglove.CompressedImage", 5, odd),
        ])  # fmt: skip
    else:
        messages = [
            ("/cam", START, image(picture, "rgb8")),
            ("/odd", START, compressed(data, declared)),
        ]
        write(tmp_path, messages, kind)
    source = open_source(tmp_path)
    [frame] = frames_of(source)
    assert [*frame] == ["cam", "log_time"]
    np.testing.assert_array_equal(frame["cam"], picture)
    left_out = {row.pattern: row for row in inventory_of(source).left_out_data}
    assert f"unsupported image format '{format_}'" in left_out["topic /odd"].reason
    for wanted in ({"features": ["odd"]}, {"map": {"odd": "/odd"}}):
        match = rf"/odd; got: unsupported image format '{format_}'; expected PNG, JPEG, WebP"
        with pytest.raises(SourceError, match=match):
            open_source(tmp_path, **wanted).schema()


def test_compressed_images_with_unsupported_pixels_or_damage(tmp_path: Path) -> None:
    """JPEGs in CMYK are left out; bytes that are no image are damage, and refused."""
    [picture] = pictures(1)
    cmyk = compressed(encoded(picture, mode="CMYK", kind="jpeg"), "jpeg")
    messages = [("/cam", START, image(picture, "rgb8")), ("/odd", START, cmyk)]
    path = write_mcap(tmp_path / "a.mcap", messages)
    source = open_source(path)
    assert [*frames_of(source)[0]] == ["cam", "log_time"]
    left_out = {row.pattern: row for row in inventory_of(source).left_out_data}
    assert "unsupported image mode: CMYK" in left_out["topic /odd"].reason
    with pytest.raises(SourceError, match=r"unsupported image mode; .*feature: odd; .*got: CMYK"):
        open_source(path, features=["odd"]).schema()
    for declared in ("jpeg", "rgb8; jpeg compressed bgr8", ""):
        messages[1] = ("/odd", START, compressed(b"no image", declared))
        with pytest.raises(SourceError, match="neither a PNG nor a JPEG image") as caught:
            open_source(write_mcap(path, messages)).schema()
        assert caught.value.file == str(path)


def test_poses_speeds_and_missing_values(tmp_path: Path) -> None:
    def made(name: str, *values: Any) -> Any:
        return message(f"geometry_msgs/msg/{name}", *values)

    point, turn = [1.0, 2.0, 3.0], [0.0, 0.0, 0.6, 0.8]
    pose = made("Pose", made("Point", *point), made("Quaternion", *turn))
    vectors = made("Vector3", 1, 2, 3), made("Vector3", 4, 5, 6)
    twist, wrench = made("Twist", *vectors), made("Wrench", *vectors)
    odometry = message(
        *("nav_msgs/msg/Odometry", header(), "base"),
        made("PoseWithCovariance", pose, np.arange(36.0)),
        made("TwistWithCovariance", twist, np.arange(36.0)),
    )
    messages = [
        ("/pose", START, made("PoseStamped", header(), pose)),
        ("/cmd_vel", START, twist),
        ("/stamped", START, made("TwistStamped", header(), twist)),
        ("/odom", START, odometry),
        ("/force", START, made("WrenchStamped", header(), wrench)),
    ]
    source = open_source(write_mcap(tmp_path / "a.mcap", messages), clock="/pose")
    [frame] = frames_of(source)
    assert frame["pose"].tolist() == frame["odom.pose"].tolist() == point + turn
    for name in ("cmd_vel", "stamped", "odom.twist"):
        assert frame[name].tolist() == [1, 2, 3, 4, 5, 6]
    assert (frame["force.force"].tolist(), frame["force.torque"].tolist()) == ([1, 2, 3], [4, 5, 6])
    meanings = {name: (spec.kind, spec.unit) for name, spec in source.schema().items()}
    assert meanings["odom.pose"] == ("pose", "m")
    assert meanings["odom.twist"] == (None, None)
    assert meanings["force.torque"] == ("state", "Nm")
    assert "/odom: covariances are not packed" in inventory_of(source).notes
    messages = [("/imu", START + i, imu([1.0] * 10, oriented=i != 1)) for i in range(3)]
    frames = frames_of(open_source(write_mcap(tmp_path / "b.mcap", messages)))
    assert ["imu.orientation" in frame for frame in frames] == [True, False, True]
    messages = [("/j", START, joints(["a"], [1.0]))]
    [frame] = frames_of(open_source(write_mcap(tmp_path / "c.mcap", messages, definitions=False)))
    assert [*frame] == ["j.position", "log_time"]


K, P = (7.0, 7.5, 3.5, 2.5), (6.0, 6.5, 3.25, 2.25)
FRONT, RECTIFIED = "/front/image_raw/compressed", "/front/image_rect_color"
INFO = "/front/camera_info"


def filmed(*cameras: Any) -> list[tuple[str, int, Any]]:
    """Two images for each CameraInfo."""
    return [
        (topic, START + 100 * MS * i + delay, each)
        for i, camera in enumerate(cameras)
        for delay, (topic, each) in enumerate((
            (INFO, camera),
            (FRONT, compressed(png(pictures(1, i)[0]), "rgb8; png compressed bgr8")),
            (RECTIFIED, image(pictures(1, i)[0], "rgb8")),
        ))
    ]  # fmt: skip


def test_cameras_of_images(tmp_path: Path) -> None:
    """Constant ones are metadata and reach a batch; `intrinsics=frames` gives features."""
    moving = [camera_info((6, 8), (7.0 + i, *K[1:]), P, time=i) for i in range(3)]
    still = [camera_info((6, 8), K, P, time=i) for i in range(3)]
    write_bag(tmp_path / "bags" / "a", filmed(*still))
    front, rectified = "front.image_raw.compressed", "front.image_rect_color"
    seqrecord.convert(open_source(tmp_path / "bags", clock=FRONT), tmp_path / "records")
    crop = seqrecord.RandomCrop((6, 8))
    pipe = seqrecord.SeqRecordPipe(
        tmp_path / "records", clip_len=3, batch_size=1, clip_transform=crop, camera=True
    )
    [batch] = pipe
    for name, (fx, fy, cx, cy) in ((front, K), (rectified, P)):
        matrix = [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]
        assert batch[f"{name}_K"].tolist() == [[matrix] * 3]
    camera = pipe.dataset.episodes["a"].metadata["camera"]
    assert camera[front] == {
        **dict(zip(("fx", "fy", "cx", "cy"), K, strict=True)), "width": 8, "height": 6,
        "distortion_model": "opencv", "distortion_coefficients": [0.1, -0.2, 0.001, 0.002],
    }  # fmt: skip
    assert camera[rectified].keys() == {"fx", "fy", "cx", "cy", "width", "height"}
    path = write_mcap(tmp_path / "moving.mcap", filmed(*moving))
    with pytest.raises(SourceError, match=r"camera changes.*intrinsics=frames.*front.image_raw"):
        frames_of(open_source(path, clock=FRONT))
    source = open_source(path, clock=FRONT, intrinsics="frames")
    spec = source.schema()[f"{front}_intrinsics"]
    assert (spec.shape, spec.kind, spec.unit) == ((4,), "intrinsics", "px")
    frames = frames_of(source)
    assert [f[f"{front}_intrinsics"].tolist() for f in frames] == [
        [7.0 + i, *K[1:]] for i in (0, 1, 2)
    ]
    assert [f[f"{rectified}_intrinsics"].tolist() for f in frames] == [[*P]] * 3
    assert source.episodes()[0].metadata["camera"][front] == {
        "distortion_model": "opencv", "distortion_coefficients": [0.1, -0.2, 0.001, 0.002],
    }  # fmt: skip


def test_cameras_do_not_depend_on_the_selection(tmp_path: Path) -> None:
    """Of all images; a changing one is an error where its image is selected."""
    speeds = [
        ("/speed", START + 100 * MS * i, message("std_msgs/msg/Float64", 1.0)) for i in (0, 1)
    ]
    for name, cameras in (
        ("still", [camera_info((6, 8), K, P, time=i) for i in (0, 1)]),
        ("moving", [camera_info((6, 8), (7.0 + i, *K[1:]), P, time=i) for i in (0, 1)]),
    ):
        messages = sorted([*filmed(*cameras), *speeds], key=lambda each: each[1])
        write_mcap(tmp_path / f"{name}.mcap", messages)
    front, rectified = "front.image_raw.compressed", "front.image_rect_color"
    whole = open_source(tmp_path / "still.mcap", clock=FRONT).episodes()[0].metadata["camera"]
    assert [*whole] == [front, rectified]
    for name in ("speed", "log_time", rectified):
        source = open_source(tmp_path / "still.mcap", clock=FRONT, features=[name])
        assert source.episodes()[0].metadata["camera"] == whole
        source = open_source(tmp_path / "moving.mcap", clock=FRONT, features=[name])
        assert [[*frame] for frame in frames_of(source)] == [[name]] * 2
        assert source.episodes()[0].metadata["camera"] == whole  # of the first message
    with pytest.raises(SourceError, match=r"camera changes.*front.image_raw"):
        frames_of(open_source(tmp_path / "moving.mcap", clock=FRONT, features=[front]))


def test_intrinsics_without_their_image(tmp_path: Path) -> None:
    cameras = [camera_info((6, 8), (7.0 + i, *K[1:]), P, time=i) for i in (0, 1)]
    path = write_mcap(tmp_path / "a.mcap", filmed(*cameras))
    name = "front.image_raw.compressed_intrinsics"
    for names in ([name], ["log_time", name]):
        source = open_source(path, clock=FRONT, intrinsics="frames", features=names)
        frames = frames_of(source)
        assert [[*frame] for frame in frames] == [names] * 2
        assert [frame[name].tolist() for frame in frames] == [[7.0 + i, *K[1:]] for i in (0, 1)]


def test_a_camera_of_another_image_beside_it(tmp_path: Path) -> None:
    """An image that does not fit the CameraInfo leaves the others theirs."""
    messages = filmed(camera_info((6, 8), K, P))
    other = ("/front/image_cut", START + 5 * MS, image(pictures(1)[0][:4], "rgb8"))
    path = write_mcap(tmp_path / "a.mcap", sorted([*messages, other], key=lambda each: each[1]))
    metadata = open_source(path, clock=FRONT).episodes()[0].metadata
    assert [*metadata["camera"]] == ["front.image_raw.compressed", "front.image_rect_color"]
    assert [*metadata["camera_unknown"]] == ["front.image_cut"]


@pytest.mark.parametrize(
    ("camera", "reason"),
    [
        (camera_info((6, 8), (0,) * 4), "K of /front/camera_info is 0"),
        (camera_info((12, 12), K), "another aspect ratio"),
        (camera_info((6, 8), K, binning=2), "unsupported camera: binning, .*got binning 2"),
        (camera_info((6, 8), K, roi=(1, 0, 6, 7)), r"got binning 0, region \(1, 0, 7, 6\)"),
        (camera_info((6, 8), K, skew=0.5), "skew 0.5"),
    ],
)
def test_unknown_cameras(tmp_path: Path, camera: Any, reason: str) -> None:
    source = open_source(write_mcap(tmp_path / "a.mcap", filmed(camera)), clock=FRONT)
    frames_of(source)
    metadata = source.episodes()[0].metadata
    assert "front.image_raw.compressed" not in metadata.get("camera", {})
    assert re.search(reason, metadata["camera_unknown"]["front.image_raw.compressed"])
    notes = inventory_of(source).notes
    assert any("camera of front.image_raw.compressed unknown in 1 episode" in n for n in notes)


@pytest.mark.parametrize(
    ("name", "coefficients", "model"),
    [
        ("equidistant", [0.0] * 4, "opencv_fisheye"),  # a simulator's
        ("equidistant", [], "opencv_fisheye"),
        ("equidistant", [0.1, 0, 0, 0], "opencv_fisheye"),
        ("Fisheye", [0.0] * 4, "opencv_fisheye"),
        ("plumb_bob", [0.0] * 5, None),
        ("plumb_bob", [], None),
        ("", [], None),
        ("fov", [0.9], "fov"),
    ],
)
def test_distortion_models(
    tmp_path: Path, name: str, coefficients: list[float], model: str | None
) -> None:
    """A fisheye lens without coefficients is not a pinhole."""
    info = camera_info((6, 8), K, model=name, coefficients=coefficients)
    source = open_source(write_mcap(tmp_path / "a.mcap", filmed(info)), clock=FRONT)
    camera = source.episodes()[0].metadata["camera"]["front.image_raw.compressed"]
    assert camera.get("distortion_model") == model
    if model == "opencv_fisheye":
        assert camera["distortion_coefficients"] == (coefficients or [0.0] * 4)


def test_a_camera_of_larger_images(tmp_path: Path) -> None:
    """Half as large: the centre of the second pixel is half a pixel of the large image further."""
    source = open_source(
        write_mcap(tmp_path / "a.mcap", filmed(camera_info((12, 16), K))), clock=FRONT
    )
    camera = source.episodes()[0].metadata["camera"]["front.image_raw.compressed"]
    fx, fy, cx, cy = K
    found = [camera[name] for name in ("fx", "fy", "cx", "cy", "width", "height")]
    assert found == [fx / 2, fy / 2, (cx - 0.5) / 2, (cy - 0.5) / 2, 8, 6]


def turned(axis: Any, angle: float) -> tuple[float, float, float, float]:
    """Quaternion x, y, z, w."""
    x, y, z = (math.sin(angle / 2) * each for each in axis)
    return x, y, z, math.cos(angle / 2)


def matrix(pose: Sequence[float]) -> npt.NDArray[np.float64]:
    """The 4x4 matrix of a pose, by Rodrigues' formula on the logarithm of its quaternion."""
    x, y, z, w = np.array(pose[3:]) / np.linalg.norm(pose[3:])
    length = math.sqrt(x * x + y * y + z * z)
    angle = 2 * math.atan2(length, w)
    a, b, c = (each / length if length else 0.0 for each in (x, y, z))
    cross = np.array([[0, -c, b], [c, 0, -a], [-b, a, 0]])
    found = np.eye(4)
    found[:3, :3] += math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross
    found[:3, 3] = pose[:3]
    return found


def halfway(one: npt.NDArray[Any], other: npt.NDArray[Any], share: float) -> npt.NDArray[Any]:
    """Between two 4x4 poses: a share of the rotation vector from one to the other."""
    turn = one[:3, :3].T @ other[:3, :3]
    angle = math.acos((np.trace(turn) - 1) / 2)
    axis = np.array([turn[2, 1] - turn[1, 2], turn[0, 2] - turn[2, 0], turn[1, 0] - turn[0, 1]])
    part = turned(axis / (2 * math.sin(angle)), share * angle)
    found = one @ matrix([0, 0, 0, *part])
    found[:3, 3] = (1 - share) * one[:3, 3] + share * other[:3, 3]
    return found


TWIST = [0.36, 0.48, 0.8]
MOVES = [  # base in odom at 0, 100 and 200 ms; the last quaternion has the other sign and length
    [0.0, 0.0, 0.0, *turned(TWIST, 0.3)],
    [1.0, 2.0, 3.0, *turned([0.0, 0.6, -0.8], 2.0)],
    [2.0, 2.0, 3.0, *(-3 * each for each in turned(TWIST, 2.5))],
]
MOUNT = [0.5, 0.0, 0.25, *turned([0.0, 0.0, 1.0], 1.0)]
PLACED = [5.0, 6.0, 7.0, *turned([1.0, 0.0, 0.0], 0.7)]


@pytest.mark.parametrize("kind", ["rosbag2", "ros1"])
def test_poses_of_frames_in_a_root(tmp_path: Path, kind: str) -> None:
    """Interpolated between neighbours, never extrapolated, through a tree with fixed transforms."""
    ask = partial(message, "tf2_msgs/msg/TFMessage")
    start = START - 40 * MS  # the first image comes 40 ms after the first transform
    messages: list[tuple[str, int, Any]] = [
        ("/tf_static", start, ask([transform("base", "camera", MOUNT, start)])),
        ("/tf_static", start, ask([transform("map", "odom", PLACED, start)])),
        *(
            (
                "/tf",
                start + 100 * MS * i,
                ask([transform("/odom", "/base", pose, start + 100 * MS * i)]),
            )
            for i, pose in enumerate(MOVES)
        ),
        *((CAMERA, START + 80 * MS * i, image(pictures(1)[0], "rgb8")) for i in range(3)),
        (CAMERA, start + 100 * MS, image(pictures(1)[0], "rgb8")),
        (CAMERA, start + 201 * MS, image(pictures(1)[0], "rgb8")),
    ]
    path = write(tmp_path, sorted(messages, key=lambda each: each[1]), kind)
    how: dict[str, Any] = {"poses": ["camera", "odom"], "root_frame": "map", "clock": CAMERA}
    source = open_source(path, **how)
    spec = source.schema()["pose.camera"]
    assert (str(spec), spec.kind, spec.unit) == ("pose.camera: float64 [7]", "pose", "m")
    before, middle, after = (matrix(pose) for pose in MOVES)
    want = [  # at 40, 100, 120, 200, 201 ms
        halfway(before, middle, 0.4), middle, halfway(middle, after, 0.2), after,
    ]  # fmt: skip
    frames = frames_of(source)
    assert ["pose.camera" in frame for frame in frames] == [True] * 4 + [False]
    for frame, base in zip(frames, want, strict=False):
        found = matrix(frame["pose.camera"])
        np.testing.assert_allclose(found, matrix(PLACED) @ base @ matrix(MOUNT), atol=1e-9)
        np.testing.assert_allclose(frame["pose.odom"], PLACED, atol=1e-12)
    slashes: dict[str, Any] = {"poses": ["/camera", "odom"], "root_frame": "/map"}  # as in tf 1
    np.testing.assert_equal(frames_of(open_source(path, **{**how, **slashes})), frames)
    below = open_source(path, **{**how, "poses": "odom", "root_frame": "camera"})
    found = matrix(frames_of(below)[1]["pose.odom"])
    np.testing.assert_allclose(found, np.linalg.inv(middle @ matrix(MOUNT)), atol=1e-9)
    near = open_source(path, **how, tolerance=0.045)  # 40 ms, and 60 ms on the other side
    assert ["pose.camera" in frame for frame in frames_of(near)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert "/tf: camera in map" in {each.place for each in inventory_of(source).features}
    left_out = map(str, inventory_of(open_source(path, clock=CAMERA)).left_out_data)
    assert any(
        "topic /tf: 3 messages, choose frames by --source-option poses" in each for each in left_out
    )


@pytest.mark.parametrize("mount", [None, MOUNT])
def test_a_robot_that_stays_has_one_pose(tmp_path: Path, mount: list[float] | None) -> None:
    """Interpolation between equal poses, also of the other sign, is that pose to the last bit."""
    ask = partial(message, "tf2_msgs/msg/TFMessage")
    rng = np.random.default_rng(0)
    messages: list[tuple[str, int, Any]] = []
    names = [f"robot{number}" for number in range(20)]
    for name in names:
        pose = [*(rng.normal(size=3) * 1000).tolist(), *rng.normal(size=4).tolist()]
        other = [*pose[:3], *(-number for number in pose[3:])]
        child = name if mount is None else f"{name}_base"
        if mount is not None:
            messages.append(("/tf_static", START, ask([transform(child, name, mount, START)])))
        for i in range(5):
            at = START + 100 * MS * i
            messages.append(("/tf", at, ask([transform("map", child, (pose, other)[i % 2], at)])))
    messages += [(CAMERA, START + 17 * MS * i, image(pictures(1)[0], "rgb8")) for i in range(20)]
    path = write(tmp_path, sorted(messages, key=lambda one: one[1]), "rosbag2")
    frames = frames_of(open_source(path, poses=names, root_frame="map", clock=CAMERA))
    for name in names:
        poses = np.array([frame[f"pose.{name}"] for frame in frames])
        poses[:, 3:] *= np.sign(poses[:, 6:])  # a quaternion and its opposite are one rotation
        np.testing.assert_array_equal(poses, poses[:1].repeat(len(poses), axis=0))


@pytest.mark.parametrize("size", [0.0, 1e-161, 1e-200, 1e155, 1e200])
def test_a_quaternion_without_a_length_is_no_pose(tmp_path: Path, size: float) -> None:
    ask = partial(message, "tf2_msgs/msg/TFMessage")
    pose = [1.0, 2.0, 3.0, *[size] * 4]
    messages: list[tuple[str, int, Any]] = [
        ("/tf", START, ask([transform("map", "base", pose, START)])),
        (CAMERA, START, image(pictures(1)[0], "rgb8")),
    ]
    path = write(tmp_path, messages, "rosbag2")
    source = open_source(path, poses="base", root_frame="map", clock=CAMERA)
    with pytest.raises(SourceError, match="frame base has an invalid pose in map"):
        frames_of(source)


def test_transforms_that_are_no_tree(tmp_path: Path) -> None:
    how: dict[str, Any] = {"poses": ["a"], "root_frame": "map", "clock": "/x"}
    path = tmp_path / "a.mcap"
    fine = transform("map", "a", MOUNT, START)
    for others, problem in {
        (("world", "b"), ("c", "d")): None,
        (("b", "a"),): "frame a has two parents, map and b",
        (("a", "map"),): "transforms form a loop",
    }.items():
        more = [transform(*pair, MOUNT, START) for pair in others]
        messages = [
            ("/x", START, joints(["a"], [1.0])),
            *(("/p", START, each) for each in (fine, *more)),
        ]
        write_mcap(path, messages)
        if problem is None:
            assert len(frames_of(open_source(path, **how))) == 1
            how_far = {**how, "root_frame": "world"}
            problem = r"no transforms connect the frames.*expected: a and world.*frames a, b, c, d"
        else:
            how_far = how
        with pytest.raises(SourceError, match=problem):
            frames_of(open_source(path, **how_far))
    with pytest.raises(SourceError, match="poses= and root_frame= need each other"):
        open_source(path, poses="a")


def test_header_stamps(tmp_path: Path) -> None:
    """Frames and alignment at the times of headers; without a header at log times."""
    late = 30 * MS  # the images are recorded late
    messages: list[tuple[str, int, Any]] = [
        (
            "/front/camera_info",
            START + 100 * MS * i + late,
            camera_info((6, 8), K, time=START + 100 * MS * i),
        )
        for i in range(4)
    ]
    stamped = [
        (
            "/pose",
            START + 10 * MS * i,
            message("geometry_msgs/msg/PoseStamped", header(START + 10 * MS * i), pose_at(i)),
        )
        for i in range(40)
    ]
    speeds = [
        ("/speed", START + 100 * MS * i + late, message("std_msgs/msg/Float64", float(i)))
        for i in range(4)
    ]
    every = sorted([*messages, *stamped, *speeds], key=lambda each: each[1])
    for name, path in {
        "ros2": write_mcap(tmp_path / "a.mcap", every),
        "ros1": write_ros1(tmp_path / "a.bag", every),
    }.items():
        how: dict[str, Any] = {"clock": "/front/camera_info", "tolerance": 0.04}
        logged = frames_of(open_source(path, **how))
        assert [frame["log_time"] - START for frame in logged] == [
            100 * MS * i + late for i in range(4)
        ], name
        assert [frame["pose"][0] for frame in logged] == [10 * i + 3 for i in range(4)]
        source = open_source(path, **how, time="header")
        frames = frames_of(source)
        assert [frame["header_time"] - START for frame in frames] == [
            100 * MS * i for i in range(4)
        ]
        assert [frame["pose"][0] for frame in frames] == [10 * i for i in range(4)]
        assert [frame["speed"] for frame in frames] == [0, 1, 2, 3]
        notes = inventory_of(source).notes
        assert "/speed: log times, for its messages have no header" in notes
        assert any(
            "time=header uses header stamps" in n
            for n in inventory_of(open_source(path, **how)).notes
        )
    with pytest.raises(SourceError, match="messages of the clock have no header; choose another"):
        frames_of(open_source(tmp_path / "a.mcap", clock="/speed", time="header"))
    backwards = [("/j", START + i, imu([0.0] * 10)) for i in range(2)]
    with pytest.raises(SourceError, match=r"unset time in a header of /j; omit time=header"):
        frames_of(open_source(write_mcap(tmp_path / "b.mcap", backwards), time="header"))
    for number, (_, _, each) in enumerate(backwards):
        each.header.stamp.sec = 5 - number
    with pytest.raises(SourceError, match=r"stamps are not ascending; omit time=header"):
        frames_of(open_source(write_mcap(tmp_path / "b.mcap", backwards), time="header"))


def pose_at(x: float) -> Any:
    point = message("geometry_msgs/msg/Point", float(x), 0.0, 0.0)
    return message(
        "geometry_msgs/msg/Pose", point, message("geometry_msgs/msg/Quaternion", 0, 0, 0, 1)
    )


@pytest.mark.parametrize(("order", "kind"), [("<", "rosbag2"), (">", "ros1")])
def test_points(tmp_path: Path, order: str, kind: str) -> None:
    """Columns of one dtype in one array, whatever their order; clouds of any size."""
    dtype = np.dtype(
        {
            "names": ["x", "y", "z", "intensity", "ring", "t", "bins"],
            "formats": [
                *(f"{order}{k}" for k in ("f4", "f4", "f4", "f4", "u2", "f8")),
                (f"{order}u1", 3),
            ],
            "offsets": [0, 4, 8, 16, 20, 24, 32],
            "itemsize": 40,
        }
    )
    rng = np.random.default_rng(5)
    clouds = [rng.integers(0, 255, (n, 40), np.uint8).view(dtype)[:, 0] for n in (6, 0, 4)]
    other = clouds[2][["y", "x", "z", "intensity", "ring", "t", "bins"]]
    messages = [
        ("/scan", START, points(clouds[0], height=2, padding=3)),
        ("/scan", START + 1, points(clouds[1])),
        ("/scan", START + 2, points(other)),
    ]
    source = open_source(write(tmp_path, messages, kind))
    assert {
        name: (str(spec.dtype), spec.shape, spec.kind) for name, spec in source.schema().items()
    } == {
        "scan": ("float32", (None, 4), "points"),
        "scan.ring": ("uint16", (None,), "points"),
        "scan.t": ("float64", (None,), "points"),
        "scan.uint8": ("uint8", (None, 3), "points"),
        "log_time": ("int64", (), "timestamp"),
    }
    [info] = source.episodes()
    assert info.metadata["names"]["scan"] == ["x", "y", "z", "intensity"]
    assert info.metadata["names"]["scan.uint8"] == ["bins_0", "bins_1", "bins_2"]
    for frame, cloud in zip(frames_of(source), clouds, strict=True):
        for place, name in enumerate(("x", "y", "z", "intensity")):
            np.testing.assert_array_equal(frame["scan"][:, place], cloud[name])
        np.testing.assert_array_equal(frame["scan.ring"], cloud["ring"])
        np.testing.assert_array_equal(frame["scan.t"], cloud["t"])
        np.testing.assert_array_equal(frame["scan.uint8"], cloud["bins"])


def test_points_reach_a_batch(tmp_path: Path) -> None:
    dtype = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("ring", "<u2")])
    clouds = [np.zeros(n, dtype) for n in (3, 5)]
    for cloud in clouds:
        cloud["y"] = np.arange(len(cloud))
    path = write_mcap(
        tmp_path / "a.mcap", [("/scan", START + i, points(c)) for i, c in enumerate(clouds)]
    )
    seqrecord.convert(open_source(path), tmp_path / "records")
    pipe = seqrecord.SeqRecordPipe(
        tmp_path / "records", clip_len=2, batch_size=1, features=["scan"], ragged={"scan": "pad"}
    )
    [batch] = pipe
    assert batch["scan"].shape == (1, 2, 5, 3)
    assert batch["scan"][0, 1, :, 1].tolist() == [0, 1, 2, 3, 4]
    wrong = points(clouds[0])
    wrong.width = 4
    write_mcap(path, [("/scan", START, wrong)])
    with pytest.raises(SourceError, match=r"truncated points: 42 bytes, 1 rows of 56 bytes"):
        open_source(path).schema()


@pytest.mark.parametrize("compression", ["BZ2", "LZ4"])
def test_compressed_chunks_of_ros1(tmp_path: Path, compression: str) -> None:
    """A chunk that unpacks to another size than its header declares is refused."""
    path = write_ros1(tmp_path / "a.bag", [("/imu", START, imu([*range(10)]))], compression)
    [frame] = frames_of(open_source(path))
    assert frame["imu.orientation"].tolist() == [0, 1, 2, 3]
    whole = path.read_bytes()
    at = whole.index(b"size=", whole.index(b"compression=")) + 5
    size = int.from_bytes(whole[at : at + 4], "little")
    for claim, match in (
        *((n, rf"another size than its header declares; .*a.bag; .*: {n}") for n in (9, size - 1)),
        (1 << 31, "chunk too large; .*got: 2147483648"),
    ):
        path.write_bytes(whole[:at] + claim.to_bytes(4, "little") + whole[at + 4 :])
        with pytest.raises(SourceError, match=match):
            frames_of(open_source(path))


def test_joints_without_names(tmp_path: Path) -> None:
    """Each array of a JointState may be empty, its names too."""
    write_mcap(tmp_path / "a.mcap", [("/j", START + n, joints([], [n, 2.0])) for n in range(2)])
    frames = frames_of(open_source(tmp_path))
    assert [frame["j.position"].tolist() for frame in frames] == [[0, 2], [1, 2]]


@pytest.mark.parametrize(
    "options", [{}, {"map": {"j": "/j", "camera": CAMERA}}, {"features": ["j.position"]}]
)
def test_a_first_message_without_values(tmp_path: Path, options: dict[str, Any]) -> None:
    messages = [("/j", START + n, joints(["a"] * (n > 0), [n] * (n > 0))) for n in range(3)]
    messages += [message for message in recording() if message[0] == CAMERA]
    path = write_mcap(tmp_path / "a.mcap", messages)
    frames = frames_of(open_source(path, clock="/j", **options))
    assert [frame["j.position"].tolist() for frame in frames[1:]] == [[1], [2]]
    assert "j.position" not in frames[0]


def test_joints_in_another_order(tmp_path: Path) -> None:
    messages = [
        ("/j", START, joints(["a", "b", "c"], [1, 2, 3])),
        ("/j", START + 1, joints(["c", "a", "b"], [30, 10, 20])),
    ]
    write_mcap(tmp_path / "a.mcap", messages)
    frames = frames_of(open_source(tmp_path))
    assert [frame["j.position"].tolist() for frame in frames] == [[1, 2, 3], [10, 20, 30]]
    write_mcap(tmp_path / "b.mcap", [*messages, ("/j", START + 2, joints(["a", "b"], [1, 2]))])
    with pytest.raises(SourceError, match=r"other joints than the first one; .*got: a, b"):
        frames_of(open_source(tmp_path / "b.mcap"))


def test_values_that_the_first_message_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = [imu([1.0] * 10, oriented=i > 0) for i in range(3)]
    path = write_mcap(tmp_path / "a.mcap", [("/imu", START + i, v) for i, v in enumerate(values)])
    assert not any("imu.orientation" in frame for frame in frames_of(open_source(path)))
    assert "2 messages of a have imu.orientation, which the first message" in caplog.text
    caplog.clear()
    frames_of(open_source(path, features=["imu.angular_velocity"]))
    assert "which the first message" not in caplog.text


@functools.lru_cache
def raw_image(width: int = 20, height: int = 3, kind: str = "UINT32") -> tuple[Any, bytes]:
    """By Google's library, with other field numbers than Foxglove's, as described in the file."""
    fields = (
        *(("frame_id", 7, "STRING"), ("width", width, kind), ("height", height, kind)),
        *(("encoding", 4, "STRING"), ("step", 5, kind), ("data", 16, "BYTES")),
        ("more", 31, "DOUBLE"),
    )
    text = " ".join(f'field {{ name: "{n}" number: {i} type: TYPE_{t} }}' for n, i, t in fields)
    file = f'name: "a.proto" package: "foxglove" message_type {{ name: "RawImage" {text} }}'
    build = messages_of(file)["RawImage"]
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add().ParseFromString(build.DESCRIPTOR.file.serialized_pb)
    return build, files.SerializeToString()


def test_images_of_foxglove_in_json_and_in_protocol_buffers(tmp_path: Path) -> None:
    picture, path = pictures(1)[0], tmp_path / "a.mcap"
    about = {"frame_id": "", "width": 8, "height": 6, "encoding": "bgr8", "step": 24}
    stamp = {"timestamp": {"sec": 1, "nsec": 0}}
    raw = about | stamp | {"data": base64.b64encode(picture.tobytes()).decode()}
    small = {"format": "png", "data": base64.b64encode(png(picture)).decode()}
    write_json(
        path,
        [("/raw", "foxglove.RawImage", 5, raw), ("/png", "foxglove.CompressedImage", 5, small)],
    )
    [frame] = frames_of(open_source(path, clock="/raw"))
    np.testing.assert_array_equal(frame["raw"], picture[..., ::-1])
    np.testing.assert_array_equal(frame["png"], picture)
    broken = {**small, "data": "no base64!"}
    write_json(path, [("/png", "foxglove.CompressedImage", 5, broken)])
    with pytest.raises(SourceError, match=r"cannot decode a message; .*a\.mcap.*/png"):
        open_source(path).schema()
    for kind in ("FIXED32", "FIXED64", "UINT32"):  # FIXED32 in Foxglove's own schema
        build, described = raw_image(kind=kind)
        data = build(**about, data=picture.tobytes(), more=0.5).SerializeToString()
        messages = [("/raw", "foxglove.RawImage", 5, data)]
        write_raw(path, messages, "protobuf", "protobuf", described)
        [frame] = frames_of(open_source(path))
        np.testing.assert_array_equal(frame["raw"], picture[..., ::-1])
        write_raw(path, messages, "protobuf", "protobuf", described[:60])
        with pytest.raises(SourceError):
            open_source(path).schema()


def test_a_topic_of_an_unknown_encoding_is_left_out(tmp_path: Path) -> None:
    """The other topics are read; it is named where it is asked for."""
    [picture] = pictures(1)
    yuv = image(picture[..., :2], "yuv422_yuy2")
    messages = [("/cam", START, image(picture, "rgb8")), ("/raw", START, yuv)]
    for folder in ("one", "two"):
        (tmp_path / "bags" / folder).mkdir(parents=True)
        write_mcap(tmp_path / "bags" / folder / "a.mcap", messages)
    source = open_source(tmp_path / "bags")
    assert [*source.schema()] == ["cam", "log_time"]
    for frame in frames_of(source):
        np.testing.assert_array_equal(frame["cam"], picture)
    left_out = {row.pattern: row for row in inventory_of(source).left_out_data}
    assert "yuv422_yuy2" in left_out["topic /raw"].reason
    for wanted in ({"features": ["raw"]}, {"map": {"raw": "/raw"}}):
        with pytest.raises(SourceError, match=r"cannot decode a message.*yuv422_yuy2"):
            open_source(tmp_path / "bags", **wanted).schema()
    write_mcap(tmp_path / "raw.mcap", messages[1:])
    with pytest.raises(SourceError, match=r"cannot decode a message.*yuv422_yuy2"):
        open_source(tmp_path / "raw.mcap", clock="/raw").schema()


def test_each_file_of_a_recording_has_its_own_definitions(tmp_path: Path) -> None:
    folder, [picture] = tmp_path / "run", pictures(1)
    folder.mkdir()
    (folder / "metadata.yaml").write_text("rosbag2_bagfile_information: {}\n")
    about = {"encoding": "rgb8", "step": 24, "data": picture.tobytes()}
    for number, sizes in enumerate(((20, 3), (3, 20))):
        build, described = raw_image(*sizes)
        data = build(**about, width=8, height=6).SerializeToString()
        messages = [("/raw", "foxglove.RawImage", 5 + number, data)]
        write_raw(folder / f"run_{number}.mcap", messages, "protobuf", "protobuf", described)
    for frame in frames_of(open_source(tmp_path)):
        np.testing.assert_array_equal(frame["raw"], picture)


TWIST_TYPE = "geometry_msgs/msg/TwistStamped"
TWIST_TEXT = STORE.generate_msgdef(TWIST_TYPE, ros_version=2)[0]
LINE = "=" * 80 + "\n"


def in_another_order(text: str) -> str:
    first, *nested = text.split(LINE)
    return LINE.join([first, *nested[::-1]])


IDL = "module std_msgs {{ module msg {{ {} }}; }};"
SAME_FIELDS = {
    "comments": ("ros2msg", f"# a twist\n\n{TWIST_TEXT}".replace("float64 x", "  float64   x # m")),
    "constants": ("ros2msg", f'uint8 MAX=3\nstring UNIT = "m/s"\n{TWIST_TEXT}'),
    "line ends": ("ros2msg", TWIST_TEXT.replace("\n", "\r\n")),
    "order": ("ros2msg", in_another_order(TWIST_TEXT)),
    "no nested types": ("ros2msg", TWIST_TEXT.partition(LINE)[0]),
    "no definition": ("ros2msg", ""),
    "no language": ("", ""),
    "another language": ("ros2idl", "module geometry_msgs {};"),
}
OTHER_FIELDS = {
    "a nested type": (TWIST_TEXT.replace("float64 x", "float32 x"), "geometry_msgs/Vector3 have"),
    "a nested array": (TWIST_TEXT.replace("float64 x", "float64[1] x"), r"float64\[1\] x"),
    "the message": (TWIST_TEXT.replace(" twist", " wrench", 1), "differs from ROS's"),
}


def twist() -> Any:
    vectors = (message("geometry_msgs/msg/Vector3", *values) for values in ((1, 2, 3), (4, 5, 6)))
    return message(TWIST_TYPE, header(), message("geometry_msgs/msg/Twist", *vectors))


def twist_data() -> bytes:
    return bytes(STORE.serialize_cdr(twist(), TWIST_TYPE))


@pytest.mark.parametrize("case", SAME_FIELDS)
def test_definitions_of_equal_fields(tmp_path: Path, case: str) -> None:
    """Two publishers of one topic, whose definitions differ in their text."""
    first, data = ("ros2msg", TWIST_TEXT), twist_data()
    for number, pair in enumerate(([first, SAME_FIELDS[case]], [SAME_FIELDS[case], first])):
        channels = [(language, text.encode(), data) for language, text in pair]
        path = write_channels(tmp_path / f"{number}.mcap", TWIST_TYPE, "cdr", channels)
        frames = frames_of(open_source(path))
        assert [frame["x"].tolist() for frame in frames] == [[1, 2, 3, 4, 5, 6]] * 4


@pytest.mark.parametrize("case", OTHER_FIELDS)
def test_definitions_of_other_fields(tmp_path: Path, case: str) -> None:
    """They are refused if the topic is read."""
    (text, match), data = OTHER_FIELDS[case], twist_data()
    definitions = (TWIST_TEXT, text)
    channels = [("ros2msg", each.encode(), data) for each in definitions]
    path = write_channels(tmp_path / "a.mcap", TWIST_TYPE, "cdr", channels)
    with pytest.raises(SourceError, match=match) as caught:
        open_source(path).schema()
    assert caught.value.file == str(path)
    assert caught.value.got == "/x"
    [frame, *_] = frames_of(open_source(path, features=["log_time"], clock="/x"))
    assert frame["log_time"] == 1


def test_definitions_in_idl(tmp_path: Path) -> None:
    name = "std_msgs/msg/Float64"
    data = bytes(STORE.serialize_cdr(message(name, 0.5), name))
    note = '@verbatim (language="comment", text="a // b" "c")'
    first = IDL.format(f"{note}\nstruct Float64 {{ double data; }};")
    same = '// a comment; "one"\n#include "x.idl"\n' + IDL.format(
        "/* of it\n */ module Float64_Constants { const double MAX = 3.0; };\n"
        'struct Float64 {\n  @unit (value="m") double data;\n};'
    )
    other = IDL.format("struct Float64 { double data; /* and */ double more; };")
    path = tmp_path / "a.mcap"
    for second in (same, f"{LINE}IDL: {name}\n{same}"):
        channels = [("ros2idl", text.encode(), data) for text in (first, second)]
        write_channels(path, name, "cdr", channels)
        assert [frame["x"] for frame in frames_of(open_source(path))] == [0.5] * 4
    write_channels(path, name, "cdr", [("ros2idl", t.encode(), data) for t in (first, other)])
    with pytest.raises(SourceError, match="two definitions of std_msgs/Float64 have other fields"):
        open_source(path).schema()


def test_definitions_of_foxglove(tmp_path: Path) -> None:
    """In protocol buffers the numbers of fields count, in JSON nothing."""
    path, [picture] = tmp_path / "a.mcap", pictures(1)
    about = {"width": 8, "height": 6, "encoding": "rgb8", "step": 24}
    channels = []
    for sizes in ((20, 3, "UINT32"), (20, 3, "FIXED32"), (3, 20, "UINT32")):
        build, described = raw_image(*sizes)
        data = build(**about, data=picture.tobytes()).SerializeToString()
        channels.append(("protobuf", described, data))
    write_channels(path, "foxglove.RawImage", "protobuf", channels[:2])
    for frame in frames_of(open_source(path)):
        np.testing.assert_array_equal(frame["x"], picture)
    write_channels(path, "foxglove.RawImage", "protobuf", channels)
    match = "two definitions of foxglove.RawImage number their fields differently"
    with pytest.raises(SourceError, match=match):
        open_source(path).schema()
    data = json.dumps(about | {"data": base64.b64encode(picture.tobytes()).decode()}).encode()
    schemas = (b"{}", b'{"type": "object"}')
    channels = [("jsonschema", schema, data) for schema in schemas]
    write_channels(path, "foxglove.RawImage", "json", channels)
    for frame in frames_of(open_source(path)):
        np.testing.assert_array_equal(frame["x"], picture)


def test_definitions_of_ros1(tmp_path: Path) -> None:
    """Each connection of a bag has a definition."""
    text = STORE1.generate_msgdef(TWIST_TYPE, ros_version=1)[0]
    data = STORE1.serialize_ros1(ros1(twist()), TWIST_TYPE)
    assert "uint32 seq" in text
    commented, changed = f"# a twist\n{text}", text.replace("uint32", "int32")
    for second, is_equal in ((commented, True), (changed, False)):
        path = tmp_path / f"{is_equal}.bag"
        with Writer1(path) as writer:
            for caller, definition in (("/a", text), ("/b", second)):
                connection = writer.add_connection(
                    *("/x", TWIST_TYPE), msgdef=definition, md5sum="*", callerid=caller
                )
                writer.write(connection, 5, data)
        source = open_source(path)
        if is_equal:
            assert [frame["x"].tolist() for frame in frames_of(source)] == [[1, 2, 3, 4, 5, 6]] * 2
            continue
        with pytest.raises(SourceError, match="two definitions of std_msgs/Header have other"):
            source.schema()


ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "h264": ("libx264", {"bf": "0"}),
    "h265": ("libx265", {"x265-params": f"{QUIET}:bframes=0:keyint=4"}),
    "vp9": ("libvpx-vp9", {"lag-in-frames": "0"}),
    "av1": ("libsvtav1", {"svtav1-params": "pred-struct=1:keyint=4"}),
}


def packets_of(
    folder: Path, format_: str, p_frames: Sequence[int] = (), **options: str
) -> tuple[list[bytes], npt.NDArray[np.uint8]]:
    """Packets of twelve frames with keyframes at 0, 4 and 8, and the frames that FFmpeg decodes."""
    codec, own = ENCODERS[format_]
    path = folder / "original.mp4"
    write_video(path, scenes(12), codec, options={"g": "4", **own, **options}, p_frames=p_frames)
    return [each for gop in gops_of(path) for each in gop.packets], decoded(path)[1]


VIDEO = "/front/video"


def write_videos(path: Path, packets: Sequence[bytes], format_: str, kind: str = "mcap") -> Path:
    """A message per packet at 100 Hz, and images of another topic at 0, 30 and 90 ms."""
    times = [START + 10 * MS * i for i in range(len(packets))]
    small = png(pictures(1)[0])
    if kind == "json":
        ask = [("/tick", "foxglove.CompressedImage", times[i], "png", small) for i in (0, 3, 9)]
        ask += [
            (VIDEO, "foxglove.CompressedVideo", time, format_, packet)
            for time, packet in zip(times, packets, strict=True)
        ]
        write_json(path / "run.mcap", [
            (topic, type_, time, {"format": name, "data": base64.b64encode(data).decode()})
            for topic, type_, time, name, data in ask
        ])  # fmt: skip
        return path
    messages = [("/tick", times[i], compressed(small, "png")) for i in (0, 3, 9) if i < len(times)]
    messages += [
        (VIDEO, time, video_message(packet, format_, time + 5))
        for time, packet in zip(times, packets, strict=True)
    ]
    return write(path, sorted(messages, key=lambda each: each[1]), kind)


@pytest.mark.parametrize(
    ("kind", "format_"),
    [("rosbag2", "h264"), ("ros1", "h264"), ("mcap", "h265"), ("json", "vp9"), ("json", "av1")],
)
def test_videos(tmp_path: Path, kind: str, format_: str) -> None:
    """Every message is decoded, picked ones are frames; none before the first keyframe."""
    late = {"bf": "2", "p_frames": [*range(12)]} if kind == "ros1" else {}  # declares B-frames
    packets, images = packets_of(tmp_path, format_, **late)  # type: ignore[arg-type]
    write_videos(tmp_path, packets[2:], format_, kind)
    source = open_source(tmp_path, clock="/tick", tolerance=0.001)
    assert source.schema()["front.video"].kind == "image"
    first, *others = frames_of(source)
    assert "front.video" not in first
    for frame, number in zip(others, (5, 11), strict=True):
        np.testing.assert_array_equal(frame["front.video"], images[number])
    notes = inventory_of(source).notes
    assert {
        f"run: {VIDEO} has 2 messages before a keyframe", f"1 frames lack {VIDEO}"
    } <= {*notes}  # fmt: skip
    alone = open_source(tmp_path, features=["front.video"], clock=VIDEO)
    every = frames_of(alone)
    assert ["front.video" in frame for frame in every] == [False] * 2 + [True] * 8
    np.testing.assert_array_equal([frame["front.video"] for frame in every[2:]], images[4:])
    if kind != "json":
        stamped = open_source(tmp_path, features=["header_time", "front.video"], time="header")
        assert frames_of(stamped)[3]["header_time"] == START + 30 * MS + 5


def test_videos_that_cannot_be_decoded(tmp_path: Path) -> None:
    """Damage, B-frames, two frames in a message, no keyframe, another codec or type."""
    packets, _ = packets_of(tmp_path, "h264")
    frames_b, _ = packets_of(tmp_path, "h264", bf="2")
    av1, _ = packets_of(tmp_path, "av1")
    refused = r"cannot decode a message of a video.*without B-frames; got: message {} of {} at {}"
    at = [START + 10 * MS * i for i in range(12)]
    cases = [
        ([*packets[:5], packets[5][:9], *packets[6:]], "h264", refused.format(5, VIDEO, at[5])),
        (frames_b, "h264", refused.format(2, VIDEO, at[2])),
        ([*av1[:2], av1[2] + av1[3], *av1[4:]], "av1", refused.format(3, VIDEO, at[3])),
        (packets[1:4], "h264", f"video without a keyframe; .*got: {VIDEO}"),
        (packets, "prores", r"cannot decode a message.*unsupported video format 'prores'"),
    ]
    for number, (sent, format_, match) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(SourceError, match=match):
            frames_of(open_source(write_videos(folder, sent, format_), clock=VIDEO))
    both = (compressed(png(scenes(1)[0]), "png"), video_message(packets[0], "h264"))
    for first, second in (both, both[::-1]):
        write_mcap(tmp_path / "0" / "run.mcap", [("/x", START, first)])
        write_mcap(tmp_path / "0" / "second.mcap", [("/x", START, second)])
        with pytest.raises(SourceError, match="type differs from the first"):
            frames_of(open_source(tmp_path / "0"), 1)


# --- refused files ---------------------------------------------------------------------------


def test_types_that_cannot_be_read(tmp_path: Path) -> None:
    text = message("std_msgs/msg/ColorRGBA", 1.0, 0.0, 0.0, 1.0)
    path = write_mcap(tmp_path / "a.mcap", [*recording(), ("/chatter", START + 1, text)])
    left_out = inventory_of(open_source(path, clock=CAMERA)).left_out_data
    assert "topic /chatter: 1 message, no reader for std_msgs/msg/ColorRGBA, cdr" in map(
        str, left_out
    )
    source = open_source(path, map={"image": CAMERA})
    assert source.episodes()[0].metadata["topics_not_read"] == {
        "/chatter": 1, "/imu/data": 50, "/joint_states": 3,
    }  # fmt: skip
    names = ["imu.data.orientation"]
    assert [*open_source(path, features=names, clock=CAMERA).schema()] == names
    with pytest.raises(SourceError, match=r"unsupported types of topics; .* --map") as caught:
        open_source(path, map={"image": CAMERA, "text": "/chatter"}).schema()
    assert f"topics among {CAMERA} (sensor_msgs/msg/Image, cdr), /imu/" in str(caught.value)
    assert caught.value.got == "/chatter (std_msgs/msg/ColorRGBA, cdr)"
    write_mcap(path, [("/chatter", START + 1, text)])
    with pytest.raises(SourceError, match=r"topics of type sensor_msgs/msg/Image, .*foxglove"):
        open_source(path).schema()


def test_unknown_names_and_invalid_options(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", recording())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"map": {"image": "/cam"}}, r"no such topic; .*expected: topics among /camera.*got: /cam"),
        ({"map": {"a": CAMERA, "b": CAMERA}}, rf"map names a topic twice; .*got: {CAMERA}"),
        ({"clock": "/cam"}, r"no such clock topic; .*got: /cam"),
        ({"features": ["imu.data.mass"]}, r"no such feature; .*got: imu.data.mass"),
        ({"align": "best"}, r"invalid align; expected: nearest or last"),
        *(({"tolerance": each}, "invalid tolerance") for each in (-1, float("nan"), "fast", True)),
    ]
    for options, match in cases:
        with pytest.raises(SourceError, match=match):
            open_source(path, **options).episodes()
    write_mcap(path, [(topic, START, imu([0.0] * 10)) for topic in ("/a/b", "/a.b")])
    with pytest.raises(SourceError, match=r"two topics give the same feature name; .* --map"):
        open_source(path).schema()


def test_recordings_that_differ_from_the_first(tmp_path: Path) -> None:
    larger = (CAMERA, START + 950 * MS, image(np.zeros((6, 9, 3), np.uint8), "rgb8"))
    path = write_mcap(tmp_path / "c.mcap", [*recording(), larger])
    differs = r"differs from the first one in dtype or shape; .*episode: c; feature: cam"
    with pytest.raises(SourceError, match=differs):
        frames_of(open_source(path, clock=CAMERA))
    path.unlink()
    write_mcap(tmp_path / "a.mcap", recording())
    write_mcap(tmp_path / "b.mcap", [each for each in recording() if each[0] != CAMERA])
    source = open_source(tmp_path, clock=CAMERA)
    assert [info.key for info in source.episodes()] == ["a", "b"]
    with pytest.raises(SourceError, match=r"no messages of the clock topic; .*episode: b; "):
        frames_of(source, 1)


def test_damaged_files_are_refused_or_read_correctly(tmp_path: Path) -> None:
    """In a small file: either a SourceError or the correct values."""
    path = write_mcap(tmp_path / "a.mcap", [("/imu", START, imu([*range(10)]))])
    whole = path.read_bytes()
    [want] = frames_of(open_source(path))
    rng = np.random.default_rng(3)
    places = rng.choice(len(whole), 150, replace=False)
    broken = [b"", b"no bag", *(whole[: int(n)] for n in places[:50])]
    bits = [bytes([whole[n] ^ 1 << int(rng.integers(8))]) for n in places]
    broken += [whole[:n] + bit + whole[n + 1 :] for n, bit in zip(places, bits, strict=True)]
    refused = []
    for data in broken:
        path.write_bytes(data)
        try:
            [frame] = frames_of(McapSource(path))
            for name, value in frame.items():
                if name != "log_time":  # times in the index have no checksum
                    np.testing.assert_array_equal(value, want[f"imu.{name.split('.')[1]}"])
        except SourceError as error:
            refused.append(error)
    assert {(error.file, error.episode) for error in refused} == {(str(path), "a")}
    assert ["damaged or unfinished" in error.message for error in refused[:2]] == [True] * 2
    assert sum("damaged or unfinished file" in error.message for error in refused) > 50


GOOD = [
    image(np.zeros((2, 3, 3), np.uint8), "rgb8"),
    imu([0.0] * 10),
    joints(["a", "b"], [1, 2], [3, 4]),
    points(np.zeros(2, [("x", "<f4"), ("n", "<u2", 3)])),
]
NUMBERS = st.integers(0, 2**32 - 1) | st.integers(0, 40)
ENCODINGS = ["rgb8", "bgra8", "mono16", "32FC3", "64FC1", "8SC2", "bayer_bggr16", "x"]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
PICTURE = {"encoding": "rgb8", "data": base64.b64encode(bytes(60)).decode()}


def check_message(folder: Path, name: str, data: bytes, *how: Any) -> None:
    """The message becomes a frame, or an error with the path of the file."""
    path = write_raw(folder / "a.mcap", [("/x", name, 5, data)], *how)
    try:
        [frame] = frames_of(McapSource(path))
        for value in frame.values():
            assert np.asarray(value).nbytes <= len(data) + 64
    except SourceError as error:
        assert error.file == str(path)  # noqa: PT017 - a frame is valid, too


@given(st.data())
def test_any_bytes_are_a_message_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Arbitrary bytes, changed valid messages, and images with any sizes and encoding."""
    folder, draw = tmp_path_factory.getbasetemp(), data.draw
    message_ = draw(st.sampled_from(GOOD))
    whole = bytes(STORE.serialize_cdr(message_, message_.__msgtype__))
    at = draw(st.integers(0, len(whole) - 1))
    changed = whole[:at] + bytes([draw(st.integers(0, 255))]) + whole[at + 1 :]
    for each in (changed, whole[:at], changed[: draw(st.integers(0, len(whole)))]):
        check_message(folder, message_.__msgtype__, each)
    junk, order = draw(st.binary(max_size=120)), draw(st.integers(0, 1))
    name = draw(st.sampled_from(ROS_TYPES))
    check_message(folder, name, bytes([0, order, 0, 0]) + junk)
    sizes = [draw(NUMBERS), draw(NUMBERS)]
    pixels = (draw(st.sampled_from(ENCODINGS)), order, draw(NUMBERS), np.frombuffer(junk, "u1"))
    drawn = message(IMAGE, header(), *sizes, *pixels)
    check_message(folder, IMAGE, bytes(STORE.serialize_cdr(drawn, IMAGE)))
    for name in ("foxglove.RawImage", "foxglove.CompressedImage"):
        check_message(folder, name, junk, "protobuf", "protobuf", raw_image()[1])
        check_message(folder, name, junk, "protobuf", "protobuf", junk)
        keys = dict.fromkeys(["data", "width", "height", "step"], JSON)
        drawn_json = draw(st.fixed_dictionaries({}, optional=keys))
        for value in (PICTURE | drawn_json, drawn_json, draw(JSON)):
            check_message(folder, name, json.dumps(value).encode(), "json", "jsonschema", b"{}")


def test_both_byte_orders(tmp_path: Path) -> None:
    for each in GOOD:
        both, name = [], each.__msgtype__
        for little in (True, False):
            data = bytes(STORE.serialize_cdr(each, name, little_endian=little))
            source = open_source(write_raw(tmp_path / f"{little}.mcap", [("/x", name, 5, data)]))
            both.append((frames_of(source), source.episodes()[0].metadata.get("names")))
        np.testing.assert_equal(both[0], both[1], name)


TIMES = st.lists(st.integers(0, 60), min_size=1, max_size=30).map(sorted)


@example([10], [5, 15], "nearest", 5)  # of two at equal distance the earlier one
@given(TIMES, TIMES, st.sampled_from(["nearest", "last"]), st.integers(0, 70))
def test_alignment_equals_brute_force(
    tmp_path_factory: pytest.TempPathFactory,
    clock: list[int],
    times: list[int],
    how: str,
    tolerance: int,
) -> None:
    every = [("/x", t) for t in times] + [("/clock", t) for t in clock]
    messages = [(topic, START + t * MS, joints(["a"], [t])) for topic, t in every]
    messages.sort(key=lambda each: each[1])
    path = write_mcap(tmp_path_factory.getbasetemp() / "aligned.mcap", messages)
    source = open_source(path, clock="/clock", align=how, tolerance=tolerance / 1000)
    for now, frame in zip(clock, frames_of(source), strict=True):
        near = [t for t in times if abs(t - now) <= tolerance and (how == "nearest" or t <= now)]
        best = sorted(near, key=lambda t: (abs(t - now), t))[:1]
        assert (frame["x.position"].tolist() if "x.position" in frame else []) == best


def test_invalid_messages_and_other_definitions(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    for data in (b"", b"\0\1\0\0", b"\x28\xb5\x2f\xfd" + bytes(90), bytes(30)):
        write_raw(path, [("/j", "sensor_msgs/msg/JointState", 5, data)])
        with pytest.raises(SourceError, match=r"cannot decode a message; .*\.mcap"):
            frames_of(open_source(path))
    text = b"# old\nHeader header\nfloat32 MAX=3\nfloat64[4] orientation\n"
    write_raw(path, [("/imu", "sensor_msgs/msg/Imu", 5, bytes(400))], definition=text)
    differs = r"differs from ROS's: got Header header; float64.4. orientation, expected"
    with pytest.raises(SourceError, match=differs):
        open_source(path).schema()


def test_on_the_command_line(tmp_path: Path) -> None:
    write_bag(tmp_path / "bags" / "run", recording())
    chosen = ["--map", f"image={CAMERA}", "--map", "imu=/imu/data"]
    write = partial(run, "write", "--src", tmp_path / "bags", *chosen, "--workers", "1")
    write("--source-option", f"clock={CAMERA}", "--source-option", "tolerance=0.05")
    with seqrecord.open(tmp_path / "bags-records") as dataset:
        assert "imu.orientation" in dataset.features
        assert len(dataset.episodes["run"]) == 5
    other = ("--dst", tmp_path / "b", "--source-option", "clock=/other")
    assert "no such clock topic" in str(write(*other, code=1).output)


# Databases that compute endless or huge rows


TOPICS = (
    "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT, type TEXT, serialization_format TEXT, "
    "offered_qos_profiles TEXT); "
    "INSERT INTO topics VALUES(1, '/a', 'std_msgs/msg/Float64', 'cdr', ''); "
)
COLUMNS = "id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER"
VALUE = "x'00010000000000000000f03f'"
MESSAGES = (
    f"CREATE TABLE messages({COLUMNS}, data BLOB); INSERT INTO messages VALUES(1, 1, 5, {VALUE});"
)
ENDLESS = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)"
REFUSED = {
    "endless topics": f"CREATE VIEW topics AS {ENDLESS} SELECT x AS id, '/a' AS name, "
    f"'std_msgs/msg/Float64' AS type, 'cdr' AS serialization_format FROM c; {MESSAGES}",
    "endless messages": f"{TOPICS} CREATE VIEW messages AS {ENDLESS} SELECT x AS id, 1 AS "
    f"topic_id, x AS timestamp, {VALUE} AS data FROM c;",
    "a blob of 900 MB": f"{TOPICS} CREATE VIEW messages AS SELECT 1 AS id, 1 AS topic_id, "
    "5 AS timestamp, zeroblob(900000000) AS data;",
    "a generated blob": f"{TOPICS} CREATE TABLE messages({COLUMNS}, data BLOB GENERATED ALWAYS AS "
    "(zeroblob(900000000)) VIRTUAL); INSERT INTO messages VALUES(1, 1, 5);",
    "a virtual table": f"{TOPICS} CREATE VIRTUAL TABLE messages USING fts5(id, topic_id, "
    "timestamp, data);",
    "no messages": TOPICS,
    "a name of bytes": TOPICS.replace("'/a'", "x'ff00'") + MESSAGES,
    "no name": TOPICS.replace("'/a'", "NULL") + MESSAGES,
}


def database_write(path: Path, script: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(script)
        database.commit()


@pytest.mark.parametrize("case", REFUSED)
def test_a_database_that_computes_its_rows(tmp_path: Path, case: str) -> None:
    database_write(tmp_path / "a.db3", REFUSED[case])
    begin = time.process_time()
    with pytest.raises(SourceError) as caught:
        open_source(tmp_path, clock="/a").schema()
    # Mean 0.01 s, standard deviation 0.01 s; a query that ran would take minutes.
    assert time.process_time() - begin < 5
    assert caught.value.file == str(tmp_path / "a.db3")
    assert caught.value.expected or caught.value.got


def test_views_and_other_tables_beside_the_messages(tmp_path: Path) -> None:
    beside = f"CREATE VIEW all_messages AS {ENDLESS} SELECT * FROM c; CREATE TABLE schema(v);"
    database_write(tmp_path / "a.db3", TOPICS + MESSAGES + beside)
    seqrecord.convert(open_source(tmp_path, clock="/a"), tmp_path / "r", workers=1)
    with seqrecord.open(tmp_path / "r") as dataset:
        assert dataset.num_frames == 1


def test_many_topics(tmp_path: Path) -> None:
    """The time of a list of topics is proportional to its length."""
    numbers = f"{ENDLESS[:-1]} WHERE x < 40000)"
    others = f"INSERT INTO topics {numbers} SELECT x + 1, '/t' || x, 'a/msg/B', 'cdr', '' FROM c;"
    database_write(tmp_path / "a.db3", TOPICS + MESSAGES + others)
    begin = time.process_time()
    assert list(open_source(tmp_path, clock="/a").schema()) == ["a", "log_time"]
    # Mean 0.5 s, standard deviation 0.1 s on a busy machine.
    assert time.process_time() - begin < 5


def test_two_rows_of_one_topic(tmp_path: Path) -> None:
    """A topic that two publishers offer has two rows in a database, and all of its messages."""
    texts = [message("std_msgs/msg/String", str(n)) for n in range(4)]
    messages = [("/s", START + n, each) for n, each in enumerate(texts)]
    database = write_bag(tmp_path / "r", messages, sqlite=True)
    source = partial(open_source, tmp_path)
    others = "name, type, serialization_format, offered_qos_profiles, type_description_hash"
    copied = f"SELECT 99, {others} FROM topics"
    later = f"UPDATE messages SET topic_id = 99 WHERE timestamp > {START + 1}"
    database_write(database, f"INSERT INTO topics {copied}; {later};")
    assert [frame["s"] for frame in frames_of(source())] == ["0", "1", "2", "3"]
    database_write(database, "UPDATE topics SET type = 'std_msgs/msg/Int8' WHERE id = 99")
    with pytest.raises(SourceError, match="the topic has two types"):
        frames_of(source())
