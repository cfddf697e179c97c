"""The pipes under torch's loaders: every clip once, new orders, lengths, chains, resuming."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterDataPipe

from seqrecord import (
    ClipError,
    EngineOptions,
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordNode,
    SeqRecordPipe,
)
from tests.clip_data import (
    begun,
    digest,
    digests,
    effective,
    leaves_nothing,
    names,
    possible_clips,
)

# torch warns of more workers than cores, and of what torchdata does to it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
CLIP: dict[str, Any] = {"clip_len": 3, "engine": EngineOptions(shuffle_buffer=16), "seed": 2}
BATCH: dict[str, Any] = {**CLIP, "batch_size": 4}


def only_id(frame: dict[str, Any]) -> dict[str, Any]:
    return {"id": frame["id"]}


# ---- SeqRecordPipe


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_loader_may_ask_for_shuffle(path: Path, shuffle: bool) -> None:
    settings = effective({**CLIP, "shuffle": not shuffle})
    pipe = SeqRecordPipe(path, **settings, features=["id"])
    loader = DataLoader(pipe, batch_size=None, shuffle=shuffle)
    clips = [name for clip in loader for name in names(clip)]
    canonical = possible_clips(["id"], 3)
    assert sorted(clips) == canonical
    assert (clips != canonical) is shuffle


def test_a_loader_left_early_leaves_nothing(path: Path) -> None:
    with leaves_nothing():
        loader = DataLoader(SeqRecordPipe(path, **BATCH), batch_size=None, num_workers=2)
        iterator = begun(loader)
        del iterator
        assert len(list(loader)) == len(loader)
        del loader


def test_an_error_in_a_worker(path: Path) -> None:
    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        if frame["id"].tolist() == [3, 5]:
            raise ZeroDivisionError("mine")
        return {"id": frame["id"]}

    pipe = SeqRecordPipe(path, **BATCH, frame_transform=transform)
    iterator: Any = iter(DataLoader(pipe, batch_size=None, num_workers=1))
    with pytest.raises(ZeroDivisionError, match=r"(?s)in transform.*mine"):
        list(iterator)
    iterator._shutdown_workers()  # left to the garbage collector, torch waits 5 s for each


def test_length(path: Path) -> None:
    sizes: list[dict[str, Any]] = [{}, {"batch_size": 1}, {"batch_size": 7}]
    for settings in [*sizes, {"batch_size": 7, "drop_last": True}]:
        settings |= {**CLIP, "features": ["id"]}
        for kind in (SeqRecordPipe, SeqRecordIterableDataset):
            data = kind(path, **settings)
            assert len(list(data)) == len(data)
            for workers in range(4):
                loader: Any = DataLoader(data, batch_size=None, num_workers=workers)
                ranks = max(1, workers)  # what the workers give, without starting them
                parts = [kind(path, **settings, rank=i, world_size=ranks) for i in range(ranks)]
                assert len(loader) == sum(map(len, parts))


class Trainer:
    """A loop with a batch in its local variables, and a `self` as find_loader looks for it."""

    def fit(self, loader: Any, ask: Callable[[], object]) -> int:
        dropped: list[Any] = []
        for batch in loader:
            assert all(tensor() is None for tensor in dropped), "asking keeps a batch"
            ask()
            dropped.append(weakref.ref(batch["image"]))
            del batch
        return len(dropped)


@pytest.mark.parametrize("workers", [0, 2])
def test_asking_does_not_keep_a_batch(path: Path, workers: int) -> None:
    # Before Python 3.13, who looks at the local variables of a running frame keeps what they hold.
    pipe: Any = SeqRecordPipe(path, **BATCH)
    other: Any = SeqRecordPipe(path, **BATCH, features=["id"])
    chain = other.sharding_filter()
    loader = DataLoader(pipe, batch_size=None, num_workers=workers)

    def ask() -> None:
        len(loader), len(pipe), len(chain), pipe.num_clips, repr(pipe)
        next(iter(chain))
        next(iter(DataLoader(other, batch_size=None)))
        if not workers:
            pipe.state_dict()

    assert Trainer().fit(loader, ask) == len(loader)


def test_repr(path: Path) -> None:
    pipe: Any = SeqRecordPipe(path, clip_len=3, features=["id", "note"])
    text = f"SeqRecordPipe({str(path)!r}, 67 clips\n  id: int64 [3, 2]\n  note: uint8 [3, ?])"
    assert repr(pipe) == str(pipe) == text
    for kind in (SeqRecordNode, SeqRecordIterableDataset, SeqRecordMapDataset):
        assert f"{kind.__name__}(" in repr(kind(path, clip_len=3))
    assert isinstance(pipe, IterDataPipe)
    assert torch.utils.data.IterableDataset in SeqRecordIterableDataset.__mro__
    assert isinstance(repr(pipe.shuffle()), str)


def run(loader: Any) -> list[Any]:
    if isinstance(loader, SeqRecordNode):
        loader.reset()
    return digests(loader)


@pytest.mark.parametrize("running", [False, True])
def test_all_loaders_give_the_same_and_are_pickled(path: Path, running: bool) -> None:
    kinds: list[Any] = [SeqRecordPipe, SeqRecordIterableDataset, SeqRecordNode]
    runs = []
    for kind in kinds:
        loader = kind(path, **BATCH, frame_transform=only_id)
        iterator = begun(loader, int(running))
        copy = pickle.loads(pickle.dumps(loader))
        assert copy.state_dict() == loader.state_dict()
        assert (len(copy), repr(copy)) == (len(loader), repr(loader))
        runs.append(run(loader))
        assert run(copy) == runs[-1]
        del iterator
    assert runs[0] == runs[1] == runs[2]
    dataset = SeqRecordMapDataset(path, clip_len=3, frame_transform=only_id)
    assert digest(pickle.loads(pickle.dumps(dataset))[5]) == digest(dataset[5])


# ---- SeqRecordMapDataset


def test_dataset_transforms_frames(path: Path) -> None:
    dataset = SeqRecordMapDataset(path, clip_len=3, frame_transform=only_id)
    pipe = SeqRecordPipe(path, clip_len=3, frame_transform=only_id, shuffle=False)
    assert [digest(dataset[i]) for i in range(len(dataset))] == digests(pipe)
    notes = SeqRecordMapDataset(
        path, clip_len=3, frame_transform=lambda frame: {"note": frame["note"]}
    )
    with pytest.raises(ClipError, match="another dtype or shape"):
        [notes[i] for i in range(9)]
