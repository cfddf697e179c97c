"""A registered order: clips as stored, with rules, columns and counts of its own."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch.utils.data import DataLoader

from seqrecord import (
    ClipError,
    HorizontalFlip,
    LoaderOptions,
    SeqRecordIterableDataset,
    SeqRecordMix,
    SeqRecordPipe,
    StateError,
)
from seqrecord.loader.rules import Rule
from seqrecord.loader.sampling.bounds import PlanSettings
from seqrecord.loader.sampling.clip_order import ClipOrder
from seqrecord.loader.sampling.epoch import EpochPlan
from seqrecord.loader.sampling.orders import ORDERS
from seqrecord.loader.sampling.plan import Plan
from tests.kit.datasets import columns, noise, write_dataset

LENGTHS = {"a": 11, "b": 3, "c": 8}
STARTS = [("a", 0), ("a", 4), ("c", 0), ("c", 4)]  # of clips of 4 frames, without overlap


class StoredPlan(EpochPlan):
    """Marks the clips of an epoch's second half."""

    def columns(self, batch: int) -> Mapping[str, npt.NDArray[np.bool_]]:
        numbers = np.arange(self.first_clip(batch), self.first_clip(batch + 1))
        return {"is_late": 2 * numbers >= self.num_clips}


class StoredOrder(ClipOrder):
    """Clips as stored, without overlap. Clips of an episode share draws."""

    name = "stored"
    columns = ("is_late",)
    is_mixed = has_copies = is_for_mixes = False
    shares_draws = True
    rules: ClassVar[tuple[Rule[Any], ...]] = (
        Rule(lambda options: options.shuffle, "a stored order is not shuffled", "shuffle=False"),
    )

    def stride(self, length: int, dilation: int) -> int:
        return length * dilation

    def frames_left_out(self, table: Any, num_frames: Any) -> int:
        return int(num_frames[table.selected].sum() - table.num_clips * table.spec.length)

    def describe(self, table: Any) -> str:
        return f"; as stored in {len(table.count)} episodes"

    def plan_class(self, settings: PlanSettings, epoch: int, segment: int) -> type[Plan]:
        return StoredPlan


@pytest.fixture(autouse=True)
def stored() -> Iterator[None]:
    ORDERS["stored"] = StoredOrder()
    yield
    del ORDERS["stored"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("orders") / "records"
    frames = {
        key: columns(image=noise(length, 4, 6, 3), pose=noise(length, 2, dtype=np.float32))
        for key, length in LENGTHS.items()
    }
    write_dataset(path, frames)
    return path


def stream(path: Path, **changes: Any) -> SeqRecordIterableDataset:
    given: dict[str, Any] = {"clip_len": 4, "batch_size": 1, "order": "stored", "shuffle": False}
    return SeqRecordIterableDataset(path, **{**given, **changes})


def places(batches: Iterator[dict[str, Any]] | Any) -> list[tuple[str, int]]:
    return [
        (key, int(start))
        for batch in batches
        for key, start in zip(batch["episode"], batch["start"], strict=True)
    ]


def test_an_order_gives_clips_columns_draws_and_counts(path: Path) -> None:
    loader = stream(path, batch_size=2, clip_transform=HorizontalFlip())
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        batches = list(loader)
        assert places(batches) == STARTS
        assert torch.cat([batch["is_late"] for batch in batches]).tolist() == [0, 0, 1, 1]
        flipped = [batch["flipped"].tolist() for batch in batches]
        assert all(first == second for first, second in flipped)  # a batch is an episode
    assert loader.stats()["frames_left_out"] == sum(LENGTHS.values()) - 16
    assert "as stored in 2 episodes, 6 frames in no clip" in repr(loader)
    assert places(stream(path, stride=1))[:3] == [("a", 0), ("a", 1), ("a", 2)]
    assert places(DataLoader(stream(path), batch_size=None, num_workers=0)) == STARTS
    assert pickle.loads(pickle.dumps(StoredOrder())) is ORDERS["stored"]


def test_an_order_resumes_also_with_other_ranks(path: Path) -> None:
    loader = stream(path)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again = stream(path)
    again.load_state_dict(state)
    assert places(again) == STARTS[1:]
    shards = [stream(path, rank=(rank, 2)) for rank in (0, 1)]
    for shard in shards:
        shard.load_state_dict(state)
    assert sorted(places(shards[0]) + places(shards[1])) in (
        sorted([*STARTS[1:], STARTS[index]])
        for index in (1, 2, 3)  # one clip is repeated
    )
    with pytest.raises(StateError, match="other settings") as caught:
        stream(path, order="clips", stride=4).load_state_dict(state)
    assert "order" in str(caught.value)


def test_an_order_refuses_arguments(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ClipError, match="a stored order is not shuffled"):
        stream(path, shuffle=True)
    with pytest.raises(ClipError, match="gives stored; rows of a mix") as caught:
        SeqRecordMix({"x": stream(path, batch_size=None)}, batch_size=2)
    assert caught.value.got == "order='stored'"
    with pytest.raises(ClipError) as caught:
        LoaderOptions(clip_len=4, order="reversed")
    assert caught.value.expected == "'clips' or 'sequences' or 'stored'"
    samples = {"episode": ["a", "c"], "repeat": [2.0, 1.0]}
    with pytest.raises(ClipError, match='order="stored" has each clip once'):
        stream(path, samples=samples)
    write_dataset(tmp_path / "taken", {"a": columns(is_late=np.zeros((8, 1), np.uint8))})
    with pytest.raises(ClipError, match="is_late"):
        stream(tmp_path / "taken")
    assert list(SeqRecordPipe(tmp_path / "taken", clip_len=4, batch_size=2))
