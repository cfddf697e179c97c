"""Frames a second that timestamps contradict, and timestamps without a unit: no window is of other
frames than its seconds say."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import (
    ClipError,
    Seconds,
    SeqRecordMapDataset,
    SeqRecordRecorder,
    SeqRecordWriter,
    edit,
)
from seqrecord.export import to_files
from tests.bags import image, write_mcap
from tests.command_line import run
from tests.lerobot_video_data import unpack
from tests.source_writers import write_euroc
from tests.test_sources_mcap import CAMERA, MS, START
from tests.video_file_data import pictures, write_video

FPS = 10.0
STEPS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def write(
    path: Path,
    times: dict[str, list[float]],
    unit: str | None = "s",
    dtype: str = "f8",
    fps: float | None = FPS,
    name: str = "timestamp",
) -> Path:
    said = {name: {"kind": "timestamp", "unit": unit}}
    with SeqRecordWriter(path, features=said, fps=fps) as writer:
        for key, each in times.items():
            with writer.episode(key) as episode:
                for number, time in enumerate(each):
                    value = np.asarray(time * STEPS[unit or "s"]).round(6).astype(dtype)
                    episode.append({"a": np.int64(number), name: value})
    return path


def rates(path: Path) -> list[float | None]:
    with seqrecord.open(path) as dataset:
        return [episode.fps for episode in dataset.episodes.values()]


def regular(count: int = 20, fps: float = FPS) -> list[float]:
    return [i / fps for i in range(count)]


def moved(frame: int, by: float) -> list[float]:
    """Times of which one is so many steps off."""
    times = regular()
    times[frame] += by / FPS
    return times


# ---- an episode has an fps only if every timestamp fits


@pytest.mark.parametrize(("unit", "dtype"), [("s", "f8"), ("s", "f4"), ("ns", "i8"), ("ms", "i4")])
def test_within_a_quarter_of_a_step(tmp_path: Path, unit: str, dtype: str) -> None:
    fits = [regular(), [5 + time for time in regular()], moved(7, 0.24), moved(7, -0.24), [0.0]]
    fits.append(regular(20, 10.1))  # at most a fifth of a step off, at the end
    others = [moved(7, 0.26), moved(19, -0.26), regular(20, 11.0), regular(40, 10.1)]
    every = {str(number): times for number, times in enumerate(fits + others)}
    path = write(tmp_path / "a", every, unit, dtype)
    for _ in range(2):
        assert rates(path) == [FPS] * len(fits) + [None] * len(others)
        seqrecord.reindex(path)
    assert not seqrecord.verify(path).problems


def test_the_contradiction_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the writer, and by convert, whose inventory keeps it."""
    with caplog.at_level(logging.WARNING, "seqrecord"):
        path = write(
            tmp_path / "a", {"e": regular(), "f": moved(7, 2), "g": moved(3, 1)}, "ms", "f8"
        )
    assert rates(path) == [FPS, None, None]
    [said] = [record.getMessage() for record in caplog.records]
    for part in (
        "2 episodes",
        "episode f, frame 7",
        "0.9 s",
        "0.7 s",
        "10 frames",
        "timestamp in ms",
    ):
        assert part in said, said
    caplog.clear()
    with caplog.at_level(logging.WARNING, "seqrecord"):
        report = seqrecord.convert(seqrecord.open_source(path), tmp_path / "b", fps=FPS, workers=1)
    assert rates(tmp_path / "b") == [FPS, None, None]
    [said] = [record.getMessage() for record in caplog.records]
    assert "episode f, frame 7" in said
    assert [note for note in report.inventory.notes if "episode f, frame 7" in note]
    assert "episode f, frame 7" in run("info", tmp_path / "b").stdout


def test_long_episodes_in_many_files(tmp_path: Path) -> None:
    """Parts that were written before the contradiction still say the fps."""
    said = {"timestamp": {"kind": "timestamp", "unit": "s"}}
    options: dict[str, Any] = {"features": said, "codecs": "raw", "fps": FPS}
    with SeqRecordWriter(tmp_path / "a", **options, max_file_size=10_000, chunk_frames=4) as writer:
        for key, late in (("e", False), ("f", True)):
            with writer.episode(key) as episode:
                for i in range(60):
                    time = i / FPS + (late and i == 50)
                    episode.append({"x": np.full(300, i), "timestamp": time})
                    if key == "f" and i % 20 == 0:
                        episode.flush()
    assert len([*(tmp_path / "a" / "records").iterdir()]) > 3
    for _ in range(2):
        assert rates(tmp_path / "a") == [FPS, None]
        assert not seqrecord.verify(tmp_path / "a", deep=True).problems
        seqrecord.reindex(tmp_path / "a")
    edit.rewrite_files(tmp_path / "a")
    assert rates(tmp_path / "a") == [FPS, None]


