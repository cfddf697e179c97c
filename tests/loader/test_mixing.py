"""How well batches are mixed, through the loader: small frames, many ranks, little memory."""

from __future__ import annotations

import logging
import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import seqrecord
from benchmarks import mixing
from benchmarks.mixing import EpochRows, Mixing
from benchmarks.tartanair import default_mixing
from benchmarks.tartanair.shuffle_quality import ABANDONEDFACTORY, default_settings, measure
from seqrecord import ClipSpec, EngineOptions, SeqRecordPipe, samples
from seqrecord.errors import MemoryLimitError
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, enumerate_clips
from seqrecord.loader.sampling.plan_settings import PlanSettings
from seqrecord.store.processes.machine import process_memory
from seqrecord.store.storage.local import LocalStorage
from tests.kit.clip_data import minimum_memory, names
from tests.kit.datasets import columns, write_dataset, written_once
from tests.kit.faults import CountingStorage
from tests.kit.processes import be_worker
from tests.loader.clip_cases import episode_table

FRAME = np.zeros((8, 8, 3), np.uint8)


path = written_once(
    write_dataset,
    {str(n): [{"image": FRAME}] * length for n, length in enumerate(ABANDONEDFACTORY)},
    chunk_frames=8,
)


def quality(batches: list[list[tuple[str, int]]]) -> Mixing:
    """The mixing of batches of clips of 16."""
    clips = [
        (step, 0, int(key), start) for step, batch in enumerate(batches) for key, start in batch
    ]
    step, rank, episode, start = np.array(clips, np.int64).T
    return mixing.measure(EpochRows(step, rank, episode, start), ABANDONEDFACTORY, 16)


def test_small_frames_are_mixed_like_a_full_shuffle(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=16, batch_size=32)
    found = quality([names(batch) for batch in pipe])
    assert found.step_episodes.value >= 8.5
    assert found.neighbours.value <= 0.06
    assert pipe.stats()["frames_decoded"] <= 1.09 * sum(ABANDONEDFACTORY)
    # The next round's loads do not wait for the current round.
    assert pipe.stats()["loads_throttled"] == 0


