"""Loaders with order="sequences": rows, resuming, errors, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordPipe, StateError
from seqrecord.errors import MemoryLimitError
from tests.kit.clip_data import (
    LENGTHS,
    check_clip,
    digests,
    minimum_memory,
    possible_clips,
    write_numbered,
)
from tests.kit.datasets import written_once
from tests.kit.processes import be_worker
from tests.loader.resume_contract import check_stateful_loader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

FEATURES = ["image", "id"]


path = written_once(write_numbered, groups=None)


def stream(path: Path, **settings: Any) -> SeqRecordIterableDataset:
    given: dict[str, Any] = {"clip_len": 3, "batch_size": 2, "features": FEATURES, "rank": (0, 1)}
    return SeqRecordIterableDataset(path, order="sequences", **{**given, **settings})


def follow(
    batches: Iterable[dict[str, Any]], features: list[str], length: int, *, dilation: int = 1
) -> list[list[tuple[str, int]]]:
    """Clips of each row; checks values, `is_first` and `is_last`."""
    rows: list[list[tuple[str, int]]] = []
    flags: list[list[tuple[bool, bool]]] = []
    size = None
    for batch in batches:
        first, last = batch.pop("is_first"), batch.pop("is_last")
        assert first.dtype == last.dtype == torch.bool
        clips = check_clip(batch, features, length, dilation)
        assert len(first) == len(last) == len(clips) <= (size or len(clips))
        size = len(clips)
        rows += [[] for _ in range(size - len(rows))]
        flags += [[] for _ in range(size - len(flags))]
        for b, clip in enumerate(clips):
            rows[b].append(clip)
            flags[b].append((bool(first[b]), bool(last[b])))
    stride = length * dilation
    for row, found in zip(rows, flags, strict=True):
        continues = [b == (a[0], a[1] + stride) for a, b in pairwise(row)]
        firsts, lasts = [True, *(not g for g in continues)], [*(not g for g in continues), True]
        assert found == list(zip(firsts, lasts, strict=True))
    return rows


@pytest.mark.parametrize(
    ("features", "clip_len", "device"),  # chunks are of 4 frames
    [(FEATURES, 3, None), (FEATURES, 4, "cpu"), (["image", "flow", "note"], 4, None)],
)
def test_rows_follow_episodes(
    path: Path, features: list[str], clip_len: int, device: str | None
) -> None:
    loader = stream(path, clip_len=clip_len, features=features, device=device)
    every = possible_clips(features, clip_len, clip_len)
    stats = {}
    for _ in range(2):
        rows = follow(loader, features, clip_len)
        assert sorted(clip for row in rows for clip in row) == sorted(every)
        assert [len(row) for row in rows] == [-(-len(every) // 2), len(every) // 2]
        stats = loader.stats()
        assert stats["frames_left_out"] == sum(LENGTHS) - clip_len * len(every)
        assert stats["sequences"] - stats["sequences_cut"] == len(sequences(every, clip_len))
        assert stats["clips_dropped"] == stats["duplicate_clips"] == 0
    assert len(loader) == -(-len(every) // 2)
    left = stats["frames_left_out"]
    number = len(sequences(every, clip_len))
    assert f"; {number} sequences, {left} frames in no clip" in repr(loader)


def sequences(clips: list[tuple[str, int]], stride: int) -> list[tuple[str, int]]:
    """First clip of each sequence."""
    return [(key, start) for key, start in clips if (key, start - stride) not in clips]


@pytest.mark.parametrize("even_batches", [True, False])
def test_ranks_and_workers(path: Path, monkeypatch: pytest.MonkeyPatch, even_batches: bool) -> None:
    lengths, repeated = set(), 0
    together: Counter[tuple[str, int]] = Counter()
    for rank in range(2):
        for worker in range(2):
            be_worker(monkeypatch, worker, 2)
            shard = stream(path, rank=(rank, 2), last_batch="repeat" if even_batches else "keep")
            rows = follow(shard, FEATURES, 3)
            lengths.add(max(map(len, rows)))
            together.update(clip for row in rows for clip in row)
            repeated += shard.stats()["duplicate_clips"]
            if not even_batches:
                assert shard.stats()["sequences_cut"] == 0
    every = possible_clips(FEATURES, 3, 3)
    assert set(together) == set(every)
    assert together.total() == len(every) + repeated
    assert len(lengths) == 1 or not even_batches
    assert repeated == 0 or even_batches


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stateful_loader(path: Path, workers: int) -> None:
    def make(**settings: Any) -> StatefulDataLoader[Any]:
        return StatefulDataLoader(
            stream(path, seed=5), batch_size=None, num_workers=workers, **settings
        )

    check_stateful_loader(make)


def test_rows_of_each_worker(path: Path) -> None:
    batches: list[dict[str, Any]] = list(
        DataLoader(stream(path), batch_size=None, num_workers=2, multiprocessing_context="fork")
    )
    assert len(batches) % 2 == 0
    rows = [row for worker in range(2) for row in follow(batches[worker::2], FEATURES, 3)]
    assert sorted(c for row in rows for c in row) == sorted(possible_clips(FEATURES, 3, 3))


@pytest.mark.parametrize("usual", [{"order": "sequences"}, {"shuffle": False}], ids=str)
def test_engine_options_that_mix_clips_have_no_effect(path: Path, usual: dict[str, Any]) -> None:
    usual |= {"clip_len": 3, "batch_size": 2, "features": FEATURES}
    engine = seqrecord.EngineOptions(num_cursors=4, shuffle_buffer=3)
    plain = SeqRecordIterableDataset(path, **usual)
    other = SeqRecordIterableDataset(path, **usual, engine=engine)
    begun = iter(plain)
    next(begun)
    other.load_state_dict(plain.state_dict())
    assert digests(other) == digests(begun)


def test_a_state_with_another_order_is_refused(path: Path) -> None:
    loader = stream(path)
    next(iter(loader))
    other = SeqRecordIterableDataset(
        path, clip_len=3, stride=3, batch_size=2, features=FEATURES, rank=(0, 1)
    )
    with pytest.raises(StateError, match="order"):
        other.load_state_dict(loader.state_dict())
    state = other.state_dict()
    state["sources"][0]["settings"]["order"] = "any"
    with pytest.raises(StateError, match="order"):
        other.load_state_dict(state)


def test_random_values_are_constant_within_a_sequence(path: Path) -> None:
    def function(clip: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        return {"image": clip["image"].copy(), "drawn": generator.integers(1 << 40, size=1)}

    steps = [seqrecord.RandomCrop((2, 2)), seqrecord.HorizontalFlip(0.5), function]
    loader = stream(path, features=["image", "flow"], batch_size=3, clip_transform=steps)
    every = possible_clips(["image", "flow"], 3, 3)
    owner: dict[tuple[str, int], tuple[str, int]] = {}
    for key, start in every:
        owner[key, start] = owner.get((key, start - 3), (key, start))
    drawn: dict[tuple[str, int], set[Any]] = {}
    for batch in loader:
        for b, clip in enumerate(zip(batch["episode"], batch["start"].tolist(), strict=True)):
            crop, flipped = tuple(batch["crop"][b].tolist()), bool(batch["flipped"][b])
            found = (crop, flipped, int(batch["drawn"][b, 0]))
            drawn.setdefault(owner[clip], set()).add(found)
    assert len(drawn) == len(sequences(every, 3)) > 3
    alone = [found for (found,) in drawn.values()]
    assert len({seed for _, _, seed in alone}) == len(alone)
    assert len({found[:2] for found in alone}) > 1


def test_memory_is_one_clip_per_row(path: Path) -> None:
    frame = 6 * 8 * 3 + 16
    make = partial(stream, path, clip_len=6, batch_size=4)  # chunks of images have 4 frames
    list(loader := make())
    most = 4 * 2 * (6 + 3) * frame  # this batch and the next
    assert 0 < loader.stats()["peak_buffer_bytes"] <= most
    with pytest.raises(MemoryLimitError, match="too small for these clips"):
        make(memory_limit=5000)
    least = minimum_memory(make)
    list(make(memory_limit=least))
    with pytest.raises(MemoryLimitError):
        make(memory_limit=least - 1)


def test_invalid_options_are_errors_at_once(path: Path, tmp_path: Path) -> None:
    usual: dict[str, Any] = {"clip_len": 3, "batch_size": 2, "order": "sequences"}
    several: list[tuple[dict[str, Any], str]] = [
        ({"order": "sequence"}, "order is not valid"),
        ({"batch_size": None}, "needs a batch_size"),
        ({"samples": {"episode": ["set/0"], "start": [0]}}, "takes no table of samples"),
        ({"clip_len": 2**20, "dilation": 2**20}, "stride of a clip is out of range"),
        ({"samples": lambda table, *_: table.with_columns(repeat=[0.5] * len(table))}, "once"),
    ]
    for settings, message in several:
        with pytest.raises(ClipError, match=message):
            SeqRecordPipe(path, **{**usual, **settings})
    with pytest.raises(ClipError, match="by their number"):
        seqrecord.SeqRecordMapDataset(path, clip_len=3, order="sequences")  # type: ignore[call-arg]
    # Features that batches would hide.
    with seqrecord.SeqRecordWriter(tmp_path) as writer, writer.episode("a") as episode:
        for i in range(9):
            episode.append({"x": np.float32(i), "is_first": np.bool_(i == 0)})
    with pytest.raises(ClipError, match=r"(?s)name of a batch's extra column.*is_first"):
        SeqRecordPipe(tmp_path, **usual)
    SeqRecordPipe(tmp_path, **usual, features=["x"])
    SeqRecordPipe(tmp_path, clip_len=3, batch_size=1)


def test_drop_last_without_a_whole_batch_is_an_error(path: Path) -> None:
    usual: dict[str, Any] = {"last_batch": "drop", "clip_len": 9}
    loader = stream(path, batch_size=3, **usual)
    assert [len(row) for row in follow(loader, FEATURES, 9)] == [2, 2, 2]
    assert loader.stats()["clips_dropped"] == len(possible_clips(FEATURES, 9, 9)) - 6
    loader = stream(path, batch_size=8, **usual)
    with pytest.raises(ClipError, match=r"leaves no batch at all"):
        iter(loader).__next__()


def test_sharding_filter_has_no_effect(path: Path) -> None:
    pipe = SeqRecordPipe(path, clip_len=3, batch_size=2, order="sequences", features=FEATURES)
    assert sum(1 for _ in DataLoader(pipe.map(dict), batch_size=None)) == len(pipe)
    filtered = pipe.map(dict).sharding_filter()
    filtered.apply_sharding(2, 0)
    assert sum(1 for _ in filtered) == len(pipe)
