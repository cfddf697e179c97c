"""Windows in seconds: offsets by the frames a second of episodes."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import seqrecord
from seqrecord import ClipError, EngineOptions, Seconds, SeqRecordDataset, SeqRecordPipe
from tests.resume_contract import check_resume


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
        ((np.array(0.5),), "two times, or a list"),
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
        ((10**400, 1), "not a number of seconds"),
        ((0, 1, 1e-300), "too many times"),
        ((itertools.count(),), "too many times"),
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


@pytest.mark.parametrize(
    ("seconds", "fps"),
    [
        (Seconds(-1e8, 1e8), 30),
        (Seconds([1e8]), 240),
        (Seconds(0, 1), 1e300),
        (Seconds([1]), 1e300),
        (Seconds(0, 1e8, every=1e6), 1e3),
    ],
)
def test_too_many_frames(seconds: Seconds, fps: float) -> None:
    with pytest.raises(ClipError, match=r"too many frames.*at most 1048576") as caught:
        seconds.offsets(fps, "image")
    assert caught.value.feature == "image"


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
    for episodes in (None, ["0", "2"], ["2"]):
        with pytest.raises(ClipError, match="how many frames a second") as caught:
            SeqRecordDataset(path, windows={"a": Seconds(0, 1)}, episodes=episodes)
        assert (caught.value.episode, caught.value.got) == ("2", "none")
    with pytest.raises(ClipError, match="other numbers of frames in Seconds") as caught:
        SeqRecordDataset(path, windows={"a": Seconds(0, 0.5)}, episodes=["0", "1"])
    assert (caught.value.episode, caught.value.feature) == ("1", "a")
    with pytest.raises(ClipError, match="no frame is near enough") as caught:
        SeqRecordDataset(path, windows={"a": Seconds([0.1, 1 / 30])}, episodes=["0", "1"])
    assert caught.value.episode == "0"
    assert len(SeqRecordDataset(path, windows={"a": Seconds(0, 0.5)}, episodes=["1"])) == 5


RATES = (10, 30, 20, 30, 10)
LENGTHS = (12, 40, 9, 3, 1)


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of several frames a second; frame 20 of the second lacks `b`."""
    path = tmp_path_factory.mktemp("rated") / "records"
    features = {"b": {"group": 1}}
    with seqrecord.SeqRecordWriter(path, chunk_frames=7, features=features) as writer:
        for number, (rate, length) in enumerate(zip(RATES, LENGTHS, strict=True)):
            with writer.episode(f"{number}", fps=rate) as episode:
                for i in range(length):
                    frame = {"a": np.int64(100 * number + i), "b": np.int64(i)}
                    if (number, i) == (1, 20):
                        del frame["b"]
                    episode.append(frame)
    return path


@settings(deadline=None, max_examples=40)
@given(
    tenths=st.lists(st.integers(-8, 8), min_size=1, max_size=4),
    others=st.lists(st.integers(-3, 9), min_size=1, max_size=3),
    pad=st.sampled_from([None, "edge"]),
    stride=st.integers(1, 3),
    shuffle=st.booleans(),
    world_size=st.integers(1, 2),
)
def test_episodes_of_other_rates(
    rated: Path,
    tenths: list[int],
    others: list[int],
    pad: Any,
    stride: int,
    shuffle: bool,
    world_size: int,
) -> None:
    """Against each episode's own offsets, for all clips that lack nothing."""
    wanted = {}
    for number, (rate, length) in enumerate(zip(RATES, LENGTHS, strict=True)):
        asked = {"a": [i * rate // 10 for i in tenths], "b": others}
        for start in range(0, length, stride):
            frames = {n: [start + i for i in offsets] for n, offsets in asked.items()}
            near = {n: [min(max(i, 0), length - 1) for i in some] for n, some in frames.items()}
            if number == 1 and 20 in near["b"]:
                continue
            if pad is None and near != frames:
                continue
            is_pad = [i != j for i, j in zip(frames["a"], near["a"], strict=True)]
            values = [100 * number + i for i in near["a"]]
            wanted[f"{number}", start] = values, near["b"], is_pad
    options: dict[str, Any] = {
        "windows": {"a": Seconds([i / 10 for i in tenths]), "b": others},
        "pad": pad,
        "stride": stride,
    }
    if not wanted:
        with pytest.raises(ClipError, match="no clip"):
            SeqRecordDataset(rated, **options)
        return
    found = {}
    for rank in range(world_size):
        pipe = SeqRecordPipe(
            rated, **options, batch_size=4, shuffle=shuffle, rank=rank, world_size=world_size
        )
        for batch in pipe:
            for i, (key, start) in enumerate(
                zip(batch["episode"], batch["start"].tolist(), strict=True)
            ):
                is_pad = batch["a_is_pad"][i].tolist() if pad else [False] * len(tenths)
                found[key, start] = batch["a"][i].tolist(), batch["b"][i].tolist(), is_pad
    assert found == wanted
    dataset = SeqRecordDataset(rated, **options)
    assert [dataset[i]["a"].tolist() for i in range(len(dataset))] == [
        values for values, _, _ in wanted.values()
    ]


def test_lists_of_clips_of_other_rates(rated: Path) -> None:
    """Each start is checked by the window of its own episode."""
    options: dict[str, Any] = {"windows": {"a": Seconds([0, 0.5]), "b": [0]}}
    good = {"episode": ["0", "1", "1"], "start": [6, 3, 24]}
    clips = SeqRecordDataset(rated, **options, clips=good)
    assert [clips[i]["a"].tolist() for i in range(3)] == [[6, 11], [103, 118], [124, 139]]
    with pytest.raises(ClipError, match="no clip lies in its episode, in row 1") as caught:
        SeqRecordDataset(rated, **options, clips={"episode": ["0", "1"], "start": [6, 25]})
    assert (caught.value.expected, caught.value.got) == ("0 to 24", 25)
    chosen = SeqRecordDataset(rated, **options, clips=good, episodes=["1"])  # of 30 frames a second
    assert [chosen[i]["a"].tolist() for i in range(len(chosen))] == [[103, 118], [124, 139]]
    with pytest.raises(ClipError, match="no clip lies in its episode, in row 0"):
        SeqRecordDataset(rated, **options, clips={**good, "start": [12, 3, 24]}, episodes=["1"])
    first = SeqRecordDataset(rated, windows={"a": Seconds([0.1]), "b": [0]}, episodes=["0"])
    assert len(first) == 11
    check_resume(
        lambda: SeqRecordPipe(
            rated, **options, pad="edge", batch_size=4, engine=EngineOptions(num_cursors=2)
        ),
        num_epochs=2,
    )