def test_given_shuffle_buffer_limits_frames(path: Path) -> None:
    found = {}
    few: dict[str, Any] = {"memory_limit": "2560KiB"}  # not all frames stay
    for clips in (None, 256):
        pipe = SeqRecordPipe(
            path, clip_len=16, batch_size=32, engine=EngineOptions(shuffle_buffer=clips), **few
        )
        found[clips] = quality([names(batch) for batch in pipe]), pipe.stats()["peak_buffer_bytes"]
    (free, most), (bound, buffered) = found[None], found[256]
    assert bound.neighbours.value >= free.neighbours.value
    assert buffered <= most <= 2560 << 10


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"memory_limit": "330KiB"}, ["memory_limit leaves no room for"]),
        ({"rank": (0, 40), "memory_limit": "2560KiB"}, ["would decode over"]),
        ({"rank": (1, 40), "memory_limit": "2560KiB"}, []),  # rank 0 says so
        ({}, []),
    ],
)
def test_one_warning_names_the_limit_of_mixing(
    path: Path, settings: dict[str, Any], expected: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    usual = {"rank": (0, 1), "clip_len": 16, "batch_size": 32}
    with caplog.at_level(logging.INFO, "seqrecord"):
        pipe = SeqRecordPipe(path, **{**usual, **settings})
        for _ in range(2):
            assert len(pipe)
            next(iter(pipe))
    found = [one for one in caplog.records if "clips are mixed from" in one.getMessage()]
    assert len(found) == len(expected)
    assert all(words in one.getMessage() for words, one in zip(expected, found, strict=True))
    assert all(one.levelno == logging.WARNING for one in found)


def test_chunks_of_distant_frames_are_no_reason_for_few_cursors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A `frame_transform` reads whole chunks, also those of which clips use few frames."""
    episodes = {f"e{i}": columns(image=np.zeros((96, 200, 300, 3), np.uint8)) for i in range(6)}
    write_dataset(tmp_path / "records", episodes, codecs="raw", chunk_frames=16)
    clips: dict[str, Any] = {"clip_len": 1, "stride": 8, "batch_size": 2, "memory_limit": "40MB"}
    pipe = SeqRecordPipe(tmp_path / "records", **clips, frame_transform=dict)
    assert sum(len(batch["start"]) for batch in pipe) == 6 * 96 // 8
    assert pipe.stats()["num_interleaved"] >= 2
    assert "decoded twice" not in caplog.text


def test_recommended_memory_limit_suffices(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make = partial(SeqRecordPipe, path, clip_len=16, batch_size=32)

    def lines(memory_limit: int | str) -> list[str]:
        caplog.clear()
        next(iter(make(memory_limit=memory_limit)))
        return [one for one in caplog.messages if "clips are mixed from" in one]

    (line,) = lines("330KiB")
    enough = int(re.findall(r"memory_limit of (\d+) ", line)[0])
    assert lines(enough) == []
    assert lines(enough // 2) != []
    (line,) = lines(minimum_memory(make))
    assert "mixed from 1 place at a time" in line


def test_repr_and_stats_count_interleaved_places(path: Path) -> None:
    few: dict[str, Any] = {"memory_limit": "2560KiB"}
    for cursors, least, most in ((None, 10, 100), (7, 7, 7)):
        engine = EngineOptions(num_cursors=cursors)
        pipe = SeqRecordPipe(path, clip_len=16, batch_size=32, engine=engine, **few)
        next(iter(pipe))
        places = pipe.stats()["num_interleaved"]
        assert least <= places <= most
        assert f"mixed from {places} places" in repr(pipe)
    pipe = SeqRecordPipe(path, clip_len=16, batch_size=32)
    next(iter(pipe))
    assert pipe.stats()["num_interleaved"] == pipe.num_clips  # permuted
    assert "mixed from" not in repr(pipe)


def has(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Simulate a machine with `nbytes` of memory."""
    values = {"SC_PHYS_PAGES": nbytes // 4096, "SC_PAGE_SIZE": 4096}
    ask = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: values.get(name) or ask(name))


def test_too_small_machine_raises_with_the_limit_to_pass(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = CountingStorage(LocalStorage(path))  # not a local disk: frames do not stay
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")

    def first(**settings: Any) -> dict[str, Any]:
        pipe = SeqRecordPipe(elsewhere, clip_len=16, batch_size=32, rank=(0, 2), **settings)
        next(iter(pipe))
        return pipe.stats()

    order = first()["num_interleaved"]
    has(monkeypatch, 2 * process_memory() + (4 << 20))
    with pytest.raises(MemoryLimitError, match="this machine") as caught:
        first()
    mix = seqrecord.SeqRecordMix({"a": SeqRecordPipe(elsewhere, clip_len=16)}, batch_size=32)
    with pytest.raises(MemoryLimitError, match="this machine"):
        next(iter(mix))
    limit = int(re.findall(r"memory_limit=(\d+)", str(caught.value))[0])
    assert 0 <= 0.8 * (4 << 20) / 2 - limit <= 4096  # whole pages
    caplog.clear()
    assert first(memory_limit=limit)["num_interleaved"] <= order
    (line,) = [one for one in caplog.messages if "of this machine's memory" in one]
    assert "each loader here, 2 in all" in line
    caplog.clear()
    first(memory_limit=limit // 2)
    assert not [one for one in caplog.messages if "of this machine's memory" in one]


def test_memory_of_workers_and_their_parent_is_no_loader_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = partial(SeqRecordPipe, path, clip_len=16, batch_size=32, memory_limit="4MiB")
    be_worker(monkeypatch, 0, 2)
    has(monkeypatch, 3 * process_memory() + (12 << 20))
    next(iter(make()))
    has(monkeypatch, 2 * process_memory() + (12 << 20))
    with pytest.raises(MemoryLimitError, match=r"without 3 x .* of the processes"):
        next(iter(make()))


def test_workers_share_the_default_limit(path: Path) -> None:
    """Three batches of 2 GB fit into the limit of a rank, but not of a worker."""

    def length(workers: int, **more: Any) -> int:
        clips: dict[str, Any] = {"clip_len": 512, "batch_size": 20_000, **more}
        stream = seqrecord.SeqRecordIterableDataset(path, rank=(0, 1), **clips)
        return len(DataLoader(stream, batch_size=None, num_workers=workers))

    assert length(1) == 1
    with pytest.raises(MemoryLimitError, match="each of 2 workers"):
        length(2)
    assert length(2, memory_limit="6GiB") == 2


def dataset(
    num_frames: tuple[int, ...], spec: ClipSpec, chunk_frames: int = 8
) -> tuple[ClipTable, EpisodeLayout]:
    episodes = episode_table(num_frames, [chunk_frames] * len(num_frames))
    return enumerate_clips(spec, episodes, np.arange(len(episodes))), episodes


@pytest.mark.parametrize(("seed", "shuffle_buffer"), [(0, 256), (1, 512), (2, None)])
def test_defaults_shuffle_well(seed: int, shuffle_buffer: int | None) -> None:
    data = dataset(ABANDONEDFACTORY, ClipSpec(16))
    wanted = PlanSettings(batch_size=32, seed=seed)
    chosen = default_settings(*data, wanted, max_frames=2000, shuffle_buffer=shuffle_buffer)
    found = measure(*data, chosen)
    assert found.mixing.step_episodes.value >= 8
    assert found.mixing.neighbours.value <= 0.5
    assert found.resident <= 2000
    assert found.reread <= 1.09


@pytest.mark.parametrize(
    ("copies", "num_shards", "least"),
    [(1, 8, 6), pytest.param(20, 64, 18, marks=pytest.mark.slow), (20, 256, 6)],
)
def test_many_shards_are_shuffled_well(copies: int, num_shards: int, least: float) -> None:
    """As many episodes as 9 % of the frames, decoded twice, pay for."""
    data = dataset(ABANDONEDFACTORY * copies, ClipSpec(16))
    wanted = PlanSettings(batch_size=32, seed=3)
    chosen = default_settings(*data, wanted, max_frames=2000, num_shards=num_shards)
    found = measure(*data, chosen, num_shards=num_shards, some=8, epochs=2)
    assert found.mixing.rank_episodes.value >= least
    assert found.mixing.neighbours.value <= 1.6
    assert found.reread <= 1.12
    assert found.resident <= 2000


VIDEO = [  # episodes, frames, GOP, batch, ranks; parts of a full shuffle's episodes
    (60, 100, 50, 16, 1, 0.86),
    (30, 600, 250, 16, 1, 1.01),
    (60, 100, 100, 8, 1, 1.05),
    (60, 97, 31, 16, 1, 0.91),
    (60, 100, 2, 32, 8, 0.33),
    (60, 100, 50, 16, 8, 0.62),
    (60, 100, 2, 32, 16, 0.21),
]


@pytest.mark.parametrize(
    ("number", "frames", "gop", "batch", "num_ranks", "least"), VIDEO, ids=map(str, VIDEO)
)
def test_batches_of_long_gops_and_many_ranks_have_episodes(
    number: int, frames: int, gop: int, batch: int, num_ranks: int, least: float
) -> None:
    """480x640, clips of 16: as many as cuts that decode a tenth twice allow."""
    group = default_mixing.Group(default_mixing.RGB, max(gop, 32 // gop * gop), gop)
    video = default_mixing.Case("", (frames,) * number, (group,), stays=False)
    planned = default_mixing.plan_epoch(video, default_mixing.Job(batch, num_ranks))
    found = default_mixing.measured(video, planned)
    assert found.rank_episodes.ratio >= least
    assert planned.nbytes <= 8 << 30
    assert found.decodes <= 1.12


@pytest.mark.parametrize(
    ("number", "num_frames", "clip_len", "num_ranks", "gop"),
    [
        (24, 200, 16, 1, 10),
        (48, 60, 8, 2, 1),
        (200, 100, 16, 8, 1),
        (24, 200, 8, 1, 10),
        (48, 200, 16, 2, 10),
    ],
)
def test_batches_of_equal_recordings_have_all_phases(
    number: int, num_frames: int, clip_len: int, num_ranks: int, gop: int
) -> None:
    """A cursor for each recording: if each began at the head, a batch would have one phase, and
    nearly all variance of phases would be between steps (here .93 to .997).
    """
    group = default_mixing.Group(default_mixing.RGB, max(gop, 8), gop)
    equal = default_mixing.Case("", (num_frames,) * number, (group,), clip_len, stays=False)
    for epoch in range(2):
        planned = default_mixing.plan_epoch(equal, default_mixing.Job(16, num_ranks), epoch)
        found = default_mixing.measured(equal, planned)
        assert found.phase.value <= 0.2
        assert found.decodes <= 1.1


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"clip_len": 8, "stride": 8, "batch_size": 8}, 0.3),  # 1.0 with equal places
        ({"clip_len": 8, "samples": samples.every(8), "batch_size": 16}, 0.2),  # 0.62
        ({"clip_len": 32, "batch_size": 64}, 0.1),  # 0.43
    ],
)
def test_a_round_of_equal_recordings_has_all_phases(
    tmp_path: Path, options: dict[str, Any], most: float
) -> None:
    """A block of three recordings in each of its sections: equal places in these were one place in
    all recordings. Full shuffles have 1 / batch_size of the variance between batches.
    """
    episodes = {f"{n}": [{"image": FRAME}] * 64 for n in range(24)}
    write_dataset(tmp_path, episodes)
    pipe = SeqRecordPipe(tmp_path, seed=1, **options)
    starts = np.stack([np.asarray(pipe.rows(0, batch)["start"]) for batch in range(len(pipe) - 1)])
    assert starts.mean(axis=1).var() <= most * starts.var()


def test_settings_of_many_episodes_are_found_quickly() -> None:
    data = dataset((100,) * 1_000_000, ClipSpec(16), chunk_frames=16)
    wanted = PlanSettings(batch_size=32)
    began = time.thread_time()  # without waits for a core
    default_settings(*data, wanted, max_frames=20_000_000, num_shards=4096)
    assert time.thread_time() - began < 20
