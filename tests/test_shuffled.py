"""Clips that torch shuffles are made where their batch will have them."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterDataPipe

import seqrecord
from seqrecord import SeqRecordPipe
from seqrecord.pipes.callers import find_chain
from seqrecord.pipes.shuffled import ShuffledBatches
from tests.clip_data import LARGE, check, possible_clips, write_numbered

CLIPS: dict[str, Any] = {"clip_len": 3, "seed": 1, "features": ["image", "id"]}


class Numbers(IterDataPipe[int]):
    """Integers, and where they will be as far as is known when the iteration begins."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.found: ShuffledBatches | None = None

    def __iter__(self) -> Iterator[int]:
        found = ShuffledBatches.of(self, find_chain())
        self.found = None if found is None else found.begin(self.count)
        return iter(range(self.count))


def same(item: Any) -> Any:
    return item


def sharded(pipe: Any) -> Any:
    filtered = pipe.sharding_filter()
    filtered.apply_sharding(2, 0)
    return filtered


@pytest.mark.parametrize("count", [1, 9, 100, 9000])
@pytest.mark.parametrize("buffer_size", [1, 7, 1000])
@pytest.mark.parametrize(("every", "first"), [(1, 0), (3, 0), (3, 2)])
def test_places_are_those_of_torch(count: int, buffer_size: int, every: int, first: int) -> None:
    numbers: Any = Numbers(count)
    filtered = numbers.shuffle(buffer_size=buffer_size).map(same).sharding_filter()
    filtered.apply_sharding(every, first)
    chain = filtered.batch(4).map(same)
    for _ in range(2):  # each epoch is seeded anew
        batches = [list(batch) for batch in chain]
        places = [numbers.found.find(number) for number in range(count) for _ in "ab"][::2]
        expected = {n: (i, row) for i, one in enumerate(batches) for row, n in enumerate(one)}
        assert places == [expected.get(number) for number in range(count)]


@pytest.mark.parametrize(
    "change",
    [
        lambda pipe: pipe.batch(4),
        lambda pipe: pipe.shuffle().filter(bool).batch(4),
        lambda pipe: sharded(pipe).shuffle().batch(4),
        lambda pipe: pipe.shuffle().shuffle().batch(4),
        lambda pipe: pipe.map(same).shuffle().set_shuffle(False).batch(4),
        lambda pipe: pipe.shuffle(),
    ],
)
def test_nothing_is_known_of_other_chains(change: Any) -> None:
    numbers = Numbers(20)
    list(change(numbers))
    assert numbers.found is None


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips that are not made several at a time."""
    shape = (2 * LARGE[0], 6 * LARGE[1], *LARGE[2:])
    return write_numbered(tmp_path_factory.mktemp("shuffled") / "records", shape=shape)


def address(batch: dict[str, Any]) -> int:
    return int(batch["image"].untyped_storage().data_ptr())


def test_large_clips_are_joined_without_a_copy(large: Path) -> None:
    pipe: Any = SeqRecordPipe(large, **CLIPS)
    for _ in range(2):
        found = []
        for clips in pipe.shuffle(buffer_size=5).sharding_filter().batch(4):
            batch = seqrecord.collate(clips)
            assert {address(batch)} == {address(clip) for clip in clips}
            found += check(batch, CLIPS["features"], 3)
            del batch, clips
        assert sorted(found) == possible_clips(CLIPS["features"], 3)


def test_a_resumed_chain_and_one_that_is_left_early(large: Path) -> None:
    pipe: Any = SeqRecordPipe(large, **CLIPS)
    chain = pipe.shuffle(buffer_size=5).batch(4).collate(seqrecord.collate)
    next(iter(chain))
    kept = list(pipe.batch(4).collate(seqrecord.collate))  # in order: memory of its own
    kept += list(chain)
    gc.collect()
    found = [name for batch in kept for name in check(batch, CLIPS["features"], 3)]
    assert sorted(found) == sorted(2 * possible_clips(CLIPS["features"], 3))


def test_memory_of_clips_to_come_is_limited(large: Path) -> None:
    """Of batches of many clips, those to come would take more than the clips in the buffer."""
    limit = 24 << 20
    pipe: Any = SeqRecordPipe(large, **CLIPS, memory_limit=limit)
    for clips in pipe.shuffle(buffer_size=16).batch(16):
        assert {clip["image"].untyped_storage().nbytes() for clip in clips} == {
            clips[0]["image"].nbytes
        }


@pytest.mark.parametrize("workers", [0, 2])
def test_in_a_loader(large: Path, workers: int) -> None:
    pipe: Any = SeqRecordPipe(large, **CLIPS)
    chain = pipe.shuffle(buffer_size=6).sharding_filter().batch(4).collate(seqrecord.collate)
    loader: Any = DataLoader(chain, batch_size=None, num_workers=workers)
    found = [name for batch in loader for name in check(batch, CLIPS["features"], 3)]
    assert sorted(found) == possible_clips(CLIPS["features"], 3)


def test_torch_finds_pipes_without_pickling_clips(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shuffle still has clips where an epoch was left early; they took gigabytes for a while."""
    pipe: Any = SeqRecordPipe(large, **CLIPS)
    shuffled = pipe.shuffle(buffer_size=5)
    chain = shuffled.sharding_filter().batch(4).collate(seqrecord.collate)
    loader: Any = DataLoader(chain, batch_size=None)
    next(iter(loader))
    copied = pickle.loads(pickle.dumps(shuffled))  # as ever, where nothing is sought
    held = [[clip["start"] for clip in vars(each)["_buffer"]] for each in (shuffled, copied)]
    assert held[0] == held[1]
    assert len(held[0]) == 5
    pickled = []

    def reduce(tensor: torch.Tensor, _protocol: Any) -> Any:
        pickled.append(tensor.shape)
        return int, ()

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "__reduce_ex__", reduce)
        iterator = iter(loader)
    assert not pickled
    found = [name for batch in iterator for name in check(batch, CLIPS["features"], 3)]
    assert sorted(found) == possible_clips(CLIPS["features"], 3)


def test_torch_need_not_make_an_error_for_every_clip(large: Path) -> None:
    class Own(IterDataPipe[Any]):
        def __init__(self, source: Any) -> None:
            self.source = source

        def __iter__(self) -> Iterator[Any]:
            yield from self.source

    pipe: Any = SeqRecordPipe(large, **CLIPS)
    shuffled = pipe.shuffle(buffer_size=3)
    own: Any = Own(shuffled)
    one, other = own.fork(2)
    asked = [vars(each).get("_is_child_datapipe") for each in (shuffled, own, one)]
    assert asked == [None, None, None]
    assert len(list(one.zip(other))) == len(pipe)
    asked = [vars(each).get("_is_child_datapipe") for each in (shuffled, own, one)]
    assert asked == [False, None, None]
    assert one._is_child_datapipe
