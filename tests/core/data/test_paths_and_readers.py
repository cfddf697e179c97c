"""Functions accept a path or an open dataset, and refuse options without effect."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import seqrecord
from seqrecord import ClipError, ClipSpec, SeqRecordWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "records"
    with SeqRecordWriter(path) as writer:
        for key in ("a", "b"):
            with writer.episode(key) as episode:
                for i in range(12):
                    episode.append({"x": np.array([i], np.int32), "y": np.array(i, np.uint8)})
    return path


def _exported(dataset: Any, **more: Any) -> object:
    with TemporaryDirectory() as folder:
        [made] = seqrecord.export.to_files(dataset, "a", folder, **more)
        return {file.name: file.read_bytes() for file in made.rglob("*") if file.is_file()}


def _streamed(dataset: Any, **more: Any) -> object:
    clips = seqrecord.SeqRecordIterableDataset(dataset, clip_len=4, **more)
    return [clip["start"] for clip in clips]


FUNCTIONS: dict[str, Callable[..., object]] = {
    "summarize": partial(seqrecord.summarize, clip=ClipSpec(4)),
    "verify": lambda dataset, **more: re.sub(
        r"; last.*", "", str(seqrecord.verify(dataset, **more))
    ),
    "view": lambda dataset, **more: seqrecord.view(dataset, "b", **more).get_label(),
    "export": _exported,
    "stream": _streamed,
    "map": lambda dataset, **more: len(seqrecord.SeqRecordMapDataset(dataset, clip_len=4, **more)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_path_and_an_open_dataset_give_the_same_result(name: str, path: Path) -> None:
    """Storage options with an open dataset are refused: pass them to `seqrecord.open`."""
    function, match = FUNCTIONS[name], r"cannot be combined with an open|is no argument"
    with seqrecord.open(path) as reader:
        assert function(reader) == function(path)
        with pytest.raises(ClipError, match=rf"storage_options ({match})"):
            function(reader, storage_options={"deadline": 3})
        assert int(reader.episodes["b"][3]["y"]) == 3  # still open
