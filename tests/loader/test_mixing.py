"""How well batches are mixed, through the loader: small frames, many ranks, little memory."""

from __future__ import annotations

import logging
import os
import re
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seqrecord.loader.sampling.bounds import ClipStats, PlanSettings, resident_bounds
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.memory import FrameSizes, MemoryRequest
from torch.utils.data import DataLoader

import seqrecord
from benchmarks import mixing
from benchmarks.mixing import EpochRows, Mixing
from benchmarks.tartanair import default_mixing
from benchmarks.tartanair.shuffle_quality import (
    ABANDONEDFACTORY,
    default_settings,
    measure,
    memory_request,
)
from seqrecord import ClipSpec, EngineOptions, SeqRecordPipe, samples
from seqrecord.errors import MemoryLimitError
from seqrecord.loader.clips.tables import ClipTable, EpisodeLayout, enumerate_clips
from seqrecord.loader.sampling.runs import Shard
from seqrecord.store.processes.machine import process_memory
from seqrecord.store.storage.local import LocalStorage
from tests.kit.clip_data import minimum_memory, names
from tests.kit.datasets import write_dataset, written_once
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
    batches = [names(batch) for batch in pipe]
    after = quality(batches[1000 // 32 :])  # the first rounds are small
    assert after.step_episodes.value >= 8.5
    assert after.neighbours.value <= 0.06
    assert quality(batches).neighbours.value <= 0.2
    assert pipe.stats()["frames_decoded"] <= 1.035 * sum(ABANDONEDFACTORY)
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
    assert bound.neighbours.value > 2 * free.neighbours.value
    # Up to 32 cursors have the frames of 256 clips, plus a clip and a chunk each. Rounds of such
    # small frames are joined, which takes more room.
    assert buffered <= 16 * (256 + 32 * (16 + 8)) * FRAME.nbytes
    assert buffered < most


@pytest.mark.parametrize(
    ("settings", "expected", "level"),
    [
        ({"memory_limit": "330KiB"}, ["leaves room for"], logging.WARNING),
        (
            {
                "rank": (0, 40),
                "memory_limit": "2560KiB",
                "engine": EngineOptions(fixed_shards=False),
            },
            ["would read"],
            logging.INFO,
        ),
        ({"rank": (1, 40)}, [], 0),  # all frames stay
        ({}, [], 0),
    ],
)
def test_one_log_line_names_the_limit_of_mixing(
    path: Path,
    settings: dict[str, Any],
    expected: list[str],
    level: int,
    caplog: pytest.LogCaptureFixture,
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
    assert all(one.levelno == level for one in found)


def test_recommended_memory_limit_suffices(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make = partial(SeqRecordPipe, path, clip_len=16, batch_size=32)

    def lines(memory_limit: int | str) -> list[str]:
        caplog.clear()
        next(iter(make(memory_limit=memory_limit)))
        return [one for one in caplog.messages if "clips are mixed from" in one]

    (line,) = lines("330KiB")
    enough = int(re.findall(r"memory_limit of (\d+) ", line)[0])
    assert lines(enough) == []
    assert lines(enough - enough // 8) != []
    (line,) = lines(minimum_memory(make))
    assert "so the epoch is nearly sequential" in line


def test_repr_and_stats_count_interleaved_places(path: Path) -> None:
    for cursors, least, most in ((None, 30, 1 << 20), (7, 7, 7)):
        engine = EngineOptions(num_cursors=cursors)
        pipe = SeqRecordPipe(path, clip_len=16, batch_size=32, engine=engine)
        next(iter(pipe))
        places = pipe.stats()["num_interleaved"]
        assert least <= places <= most
        assert f"mixed from {places} places" in repr(pipe)


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
    pipe = SeqRecordPipe(path, clip_len=16, batch_size=32, memory_limit="4MiB")
    be_worker(monkeypatch, 0, 2)
    has(monkeypatch, 3 * process_memory() + (12 << 20))
    next(iter(pipe))
    has(monkeypatch, 2 * process_memory() + (12 << 20))
    with pytest.raises(MemoryLimitError, match=r"without 3 x .* of the processes"):
        next(iter(pipe))


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


def settled(
    data: tuple[ClipTable, EpisodeLayout],
    max_held: int,
    shuffle_buffer: int | None = 256,
    *,
    num_shards: int = 1,
    num_cursors: int | None = None,
    **wanted: Any,
) -> PlanSettings:
    return default_settings(
        ClipStats.of(*data),
        PlanSettings(**wanted),
        shuffle_buffer=shuffle_buffer,
        max_held=max_held,
        num_shards=num_shards,
        num_cursors=num_cursors,
    )


@pytest.mark.parametrize(("seed", "shuffle_buffer"), [(0, 64), (1, 256), (2, 1000)])
def test_defaults_shuffle_well(seed: int, shuffle_buffer: int) -> None:
    data = dataset(ABANDONEDFACTORY, ClipSpec(16))
    plan = EpochPlan(*data, settled(data, 1000, shuffle_buffer, batch_size=32, seed=seed))
    clips = plan.merged(0, plan.num_rounds, loads=False).clips
    rows = EpochRows(clips.batch, np.zeros_like(clips.batch), clips.episode, clips.start)
    found = mixing.measure(rows, ABANDONEDFACTORY, 16)
    assert plan.groups[0].max_resident_frames <= 1000
    assert found.step_episodes.value >= 8.5
    assert found.neighbours.value <= 0.5
    loaded = sum(int(work.groups[0].loads.count.sum()) for work in plan.rounds())
    assert loaded <= 1.05 * sum(ABANDONEDFACTORY)


@pytest.mark.parametrize(
    ("copies", "num_shards", "reread", "least"),
    [
        (1, 8, 1.10, 7.6),
        pytest.param(20, 64, 1.10, 27, marks=pytest.mark.slow),
        (20, 256, 1.20, 14),
    ],
)
def test_many_shards_are_shuffled_well(
    copies: int, num_shards: int, reread: float, least: float
) -> None:
    data = dataset(ABANDONEDFACTORY * copies, ClipSpec(16))
    chosen = settled(data, 1000, None, num_shards=num_shards, batch_size=32, seed=3)
    found = measure(*data, chosen, num_shards=num_shards, some=8, epochs=2)
    assert found.mixing.rank_episodes.value >= least
    assert found.mixing.neighbours.value <= 0.8
    assert found.reread <= reread
    assert found.resident <= 1000


def test_first_rounds_of_small_frames_are_small() -> None:
    data = dataset(ABANDONEDFACTORY, ClipSpec(16))
    plan = EpochPlan(*data, settled(data, 400_000, None, batch_size=32))
    sizes = [len(work.clips) for work in plan.rounds()]
    assert sizes[0] <= 256
    assert all(after <= 2.2 * before for before, after in pairwise(sizes))
    assert max(sizes) > data[0].num_clips // 3


def test_limit_of_mixing_is_named() -> None:
    data = dataset(ABANDONEDFACTORY, ClipSpec(16))
    for num_shards, room, expected in (
        (1, 1000, "None"),
        (1, 200, "memory_limit leaves room for 200 B of frames"),
        (40, 100_000, "would read"),
    ):
        chosen = settled(data, room, None, num_shards=num_shards, batch_size=32)
        request = memory_request(ClipStats.of(*data), chosen, num_shards=num_shards)
        assert expected in str(request.mixing_limit(chosen, room)[0])


VIDEO = [  # episodes, frames, GOP, batch, ranks; parts of a full shuffle's episodes
    (60, 100, 50, 16, 1, 0.86),
    (30, 600, 250, 16, 1, 1.01),
    (60, 100, 100, 8, 1, 1.05),
    (60, 97, 31, 16, 1, 0.91),
    (60, 100, 2, 32, 8, 0.45),
    (60, 100, 50, 16, 8, 0.62),
    (60, 100, 2, 32, 16, 0.22),
]


@pytest.mark.parametrize(
    ("number", "frames", "gop", "batch", "num_ranks", "least"), VIDEO, ids=map(str, VIDEO)
)
def test_batches_of_long_gops_and_many_ranks_have_episodes(
    number: int, frames: int, gop: int, batch: int, num_ranks: int, least: float
) -> None:
    """480x640, clips of 16: as many as cuts that decode a tenth twice allow."""
    group = default_mixing.Group(default_mixing.RGB, max(gop, 32 // gop * gop), gop)
    video = default_mixing.Case("", (frames,) * number, (group,), fixed_shards=False)
    planned = default_mixing.plan_epoch(video, default_mixing.Job(batch, num_ranks))
    found = default_mixing.measured(video, planned)
    assert found.rank_episodes.ratio >= least
    assert planned.nbytes <= 8 << 30
    assert found.decodes <= 1.1


def test_staying_frames_need_the_memory_of_their_own_shares() -> None:
    """These begin at any frame, not at chunks."""
    data = dataset((30,) * 3, ClipSpec(16), chunk_frames=8)
    asked = memory_request(ClipStats.of(*data), PlanSettings(batch_size=3))
    request = replace(asked, stay=True)
    chosen = request.default_settings(72, 72)
    assert (chosen.num_cursors, chosen.num_shares) == (1, 1)
    message, of_memory = request.mixing_limit(chosen, 72)
    assert of_memory
    assert str(message).endswith("leaves room for 72 B of frames, 90 B are needed")
    mixed = replace(chosen, num_cursors=3, block_frames=8, first_block_frames=8)
    assert resident_bounds(request.stats, mixed) == [90]


def test_memory_below_a_shard_is_the_limit() -> None:
    """With the named memory, a shard has a cursor for each of the runs that decodes allow."""
    data = dataset((100,) * 60, ClipSpec(17), chunk_frames=2)
    asked = PlanSettings(batch_size=32)
    few = memory_request(ClipStats.of(*data), asked, num_shards=8)
    chosen = few.default_settings(500, 500)
    message, of_memory = few.mixing_limit(chosen, 500)
    assert of_memory
    assert "memory_limit leaves room for 500 B of frames" in str(message)
    needed = few.limit_to_mix - few.sizes.beside_arena(1, 1)
    enough = few.default_settings(needed, needed)
    reason, of_memory = few.mixing_limit(enough, needed)
    assert "each of 8 shards has clips of about 11 of 60 episodes" in str(reason)
    assert not of_memory
    assert 11 <= enough.num_cursors <= 13


@pytest.mark.parametrize(
    "chunk_frames",
    [8, 1, *(pytest.param(some, marks=pytest.mark.slow) for some in (5, 16)), 31, 64],
)
@pytest.mark.parametrize(
    ("spec", "num_shards"),
    [
        (ClipSpec(16), 8),
        (ClipSpec(16, stride=4), 1),
        (ClipSpec(16, dilation=3), 8),
        (ClipSpec(64), 1),
    ],
)
def test_defaults_read_few_chunks_twice(spec: ClipSpec, num_shards: int, chunk_frames: int) -> None:
    table, episodes = data = dataset(ABANDONEDFACTORY * 4, spec, chunk_frames)
    chosen = settled(data, 2000, num_shards=num_shards, batch_size=32)
    frames, chunks = 0, 0
    for index in range(num_shards):
        for work in EpochPlan(table, episodes, chosen, shard=Shard(index, num_shards)).rounds():
            frames += int(work.groups[0].loads.count.sum())
            chunks += len(work.groups[0].loads)
    most = 1.05 if num_shards == 1 else 1.1
    assert frames <= most * episodes.num_frames.sum()
    # A cut reads a chunk twice, also where it decodes few frames of it twice.
    assert (
        chunks
        <= (most + (0.02 if num_shards == 1 else 0.08))
        * (-(-episodes.num_frames // chunk_frames)).sum()
    )


@pytest.mark.parametrize(
    ("num_frames", "max_frames", "cursors"),
    [
        ((120,) * 3, 100, 3),  # batches mix all episodes, though a cut costs 4 %
        ((320,) * 2, 100, 4),
        ((100, 130, 140), 100, 2),
        ((700,), 100, 4),
        ((200,) * 8, 300, 8),
        ((45,) * 10, 1000, 10),
    ],
)
def test_small_dataset_is_shuffled_well(
    num_frames: tuple[int, ...], max_frames: int, cursors: int
) -> None:
    found = settled(dataset(num_frames, ClipSpec(16)), max_frames, batch_size=4).num_cursors
    assert found == cursors


@pytest.mark.parametrize("num_frames", [(200,) * 8, (150, 250) * 4, (400,) * 5, ABANDONEDFACTORY])
def test_end_of_epoch_is_shuffled_well_with_ample_memory(num_frames: tuple[int, ...]) -> None:
    data = dataset(num_frames, ClipSpec(8))
    plan = EpochPlan(*data, settled(data, 1_000_000, batch_size=8))
    rounds = list(plan.rounds())
    assert max(len(work.clips) for work in rounds) <= 256
    cursors = np.concatenate([work.clips.cursor for work in rounds])
    mixed = [len(set(batch)) for batch in np.array_split(cursors, plan.num_batches)]
    fifth = len(mixed) // 5
    assert np.mean(mixed[-fifth:]) >= 0.8 * np.mean(mixed[:fifth])


def test_epoch_of_few_clips_is_one_round_and_reads_little_twice() -> None:
    data = dataset((45, 90, 100, 20), ClipSpec(16))
    large, small = (EpochPlan(*data, settled(data, buffered, None)) for buffered in (600, 200))
    assert large.num_rounds == 1 < small.num_rounds
    assert sum(int(work.groups[0].loads.count.sum()) for work in large.rounds()) == 255
    # Several episodes of one length, each with its own cursor, begin at other places.
    data = dataset((45,) * 10, ClipSpec(16))
    rounds = EpochPlan(*data, settled(data, 1000, batch_size=4)).rounds()
    assert 10 * 6 < sum(len(work.groups[0].loads) for work in rounds) <= 1.1 * 10 * 6


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
    equal = default_mixing.Case("", (num_frames,) * number, (group,), clip_len, fixed_shards=False)
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


def test_lowest_memory_is_one_clip_in_whole_chunks() -> None:
    # A clip that starts at frame 1 of a chunk ends at frame 16, so 1..23 are loaded.
    stats = ClipStats.of(*dataset((100,), ClipSpec(16)))
    assert memory_request(stats, PlanSettings()).least_held == 23
    assert memory_request(stats, PlanSettings(), num_cursors=3).least_held == 69


@pytest.mark.parametrize(
    ("spec", "shuffle"),
    [pytest.param(ClipSpec(16), True, marks=pytest.mark.slow), (ClipSpec(4, stride=1000), False)],
)
def test_settings_of_many_episodes_are_found_quickly(spec: ClipSpec, shuffle: bool) -> None:
    data = dataset((100,) * 1_000_000, spec, chunk_frames=16)
    began = time.thread_time()  # without waits for a core
    settled(data, 20_000_000, None, num_shards=4096, shuffle=shuffle, batch_size=32)
    # Mean 0.03 s, standard deviation 0.002 s; more with the number of episodes.
    assert time.thread_time() - began < 1


@pytest.mark.parametrize(("batch_size", "wanted"), [(None, 32), (64, 64)])
def test_unshuffled_rounds_are_a_batch_or_32_clips(batch_size: int | None, wanted: int) -> None:
    """If memory allows."""
    stats = ClipStats.of(*dataset((100,) * 200, ClipSpec(4)))
    settings = PlanSettings(shuffle=False, batch_size=batch_size)
    request = MemoryRequest(stats, settings, FrameSizes((8,), 0, 0))
    for frames in (20_000, 1000, 40):
        found = request.default_settings(8 * frames, 16 * frames)
        assert min(wanted, frames) // 2 <= found.block_frames <= wanted
        assert resident_bounds(stats, found)[0] <= frames
