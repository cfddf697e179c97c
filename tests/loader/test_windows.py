"""Windows: offsets, seconds, timestamps, `Latest`, compared with `clip_model`."""

from __future__ import annotations

import itertools
import math
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    ClipError,
    Dataset,
    EngineOptions,
    Latest,
    LoaderOptions,
    Next,
    Seconds,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordPipe,
    SeqRecordWriter,
    StateError,
)
from seqrecord.loader.clips.frames import Reach
from seqrecord.loader.pipes.make_view import make_view
from seqrecord.loader.sampling.runs import Window
from seqrecord.samples import dilate, every
from tests.kit.clip_data import LENGTHS, effective_arguments, expected_frame, names
from tests.kit.datasets import columns, write_dataset, written_once
from tests.loader.clip_model import FEATURES, GROUPS, Case, write_all
from tests.loader.resume_contract import check_resume

FIXED = ["image", "flow", "id"]
WINDOWS: dict[str, Any] = {"image": [-3, 0, 1], "id": range(16), "flow": range(-4, 4, 2)}
ASKED: dict[str, Any] = {"features": FIXED, "windows": WINDOWS, "pad": "edge"}
LOADERS: list[Any] = [SeqRecordPipe, SeqRecordMapDataset]


records = written_once(write_all, GROUPS, open_it=True)


def test_state_of_other_windows_is_refused(path: Path, records: Dataset) -> None:
    latest = {"clip_len": 2, "features": ["gps"], "windows": {"gps": Latest()}}
    others = [Latest(max_age=3), Latest(unknown="zeros"), Latest([0, 1]), Next()]
    cases: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
        (path, ASKED, {"windows": {**WINDOWS, "id": range(15)}}, "windows"),
        (path, ASKED, {"pad": None}, "pad"),
        (path, ASKED, {"windows": None, "clip_len": 1}, "clip_len, windows"),
        *((records, latest, {"windows": {"gps": other}}, "windows") for other in others),
    ]
    for dataset, options, other, message in cases:
        state = SeqRecordPipe(dataset, **options).state_dict()
        if options is ASKED:
            request = state["sources"][0]["request"]
            assert request["windows"] == {"image": "-3,0,1", "id": "0:16", "flow": "-4:3:2"}
        SeqRecordPipe(dataset, **options).load_state_dict(state)
        with pytest.raises(StateError, match=f"of other settings: {message}"):
            SeqRecordPipe(dataset, **{**options, **other}).load_state_dict(state)


def test_windows_of_transformed_features(path: Path) -> None:
    """Transforms get whole frames of all windows; no clip has a frame without `flow`."""

    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        return {"sum": frame["image"].sum(), "id": frame["id"], "flow": frame["flow"]}

    def frames(number: int, start: int, offsets: Sequence[int]) -> list[dict[str, Any]]:
        last = LENGTHS[number] - 1
        return [expected_frame(number, min(max(start + offset, 0), last)) for offset in offsets]

    windows = {"sum": [0, 3], "id": [-2, -1], "flow": [0]}
    every = [
        (f"set/{number}", start)
        for number, length in enumerate(LENGTHS)
        for start in range(length)
        if all("flow" in frame for frame in frames(number, start, [-2, -1, 0, 3]))
    ]
    settings: dict[str, Any] = {"frame_transform": transform, "pad": "edge"}
    settings["windows"] = {name: windows[name] for name in ("sum", "id")}
    clips, dataset = list(SeqRecordPipe(path, **settings)), SeqRecordMapDataset(path, **settings)
    assert sorted(names(clip)[0] for clip in clips) == every
    for clip in clips:
        single = dataset[every.index((clip["episode"], int(clip["start"])))]
        for name, offsets in windows.items():
            stored = frames(int(clip["episode"][4:]), int(clip["start"]), offsets)
            values = [transform(frame)[name].tolist() for frame in stored]
            assert clip[name].tolist() == values == single[name].tolist()
        assert {name for name in clip if name.endswith("is_pad")} == {"sum_is_pad", "id_is_pad"}


def test_phases_and_chosen_clips(records: Dataset) -> None:
    windows = {"image": [-1, 0], "flow": range(3)}
    settings: dict[str, Any] = {"features": FIXED, "windows": windows}
    case, pipe = Case(settings), SeqRecordPipe(records, samples=every(4, rotate=True), **settings)
    assert sorted(case.check(clip) for _ in range(4) for clip in pipe) == case.clips

    chosen = {"episode": ["lab/0", "kitchen/3", "lab/0"], "start": [5, 8, 18]}
    with pytest.raises(
        ClipError, match="without a complete clip in its episode, in row 2"
    ) as caught:
        SeqRecordPipe(records, samples=chosen, **settings)
    assert (caught.value.expected, caught.value.got) == ("1 to 16", 18)
    case = Case({**settings, "pad": "edge"})
    padded = SeqRecordPipe(records, samples=chosen, **case.options)
    assert sorted(map(case.check, padded)) == [(0, 5), (3, 8)]  # frame 18 of lab/0 has no flow


