"""Frame rates that timestamps contradict, and timestamps without a unit: windows in seconds select
the right frames."""

from __future__ import annotations

import base64
import json
import logging
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import ClipError, Seconds, SeqRecordMapDataset, SeqRecordWriter, edit
from seqrecord.edit import merge_datasets
from seqrecord.export import to_files
from seqrecord.store.format.time_spans import (
    EpisodeTimeSpans,
    TimeSpanCollector,
    TimeSpans,
    num_time_spans,
)
from tests.formats.format_cases.mcap import CAMERA, MS, START
from tests.formats.format_cases.sequences import write_euroc
from tests.kit.bags import image, write_mcap
from tests.kit.command_line import run
from tests.kit.datasets import append, columns, write_dataset, write_episodes
from tests.kit.lerobot_video_data import unpack
from tests.kit.video_file_data import pictures, write_video

FPS = 10.0
STEPS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


SECONDS: dict[str, Any] = {"kind": "timestamp", "unit": "s"}


def written(path: Path, episodes: dict[str, list[dict[str, Any]]], **options: Any) -> Path:
    write_dataset(path, episodes, **{"fps": FPS, **options})
    return path


def write(
    path: Path,
    times: dict[str, list[float]],
    unit: str | None = "s",
    dtype: str = "f8",
    fps: float | None = FPS,
) -> Path:
    scale = STEPS[unit or "s"]
    frames = {
        key: [
            {"a": np.int64(n), "timestamp": np.asarray(time * scale).round(6).astype(dtype)}
            for n, time in enumerate(each)
        ]
        for key, each in times.items()
    }
    return written(path, frames, features={"timestamp": {**SECONDS, "unit": unit}}, fps=fps)


def rates(path: Path) -> list[float | None]:
    return [episode.fps for episode in seqrecord.open(path).episodes.values()]


def clips(path: Path, **options: Any) -> SeqRecordMapDataset:
    return SeqRecordMapDataset(path, pad="edge", **options)


def regular(count: int = 20, fps: float = FPS) -> list[float]:
    return [i / fps for i in range(count)]


def moved(frame: int, by: float) -> list[float]:
    """Regular times, with one frame `by` steps late."""
    times = regular()
    times[frame] += by / FPS
    return times


# ---- an episode has an fps only if its timestamps agree


def test_mean_rate_and_longest_step(tmp_path: Path) -> None:
    fits = [regular(), [5 + time for time in regular()], moved(7, 0.49), moved(7, -0.49), [0.0]]
    fits += [regular(40, 10.49), regular(40, 9.6), moved(19, -0.4), [0, 0.12], [0, 0.12, 0.22]]
    others = [moved(7, 0.52), moved(7, -0.52), moved(1, -1.1), regular(200, 10.6)]
    others += [regular(20, 11.0), regular(200, 9.4), [0, 0.13], [*regular(), *regular()]]
    every = {str(number): times for number, times in enumerate(fits + others)}
    for unit, dtype in (("s", "f8"), ("s", "f4"), ("ns", "i8"), ("ms", "i4")):
        path = write(tmp_path / f"{unit}{dtype}", every, unit, dtype)
        for _ in range(2):
            assert rates(path) == [FPS] * len(fits) + [None] * len(others), (unit, dtype)
            seqrecord.reindex(path)
        assert not seqrecord.verify(path).problems


def test_the_contradiction_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By the writer and by `convert`, which adds it to the inventory."""
    caplog.set_level(logging.WARNING, "seqrecord")
    path = write(tmp_path / "a", {"e": regular(), "f": moved(7, 2), "g": moved(3, 1)}, "ms", "f8")
    assert rates(path) == [FPS, None, None]
    [message] = caplog.messages
    caplog.clear()
    parts = ("2 episodes", "episode f, frame 7", "0.9 s", "0.7 s", "10 frames", "timestamp in ms")
    assert all(part in message for part in parts), message
    report = seqrecord.convert(seqrecord.open_source(path), tmp_path / "b", fps=FPS, workers=1)
    assert rates(tmp_path / "b") == [FPS, None, None]
    for texts in (caplog.messages, report.inventory.notes):
        assert len([text for text in texts if "episode f, frame 7" in text]) == 1
    assert "episode f, frame 7" in run("info", tmp_path / "b").stdout


def test_long_episodes_in_many_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Parts written before the contradiction still declare the fps."""
    options: dict[str, Any] = {"features": {"timestamp": SECONDS}, "codecs": "raw", "fps": FPS}
    path = tmp_path / "a"
    late = np.arange(60) == 30
    frames = {
        key: columns(x=np.arange(60)[:, None].repeat(300, 1), timestamp=np.arange(60) / FPS + more)
        for key, more in (("e", 0), ("f", late))
    }
    with SeqRecordWriter(path, **options, max_file_size=10_000, chunk_frames=4) as writer:
        write_episodes(writer, {"e": frames["e"]})
        write_episodes(writer, {"f": frames["f"]}, flush_at=[0, 20, 40])
    assert "fps ignored for 1 episode:" in caplog.text  # although a flush found it before the end
    assert len([*(path / "records").iterdir()]) > 3
    for _ in range(2):
        assert rates(path) == [FPS, None]
        assert not seqrecord.verify(path, deep=True).problems
        seqrecord.reindex(path)
    edit.rewrite_files(path)
    assert rates(path) == [FPS, None]


