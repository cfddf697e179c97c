"""Exported LeRobot datasets, read again, equal the dataset."""

from __future__ import annotations

import json
import logging
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.edit import (
    delete_episodes,
    merge_datasets,
    split_dataset,
    split_episodes,
    trim_episodes,
)
from seqrecord.errors import ClipError, CodecError, DestinationError, SchemaError
from seqrecord.export import to_lerobot
from tests.formats.format_cases.mcap import recording
from tests.formats.test_mcap import write as write_bag
from tests.formats.test_video_streams import CASES, FRAMES, made
from tests.formats.video_gops import gops_of
from tests.kit.command_line import run
from tests.kit.datasets import noise, write_dataset
from tests.kit.lerobot_data import FEATURES, FPS, edit_info
from tests.kit.lerobot_data import episodes as lerobot_episodes
from tests.kit.lerobot_language_data import annotate
from tests.kit.lerobot_language_data import row as language_row
from tests.kit.lerobot_video_data import CAMERAS, unpack, with_video
from tests.kit.source_faults import frames_of
from tests.kit.video_file_data import decoded, pictures
from tests.robots.tools import CAMERA, described, export

GOLDEN = Path(__file__).parents[1] / "golden"
VIDEO = CAMERAS[0]
ROWS = tuple(map(len, lerobot_episodes()))


@pytest.fixture
def records(tmp_path: Path) -> Path:
    root = unpack(tmp_path)
    with_video(root, ROWS)
    seqrecord.convert(open_source(root), tmp_path / "records", workers=1)
    return tmp_path / "records"


def all_frames(path: Path) -> list[dict[str, Any]]:
    with seqrecord.open(path) as dataset:
        return [dataset.episodes[key][:] for key in dataset.episodes]


def test_round_trip(tmp_path: Path, records: Path) -> None:
    out = to_lerobot(records, tmp_path / "out")
    before, after = open_source(tmp_path / "lerobot_v3"), open_source(out)
    assert {str(s) for s in after.schema().values()} == {str(s) for s in before.schema().values()}
    for one, two in zip(before.episodes(), after.episodes(), strict=True):
        assert (one.num_frames, one.fps) == (two.num_frames, two.fps)
        gops = [list(source.videos(info)[VIDEO]) for source, info in ((before, one), (after, two))]  # type: ignore[attr-defined]
        assert gops[0] == gops[1]  # byte for byte
    seqrecord.convert(after, tmp_path / "again", workers=1)
    for was, now in zip(all_frames(records), all_frames(tmp_path / "again"), strict=True):
        for name in was:
            np.testing.assert_array_equal(was[name], now[name])
    info = json.loads((out / "meta/info.json").read_text())
    original = json.loads((tmp_path / "lerobot_v3/meta/info.json").read_text())
    assert info["robot_type"] == "arm"
    assert info["features"].keys() == original["features"].keys()
    for name, feature in FEATURES.items():
        is_image = feature["dtype"] == "image"
        expected = {**feature, "shape": list(feature["shape"])}
        actual = {key: info["features"][name][key] for key in ("dtype", "shape", "names")}
        assert actual == expected | ({"names": actual["names"]} if is_image else {})
    assert info["features"][VIDEO]["dtype"] == "video"
    keys = json.loads((out / "meta/seqrecord.json").read_text())["keys"]
    assert keys == [f"episode_{i:06d}" for i in range(3)]


def test_language_columns_come_back(tmp_path: Path) -> None:
    root = unpack(tmp_path)
    annotate(root)
    before = open_source(root)
    seqrecord.convert(before, tmp_path / "records", workers=1)
    after = open_source(to_lerobot(tmp_path / "records", tmp_path / "out"))
    infos = list(zip(before.episodes(), after.episodes(), strict=True))
    for number, (one, two) in enumerate(infos):
        assert two.metadata["language_persistent"] == one.metadata["language_persistent"]
        for was, now in zip(frames_of(before, number), frames_of(after, number), strict=True):
            assert json.loads(now["language_events"] or "[]") == json.loads(
                was["language_events"] or "[]"
            )
    info = json.loads((tmp_path / "out/meta/info.json").read_text())
    declared = json.loads((root / "meta/info.json").read_text())
    for name in ("language_persistent", "language_events"):
        assert info["features"][name] == declared["features"][name]


