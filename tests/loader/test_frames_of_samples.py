"""Only frames that samples have are decoded: of all forms, kinds of pages and loaders.

Loaders return the number of each frame, so tests count what batches contain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import seqrecord
from seqrecord import (
    At,
    EngineOptions,
    FrameCache,
    Latest,
    Next,
    Seconds,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordPipe,
    open_source,
)
from seqrecord.loader.clips.frame_lists import FrameLists
from seqrecord.loader.sampling.frame_uses import UsedPlaces
from seqrecord.samples import SampleRandom, Samples, dilate, reverse
from tests.formats.cases import index_source
from tests.kit.clip_data import minimum_memory
from tests.kit.datasets import columns, write_dataset, written_once
from tests.kit.trees import make_frames, write_v1
from tests.kit.video_data import moving
from tests.kit.video_file_data import pictures as video_pictures
from tests.kit.video_file_data import write_video

LENGTH, EPISODES, CHUNK = 60, 3, 20  # frames, episodes, frames of a chunk that is no video
VIDEO = "h264:gop=15"
CODECS = ["png", VIDEO, *(pytest.param(n, marks=pytest.mark.slow) for n in ("raw", "balanced"))]

Used = set[tuple[int, int]]
"""Episode and frame."""


@lru_cache
def pictures(episode: int) -> npt.NDArray[np.uint8]:
    return moving(LENGTH, seed=episode, size=(32, 48))


def write(path: Path, codec: str) -> Path:
    frames = {
        str(i): columns(image=pictures(i), id=np.arange(LENGTH) + 1000 * i) for i in range(EPISODES)
    }
    options: dict[str, Any] = {} if codec == VIDEO else {"chunk_frames": CHUNK}
    write_dataset(path, frames, codecs={"image": codec}, fps=10, **options)
    return path


path = written_once(write, params=CODECS)


encoded = written_once(write, "png")


video = written_once(write, VIDEO)


def seventh(samples: Samples, epoch: int, _: SampleRandom) -> Samples:
    return samples.filter((samples["start"] + epoch) % 7 == 0)


def goals(samples: Samples, epoch: int, _: SampleRandom) -> Samples:
    """Few starts, and a goal anywhere in the episode."""
    samples = samples.filter(samples["start"] % 25 == 1)
    return samples.with_columns(goal=(samples["start"] * 7 + epoch) % LENGTH)


def windows(*frames: Any) -> dict[str, Any]:
    return {"windows": {name: list(frames) for name in ("image", "id")}}


TABLE: dict[str, Any] = {"episode": ["0", "0", "2", "2"], "start": [3, 40, 20, 30]}
GOAL, NEAR = [55, 41, 2, 59], [5, 44, 20, 33]
MANY: dict[str, Any] = {  # the first and the last ten frames of each episode
    "episode": [str(i) for i in range(EPISODES) for _ in range(10)],
    "start": [*range(10)] * EPISODES,
    "goal": [LENGTH - 1 - (3 * i) % 10 for i in range(10)] * EPISODES,
}
LISTS = [[start, goal] for start, goal in zip(TABLE["start"], GOAL, strict=True)]
IN_SECONDS = dict.fromkeys(("image", "id"), Seconds([0.0, 2.5]))

FORMS: dict[str, dict[str, Any]] = {
    "clips": {"clip_len": 4},
    "strides": {"clip_len": 2, "stride": 7},
    "dilation": {"clip_len": 8, "stride": 4, "dilation": 4},
    "coprime": {"clip_len": 2, "stride": 9, "dilation": 4},
    "windows": {**windows(0, 30), "stride": 12},
    "near windows": windows(0, 1, 10),
    "several windows": {"windows": {"image": [0, 20], "id": [0, 20]}, "stride": 30},
    "backwards": {**windows(-20, 0), "stride": 16},
    "padded": {**windows(-50, 0), "stride": 20, "pad": "edge"},
    "table": {"clip_len": 2, "samples": TABLE},
    "lists": {"samples": {"episode": TABLE["episode"], "frames": LISTS}},
    "anchors": {**windows(0, At("goal")), "samples": {**TABLE, "goal": GOAL}},
    "many anchors": {**windows(0, At("goal")), "samples": MANY},
    "anchors within": {
        **windows(0, At("goal", within=(0, 10))),
        "samples": {**TABLE, "goal": NEAR},
    },
    "seconds": {"windows": IN_SECONDS, "stride": 12},
    "reversed": {"clip_len": 2, "stride": 7, "samples": reverse(1.0)},
    "dilated": {"clip_len": 2, "stride": 9, "samples": dilate(2, 4)},
    "function": {"clip_len": 1, "samples": seventh},
    "goals": {**windows(0, At("goal")), "samples": goals},
}
CHOOSING = ("function", "goals")
"""Forms whose epochs choose other samples."""

EACH = pytest.mark.parametrize("name", FORMS)


def options_of(name: str, **more: Any) -> dict[str, Any]:
    return {"batch_size": 2, "seed": 1, **FORMS[name], **more}


def frames_in(batches: Iterable[Mapping[str, Any]]) -> Used:
    """The frames in batches; checks their pictures."""
    used = Used()
    for batch in batches:
        for number, image in zip(
            batch["id"].reshape(-1).tolist(), batch["image"].flatten(0, 1), strict=True
        ):
            used.add(divmod(number, 1000))
            expected = pictures(number // 1000)[number % 1000]
            assert np.abs(image.numpy().astype(int) - expected).mean() < 30
    return used


@EACH
def test_streamed_epochs(path: Path, name: str) -> None:
    make = partial(SeqRecordPipe, path, **options_of(name), rank=(0, 1))
    pipe = make(memory_limit=minimum_memory(make))
    for _ in range(2):
        used = frames_in(pipe)
        stats = pipe.stats()
        if not stats["features_resident"]:
            assert len(used) <= stats["frames_decoded"] <= 2 * len(used)


@EACH
def test_resident_epochs(path: Path, name: str) -> None:
    """Each frame is decoded once. Of video, epochs that choose other samples decode those between
    their own, too, which are decoded anyway: later epochs need not decode the pictures again.
    """
    pipe = SeqRecordPipe(path, **options_of(name), rank=(0, 1), memory_limit="1GiB")
    is_filled = name in CHOOSING and seqrecord.open(path).features["image"].is_video
    seen, decoded = Used(), []
    for _ in range(3):
        used = frames_in(pipe)
        stats = pipe.stats()
        assert bool(stats["features_resident"]) == (name != "lists")
        if name == "lists":
            seen.clear()
        decoded.append(stats["frames_decoded"])
        assert is_filled or decoded[-1] == len(used - seen)
        seen |= used
    if is_filled:
        assert len(seen) <= sum(decoded) <= LENGTH * EPISODES
        assert sum(decoded[1:]) < decoded[0]


@pytest.mark.parametrize("limit", ["least", "1GiB"])
@pytest.mark.parametrize("options", [{"clip_len": 4}, {"clip_len": 2, "dilation": 3, "stride": 5}])
@pytest.mark.parametrize("codec", ["png", VIDEO, "raw"])
def test_trimmed_episodes(tmp_path: Path, codec: str, options: Any, limit: str) -> None:
    """Their chunks have frames outside of them, which are no frames of the next episode."""
    path = write(tmp_path / "records", codec)
    seqrecord.edit.trim_episodes(path, None, slice(7, 25))
    make = partial(SeqRecordPipe, path, batch_size=2, seed=1, rank=(0, 1), **options)
    pipe = make(memory_limit=minimum_memory(make) if limit == "least" else limit)
    clips = SeqRecordMapDataset(path, **options)
    used = [
        *(frames_in(pipe) for _ in range(3)),
        frames_in([seqrecord.collate([clips[n] for n in range(len(clips))])]),
    ]
    assert used == used[:1] * 4
    if options == {"clip_len": 4}:
        assert used[0] == {(e, frame) for e in range(EPISODES) for frame in range(7, 25)}


@given(st.lists(st.lists(st.integers(1, 98), max_size=30), max_size=9))
def test_used_places_are_marked_or_sorted(parts: list[list[int]]) -> None:
    """Sorted in intervals that are too long for marks, with equal results."""
    for max_marks in (0, 100):
        places = UsedPlaces(100, max_marks)
        for part in parts:
            places.add(np.array(part, np.int64).reshape(-1, 1))
        expected = sorted({place for part in parts for place in part} - {5, 50})
        assert places.without(np.array([5, 50])).tolist() == expected


SPARSE = ["strides", "dilation", "coprime", "windows", "backwards", "padded", "table", "seconds"]


@pytest.mark.parametrize("name", [*SPARSE, "clips", "function"])
def test_frames_without_samples_take_no_memory(path: Path, name: str) -> None:
    """Frames of all samples stay with a limit that is too small for all frames of the episodes."""
    limit = LENGTH * EPISODES * (32 * 48 * 3 + 8) * 4 // 5
    pipe = SeqRecordPipe(path, **options_of(name), rank=(0, 1), memory_limit=limit)
    used = [frames_in(pipe) for _ in range(2)]
    stats = pipe.stats()
    assert stats["peak_buffer_bytes"] <= stats["planned_bytes"] <= limit
    assert bool(stats["features_resident"]) == (name in SPARSE)
    if name in SPARSE:
        assert used[0] == used[1]
        assert not stats["frames_decoded"]


@pytest.mark.parametrize("cursors", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_anchors_anywhere_take_the_memory_of_their_frames(
    path: Path, cursors: int, ranks: int
) -> None:
    """A cursor has no room for an episode."""
    engine = EngineOptions(num_cursors=cursors)
    options = options_of("many anchors", batch_size=1, engine=engine)
    used = Used()
    for rank in range(ranks):
        make = partial(SeqRecordPipe, path, **options, rank=(rank, ranks))
        limit = minimum_memory(make)
        pipe, resumed = make(memory_limit=limit), make(memory_limit=limit)
        batches = list(pipe)
        used |= frames_in(batches)
        assert pipe.stats()["planned_bytes"] <= limit
        states = [pipe.state_dict() for _ in zip(range(4), pipe, strict=False)]
        resumed.load_state_dict(states[-1])
        ids = [batch["id"].tolist() for batch in resumed]
        full = make(memory_limit=limit)
        full.set_epoch(1)
        assert ids == [batch["id"].tolist() for batch in full][4:]
    assert len(used) == 20 * EPISODES


@pytest.mark.parametrize("name", ["strides", "windows", "table", "anchors", "seconds"])
@pytest.mark.parametrize("limit", ["0", "1GiB"])
def test_by_number(encoded: Path, name: str, limit: str) -> None:
    clips = SeqRecordMapDataset(encoded, **FORMS[name], memory_limit=limit)
    used = frames_in([seqrecord.collate(clips.__getitems__([*range(len(clips))]))])
    of_both = clips.stats()["frames_decoded"]
    # Ids are loaded alone, and with their neighbours where these stay.
    assert len(used) < of_both <= len(used) + (LENGTH * EPISODES if limit != "0" else len(used))


@pytest.mark.parametrize("limit", ["400KB", "1GiB"])
@pytest.mark.parametrize("name", ["strides", "table", "anchors", "function"])
def test_on_ranks(encoded: Path, name: str, limit: str) -> None:
    for epoch in range(2):
        for rank in range(2):
            pipe = SeqRecordPipe(
                encoded, **options_of(name), rank=(rank, 2), memory_limit=limit, last_batch="keep"
            )
            pipe.set_epoch(epoch)
            used = frames_in(pipe)
            assert len(used) <= pipe.stats()["frames_decoded"] <= len(used) + 4  # at cuts


@pytest.mark.parametrize("name", ["strides", "anchors", "table"])
def test_in_mixes(encoded: Path, video: Path, name: str) -> None:
    options = {n: value for n, value in options_of(name).items() if n not in ("batch_size", "seed")}
    sources = {
        "a": SeqRecordIterableDataset(encoded, **options),
        "b": SeqRecordIterableDataset(video, **options),
    }
    mix = SeqRecordMix(sources, batch_size=2, stopping_strategy="all_exhausted", rank=(0, 1))
    used = frames_in(mix)
    # Both have the same frames, and the shorter epoch begins again at the end.
    assert mix.stats()["frames_decoded"] <= 2 * len(used) + 6


def test_a_frame_cache_gets_the_frames_of_samples(encoded: Path, tmp_path: Path) -> None:
    options = options_of("strides", frame_cache=FrameCache(tmp_path, "1GiB"), rank=(0, 1))
    make = partial(SeqRecordPipe, encoded, **options)
    least = minimum_memory(make)
    first, again = make(memory_limit=least), make(memory_limit=least)
    used = frames_in(first)
    assert first.stats()["frames_decoded"] == len(used)
    assert frames_in(again) == used
    assert again.stats()["frames_decoded"] == 0
    assert again.stats()["frames_from_cache"] == len(used)


@pytest.mark.parametrize("name", ["strides", "windows", "anchors", "function"])
def test_resumed_epochs(encoded: Path, name: str) -> None:
    """Frames of clips that were returned are not decoded again, except those of the same round."""
    make = partial(SeqRecordPipe, encoded, **options_of(name), rank=(0, 1))
    make = partial(make, memory_limit=minimum_memory(make))
    epoch = make()
    frames_in(epoch)
    for count in (1, 2):
        pipe = make()
        batches = iter(pipe)
        for _ in range(count):
            next(batches)
        state, used = pipe.state_dict(), frames_in(batches)
        resumed = make()
        resumed.load_state_dict(state)
        assert frames_in(resumed) == used
        decoded = resumed.stats()["frames_decoded"]
        assert len(used) <= decoded <= epoch.stats()["frames_decoded"]


@pytest.mark.parametrize("limit", [None, "1GiB"])
def test_chunks_without_frames_of_samples_are_not_read(encoded: Path, limit: str | None) -> None:
    """An anchor far from the start, with chunks between."""
    table = {"episode": ["1"], "start": [2], "goal": [58]}
    options = {**windows(0, At("goal")), "samples": table, "rank": (0, 1)}
    make = partial(SeqRecordPipe, encoded, **options, features=["image", "id"])
    pipe = make(memory_limit=limit or minimum_memory(make))
    assert frames_in([seqrecord.collate([*pipe])]) == {(1, 2), (1, 58)}
    group = seqrecord.open(encoded).contents.index.group_of("image")
    of_chunks = group.page_length[:, [*group.schema].index("image")][3:6]
    assert pipe.stats()["bytes_read"] < of_chunks[0] + of_chunks[2] + 4096 < of_chunks.sum()


@pytest.mark.parametrize("limit", ["200KB", "1GiB"])
def test_values_before_and_behind(tmp_path: Path, limit: str) -> None:
    """Of a feature that some frames lack, the values that clips have."""
    frames = [
        {"id": np.int64(i), **({"image": pictures(0)[i]} if i % 5 == 2 else {})}
        for i in range(LENGTH)
    ]
    write_dataset(tmp_path / "records", {"0": frames}, codecs={"image": "png"}, chunk_frames=CHUNK)
    for window, to_value in ((Latest(), -3), (Next(), 2)):
        pipe = SeqRecordPipe(
            tmp_path / "records",
            windows={"image": window},
            samples={"episode": ["0", "0"], "start": [10, 45]},
            clip_len=1,
            rank=(0, 1),
            memory_limit=limit,
        )
        starts = {clip["start"]: clip["image"][0].numpy() for clip in pipe}
        for start, image in starts.items():
            assert np.array_equal(image, pictures(0)[start + to_value])
        assert pipe.stats()["frames_decoded"] == 2


def test_originals_in_place(tmp_path: Path) -> None:
    for number in range(2):
        write_v1(tmp_path / "town" / "Easy" / f"P00{number}", make_frames(number, 30))
    index_source(open_source(tmp_path / "town"), tmp_path / "images", workers=1)
    (tmp_path / "videos").mkdir()
    for number in range(2):
        write_video(tmp_path / "videos" / f"{number}.mp4", images=video_pictures(30, 40 * number))
    for place, feature in ((tmp_path / "images", "image_left"), (tmp_path / "videos", "image")):
        for limit in ("4MB", "1GiB"):
            options: dict[str, Any] = {"clip_len": 2, "stride": 7, "features": [feature]}
            pipe = SeqRecordPipe(place, **options, batch_size=2, rank=(0, 1), memory_limit=limit)
            count = sum(len(batch["start"]) for batch in pipe)
            assert pipe.stats()["frames_decoded"] == 2 * count == 20


def test_lists_from_a_row_on() -> None:
    """Rows keep their own lengths: shorter lists end with their last frame, also with frame 0."""
    frames = np.array([[3, 1, -1], [5, 4, 0], [7, -1, -1], [8, 2, 2], [9, 0, -1]])
    lists, order = FrameLists.of(np.array([0, 0, 3, 3, 3]), frames)
    rows, filled = np.arange(5), frames.copy()
    filled[0, 2], filled[2, 1:], filled[4, 2] = 1, 7, 0
    for first in range(5):
        part = lists.from_row(first)
        np.testing.assert_array_equal(part.frames_of(rows[: 5 - first]), frames[order][first:])
        np.testing.assert_array_equal(part.filled_of(rows[: 5 - first]), filled[order][first:])
