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

import seqrecord
from seqrecord import ClipError, SeqRecordIterableDataset
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.rules import Rule
from seqrecord.loader.sampling.clip_order import ClipOrder
from seqrecord.loader.sampling.cursor_shares import Pieces
from seqrecord.loader.sampling.orders import ORDERS
from seqrecord.loader.sampling.row_tables import RowTable
from tests.kit.clip_data import all_names
from tests.kit.datasets import columns, noise, write_dataset, written_once

LENGTHS = {"a": 11, "b": 3, "c": 8}
STARTS = [("a", 0), ("a", 4), ("c", 0), ("c", 4)]  # of clips of 4 frames, without overlap


class StoredOrder(ClipOrder):
    """Clips as stored, without overlap. Clips of an episode share draws, and an epoch's second half
    is marked.
    """

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

    def batch_columns(
        self,
        table: RowTable,
        pieces: Pieces,
        number: IntArray,
        *,
        is_end: bool,
    ) -> Mapping[str, npt.NDArray[np.bool_]]:
        _, row = pieces.find(number)
        return {"is_late": 2 * row >= len(table)}

    def counts(self, table: RowTable, pieces: Pieces, num_batches: int) -> Mapping[str, int]:
        return {"episodes_stored": table.num_owners}


@pytest.fixture(autouse=True)
def stored() -> Iterator[None]:
    ORDERS["stored"] = StoredOrder()
    yield
    del ORDERS["stored"]


path = written_once(
    write_dataset,
    {
        key: columns(image=noise(length, 4, 6, 3), pose=noise(length, 2, dtype=np.float32))
        for key, length in LENGTHS.items()
    },
)


def stream(path: Path, **changes: Any) -> SeqRecordIterableDataset:
    given: dict[str, Any] = {"clip_len": 4, "batch_size": 1, "order": "stored", "shuffle": False}
    return SeqRecordIterableDataset(path, **{**given, **changes})


def test_an_order_gives_clips_columns_draws_and_counts(path: Path) -> None:
    loader = stream(path, batch_size=2, clip_transform=seqrecord.HorizontalFlip())
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        batches = list(loader)
        assert all_names(batches) == STARTS
        assert torch.cat([batch["is_late"] for batch in batches]).tolist() == [0, 0, 1, 1]
        flipped = [batch["flipped"].tolist() for batch in batches]
        assert all(first == second for first, second in flipped)  # a batch is an episode
    assert loader.stats()["episodes_stored"] == 2
    assert loader.stats()["frames_left_out"] == sum(LENGTHS.values()) - 16
    assert "as stored in 2 episodes, 6 frames in no clip" in repr(loader)
    assert all_names(stream(path, stride=1))[:3] == [("a", 0), ("a", 1), ("a", 2)]
    assert all_names(DataLoader(stream(path), batch_size=None, num_workers=0)) == STARTS
    assert pickle.loads(pickle.dumps(StoredOrder())) is ORDERS["stored"]


def test_an_order_resumes_also_with_other_ranks(path: Path) -> None:
    loader = stream(path)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    again = stream(path)
    again.load_state_dict(state)
    assert all_names(again) == STARTS[1:]
    shards = [stream(path, rank=(rank, 2)) for rank in (0, 1)]
    for shard in shards:
        shard.load_state_dict(state)
    assert sorted(all_names(shards[0]) + all_names(shards[1])) in (
        sorted([*STARTS[1:], STARTS[index]])
        for index in (1, 2, 3)  # one clip is repeated
    )
    with pytest.raises(seqrecord.StateError, match="other settings") as caught:
        stream(path, order="clips", stride=4).load_state_dict(state)
    assert "order" in str(caught.value)


def test_an_order_refuses_arguments(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ClipError, match="a stored order is not shuffled"):
        stream(path, shuffle=True)
    with pytest.raises(ClipError, match="gives stored; rows of a mix") as caught:
        seqrecord.SeqRecordMix({"x": stream(path, batch_size=None)}, batch_size=2)
    assert caught.value.got == "order='stored'"
    with pytest.raises(ClipError) as caught:
        seqrecord.LoaderOptions(clip_len=4, order="reversed")
    assert caught.value.expected == "'clips' or 'sequences' or 'stored'"
    samples = {"episode": ["a", "c"], "repeat": [2.0, 1.0]}
    with pytest.raises(ClipError, match='order="stored" has each clip once'):
        stream(path, samples=samples)
    write_dataset(tmp_path / "taken", {"a": columns(is_late=np.zeros((8, 1), np.uint8))})
    with pytest.raises(ClipError, match="is_late"):
        stream(tmp_path / "taken")
    assert list(seqrecord.SeqRecordPipe(tmp_path / "taken", clip_len=4, batch_size=2))