def test_the_clock_is_one_feature(tmp_path: Path) -> None:
    """`timestamp` or `log_time` of several; otherwise none of these tells."""
    for names, expected in (
        (["timestamp", "other"], None),
        (["log_time", "other"], None),
        (["some", "other"], FPS),
        (["some"], None),
    ):
        path = tmp_path / "-".join(names)
        said = {name: {"kind": "timestamp", "unit": "s"} for name in names}
        with (
            SeqRecordWriter(path, features=said, fps=FPS) as writer,
            writer.episode("e") as episode,
        ):
            for time in moved(7, 1):
                episode.append({name: np.float64(time) for name in names})
        assert rates(path) == [expected]


def test_frames_without_a_timestamp(tmp_path: Path) -> None:
    said = {"t": {"kind": "timestamp", "unit": "s"}}
    for name, wrong in (("a", 0.0), ("b", 0.5)):
        writer = SeqRecordWriter(tmp_path / name, features=said, fps=FPS)
        with writer, writer.episode("e") as episode:
            for i, time in enumerate(regular()):
                there = {"t": time + wrong / FPS * (i == 9)} if i % 3 == 0 and i else {}
                episode.append({"a": np.int64(i), **there})
    assert rates(tmp_path / "a") == [FPS]
    assert rates(tmp_path / "b") == [None]


def test_a_recorder(tmp_path: Path) -> None:
    said = {"t": {"kind": "timestamp", "unit": "s"}}
    recorder = SeqRecordRecorder(tmp_path / "a", features=said, fps=FPS)
    with recorder, recorder.episode("e") as episode:
        for time in moved(7, 1):
            episode.append({"t": np.float64(time)})
    assert rates(tmp_path / "a") == [None]