@pytest.mark.parametrize("kind", ["log", "linear", "u2", "f4"])
def test_depth_comes_back(tmp_path: Path, kind: str) -> None:
    """As the same packets of a video, and as TIFF."""
    is_video = kind in ("log", "linear")
    golden = "lerobot_depth" if is_video else "lerobot_depth_images"
    before = open_source(unpack(tmp_path, golden) / kind)
    seqrecord.convert(before, tmp_path / "records", workers=1)
    after: Any = open_source(to_lerobot(tmp_path / "records", tmp_path / "out"))
    [name] = [n for n, spec in before.schema().items() if spec.kind == "depth"]
    assert str(after.schema()[name]) == str(before.schema()[name])
    assert (after.schema()[name].kind, after.schema()[name].unit) == (
        "depth",
        before.schema()[name].unit,
    )
    for number, (one, two) in enumerate(zip(before.episodes(), after.episodes(), strict=True)):
        if is_video:
            assert [*after.videos(two)[name]] == [*before.videos(one)[name]]  # type: ignore[attr-defined]
            continue
        for was, now in zip(frames_of(before, number), frames_of(after, number), strict=True):
            np.testing.assert_array_equal(now[name], was[name])
    root = tmp_path / golden / kind
    paths = (root / "meta/info.json", tmp_path / "out/meta/info.json")
    was, now = (json.loads(path.read_text())["features"][name] for path in paths)
    assert (now["dtype"], now["shape"]) == (was["dtype"], was["shape"])
    for key in was.get("info") or {}:
        if key.startswith("video.depth") or key in ("is_depth_map", "video.shift", "video.use_log"):
            assert now["info"][key] == was["info"][key], key


def test_images_become_video_on_request(tmp_path: Path, records: Path) -> None:
    out = tmp_path / "out"
    run(
        "export",
        records,
        "-o",
        out,
        "--format",
        "lerobot",
        "--video",
        "h264:quality=0,gop=4",
        "--quiet",
    )
    info = json.loads((out / "meta/info.json").read_text())
    feature = info["features"]["observation.image"]
    assert (feature["dtype"], feature["info"]["video.codec"]) == ("video", "h264")
    before, after = all_frames(records), open_source(out)
    seqrecord.convert(after, tmp_path / "again", workers=1)
    for was, now in zip(before, all_frames(tmp_path / "again"), strict=True):
        np.testing.assert_array_equal(now[VIDEO], was[VIDEO])  # copied
        assert now["observation.image"].shape == was["observation.image"].shape
        assert (
            np.corrcoef(now["observation.image"].ravel(), was["observation.image"].ravel())[0, 1]
            > 0.5
        )
    for wrong in ("ffv1", "mpeg", "h264:gop=0"):
        with pytest.raises(CodecError, match="video cannot be"):
            to_lerobot(records, tmp_path / "wrong", video=wrong)
    run("export", records, "*", tmp_path / "files", "--video", "h264", code=2)
    run("export", records, "*", code=2)


def test_a_bag_becomes_a_dataset_in_one_step(tmp_path: Path) -> None:
    (tmp_path / "bag").mkdir()
    write_bag(tmp_path / "bag", recording(), "mcap")
    command = (
        "export",
        tmp_path / "bag",
        "-o",
        tmp_path / "lr/one",
        "--format",
        "lerobot",
        "--quiet",
    )
    source = open_source(tmp_path / "bag")
    seqrecord.convert(source, tmp_path / "records", workers=1)
    wanted = to_lerobot(tmp_path / "records", tmp_path / "two")
    run(*command)
    more = ("--source-option", "clock=/none")
    assert "no such clock topic" in run(*command, *more, code=1).output
    one, two = open_source(tmp_path / "lr/one"), open_source(wanted)
    for was, now in zip(frames_of(two, 0), frames_of(one, 0), strict=True):
        assert was.keys() == now.keys()
        for name, value in was.items():
            np.testing.assert_array_equal(now[name], value)
    assert [path.name for path in (tmp_path / "lr").iterdir()] == ["one"]


