"""The window `Latest` in all loaders: values, ages, what is left out, masks; by brute force."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import (
    ClipError,
    EngineOptions,
    FeatureSpec,
    Latest,
    LoaderOptions,
    Schema,
    SeqRecordDataset,
    SeqRecordNode,
    SeqRecordPipe,
    SeqRecordStream,
    SeqRecordWriter,
)
from seqrecord.pipes.selection import ClipSelection
from tests.clip_data import with_latest

LENGTHS = (29, 4, 17, 11)
SPARSE = ("gps", "say", "imu")
SCHEMA = Schema(
    [
        FeatureSpec("image", np.dtype("u1"), (4, 4, 3), group=0),
        FeatureSpec("id", np.dtype("<i8"), (2,), group=1),
        FeatureSpec("gps", np.dtype("<f4"), (3,), group=1),
        FeatureSpec("say", np.dtype("u1"), (None,), group=2, value="text"),
        FeatureSpec("imu", np.dtype("<i2"), (None, 2), group=2),
    ]
)

Has = Mapping[str, Sequence[Sequence[bool]]]
"""Whether frames have a sparse feature, by feature, episode and frame."""


def drawn(seed: int) -> Has:
    rng = np.random.default_rng(seed)
    rates = {"gps": 0.25, "say": 0.1, "imu": 0.6}
    has = {name: [(rng.random(n) < rates[name]).tolist() for n in LENGTHS] for name in SPARSE}
    has["say"][0] = [i == 0 for i in range(LENGTHS[0])]  # once, for all of the episode
    has["gps"][1] = [False] * LENGTHS[1]  # never
    has["imu"][2] = [True] * LENGTHS[2]
    return has


def value(name: str, episode: int, frame: int) -> Any:
    rng = np.random.default_rng([episode, frame])
    if name == "say":
        return f"at {episode} {frame} " * (frame % 3)
    return {
        "image": rng.integers(0, 256, (4, 4, 3), np.uint8),
        "id": np.array([episode, frame]),
        "gps": rng.normal(size=3).astype("<f4"),
        "imu": rng.integers(1, 99, (frame % 4, 2), np.int16),
    }[name]


def write(path: Path, has: Has) -> Path:
    with SeqRecordWriter(path, schema=SCHEMA, chunk_frames=4, record_bytes=3000) as writer:
        for e, length in enumerate(LENGTHS):
            with writer.episode(f"e/{e}") as episode:
                for i in range(length):
                    frame = {n: value(n, e, i) for n in SCHEMA if n not in SPARSE or has[n][e][i]}
                    episode.append(frame)
    return path


def newest(has: Has, name: str, episode: int, frame: int, most: int | None) -> int | None:
    flags = has[name][episode]
    known = [i for i in range(frame + 1) if flags[i] and (most is None or frame - i <= most)]
    return known[-1] if known else None


class Expected:
    """Clips of `offsets` by feature, and what they must hold."""

    def __init__(self, has: Has, known: Mapping[str, int | None], **options: Any) -> None:
        self.has, self.known, self.options = has, known, options
        dilation = options.get("dilation", 1)
        self.all = [i * dilation for i in range(options.get("clip_len", 1))]
        self.windows: dict[str, Any] = options.get("windows") or {}
        self.pad, self.zeros = options.get("pad"), options.get("unknown") == "zeros"

    def offsets(self, name: str) -> list[int]:
        return list(self.windows.get(name, self.all))

    def frames(self, name: str, episode: int, start: int) -> list[int]:
        asked = [start + offset for offset in self.offsets(name)]
        return [min(max(frame, 0), LENGTHS[episode] - 1) for frame in asked]

    def is_clip(self, episode: int, start: int) -> bool:
        for name in self.options["features"]:
            frames = self.frames(name, episode, start)
            if not self.pad and frames != [start + offset for offset in self.offsets(name)]:
                return False
            if name in self.known:
                most = self.known[name]
                found = [newest(self.has, name, episode, frame, most) for frame in frames]
                if None in found and not self.zeros:
                    return False
            elif name in SPARSE and not all(self.has[name][episode][frame] for frame in frames):
                return False
        return True

    def clips(self) -> list[tuple[str, int]]:
        stride = self.options.get("stride", 1)
        return [
            (f"e/{e}", start)
            for e, length in enumerate(LENGTHS)
            for start in range(0, length, stride)
            if self.is_clip(e, start)
        ]

    def check(self, clip: Mapping[str, Any]) -> tuple[str, int]:
        key, start = clip["episode"], int(clip["start"])
        episode = int(key[2:])
        for name in self.options["features"]:
            frames = self.frames(name, episode, start)
            values = [clip[name][i] for i in range(len(frames))]
            assert len(clip[name]) == len(frames)
            if name not in self.known:
                assert f"{name}_age" not in clip
                expected = [value(name, episode, frame) for frame in frames]
            else:
                found = [newest(self.has, name, episode, f, self.known[name]) for f in frames]
                ages = [-1 if n is None else f - n for n, f in zip(found, frames, strict=True)]
                assert clip[f"{name}_age"].tolist() == ages
                assert clip[f"{name}_age"].dtype == torch.int64
                expected = [nothing(name) if n is None else value(name, episode, n) for n in found]
            for got, want in zip(values, expected, strict=True):
                if isinstance(want, str):
                    assert got == want
                else:
                    np.testing.assert_array_equal(got.numpy(), want)
        return key, start


def nothing(name: str) -> Any:
    return {"gps": np.zeros(3, "<f4"), "say": "", "imu": np.zeros((0, 2), "<i2")}[name]


def split(batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for i in range(len(batch["episode"])):
        yield {name: column[i] for name, column in batch.items()}


OPTIONS: dict[str, dict[str, Any]] = {
    "all": {"clip_len": 3, "last_known": ["gps", "say", "imu"]},
    "one": {"clip_len": 2, "last_known": ["gps"], "features": ["gps", "id"]},
    "limited": {"clip_len": 3, "dilation": 2, "last_known": {"gps": 6, "say": 40, "imu": 2}},
    "apart": {"clip_len": 2, "stride": 5, "last_known": ["say", "gps"], "features": ["gps", "say"]},
    "zeros": {"clip_len": 3, "last_known": {"gps": 2, "say": 9, "imu": 1}, "unknown": "zeros"},
    "strict beside": {"clip_len": 2, "last_known": ["gps", "say"]},
    "windows": {
        "clip_len": 2,
        "windows": {"gps": [-4, 0], "image": [0], "say": [1, 6]},
        "pad": "edge",
        "last_known": ["gps", "say", "imu"],
    },
    "windows inside": {
        "windows": {"gps": [-2, 0, 3], "image": [0, 1], "say": [0], "imu": [1], "id": [0]},
        "last_known": {"gps": 4, "say": 12, "imu": 2},
        "unknown": "zeros",
    },
}


def prepared(name: str) -> tuple[dict[str, Any], dict[str, int | None]]:
    options = {"features": list(SCHEMA), **OPTIONS[name]}
    asked: Any = options["last_known"]
    return options, dict(asked) if isinstance(asked, dict) else dict.fromkeys(asked)


@pytest.fixture(scope="module")
def has() -> Has:
    return drawn(3)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, has: Has) -> Path:
    return write(tmp_path_factory.mktemp("known") / "records", has)


def from_batches(path: Path, options: Any) -> Iterator[Any]:
    for batch in list(SeqRecordPipe(path, batch_size=3, **with_latest(options))):
        yield from split(batch)


def from_clips(path: Path, options: Any) -> Iterator[Any]:
    yield from SeqRecordNode(path, shuffle=False, **with_latest(options))


def from_device(path: Path, options: Any) -> Iterator[Any]:
    for batch in list(SeqRecordStream(path, batch_size=3, device="cpu", **with_latest(options))):
        yield from split(batch)


def from_dataset(path: Path, options: Any) -> Iterator[Any]:
    dataset = SeqRecordDataset(path, **with_latest(options))
    for batch in list(DataLoader(dataset, batch_size=4, collate_fn=seqrecord.collate)):
        yield from split(batch)


@pytest.mark.parametrize("loader", [from_batches, from_clips, from_device, from_dataset])
@pytest.mark.parametrize("name", OPTIONS)
def test_clips_have_what_was_known_last(path: Path, has: Has, name: str, loader: Any) -> None:
    options, known = prepared(name)
    expected = Expected(has, known, **options)
    clips = expected.clips()
    assert len(clips) > 5
    assert sorted(map(expected.check, loader(path, options))) == clips


@pytest.mark.parametrize("loader", [from_batches, from_dataset])
def test_frames_that_are_drawn_apart_or_in_reverse(path: Path, has: Has, loader: Any) -> None:
    options: dict[str, Any] = {"clip_len": 3, "features": ["gps", "say", "id"]}
    drawn: Any = {"dilation": (1, 2), "reverse": 0.5, "last_known": ["gps", "say"]}
    seen = set()
    for clip in loader(path, {**options, **drawn}):
        step, is_reversed = int(clip["dilation"]), bool(clip["reversed"])
        seen.add((step, is_reversed))
        offsets = [0, step, 2 * step][:: -1 if is_reversed else 1]
        windows = dict.fromkeys(options["features"], offsets)
        Expected(has, dict.fromkeys(["gps", "say"]), **options, windows=windows).check(clip)
    assert len(seen) == 4


@pytest.mark.parametrize("order", [{}, {"order": "sequences", "stride": 2, "drop_last": True}])
def test_workers_and_sequences_give_the_same(path: Path, has: Has, order: dict[str, Any]) -> None:
    options: dict[str, Any] = {"clip_len": 2, "features": ["gps", "say", "id"], **order}
    known = dict.fromkeys(["gps", "say"])
    clips = Expected(has, known, **options | {"stride": 1}).clips()
    windows = dict.fromkeys(known, Latest())
    stream = SeqRecordStream(path, batch_size=2, windows=windows, **options)
    found = []
    for batch in DataLoader(stream, batch_size=None, num_workers=0 if order else 2):
        found += [Expected(has, known, **options).check(clip) for clip in split(batch)]
    assert len(found) > 10
    assert set(found) <= set(clips)
    assert order or set(found) == set(clips)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    seed=st.integers(0, 1 << 30),
    name=st.sampled_from(sorted(OPTIONS)),
    stop=st.integers(0, 6),
    batch_size=st.integers(1, 5),
)
def test_any_frames_may_lack_it_and_a_state_resumes(
    tmp_path_factory: pytest.TempPathFactory, seed: int, name: str, stop: int, batch_size: int
) -> None:
    has = drawn(seed)
    path = write(tmp_path_factory.mktemp("drawn") / "records", has)
    options, known = prepared(name)
    expected = Expected(has, known, **options)
    clips = expected.clips()
    if not clips:
        with pytest.raises(ClipError, match="no clip has all"):
            SeqRecordPipe(path, **with_latest(options))
        return
    options = with_latest(options)
    options |= {
        "batch_size": batch_size,
        "seed": seed,
        "engine": EngineOptions(num_cursors=2, shuffle_buffer=8),
    }
    pipe = SeqRecordPipe(path, **options)
    whole = [[expected.check(clip) for clip in split(batch)] for batch in pipe]
    assert sorted(clip for batch in whole for clip in batch) == clips
    first = SeqRecordPipe(path, **options)
    iterator = iter(first)
    for _ in range(min(stop, len(whole))):
        next(iterator)
    again = SeqRecordPipe(path, **options)
    again.load_state_dict(first.state_dict())
    rest = [[expected.check(clip) for clip in split(batch)] for batch in again]
    assert rest == whole[min(stop, len(whole)) :] or stop >= len(whole)


def test_what_is_left_out_is_counted_and_named(path: Path, has: Has) -> None:
    options, known = prepared("one")
    clips = Expected(has, known, **options).clips()
    pipe = SeqRecordPipe(path, **with_latest(options))
    every = sum(length - 1 for length in LENGTHS)
    assert pipe.clips.num_clips == len(clips) < every
    list(pipe)
    assert pipe.stats()["clips_incomplete"] == every - len(clips)
    assert "for frames that lack gps" in repr(pipe)
    zeros = SeqRecordPipe(path, **with_latest({**options, "unknown": "zeros"}))
    assert (zeros.clips.num_clips, zeros.clips.num_incomplete) == (every, 0)


def test_each_chunk_is_read_once(path: Path, has: Has) -> None:
    """In one run an episode, however far one looks back."""
    options: dict[str, Any] = {"clip_len": 3, "features": ["image", "say"]}
    used = {key for key, _ in Expected(has, {"say": None}, **options).clips()}
    windows = {"say": Latest()}
    pipe = SeqRecordPipe(path, **options, windows=windows, batch_size=4, shuffle=False)
    assert len(list(pipe)) > 3
    index = pipe.dataset.contents.index
    chunks = sum(
        int(index.groups[group].num_chunks[index.positions[key]])
        for group in (0, 2)
        for key in used
    )
    assert chunks / 2 < pipe.stats()["loads"] <= chunks


def test_masks_of_padded_features_are_those_of_the_frames_known(path: Path, has: Has) -> None:
    options: dict[str, Any] = {"clip_len": 3, "features": ["imu", "id"], "batch_size": 2}
    for unknown in (None, "zeros"):
        windows = {"imu": Latest(unknown=unknown)}
        pipe = SeqRecordPipe(path, **options, ragged="pad", windows=windows)
        for batch in pipe:
            for clip in split(batch):
                for i, (episode, frame) in enumerate(clip["id"].tolist()):
                    known = newest(has, "imu", episode, frame, None)
                    rows = 0 if known is None else len(value("imu", episode, known))
                    assert clip["imu_mask"][i].tolist() == [k < rows for k in range(3)]
                    if known is not None:
                        expected = value("imu", episode, known)
                        assert clip["imu"][i][:rows].tolist() == expected.tolist()
                    assert not clip["imu"][i][rows:].any()


def test_a_function_is_called_with_it(path: Path, has: Has) -> None:
    """Also of the first clip, for which nothing is known."""

    def shift(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        del generator
        return {**clip, "gps": clip["gps"] + 1, "n": np.array([len(clip["imu"])])}

    options: dict[str, Any] = {
        "clip_len": 2,
        "features": ["gps", "say", "imu", "id"],
        "windows": dict.fromkeys(["gps", "say", "imu"], Latest(unknown="zeros")),
    }

    def without_imu(clip: dict[str, Any], generator: Any) -> dict[str, Any]:
        made = shift(clip, generator)
        del made["imu"]
        return made

    for clip in SeqRecordPipe(path, **options, clip_transform=without_imu):
        for i, (episode, frame) in enumerate(clip["id"].tolist()):
            known = newest(has, "gps", episode, frame, None)
            expected = nothing("gps") if known is None else value("gps", episode, known)
            np.testing.assert_array_equal(clip["gps"][i].numpy(), expected + 1)
            said = newest(has, "say", episode, frame, None)
            assert clip["say"][i] == ("" if said is None else value("say", episode, said))
            assert clip["gps_age"][i] == (-1 if known is None else frame - known)


def test_memory_holds_what_one_looks_back_to(path: Path) -> None:
    """The group of `say` is held for as many frames as an episode has; that of images is not."""
    options: dict[str, Any] = {"clip_len": 2, "features": ["image", "say"], "episodes": "e/0"}
    windows = []
    for latest in (Latest(max_age=5), Latest()):
        selection = ClipSelection(path, LoaderOptions(**options, windows={"say": latest}))
        windows.append(selection.windows.of_groups(1))
    assert [(w.offset, w.span) for w in windows[0]] == [(0, 2), (-5, 7)]
    assert [(w.offset, w.span) for w in windows[1]] == [(0, 2), (-28, 30)]


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_age": -1},
        {"max_age": 1.5},
        {"max_age": True},
        {"max_age": 1 << 31},
        {"unknown": "mask"},
        {"unknown": np.zeros(2)},
    ],
    ids=str,
)
def test_ages_that_make_no_sense(arguments: dict[str, Any]) -> None:
    with pytest.raises(ClipError, match=f"{next(iter(arguments))} of Latest") as caught:
        Latest(**arguments)
    assert caught.value.got is not None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"windows": {"gps": Latest(Latest())}}, "a window is not valid"),  # type: ignore[arg-type]
        ({"windows": {"gps": Latest([])}}, "empty"),
        ({"windows": {"gps": Latest("0")}}, "a window is not valid"),  # type: ignore[arg-type]
        (
            {"windows": {"gbs": Latest()}},
            "not have; .*expected: image, id, gps, say, imu; got: gbs",
        ),
        ({"windows": {"gps": Latest()}, "frame_transform": dict}, "go with frame_transform"),
        ({"windows": {"gps": Latest([0])}, "dilation": (1, 2)}, "clips of clip_len frames"),
    ],
    ids=str,
)
def test_windows_that_are_refused(path: Path, options: dict[str, Any], says: str) -> None:
    for loader in (SeqRecordPipe, SeqRecordDataset):
        with pytest.raises(ClipError, match=says):
            loader(path, clip_len=2, **options)


def test_each_feature_says_what_becomes_of_the_unknown(path: Path, has: Has) -> None:
    """Also without `clip_len`: then of the frame `start`."""
    windows: dict[str, Any] = {"gps": Latest(max_age=2, unknown="zeros"), "say": Latest(max_age=9)}
    pipe = SeqRecordPipe(path, features=["gps", "say", "id"], windows=windows)
    clips = [clip for clip in pipe if clip["id"].shape == (1, 2)]
    expected = [
        (f"e/{e}", i)
        for e, length in enumerate(LENGTHS)
        for i in range(length)
        if newest(has, "say", e, i, 9) is not None
    ]
    assert sorted((clip["episode"], clip["start"]) for clip in clips) == expected
    ages = {int(clip["gps_age"]) for clip in clips}
    assert (min(ages), max(ages)) == (-1, 2)


def test_the_newest_of_a_window_in_seconds(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path / "x") as writer, writer.episode("a", fps=10) as episode:
        for i in range(12):
            at = {"at": i / 10, "gps": np.int64(i)} if i % 4 == 1 else {"at": i / 10}
            episode.append(at)
    window = Latest(seqrecord.Seconds([-0.3, 0]), max_age=2)
    clips = list(SeqRecordPipe(tmp_path / "x", windows={"gps": window}, shuffle=False))
    assert [clip["start"] for clip in clips] == [5, 6, 9, 10]
    assert [clip["gps"].tolist() for clip in clips] == [[1, 5], [1, 5], [5, 9], [5, 9]]
    assert [clip["gps_age"].tolist() for clip in clips] == [[1, 0], [2, 1], [1, 0], [2, 1]]


def test_a_state_of_other_ages_is_refused(path: Path) -> None:
    options: dict[str, Any] = {"clip_len": 2, "features": ["gps"]}
    state = SeqRecordPipe(path, **options, windows={"gps": Latest()}).state_dict()
    for other in (Latest(max_age=3), Latest(unknown="zeros"), Latest([0, 1])):
        with pytest.raises(seqrecord.StateError, match="windows"):
            SeqRecordPipe(path, **options, windows={"gps": other}).load_state_dict(state)


def test_a_feature_of_the_name_of_an_age_is_refused(tmp_path: Path) -> None:
    with SeqRecordWriter(tmp_path / "x") as writer, writer.episode("a") as episode:
        for _ in range(3):
            episode.append({"gps": np.zeros(2), "gps_age": np.zeros(())})
    assert len(SeqRecordPipe(tmp_path / "x", clip_len=1)) == 3
    with pytest.raises(ClipError, match=r"name of what clips tell of themselves; .*got: gps_age"):
        SeqRecordPipe(tmp_path / "x", clip_len=1, windows={"gps": Latest()})