def test_a_timestamp_that_is_added(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SeqRecordWriter(tmp_path / "a", fps=FPS) as writer, writer.episode("e") as episode:
        for i in range(20):
            episode.append({"x": np.int64(i)})
    options: dict[str, Any] = {"kind": "timestamp", "unit": "s"}
    edit.add_feature(tmp_path / "a", "good", lambda _: regular(), **options)
    assert rates(tmp_path / "a") == [FPS]
    edit.drop_features(tmp_path / "a", "good")
    with caplog.at_level(logging.WARNING, "seqrecord"):
        edit.add_feature(tmp_path / "a", "bad", lambda _: moved(7, 1), **options)
    assert "frame 7" in caplog.text
    for _ in range(2):
        assert rates(tmp_path / "a") == [None]
        seqrecord.reindex(tmp_path / "a")


# ---- originals

VARYING = [0, 33, 67, 100, 300, 333, 367, 600, 633, 667]  # milliseconds


@pytest.fixture
def video(tmp_path: Path) -> Path:
    (tmp_path / "videos").mkdir()
    write_video(tmp_path / "videos" / "even.mkv", pictures(10))
    write_video(tmp_path / "videos" / "vary.mkv", pictures(10), times=VARYING)
    return tmp_path / "videos"


def test_video_of_a_varying_rate(
    video: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In place and packed, seconds are those of the timestamps."""
    run("write", "--src", video, "--dst", tmp_path / "packed", "--quiet")
    for path in (tmp_path / "packed", video):
        assert rates(path) == [30.0, None]
        windows = {"timestamp": Seconds([-0.3, 0], tolerance=0.02)}
        clips = SeqRecordMapDataset(path, windows=windows, episodes=["vary"], pad="edge")
        times = clips[7]["timestamp"]
        assert times.tolist() == pytest.approx([0.3, 0.6])
        both = SeqRecordMapDataset(path, windows=windows, pad="edge")
        assert both[7 + 10]["timestamp"].tolist() == pytest.approx([0.3, 0.6])
        strict = SeqRecordMapDataset(
            path, windows={"image": Seconds([-0.2, 0])}, episodes=["vary"], pad="edge"
        )
        with pytest.raises(ClipError, match="tolerance=") as caught:
            strict[7]
        assert "timestamps in s" in str(caught.value)
        with pytest.raises(ClipError, match="without a list of times or step") as caught:
            SeqRecordMapDataset(path, windows={"image": Seconds(-0.3, 0)})
        assert caught.value.episode == "vary"
    assert "use the timestamps of feature timestamp (s)" in caplog.text


def test_video_without_its_timestamps(video: Path, tmp_path: Path) -> None:
    """The fps goes, too, and Seconds name the episode and the remedy."""
    run("write", "--src", video, "--dst", tmp_path / "a", "--features", "image", "--quiet")
    assert rates(tmp_path / "a") == [30.0, None]
    with pytest.raises(ClipError, match="episodes with an fps") as caught:
        SeqRecordMapDataset(tmp_path / "a", windows={"image": Seconds([0.1])})
    assert caught.value.episode == "vary"
    assert "timestamp" in str(caught.value.expected)
    SeqRecordMapDataset(tmp_path / "a", windows={"image": Seconds([0.1])}, episodes=["even"])


@pytest.mark.parametrize("features", [None, ["action"]])
@pytest.mark.parametrize("version", ["lerobot_v21", "lerobot_v3"])
def test_lerobot_of_another_fps(tmp_path: Path, version: str, features: list[str] | None) -> None:
    root = unpack(tmp_path, version)
    info = root / "meta" / "info.json"
    value = json.loads(info.read_text())
    fps = value["fps"]
    for name, rate in (("good", fps), ("bad", fps * 2)):
        info.write_text(json.dumps({**value, "fps": rate}))
        source = seqrecord.open_source(root, features=features)
        seqrecord.convert(source, tmp_path / name, workers=1)
        assert {*rates(tmp_path / name)} == {fps if name == "good" else None}
    if features is None:
        windows = {"action": Seconds([0, 1 / fps], tolerance=1e-3)}
        good, bad = (
            SeqRecordMapDataset(tmp_path / n, windows=windows, pad="edge") for n in ("good", "bad")
        )
        assert all(good[i]["action"].equal(bad[i]["action"]) for i in range(len(good)))


def test_exported_folders(tmp_path: Path) -> None:
    """`seqrecord.json` is edited by hand, perhaps."""
    path = write(tmp_path / "a", {"e": regular()})
    with seqrecord.open(path) as dataset:
        to_files(dataset, "e", tmp_path / "files")
    [description] = (tmp_path / "files").rglob("seqrecord.json")
    value = json.loads(description.read_text())
    description.write_text(json.dumps({**value, "fps": 25}))
    seqrecord.convert(seqrecord.open_source(tmp_path / "files"), tmp_path / "b", workers=1)
    assert rates(tmp_path / "b") == [None]


def test_euroc_of_another_rate(tmp_path: Path) -> None:
    write_euroc(tmp_path / "V1", 0)
    sensor = next((tmp_path / "V1").rglob("cam0/sensor.yaml"))
    for features in (None, ["image_cam0"]):
        before = sensor.read_text()
        for number, text in enumerate((before, before.replace("rate_hz: 20", "rate_hz: 50"))):
            sensor.write_text(text)
            name = f"{number}{features is None}"
            source = seqrecord.open_source(tmp_path / "V1", features=features)
            seqrecord.convert(source, tmp_path / name, workers=1)
        sensor.write_text(before)
        assert rates(tmp_path / f"1{features is None}") == [None]


def test_mcap_that_drifts(tmp_path: Path) -> None:
    """Steps of 97 and then 103 ms are no 10 frames a second, though each is near it."""
    for name, steps in (("even", [100] * 40), ("drift", [97] * 20 + [103] * 20)):
        times = np.cumsum([0, *steps]).tolist()
        messages = [(CAMERA, START + MS * t, image(pictures(1)[0], "rgb8")) for t in times]
        write_mcap(tmp_path / f"{name}.mcap", messages)
    found = seqrecord.open_source(tmp_path).episodes()
    assert {info.key: info.fps for info in found} == {"even": 10.0, "drift": None}
    seqrecord.convert(seqrecord.open_source(tmp_path), tmp_path / "a", fps=10, workers=1)
    assert sorted(rates(tmp_path / "a"), key=str) == [10.0, None]


# ---- units


@pytest.mark.parametrize(
    ("unit", "dtype"),
    [("s", "f8"), ("ms", "f8"), ("ms", "i8"), ("us", "i8"), ("ns", "i8"), ("ns", "u8")],
)
def test_windows_of_every_unit(tmp_path: Path, unit: str, dtype: str) -> None:
    path = write(tmp_path / "a", {"e": regular()}, unit, dtype, fps=None)
    for seconds in (Seconds([-0.2, 0.1]), Seconds([-0.2, 0.1], timestamps="timestamp")):
        clips = SeqRecordMapDataset(path, windows={"a": seconds}, pad="edge")
        assert clips[10]["a"].tolist() == [8, 11]
    clips = SeqRecordMapDataset(path, windows={"a": Seconds(-0.2, 0, step=0.1)}, pad="edge")
    assert clips[10]["a"].tolist() == [8, 9, 10]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize("fps", [None, FPS])
def test_timestamps_without_a_unit(tmp_path: Path, unit: str, fps: float | None) -> None:
    """Implausible seconds are refused; the command that the error names helps."""
    times = [1e9 + time * STEPS[unit] for time in regular()]
    path = write(tmp_path / "a", {"e": times}, None, "i8", fps)
    assert rates(path) == [fps]  # what is not known contradicts nothing
    with pytest.raises(ClipError, match="without a unit") as caught:
        SeqRecordMapDataset(path, windows={"a": Seconds([0.1], timestamps="timestamp")}, pad="edge")
    error = caught.value
    assert (error.episode, error.feature) == ("e", "timestamp")
    assert "if the unit is s" in str(error.got)
    command = str(error.expected).partition("`seqrecord ")[2].partition("`")[0]
    run(*command.replace("=ns", f"={unit}").split())
    clips = SeqRecordMapDataset(
        path, windows={"a": Seconds([0.1], timestamps="timestamp")}, pad="edge"
    )
    assert clips[3]["a"].tolist() == [4]


def test_a_unit_that_is_given_later_counts(tmp_path: Path) -> None:
    """The fps was stored when nothing contradicted it."""
    times = {"e": [1000 * time for time in moved(7, 0.9)], "f": [1000 * time for time in regular()]}
    path = write(tmp_path / "a", times, None, "i8")
    assert rates(path) == [FPS, FPS]
    edit.describe_features(path, units={"timestamp": "ms"})
    windows = {"a": Seconds([0.1], tolerance=0.01)}
    assert SeqRecordMapDataset(path, windows=windows, episodes=["f"], pad="edge")[3]["a"] == 4
    clips = SeqRecordMapDataset(path, windows=windows, episodes=["e"], pad="edge")
    assert clips[5]["a"] == 6
    with pytest.raises(ClipError, match="within the tolerance"):
        clips[6]  # the next frame is 0.2 s later


def test_plausible_seconds_need_no_unit_and_other_units_are_no_time(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"e": regular(), "one": [7.0]}, None, fps=None)
    clips = SeqRecordMapDataset(path, windows={"a": Seconds([0.1])}, pad="edge")
    assert clips[3]["a"].tolist() == [4]
    assert rates(write(tmp_path / "b", {"e": moved(7, 1)}, None)) == [None]
    path = write(tmp_path / "c", {"e": regular()}, "s", fps=None)
    edit.describe_features(path, units={"timestamp": "m"})
    with pytest.raises(ClipError, match="not a timestamp") as caught:
        SeqRecordMapDataset(path, windows={"a": Seconds([0.1], timestamps="timestamp")})
    assert "unit m" in str(caught.value.got)
    with pytest.raises(ClipError, match="episodes with an fps"):
        SeqRecordMapDataset(path, windows={"a": Seconds([0.1])})


def test_several_timestamps_must_be_chosen_from(tmp_path: Path) -> None:
    said = {name: {"kind": "timestamp", "unit": "s"} for name in ("one", "two")}
    with SeqRecordWriter(tmp_path / "a", features=said) as writer, writer.episode("e") as episode:
        for i, time in enumerate(regular()):
            episode.append({"a": np.int64(i), "one": time, "two": 2 * time})
    with pytest.raises(ClipError, match="episodes with an fps") as caught:
        SeqRecordMapDataset(tmp_path / "a", windows={"a": Seconds([0.1])})
    assert caught.value.expected == "timestamps= one of one, two"
    clips = SeqRecordMapDataset(
        tmp_path / "a", windows={"a": Seconds([0.2], timestamps="two")}, pad="edge"
    )
    assert clips[3]["a"].tolist() == [4]


def test_messages_name_the_unit(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"e": [0.0, 0.1, 0.1, 0.3]}, "ms", fps=None)
    with pytest.raises(ClipError, match=r"do not ascend.*timestamps in ms"):
        SeqRecordMapDataset(path, windows={"a": Seconds([0.1])})
    path = write(tmp_path / "b", {"e": [0.0, 0.1, 0.15, 0.3]}, "ns", "i8", fps=None)
    with pytest.raises(ClipError, match=r"within the tolerance.*timestamps in ns"):
        SeqRecordMapDataset(path, windows={"a": Seconds([0.1])}, pad="edge")[2]


@pytest.mark.parametrize("fps", [FPS, 3 * FPS])
def test_a_rate_is_compared_in_the_only_plausible_unit(tmp_path: Path, fps: float) -> None:
    """Nanoseconds since 1970 without a unit: no other unit makes a plausible step of them."""
    times: list[float] = [int(1.7e18 + time * 1e9) for time in regular()]
    path = write(tmp_path / "a", {"e": times}, None, "i8", fps)
    assert rates(path) == [fps if fps == FPS else None]