def test_splits_are_ranges(tmp_path: Path, records: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Episodes keep their numbers if those of each split are consecutive."""

    def exported(name: str, **options: Any) -> tuple[Any, Any]:
        meta = to_lerobot(records, tmp_path / name, **options) / "meta"
        keys = json.loads((meta / "seqrecord.json").read_text())["keys"]
        return json.loads((meta / "info.json").read_text())["splits"], [int(k[-1]) for k in keys]

    assert exported("none") == ({"train": "0:3"}, [0, 1, 2])
    split_episodes(records, ["episode_000002"], "train")
    split_episodes(records, ["episode_000000"], "val")
    assert exported("some") == ({"val": "0:1", "train": "2:3"}, [0, 1, 2])
    some = ["episode_000000", "episode_000001"]
    assert exported("rest", episodes=some) == ({"val": "0:1"}, [0, 1])
    infos = open_source(tmp_path / "some").episodes()
    assert [info.split for info in infos] == ["val", None, "train"]
    assert "not consecutive" not in caplog.text
    split_episodes(records, ["episode_000000", "episode_000002"], "train")
    assert exported("moved") == ({"train": "0:2"}, [0, 2, 1])
    assert "splits are not consecutive episodes" in caplog.text


def test_splits_of_a_lerobot_dataset_come_back(tmp_path: Path) -> None:
    """All episodes in `train` are nobody's choice: they can still be divided."""
    root, keys = unpack(tmp_path), [f"episode_{number:06d}" for number in range(3)]
    cases: list[tuple[dict[str, str], dict[str, list[str]]]] = [
        ({"train": "0:2", "val": "2:3"}, {"train": keys[:2], "val": keys[2:]}),
        ({"val": "0:3"}, {"val": keys}),
        ({"train": "0:2"}, {"train": keys[:2]}),
        ({"train": "0:3"}, {}),
    ]
    records = tmp_path
    for number, (declared, stored) in enumerate(cases):
        edit_info(root, splits=declared)
        records = tmp_path / f"records{number}"
        seqrecord.convert(open_source(root), records, workers=1)
        with seqrecord.open(records) as dataset:
            assert {name: [*episodes] for name, episodes in dataset.splits.items()} == stored
            assert not any("split" in each.metadata for each in dataset.episodes.values())
        out = to_lerobot(records, tmp_path / f"out{number}")
        assert json.loads((out / "meta/info.json").read_text())["splits"] == declared
    assert split_dataset(records, {"train": 0.7, "val": 0.3}) == {"train": 2, "val": 1}


def test_statistics(tmp_path: Path, records: Path) -> None:
    stats = json.loads((to_lerobot(records, tmp_path / "out") / "meta/stats.json").read_text())
    rows = [frame for episode in lerobot_episodes() for frame in episode]
    actions = np.stack([row["action"] for row in rows])
    assert stats["action"]["q10"][0] in np.sort(actions[:, 0])[1:3]
    np.testing.assert_allclose(stats["action"]["mean"], actions.mean(0))
    np.testing.assert_allclose(stats["action"]["std"], actions.std(0))
    assert stats["action"]["count"] == [15]
    table = pq.read_table(tmp_path / "out/meta/episodes").to_pylist()
    for row, frames in zip(table, lerobot_episodes(), strict=True):
        values = {name: np.stack([f[name] for f in frames]) for name in ("action", "tactile")}
        values["index"] = np.arange(row["dataset_from_index"], row["dataset_to_index"])[:, None]
        for name, array in values.items():
            numbers = array.reshape(-1, array.shape[-1])
            for key in ("min", "max", "mean", "std"):
                expected = getattr(np, key)(numbers, axis=0)
                np.testing.assert_allclose(row[f"stats/{name}/{key}"], expected, atol=1e-12)
            assert row[f"stats/{name}/count"] == [len(frames)]
    pixels = np.concatenate([frames[VIDEO] for frames in all_frames(records)]) / 255
    for name in (VIDEO, "observation.image"):
        assert np.shape(stats[name]["mean"]) == np.shape(stats[name]["q99"]) == (3, 1, 1)
    got = np.reshape(stats[VIDEO]["mean"], 3)
    np.testing.assert_allclose(got, pixels.mean((0, 1, 2)), atol=0.03)
    # Columns and keys equal LeRobot's.
    golden = json.loads((GOLDEN / "lerobot_0.6.1.json").read_text())
    info = golden["features"][CAMERA]["info"]
    for name in ("g", "crf", "preset", "fast_decode", "extra_options", "video_backend"):
        del info[f"video.{name}"]  # encoder settings; LeRobot's tools ignore them
    assert described(export(tmp_path / "golden")) == golden


def test_command_exports_selected_episodes_and_features(tmp_path: Path, records: Path) -> None:
    out = tmp_path / "out"
    command = ("export", records, "*[02]", out, "--format", "lerobot")
    done = run(*command, "--features", f"{VIDEO},action,task")
    assert done.stdout == f"{out}: 2 episodes\n"
    source = open_source(out)
    assert [each.num_frames for each in source.episodes()] == [5, 7]
    assert set(source.schema()) == {VIDEO, "action", "timestamp", "task"}
    stats = json.loads((out / "meta/stats.json").read_text())
    actions = [f["action"] for number in (0, 2) for f in lerobot_episodes()[number]]
    np.testing.assert_allclose(stats["action"]["mean"], np.mean(actions, 0))
    assert "the folder is not empty" in run(*command, code=1).output
    run("export", records, "a", out, "--fps", "3", code=2)


RATES = (Fraction(30), Fraction(30000, 1001))


@pytest.mark.parametrize(
    ("case", "fps"),
    [
        pytest.param(case, fps, marks=pytest.mark.slow if (i + j) % 2 else ())
        for i, case in enumerate(CASES)
        for j, fps in enumerate(RATES)
    ],
)
def test_video_packets_are_copied_to_a_new_file(tmp_path: Path, case: str, fps: Fraction) -> None:
    (tmp_path / "videos").mkdir()
    path = made(tmp_path / "videos", case)
    seqrecord.convert(open_source(tmp_path / "videos"), tmp_path / "records", workers=1)
    out = to_lerobot(tmp_path / "records", tmp_path / "out", fps=float(fps))
    [copy] = (out / "videos").rglob("*.mp4")
    times, images = decoded(copy)
    np.testing.assert_array_equal(images, decoded(path)[1])
    np.testing.assert_allclose(times, np.arange(FRAMES) / float(fps), atol=2e-5)
    assert gops_of(copy) == gops_of(path)


@pytest.mark.parametrize("b_frames", ["0", "3"])
def test_episodes_between_keyframes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, b_frames: str
) -> None:
    """Later episodes begin after the only keyframe; B-frames of the second need a later frame."""
    root = unpack(tmp_path)
    options = {"g": "100", "bf": b_frames, "x264-params": "scenecut=0:b-adapt=0"}
    images = with_video(root, ROWS, options=options, forced=False)
    seqrecord.convert(open_source(root), tmp_path / "records", workers=1)
    with caplog.at_level(logging.WARNING):
        out = to_lerobot(tmp_path / "records", tmp_path / "out", features=[VIDEO])
    encoded = [f"episode_{i:06d}, {VIDEO}: re-encoded" in caplog.text for i in range(3)]
    assert encoded == [False, b_frames == "3", False]
    [table] = (out / "meta/episodes").rglob("*.parquet")
    begins = pq.read_table(table)[f"videos/{VIDEO}/from_timestamp"].to_numpy() * FPS
    ends = np.cumsum(ROWS)
    np.testing.assert_allclose(begins, [0, 0 if encoded[1] else ends[0], ends[1]])
    seqrecord.convert(open_source(out), tmp_path / "again", workers=1)
    for got, end, lossy in zip(all_frames(tmp_path / "again"), ends, encoded, strict=True):
        expected = images[end - len(got[VIDEO]) : end].astype(int)
        assert abs(got[VIDEO].astype(int) - expected).max() < 60 * lossy + 1


