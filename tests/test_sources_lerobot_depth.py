"""LeRobot's videos of depth: the metres that lerobot gives for each row, or a refusal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import DepthScale
from tests.lerobot_data import episodes
from tests.lerobot_depth_data import DEPTH, INFO, LENGTHS, codes_of, with_depth
from tests.lerobot_video_data import unpack, with_video
from tests.test_sources_lerobot import edit_info
from tests.test_sources_lerobot import unpack as unpack_rows

NAME = DEPTH[0]
ROWS = tuple(map(len, episodes()))


def depth_of(source: Any, number: int, name: str = NAME) -> Any:
    return np.stack([frame[name] for frame in source.frames(source.episodes()[number])])


def exact(scale: DepthScale) -> list[float]:
    """The metres of each code by the formula, in numbers of 64 bits."""
    low, high, shift = scale.depth_min, scale.depth_max, scale.shift
    if not scale.use_log:
        return [low + (high - low) * code / 4095 for code in range(4096)]
    ratio = (high + shift) / (low + shift)
    return [(low + shift) * ratio ** (code / 4095) - shift for code in range(4096)]


@pytest.mark.parametrize(
    "scale",
    [
        DepthScale(0.01, 10.0, 3.5, True),
        DepthScale(0.01, 10.0, 3.5, False),
        DepthScale(-1.0, 100.0, 1.5, True),
        DepthScale(0.3, 0.4, 0.0, True),
    ],
    ids=str,
)
def test_metres_of_codes(scale: DepthScale) -> None:
    metres, wanted = scale.metres(), np.array(exact(scale))
    assert metres.shape == (4096,)
    assert metres.dtype == np.float32
    # Five roundings of float32, of numbers that are as large as the largest.
    largest = scale.depth_max + max(scale.shift, 0.0)
    np.testing.assert_allclose(metres, wanted, rtol=0, atol=8 * 2**-24 * largest)
    assert (np.diff(metres) > 0).all()
    assert metres.min() >= np.float32(scale.depth_min)
    assert metres.max() <= np.float32(scale.depth_max)


def test_every_row_has_its_frame(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path)
    codes = codes_of(sum(ROWS))
    with_depth(root, codes, ROWS)
    images = with_video(root, ROWS)
    source = open_source(root)
    spec = source.schema()[NAME]
    assert (str(spec), spec.kind, spec.unit) == (f"{NAME}: float32 [48, 64]", "depth", "m")
    wanted = np.split(DepthScale.of(INFO).metres()[codes], np.cumsum(ROWS)[:-1])
    for number in (2, 0, 0, 1, 2):
        np.testing.assert_array_equal(depth_of(source, number), wanted[number])
    assert list(source.videos(source.episodes()[0])) == ["observation.images.front"]  # type: ignore[attr-defined]
    alone = open_source(root, features=[NAME])
    np.testing.assert_array_equal(depth_of(alone, 1), wanted[1])
    seqrecord.convert(source, tmp_path / "records", workers=1)
    with seqrecord.open(tmp_path / "records") as dataset:
        for number, part in enumerate(np.split(images, np.cumsum(ROWS)[:-1])):
            got = dataset.episodes[f"episode_{number:06d}"][:]
            np.testing.assert_array_equal(got[NAME], wanted[number])
            np.testing.assert_array_equal(got["observation.images.front"], part)
        assert dataset.statistics[NAME].max[0] == pytest.approx(10.0)


def test_b_frames_and_a_linear_scale_in_ffv1(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path)
    codes = codes_of(sum(ROWS), 1)
    info = {**INFO, "video.use_log": False}
    try:
        with_depth(root, codes, ROWS, info=info, codec="ffv1", options={})
    except ValueError:
        pytest.skip("PyAV 17 writes FFV1 into MP4")
    moving = "log-level=none:pools=none:frame-threads=1:lossless=1:bframes=4:keyint=9"
    with_depth(root, codes[::-1], ROWS, DEPTH[1], options={"x265-params": moving})
    source = open_source(root)
    linear = DepthScale(0.01, 10.0, 3.5, False).metres()
    logarithmic = DepthScale(0.01, 10.0, 3.5, True).metres()
    for name, wanted in ((NAME, linear[codes]), (DEPTH[1], logarithmic[codes[::-1]])):
        got = [depth_of(source, number, name) for number in range(len(ROWS))]
        np.testing.assert_array_equal(np.concatenate(got), wanted)


def said(root: Path, **more: Any) -> None:
    """Change what info.json says of the feature."""
    features = json.loads((root / "meta/info.json").read_text())["features"]
    edit_info(root, features={**features, NAME: {**features[NAME], **more}})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("depth_min", None), ("depth_max", None), ("shift", None), ("use_log", None)),
        *(("use_log", 1), ("depth_min", True), ("depth_max", "10"), ("depth_max", math.inf)),
        *(("shift", math.nan), ("depth_max", 10**400), ("depth_max", 0.01), ("shift", -0.01)),
        *(("depth_max", 1e300), ("depth_max", 1e39)),
    ],
)
def test_scales_that_mean_nothing(tmp_path: Path, name: str, value: Any) -> None:
    root = unpack_rows(tmp_path)
    with_video(root, ROWS, NAME)  # which is never looked at
    info = {**INFO, f"video.{name}": value, "video.use_log": value != 1e39}
    said(root, info=info | {f"video.{name}": value})
    if value is None:
        said(root, info={key: each for key, each in INFO.items() if key != f"video.{name}"})
    with pytest.raises(SourceError, match=f"video.{name}: .*without_video") as caught:
        open_source(root).schema()
    assert caught.value.feature == NAME
    assert caught.value.file == str(root / "meta/info.json")
    assert NAME not in open_source(root, without_video=True).schema()


@pytest.mark.parametrize("mark", [{"is_depth_map": True}, {"video.pix_fmt": "gray12le"}])
def test_depth_of_which_no_scale_is_said(tmp_path: Path, mark: dict[str, Any]) -> None:
    root = unpack_rows(tmp_path)
    with_video(root, ROWS, NAME)
    for key in ("info", "video_info"):
        said(root, **{"info": None, "video_info": None, key: mark})
        with pytest.raises(SourceError, match="a video of depth without a scale"):
            open_source(root).schema()


def test_videos_that_hold_no_codes(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path)
    with_depth(root, codes_of(sum(ROWS)), ROWS, pixels="gray10le")
    with pytest.raises(SourceError, match=r"pixels that are no codes.*feature: obs") as caught:
        open_source(root).schema()
    assert (caught.value.expected, caught.value.got) == ("gray12le", "gray10le")


def test_another_size_and_fewer_frames_than_rows(tmp_path: Path) -> None:
    root = unpack_rows(tmp_path)
    with_depth(root, codes_of(sum(ROWS) - 1), ROWS)
    source = open_source(root)
    depth_of(source, 1)
    with pytest.raises(SourceError, match="without a frame of its own") as caught:
        depth_of(source, 2)
    assert (caught.value.episode, caught.value.feature) == ("episode_000002", NAME)
    assert caught.value.frame == ROWS[2] - 1
    said(root, shape=[48, 65, 1])
    with pytest.raises(SourceError, match="a video of another size than declared"):
        open_source(root).schema()


def test_what_lerobot_gives_for_each_row(tmp_path: Path) -> None:
    root = unpack(tmp_path, "lerobot_depth")
    with np.load(root / "frames.npz") as frames:
        for name in DEPTH:
            source = open_source(root / name.rpartition(".")[2])
            rows = [depth_of(source, number, name) for number in range(len(LENGTHS))]
            assert [len(each) for each in rows] == [*LENGTHS]
            got, wanted = np.concatenate(rows), frames[name]
            if name == DEPTH[1]:
                np.testing.assert_array_equal(got, wanted)
            else:  # torch's exponentials, see docs/reference/sources.md
                np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)
                assert (got == wanted).mean() > 0.99
            assert wanted.min() == pytest.approx(0.01, abs=1e-6)
            assert wanted.max() == 8
            assert np.abs(np.diff(wanted, axis=0)).max() > 0.05  # so it is no other frame
