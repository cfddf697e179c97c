"""The first batch waits for its own frames only."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import EngineOptions, SeqRecordPipe, SeqRecordWriter
from tests.kit.datasets import columns, write_dataset, written_once
from tests.kit.video_data import moving

CHUNK = 8  # frames
CLIPS: dict[str, Any] = {"clip_len": 3, "batch_size": 2, "engine": EngineOptions(num_threads=2)}


path = written_once(
    write_dataset,
    {str(n): columns(number=[np.array([n, frame]) for frame in range(100)]) for n in range(8)},
    codecs="raw",
    chunk_frames=CHUNK,
)


class LimitedTransform:
    """A frame transform for `most` calls; further calls wait for `allow_more`."""

    def __init__(self, most: int) -> None:
        self.remaining = most
        self.allow_more = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, frame: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.remaining -= 1
        if self.remaining < 0:
            assert self.allow_more.wait(60), "the first batch waits for frames of later ones"
        return frame


@pytest.mark.parametrize(
    ("options", "frames"),
    [
        ({"shuffle": False}, 4),
        ({"shuffle": False, "stride": 5}, 6),
        ({}, 6),
        ({"engine": EngineOptions(num_cursors=2, shuffle_buffer=64)}, 6),
        ({"order": "sequences"}, 6),
        ({"batch_size": None}, 3),
    ],
    ids=str,
)
def test_only_frames_of_the_first_batch_are_transformed(
    path: Path, options: dict[str, Any], frames: int
) -> None:
    transform = LimitedTransform(1 << 30)
    pipe = SeqRecordPipe(path, frame_transform=transform, **{**CLIPS, **options})
    transform.remaining = frames  # the pipe has already loaded example frames
    clips = iter(pipe)
    first = next(clips)
    transform.allow_more.set()
    assert len(first["number"]) == (2 if options.get("batch_size", 2) else 3)
    assert sum(1 for _ in clips) + 1 == len(pipe)


LENGTH, BATCH = 56, 8  # frames of an episode, clips


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return [moving(LENGTH, seed=number, size=(64, 96)) for number in range(8)]


@pytest.mark.parametrize(
    ("codec", "gop", "most", "memory_limit"),
    [
        ("h264:gop=8", 8, 8 * BATCH, "1GiB"),
        ("h264:gop=50", 50, 40 * BATCH, "8MB"),  # up to the frame; the first one is needed
        ("balanced", 1, BATCH + 4, "8MB"),  # a load of few frames is not divided
        pytest.param("h264:gop=8", 8, 8 * BATCH, "8MB", marks=pytest.mark.slow),
        pytest.param("h264:gop=50", 50, 40 * BATCH, "1GiB", marks=pytest.mark.slow),
        pytest.param("balanced", 1, BATCH + 4, "1GiB", marks=pytest.mark.slow),
    ],
)
def test_only_frames_of_the_first_batch_are_decoded(
    images: list[Any], tmp_path: Path, codec: str, gop: int, most: int, memory_limit: str
) -> None:
    with SeqRecordWriter(tmp_path / "records", codecs={"image": codec, "id": "raw"}) as writer:
        for number, frames in enumerate(images):
            with writer.episode(str(number)) as episode:
                for i, image in enumerate(frames):
                    episode.append({"image": image, "id": np.array([number, i])})
    engine = EngineOptions(num_threads=2, trace=(trace := tmp_path / "trace.json"))
    clips: dict[str, Any] = {"clip_len": 1, "batch_size": BATCH, "memory_limit": memory_limit}
    pipe = SeqRecordPipe(tmp_path / "records", **clips, engine=engine)
    with seqrecord.open(tmp_path / "records") as dataset:
        stored = [dataset.episodes[str(number)][:]["image"] for number in range(len(images))]
    for batch in pipe:
        for image, (number, i) in zip(batch["image"], batch["id"][:, 0].tolist(), strict=True):
            assert np.array_equal(image[0], stored[number][i])
    assert bool(pipe.stats()["features_resident"]) == (memory_limit == "1GiB")
    assert pipe.stats()["frames_decoded"] == LENGTH * len(images)
    if gop > 1:
        assert pipe.stats()["video_frames_decoded"] <= 1.1 * LENGTH * len(images)
    events = [e for e in json.loads(trace.read_text()) if e["ph"] == "X"]
    gathered = min(event["ts"] for event in events if event["name"] == "gather")
    loaded = [e for e in events if e["name"] == "decode" and e["ts"] < gathered]
    assert BATCH <= sum(event["args"]["frames"] for event in loaded) <= most


def test_the_first_batch_decodes_no_frame_of_a_long_group_twice(tmp_path: Path) -> None:
    """Its clips need two pieces of each cursor's chunk, of which the second continues the first."""
    with SeqRecordWriter(tmp_path / "records", codecs={"image": "h264:gop=100"}) as writer:
        for number in range(9):
            with writer.episode(str(number)) as episode:
                for image in moving(100, seed=number, size=(32, 48)):
                    episode.append({"image": image})
    used = 8  # episodes, too many to be resident
    keys = [str(number) for number in range(used) for _ in range(24)]
    samples = {"episode": keys, "start": [*range(40, 64)] * used}
    options = EngineOptions(num_cursors=2)
    pipe = SeqRecordPipe(
        tmp_path / "records",
        clip_len=16,
        batch_size=4,
        samples=samples,
        engine=options,
        memory_limit="1536KiB",
        rank=(0, 1),
    )
    for _ in range(3):
        assert sum(len(batch["episode"]) for batch in pipe) == 24 * used
        assert pipe.stats()["features_resident"] == []
        assert pipe.stats()["video_frames_decoded"] == used * (63 + 16)
