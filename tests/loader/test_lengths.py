"""`len` of a DataLoader before an epoch: the batches that come, for any number of workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import Budget, SeqRecordIterableDataset, SeqRecordMix, SeqRecordPipe
from tests.kit.datasets import columns, write_dataset, written_once

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("error:Length of IterableDataset"),
]


path = written_once(
    write_dataset, {f"e{n}": columns(id=np.arange(13 + 3 * n)[:, None]) for n in range(5)}
)


def fewer(samples: Any, epoch: int, rng: Any) -> Any:
    del rng
    return samples.filter(samples["start"] % (epoch + 2) == 0)


OPTIONS: dict[str, dict[str, Any]] = {
    "repeat": {"batch_size": 4},
    "keep": {"batch_size": 4, "last_batch": "keep"},
    "drop": {"batch_size": 4, "last_batch": "drop"},
    "single clips": {},
    "budget": {"batch_size": Budget(9), "clip_len": (1, 4)},
    "functions": {"batch_size": 4, "samples": fewer},
    "sequences": {"batch_size": 3, "order": "sequences"},
}


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize(
    "num_workers", [0, *(pytest.param(count, marks=pytest.mark.slow) for count in (1, 3))]
)
def test_a_dataloader_has_as_many_batches_as_its_length(
    path: Path, case: str, num_workers: int
) -> None:
    for make in (SeqRecordPipe, SeqRecordIterableDataset):
        for rank in ((0, 1), (1, 2)):
            loader = make(path, rank=rank, **{"clip_len": 2, **OPTIONS[case]})
            batches = DataLoader(loader, batch_size=None, num_workers=num_workers)
            for _ in range(2):
                length = len(batches)
                assert len(list(batches)) == length


@pytest.mark.parametrize("num_workers", [0, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_batches_that_workers_make(
    path: Path, num_workers: int, drop_last: bool, kind: Any
) -> None:
    """Each worker has a last batch of its own, and drops it alone."""
    loader = SeqRecordIterableDataset(path, clip_len=2, last_batch="keep")
    options = {"batch_size": 4, "drop_last": drop_last, "num_workers": num_workers}
    batches = kind(loader, collate_fn=seqrecord.collate, **options)
    for _ in range(2):
        length = len(batches)
        assert len(list(batches)) == length
    assert len(loader) == loader.num_clips


def test_length_of_a_mix(path: Path) -> None:
    sources = {name: SeqRecordPipe(path, clip_len=2) for name in "ab"}
    mix = SeqRecordMix(sources, batch_size=4)
    for num_workers in (0, 2):
        batches = DataLoader(mix, batch_size=None, num_workers=num_workers)
        mix.set_epoch(0)
        length = len(batches)
        assert len(list(batches)) == length
