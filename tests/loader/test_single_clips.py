"""Single clips, made several at a time: order, states and memory are as for separate clips."""

from __future__ import annotations

import gc
import pickle
import random
import tracemalloc
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import SeqRecordIterableDataset, SeqRecordPipe, SeqRecordWriter
from tests.kit.clip_data import (
    LARGE,
    check_clip,
    check_ended,
    digests,
    minimum_memory,
    possible_clips,
    write_numbered,
)
from tests.kit.datasets import written_once

BUFFER_SIZE = 1000
NUMPY = np.lib.tracemalloc_domain
CLIPS: dict[str, Any] = {"clip_len": 3, "seed": 1, "features": ["image", "id"]}


large = written_once(write_numbered, shape=(2 * LARGE[0], 6 * LARGE[1], *LARGE[2:]))
"""Clips too large to be made several at a time."""


@pytest.mark.parametrize("size", ["path", "large"])
def test_each_clip_has_its_own_memory(size: str, request: pytest.FixtureRequest) -> None:
    clips = list(islice(SeqRecordPipe(request.getfixturevalue(size), **CLIPS), 40))
    assert (clips[0]["image"].nbytes > 1 << 19) == (size == "large")
    storages = [clip[name].untyped_storage() for clip in clips for name in CLIPS["features"]]
    assert len({storage.data_ptr() for storage in storages}) == len(storages)
    own = sum(clip[name].nbytes for clip in clips for name in CLIPS["features"])
    assert sum(storage.nbytes() for storage in storages) == own


@pytest.mark.parametrize(
    ("shape", "clip_len"), [((5,), 4), pytest.param((30, 40), 16, marks=pytest.mark.slow)]
)
def test_clips_in_a_shuffle_buffer_take_little_more_than_their_bytes(
    tmp_path: Path, shape: tuple[int, ...], clip_len: int
) -> None:
    """Independent of how many the engine makes at once."""
    with SeqRecordWriter(tmp_path / "records", codecs="raw") as writer:
        for number in range(3):
            with writer.episode(str(number)) as episode:
                for frame in range(700):
                    episode.append({"x": np.full(shape, frame, np.float32)})
    pipe = SeqRecordPipe(tmp_path / "records", clip_len=clip_len, seed=1)
    draws = random.Random(1)
    buffer: list[dict[str, Any]] = []
    tracemalloc.start()
    try:
        list(islice(pipe, 40))
        before = numpy_bytes()  # memory that does not belong to clips
        for clip in pipe:  # like torch's `.shuffle()`
            if len(buffer) < BUFFER_SIZE:
                buffer.append(clip)
            else:
                buffer[draws.randrange(BUFFER_SIZE)] = clip
        del clip
        own = sum(clip["x"].nbytes for clip in buffer)
        taken = numpy_bytes() - before
        assert taken <= 1.3 * own + (64 << 10)
        held = numpy_bytes()
        buffer.clear()
        assert held - numpy_bytes() >= own, "clips share memory that stays"
    finally:
        tracemalloc.stop()


def numpy_bytes() -> int:
    """Bytes of live arrays made since tracing began."""
    gc.collect()
    found = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, NUMPY)])
    return sum(trace.size for trace in found.traces)


@pytest.mark.parametrize("size", ["path", "large"])
def test_torch_pickles_only_the_clips_of_a_shuffle_buffer(
    size: str, request: pytest.FixtureRequest
) -> None:
    """A DataLoader pickles them when it begins an epoch after an abandoned one."""
    pipe: Any = SeqRecordPipe(request.getfixturevalue(size), **CLIPS)
    shuffled = pipe.shuffle(buffer_size=9)
    loader: Any = DataLoader(shuffled.batch(4).collate(seqrecord.collate), batch_size=None)
    empty = len(pickle.dumps(shuffled))
    clip = next(iter(loader))["image"][0]
    pickled = len(pickle.dumps(shuffled)) - empty
    assert 9 * clip.nbytes <= pickled <= 9 * (clip.nbytes + 3000)
    found = [name for batch in loader for name in check_clip(batch, CLIPS["features"], 3)]
    assert sorted(found) == possible_clips(CLIPS["features"], 3)


def test_little_memory_is_enough(path: Path) -> None:
    make = partial(SeqRecordPipe, path, **CLIPS, shuffle=False)
    assert digests(make(memory_limit=minimum_memory(make))) == digests(make())
    # An ended iteration yields no more clips.
    check_ended(SeqRecordIterableDataset(path, **CLIPS))