def test_the_clock_is_one_feature(tmp_path: Path) -> None:
    """Of several features, `timestamp` or `log_time`; otherwise none is used."""
    for names, expected in (
        (["timestamp", "other"], None),
        (["log_time", "other"], None),
        (["some", "other"], FPS),
        (["some"], None),
    ):
        frames = [dict.fromkeys(names, np.float64(time)) for time in moved(7, 1)]
        features = dict.fromkeys(names, SECONDS)
        assert rates(written(tmp_path / "-".join(names), {"e": frames}, features=features)) == [
            expected
        ]
    # Frames without timestamps.
    for wrong, expected in ((0.0, FPS), (0.4, FPS), (0.6, None)):
        frames = [
            {"a": np.int64(i), **({"t": t + wrong / FPS * (i == 9)} if i % 3 == 0 and i else {})}
            for i, t in enumerate(regular())
        ]
        path = written(tmp_path / f"{wrong}", {"e": frames}, features={"t": SECONDS})
        assert rates(path) == [expected]
    recorder = seqrecord.SeqRecordRecorder(tmp_path / "recorded", features={"t": SECONDS}, fps=FPS)
    with recorder, recorder.episode("e") as episode:
        append(episode, [{"t": np.float64(time)} for time in moved(7, 1)])
    assert rates(tmp_path / "recorded") == [None]