def test_small_windows_load_few_images(records: Dataset) -> None:
    """Later ids and earlier texts keep no images in memory."""

    def peak(**windows: Any) -> int:
        engine = EngineOptions(num_cursors=2, shuffle_buffer=8)
        pipe = SeqRecordPipe(records, **windows, batch_size=4, engine=engine)
        list(pipe)
        return int(pipe.stats()["peak_buffer_bytes"])

    images: dict[str, Any] = {"features": ["image", "action"]}
    small = peak(**images, windows={"image": [-1, 0], "action": range(16)})
    assert small < 0.6 * peak(**images, clip_len=16)
    # Frames of `say` stay for a whole episode, images do not.
    text: dict[str, Any] = {"clip_len": 2, "features": ["image", "text"], "episodes": "lab/0"}
    for latest, expected in ((Latest(max_age=5), (-5, 7)), (Latest(), (-18, 20))):
        view = make_view(records, LoaderOptions(**text, windows={"text": latest}))
        windows = [(w.offset, w.span) for w in view.group_windows]
        assert windows == [(0, 2), expected]


def test_windows_of_groups() -> None:
    offsets = np.array([-1, 0]), np.arange(16), np.arange(0, 9, 4), np.array([0, 8, 4])
    images, actions, sparse, unsorted = (Reach(o, uses_all=True) for o in offsets)
    assert Window.around([images], 1, pads=False) == Window(-1, 2, 1, 2)
    assert Window.around([actions, actions], 1, pads=False) == Window(0, 16, 1, 16)
    assert Window.around([images, actions], 1, pads=False) == Window(-1, 17, 1, 0)
    assert Window.around([sparse], 2, pads=False) == Window(0, 9, 2, 3)
    assert Window.around([unsorted], 4, pads=False) == Window(0, 9, 4, 0)
    assert Window.around([sparse], 2, pads=True) == Window(0, 9, 1, 0)
    # Two dilations; any frames between the first and the last one, some ahead; a whole episode.
    assert Window.around([images], 1, dilations=(1, 3), pads=False) == Window(-3, 4, 1, 0)
    ahead = Reach(np.array([-2, 1]), ahead=3)
    assert Window.around([ahead, images], 1, pads=False) == Window(-2, 7, 1, 0, ahead=3)
    whole = Reach(np.array([-9, 9]), is_whole=True)
    assert Window.around([images, whole], 1, pads=False) == Window(-9, 19, 1, 0, whole=True)


def test_too_long_range_is_refused_at_once() -> None:
    """For any length; the range is not iterated."""
    with pytest.raises(ClipError):  # imports are done before the measurement
        LoaderOptions(windows={"image": range(1 << 59)})
    for window in (range(1 << 60), range(0, -(1 << 80), -3)):
        calls = list[str]()
        sys.setprofile(lambda *call, calls=calls: calls.append(call[1]))
        try:
            with pytest.raises(ClipError) as info:
                LoaderOptions(windows={"image": window})
        finally:
            sys.setprofile(None)
        assert (len(calls) < 1000, info.value.got) == (True, repr(window))
        assert "too long" in str(info.value)


LATEST = {"gps": Latest([0])}
BAD: list[tuple[dict[str, Any], str, object]] = [
    ({}, "neither clip_len nor windows is given", None),
    ({"windows": {}}, "windows is not valid", "{}"),
    ({"windows": [0, 1]}, "windows is not valid", "[0, 1]"),
    ({"windows": {3: [0]}}, "windows is not valid", "{3: [0]}"),
    ({"windows": {"image": []}}, "is empty or too long", "0 offsets, the largest 0"),
    ({"windows": {"image": [0.5]}}, "a window is not valid", "[0.5]"),
    ({"windows": {"image": [True]}}, "a window is not valid", "[True]"),
    ({"windows": {"image": 3}}, "a window is not valid", "3"),
    ({"windows": {"image": "0"}}, "a window is not valid", "'0'"),
    ({"windows": {"image": [1 << 31]}}, "is empty or too long", None),
    ({"windows": {"depth": [0]}}, "a feature that clips do not have", "depth"),
    ({"windows": {"image": [0]}, "features": ["id"]}, "clips do not have", "image"),
    ({"windows": {"image": [0]}, "dilation": 2}, "dilation is that of clip_len", 2),
    ({"windows": {"image": range(99)}}, "no clip has all of its frames", None),
    ({"clip_len": 2, "pad": "zero"}, "pad is not valid", "'zero'"),
    ({"clip_len": 2, "pad": True}, "pad is not valid", "True"),
    ({"clip_len": 2, "windows": {"gps": Latest(Latest())}}, "window is not valid", None),  # type: ignore[arg-type]
    ({"clip_len": 2, "windows": {"gps": Latest([])}}, "is empty or too long", None),
    ({"clip_len": 2, "windows": {"gps": Latest("0")}}, "window is not valid", None),  # type: ignore[arg-type]
    ({"clip_len": 2, "windows": {"gbs": Latest()}}, "a feature that clips do not", "gbs"),
    ({"clip_len": 2, "windows": LATEST, "frame_transform": dict}, "frame_transform", None),
    ({"clip_len": 2, "windows": LATEST, "samples": dilate(1, 2)}, "clip_len frames", None),
]


