"""MCAP files and rosbag2 folders: aligned frames, every type, every way to be broken."""

from __future__ import annotations

import base64
import functools
import json
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner
from google.protobuf import descriptor_pb2
from hypothesis import example, given
from hypothesis import strategies as st
from mcap.writer import CompressionType, IndexType

import seqrecord
from seqrecord import EncodedImage, open_source
from seqrecord.errors import SourceError
from seqrecord.sources import McapSource, Source
from tests.bags import (
    IMAGE,
    STORE,
    compressed,
    header,
    image,
    imu,
    joints,
    jpeg,
    message,
    png,
    write_bag,
    write_json,
    write_mcap,
    write_raw,
)
from tests.command_line import main
from tests.tf_records import messages_of

START = 1_790_000_000_000_000_000
MS = 1_000_000
CAMERA = "/camera/image_raw"


def pictures(count: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 6, 8, 3), np.uint8)


def recording(count: int = 5) -> list[tuple[str, int, Any]]:
    """A camera at 10 Hz, an IMU at 100 Hz that begins 20 ms later, and joints at 4 Hz."""
    messages: list[tuple[str, int, Any]] = [
        (CAMERA, START + 100 * MS * i, image(picture, "rgb8"))
        for i, picture in enumerate(pictures(count))
    ]
    messages += [
        ("/imu/data", START + 20 * MS + 10 * MS * i, imu([*range(10 * i, 10 * i + 10)]))
        for i in range(10 * count)
    ]
    messages += [
        ("/joint_states", START + 250 * MS * i, joints(["a", "b"], [i, i + 0.5], [7.0, 8.0]))
        for i in range(2 * count // 5 + 1)
    ]
    return sorted(messages, key=lambda each: each[1])


def frames_of(source: Source, number: int = 0) -> list[dict[str, Any]]:
    return [dict(frame) for frame in source.frames(source.episodes()[number])]


def write(path: Path, messages: list[tuple[str, int, Any]], kind: str) -> Path:
    if kind == "rosbag2":
        write_bag(path / "run", messages)
    elif kind == "sqlite":
        write_bag(path / "run", messages, sqlite=True)
    else:
        options: dict[str, dict[str, Any]] = {
            "lz4": {"compression": CompressionType.LZ4},
            "no chunks": {"use_chunking": False},
            "no index": {"index_types": IndexType.NONE},
            "no summary": {
                "use_statistics": False,
                "index_types": IndexType.NONE,
                "repeat_channels": False,
            },
        }
        write_mcap(path / "run.mcap", messages, **options.get(kind, {}))
    return path


KINDS = ["mcap", "lz4", "rosbag2", "sqlite", "no chunks", "no index", "no summary"]


@pytest.mark.parametrize("kind", KINDS)
def test_frames_at_the_camera_s_times(tmp_path: Path, kind: str) -> None:
    source = open_source(write(tmp_path, recording(), kind), clock=CAMERA)
    schema = source.schema()
    assert sorted(str(spec) for spec in schema.values()) == [
        "camera.image_raw: uint8 [6, 8, 3]",
        "imu.data.angular_velocity: float64 [3]",
        "imu.data.linear_acceleration: float64 [3]",
        "imu.data.orientation: float64 [4]",
        "joint_states.effort: float64 [2]",
        "joint_states.position: float64 [2]",
        "log_time: int64 []",
    ]
    [info] = source.episodes()
    assert (info.key, info.num_frames, info.fps) == ("run", 5, 10.0)
    meanings = {name: (spec.kind, spec.unit) for name, spec in schema.items()}
    assert meanings["camera.image_raw"] == ("image", None)
    assert meanings["imu.data.angular_velocity"] == ("imu", "rad/s")
    assert meanings["joint_states.position"] == ("state", None)
    assert meanings["log_time"] == ("timestamp", "ns")
    assert info.metadata["topics"] == {
        CAMERA: {"messages": 5, "used": 5, "dropped": 0, "frames_without": 0},
        "/imu/data": {"messages": 50, "used": 5, "dropped": 45, "frames_without": 0},
        "/joint_states": {"messages": 3, "used": 3, "dropped": 0, "frames_without": 0},
    }
    assert info.metadata["names"]["joint_states.position"] == ["a", "b"]
    frames = frames_of(source)
    assert len(frames) == 5
    for i, frame in enumerate(frames):
        assert list(frame) == list(schema)
        assert frame["log_time"] == START + 100 * MS * i
        np.testing.assert_array_equal(frame["camera.image_raw"], pictures(5)[i])
        nearest = max(10 * i - 2, 0)
        assert frame["imu.data.orientation"].tolist() == [*range(10 * nearest, 10 * nearest + 4)]
        assert frame["imu.data.linear_acceleration"][2] == 10 * nearest + 9
        joint = [0, 0, 1, 1, 2][i]  # at 0, 100, 200, 300, 400 ms; the joints at 0, 250, 500 ms
        assert frame["joint_states.position"].tolist() == [joint, joint + 0.5]
        assert frame["joint_states.effort"].tolist() == [7.0, 8.0]


def test_alignments_and_clocks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The last one known within a bound; another clock; what is dropped is told, once."""
    write(tmp_path, recording(), "mcap")
    source = open_source(tmp_path, clock=CAMERA, align="last", tolerance=0.06)
    frames = frames_of(source)
    for i, frame in enumerate(frames):
        assert ("imu.data.orientation" in frame) == (i > 0)  # the first came 20 ms later
        if i:
            assert frame["imu.data.orientation"][0] == 10 * (10 * i - 2)
        # at 0, 100, 200, 300, 400 ms the last joints are 0, 100, 200, 50, 150 ms old
        assert ("joint_states.position" in frame) == (i in (0, 3))
    topics = source.episodes()[0].metadata["topics"]
    assert topics["/joint_states"] == {
        "messages": 3, "used": 2, "dropped": 1, "frames_without": 3,
    }  # fmt: skip
    assert topics["/imu/data"]["frames_without"] == 1
    source = open_source(tmp_path, clock="/imu/data", map={"image": CAMERA, "imu": "/imu/data"})
    frames = frames_of(source)
    assert len(frames) == 50
    assert "joint_states.position" not in source.schema()
    for i, frame in enumerate(frames):
        assert frame["log_time"] == START + (20 + 10 * i) * MS
        assert frame["imu.orientation"][0] == 10 * i
        if "image" in frame:  # the last picture is at 400 ms, the last time 510 ms
            nearest = min((20 + 10 * i + 49) // 100, 4)  # of two as near the earlier one
            np.testing.assert_array_equal(frame["image"], pictures(5)[nearest])
        else:
            assert 20 + 10 * i > 500
    source = open_source(tmp_path, clock=CAMERA)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "seqrecord"):
        source.episodes()
        source.episodes()
    [said] = caplog.messages
    assert f"45 of 58 messages dropped: frames are at the times of {CAMERA}" in said


def test_a_clock_that_is_not_steady_has_no_rate(tmp_path: Path) -> None:
    for name, times in (("a", [0, 100, 209]), ("b", [0, 100, 230]), ("c", [0]), ("d", [0, 0])):
        messages = [("/imu", START + time * MS, imu([0.0] * 10)) for time in times]
        write_mcap(tmp_path / f"{name}.mcap", messages)
    rates = [info.fps for info in open_source(tmp_path).episodes()]
    assert rates == [pytest.approx(2e3 / 209), None, None, None]


def test_messages_out_of_order_in_the_file(tmp_path: Path) -> None:
    messages = recording()
    shuffled = [messages[i] for i in np.random.default_rng(1).permutation(len(messages))]
    write_mcap(tmp_path / "run.mcap", shuffled)
    write(tmp_path / "sorted", messages, "rosbag2")
    one = frames_of(open_source(tmp_path / "run.mcap", clock=CAMERA))
    two = frames_of(open_source(tmp_path / "sorted", clock=CAMERA))
    np.testing.assert_equal(one, two)
    write_mcap(tmp_path / "plain.mcap", shuffled, use_chunking=False)
    source = open_source(tmp_path / "plain.mcap", clock=CAMERA)
    with pytest.raises(
        SourceError, match=r"timestamps are not ascending in a file without an index"
    ):
        frames_of(source)


def test_a_recording_of_several_files(tmp_path: Path) -> None:
    messages = recording(30)
    folder = tmp_path / "bags" / "run"
    folder.mkdir(parents=True)
    (folder / "metadata.yaml").write_text("rosbag2_bagfile_information: {}\n")
    cuts = [len(messages) * i // 12 for i in range(13)]
    for i, (begin, end) in enumerate(pairwise(cuts)):
        write_mcap(folder / f"run_{i}.mcap", messages[begin:end])
    write_mcap(tmp_path / "one.mcap", messages)
    split = open_source(tmp_path / "bags", clock=CAMERA)
    whole = open_source(tmp_path / "one.mcap", clock=CAMERA)
    [info] = split.episodes()
    assert (info.key, info.num_frames) == ("run", 30)
    assert info.metadata["files"] == [f"run_{i}.mcap" for i in range(12)]
    assert info.metadata["topics"] == whole.episodes()[0].metadata["topics"]
    np.testing.assert_equal(frames_of(split), frames_of(whole))
    (folder / "run_3.mcap").rename(folder / "run_13.mcap")
    with pytest.raises(SourceError, match=r"not ascending across files; .*run_13.*episode"):
        frames_of(open_source(tmp_path / "bags", clock=CAMERA))


def test_a_topic_of_two_types(tmp_path: Path) -> None:
    (tmp_path / "metadata.yaml").write_text("rosbag2_bagfile_information: {}\n")
    write_mcap(tmp_path / "run_0.mcap", [("/a", START, imu([0.0] * 10))])
    path = write_mcap(tmp_path / "run_1.mcap", [("/a", START + 1, joints(["a"], [1.0]))])
    with pytest.raises(SourceError, match="the topic has two types") as caught:
        open_source(tmp_path).schema()
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
    "nav_msgs/msg/Odometry",
]
COLOURS = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
DEPTH = np.array([[0.5, 1.5, np.inf], [3.25, 0, 9]], np.float32)
SHORTS = np.array([[1, 256, 65535], [4, 5, 6]], np.uint16)


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize(
    ("stored", "encoding", "want"),
    [
        (COLOURS[..., :3], "rgb8", COLOURS[..., :3]),
        (COLOURS[..., :3], "bgr8", COLOURS[..., [2, 1, 0]]),
        (COLOURS, "rgba8", COLOURS),
        (COLOURS, "bgra8", COLOURS[..., [2, 1, 0, 3]]),
        (COLOURS[..., 0], "mono8", COLOURS[..., 0]),
        (COLOURS[..., 0], "8UC1", COLOURS[..., 0]),
        (COLOURS[..., :3], "8UC3", COLOURS[..., :3]),
        (COLOURS[..., 0], "bayer_rggb8", COLOURS[..., 0]),
        (SHORTS, "mono16", SHORTS),
        (SHORTS, "16UC1", SHORTS),
        (DEPTH, "32FC1", DEPTH),
        (np.stack([DEPTH, DEPTH + 1], -1), "32FC2", np.stack([DEPTH, DEPTH + 1], -1)),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_encodings_of_images(
    tmp_path: Path, stored: Any, encoding: str, want: Any, padding: int
) -> None:
    for big in (False, True):
        path = tmp_path / f"{big}.mcap"
        write_mcap(path, [("/image", START, image(stored, encoding, padding=padding, big=big))])
        source = open_source(path)
        assert source.schema()["image"].dtype == want.dtype
        [frame] = frames_of(source)
        np.testing.assert_array_equal(frame["image"], want)


def test_compressed_images(tmp_path: Path) -> None:
    picture = np.full((16, 24, 3), (200, 100, 50), np.uint8)
    files = {
        "/rgb/compressed": (compressed(jpeg(picture), "rgb8; jpeg compressed bgr8"), "jpeg"),
        "/png": (compressed(png(picture), "png"), "png"),
        "/grey": (compressed(png(picture[..., 0]), "mono8; png compressed "), None),
        "/depth": (
            compressed(bytes(12) + png(SHORTS), "16UC1; compressedDepth png"), None,
        ),
    }  # fmt: skip
    write_mcap(tmp_path / "a.mcap", [(t, START, each) for t, (each, _) in files.items()])
    source = open_source(tmp_path, clock="/png")
    [frame] = frames_of(source)
    assert abs(frame["rgb.compressed"].astype(int) - picture).max() < 4
    np.testing.assert_array_equal(frame["png"], picture)
    np.testing.assert_array_equal(frame["grey"], picture[..., 0])
    np.testing.assert_array_equal(frame["depth"], SHORTS)
    kept = open_source(tmp_path, clock="/png", keep_encoded=True)
    [frame] = frames_of(kept)
    for topic, (each, format_) in files.items():
        name = topic.strip("/").replace("/", ".")
        if format_ is None:
            assert kept.schema()[name].codec == ()
        else:
            assert kept.schema()[name].codec == ({"id": "seqrecord.image", "format": format_},)
            assert frame[name] == EncodedImage(bytes(each.data))


def test_poses_and_speeds(tmp_path: Path) -> None:
    vector = "geometry_msgs/msg/Vector3"
    point, turn = [1.0, 2.0, 3.0], [0.0, 0.0, 0.6, 0.8]
    pose = message(
        "geometry_msgs/msg/Pose",
        message("geometry_msgs/msg/Point", *point),
        message("geometry_msgs/msg/Quaternion", *turn),
    )
    twist = message("geometry_msgs/msg/Twist", message(vector, 1, 2, 3), message(vector, 4, 5, 6))
    odometry = message(
        "nav_msgs/msg/Odometry",
        header(),
        "base",
        message("geometry_msgs/msg/PoseWithCovariance", pose, np.arange(36.0)),
        message("geometry_msgs/msg/TwistWithCovariance", twist, np.arange(36.0)),
    )
    messages = [
        ("/pose", START, message("geometry_msgs/msg/PoseStamped", header(), pose)),
        ("/cmd_vel", START, twist),
        ("/stamped", START, message("geometry_msgs/msg/TwistStamped", header(), twist)),
        ("/odom", START, odometry),
    ]
    write_mcap(tmp_path / "a.mcap", messages)
    [frame] = frames_of(open_source(tmp_path, clock="/pose"))
    assert frame["pose"].tolist() == frame["odom.pose"].tolist() == point + turn
    for name in ("cmd_vel", "stamped", "odom.twist"):
        assert frame[name].tolist() == [1, 2, 3, 4, 5, 6]


def test_values_that_a_message_does_not_have(tmp_path: Path) -> None:
    messages = [
        ("/imu", START + i, imu([1.0] * 10, oriented=i != 1)) for i in range(3)
    ]  # fmt: skip
    write_mcap(tmp_path / "a.mcap", messages)
    frames = frames_of(open_source(tmp_path))
    assert ["imu.orientation" in frame for frame in frames] == [True, False, True]
    write_mcap(tmp_path / "b.mcap", [("/j", START, joints(["a"], [1.0]))], definitions=False)
    [frame] = frames_of(open_source(tmp_path / "b.mcap"))
    assert [*frame] == ["j.position", "log_time"]


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


def test_images_of_foxglove_in_json(tmp_path: Path) -> None:
    picture = pictures(1)[0]
    raw = {
        "timestamp": {"sec": 1, "nsec": 0}, "frame_id": "", "width": 8, "height": 6,
        "encoding": "bgr8", "step": 24, "data": base64.b64encode(picture.tobytes()).decode(),
    }  # fmt: skip
    small = {"format": "png", "data": base64.b64encode(png(picture)).decode()}
    write_json(
        tmp_path / "a.mcap",
        [("/raw", "foxglove.RawImage", 5, raw), ("/png", "foxglove.CompressedImage", 5, small)],
    )
    [frame] = frames_of(open_source(tmp_path, clock="/raw"))
    np.testing.assert_array_equal(frame["raw"], picture[..., ::-1])
    np.testing.assert_array_equal(frame["png"], picture)
    broken = {**small, "data": "no base64!"}
    write_json(tmp_path / "b.mcap", [("/png", "foxglove.CompressedImage", 5, broken)])
    with pytest.raises(SourceError, match=r"cannot decode a message; .*b\.mcap.*/png"):
        open_source(tmp_path / "b.mcap").schema()


@functools.lru_cache
def raw_image() -> tuple[Any, bytes]:
    """By Google's library, with fields numbered otherwise than Foxglove does: the file says how."""
    fields = (
        *(("frame_id", 7, "STRING"), ("width", 20, "UINT32"), ("height", 3, "UINT32")),
        *(("encoding", 4, "STRING"), ("step", 5, "UINT32"), ("data", 16, "BYTES")),
        ("more", 31, "DOUBLE"),
    )
    said = " ".join(f'field {{ name: "{n}" number: {i} type: TYPE_{t} }}' for n, i, t in fields)
    file = f'name: "a.proto" package: "foxglove" message_type {{ name: "RawImage" {said} }}'
    build = messages_of(file)["RawImage"]
    files = descriptor_pb2.FileDescriptorSet()
    files.file.add().ParseFromString(build.DESCRIPTOR.file.serialized_pb)
    return build, files.SerializeToString()


def test_images_of_foxglove_in_protocol_buffers(tmp_path: Path) -> None:
    build, described = raw_image()
    picture = pictures(1)[0]
    data = build(
        frame_id="a", width=8, height=6, encoding="rgb8", step=24, data=picture.tobytes(), more=0.5
    ).SerializeToString()
    messages = [("/raw", "foxglove.RawImage", 5, data)]
    path = write_raw(tmp_path / "a.mcap", messages, "protobuf", "protobuf", described)
    [frame] = frames_of(open_source(path))
    np.testing.assert_array_equal(frame["raw"], picture)
    write_raw(path, messages, "protobuf", "protobuf", described[:60])
    with pytest.raises(SourceError):
        open_source(path).schema()


# --- what is refused -------------------------------------------------------------------------


def test_types_that_cannot_be_read(tmp_path: Path) -> None:
    text = message("std_msgs/msg/ColorRGBA", 1.0, 0.0, 0.0, 1.0)
    write_mcap(tmp_path / "a.mcap", [*recording(), ("/chatter", START + 1, text)])
    with pytest.raises(SourceError) as caught:
        open_source(tmp_path).schema()
    said = str(caught.value)
    assert "unsupported types of topics; select the topics to read by --map NAME=TOPIC" in said
    assert f"expected: topics among {CAMERA} (sensor_msgs/msg/Image, cdr), /imu/data" in said
    assert "got: /chatter (std_msgs/msg/ColorRGBA, cdr)" in said
    source = open_source(tmp_path, map={"image": CAMERA})
    assert source.episodes()[0].metadata["topics_not_read"] == {
        "/chatter": 1, "/imu/data": 50, "/joint_states": 3,
    }  # fmt: skip
    assert [*open_source(tmp_path, features=["imu.data.orientation"], clock=CAMERA).schema()] == [
        "imu.data.orientation"
    ]
    with pytest.raises(SourceError, match=r"unsupported types of topics.*/chatter"):
        open_source(tmp_path, map={"image": CAMERA, "text": "/chatter"}).schema()
    write_mcap(tmp_path / "a.mcap", [("/chatter", START + 1, text)])
    with pytest.raises(
        SourceError, match=r"expected: topics of type sensor_msgs/msg/Image, .*foxglove"
    ):
        open_source(tmp_path).schema()


def test_names_and_options_that_are_not_there(tmp_path: Path) -> None:
    write_mcap(tmp_path / "a.mcap", recording())
    with pytest.raises(
        SourceError, match=r"no such topic; .*expected: topics among /camera.*got: /cam"
    ):
        open_source(tmp_path, map={"image": "/cam"}).schema()
    with pytest.raises(SourceError, match=r"no such clock topic; .*got: /cam"):
        open_source(tmp_path, clock="/cam").episodes()
    with pytest.raises(SourceError, match=r"no such feature; .*got: imu.data.mass"):
        open_source(tmp_path, features=["imu.data.mass"]).schema()
    two = open_source(tmp_path, features=["imu.data.orientation", "joint_states.position"])
    with pytest.raises(SourceError, match=r"no clock topic; choose .*clock=TOPIC"):
        two.episodes()
    with pytest.raises(SourceError, match=r"invalid align; expected: nearest or last"):
        open_source(tmp_path, align="best")
    for tolerance in (-1, float("nan"), "fast", True):
        with pytest.raises(SourceError, match=r"invalid tolerance"):
            open_source(tmp_path, tolerance=tolerance)
    twice = [("/a/b", START, imu([0.0] * 10)), ("/a.b", START, imu([0.0] * 10))]
    write_mcap(tmp_path / "a.mcap", twice)
    with pytest.raises(
        SourceError, match=r"two topics give the same feature name; rename by --map"
    ):
        open_source(tmp_path).schema()


def test_recordings_that_differ_from_the_first(tmp_path: Path) -> None:
    larger = np.zeros((6, 9, 3), np.uint8)
    messages = [*recording(), (CAMERA, START + 950 * MS, image(larger, "rgb8"))]
    write_mcap(tmp_path / "c.mcap", messages)
    differs = r"differs from the first one in dtype or shape; .*episode: c; feature: cam"
    with pytest.raises(SourceError, match=differs):
        frames_of(open_source(tmp_path / "c.mcap", clock=CAMERA))
    (tmp_path / "c.mcap").unlink()
    write_mcap(tmp_path / "a.mcap", recording())
    write_mcap(tmp_path / "b.mcap", [each for each in recording() if each[0] != CAMERA])
    source = open_source(tmp_path, clock=CAMERA)
    assert [info.key for info in source.episodes()] == ["a", "b"]
    with pytest.raises(SourceError, match=r"no messages of the clock topic; .*episode: b; "):
        frames_of(source, 1)


def _flip(data: bytes) -> bytes:
    """One bit of the last picture's chunk."""
    place = len(data) // 4
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


@pytest.mark.parametrize("damage", [_flip, lambda data: b"", lambda data: b"no bag"])
def test_damaged_files(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = write_mcap(tmp_path / "b.mcap", recording(), compression=CompressionType.NONE)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(SourceError, match=r"damaged or unfinished file") as caught:
        frames_of(open_source(tmp_path, clock=CAMERA))
    assert (caught.value.file, caught.value.episode) == (str(path), "b")


def test_any_cut_and_any_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """Of a small file: no other error, and never another value."""
    path = write_mcap(tmp_path / "a.mcap", [("/imu", START, imu([*range(10)]))])
    whole = path.read_bytes()
    [want] = frames_of(open_source(path))
    rng = np.random.default_rng(3)
    places = rng.choice(len(whole), 150, replace=False)
    broken = [whole[: int(n)] for n in places[:50]]
    bits = [bytes([whole[n] ^ 1 << int(rng.integers(8))]) for n in places]
    broken += [whole[:n] + bit + whole[n + 1 :] for n, bit in zip(places, bits, strict=True)]
    refused = 0
    for data in broken:
        path.write_bytes(data)
        try:
            [frame] = frames_of(McapSource(path))
            for name, value in frame.items():
                if name != "log_time":  # of a time in the index nothing has a checksum
                    np.testing.assert_array_equal(value, want[f"imu.{name.split('.')[1]}"])
        except SourceError:
            refused += 1
    assert refused > 50


GOOD = [
    image(np.zeros((2, 3, 3), np.uint8), "rgb8"),
    imu([0.0] * 10),
    joints(["a", "b"], [1, 2], [3, 4]),
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
    """It becomes a frame, or is refused with the place of the file."""
    path = write_raw(folder / "a.mcap", [("/x", name, 5, data)], *how)
    try:
        [frame] = frames_of(McapSource(path))
        for value in frame.values():
            assert np.asarray(value).nbytes <= len(data) + 64
    except SourceError as error:
        assert error.file == str(path)  # noqa: PT017 - or it is one


@given(st.data())
def test_any_bytes_are_a_message_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Arbitrary ones, good ones that are changed, and images of any numbers, of any encoding."""
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
        said = draw(st.fixed_dictionaries({}, optional=keys))
        for value in (PICTURE | said, said, draw(JSON)):
            check_message(folder, name, json.dumps(value).encode(), "json", "jsonschema", b"{}")


@pytest.mark.parametrize("message", GOOD, ids=lambda each: each.__msgtype__)
def test_both_orders_of_bytes(tmp_path: Path, message: Any) -> None:
    both = []
    for little in (True, False):
        data = bytes(STORE.serialize_cdr(message, message.__msgtype__, little_endian=little))
        path = write_raw(tmp_path / f"{little}.mcap", [("/x", message.__msgtype__, 5, data)])
        source = open_source(path)
        both.append((frames_of(source), source.episodes()[0].metadata.get("names")))
    np.testing.assert_equal(both[0], both[1])


TIMES = st.lists(st.integers(0, 60), min_size=1, max_size=30).map(sorted)


@example([10], [5, 15], "nearest", 5)  # of two as near the earlier one
@given(TIMES, TIMES, st.sampled_from(["nearest", "last"]), st.integers(0, 70))
def test_alignment_is_that_of_a_look_at_every_message(
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
    seconds = tolerance / 1000
    source = open_source(path, clock="/clock", align=how, tolerance=seconds)
    for now, frame in zip(clock, frames_of(source), strict=True):
        near = [t for t in times if abs(t - now) <= tolerance and (how == "nearest" or t <= now)]
        found = frame["x.position"].tolist() if "x.position" in frame else []
        best = (
            max(near, default=None)
            if how == "last"
            else min(near, key=lambda t: (abs(t - now), t), default=None)
        )
        assert found == ([] if best is None else [best])


def test_messages_that_are_none_and_other_definitions(tmp_path: Path) -> None:
    for data in (b"", b"\0\1\0\0", b"\x28\xb5\x2f\xfd" + bytes(90), bytes(30)):
        messages = [("/j", "sensor_msgs/msg/JointState", 5, data)]
        path = write_raw(tmp_path / "a.mcap", messages)
        with pytest.raises(SourceError, match=r"cannot decode a message; .*\.mcap"):
            frames_of(open_source(path))
    text = b"# old\nHeader header\nfloat32 MAX=3\nfloat64[4] orientation\n"
    messages = [("/imu", "sensor_msgs/msg/Imu", 5, bytes(400))]
    path = write_raw(tmp_path / "a.mcap", messages, definition=text)
    with pytest.raises(SourceError, match=r"of sensor_msgs/msg/Imu differs from ROS's: got "
                       "Header header; float64.4. orientation, expected"):  # fmt: skip
        open_source(path).schema()


def test_on_the_command_line(tmp_path: Path) -> None:
    write_bag(tmp_path / "bags" / "run", recording())
    arguments = ["--src", str(tmp_path / "bags"), "--map", f"image={CAMERA}"]
    arguments += ["--map", "imu=/imu/data"]
    options = ["--source-option", f"clock={CAMERA}", "--source-option", "tolerance=0.05"]
    done = CliRunner().invoke(main, ["write", *arguments, *options, "--workers", "1"])
    assert done.exit_code == 0, done.output
    with seqrecord.open(tmp_path / "bags-records") as dataset:
        assert "imu.orientation" in dataset.features
        assert len(dataset.episodes["run"]) == 5
    done = CliRunner().invoke(main, ["write", *arguments, "--dst", str(tmp_path / "b"),
                                     "--source-option", "clock=/other"])  # fmt: skip
    assert done.exit_code == 1
    assert "no such clock topic" in done.output