def test_a_timestamp_that_is_added(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = written(tmp_path / "a", {"e": [{"x": np.int64(i)} for i in range(20)]})
    edit.add_feature(path, "good", lambda _: regular(), **SECONDS)
    assert rates(path) == [FPS]
    edit.drop_features(path, "good")
    with caplog.at_level(logging.WARNING, "seqrecord"):
        edit.add_feature(path, "bad", lambda _: moved(7, 1), **SECONDS)
    assert "frame 7" in caplog.text
    for _ in range(2):
        assert rates(path) == [None]
        seqrecord.reindex(path)


def test_copies_and_additions_of_an_episode_without_a_rate(tmp_path: Path) -> None:
    """Its parts without a length declare the fps, also if only the last part is copied."""
    for count in (44, 48, 52):
        path = tmp_path / str(count)
        frames = {
            key: columns(
                x=np.arange(n)[:, None].repeat(300, 1),
                timestamp=np.arange(n) / FPS + (np.arange(n) >= 30),
            )
            for key, n in {"d0": 4, "f": count, "d1": 4, "g": 4}.items()
        }
        options: dict[str, Any] = {"features": {"timestamp": SECONDS}, "codecs": "raw"}
        written(path, frames, **options, chunk_frames=4, max_file_size=40_000)
        assert rates(path) == [FPS, None, FPS, FPS]
        edit.delete_episodes(path, ["d0", "d1"])
        edit.rewrite_files(path, min_unused=0.001, max_file_size=1)
        edit.add_feature(path, "z", lambda e: np.zeros((len(e), 2000)), max_file_size=1)
        for _ in range(2):
            assert rates(path) == [None, FPS]
            assert not seqrecord.verify(path).problems
            seqrecord.reindex(path)
        with seqrecord.open(path) as dataset:
            assert dataset.episodes["f"][:]["x"][:, 0].tolist() == [*range(count)]


@pytest.mark.parametrize("steps", [["drop"], ["replace"], ["add", "drop"], ["trim", "drop"]])
def test_a_dropped_timestamp_contradicts_nothing(tmp_path: Path, steps: list[str]) -> None:
    """Whatever was added before it was dropped or replaced."""
    path = written(tmp_path / "a", {"e": [{"x": np.int64(i)} for i in range(20)]})
    edit.add_feature(path, "t", lambda _: moved(7, 1), **SECONDS)
    for step in steps:
        assert rates(path) == [None]
        if step == "drop":
            edit.drop_features(path, "t")
        elif step == "replace":
            edit.add_feature(path, "t", lambda _: regular(), overwrite=True, **SECONDS)
        elif step == "add":
            edit.add_feature(path, "label", lambda episode: np.arange(len(episode)))
        else:
            edit.trim_episodes(path, "e", slice(1, None))
    for _ in range(2):
        assert rates(path) == [FPS]
        assert not seqrecord.verify(path).problems
        seqrecord.reindex(path)
        assert rates(path) == [FPS]
        (path / "manifest.json").unlink()
        seqrecord.reindex(path)
        assert rates(path) == [FPS]
        edit.clean(path, older_than=-1)


@pytest.mark.parametrize("rewritten", [False, True])
def test_a_rate_outlives_the_features_that_were_written_with_it(
    tmp_path: Path, rewritten: bool
) -> None:
    """Their record file declares it; the only other one has the timestamps that contradict it."""
    path = written(tmp_path / "a", {"e": [{"x": np.int64(i)} for i in range(20)]})
    edit.add_feature(path, "t", lambda _: moved(7, 1), **SECONDS)
    edit.drop_features(path, "x")
    if rewritten:
        assert edit.rewrite_files(path, min_unused=0.001).rewritten
        edit.clean(path, older_than=-1)
    assert rates(path) == [None]
    edit.add_feature(path, "t", lambda _: regular(), overwrite=True, **SECONDS)
    for _ in range(2):
        assert rates(path) == [FPS]
        assert not seqrecord.verify(path).problems
        seqrecord.reindex(path)
        edit.clean(path, older_than=-1)


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
    """In place and packed, seconds follow the timestamps."""
    write = ("write", "--src", video, "--quiet", "--dst")
    run(*write, tmp_path / "packed")
    for path in (tmp_path / "packed", video):
        assert rates(path) == [30.0, None]
        windows = {"timestamp": Seconds([-0.3, 0], tolerance=0.02)}
        for number, options in ((7, {"episodes": ["vary"]}), (7 + 10, {})):
            times = clips(path, windows=windows, **options)[number]["timestamp"]
            assert times.tolist() == pytest.approx([0.3, 0.6])
        strict = clips(path, windows={"image": Seconds([-0.2, 0])}, episodes=["vary"])
        with pytest.raises(ClipError, match=r"tolerance=.*timestamps in s"):
            strict[7]
        with pytest.raises(ClipError, match="without a list of times or step") as caught:
            SeqRecordMapDataset(path, windows={"image": Seconds(-0.3, 0)})
        assert caught.value.episode == "vary"
    assert "use the timestamps of feature timestamp (s)" in caplog.text
    # Without timestamps the fps is removed; the error names the episode and the remedy.
    run(*write, tmp_path / "a", "--features", "image")
    assert rates(tmp_path / "a") == [30.0, None]
    with pytest.raises(ClipError, match="episodes with an fps") as caught:
        clips(tmp_path / "a", windows={"image": Seconds([0.1])})
    assert caught.value.episode == "vary"
    assert "timestamp" in str(caught.value.expected)
    clips(tmp_path / "a", windows={"image": Seconds([0.1])}, episodes=["even"])


@pytest.mark.parametrize(
    "version", ["lerobot_v3", pytest.param("lerobot_v21", marks=pytest.mark.slow)]
)
def test_lerobot_of_another_fps(tmp_path: Path, version: str) -> None:
    root = unpack(tmp_path, version)
    info = root / "meta" / "info.json"
    value = json.loads(info.read_text())
    fps = value["fps"]
    for features in (None, ["action"]):
        for name, rate in (("good", fps), ("bad", fps * 2)):
            info.write_text(json.dumps({**value, "fps": rate}))
            source = seqrecord.open_source(root, features=features)
            path = tmp_path / f"{name}{features}"
            seqrecord.convert(source, path, workers=1)
            assert {*rates(path)} == {fps if name == "good" else None}
    windows = {"action": Seconds([0, 1 / fps], tolerance=1e-3)}
    good, bad = (clips(tmp_path / f"{name}None", windows=windows) for name in ("good", "bad"))
    assert all(good[i]["action"].equal(bad[i]["action"]) for i in range(len(good)))


def test_files_that_declare_a_wrong_rate(tmp_path: Path) -> None:
    """An edited `seqrecord.json` of an exported folder, and `sensor.yaml` of EuRoC."""
    path = write(tmp_path / "a", {"e": regular()})
    to_files(seqrecord.open(path), "e", tmp_path / "files")
    [description] = (tmp_path / "files").rglob("seqrecord.json")
    value = json.loads(description.read_text())
    description.write_text(json.dumps({**value, "fps": 25}))
    write_euroc(tmp_path / "V1", 0)
    sensor = next((tmp_path / "V1").rglob("cam0/sensor.yaml"))
    sensor.write_text(sensor.read_text().replace("rate_hz: 20", "rate_hz: 50"))
    for name, features in (("files", None), ("V1", None), ("V1", ["image_cam0"])):
        source = seqrecord.open_source(tmp_path / name, features=features)
        seqrecord.convert(source, tmp_path / f"{name}{features}", workers=1)
        assert rates(tmp_path / f"{name}{features}") == [None]


def test_mcap_that_drifts(tmp_path: Path) -> None:
    """Steps of 97 and then 103 ms are no steady clock, but do not contradict `fps=10`."""
    for name, steps in (("even", [100] * 40), ("drift", [97] * 20 + [103] * 20)):
        times = np.cumsum([0, *steps]).tolist()
        messages = [(CAMERA, START + MS * t, image(pictures(1)[0], "rgb8")) for t in times]
        write_mcap(tmp_path / f"{name}.mcap", messages)
    found = seqrecord.open_source(tmp_path).episodes()
    assert {info.key: info.fps for info in found} == {"even": 10.0, "drift": None}
    seqrecord.convert(seqrecord.open_source(tmp_path), tmp_path / "a", fps=10, workers=1)
    assert rates(tmp_path / "a") == [10.0, 10.0]


# ---- units


def test_windows_of_every_unit(tmp_path: Path) -> None:
    for unit, dtype in (
        *(("s", "f8"), ("ms", "f8"), ("ms", "i8"), ("us", "i8"), ("ns", "i8"), ("ns", "u8")),
    ):
        path = write(tmp_path / f"{unit}{dtype}", {"e": regular()}, unit, dtype, fps=None)
        for seconds, frames in (
            (Seconds([-0.2, 0.1]), [8, 11]),
            (Seconds([-0.2, 0.1], timestamps="timestamp"), [8, 11]),
            (Seconds(-0.2, 0, step=0.1), [8, 9, 10]),
        ):
            assert clips(path, windows={"a": seconds})[10]["a"].tolist() == frames


@pytest.mark.parametrize("fps", [None, FPS])
def test_timestamps_without_a_unit(tmp_path: Path, fps: float | None) -> None:
    """Implausible seconds are refused; the command in the error fixes it."""
    windows = {"a": Seconds([0.1], timestamps="timestamp")}
    for unit in ("ms", "us", "ns"):
        times = [1e9 + time * STEPS[unit] for time in regular()]
        path = write(tmp_path / unit, {"e": times}, None, "i8", fps)
        assert rates(path) == [fps]  # an unknown unit contradicts no fps
        with pytest.raises(ClipError, match="without a unit") as caught:
            clips(path, windows=windows)
        error = caught.value
        assert (error.episode, error.feature) == ("e", "timestamp")
        assert "if the unit is s" in str(error.got)
        command = str(error.expected).partition("`seqrecord ")[2].partition("`")[0]
        run(*command.replace("=ns", f"={unit}").split())
        assert clips(path, windows=windows)[3]["a"].tolist() == [4]


def test_a_unit_that_is_given_later_counts(tmp_path: Path) -> None:
    """The fps was stored before the unit."""
    times = {"e": [1000 * time for time in moved(7, 0.9)], "f": [1000 * time for time in regular()]}
    path = write(tmp_path / "a", times, None, "i8")
    assert rates(path) == [FPS, FPS]
    edit.describe_features(path, units={"timestamp": "ms"})
    windows = {"a": Seconds([0.1], tolerance=0.01)}
    assert clips(path, windows=windows, episodes=["f"])[3]["a"] == 4
    assert clips(path, windows=windows, episodes=["e"])[5]["a"] == 6
    with pytest.raises(ClipError, match="within the tolerance"):
        clips(path, windows=windows, episodes=["e"])[6]  # the next frame is 0.2 s later


def test_plausible_seconds_need_no_unit_and_other_units_are_no_time(tmp_path: Path) -> None:
    windows = {"a": Seconds([0.1])}
    path = write(tmp_path / "a", {"e": regular(), "one": [7.0]}, None, fps=None)
    assert clips(path, windows=windows)[3]["a"].tolist() == [4]
    assert rates(write(tmp_path / "b", {"e": moved(7, 1)}, None)) == [None]
    path = write(tmp_path / "c", {"e": regular()}, "s", fps=None)
    edit.describe_features(path, units={"timestamp": "m"})
    with pytest.raises(ClipError, match=r"not a timestamp.*unit m"):
        clips(path, windows={"a": Seconds([0.1], timestamps="timestamp")})
    with pytest.raises(ClipError, match="episodes with an fps"):
        clips(path, windows=windows)
    # Nanoseconds since 1970: no other unit makes a plausible step of them.
    times: list[float] = [int(1.7e18 + time * 1e9) for time in regular()]
    for fps, expected in ((FPS, FPS), (3 * FPS, None)):
        assert rates(write(tmp_path / f"{fps}", {"e": times}, None, "i8", fps)) == [expected]
    # Messages name the unit.
    path = write(tmp_path / "d", {"e": [0.0, 0.1, 0.1, 0.3]}, "ms", fps=None)
    with pytest.raises(ClipError, match=r"do not ascend.*timestamps in ms"):
        clips(path, windows=windows)
    path = write(tmp_path / "f", {"e": [0.0, 0.1, 0.15, 0.3]}, "ns", "i8", fps=None)
    with pytest.raises(ClipError, match=r"within the tolerance.*timestamps in ns"):
        clips(path, windows=windows)[2]


def test_several_timestamps_require_a_choice(tmp_path: Path) -> None:
    frames = [{"a": np.int64(i), "one": t, "two": 2 * t} for i, t in enumerate(regular())]
    features = dict.fromkeys(("one", "two"), SECONDS)
    path = written(tmp_path / "a", {"e": frames}, features=features, fps=None)
    with pytest.raises(ClipError, match="episodes with an fps") as caught:
        clips(path, windows={"a": Seconds([0.1])})
    assert caught.value.expected == "timestamps= one of one, two"
    windows = {"a": Seconds([0.2], timestamps="two")}
    assert clips(path, windows=windows)[3]["a"].tolist() == [4]


@pytest.mark.parametrize(("fps", "is_kept"), [(9.6, True), (10.4, True), (9.4, False)])
def test_recorder_writer_merge_and_edits_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fps: float, is_kept: bool
) -> None:
    """A loop that is 4 % slow keeps its rate everywhere; `Seconds` use the timestamps."""
    now, start = [0.0], time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: start + now[0])
    paths = [tmp_path / name for name in ("recorded", "written", "merged", "packed")]
    with (
        seqrecord.SeqRecordRecorder(paths[0], fps=FPS) as recorder,
        recorder.episode("e") as episode,
    ):
        for number in range(120):
            episode.append({"a": np.int64(number)})
            now[0] += 1 / fps
    write(paths[1], {"e": regular(120, fps)})
    edit.merge_datasets([paths[0]], paths[2])
    run("write", "--src", paths[0], "--dst", paths[3], "--quiet")
    for path in paths:
        assert rates(path) == [FPS if is_kept else None], path.name
        seqrecord.reindex(path)
        edit.trim_episodes(path, ["e"], slice(1, None))
        assert rates(path) == [FPS if is_kept else None], path.name
        seconds = clips(path, windows={"a": Seconds([0, 60 / fps], tolerance=0.01)})
        assert seconds[10]["a"].tolist() == [11, 71]
        if is_kept:  # the nearest frames, without a tolerance
            near = 11 + round(6 * fps)
            assert clips(path, windows={"a": Seconds([0, 6])})[10]["a"].tolist() == [11, near]
            every = clips(path, windows={"a": Seconds(0, 6)})[10]["a"].tolist()
            assert (len(every), every[0], every[-1]) == (61, 11, near)