def test_bad_windows(records: Dataset, tmp_path: Path) -> None:
    for arguments, message, got in BAD:
        for take in LOADERS:
            with pytest.raises(ClipError, match=message) as caught:
                take(records, **arguments)
            assert got is None or caught.value.got == got
            assert got != "gbs" or caught.value.expected == ", ".join(FEATURES)
    ages: list[dict[str, Any]] = [{"max_age": age} for age in (-1, 1.5, True, 1 << 31)]
    wrong = [*ages, {"unknown": "mask"}, {"unknown": np.zeros(2)}]
    cases: list[tuple[Any, dict[str, Any]]] = [(Latest, each) for each in wrong]
    for kind, arguments in [*cases, (Next, {"max_wait": -1})]:
        with pytest.raises(
            ClipError, match=f"{next(iter(arguments))} of {kind.__name__}"
        ) as caught:
            kind(**arguments)
        assert caught.value.got is not None

    taken: dict[str, dict[str, Any]] = {
        "a_is_pad": {"windows": {"a": [0]}, "pad": "edge"},
        "a_age": {"windows": {"a": Latest()}},
    }
    with SeqRecordWriter(tmp_path) as writer, writer.episode("one") as episode:
        for i in range(3):
            episode.append(dict.fromkeys(("a", *taken), np.int64(i)))
    for name, more in taken.items():
        for take in LOADERS:
            assert len(take(tmp_path, clip_len=2)) == 2
            with pytest.raises(ClipError, match="name of a batch's extra column") as caught:
                take(tmp_path, clip_len=1, **more)
            assert caught.value.got == name


# ---- the latest value


def test_each_chunk_is_read_once(records: Dataset) -> None:
    """In one run an episode, for any distance back."""
    case = Case({"clip_len": 3, "features": ["image", "text"], "windows": {"text": Latest()}})
    pipe = SeqRecordPipe(records, **case.options, batch_size=4, shuffle=False)
    assert len(list(pipe)) > 3
    groups = pipe.dataset.contents.index.groups
    used = {episode for episode, _ in case.clips}
    chunks = sum(int(groups[group].num_chunks[episode]) for group in (0, 4) for episode in used)
    assert chunks / 2 < pipe.stats()["loads"] <= chunks


def test_function_receives_the_latest_value(records: Dataset) -> None:
    """Also for the first clip, which has no value."""

    def shift(clip: dict[str, Any], _generator: np.random.Generator) -> dict[str, Any]:
        assert len(clip["force"]) == 2
        return {"gps": clip["gps"] * 2, "text": clip["text"], "id": clip["id"]}

    latest = Latest(unknown="zeros")
    windows = dict.fromkeys(["gps", "text", "force"], latest)
    case = Case({"clip_len": 2, "features": ["gps", "text", "id"], "windows": windows})
    features = [*case.features, "force"]
    options = {**case.options, "features": features, "clip_transform": shift}
    clips = list(SeqRecordPipe(records, **options))
    for clip in clips:
        assert "force" not in clip
        del clip["force_age"]
        case.check({**clip, "gps": clip["gps"] / 2})
    assert len(clips) == len(case.clips)


# ---- seconds


def test_offsets() -> None:
    offsets_of: list[tuple[Seconds, float, list[int]]] = [
        (Seconds(-0.5, 0), 10, [-5, -4, -3, -2, -1, 0]),
        (Seconds(-0.5, 0), 15, [-7, -6, -5, -4, -3, -2, -1, 0]),
        (Seconds(0, 0.1), 30, [0, 1, 2, 3]),
        (Seconds(0, 0), 30, [0]),
        (Seconds(0.1, 0.4, step=0.1), 30, [3, 6, 9, 12]),
        (Seconds([0, -0.1, -0.1]), 50, [0, -5, -5]),
        (Seconds([1 / 3]), 30, [10]),
        (Seconds([0.099], tolerance=0.01), 10, [1]),
        (Seconds([0.05, 0.15, 0.25], tolerance=0.06), 10, [0, 2, 2]),
    ]
    for seconds, fps, offsets in offsets_of:
        found = seconds.offsets(fps, "image")
        assert found.dtype == np.int64
        assert found.tolist() == offsets

    many, missing = r"too many frames.*at most 1048576", "no frame within the tolerance"
    errors: list[tuple[Seconds, float, str]] = [
        (Seconds(-1e8, 1e8), 30, many),
        (Seconds([1e8]), 240, many),
        (Seconds(0, 1), 1e300, many),
        (Seconds([1]), 1e300, many),
        (Seconds(0, 1e8, step=1e6), 1e3, many),
        (Seconds([0, 0.15]), 10, f"{missing}.*0.15 s, with the nearest frame at 0.2 s"),
        (Seconds(0.01, 0.09), 10, "no frame within Seconds"),
    ]
    for seconds, fps, message in errors:
        with pytest.raises(ClipError, match=message) as caught:
            seconds.offsets(fps, "image")
        assert caught.value.feature == "image"


@given(st.sampled_from([5, 10, 24, 29.97, 30, 60, 1000]), st.integers(-90, 90), st.integers(0, 60))
def test_frames_between_two_times(fps: float, first: int, count: int) -> None:
    last = first + count
    whole = Seconds(first / fps, last / fps).offsets(fps, "a").tolist()
    assert whole == list(range(first, last + 1))
    asked = [i / fps for i in whole]
    assert Seconds(asked).offsets(fps, "a").tolist() == whole
    within = Seconds((first - 0.5) / fps, (last + 0.5) / fps).offsets(fps, "a").tolist()
    assert within == whole