def write(path: Path, frames: list[dict[str, Any]], fps: float | None = 10, **options: Any) -> Path:
    write_dataset(path, {"a/b": frames}, rates={"a/b": fps}, **options)
    return path


def test_images_are_kept_lossless(tmp_path: Path) -> None:
    images = pictures(4)
    frames = [
        {"camera": image, "grey": image[..., 0], "timestamp": np.float64(0.2 * i)}
        for i, image in enumerate(images)
    ]
    records = write(tmp_path / "records", frames, codecs={"camera": "ffv1"})
    with pytest.raises(ClipError, match="pass fps"):
        to_lerobot(write(tmp_path / "slow", frames, None), tmp_path / "out")
    source = open_source(to_lerobot(records, tmp_path / "out"))
    for i, frame in enumerate(source.frames(source.episodes()[0])):
        np.testing.assert_array_equal(frame["camera"], images[i])
        np.testing.assert_array_equal(frame["grey"], images[i][..., 0])
        assert frame["timestamp"] == np.float32(i / 10)
        assert frame["recorded_timestamp"] == 0.2 * i
        assert frame["task"] == ""
    slow = to_lerobot(tmp_path / "slow", tmp_path / "two", fps=5)
    assert "recorded_timestamp" not in open_source(slow).schema()


def test_data_that_lerobot_cannot_store_is_refused(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"z": np.complex64(1)}, {"z": np.complex64(2)}, "real numbers"),
        ({"b": b"one"}, {"b": b"two"}, "bytes and varying shapes"),
        ({"x": np.zeros((1,) * 6)}, {"x": np.ones((1,) * 6)}, "at most 5 dimensions"),
        ({"index": np.int64(0)}, {"index": np.int64(1)}, "LeRobot reserves"),
        ({"task": np.int64(0)}, {"task": np.int64(1)}, "task has texts; rename.*task=NAME"),
    ]
    for number, (one, two, match) in enumerate(cases):
        records = write(tmp_path / f"{number}", [one, two])
        with pytest.raises(SchemaError, match=match):
            to_lerobot(records, tmp_path / "out")
    gap = write(tmp_path / "gap", [{"x": np.int64(0), "y": np.int64(0)}, {"x": np.int64(1)}])
    with pytest.raises(ClipError, match=r"without a feature.*feature: y; frame: 1"):
        to_lerobot(gap, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(DestinationError, match="cannot be written"):
        to_lerobot(gap, tmp_path / "file", features=["x"])


def test_values_that_language_columns_cannot_have(tmp_path: Path) -> None:
    """Texts and metadata of their names, which anyone may write."""
    frames = [{"x": np.float32(i), "language_events": "go left"} for i in range(2)]
    records = write(tmp_path / "records", frames)
    with pytest.raises(SchemaError, match=r"other values.*episode: a/b; feature: language_events"):
        to_lerobot(records, tmp_path / "texts")
    out = to_lerobot(records, tmp_path / "renamed", rename={"language_events": "instruction"})
    assert frames_of(open_source(out))[0]["instruction"] == "go left"
    for number, rows in enumerate(("go left", [{"content": "go left"}], {"content": "go left"})):
        metadata = {"a/b": {"language_persistent": rows}}
        records = write(tmp_path / f"{number}", [{"x": np.float32(0)}], metadata=metadata)
        with pytest.raises(
            SchemaError, match=r"other values.*episode: a/b; feature: language_pers"
        ):
            to_lerobot(records, tmp_path / f"out_{number}")


def test_robots_that_lerobot_cannot_have(tmp_path: Path) -> None:
    metadata = {"a/b": {"robot_type": ["left arm", "right arm"]}}
    records = write(tmp_path / "records", [{"x": np.float32(0)}], metadata=metadata)
    out = to_lerobot(records, tmp_path / "out")
    assert json.loads((out / "meta/info.json").read_text())["robot_type"] is None


def test_rates_and_codecs_of_other_types(tmp_path: Path) -> None:
    frames = [{"x": np.float32(i), "image": np.zeros((16, 16, 3), np.uint8)} for i in range(2)]
    write_dataset(records := tmp_path / "records", {"a": frames})
    for number, fps in enumerate((np.float32(12.5), np.int64(12), Fraction(30000, 1001))):
        out = to_lerobot(records, tmp_path / f"{number}", fps=fps)
        info = json.loads((out / "meta/info.json").read_text())
        assert info["fps"] == pytest.approx(float(fps))
    wrong_rates: list[Any] = ["10", [10], 10j, np.array([10.0]), {"fps": 10}]
    for fps in wrong_rates:
        with pytest.raises(ClipError, match="one frame rate for all episodes"):
            to_lerobot(records, tmp_path / "out", fps=fps)
    wrong_codecs: list[Any] = [264, ["h264"], b"h264"]
    for video in wrong_codecs:
        with pytest.raises(CodecError, match="expected one of h264"):
            to_lerobot(records, tmp_path / "out", fps=10, video=video)


@pytest.mark.parametrize(
    "count", [257, *(pytest.param(count, marks=pytest.mark.slow) for count in (255, 256, 512))]
)
def test_any_number_of_episodes_is_exported(tmp_path: Path, count: int) -> None:
    """Metadata is written for 256 episodes at once."""
    episodes = {f"e{i:03}": [{"action": np.float32(i)}] for i in range(count)}
    write_dataset(tmp_path / "records", episodes, rates=dict.fromkeys(episodes, 10.0))
    out = to_lerobot(tmp_path / "records", tmp_path / "out")
    assert json.loads((out / "meta/info.json").read_text())["total_episodes"] == count
    files = sorted((out / "meta/episodes").rglob("*.parquet"))
    numbers = [n for file in files for n in pq.read_table(file)["episode_index"].to_pylist()]
    assert numbers == [*range(count)]


@pytest.mark.parametrize("seconds", [60, 1800, 3600, 86_400])
def test_time_lapse_keeps_its_rate(tmp_path: Path, seconds: int) -> None:
    path = write(tmp_path / "records", [{"x": np.float32(i)} for i in range(3)], 1 / seconds)
    out = to_lerobot(path, tmp_path / "out")
    fps = json.loads((out / "meta/info.json").read_text())["fps"]
    assert fps == pytest.approx(1 / seconds)
    [rows] = (out / "data").rglob("*.parquet")
    times = pq.read_table(rows)["timestamp"].to_numpy()
    np.testing.assert_allclose(times, np.arange(3.0) * seconds)


def test_renamed_columns_keep_their_axis_names(tmp_path: Path) -> None:
    vectors = {"state": np.array([0, 1], np.float32), "action": np.array([2, 3], np.float32)}
    frames = [vectors, vectors]
    metadata = {"a/b": {"names": {"state": ["x", "y"], "action": ["u", "v"]}}}
    path = write(tmp_path / "records", frames, metadata=metadata)
    rename = {"state": "observation.state"}
    out = to_lerobot(path, tmp_path / "out", rename=rename)
    features = json.loads((out / "meta/info.json").read_text())["features"]
    assert features["observation.state"]["names"] == ["x", "y"]
    assert features["action"]["names"] == ["u", "v"]


def test_kinds_decide_what_is_an_image(tmp_path: Path) -> None:
    """A state stays numbers, and labels in three channels stay lossless beside video."""
    pixels = noise(3, 32, 48, 3)
    kinds = {name: {"kind": name} for name in ("image", "segmentation", "state")}
    frames = [dict.fromkeys(kinds, each) for each in pixels]
    write_dataset(tmp_path / "r", {"a": frames}, features=kinds, fps=10)
    out = to_lerobot(tmp_path / "r", tmp_path / "out", video="h264")
    features = json.loads((out / "meta/info.json").read_text())["features"]
    stored = {name: features[name]["dtype"] for name in kinds}
    assert stored == {"image": "video", "segmentation": "image", "state": "uint8"}
    seqrecord.convert(open_source(out), tmp_path / "again", workers=1)
    [after] = all_frames(tmp_path / "again")
    assert np.array_equal(after["segmentation"], pixels)
    assert np.array_equal(after["state"], pixels)


@pytest.mark.parametrize("how", ["export", "merge", "pack", "subset", "command"])
@pytest.mark.parametrize("codec", ["h264", "av1"])
def test_removed_frames_are_not_exported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, codec: str, how: str
) -> None:
    """Neither trimmed frames nor frames of other episodes in a shared group of pictures."""
    images = pictures(30)
    path = tmp_path / "records"
    episodes = {
        key: [{VIDEO: image, "action": np.float32(i)} for i, image in enumerate(images)]
        for key in "ab"
    }
    write_dataset(path, episodes, codecs={VIDEO: f"{codec}:gop=10"}, fps=10)
    with seqrecord.open(path) as dataset:
        before = dataset.episodes["a"].read(range(30), features=[VIDEO])[VIDEO].astype(int)
    trim_episodes(path, ["a", "b"], slice(13, 27))
    if how == "subset":
        delete_episodes(path, ["b"])
    elif how == "merge":
        merge_datasets([path], tmp_path / "merged")
    elif how == "pack":
        seqrecord.convert(open_source(path), tmp_path / "packed", workers=1)
    folder = {"merge": "merged", "pack": "packed"}.get(how, "records")
    with caplog.at_level(logging.WARNING):
        if how == "command":
            run("export", path, "*", tmp_path / "out", "--format", "lerobot", "--quiet")
        else:
            to_lerobot(tmp_path / folder, tmp_path / "out")
    files = sorted((tmp_path / "out" / "videos").rglob("*.mp4"))
    assert len(files) == (1 if how == "subset" else 2)
    for file in files:
        frames = decoded(file)[1].astype(int)
        assert len(frames) == 14
        assert abs(frames - before[13:27]).mean() < 4
    if how != "command":
        assert "re-encoded" in caplog.text
    [table] = (tmp_path / "out" / "meta/episodes").rglob("*.parquet")
    assert not pq.read_table(table)[f"videos/{VIDEO}/from_timestamp"].to_numpy().any()


