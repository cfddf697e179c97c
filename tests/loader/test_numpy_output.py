"""`output="numpy"`: the same clips as arrays, which keep a batch's memory like tensors."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import seqrecord
from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordMapDataset, SeqRecordPipe
from tests.loader.test_shared_memory import mapped

CLIPS: dict[str, Any] = {"clip_len": 3, "pad": "edge", "metadata": ["number"]}
ARRAYS = partial(seqrecord.collate, output="numpy")


def check_same(value: Any, tensor: Any) -> None:
    """Assert that a value is the NumPy form of tensors."""
    if isinstance(tensor, torch.Tensor):
        assert type(value) is np.ndarray
        assert value.flags.writeable
        np.testing.assert_array_equal(value, tensor.numpy(), strict=True)
    elif isinstance(tensor, (list, dict)):
        assert type(value) is type(tensor)
        assert len(value) == len(tensor)
        keys = tensor if isinstance(tensor, dict) else range(len(tensor))
        for key in keys:
            check_same(value[key], tensor[key])
    else:
        assert value == tensor


def streams(path: Path, **options: Any) -> Iterator[Any]:
    for kind in (SeqRecordPipe, SeqRecordIterableDataset, seqrecord.SeqRecordNode):
        for size in (None, 4):
            yield kind(path, batch_size=size, seed=3, **CLIPS, **options)
    sources = {"one": SeqRecordPipe(path, **CLIPS), "two": SeqRecordPipe(path, clip_len=3)}
    yield seqrecord.SeqRecordMix(sources, batch_size=4, single_source_batches=True, **options)


def numbered(path: Path, **options: Any) -> Iterator[Any]:
    clips = SeqRecordMapDataset(path, **CLIPS, **options)
    yield clips[7]
    yield seqrecord.collate(clips.__getitems__([3, 9, 3]))
    yield from clips.__getitems__([0, 4])


def test_arrays_equal_tensors(path: Path) -> None:
    """Including states, which are interchangeable."""
    crop: dict[str, Any] = {"clip_transform": {"image": [seqrecord.RandomCrop(4)]}}
    loaders = [*streams(path), SeqRecordPipe(path, batch_size=2, **CLIPS, **crop)]
    same = [
        *streams(path, output="numpy"),
        SeqRecordPipe(path, batch_size=2, **CLIPS, **crop, output="numpy"),
    ]
    for loader, tensors in zip(same, loaders, strict=True):
        for made in (loader, tensors):
            if isinstance(made, seqrecord.SeqRecordNode):
                made.reset()
        for clip, like in zip(loader, tensors, strict=True):
            check_same(clip, like)
    for clip, like in zip(numbered(path, output="numpy"), numbered(path), strict=True):
        check_same(clip, like)
    arrays, tensors = same[1], loaders[1]
    assert list(arrays.state_dict()) == list(tensors.state_dict())
    rest = iter(tensors)
    next(rest)
    arrays.load_state_dict(tensors.state_dict())
    for batch, like in zip(arrays, rest, strict=True):
        check_same(batch, like)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_memory_is_free_after_the_last_view(path: Path, workers: int) -> None:
    stream: Any = SeqRecordIterableDataset(
        path, batch_size=4, memory_limit="64MiB", output="numpy", **CLIPS
    )
    loader = stream
    if workers:
        loader = DataLoader(stream, None, collate_fn=dict, num_workers=workers)
    kept, seen = [], set()
    for epoch in range(2):  # frames of the second epoch are resident
        stream.set_epoch(epoch)
        for batch in loader:
            seen.add(batch["image"].ctypes.data)
            row = batch["image"][1:, ::-1, 2]
            kept.append((row, row.copy()))
            batch["id"][...] = -1  # users may write
            del batch, row
            if len(kept) > 3:
                row, copy = kept.pop(0)
                np.testing.assert_array_equal(row, copy)
                row[...] = 0
                del row
    assert len(seen) < 20, "of 38 batches: memory is reused"
    for batch in stream:
        assert (batch["id"] >= 0).all()
        assert (batch["image"].any(axis=(1, 2, 3, 4))).all()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memfd_create")
def test_workers_send_shared_memory(path: Path) -> None:
    options: dict[str, Any] = {"features": ["image", "note"], "output": "numpy"}
    stream = SeqRecordIterableDataset(path, batch_size=4, **CLIPS, **options)
    clips = SeqRecordMapDataset(path, **CLIPS, **options)
    for loader, like in (
        (DataLoader(stream, None, collate_fn=dict, num_workers=1), iter(stream)),
        (DataLoader(clips, 4, collate_fn=seqrecord.collate, num_workers=1), None),
    ):
        before = set(mapped())
        batch = next(iter(loader))
        assert set(mapped()) - before
        expected = next(like) if like else seqrecord.collate(clips.__getitems__(range(4)))
        for name in batch:
            np.testing.assert_equal(batch[name], expected[name])
        batch["image"][0, 0] += 1


def test_a_data_loader_that_would_make_tensors_is_an_error(path: Path) -> None:
    pipe = SeqRecordPipe(path, batch_size=4, output="numpy", **CLIPS)
    single = SeqRecordPipe(path, output="numpy", **CLIPS)
    clips: Any = SeqRecordMapDataset(path, output="numpy", **CLIPS)
    for stream, size in ((pipe, None), (pipe.map(dict), None), (single, 2), (clips, 2)):
        with pytest.raises(ClipError, match="without collate_fn makes tensors"):
            next(iter(DataLoader(stream, batch_size=size)))
    for stream, size, collate in (
        *((pipe, None, dict), (single, 4, ARRAYS), (clips, 4, seqrecord.collate)),
    ):
        batch = next(iter(DataLoader(stream, batch_size=size, collate_fn=collate)))
        assert (type(batch["image"]), type(batch["start"])) == (np.ndarray, np.ndarray)
        assert len(batch["image"]) == 4
    made = ARRAYS([clips[1], clips[2]])
    tensors = SeqRecordMapDataset(path, **CLIPS)
    check_same(made, seqrecord.collate([tensors[1], tensors[2]]))
    with pytest.raises(ClipError, match="received batches"):
        seqrecord.collate([made, made])


def test_refused(path: Path) -> None:
    for options, match in (
        ({"device": "cpu"}, "in host memory.*jax.device_put"),
        ({"ragged": "nested"}, "NumPy has no nested"),
        ({"ragged": {"note": "nested"}}, "NumPy has no nested"),
        ({"output": "jax"}, r"output is not valid.*numpy"),
    ):
        with pytest.raises(ClipError, match=match):
            SeqRecordPipe(path, **{"output": "numpy", **CLIPS, **options})
    source = SeqRecordPipe(path, output="numpy", **CLIPS)
    with pytest.raises(ClipError, match=r"sets options of the mix.*output"):
        seqrecord.SeqRecordMix({"one": source}, batch_size=2)
    source = SeqRecordPipe(path, clip_len=3, ragged="nested")
    with pytest.raises(ClipError, match=r"NumPy has no nested arrays.*nested tensors of note"):
        seqrecord.SeqRecordMix({"one": source}, batch_size=2, output="numpy")


def test_several_jax_processes_need_a_rank(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jax: Any = SimpleNamespace(process_index=lambda: 1, process_count=lambda: 2)
    jax.distributed = SimpleNamespace(is_initialized=lambda: True)
    pipe = SeqRecordPipe(path, batch_size=4, **CLIPS)
    monkeypatch.setitem(sys.modules, "jax", jax)
    with pytest.raises(ClipError, match=r"rank=\(jax.process_index\(\).*JAX process 1 of 2"):
        next(iter(pipe))
    with pytest.raises(ClipError, match="JAX process 1 of 2"):
        pickle.dumps(pipe)  # for a worker
    given = SeqRecordPipe(path, batch_size=4, **CLIPS, rank=(1, 2))
    whole = SeqRecordPipe(path, batch_size=4, **CLIPS, rank=(0, 1))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(list(pipe)) == len(list(given)) < len(list(whole))
    monkeypatch.setenv("RANK", "0")  # from another launcher
    with pytest.raises(ClipError, match="got: rank 0 of 2, and JAX process 1 of 2"):
        next(iter(pipe))