def test_bad_seconds() -> None:
    names = ("first", "last", "step", "tolerance", "timestamps", "out_of_range")
    errors: list[tuple[tuple[Any, ...], str]] = [
        *(((first,), "two times or a list") for first in (0.5, np.array(0.5), "now")),
        (([],), "must not be empty"),
        *((([time],), "not a number of seconds") for time in ("now", math.nan)),
        *(((first, last), "not a number") for first, last in ((0, math.inf), (True, 2))),
        ((10**400, 1), "not a number of seconds"),
        ((0.5, 0), "last is before first"),
        ((0, 1, -1), "step of Seconds is too small"),
        (([0], None, 0.1), "excludes step"),
        ((0, 1, None, -1), "tolerance of Seconds is too small"),
        ((0, 1, 1e-300), "too many times"),
        ((itertools.count(),), "too many times"),
        ((-0.5, 0, None, 1e-4, "time"), "requires a list of times or step"),
        (([0], None, None, 1e-4, 3), "not a feature's name"),
        (([0], None, None, 1e-4, None, "pad"), "out_of_range of Seconds"),
        (([0], None, None, 1e-4, "time", "skip"), "out_of_range of Seconds"),
    ]
    for arguments, message in errors:
        with pytest.raises(ClipError, match=message):
            Seconds(**dict(zip(names, arguments, strict=False)))


def test_repr() -> None:
    for text in (
        "Seconds(-0.5, 0)", "Seconds([-0.1, 0.0])", "Seconds(0, 1, step=0.5, tolerance=0.01)"
    ):  # fmt: skip
        assert repr(eval(text)) == text


def write_rated(path: Path, fps: list[float | None]) -> Path:
    episodes = {str(number): columns(a=np.arange(20) + 100 * number) for number in range(len(fps))}
    write_dataset(path, episodes, rates=dict(zip(episodes, fps, strict=True)))
    return path


def test_seconds_of_a_dataset(tmp_path: Path) -> None:
    path = write_rated(tmp_path / "same", [10, 10])
    clips = SeqRecordMapDataset(path, windows={"a": Seconds([-0.2, 0, 0.3])}, pad="edge")
    assert len(clips) == 40
    assert clips[39]["a"].tolist() == [117, 119, 119]
    assert clips[39]["a_is_pad"].tolist() == [False, False, True]
    assert len(SeqRecordMapDataset(path, windows={"a": Seconds(-0.2, 0.3)})) == 30

    path = write_rated(tmp_path / "other", [10, 30, None])
    for episodes in (None, ["0", "2"], ["2"]):
        with pytest.raises(ClipError, match="episodes with an fps") as caught:
            SeqRecordMapDataset(path, windows={"a": Seconds(0, 1)}, episodes=episodes)
        assert (caught.value.episode, caught.value.got) == ("2", "none")
    with pytest.raises(ClipError, match="different numbers of frames") as caught:
        SeqRecordMapDataset(path, windows={"a": Seconds(0, 0.5)}, episodes=["0", "1"])
    assert (caught.value.episode, caught.value.feature) == ("1", "a")
    times = [0.1, 1 / 30, 2 / 30]
    with pytest.raises(ClipError, match="no frame within the tolerance") as caught:
        SeqRecordMapDataset(path, windows={"a": Seconds(times)}, episodes=["0", "1"])
    assert caught.value.episode == "0"
    assert str(caught.value.got).startswith("0.0333333 s"), "the first of two"
    assert len(SeqRecordMapDataset(path, windows={"a": Seconds(0, 0.5)}, episodes=["1"])) == 5


def test_listed_clips_with_several_frame_rates(records: Dataset) -> None:
    """Each start is checked with the window of its episode."""
    windows = {"id": Seconds([0, 0.5]), "note": [0]}
    options: dict[str, Any] = {"windows": windows, "features": ["id", "note"]}
    case, keys = Case(options), ["lab/0", "kitchen/3", "kitchen/3"]

    def listed(starts: list[int], **more: Any) -> list[tuple[int, int]]:
        clips = {"episode": keys, "start": starts}
        dataset = SeqRecordMapDataset(records, **options, samples=clips, **more)
        return [case.check(dataset[i]) for i in range(len(dataset))]

    assert listed([6, 3, 14]) == [(0, 6), (3, 3), (3, 14)]
    assert listed([6, 3, 14], episodes=["kitchen/3"]) == [(3, 3), (3, 14)]
    for row, starts, most in ((1, [6, 15, 14], 14), (0, [14, 3, 14], 13)):
        with pytest.raises(
            ClipError, match=f"complete clip in its episode, in row {row}"
        ) as caught:
            listed(starts)
        assert (caught.value.expected, caught.value.got) == (f"0 to {most}", starts[row])


# ---- timestamps

TIMED = (60, 1, 9, 33)


def stamps(episode: int) -> npt.NDArray[np.int64]:
    """Nanoseconds: about ten frames a second, with jitter and a gap."""
    rng = np.random.default_rng(episode)
    steps = rng.integers(85_000_000, 115_000_000, TIMED[episode])
    if episode == 3:
        steps[20] += 150_000_000
    found: npt.NDArray[np.int64] = 1_700_000_000_000_000_000 + np.cumsum(steps)
    return found


def write_timed(path: Path) -> None:
    episodes = {
        str(number): columns(
            time=stamps(number),
            imu=[np.array([number, i]) for i in range(length)],
            image=[np.full((4, 4), i) for i in range(length)],
        )
        for number, length in enumerate(TIMED)
    }
    features = {"time": {"kind": "timestamp", "unit": "ns"}}
    write_dataset(path, episodes, features=features, chunk_frames=8)


timed = written_once(write_timed, open_it=True)


