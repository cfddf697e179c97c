"""Windows in seconds: offsets by the frames a second of episodes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import ClipError, Seconds, SeqRecordDataset


@pytest.mark.parametrize(
    ("seconds", "fps", "offsets"),
    [
        (Seconds(-0.5, 0), 10, [-5, -4, -3, -2, -1, 0]),
        (Seconds(-0.5, 0), 15, [-7, -6, -5, -4, -3, -2, -1, 0]),
        (Seconds(0, 0.1), 30, [0, 1, 2, 3]),
        (Seconds(0, 0), 30, [0]),
        (Seconds(0.1, 0.4, every=0.1), 30, [3, 6, 9, 12]),
        (Seconds([0, -0.1, -0.1]), 50, [0, -5, -5]),
        (Seconds([1 / 3]), 30, [10]),
        (Seconds([0.099], tolerance=0.01), 10, [1]),
    ],
)
def test_offsets(seconds: Seconds, fps: float, offsets: list[int]) -> None:
    found = seconds.offsets(fps, "image")
    assert found.dtype == np.int64
    assert found.tolist() == offsets


@given(st.sampled_from([5, 10, 24, 29.97, 30, 60, 1000]), st.integers(-90, 90), st.integers(0, 60))
def test_every_frame_between_two_times(fps: float, first: int, count: int) -> None:
    last = first + count
    whole = Seconds(first / fps, last / fps).offsets(fps, "a").tolist()
    assert whole == list(range(first, last + 1))
    asked = [i / fps for i in whole]
    assert Seconds(asked).offsets(fps, "a").tolist() == whole
    within = Seconds((first - 0.5) / fps, (last + 0.5) / fps).offsets(fps, "a").tolist()
    assert within == whole


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.5,), "two times, or a list"),
        (("now",), "two times, or a list"),
        (([],), "at least one"),
        ((["now"],), "not a number of seconds"),
        (([math.nan],), "not a number of seconds"),
        ((0, math.inf), "not a number of seconds"),
        ((True, 2), "not a number of seconds"),
        ((0.5, 0), "ends before it begins"),
        ((0, 1, -1), "every of Seconds is too small"),
        (([0], None, 0.1), "no every"),
        ((0, 1, None, -1), "tolerance of Seconds is too small"),
    ],
)
def test_bad_seconds(arguments: tuple[Any, ...], message: str) -> None:
    defaults: tuple[Any, ...] = (None, None, 1e-4)
    first, last, every, tolerance = arguments + defaults[len(arguments) - 1 :]
    with pytest.raises(ClipError, match=message):
        Seconds(first, last, every=every, tolerance=tolerance)


def test_times_without_a_frame() -> None:
    with pytest.raises(ClipError, match="no frame is near enough") as caught:
        Seconds([0, 0.15]).offsets(10, "image")
    assert caught.value.feature == "image"
    assert caught.value.got == "0.15 s, and the nearest frame at 0.2 s"
    with pytest.raises(ClipError, match="no frame lies within Seconds"):
        Seconds(0.01, 0.09).offsets(10, "image")


def test_repr() -> None:
    for text in (
        "Seconds(-0.5, 0)", "Seconds([-0.1, 0.0])", "Seconds(0, 1, every=0.5, tolerance=0.01)"
    ):  # fmt: skip
        assert repr(eval(text)) == text


def write(path: Path, fps: list[float | None]) -> Path:
    with seqrecord.SeqRecordWriter(path) as writer:
        for number, rate in enumerate(fps):
            with writer.episode(f"{number}", fps=rate) as episode:
                for i in range(20):
                    episode.append({"a": np.int64(100 * number + i)})
    return path


def test_seconds_of_a_dataset(tmp_path: Path) -> None:
    path = write(tmp_path / "same", [10, 10])
    clips = SeqRecordDataset(path, windows={"a": Seconds([-0.2, 0, 0.3])}, pad="edge")
    assert len(clips) == 40
    assert clips[39]["a"].tolist() == [117, 119, 119]
    assert clips[39]["a_is_pad"].tolist() == [False, False, True]
    assert len(SeqRecordDataset(path, windows={"a": Seconds(-0.2, 0.3)})) == 30

    path = write(tmp_path / "other", [10, 30, None])
    for episodes, key, got in ((None, "1", "30"), (["0", "2"], "2", "none")):
        with pytest.raises(ClipError, match="one number of frames a second") as caught:
            SeqRecordDataset(path, windows={"a": Seconds(0, 1)}, episodes=episodes)
        assert (caught.value.episode, caught.value.got) == (key, got)
    assert len(SeqRecordDataset(path, windows={"a": Seconds(0, 0.5)}, episodes=["1"])) == 5
    with pytest.raises(ClipError, match="one number of frames a second"):
        SeqRecordDataset(path, windows={"a": Seconds(0, 1)}, episodes=["2"])