def test_columns_are_renamed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """LeRobot's policies see some names only; the warning lists others, with the remedy."""
    features: dict[str, Any] = {
        "state": np.zeros(3, np.float32),
        "front": np.zeros((16, 16, 3), np.uint8),
        "action": np.ones(2, np.float32),
        "instruction": "fold",
    }
    path = write(tmp_path / "a", [features] * 4)
    seqrecord.add_statistics(path)
    with caplog.at_level(logging.WARNING):
        to_lerobot(path, tmp_path / "plain")
    [message] = [text for text in caplog.messages if "policies will not see" in text]
    assert "will not see state, front, instruction:" in message
    assert "--rename state=observation.state" in message
    caplog.clear()
    names = {
        "state": "observation.state",
        "front": "observation.images.front",
        "instruction": "task",
    }
    options = [part for pair in names.items() for part in ("--rename", "=".join(pair))]
    with caplog.at_level(logging.WARNING):
        to_lerobot(path, tmp_path / "renamed", rename=names)
        run("export", path, "*", tmp_path / "cli", "--format", "lerobot", *options)
    assert "policies" not in caplog.text
    for out in (tmp_path / "renamed", tmp_path / "cli"):
        info = json.loads((out / "meta/info.json").read_text())
        assert {"observation.state", "observation.images.front", "action"} <= set(info["features"])
        assert not {"state", "front", "instruction", "task"} & set(info["features"])
        assert "observation.state" in json.loads((out / "meta/stats.json").read_text())
        assert pq.read_table(out / "meta/tasks.parquet")["task"].to_pylist() == ["fold"]
        source = open_source(out)
        assert {"observation.state", "observation.images.front"} <= set(source.schema())
    for wrong in (
        {"stat": "x"},
        {"state": "action"},
        {"state": "index"},
        {"state": "timestamp"},
        {"state": "task"},
        {"state": "a/b"},
        {"state": 3},
        ["state"],
    ):
        with pytest.raises(SchemaError):
            to_lerobot(path, tmp_path / "wrong", rename=wrong)  # type: ignore[arg-type]
        assert not (tmp_path / "wrong").exists()
    run("export", path, "*", tmp_path / "files", "--rename", "state=x", code=2)


