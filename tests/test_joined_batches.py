"""Small batches, several of which are copied at once: as if each were made alone."""

from __future__ import annotations

import io
import time
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from seqrecord import SeqRecordPipe, SeqRecordStream
from tests.clip_data import check_ended, digest, write_numbered

BATCHES: dict[str, Any] = {"clip_len": 3, "seed": 1, "features": ["image", "id"], "batch_size": 1}
PATIENCE = 60  # seconds


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("joined") / "records")


def alone(path: Path, **options: Any) -> list[Any]:
    """What batches are that are made one by one, since a function is called with each clip."""
    found = SeqRecordPipe(path, **{**BATCHES, **options}, clip_transform=lambda clip, _: dict(clip))
    return [digest(batch) for batch in found]


@pytest.mark.parametrize("count", [0, 1, 31, 40])
def test_a_state_counts_the_batches_that_were_given(path: Path, count: int) -> None:
    expected = alone(path)
    assert len(expected) > 60
    pipe = SeqRecordPipe(path, **BATCHES)
    iterator = iter(pipe)
    given = list(islice(iterator, count))
    assert [digest(batch) for batch in given] == expected[:count]
    assert (pipe.stats()["clips"], pipe.stats()["batches"]) == (count, count)
    state = pipe.state_dict()
    assert state["batch"] == count
    del iterator  # it is left early
    assert (pipe.stats()["clips"], pipe.stats()["batches"]) == (count, count)
    other = SeqRecordPipe(path, **BATCHES)
    other.load_state_dict(state)
    assert [digest(batch) for batch in other] == expected[count:]
    assert other.stats()["batches"] == len(expected) - count
    assert [digest(batch) for batch in given] == expected[:count]  # nothing was written over them


@pytest.mark.parametrize(
    "options",
    [
        {"order": "sequences", "batch_size": 3},
        {"drop_last": True, "batch_size": 5},
        {"shuffle": False, "batch_size": 2, "metadata": ["number"]},
        {"windows": {"image": [-1, 0], "id": range(2)}, "pad": "edge", "clip_len": None},
    ],
    ids=str,
)
def test_they_are_as_those_made_alone(path: Path, options: dict[str, Any]) -> None:
    expected = alone(path, **options)
    assert [digest(batch) for batch in SeqRecordPipe(path, **{**BATCHES, **options})] == expected


def test_those_that_are_loaded_lie_side_by_side(path: Path) -> None:
    pipe = SeqRecordPipe(path, **BATCHES, shuffle=False)
    iterator = iter(pipe)
    batches = [next(iterator)]
    begin = time.monotonic()
    while pipe.stats()["frames_decoded"] < 75 and time.monotonic() < begin + PATIENCE:
        time.sleep(0.001)  # none is begun meanwhile but what there are slots for
    batches += iterator
    images = [batch["image"] for batch in batches]
    beside = [b.data_ptr() == a.data_ptr() + a.nbytes for a, b in pairwise(images)]
    assert sum(beside) >= 15
    second = images[beside.index(True) + 1]
    assert second.untyped_storage().nbytes() == second.nbytes
    file = io.BytesIO()
    torch.save(second, file)  # one alone
    assert len(file.getvalue()) < second.nbytes + 4096


def test_an_iteration_that_was_ended_gives_no_more_of_them(path: Path) -> None:
    check_ended(SeqRecordStream(path, **BATCHES))
