"""LeRobot's videos: the frames, or metres, that lerobot gives for each row, or a refusal."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import DepthScale, LeftOut, inventory_of
from seqrecord.writing.convert_jobs import KEPT_COST, frame_cost
from tests.lerobot_data import episodes
from tests.lerobot_depth_data import DEPTH, INFO, codes_of, with_depth
from tests.lerobot_depth_data import LENGTHS as DEPTH_LENGTHS
from tests.lerobot_video_data import CAMERAS, LENGTHS, block_means, unpack, with_video
from tests.test_sources_lerobot import LISTED, at, column, edit_info, rewrite
from tests.test_sources_lerobot import unpack as unpack_rows
from tests.video_file_data import (
    HAS_TABLES,
    HEIGHT,
    WIDTH,
    hide_first,
    of_gops,
    pictures,
    write_video,
)

VIDEO = CAMERAS[0]
ROWS = tuple(map(len, episodes()))
BEGIN = f"videos/{VIDEO}/from_timestamp"


def frames_of(source: Any, number: int, name: str = VIDEO) -> npt.NDArray[np.uint8]:
    """The frames of one episode's video."""
    return of_gops(source.schema()[name], source.videos(source.episodes()[number])[name])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Rows of three episodes, in files of v3.0."""
    return unpack_rows(tmp_path)


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_what_lerobot_gives_for_each_row(tmp_path: Path, version: str) -> None:
    root = unpack(tmp_path, f"lerobot_video_{version}")
    source = open_source(root)
    schema = source.schema()
    assert [str(spec) for spec in schema.values()][:3] == [
        *(f"{name}: uint8 [32, 48, 3]" for name in CAMERAS),
        "observation.state: float32 [2]",
    ]
    with np.load(root / "frames.npz") as wanted:
        for name in CAMERAS:
            assert schema[name].kind == "image"
            codec = {"codec": "av1", "pixel_format": "yuv420p"}
            assert schema[name].codec[0].items() >= codec.items()
            parts = np.split(wanted[name], np.cumsum(LENGTHS)[:-1])
            for number, want in enumerate(parts):
                got = block_means(frames_of(source, number, name))
                # Other builds of FFmpeg may round colours differently, by less than 1 each.
                np.testing.assert_allclose(got, want, atol=1)
                assert np.abs(np.diff(want, axis=0)).max() > 5  # so it is no other frame
    frames: list[Any] = list(source.frames(source.episodes()[2]))
    assert [frame["observation.state"].tolist() for frame in frames] == [[2, i] for i in range(7)]
    assert VIDEO not in frames[0]


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_h264_in_the_same_layout(tmp_path: Path, version: str) -> None:
    root = unpack_rows(tmp_path, version)
    parts = np.split(with_video(root, ROWS), np.cumsum(ROWS)[:-1])
    source = open_source(root)
    for number in (2, 0, 0, 1, 2):
        np.testing.assert_array_equal(frames_of(source, number), parts[number])
    assert source.episodes()[0].metadata.get("names", {}).get(VIDEO) is None
    for options in ({"without_video": True}, {"features": ["action"]}):
        other: Any = open_source(root, **options)
        assert VIDEO not in other.schema()
        assert other.videos(other.episodes()[0]) == {}
    alone = open_source(root, features=[VIDEO])
    assert len(frames_of(alone, 2)) == ROWS[2]
    assert list(alone.frames(alone.episodes()[1])) == [{}] * ROWS[1]


def refused(root: Path, number: int, **options: Any) -> SourceError:
    source = open_source(root, **options)
    with pytest.raises(SourceError) as caught:
        frames_of(source, number)
    assert caught.value.episode == f"episode_{number:06d}"
    assert caught.value.feature == VIDEO
    return caught.value


def test_fewer_frames_than_rows(root: Path) -> None:
    with_video(root, [5, 3, 6])
    error = refused(root, 2)
    assert error.frame == 6
    assert "no frame of its own" in error.message
    assert len(frames_of(open_source(root), 1)) == 3


def test_videos_that_are_broken(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path, "v21")
    with_video(root, ROWS)
    folder = root / f"videos/chunk-000/{VIDEO}"
    path = folder / "episode_000001.mp4"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "unsupported video" in refused(root, 1).message
    path.unlink()
    assert refused(root, 1).got == "No such file or directory"
    write_video(path, pictures(3)[:, : HEIGHT // 2], rate=10)
    error = refused(root, 1)
    assert "another size than the first one" in error.message
    assert (error.expected, error.got) == ([HEIGHT, WIDTH], [HEIGHT // 2, WIDTH])
    path.write_bytes(whole)
    assert len(frames_of(open_source(root), 1)) == 3
    hide_first(path, 2, 10)
    assert refused(root, 1).frame == 1
    for each in folder.iterdir():
        each.write_bytes(b"")
    with pytest.raises(SourceError, match=r"unsupported video.*episode: episode_000000"):
        open_source(root).schema()


def test_a_tolerance(root: Path) -> None:
    images = with_video(root, ROWS)
    rows = root / "data/chunk-000/file-000.parquet"
    rewrite(rows, column("timestamp", at(6, 0.11)))
    assert refused(root, 1).frame == 1
    rewrite(rows, column("timestamp", lambda times: [time + 0.003 for time in times]))
    assert refused(root, 0).frame == 0
    np.testing.assert_array_equal(frames_of(open_source(root, tolerance=0.01), 0), images[:5])


def test_paths_and_times_that_mean_nothing(root: Path) -> None:
    with_video(root, ROWS)
    path = json.loads((root / "meta/info.json").read_text())["video_path"]
    for wrong, match in (
        (None, "invalid video_path"),
        ("/{video_key}.mp4", "invalid video_path; .*a path below the dataset"),
        ("{video_key:03d}.mp4", "invalid video_key; .*a number for video_path"),
        ("{video_key.x}.mp4", "invalid video_path"),
    ):
        edit_info(root, video_path=wrong)
        with pytest.raises(SourceError, match=match):
            open_source(root).episodes()
    edit_info(root, video_path=path)
    for value in (-1.0, float("nan"), None):
        rewrite(root / LISTED, column(BEGIN, at(1, value)))
        source: Any = open_source(root)
        with pytest.raises(SourceError, match=r"invalid .*from_timestamp") as caught:
            source.videos(source.episodes()[1])
        assert caught.value.episode == "episode_000001"
    rewrite(root / LISTED, lambda table: table.drop_columns(BEGIN))
    with pytest.raises(SourceError) as caught:
        open_source(root).episodes()
    assert caught.value.expected == BEGIN


def test_video_that_is_kept_is_little_work(tmp_path: Path) -> None:
    schema = open_source(unpack(tmp_path, "lerobot_video_v3")).schema()
    videos = sum(schema[name].nbytes for name in CAMERAS)
    assert videos > 100 * KEPT_COST
    assert frame_cost(schema) == schema.frame_nbytes - videos + videos // KEPT_COST


@pytest.mark.skipif(not HAS_TABLES, reason="PyAV 17 reads the tables of a video")
@pytest.mark.parametrize("version", ["v3", "v21"])
def test_frames_of_no_episode_are_in_the_inventory(tmp_path: Path, version: str) -> None:
    root = unpack_rows(tmp_path, version)
    with_video(root, [*ROWS[:-1], ROWS[-1] + 4])
    frames = LeftOut(f"frames of {VIDEO}", 4, "outside of all episodes", "frames")
    assert frames in inventory_of(open_source(root)).left_out
    assert len(frames_of(open_source(root), 2)) == ROWS[2]


def test_an_episode_that_begins_in_the_frames_of_another(root: Path) -> None:
    with_video(root, ROWS)
    rewrite(root / LISTED, column(BEGIN, at(1, 0.4)))
    with pytest.raises(SourceError, match="overlaps with the next one in its video") as caught:
        frames_of(open_source(root), 0)
    assert (caught.value.episode, caught.value.feature) == ("episode_000000", VIDEO)
    assert caught.value.got == "5 rows to 0.400 s"


# --- depth ------------------------------------------------------------------------------------

NAME = DEPTH[0]


def depth_of(source: Any, number: int, name: str = NAME) -> Any:
    return np.stack([frame[name] for frame in source.frames(source.episodes()[number])])


def test_metres_of_codes() -> None:
    """Each code by the formula, in numbers of 64 bits."""
    codes = np.arange(4096) / 4095
    for low, high, shift, use_log in (
        *((0.01, 10.0, 3.5, True), (0.01, 10.0, 3.5, False)),
        *((-1.0, 100.0, 1.5, True), (0.3, 0.4, 0.0, True)),
    ):
        metres, ratio = (
            DepthScale(low, high, shift, use_log).metres(),
            (high + shift) / (low + shift),
        )
        wanted = (low + shift) * ratio**codes - shift if use_log else low + (high - low) * codes
        assert (metres.shape, metres.dtype) == ((4096,), np.float32)
        # Five roundings of float32, of numbers that are as large as the largest.
        atol = 8 * 2**-24 * (high + max(shift, 0.0))
        np.testing.assert_allclose(metres, wanted, rtol=0, atol=atol)
        assert (np.diff(metres) > 0).all()
        assert metres.min() >= np.float32(low)
        assert metres.max() <= np.float32(high)


def test_every_row_has_its_depth(tmp_path: Path, root: Path) -> None:
    codes = codes_of(sum(ROWS))
    with_depth(root, codes, ROWS)
    parts = np.split(with_video(root, ROWS), np.cumsum(ROWS)[:-1])
    source: Any = open_source(root)
    spec = source.schema()[NAME]
    assert (str(spec), spec.kind, spec.unit) == (f"{NAME}: float32 [48, 64]", "depth", "m")
    wanted = np.split(DepthScale.of(INFO).metres()[codes], np.cumsum(ROWS)[:-1])
    for number in (2, 0, 0, 1, 2):
        np.testing.assert_array_equal(depth_of(source, number), wanted[number])
    assert list(source.videos(source.episodes()[0])) == [VIDEO]
    np.testing.assert_array_equal(depth_of(open_source(root, features=[NAME]), 1), wanted[1])
    seqrecord.convert(source, tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        for number, part in enumerate(parts):
            got = dataset.episodes[f"episode_{number:06d}"][:]
            np.testing.assert_array_equal(got[NAME], wanted[number])
            np.testing.assert_array_equal(got[VIDEO], part)
        assert dataset.statistics[NAME].max[0] == pytest.approx(10.0)


def test_b_frames_and_a_linear_scale_in_ffv1(root: Path) -> None:
    codes = codes_of(sum(ROWS), 1)
    info = {**INFO, "video.use_log": False}
    try:
        with_depth(root, codes, ROWS, info=info, codec="ffv1", options={})
    except ValueError:
        pytest.skip("PyAV 17 writes FFV1 into MP4")
    moving = "log-level=none:pools=none:frame-threads=1:lossless=1:bframes=4:keyint=9"
    with_depth(root, codes[::-1], ROWS, DEPTH[1], options={"x265-params": moving})
    source = open_source(root)
    for name, use_log, wanted in ((NAME, False, codes), (DEPTH[1], True, codes[::-1])):
        got = [depth_of(source, number, name) for number in range(len(ROWS))]
        metres = DepthScale(0.01, 10.0, 3.5, use_log).metres()
        np.testing.assert_array_equal(np.concatenate(got), metres[wanted])


def said(root: Path, **more: Any) -> None:
    """Change what info.json says of the feature."""
    features = json.loads((root / "meta/info.json").read_text())["features"]
    edit_info(root, features={**features, NAME: {**features[NAME], **more}})


def test_scales_that_mean_nothing(root: Path) -> None:
    with_video(root, ROWS, NAME)  # which is never looked at
    for name, value in (
        *(("depth_min", None), ("depth_max", None), ("shift", None), ("use_log", None)),
        *(("use_log", 1), ("depth_min", True), ("depth_max", "10"), ("depth_max", math.inf)),
        *(("shift", math.nan), ("depth_max", 10**400), ("depth_max", 0.01), ("shift", -0.01)),
        *(("depth_max", 1e300), ("depth_max", 1e39)),
    ):
        info = {**INFO, "video.use_log": value != 1e39, f"video.{name}": value}
        said(root, info={key: each for key, each in info.items() if each is not None})
        with pytest.raises(SourceError, match=f"video.{name}: .*without_video") as caught:
            open_source(root).schema()
        assert caught.value.feature == NAME
        assert caught.value.file == str(root / "meta/info.json")
    assert NAME not in open_source(root, without_video=True).schema()
    for mark, key in product(
        ({"is_depth_map": True}, {"video.pix_fmt": "gray12le"}), ("info", "video_info")
    ):
        said(root, **{"info": None, "video_info": None, key: mark})
        with pytest.raises(SourceError, match="depth video without a valid scale"):
            open_source(root).schema()


def test_videos_that_hold_no_codes(root: Path) -> None:
    with_depth(root, codes_of(sum(ROWS)), ROWS, pixels="gray10le")
    with pytest.raises(SourceError, match=r"without 12-bit codes.*feature: obs") as caught:
        open_source(root).schema()
    assert (caught.value.expected, caught.value.got) == ("gray12le", "gray10le")


def test_another_size_and_fewer_frames_than_rows(root: Path) -> None:
    with_depth(root, codes_of(sum(ROWS) - 1), ROWS)
    source = open_source(root)
    depth_of(source, 1)
    with pytest.raises(SourceError, match="no frame of its own") as caught:
        depth_of(source, 2)
    assert (caught.value.episode, caught.value.feature) == ("episode_000002", NAME)
    assert caught.value.frame == ROWS[2] - 1
    said(root, shape=[48, 65, 1])
    with pytest.raises(SourceError, match=r"the video size differs from info\.json"):
        open_source(root).schema()


def test_metres_that_lerobot_gives_for_each_row(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_depth")
    with np.load(root / "frames.npz") as frames:
        for name in DEPTH:
            source = open_source(root / name.rpartition(".")[2])
            rows = [depth_of(source, number, name) for number in range(len(DEPTH_LENGTHS))]
            assert [len(each) for each in rows] == [*DEPTH_LENGTHS]
            got, wanted = np.concatenate(rows), frames[name]
            if name == DEPTH[1]:
                np.testing.assert_array_equal(got, wanted)
            else:  # torch's exponentials, see docs/reference/sources.md
                np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)
                assert (got == wanted).mean() > 0.99
            assert wanted.min() == pytest.approx(0.01, abs=1e-6)
            assert wanted.max() == 8
            assert np.abs(np.diff(wanted, axis=0)).max() > 0.05  # so it is no other frame