def check(clip: dict[str, Any], times: list[float], tolerance: float) -> tuple[int, int]:
    """Compare with the nearest frames; return the number of times outside and without a frame."""
    episode, start = int(clip["episode"]), int(clip["start"])
    at = (stamps(episode) - stamps(episode)[0]) * 1e-9
    asked = at[start] + np.array(times)
    frames = [int(np.argmin(np.abs(at - time))) for time in asked]
    far = np.abs(at[frames] - asked) > tolerance
    outside = far & ((asked < at[0]) | (asked > at[-1]))
    assert clip["imu"].tolist() == [[episode, frame] for frame in frames]
    assert clip["imu_is_pad"].tolist() == far.tolist()
    assert clip["image"][:, 0, 0].tolist() == [start]
    return int(outside.sum()), int((far & ~outside).sum())


def split(batches: Any) -> list[dict[str, Any]]:
    return [
        {name: batch[name][i] for name in batch}
        for batch in batches
        for i in range(len(batch["episode"]))
    ]


@settings(deadline=None)
@given(
    times=st.lists(st.floats(-1.5, 1.5), min_size=1, max_size=4),
    tolerance=st.sampled_from([0.02, 0.06, 0.5]),
    shuffle=st.booleans(),
    device=st.sampled_from([None, "cpu"]),
)
def test_nearest_frames(
    timed: Dataset, times: list[float], tolerance: float, shuffle: bool, device: str | None
) -> None:
    windows = {"imu": Seconds(times, timestamps="time", tolerance=tolerance, out_of_range="pad")}
    options: dict[str, Any] = {"features": ["imu", "image"], "windows": windows, "pad": "edge"}
    order = effective_arguments({"shuffle": shuffle, "shuffle_buffer": 16})
    pipe = SeqRecordPipe(timed, **options, **order, batch_size=5, device=device)
    found = [check(clip, times, tolerance) for clip in split(pipe)]
    assert len(found) == sum(TIMED)
    assert pipe.stats()["times_without_frame"] == sum(far for _, far in found)
    for clip in SeqRecordMapDataset(timed, **options).__getitems__([0, 59, 60, 65, 102]):
        check(clip, times, tolerance)


@pytest.mark.parametrize("drift", [0.96, 1.04])
def test_beyond_the_ends_of_a_slow_or_fast_loop(tmp_path: Path, drift: float) -> None:
    """The nearest frame is padding where it would be the next one after the last."""
    stamps = np.arange(40) * 0.1 * drift
    features = {"time": {"kind": "timestamp", "unit": "s"}}
    writer = SeqRecordWriter(tmp_path / "drift", features=features)
    with writer, writer.episode("0", fps=10.0) as episode:
        for i, stamp in enumerate(stamps):
            episode.append({"time": stamp, "a": np.int64(i)})
    for times in (
        [-0.163, -0.06, 0, 0.045, 0.06, 0.07, 0.075, 0.163],
        [-3, -1.15, 0, 1.05, 1.06, 1.07, 3],
    ):
        windows: dict[str, Any] = {"a": Seconds(times, tolerance=0.045), "time": [0]}
        clips = SeqRecordMapDataset(tmp_path / "drift", windows=windows, pad="edge")
        for start in range(40):
            asked = (stamps[start] + np.array(times)) / (0.1 * drift)
            numbers = np.floor(asked + 0.5)
            clip = clips[start]
            assert clip["a_is_pad"].tolist() == ((numbers < 0) | (numbers > 39)).tolist(), start
            assert clip["a"].tolist() == np.clip(numbers, 0, 39).tolist(), start


SPARSE = {"third": 3, "most": 30, "all": 1}
"""Every how many frames a feature has a value; all but every 30th for `most`."""


def has(name: str, frame: int) -> bool:
    return bool(frame % 30) if name == "most" else frame % SPARSE[name] == 0


def sparse_stamps(episode: int) -> npt.NDArray[np.int64]:
    """Nanoseconds: even frames, a loop 4 % slow, and jitter."""
    steps = np.full(80, 100_000_000 if episode == 0 else 104_000_000)
    if episode == 2:
        steps = np.random.default_rng(2).integers(60_000_000, 140_000_000, 80)
    stamps: npt.NDArray[np.int64] = np.cumsum(steps)
    return stamps


def write_sparse(path: Path) -> None:
    values = {
        name: [np.int64(frame) if has(name, frame) else None for frame in range(80)]
        for name in SPARSE
    }
    features = {"time": {"kind": "timestamp", "unit": "ns"}}
    episodes = {str(number): columns(time=sparse_stamps(number), **values) for number in range(3)}
    write_dataset(path, episodes, features=features, fps=10)


sparse = written_once(write_sparse, open_it=True)


