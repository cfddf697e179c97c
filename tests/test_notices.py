"""What users are told of how they use a pipe, and how often."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import SeqRecordPipe, SeqRecordStream
from tests.clip_data import names

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

CLIPS: dict[str, Any] = {"clip_len": 7, "features": ["id"], "episodes": "set/[03]"}


LOADERS: list[tuple[Any, Any, dict[str, Any]]] = [
    (SeqRecordPipe, DataLoader, {}),
    (SeqRecordStream, DataLoader, {}),
    (SeqRecordStream, StatefulDataLoader, {}),
    (SeqRecordPipe, DataLoader, {"num_workers": 2}),
    (SeqRecordStream, DataLoader, {"num_workers": 2}),
    (SeqRecordStream, StatefulDataLoader, {"num_workers": 2}),
    (SeqRecordStream, DataLoader, {"num_workers": 1, "multiprocessing_context": "forkserver"}),
]


@pytest.mark.parametrize("number", range(len(LOADERS)))
def test_batches_that_are_collated_again(
    path: Path, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    data, loader, options = LOADERS[number]
    size = 4 + number  # the notice says the sizes, and what was said already is not said again
    batches = loader(data(path, **CLIPS, batch_size=size), **options)
    for _ in range(2):  # said once, not in each epoch
        shape = next(iter(batches))["id"].shape
        assert shape == (1, size, 7, 2)
        [notice] = caplog.messages
        assert f"[1, {size}, 7, …]: give it batch_size=None" in notice
        if "multiprocessing_context" in options:
            break


def test_single_clips_that_are_collated(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loader = DataLoader(SeqRecordPipe(path, **CLIPS))
    assert next(iter(loader))["id"].shape == (1, 7, 2)
    [notice] = caplog.messages
    assert "[1, 7, …]: give it batch_size=None, and batch_size= to the pipe" in notice


def first(items: list[Any]) -> Any:
    return items[0]


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_meant_is_not_commented_on(
    path: Path, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    batches: Any = SeqRecordPipe(path, **CLIPS, batch_size=4)
    clips: Any = SeqRecordPipe(path, **CLIPS)
    loaders: list[DataLoader[Any]] = [
        DataLoader(batches, num_workers=workers, batch_size=None),
        DataLoader(batches, num_workers=workers, collate_fn=first),
        DataLoader(batches.map(names).unbatch(), num_workers=workers),
        DataLoader(clips, num_workers=workers, batch_size=None),
        DataLoader(clips, num_workers=workers, batch_size=4, collate_fn=seqrecord.collate),
    ]
    for loader in loaders:
        next(iter(loader))
    assert caplog.messages == []