def test_times_that_differ_from_the_rate_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows get i / fps; also without the timestamps among the exported features, in any unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        frames = [
            {"action": np.float32(i), "timestamp": np.float64(scale * (5 + i / 28.8))}
            for i in range(60)
        ]
        spec = {"timestamp": {"kind": "timestamp", "unit": unit}}
        path = write(tmp_path / unit, frames, fps=30, features=spec)
        for number, features in enumerate((None, ["action"])):
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                out = to_lerobot(path, tmp_path / f"{unit}{number}", features=features)
            [message] = [text for text in caplog.messages if "timestamps differ" in text]
            assert "times i / 30; timestamps differ by up to 0.0819 s (episode a/b, 28.8" in message
            [rows] = (out / "data").rglob("*.parquet")
            times = pq.read_table(rows)["timestamp"].to_numpy()
            np.testing.assert_allclose(times, np.arange(60) / 30, atol=1e-6)
        text = run("info", path, "a/b").output
        assert re.search(r"measured fps +28.8 \(mean\)", text)
        assert re.search(r"time error +up to 0.0819 s", text)


@pytest.mark.parametrize("first", [0.0, 5.0, np.nan])
def test_language_times_do_not_depend_on_the_selected_features(
    tmp_path: Path, first: float
) -> None:
    """They count from the episode's first frame; a first time that is no number moves nothing."""
    frames = [{"action": np.float32(i), "timestamp": np.float64(first + i / 10)} for i in range(4)]
    records, begin = tmp_path / "records", 0.0 if np.isnan(first) else first
    metadata = {"a": {"language_persistent": [language_row("subtask", "reach", begin + 0.25)]}}
    features = {"timestamp": {"kind": "timestamp", "unit": "s"}}
    write_dataset(records, {"a": frames}, metadata=metadata, features=features, rates={"a": 10.0})
    for number, selected_features in enumerate((None, ["action"])):
        out = to_lerobot(records, tmp_path / f"{number}", features=selected_features)
        [info] = open_source(out).episodes()
        [text] = info.metadata["language_persistent"]
        assert text["timestamp"] == 0.25


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_recorded_times_are_kept_if_one_is_no_number(tmp_path: Path, bad: float) -> None:
    for begin in (0.0, 100.0):
        times = [begin + time for time in (0.0, 0.1, bad, 0.3)]
        frames = [
            {"action": np.float32(i), "timestamp": np.float64(time)} for i, time in enumerate(times)
        ]
        records = write(tmp_path / f"{begin}", frames, None)
        source = open_source(to_lerobot(records, tmp_path / f"{begin}-out", fps=10))
        recorded = [frame["recorded_timestamp"] for frame in frames_of(source)]
        np.testing.assert_array_equal(recorded, times)