@settings(deadline=None)
@given(
    name=st.sampled_from([*SPARSE]),
    times=st.lists(st.integers(-90, 90).map(lambda n: n / 50 + 0.003), min_size=1, max_size=3),
    max_age=st.sampled_from([None, 0, 1]),
    explicit=st.booleans(),
    transformed=st.booleans(),
)
def test_clips_are_incomplete_by_their_own_frames(
    sparse: Dataset,
    name: str,
    times: list[float],
    max_age: int | None,
    explicit: bool,
    transformed: bool,
) -> None:
    """Not by frames between them. A transform needs the frame `start` too."""
    by_time: dict[str, Any] = {"timestamps": "time", "out_of_range": "pad"} if explicit else {}
    window: Any = Seconds(times, tolerance=0.06, **by_time)
    needed, more = times, dict[str, Any]()
    if max_age is not None:
        window = Latest(window, max_age=max_age)
    elif transformed:
        needed, more = [*times, 0.0], {"frame_transform": dict}
    expected = []
    for episode in range(3):
        at = (sparse_stamps(episode) - sparse_stamps(episode)[0]) * 1e-9
        for start in range(80):
            frames = np.argmin(np.abs(at - at[start] - np.array(needed)[:, None]), axis=1)
            ages = range((max_age or 0) + 1)
            if all(any(f >= age and has(name, f - age) for age in ages) for f in frames.tolist()):
                expected.append((episode, start))
    options: dict[str, Any] = {"features": [name], "windows": {name: window}, "pad": "edge", **more}
    if not expected:
        with pytest.raises(ClipError, match="no clip has all of its frames"):
            SeqRecordMapDataset(sparse, **options)
        return
    found = split(SeqRecordPipe(sparse, **options, batch_size=16))
    assert sorted((int(clip["episode"]), int(clip["start"])) for clip in found) == expected
    for clip in found:
        assert all(has(name, frame) for frame in clip[name].tolist())


@pytest.mark.parametrize("drift", [1.0, 1.04])
@pytest.mark.parametrize("tolerance", [None, 1e-4, 0])
def test_clips_up_to_the_ends_of_an_episode(
    tmp_path: Path, drift: float, tolerance: float | None
) -> None:
    """Times that are multiples of the step lose no clip."""
    step = 0.1 * drift
    stamps = np.arange(40) * round(step * 1000) if tolerance == 0 else np.arange(40) * step
    frames = columns(time=stamps, a=np.arange(40))
    features = {"time": {"kind": "timestamp", "unit": "ms" if tolerance == 0 else "s"}}
    write_dataset(tmp_path / "a", {"0": frames}, features=features, fps=10)
    for first, last in ((-5, 3), (0, 7), (-1, 0), (-39, 0), (2, 4), (-4, -2)):
        by_time: dict[str, Any] = {}
        if tolerance is not None:
            by_time = {"timestamps": "time", "tolerance": max(tolerance, 1e-12)}
        windows = {"a": Seconds([first * step, last * step], **by_time)}
        clips = SeqRecordMapDataset(tmp_path / "a", windows=windows, features=["a"])
        starts = range(max(0, -first), 40 - max(0, last))
        values = [clips[number]["a"].tolist() for number in range(len(clips))]
        assert values == [[start + first, start + last] for start in starts]


def write_loop(path: Path, episodes: dict[str, npt.NDArray[np.floating[Any]]]) -> Path:
    """Episodes with timestamps in seconds that keep the declared rate of 10 fps."""
    frames = {key: columns(time=at, a=np.arange(len(at))) for key, at in episodes.items()}
    write_dataset(path, frames, features={"time": {"kind": "timestamp", "unit": "s"}}, fps=10)
    assert all(episode.fps == 10 for episode in seqrecord.open(path).episodes.values())
    return path


@pytest.mark.parametrize(
    "steps",
    [
        [0.85] * 16 + [1.4] * 16 + [0.85] * 16,
        [1.15] * 16 + [0.6] * 16 + [1.15] * 16,
        [0.85] * 32 + [1.3] * 16,
        [1.07, 0.74, 1.07],
    ],
)
def test_uneven_episodes_that_keep_their_rate(tmp_path: Path, steps: list[float]) -> None:
    """Their longest and shortest distances are not around the mean."""
    at = np.cumsum([0, *steps]) / 10
    path = write_loop(tmp_path / "a", {"uneven": at, "slow": np.arange(60) * 0.104})
    times = [-0.313, -0.1, 0.04, 0.101, 0.523]
    clips = SeqRecordMapDataset(path, windows={"a": Seconds(times)}, pad="edge")
    half_step = at[-1] / len(steps) / 2
    for start in range(len(at)):
        asked = at[start] + np.array(times)
        distance = np.abs(at - asked[:, None])
        is_outside = (asked < 0) | (asked > at[-1])
        assert clips[start]["a"].tolist() == np.argmin(distance, axis=1).tolist()
        is_pad = is_outside & (distance.min(axis=1) > half_step)
        assert clips[start]["a_is_pad"].tolist() == is_pad.tolist()


def test_drift_between_powers_of_two(tmp_path: Path) -> None:
    """1.55 % over 32 frames is less than half a frame, over 50 it is more."""
    path = write_loop(tmp_path / "a", {"0": np.arange(60) * 0.10155})
    clip = SeqRecordMapDataset(path, windows={"a": Seconds([-5.0])}, pad="edge")[49]
    assert (clip["a"].tolist(), clip["a_is_pad"].tolist()) == ([0], [False])


def test_one_frame_beside_a_slow_loop(tmp_path: Path) -> None:
    """The nearest frame is padding beyond half a step of the declared rate."""
    path = write_loop(tmp_path / "a", {"0": np.zeros(1), "1": np.arange(40) * 0.104})
    windows = {"a": Seconds([-0.06, -0.04, 0, 0.04, 0.06])}
    clip = SeqRecordMapDataset(path, windows=windows, pad="edge")[0]
    assert clip["a_is_pad"].tolist() == [True, False, False, False, True]


