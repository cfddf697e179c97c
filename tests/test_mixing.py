"""How well batches are mixed, through the loader: small frames, many ranks, little memory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.tartanair.shuffle_quality import ABANDONEDFACTORY, Quality, batch_quality
from seqrecord import SeqRecordPipe, SeqRecordWriter
from seqrecord.storage import LocalStorage
from tests.clip_data import names
from tests.storage_doubles import CountingStorage

FRAME = np.zeros((8, 8, 3), np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixing") / "records"
    with SeqRecordWriter(path, chunk_frames=8) as writer:
        for number, length in enumerate(ABANDONEDFACTORY):
            with writer.episode(f"{number}") as episode:
                for _ in range(length):
                    episode.append({"image": FRAME})
    return path


def quality(batches: list[list[tuple[str, int]]]) -> Quality:
    clips = [clip for batch in batches for clip in batch]
    episode = np.array([int(key) for key, _ in clips])
    start = np.array([start for _, start in clips])
    return batch_quality(episode, start, np.array(list(map(len, batches))), span=16)


def test_small_frames_are_as_good_as_fully_shuffled(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=16, batch_size=32)
    batches = [names(batch) for batch in pipe]
    after = quality(batches[1000 // 32 :])  # the first rounds are small
    assert after.episodes >= 8.5
    assert after.neighbours <= 0.06
    assert quality(batches).neighbours <= 0.2
    assert pipe.stats()["frames_decoded"] <= 1.035 * sum(ABANDONEDFACTORY)
    # Loads of the next round do not wait for this one's end.
    assert pipe.stats()["loads_held_back"] == 0


def test_a_number_that_is_given_binds(path: Path) -> None:
    found = {}
    elsewhere = CountingStorage(LocalStorage(path))  # not a local disk: frames do not stay
    for clips in (None, 256):
        pipe = SeqRecordPipe(elsewhere, clip_len=16, batch_size=32, shuffle_buffer=clips)
        found[clips] = quality([names(batch) for batch in pipe]), pipe.stats()["resident_bytes"]
    (free, most), (bound, held) = found[None], found[256]
    assert bound.neighbours > 2 * free.neighbours
    # Up to 32 cursors hold the frames of 256 clips, and a clip and a chunk beyond each. There is
    # room for more rounds of such small frames, for several are done as one.
    assert held <= 16 * (256 + 32 * (16 + 8)) * FRAME.nbytes
    assert held < most


def test_a_resumed_epoch_goes_on_in_any_round(path: Path, thorough: bool) -> None:
    pipe = SeqRecordPipe(path, clip_len=16, batch_size=32)
    batches = [names(batch) for batch in pipe]
    for batch in (3, 11, 100, len(batches) - 2) if thorough else (100,):
        pipe = SeqRecordPipe(path, clip_len=16, batch_size=32)
        iterator = iter(pipe)
        for _ in range(batch):
            next(iterator)
        again = SeqRecordPipe(path, clip_len=16, batch_size=32)
        again.load_state_dict(pipe.state_dict())
        del iterator
        assert [names(item) for item in again] == batches[batch:]


def test_eight_ranks_are_mixed_well(path: Path) -> None:
    found = []
    for rank in range(8):
        settings: dict[str, Any] = {"rank": rank, "world_size": 8}
        pipe = SeqRecordPipe(path, clip_len=16, batch_size=32, **settings)
        found.append(quality([names(batch) for batch in pipe]))
    assert np.mean([each.episodes for each in found]) >= 6
    assert np.mean([each.neighbours for each in found]) <= 0.8


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rank": 0, "world_size": 1, "memory_limit": "440KiB"}, ["memory_limit leaves room for"]),
        ({"rank": 0, "world_size": 40}, ["would read"]),
        ({"rank": 1, "world_size": 40}, []),
        ({"rank": 0, "world_size": 8}, []),
        ({"rank": 0, "world_size": 1}, []),
    ],
)
def test_one_line_says_what_limits_mixing(
    path: Path, settings: dict[str, Any], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "seqrecord"):
        pipe = SeqRecordPipe(path, clip_len=16, batch_size=32, **settings)
        for _ in range(2):
            assert len(pipe)
            next(iter(pipe))
    found = [message for message in caplog.messages if "clips are mixed from" in message]
    assert len(found) == len(said)
    assert all(words in line for words, line in zip(said, found, strict=True))
