"""Small clips that torch shuffles are made in the order in which `collate` will want them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seqrecord
from seqrecord import ClipError, SeqRecordPipe, SeqRecordWriter
from seqrecord.engine.batches import Batch
from seqrecord.engine.channel import Channel
from seqrecord.engine.stats import EngineStats
from seqrecord.pipes.made_clips import ClipsToCome, MadeClips
from tests.clip_data import digest

CLIPS: dict[str, Any] = {"clip_len": 3, "seed": 1}
FRAMES = 400


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three episodes: clips of several blocks of 32 batches."""
    path = tmp_path_factory.mktemp("placed") / "records"
    with SeqRecordWriter(path, codecs="raw") as writer:
        for number in range(3):
            with writer.episode(f"set/{number}", metadata={"number": number}) as episode:
                for frame in range(FRAMES):
                    value = number * FRAMES + frame
                    episode.append({"a": np.full((2, 5), value), "b": np.int64(-value)})
    return path


def seen(clips: Any) -> Any:
    """`seqrecord.collate` under another name, so that clips are dicts."""
    assert all(isinstance(clip, dict) for clip in clips)
    return seqrecord.collate(clips)


def chain(pipe: Any, buffer_size: int, size: int, collate: Any = seqrecord.collate) -> Any:
    shuffled = pipe.shuffle(buffer_size=buffer_size).set_seed(5)
    return shuffled.sharding_filter().batch(size).collate(collate)


def are_side_by_side(batches: list[dict[str, Any]]) -> bool:
    begins = [batch["a"].data_ptr() for batch in batches]
    steps = [stop - begin for begin, stop in pairwise(begins)]
    return steps.count(batches[0]["a"].nbytes) > len(batches) // 2


MORE: dict[str, dict[str, Any]] = {
    "plain": {},
    "in order": {"shuffle": False, "num_threads": 1},
    "said": {
        "metadata": ["number"],
        "dilation": (1, 2),
        "clip_transform": seqrecord.RandomCrop((1, 3), features=["a"]),
    },
    "little memory": {"memory_limit": 600_000, "shuffle_buffer": 40},
}


@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
@pytest.mark.parametrize(("buffer_size", "size"), [(1, 2), (30, 4), (150, 3), (5000, 2)])
def test_batches_are_those_of_clips_that_others_see(
    path: Path, more: dict[str, Any], buffer_size: int, size: int
) -> None:
    """Also where more blocks are begun at a time than may wait for the consumer."""
    options = {**CLIPS, **more}
    batches = list(chain(SeqRecordPipe(path, **options), buffer_size, size))
    expected = list(chain(SeqRecordPipe(path, **options), buffer_size, size, seen))
    assert [digest(batch) for batch in batches] == [digest(batch) for batch in expected]
    assert [list(batch) for batch in batches] == [list(batch) for batch in expected]
    if not more:
        assert are_side_by_side(batches)
        assert are_side_by_side(expected) == (buffer_size == 1)  # no shuffling
        nbytes = batches[0]["a"].nbytes  # to save one is not to save all
        assert {batch["a"].untyped_storage().nbytes() for batch in batches[:-1]} == {nbytes}


@pytest.mark.parametrize("count", [1, 40, 90])
def test_a_resumed_epoch_is_shuffled(path: Path, count: int) -> None:
    first: Any = SeqRecordPipe(path, **CLIPS)
    given = list(islice(first, count))
    pipe: Any = SeqRecordPipe(path, **CLIPS)
    pipe.load_state_dict(first.state_dict())
    batches = list(chain(pipe, 20, 4))
    assert are_side_by_side(batches)
    found = [(clip["episode"], clip["start"]) for clip in given]
    found += [each for b in batches for each in zip(b["episode"], b["start"].tolist(), strict=True)]
    assert sorted(found) == [(f"set/{n}", start) for n in range(3) for start in range(FRAMES - 2)]


def test_statistics_count_what_was_collated(path: Path) -> None:
    pipe: Any = SeqRecordPipe(path, **CLIPS)
    batches = iter(chain(pipe, 10, 4))
    for number in range(1, 40):
        next(batches)
        assert (pipe.stats()["clips"], pipe.stats()["batches"]) == (4 * number, 4 * number)
    assert len(list(batches)) == -(-len(pipe) // 4) - 39
    assert pipe.stats()["clips"] == len(pipe)


def test_what_fails_is_raised_behind_the_batches_before_it(path: Path) -> None:
    def transform(frame: dict[str, Any]) -> dict[str, Any]:
        if frame["b"] == -FRAMES:
            raise ValueError("this frame")
        return frame

    pipe: Any = SeqRecordPipe(path, **CLIPS, shuffle=False, frame_transform=transform)
    batches = iter(chain(pipe, 10, 2))
    found = []
    with pytest.raises(ValueError, match="this frame"):
        found.extend(batches)
    assert found


def test_a_new_iteration_ends_the_old_one(path: Path) -> None:
    pipe: Any = SeqRecordPipe(path, **CLIPS)
    old = iter(chain(pipe, 10, 4))
    next(old)
    new = iter(pipe)
    next(new)
    with pytest.raises(ClipError, match="was ended"):
        list(old)


def batches_of(*numbers: list[int]) -> Iterator[Batch]:
    for each in numbers:
        names = np.array(each)
        yield Batch({"x": torch.tensor(each)}, names, names, numbers=names)


def made(batch: Batch) -> MadeClips:
    features: Any = batch.features
    return MadeClips(features, {"start": torch.from_numpy(batch.start)})


def test_clips_that_are_wanted_in_another_order() -> None:
    """As if torch shuffled in another way than it did: rows of the batches that have them."""
    clips = ClipsToCome(batches_of([3, 0, 4, 2], [1, 5, 7], [6]), made)
    first = clips.find([3, 0])
    assert isinstance(first, dict)
    assert first["x"].tolist() == [3, 0]
    assert len(clips) == 2
    rows = clips.find([5, 2])
    assert isinstance(rows, list)
    assert [one.features["x"][row].item() for one, row in rows] == [5, 2]
    assert len(clips) == 3
    batch: Any = seqrecord.collate([(clips, 6), (clips, 1)])  # type: ignore[list-item]
    assert batch["x"].tolist() == [6, 1]
    clips.finish()
    assert len(clips) == 2
    with pytest.raises(ClipError, match="was ended"):
        clips.find([8])


def test_an_item_beside_another_needs_no_slot_where_nothing_waits() -> None:
    channel: Channel[int] = Channel(1, EngineStats())
    channel.reserve(0)
    channel.reserve(1, beside=True)  # 0 cannot be made without it
    channel.put(0)
    assert not channel.try_reserve()
    waiting = threading.Thread(target=channel.reserve, args=(2,), kwargs={"beside": True})
    waiting.start()
    assert channel.get() == 0
    waiting.join(60)
    assert not waiting.is_alive()
