"""Functions on a dataset take its path or an open one, and refuse what would be ignored."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import ClipError, ClipSpec, Dataset, SeqRecordWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "records"
    with SeqRecordWriter(path) as writer:
        for key in ("a", "b"):
            with writer.episode(key) as episode:
                for i in range(12):
                    episode.append({"x": np.array([i], np.int32), "y": np.array(i, np.uint8)})
    return path


@pytest.fixture
def reader(path: Path) -> Iterator[Dataset]:
    with seqrecord.open(path) as reader:
        yield reader


def _exported(dataset: Any, path: Path, **more: Any) -> object:
    target = path / type(dataset).__name__
    [folder] = seqrecord.export.to_files(dataset, "a", target, **more)
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def _streamed(dataset: Any, path: Path, **more: Any) -> object:
    return [
        clip["start"] for clip in seqrecord.SeqRecordIterableDataset(dataset, clip_len=4, **more)
    ]


def _indexed(dataset: Any, path: Path, **more: Any) -> object:
    return len(seqrecord.SeqRecordMapDataset(dataset, clip_len=4, **more))


FUNCTIONS: list[Callable[..., object]] = [
    lambda dataset, path, **more: seqrecord.summarize(dataset, clip=ClipSpec(4), **more),
    lambda dataset, path, **more: re.sub(r"; last.*", "", str(seqrecord.verify(dataset, **more))),
    lambda dataset, path, **more: seqrecord.view(dataset, "b", **more).get_label(),
    _exported,
    _streamed,
    _indexed,
]
NAMES = ["summarize", "verify", "view", "export", "SeqRecordIterableDataset", "SeqRecordMapDataset"]


@pytest.mark.parametrize("function", FUNCTIONS, ids=NAMES)
def test_a_path_and_an_open_dataset_give_the_same(
    function: Callable[..., object], path: Path, reader: Dataset, tmp_path: Path
) -> None:
    expected = function(path, tmp_path)
    assert function(reader, tmp_path) == expected
    assert int(reader.episodes["b"][3]["y"]) == 3  # it is still open


@pytest.mark.parametrize("function", FUNCTIONS, ids=NAMES)
def test_options_of_the_storage_beside_an_open_dataset(
    function: Callable[..., object], reader: Dataset, tmp_path: Path
) -> None:
    """Loaders take none at all: `seqrecord.open` does."""
    with pytest.raises(
        ClipError, match=r"storage_options (cannot be combined with an open|is no argument)"
    ):
        function(reader, tmp_path, storage_options={"deadline": 3})
