"""The first batch waits for its own frames, and for no more."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import EngineOptions, SeqRecordPipe, SeqRecordWriter

CHUNK = 8  # frames
CLIPS: dict[str, Any] = {"clip_len": 3, "batch_size": 2, "engine": EngineOptions(num_threads=2)}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("first") / "records"
    with SeqRecordWriter(path, codecs="raw", chunk_frames=CHUNK) as writer:
        for number in range(8):
            with writer.episode(str(number)) as episode:
                for frame in range(100):
                    episode.append({"number": np.array([number, frame])})
    return path


class Patient:
    """A transform of frames that does `most` calls, and more of them only once it is told to."""

    def __init__(self, most: int) -> None:
        self.left = most
        self.go_on = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, frame: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.left -= 1
        if self.left < 0:
            assert self.go_on.wait(60), "the first batch waits for frames of later ones"
        return frame


@pytest.mark.parametrize(
    ("options", "chunks"),
    [
        ({"shuffle": False}, 1),  # four frames, and the rest of their chunk
        ({"shuffle": False, "stride": 5}, 1),
        ({}, 4),  # each clip lies in two chunks at most
        ({"engine": EngineOptions(shuffle_buffer=64)}, 4),
        ({"engine": EngineOptions(num_cursors=2, shuffle_buffer=64)}, 4),
        ({"order": "sequences"}, 4),
        ({"batch_size": None}, 2),
    ],
    ids=str,
)
def test_only_frames_of_the_first_batch_are_transformed(
    path: Path, options: dict[str, Any], chunks: int
) -> None:
    transform = Patient(1 << 30)
    with seqrecord.open(path) as dataset:
        pipe = SeqRecordPipe(dataset, frame_transform=transform, **{**CLIPS, **options})
        transform.left = chunks * CHUNK  # the pipe has looked at frames
        clips = iter(pipe)
        first = next(clips)
        transform.go_on.set()
        assert len(first["number"]) == 2 if options.get("batch_size", 2) else 3
        assert sum(1 for _ in clips) + 1 == len(pipe)