def test_time_without_a_frame_is_an_error(timed: Dataset) -> None:
    windows = {"imu": Seconds([0, 0.1], timestamps="time", tolerance=0.06)}
    for make in (
        lambda: list(SeqRecordPipe(timed, windows=windows, pad="edge", batch_size=4)),
        lambda: SeqRecordMapDataset(timed, windows=windows, pad="edge", episodes=["3"])[19],
    ):
        with pytest.raises(ClipError, match="no frame within the tolerance") as caught:
            make()
        error = caught.value
        assert (error.episode, error.frame, error.feature) == ("3", 19, "time")
        assert error.expected == "a timestamp 0.1 s from the clip's start, within 0.06 s"
        assert str(error.got).startswith("the nearest one ")
    episodes = ["0", "1", "2"]
    assert list(SeqRecordPipe(timed, windows=windows, pad="edge", episodes=episodes, batch_size=4))


def test_clips_stay_inside_their_episodes(timed: Dataset) -> None:
    """Without padding, clips that might have a frame outside are skipped."""
    times = [-0.25, 0, 0.1, 0.31]
    windows = {"imu": Seconds(times, timestamps="time", tolerance=0.06, out_of_range="pad")}
    pipe = SeqRecordPipe(timed, windows=windows, features=["imu", "image"], batch_size=4)
    found = [check(clip, times, 0.06) for clip in split(pipe)]
    assert not any(outside for outside, _ in found)
    assert len(found) + pipe.stats()["clips_outside"] == sum(TIMED)
    assert len(found) >= sum(max(0, length - 10) for length in TIMED)


