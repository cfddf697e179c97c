"""Recordings written by `export`, read by rosbags, and converted again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import SeqRecordWriter, convert, open_source
from seqrecord.errors import DestinationError, SchemaError
from seqrecord.export import to_mcap
from tests.command_line import run

rosbag2 = pytest.importorskip("rosbags.rosbag2", reason="pip install rosbags")
typesys = pytest.importorskip("rosbags.typesys", reason="pip install rosbags")
pytest.importorskip("mcap", reason="pip install mcap")

KEYS = {"kitchen/a": 5, "lab": 20}
FPS = 12.5


def frame_of(key: str, number: int) -> dict[str, Any]:
    rng = np.random.default_rng([len(key), number])
    frame: dict[str, Any] = {
        "camera.left": rng.integers(0, 256, (16, 20, 3), np.uint8),
        "depth": rng.uniform(1, 9, (16, 20)).astype("f4"),
        "flow": rng.normal(size=(16, 20, 2)).astype("f4"),
        "labels": rng.integers(0, 70_000, (16, 20)).astype("i4"),
        "steps": rng.integers(0, 9, (16, 20)).astype("u2"),
        "pose": rng.normal(size=7),
        "action": rng.normal(size=(3, 2)).astype("f4"),
        "count": np.array(number, "i8"),
        "done": np.array(number == 4),
        "task": f"grüße {number}",
    }
    if number == 3:
        del frame["flow"]
    return frame


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcap") / "records"
    with SeqRecordWriter(folder, fps=FPS, chunk_frames=8) as writer:
        for key, length in KEYS.items():
            with writer.episode(key, metadata={"robot": "arm", "n": length}) as episode:
                for number in range(length):
                    episode.append(frame_of(key, number))
    return folder


def test_a_converted_export_has_the_same_frames(records: Path, tmp_path: Path) -> None:
    done = run("export", records, "*", tmp_path / "bags", "--format", "mcap")
    assert done.stdout == f"{tmp_path}/bags: {len(KEYS)} episodes\n"
    source = open_source(tmp_path / "bags", format="mcap", clock="/camera/left", tolerance=0.01)
    convert(source, tmp_path / "again", workers=1)
    with seqrecord.open(tmp_path / "again") as dataset:
        assert {key: len(episode) for key, episode in dataset.episodes.items()} == KEYS
        for key, episode in dataset.episodes.items():
            assert episode.fps == FPS
            for number in range(len(episode)):
                got, expected = dict(episode[number]), frame_of(key, number)
                assert int(got.pop("log_time")) == number * 80_000_000
                assert set(got) == set(expected)
                for name, value in expected.items():
                    if isinstance(value, str):
                        assert got[name] == value
                    else:
                        np.testing.assert_array_equal(got[name], value, strict=True)


def test_rosbags_reads_the_recording(records: Path, tmp_path: Path) -> None:
    [folder] = to_mcap(records, tmp_path, episodes="lab")
    store = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
    types = {}
    with rosbag2.Reader(folder) as reader:
        for connection, time, data in reader.messages():
            message = store.deserialize_cdr(data, connection.msgtype)
            types[connection.topic] = connection.msgtype.split("/")[-1]
            number = round(time * FPS / 1e9)
            expected = frame_of("lab", number)
            if connection.topic == "/depth":
                assert (message.encoding, message.height, message.width) == ("32FC1", 16, 20)
                assert message.step == 80
                assert message.data.tobytes() == expected["depth"].tobytes()
                stamp = message.header.stamp
                assert stamp.sec * 10**9 + stamp.nanosec == time
            if connection.topic == "/action":
                assert [each.size for each in message.layout.dim] == [3, 2]
                assert [each.stride for each in message.layout.dim] == [6, 2]
                np.testing.assert_array_equal(message.data, expected["action"].ravel())
        counts = {each.topic: each.msgcount for each in reader.connections}
    text = (folder / "metadata.yaml").read_text().replace("\\", "").replace("\n", "")
    assert json.dumps({"n": 20, "robot": "arm"}) in text
    assert counts["/flow"] == 19
    assert counts["/camera/left"] == 20
    assert types["/camera/left"] == types["/labels"] == types["/steps"] == "Image"
    assert (types["/pose"], types["/task"], types["/count"]) == ("PoseStamped", "String", "Int64")


def times_of(folder: Path) -> list[tuple[str, int]]:
    with rosbag2.Reader(folder) as bag:
        return [(each.topic, time) for each, time, _ in bag.messages()]


def test_recorded_times_are_kept(tmp_path: Path) -> None:
    times = [10**18, 10**18 + 5, 10**18 + 10**9]
    with SeqRecordWriter(tmp_path / "d") as writer, writer.episode("a") as episode:
        for time in times:
            episode.append({"x": np.zeros(3), "log_time": np.array(time)})
    with seqrecord.open(tmp_path / "d", features=["x"]) as reader:
        ways: list[Any] = [(tmp_path / "d", None), (tmp_path / "d", ["x"]), (reader, None)]
        for number, (dataset, features) in enumerate(ways):
            [folder] = to_mcap(dataset, tmp_path / f"bags{number}", features=features, fps=10)
            assert times_of(folder) == [("/x", time) for time in times]
    for unit, size in (("ns", 1), ("us", 1000), ("ms", 10**6), ("s", 10**9)):
        spec = {"log_time": {"kind": "timestamp", "unit": unit}}
        with SeqRecordWriter(tmp_path / unit, features=spec) as writer, writer.episode("a") as one:
            for time in (5, 7):
                one.append({"x": np.zeros(3), "log_time": np.array(time)})
        [folder] = to_mcap(tmp_path / unit, tmp_path / f"{unit} bags")
        assert times_of(folder) == [("/x", 5 * size), ("/x", 7 * size)]
    seqrecord.edit.describe_features(tmp_path / "s", units={"log_time": "m"})
    with pytest.raises(DestinationError, match="not a multiple of nanoseconds") as caught:
        to_mcap(tmp_path / "s", tmp_path / "others")
    assert caught.value.got == "m"


def test_unsupported_exports_are_errors(records: Path, tmp_path: Path) -> None:
    to_mcap(records, tmp_path / "bags", episodes="lab", features=["pose"])
    with pytest.raises(DestinationError, match="is not empty"):
        to_mcap(records, tmp_path / "bags", episodes="lab")
    two = np.zeros(2)
    for name, frame, match in (
        ("complex", {"x": np.zeros(3, "c8")}, "no message type for"),
        ("half", {"x": np.zeros(3, "f2")}, "no message type for"),
        ("twice", {"a.b": np.zeros(3), "a-b": two, "a_b": two}, "the same topic"),
    ):
        with SeqRecordWriter(tmp_path / name) as writer, writer.episode("a") as episode:
            episode.append(frame)
        with pytest.raises(SchemaError, match=match):
            to_mcap(tmp_path / name, tmp_path / "out")
    with pytest.raises(DestinationError, match="need times"):
        to_mcap(tmp_path / "twice", tmp_path / "out", features=["a.b"])
    assert not (tmp_path / "out").exists()