@pytest.mark.parametrize(("nan_at", "gap"), [(0, 1.2), (10, 0.0), (119, 1.2), (60, 1.2)])
def test_nan_counts_as_a_missing_timestamp(tmp_path: Path, nan_at: int, gap: float) -> None:
    """It neither contradicts a rate nor hides a long step or a wrong mean."""
    times = np.arange(120) * 0.1 * (gap if nan_at in (0, 119) else 1)
    times[nan_at + 1 :] += 0.06 if nan_at == 60 else 0
    times[nan_at] = np.nan
    frames = [{"a": np.int64(n), "timestamp": np.float64(at)} for n, at in enumerate(times)]
    with SeqRecordWriter(tmp_path, features={"timestamp": SECONDS}, fps=FPS) as writer:
        write_episodes(writer, {"e": frames})
    assert rates(tmp_path) == [None if gap else FPS]


def test_a_flush_before_the_mean_rate_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first 10 steps are 10 % long, all together are within 5 %."""
    times = [0.0, *np.cumsum([0.11] * 10 + [0.1] * 30).tolist()]
    frames = [{"a": np.int64(n), "timestamp": np.float64(at)} for n, at in enumerate(times)]
    with SeqRecordWriter(tmp_path, features={"timestamp": SECONDS}, fps=FPS) as writer:
        write_episodes(writer, {"e": frames}, flush_at=[10])
    assert not caplog.messages
    for _ in range(2):
        assert rates(tmp_path) == [FPS]
        seqrecord.reindex(tmp_path)


# Spans of time


gaps = st.lists(st.integers(1, 1000), max_size=60)


def collected(episodes: list[list[int]], pieces: list[int]) -> list[TimeSpans]:
    """Time spans of episodes, added in pieces of these lengths."""
    collector, found = TimeSpanCollector(), []
    for times in episodes:
        collector.begin()
        array, at = np.array(times, np.int64), 0
        for i in range(len(times)):
            count = pieces[i % len(pieces)]
            collector.add(array[at : at + count], np.arange(at, min(at + count, len(array))))
            at += count
        time_spans = collector.time_spans(len(times))
        assert time_spans is not None
        found.append(time_spans)
    return found


def table(time_spans: list[TimeSpans | None], longest: int) -> EpisodeTimeSpans:
    return EpisodeTimeSpans.of([[one] for one in time_spans], 1, longest)


@given(st.lists(gaps, min_size=1, max_size=3), st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_frames_within_a_time(episodes: list[list[int]], pieces: list[int]) -> None:
    stamps = [np.cumsum([5, *steps]).tolist() for steps in episodes]
    time_spans = collected(stamps, pieces)
    for times, one in zip(stamps, time_spans, strict=True):
        assert TimeSpans.from_text(one.to_text(), len(times)) == one
        assert len(one.min_growth) == len(one.max_growth) == num_time_spans(len(times))
        for i in range(num_time_spans(len(times))):
            grown = [times[j + (1 << i)] - times[j] for j in range(len(times) - (1 << i))]
            assert (one.min_growth[i], one.max_growth[i]) == (min(grown), max(grown))
    rows = np.arange(len(stamps))
    every = table([*time_spans], max(map(len, stamps)))
    every.check(np.array([len(times) for times in stamps]))
    for span in (0, 1, 7, 500, 2500, 100_000):
        least, most = every.frames_within(rows, 0, span)
        for row, times in enumerate(stamps):
            for start, begin in enumerate(times):
                within = sum(t <= begin + span for t in times[start:]) - 1
                assert min(int(least[row]), len(times) - 1 - start) <= within
                assert within <= most[row] or len(times) == 1


def test_even_times_have_tight_bounds() -> None:
    rng = np.random.default_rng(0)
    times = np.arange(20_000) * 100 + rng.integers(-9, 10, 20_000)
    every = table([*collected([times.tolist()], [4000])], 20_000)
    rows = np.zeros(1, np.int64)
    assert [bound.tolist() for bound in every.frames_within(rows, 0, 1600)] == [[15], [16]]
    least, most = every.frames_within(rows, 0, 100 * 10_000)
    assert 9_950 <= least[0] <= 10_000 <= most[0] <= 10_010


def test_each_episode_has_its_own_bounds() -> None:
    fast, slow = np.arange(0, 5_000, 10), np.arange(0, 60_000, 1_000)
    every = table([*collected([fast.tolist(), slow.tolist(), [7]], [9])], 500)
    rows = np.arange(3)
    assert [bound.tolist() for bound in every.frames_within(rows, 0, 2_005)] == [[200, 2, 0]] * 2
    both = table([*collected([fast.tolist()], [9])], 500).extended(
        table([*collected([slow.tolist(), [7]], [9])], 60)
    )
    assert np.array_equal(both.min_growth, every.min_growth, equal_nan=True)
    assert np.array_equal(both.max_growth, every.max_growth, equal_nan=True)


def test_unusable_timestamps() -> None:
    """Times that do not ascend, or are missing."""
    for times in ([1, 2, 2], [3, 2], [1.0, math.nan, 3.0], [1.0, math.inf]):
        collector = TimeSpanCollector()
        collector.add(np.array(times), np.arange(len(times)))
        every = table([collector.time_spans(len(times))], len(times))
        assert every.unknown(np.zeros(1, np.int64), 0).tolist() == [0]
    for numbers, num_frames in (([0, 2], 3), ([0, 1], 3), ([1, 2], 3)):
        collector = TimeSpanCollector()
        collector.add(np.array([1, 5]), np.array(numbers))
        assert collector.time_spans(num_frames) is None


def _bounds(path: Path) -> list[list[int]]:
    time_spans = seqrecord.open(path).contents.index.time_spans
    assert time_spans is not None
    bounds, of_second = (time_spans.frames_within(np.arange(3), i, 0.55) for i in range(2))
    assert all(map(np.array_equal, bounds, of_second))
    return [bound.tolist() for bound in bounds]


def test_the_index_stores_time_spans(tmp_path: Path) -> None:
    """After a flush, with several record files, rebuilt, and merged; also of two equal clocks."""
    features = {name: {"kind": "timestamp", "unit": "s"} for name in ("t", "u")}
    path = tmp_path / "records"
    episodes = {
        f"{number}": columns(t=times, u=times, a=np.arange(len(times)))
        for number, length in enumerate((30, 1, 700))
        for times in [np.arange(length) / (10 * (number + 1))]
    }
    options: dict[str, Any] = {"features": features, "chunk_frames": 50, "max_file_size": 2000}
    write_dataset(path, episodes, flush_at=[300], **options)
    expected = [[5, 0, 16], [5, 0, 16]]
    assert _bounds(path) == expected
    assert len(seqrecord.open(path).contents.manifest.record_files) > 1
    before = seqrecord.open(path).contents.index.encode()
    for file in (path / "index").glob("*.arrow"):
        file.unlink()
    seqrecord.reindex(path)
    assert _bounds(path) == expected
    assert seqrecord.open(path).contents.index.encode() == before
    assert not seqrecord.verify(path).problems
    merged = tmp_path / "merged"
    merge_datasets([path], merged)
    assert _bounds(merged) == expected


def test_invalid_time_spans() -> None:
    numbers = [
        *([1.0, 2.0, 3.0, 4.0, 1.0, 1.0], [2.0, 2.0, 1.0, 2.0]),
        *([1.0, 2.0, 1.0, math.inf], [math.nan, 2.0, 1.0, 2.0]),
    ]
    texts = [base64.b64encode(np.array(each).tobytes()).decode() for each in numbers]
    others: list[object] = [None, "", "é", "=", 3, []]
    for text in (*others, *texts):
        with pytest.raises(seqrecord.FormatError, match="time spans of timestamps"):
            TimeSpans.from_text(text, 4)
    good = table([TimeSpans((1.0, 2.0), (1.0, 2.0)), TimeSpans((), ())], 4)
    good.check(np.array([4, 1]))
    for place, least, most in (
        *(((0, 0, 0), math.nan, 1), ((0, 0, 0), 2, 1), ((0, 0, 1), math.inf, math.inf)),
        *(((0, 0, 1), math.nan, math.nan), ((1, 0, 0), 1, 1), ((1, 0, 1), math.nan, 1)),
    ):
        bad = replace(good, min_growth=good.min_growth.copy(), max_growth=good.max_growth.copy())
        bad.min_growth[place], bad.max_growth[place] = least, most
        with pytest.raises(seqrecord.FormatError, match="time spans of timestamps") as caught:
            bad.check(np.array([4, 1]))
        assert caught.value.got == f"row {place[0]}"