@pytest.mark.parametrize("frame_transform", [None, dict])
def test_slow_episodes_lose_no_clip_to_fast_ones(
    tmp_path: Path, frame_transform: type[dict[str, Any]] | None
) -> None:
    rates, features = {"2": 2, "10": 10, "100": 100}, {"time": {"kind": "timestamp", "unit": "ms"}}
    episodes = {
        key: columns(time=np.arange(150) * (1000 // rate), a=np.arange(150), b=np.arange(150))
        for key, rate in rates.items()
    }
    write_dataset(tmp_path / "a", episodes, features=features)
    by_time: Any = {"timestamps": "time", "tolerance": 1e-6}
    windows: dict[str, Any] = {"a": Seconds([-1, 0.5], **by_time), "b": Seconds([0, 1], **by_time)}
    for features_used, last in ((["a"], 0.5), (["a", "b"], 1)):
        used = {name: windows[name] for name in features_used}
        options: dict[str, Any] = {"features": features_used, "frame_transform": frame_transform}
        clips = SeqRecordMapDataset(tmp_path / "a", windows=used, **options)
        keys = clips.clips.locate(np.arange(len(clips)))
        assert list(zip(keys.episode.tolist(), keys.start.tolist(), strict=True)) == [
            (episode, start)
            for episode, rate in enumerate(rates.values())
            for start in range(rate, 150 - round(last * rate))
        ]
        for number, start in ((0, 2), (len(clips) - 1, int(keys.start[-1]))):
            rate = [*rates.values()][keys.episode[number]]
            assert clips[number]["a"].tolist() == [start - rate, start + rate // 2]


@pytest.mark.parametrize("frame_transform", [None, dict])
def test_episodes_have_the_clips_of_their_own_rate(
    tmp_path: Path, frame_transform: type[dict[str, Any]] | None
) -> None:
    """By fps; also clips of a table, and inside a segment of a feature."""
    rates, lengths = {"slow": 10, "fast": 30}, {"slow": 12, "fast": 40}
    episodes = {key: columns(a=np.arange(n), part=np.arange(n) // 8) for key, n in lengths.items()}
    write_dataset(tmp_path / "a", episodes, rates=rates)
    options: dict[str, Any] = {"windows": dict.fromkeys(["a", "part"], Seconds([0, 0.5]))}
    options |= {"frame_transform": frame_transform}
    expected = [
        (key, start, [start, start + rate // 2])
        for key, rate in rates.items()
        for start in range(lengths[key] - rate // 2)
    ]

    def clips_of(**more: Any) -> list[tuple[str, int, list[int]]]:
        clips = SeqRecordMapDataset(tmp_path / "a", **options, **more)
        found = [clips[number] for number in range(len(clips))]
        return [(clip["episode"], int(clip["start"]), clip["a"].tolist()) for clip in found]

    assert sorted(clips_of()) == sorted(expected)
    assert clips_of(samples={"episode": ["slow"], "start": [6]}) == [("slow", 6, [6, 11])]
    whole = [clip for clip in expected if clip[2][0] // 8 == clip[2][1] // 8]
    assert sorted(clips_of(samples=seqrecord.samples.inside("part"))) == sorted(whole)


@pytest.mark.slow
def test_episodes_that_all_have_other_rates(tmp_path: Path) -> None:
    """More than are enumerated one by one: clips near the ends may be left out, a sixteenth."""
    steps, features = np.linspace(0.02, 0.22, 400), {"time": {"kind": "timestamp", "unit": "s"}}
    episodes = {
        str(number): columns(time=np.arange(400) * step, a=np.arange(400), b=np.arange(400))
        for number, step in enumerate(steps)
    }
    write_dataset(tmp_path / "a", episodes, features=features)
    by_time: Any = {"timestamps": "time", "tolerance": 0.12}
    windows = {"a": Seconds([-4, 1.7], **by_time), "b": Seconds([-2.3, 3.1], **by_time)}
    clips = SeqRecordMapDataset(tmp_path / "a", windows=windows, features=["a", "b"])
    keys = clips.clips.locate(np.arange(len(clips)))
    for number, step in enumerate(steps):
        starts = keys.start[keys.episode == number]
        before, after = starts.min() * step, (399 - starts.max()) * step
        assert -step / 2 < before - 4 < 4 / 16 + step, number
        assert -step / 2 < after - 3.1 < 3.1 / 16 + step, number


def test_times_between_two_frames(tmp_path: Path) -> None:
    """By fps the even offset, as in LeRobot; by timestamps the earlier frame."""
    features = {"time": {"kind": "timestamp", "unit": "ms"}}
    frames = columns(time=100 * np.arange(9), a=np.arange(9))
    write_dataset(tmp_path / "a", {"0": frames}, features=features, fps=10)
    for by_time, expected in (({}, [0, 2, 2, 4]), ({"timestamps": "time"}, [0, 1, 2, 3])):
        options: dict[str, Any] = {"tolerance": 0.06, **by_time}
        windows = {"a": Seconds([0.05, 0.15, 0.25, 0.35], **options)}
        clips = SeqRecordMapDataset(tmp_path / "a", windows=windows, features=["a"])
        assert clips[0]["a"].tolist() == expected


def test_resumes_and_runs_in_workers(timed: Dataset) -> None:
    by_time: Any = {"step": 0.1, "timestamps": "time", "tolerance": 0.2, "out_of_range": "pad"}
    clips: dict[str, Any] = {"windows": {"imu": Seconds(0, 0.4, **by_time)}, "pad": "edge"}
    options = {**clips, "batch_size": 8, "engine": EngineOptions(num_cursors=8)}
    check_resume(
        lambda: SeqRecordPipe(timed, **options), num_epochs=2, positions=lambda n: [2, n - 2]
    )
    stream = SeqRecordIterableDataset(timed, **options)
    for clip in split(DataLoader(stream, batch_size=None, num_workers=1)):
        check(clip, [0, 0.1, 0.2, 0.3, 0.4], 0.2)
    dataset = SeqRecordMapDataset(timed, **clips)
    assert pickle.loads(pickle.dumps(dataset))[30]["imu"].tolist() == dataset[30]["imu"].tolist()


def test_states_of_a_renamed_clock(tmp_path: Path) -> None:
    """A state does not depend on the name of the timestamps."""
    features = {"time": {"kind": "timestamp", "unit": "ms"}}
    write_dataset(
        tmp_path / "a", {"0": columns(time=100 * np.arange(9), a=np.arange(9))}, features=features
    )
    states = []
    for rename, clock in (
        (None, "time"),
        (None, None),
        ({"time": "t"}, "t"),
        ({"time": "t"}, None),
    ):
        windows = {"a": Seconds([0, 0.1], timestamps=clock, tolerance=0.01)}
        options: dict[str, Any] = {"windows": windows, "rename": rename, "batch_size": 2}
        pipe = SeqRecordPipe(tmp_path / "a", **options)
        next(iter(pipe))
        states.append(pipe.state_dict())
        for state in states:
            pipe.load_state_dict(state)


def test_windows_of_invalid_times(tmp_path: Path) -> None:
    features = {"time": {"kind": "timestamp", "unit": "s"}}
    for name, episodes in (
        ("back", [[1, 2, 3], [1, 2, 2]]), ("none", [[1, 2, 3], [1, 0, 3]]), ("one", [[3]])
    ):  # fmt: skip
        with SeqRecordWriter(tmp_path / name, features=features, statistics=False) as writer:
            for number, times in enumerate(episodes):
                with writer.episode(f"{number}") as episode:
                    for time in times:
                        frame = {"time": np.float64(time)} if time else {}
                        episode.append({**frame, "a": np.int64(time)})

    ascend = "timestamps do not ascend, or are missing in a frame"
    refused = [("back", "time", ascend), ("none", "time", ascend), ("back", "b", "unknown feature")]
    refused += [("back", "a", "not a timestamp.*got: kind None, unit None, int64")]
    for name, by, message in refused:
        with pytest.raises(ClipError, match=message) as caught:
            SeqRecordMapDataset(tmp_path / name, windows={"a": Seconds([0.1], timestamps=by)})
        if by == "time":
            assert (caught.value.episode, caught.value.feature) == ("1", "time")
    # Unselected episodes do not matter.
    windows = {"a": Seconds([1], timestamps="time")}
    clips = SeqRecordMapDataset(tmp_path / "none", windows=windows, episodes=["0"], pad="edge")
    assert [clip["a"].tolist() for clip in clips.__getitems__([0, 1, 2])] == [[2], [3], [3]]
    # In an episode of one frame, no frame silently replaces another.
    for asked in ([-0.5, 0], [0, 0.5]):
        windows = {"a": Seconds(asked, timestamps="time")}
        with pytest.raises(ClipError, match="no clip has all of its frames"):
            SeqRecordMapDataset(tmp_path / "one", windows=windows)
        (padded,) = SeqRecordPipe(tmp_path / "one", windows=windows, pad="edge")
        assert padded["a_is_pad"].tolist() == [time != 0 for time in asked]
    windows = {"a": Seconds([0], timestamps="time")}
    assert SeqRecordMapDataset(tmp_path / "one", windows=windows)[0]["a"].tolist() == [3]
