"""How well batches are mixed, through the loader: small frames, many ranks, little memory."""

from __future__ import annotations

import logging
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from benchmarks.tartanair.shuffle_quality import ABANDONEDFACTORY, Quality, batch_quality
from seqrecord import (
    EngineOptions,
    SeqRecordIterableDataset,
    SeqRecordMix,
    SeqRecordPipe,
    SeqRecordWriter,
)
from seqrecord.errors import MemoryLimitError
from seqrecord.storage import LocalStorage
from tests.clip_data import least_memory, names
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
    assert pipe.stats()["loads_throttled"] == 0


def test_a_number_that_is_given_binds(path: Path) -> None:
    found = {}
    few: dict[str, Any] = {"memory_limit": "2560KiB"}  # not all frames stay
    for clips in (None, 256):
        pipe = SeqRecordPipe(
            path, clip_len=16, batch_size=32, engine=EngineOptions(shuffle_buffer=clips), **few
        )
        found[clips] = quality([names(batch) for batch in pipe]), pipe.stats()["peak_buffer_bytes"]
    (free, most), (bound, held) = found[None], found[256]
    assert bound.neighbours > 2 * free.neighbours
    # Up to 32 cursors hold the frames of 256 clips, and a clip and a chunk beyond each. There is
    # room for more rounds of such small frames, for several are done as one.
    assert held <= 16 * (256 + 32 * (16 + 8)) * FRAME.nbytes
    assert held < most


@pytest.mark.parametrize(
    ("settings", "said", "level"),
    [
        ({"memory_limit": "330KiB"}, ["leaves room for"], logging.WARNING),
        (
            {"world_size": 40, "memory_limit": "2560KiB", "fixed_shards": False},
            ["would read"],
            logging.INFO,
        ),
        ({"rank": 1, "world_size": 40}, [], 0),  # all frames stay
        ({}, [], 0),
    ],
)
def test_one_line_says_what_limits_mixing(
    path: Path,
    settings: dict[str, Any],
    said: list[str],
    level: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    usual = {"rank": 0, "world_size": 1, "clip_len": 16, "batch_size": 32}
    with caplog.at_level(logging.INFO, "seqrecord"):
        pipe = SeqRecordPipe(path, **{**usual, **settings})
        for _ in range(2):
            assert len(pipe)
            next(iter(pipe))
    found = [one for one in caplog.records if "clips are mixed from" in one.getMessage()]
    assert len(found) == len(said)
    assert all(words in one.getMessage() for words, one in zip(said, found, strict=True))
    assert all(one.levelno == level for one in found)


def test_the_limit_that_would_do_does(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make = partial(SeqRecordPipe, path, clip_len=16, batch_size=32)

    def said(memory_limit: int | str) -> list[str]:
        caplog.clear()
        next(iter(make(memory_limit=memory_limit)))
        return [one for one in caplog.messages if "clips are mixed from" in one]

    (line,) = said("330KiB")
    enough = int(re.findall(r"memory_limit of (\d+) ", line)[0])
    assert said(enough) == []
    assert said(enough - enough // 8) != []
    (line,) = said(least_memory(make))
    assert "so the epoch is nearly sequential" in line


def test_says_from_how_many_places_batches_are_mixed(path: Path) -> None:
    for cursors, least, most in ((None, 30, 1 << 20), (7, 7, 7)):
        engine = EngineOptions(num_cursors=cursors)
        pipe = SeqRecordPipe(path, clip_len=16, batch_size=32, engine=engine)
        next(iter(pipe))
        places = pipe.stats()["num_interleaved"]
        assert least <= places <= most
        assert f"mixed from {places} places" in repr(pipe)


def has(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Be on a machine with so much memory."""
    known = {"SC_PHYS_PAGES": nbytes // 4096, "SC_PAGE_SIZE": 4096}
    ask = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: known.get(name) or ask(name))


def test_a_machine_that_is_too_small_is_an_error_with_the_limit_to_give(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = CountingStorage(LocalStorage(path))  # not a local disk: frames do not stay
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    def first(**settings: Any) -> dict[str, Any]:
        pipe = SeqRecordPipe(
            elsewhere, clip_len=16, batch_size=32, rank=0, world_size=2, **settings
        )
        next(iter(pipe))
        return pipe.stats()

    order = first()["num_interleaved"]
    has(monkeypatch, 4 << 20)
    with pytest.raises(MemoryLimitError, match="this machine") as caught:
        first()
    mix = SeqRecordMix({"a": SeqRecordPipe(elsewhere, clip_len=16)}, batch_size=32)
    with pytest.raises(MemoryLimitError, match="this machine"):
        next(iter(mix))
    limit = int(re.findall(r"memory_limit=(\d+)", str(caught.value))[0])
    assert limit == int(0.8 * (4 << 20) / 2)
    caplog.clear()
    assert first(memory_limit=limit)["num_interleaved"] <= order
    (line,) = [one for one in caplog.messages if "of this machine's memory" in one]
    assert "each process here, 2 in all" in line
    caplog.clear()
    first(memory_limit=limit // 2)
    assert not [one for one in caplog.messages if "of this machine's memory" in one]


def test_workers_share_the_default_limit(path: Path) -> None:
    """Three batches of two gigabytes fit into what one rank has, but not into a worker's share."""

    def length(workers: int, **more: Any) -> int:
        clips: dict[str, Any] = {"clip_len": 512, "batch_size": 20_000, **more}
        stream = SeqRecordIterableDataset(path, rank=0, world_size=1, **clips)
        return len(DataLoader(stream, batch_size=None, num_workers=workers))

    assert length(1) == 1
    with pytest.raises(MemoryLimitError, match="each of 2 workers"):
        length(2)
    assert length(2, memory_limit="6GiB") == 2
