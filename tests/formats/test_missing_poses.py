"""Poses that are missing or not finite are counted, and depth has the type that it declares."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import open_source
from seqrecord.errors import SourceError
from seqrecord.sources import inventory_of
from tests.formats.cases import index_source
from tests.formats.format_cases.scenes import write_nerfstudio, write_scannet
from tests.kit.bags import compressed, header, image, message, png, transform, write_mcap
from tests.kit.datasets import encoded
from tests.kit.source_faults import frames_of

START, STEP = 1_700_000_000_000_000_000, 100_000_000
TURN = [0.0, 0.0, 0.0, 1.0]
HOW: dict[str, Any] = {"clock": "/cam", "poses": "cam", "root_frame": "map"}


def write_recording(path: Path, positions: Sequence[float], turns: Any = None) -> Path:
    """Ten images between transforms with these x, one every step."""
    picture = image(np.zeros((4, 4, 3), np.uint8), "rgb8")
    messages: list[tuple[str, int, Any]] = [
        ("/cam", START + STEP * n + STEP // 2, picture) for n in range(10)
    ]
    for n, x in enumerate(positions):
        time = START + STEP * n
        moved = transform("map", "cam", [x, 0, 0, *(TURN if turns is None else turns)], time)
        messages.append(("/tf", time, message("tf2_msgs/msg/TFMessage", [moved])))
    return write_mcap(path, sorted(messages, key=lambda each: each[1]))


CASES: dict[str, tuple[list[float], int]] = {
    "all": ([*range(11)], 0),
    "an end half way": ([*range(5)], 6),
    "NaN": ([0, 1, np.nan, *range(3, 11)], 2),
    "infinity at the end": ([*range(10), np.inf], 1),
}


@pytest.mark.parametrize("case", CASES)
def test_frames_of_a_bag_without_a_pose(
    tmp_path: Path, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    positions, lacking = CASES[case]
    source = open_source(write_recording(tmp_path / "a.mcap", positions), **HOW)
    with caplog.at_level(logging.WARNING, "seqrecord"):
        [info] = source.episodes()
    frames = frames_of(source)
    assert sum("pose.cam" not in frame for frame in frames) == lacking
    for n, frame in enumerate(frames):
        if "pose.cam" in frame:
            np.testing.assert_allclose(frame["pose.cam"], [n + 0.5, 0, 0, *TURN])
    text = f"{lacking} of 10 frames lack pose.cam: no transform at most 0.1 s before and after"
    assert (text in caplog.text) == (lacking > 0)
    assert any(note.startswith(text) for note in inventory_of(source).notes) == (lacking > 0)
    counts = {"pose.cam": lacking} if lacking else None
    assert info.metadata.get("frames_without_pose") == counts


def test_a_larger_tolerance_finds_more_poses(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "a.mcap", [0, 1, np.nan, *range(3, 11)])
    assert sum("pose.cam" in frame for frame in frames_of(open_source(path, **HOW))) == 8
    near = open_source(path, **HOW, tolerance=0.04)
    assert not any("pose.cam" in frame for frame in frames_of(near))
    named = open_source(path, **HOW, tolerance=0.04, features=["cam", "pose.cam"])
    with pytest.raises(SourceError, match="no value in any frame"):
        seqrecord.convert(named, tmp_path / "r", workers=1)


@pytest.mark.parametrize("layout", ["bag", "scannet"])
def test_poses_alone_keep_frames_without_one(tmp_path: Path, layout: str) -> None:
    """`features=` of a source selects as a loader's does: it leaves out no frame."""
    name, options = "pose", dict[str, Any]()
    if layout == "bag":
        (tmp_path / "source").mkdir()
        write_recording(tmp_path / "source" / "a.mcap", [0, 1, np.nan, *range(3, 11)])
        name, options = "pose.cam", HOW
    else:
        write_scannet(tmp_path / "source")
    whole = frames_of(open_source(tmp_path / "source", **options))
    seqrecord.convert(
        open_source(tmp_path / "source", **options, features=[name]), tmp_path / "r", workers=1
    )
    if layout == "scannet":  # bags of raw images cannot be read in place
        index_source(open_source(tmp_path / "source", features=[name]), tmp_path / "index")
    for path in tmp_path.glob("[ri]*"):
        dataset = seqrecord.open(path)
        [episode] = dataset.episodes.values()
        assert [*dataset.features] == [name]
        assert len(episode) == len(whole)
        for number, frame in enumerate(whole):
            assert [*episode[number]] == ([name] if name in frame else [])
            if name in frame:
                np.testing.assert_array_equal(episode[number][name], frame[name])


def test_a_rotation_that_is_none_is_an_error(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "a.mcap", [0, 1], [0.0, 0.0, 0.0, 0.0])
    with pytest.raises(SourceError, match="invalid pose"):
        frames_of(open_source(path, **HOW))


@pytest.mark.parametrize("first", [False, True])
def test_messages_of_poses_that_are_not_finite(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: bool
) -> None:
    def pose(x: float) -> Any:
        parts = [("Point", [x, 2.0, 3.0]), ("Quaternion", TURN)]
        made = [message(f"geometry_msgs/msg/{name}", *values) for name, values in parts]
        moved = message("geometry_msgs/msg/Pose", *made)
        return message("geometry_msgs/msg/PoseStamped", header(), moved)

    values = [1.0, 1.0]
    values[0 if first else 1] = np.nan
    messages = [("/pose", START + n * STEP, pose(x)) for n, x in enumerate(values)]
    frames = frames_of(open_source(write_mcap(tmp_path / "a.mcap", messages)))
    assert ["pose" in frame for frame in frames] == [not first, first]
    assert "1 of 2 frames of a lack pose: translations that are not finite" in caplog.text


SHORTS = np.arange(12, dtype=np.uint16).reshape(3, 4)
PAYLOADS = {"bytes": SHORTS.astype(np.uint8), "colours": np.zeros((3, 4, 3), np.uint8)}


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("declared", ["16UC1", "32FC1"])
def test_depth_of_a_bag_with_another_payload(tmp_path: Path, payload: str, declared: str) -> None:
    form, wrong = f"{declared}; compressedDepth png", png(PAYLOADS[payload])
    good = compressed(bytes(4) + np.array([1, 0], "<f4").tobytes() + png(SHORTS), form)
    bad = compressed(good.data[:12].tobytes() + wrong, form)
    for number, messages in enumerate(([bad], [good, bad])):
        timed = [("/depth", START + n * STEP, each) for n, each in enumerate(messages)]
        path = write_mcap(tmp_path / f"{number}.mcap", timed)
        with pytest.raises(SourceError, match=r"16 bits|uint16 \[3, 4\]"):
            frames_of(open_source(path))


def test_depth_of_8_bits_has_no_millimetres(tmp_path: Path) -> None:
    """Other scenes are packed."""
    for name, write in (("a", write_scannet), ("b", write_scannet), ("c", write_nerfstudio)):
        write(tmp_path / name)
    pixels = np.ones((36, 48), np.uint8)
    for path in (tmp_path / "b" / "depth").iterdir():
        path.write_bytes(encoded(pixels))
    source = open_source(tmp_path, features=["image", "depth"])
    with pytest.raises(SourceError, match="depth") as caught:
        frames_of(source, "b")
    assert "uint8" in str(caught.value.got)
    assert len(frames_of(source, "a")) == 5
