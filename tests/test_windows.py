"""Windows per feature, against brute force: which clips there are, their frames, their masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import (
    ClipError,
    EngineOptions,
    SeqRecordDataset,
    SeqRecordNode,
    SeqRecordPipe,
    SeqRecordStream,
    StateError,
)
from seqrecord.errors import MemoryLimitError
from seqrecord.pipes.clip_windows import describe_offsets
from seqrecord.sampling import Window
from tests.clip_data import LENGTHS, effective, expected_frame, names, write_numbered
from tests.resume_contract import check_resume

FEATURES = ["image", "flow", "note", "id"]
FIXED = ["image", "flow", "id"]
Offsets = Mapping[str, Sequence[int]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    groups = {"image": 0, "flow": 1, "note": 1, "id": 2}
    return write_numbered(tmp_path_factory.mktemp("windows") / "groups", groups=groups)


@pytest.fixture(scope="module")
def one_group(tmp_path_factory: pytest.TempPathFactory) -> Path:
    groups = dict.fromkeys(FEATURES, 0)
    return write_numbered(tmp_path_factory.mktemp("windows") / "one", groups=groups)


def frames_of(offsets: Sequence[int], episode: int, start: int, *, pad: bool) -> list[int] | None:
    """The frames of a clip; `None` where one lies outside and is not padded."""
    frames = [start + offset for offset in offsets]
    last = LENGTHS[episode] - 1
    if not pad and not all(0 <= frame <= last for frame in frames):
        return None
    return [min(max(frame, 0), last) for frame in frames]


def possible(
    offsets: Offsets, stride: int = 1, *, pad: bool, phase: int = 0
) -> list[tuple[str, int]]:
    """Key and start of every clip, one at a time."""
    clips = []
    for episode, num_frames in enumerate(LENGTHS):
        for start in range(phase, num_frames, stride):
            found = {n: frames_of(o, episode, start, pad=pad) for n, o in offsets.items()}
            if all(
                frames is not None and all(name in expected_frame(episode, f) for f in frames)
                for name, frames in found.items()
            ):
                clips.append((f"set/{episode}", start))
    return clips


def check(
    clip: dict[str, Any], offsets: Offsets, *, masks: Sequence[str], pad: bool
) -> list[tuple[str, int]]:
    """Assert that a clip or a batch holds what its names say; returns them."""
    assert list(clip) == [*offsets, "episode", "start", *(f"{name}_is_pad" for name in masks)]
    clips, single = names(clip), isinstance(clip["episode"], str)
    for name, of_feature in offsets.items():
        values = [clip[name]] if single else clip[name]
        assert len(values) == len(clips)
        for value, (key, start) in zip(values, clips, strict=True):
            frames = frames_of(of_feature, int(key[4:]), start, pad=pad)
            assert frames is not None
            assert len(value) == len(frames)
            for got, frame in zip(value, frames, strict=True):
                expected = expected_frame(int(key[4:]), frame)[name]
                assert got.numpy().dtype == expected.dtype
                np.testing.assert_array_equal(got.numpy(), expected)
    for name in masks:
        mask = clip[f"{name}_is_pad"]
        assert mask.dtype == torch.bool
        every = [_is_pad(offsets[name], of) for of in clips]
        assert mask.tolist() == (every[0] if single else every)
    return clips


def _is_pad(offsets: Sequence[int], clip: tuple[str, int]) -> list[bool]:
    length = LENGTHS[int(clip[0][4:])]
    return [not 0 <= clip[1] + offset < length for offset in offsets]


window = (
    st.lists(st.integers(-7, 12), min_size=1, max_size=5)
    | st.builds(range, st.integers(-3, 0), st.integers(1, 5))
    | st.builds(lambda n, step: range(0, n * step, step), st.integers(1, 4), st.integers(1, 3))
)


@st.composite
def requests(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Sequence[int]], list[str]]:
    """Arguments of a loader, the offsets of each feature, and the features with masks."""
    features = draw(st.lists(st.sampled_from(FEATURES), min_size=1, unique=True))
    windows = draw(st.dictionaries(st.sampled_from(features), window, min_size=1))
    clip_len, pad = draw(st.none() | st.integers(1, 4)), draw(st.sampled_from([None, "edge"]))
    dilation = draw(st.integers(1, 2)) if clip_len else 1
    others = range(0, (clip_len or 1) * dilation, dilation)
    arguments: dict[str, Any] = {
        "features": features, "windows": windows, "clip_len": clip_len, "dilation": dilation,
        "pad": pad, "stride": draw(st.sampled_from([1, 1, 2, 5])),
    }  # fmt: skip
    masks = [n for n in features if pad and (clip_len or n in windows)]
    return arguments, {name: windows.get(name, others) for name in features}, masks


@given(data=st.data())
def test_every_clip_is_right(path: Path, one_group: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from([path, one_group]))
    arguments, offsets, masks = data.draw(requests())
    pad = arguments["pad"] is not None
    expected = possible(offsets, arguments["stride"], pad=pad)
    others: dict[str, Any] = {
        "batch_size": data.draw(st.none() | st.integers(1, 7)),
        "shuffle": data.draw(st.booleans()),
        "num_cursors": data.draw(st.none() | st.integers(1, 5)),
        "shuffle_buffer": data.draw(st.sampled_from([1, 5, 64])),
        "memory_limit": data.draw(st.sampled_from([30_000, 200_000, 4 << 20])),
        "device": data.draw(st.sampled_from([None, "cpu"])),
        "num_threads": data.draw(st.integers(1, 3)),
        "seed": data.draw(st.integers(0, 5)),
    }
    others = effective(others)
    if not expected:
        with pytest.raises(ClipError, match="no clip has all of its frames"):
            SeqRecordPipe(path, **arguments, **others)
        return
    try:
        pipe = SeqRecordPipe(path, **arguments, **others)
    except MemoryLimitError:
        return
    clips = [c for item in pipe for c in check(item, offsets, masks=masks, pad=pad)]
    assert clips == expected if not others["shuffle"] else sorted(clips) == sorted(expected)
    stats, starts = pipe.stats(), sum(-(-n // arguments["stride"]) for n in LENGTHS)
    assert stats["clips"] == len(expected)
    assert stats["clips_incomplete"] + stats["clips_outside"] == starts - len(expected)
    assert not (pad and stats["clips_outside"])

    dataset = SeqRecordDataset(path, **arguments)
    assert len(dataset) == len(expected)
    numbers = data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, max_size=6))
    found = dataset.__getitems__(numbers) if len(numbers) > 1 else [dataset[numbers[0]]]
    asked = [c for clip in found for c in check(clip, offsets, masks=masks, pad=pad)]
    assert asked == [expected[number] for number in numbers]


WINDOWS: dict[str, Any] = {"image": [-1, 0], "id": range(16), "flow": [-4, -2, 3]}
ASKED: dict[str, Any] = {"features": FIXED, "windows": WINDOWS, "pad": "edge"}
ORDERED = {name: WINDOWS[name] for name in FIXED}


@pytest.mark.parametrize("more", [{"clip_len": 3}, {"pad": None}])
def test_resumes_anywhere(path: Path, more: dict[str, Any]) -> None:
    chosen = {**ASKED, "batch_size": 4, "shuffle_buffer": 64, "num_cursors": 4, **more}
    check_resume(lambda: SeqRecordPipe(path, **effective(chosen)), num_epochs=2)


def test_a_state_is_of_its_windows(path: Path) -> None:
    state = SeqRecordPipe(path, **ASKED, batch_size=4).state_dict()
    SeqRecordPipe(path, **ASKED, batch_size=4).load_state_dict(state)
    for other, said in (
        ({"windows": {**WINDOWS, "id": range(15)}}, "windows"),
        ({"pad": None}, "pad"),
        ({"windows": None, "clip_len": 1}, "clip_len, windows"),
    ):
        pipe = SeqRecordPipe(path, **{**ASKED, **other}, batch_size=4)
        with pytest.raises(StateError, match=f"of other settings: {said}"):
            pipe.load_state_dict(state)


def test_every_loader_takes_windows(path: Path) -> None:
    def sorted_clips(items: Any) -> list[tuple[str, int]]:
        return sorted(c for i in items for c in check(i, ORDERED, masks=FIXED, pad=True))

    expected = sorted(possible(ORDERED, pad=True))
    stream = SeqRecordStream(path, **ASKED, batch_size=4, equal=False)
    assert sorted_clips(DataLoader(stream, batch_size=None, num_workers=2)) == expected
    node = SeqRecordNode(path, **ASKED, batch_size=4)
    node.reset()
    assert sorted_clips(node) == expected
    dataset = SeqRecordDataset(path, **ASKED)
    loader = DataLoader(dataset, batch_size=4, collate_fn=seqrecord.collate)
    assert sorted_clips(loader) == expected
    chain = SeqRecordPipe(path, **ASKED).shuffle().batch(4).collate(seqrecord.collate)
    assert sorted_clips(chain) == expected


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_workers_resume_in_the_middle(path: Path) -> None:
    def make() -> Any:
        stream = SeqRecordStream(path, **ASKED, batch_size=4)
        return StatefulDataLoader(stream, batch_size=None, num_workers=2)

    whole = [names(batch) for batch in make()]
    loader = make()
    iterator = iter(loader)
    first = [names(next(iterator)) for _ in range(5)]
    state = loader.state_dict()
    del iterator
    other = make()
    other.load_state_dict(state)
    assert first + [names(batch) for batch in other] == whole


def test_windows_of_what_a_transform_makes(path: Path) -> None:
    """Whole frames are transformed, of all windows; a frame without `flow` is in no clip."""

    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        return {"sum": frame["image"].sum(), "id": frame["id"], "flow": frame["flow"]}

    windows = {"sum": [0, 3], "id": [-2, -1]}
    settings: dict[str, Any] = {"windows": windows, "frame_transform": transform, "pad": "edge"}
    every = {name: [-2, -1, 0, 3] for name in FEATURES}
    expected = possible(every, pad=True)
    pipe = SeqRecordPipe(path, batch_size=3, **settings)
    items = [(item, i) for item in pipe for i in range(len(item["episode"]))]
    dataset = SeqRecordDataset(path, **settings)
    assert sorted(names(item)[i] for item, i in items) == sorted(expected)
    for item, i in items:
        episode, start = int(item["episode"][i][4:]), int(item["start"][i])
        again = dataset[expected.index((item["episode"][i], start))]
        for name, offsets in {**windows, "flow": [0]}.items():
            frames = frames_of(offsets, episode, start, pad=True)
            assert frames is not None
            values = [transform(expected_frame(episode, f))[name].tolist() for f in frames]
            assert item[name][i].tolist() == values == again[name].tolist()
    assert {"sum_is_pad", "id_is_pad"} <= set(items[0][0])
    assert "flow_is_pad" not in items[0][0]


def test_phases_and_chosen_clips(path: Path) -> None:
    offsets: Offsets = {"image": [-1, 0], "flow": range(3), "id": [0]}
    settings: dict[str, Any] = {
        "features": FIXED,
        "windows": {n: offsets[n] for n in ("image", "flow")},
    }
    pipe = SeqRecordPipe(path, stride=4, rotate_phase=True, batch_size=4, **settings)
    found = []
    for _ in range(4):
        for batch in pipe:
            found += check(batch, offsets, masks=[], pad=False)
    assert sorted(found) == sorted(possible(offsets, pad=False))

    chosen = {"episode": ["set/0", "set/3", "set/0"], "start": [5, 8, 22]}
    with pytest.raises(ClipError, match="no clip lies in its episode, in row 2") as caught:
        SeqRecordPipe(path, clips=chosen, **settings)
    assert (caught.value.expected, caught.value.got) == ("1 to 20", 22)
    padded = SeqRecordPipe(path, clips=chosen, pad="edge", batch_size=2, **settings)
    clips = [c for b in padded for c in check(b, offsets, masks=["image", "flow"], pad=True)]
    assert sorted(clips) == [("set/0", 5), ("set/3", 8)]  # frame 22 of set/0 has no flow


def test_small_windows_hold_few_images(tmp_path: Path) -> None:
    """Sixteen ids ahead hold no images, and each frame is decoded once."""
    path = write_numbered(tmp_path / "records", groups={"image": 0, "flow": 1, "note": 1, "id": 1})
    settings: dict[str, Any] = {"features": ["image", "id"], "batch_size": 4}
    settings["engine"] = EngineOptions(num_cursors=2, shuffle_buffer=8)
    windows = {"image": [-1, 0], "id": range(16)}
    small = SeqRecordPipe(path, windows=windows, **settings)
    whole = SeqRecordPipe(path, clip_len=16, **settings)
    for pipe in (small, whole):
        list(pipe)
    assert small.stats()["resident_bytes"] < 0.6 * whole.stats()["resident_bytes"]


def test_windows_of_groups() -> None:
    images, actions, sparse = np.array([-1, 0]), np.arange(16), np.array([0, 8, 4])
    assert Window.around([images], 1, pad=False) == Window(-1, 2, 1, 2)
    assert Window.around([actions, actions], 1, pad=False) == Window(0, 16, 1, 16)
    assert Window.around([images, actions], 1, pad=False) == Window(-1, 17, 1, 0)
    assert Window.around([np.arange(0, 9, 4)], 2, pad=False) == Window(0, 9, 2, 3)
    assert Window.around([sparse], 4, pad=False) == Window(0, 9, 4, 0)  # in another order
    assert Window.around([np.arange(0, 9, 4)], 2, pad=True) == Window(0, 9, 1, 0)


@pytest.mark.parametrize(
    ("arguments", "message", "got"),
    [
        ({}, "neither clip_len nor windows is given", None),
        ({"windows": {}}, "windows is not valid", "{}"),
        ({"windows": [0, 1]}, "windows is not valid", "[0, 1]"),
        ({"windows": {3: [0]}}, "windows is not valid", "{3: [0]}"),
        ({"windows": {"image": []}}, "a window is empty", "0 offsets, the furthest 0 frames away"),
        ({"windows": {"image": [0.5]}}, "a window is not valid", "[0.5]"),
        ({"windows": {"image": [True]}}, "a window is not valid", "[True]"),
        ({"windows": {"image": 3}}, "a window is not valid", "3"),
        ({"windows": {"image": "0"}}, "a window is not valid", "'0'"),
        ({"windows": {"image": [1 << 31]}}, "a window is empty, or too long", None),
        ({"windows": {"image": range(1 << 60)}}, "a window is empty, or too long", None),
        ({"windows": {"depth": [0]}}, "a feature that clips do not have", "depth"),
        ({"windows": {"image": [0]}, "features": ["id"]}, "clips do not have", "image"),
        ({"windows": {"image": [0]}, "dilation": 2}, "dilation is that of clip_len", 2),
        ({"windows": {"image": range(99)}}, "no clip has all of its frames", None),
        ({"clip_len": 2, "pad": "zero"}, "pad is not valid", "'zero'"),
        ({"clip_len": 2, "pad": True}, "pad is not valid", "True"),
    ],
)
def test_bad_windows(path: Path, arguments: dict[str, Any], message: str, got: object) -> None:
    makers: list[Any] = [SeqRecordPipe, SeqRecordDataset]
    for make in makers:
        with pytest.raises(ClipError, match=message) as caught:
            make(path, **arguments)
        if got is not None:
            assert caught.value.got == got


def test_a_mask_has_a_name_of_its_own(tmp_path: Path) -> None:
    with seqrecord.SeqRecordWriter(tmp_path) as writer, writer.episode("one") as episode:
        for i in range(3):
            episode.append({"a": np.int64(i), "a_is_pad": np.int64(i)})
    assert len(SeqRecordDataset(tmp_path, clip_len=2)) == 2
    with pytest.raises(ClipError, match="the name of what clips tell") as caught:
        SeqRecordDataset(tmp_path, windows={"a": [0]}, pad="edge")
    assert caught.value.got == "a_is_pad"


@pytest.mark.parametrize(
    ("offsets", "said"),
    [([-1, 0], "-1,0"), (range(16), "0:16"), (range(0, 9, 3), "0:7:3"), ([3, 2, 1], "3,2,1")],
)
def test_offsets_as_text(offsets: Sequence[int], said: str) -> None:
    assert describe_offsets(np.array(offsets)) == said
