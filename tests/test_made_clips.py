"""Clips that nobody but `seqrecord.collate` sees: who finds that out, and the batches they make."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterDataPipe

import seqrecord
from seqrecord import ClipError, SeqRecordPipe, SeqRecordStream
from seqrecord.pipes.callers import find_chain
from seqrecord.pipes.collated import Collated, find_collated
from tests.clip_data import digest, names, write_numbered

CLIPS: dict[str, Any] = {"clip_len": 3, "seed": 1, "features": ["image", "id"]}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_numbered(tmp_path_factory.mktemp("made") / "records")


def address(batch: dict[str, Any]) -> int:
    return int(batch["image"].untyped_storage().data_ptr())


def seen(clips: Any) -> Any:
    """`seqrecord.collate` under another name, so that clips are dicts."""
    assert all(isinstance(clip, dict) for clip in clips)
    return seqrecord.collate(clips)


# ---- who takes the clips


class Numbers(IterDataPipe[Any]):
    """Clips of one number, and who takes them, as far as is known when the iteration begins."""

    found: Any = "nothing"

    def __iter__(self) -> Iterator[Any]:
        self.found = find_collated(self, find_chain())
        return iter([{"number": i} for i in range(9)])


def sharded(pipe: Any) -> Any:
    filtered = pipe.sharding_filter()
    filtered.apply_sharding(2, 0)
    return filtered


def same(item: Any) -> Any:
    return item


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda pipe: pipe.batch(4), Collated(4)),
        (lambda pipe: pipe.shuffle().set_shuffle(False).sharding_filter().batch(2), Collated(2)),
        (lambda pipe: pipe.shuffle().sharding_filter().batch(4), Collated(None)),
        (lambda pipe: sharded(pipe).batch(4), Collated(None)),
        (lambda pipe: pipe.map(same).batch(4), None),
        (lambda pipe: pipe.filter(bool).batch(4), None),
        (lambda pipe: pipe.batch(4).map(same), None),
        (lambda pipe: pipe.batch(2).unbatch().batch(4), None),
        (lambda pipe: pipe.fork(2)[0].batch(4), None),
    ],
)
def test_chains(change: Any, expected: Any) -> None:
    numbers: Any = Numbers()
    batches = list(change(numbers).collate(seqrecord.collate))
    assert sum(len(batch["number"]) for batch in batches) in (9, 5)
    assert numbers.found == expected
    others = [change(numbers), change(numbers).collate(seen), change(numbers).map(same)]
    for other in others:
        next(iter(other))
        assert numbers.found is None
    # Whoever asks for clips in a loop around them sees nothing of it.
    next(iter(numbers))
    assert numbers.found is None


def test_loaders() -> None:
    numbers: Any = Numbers()
    found = []
    for options in (
        {"batch_size": 4, "collate_fn": seqrecord.collate},
        {"batch_size": 4, "collate_fn": seen},
        {"batch_size": None, "collate_fn": same},
    ):
        next(iter(DataLoader(numbers, **options)))
        found.append(numbers.found)
    next(iter(DataLoader(numbers.map(same), batch_size=4, collate_fn=seqrecord.collate)))
    assert [*found, numbers.found] == [Collated(4), None, None, None]


# ---- what they make


MORE: dict[str, dict[str, Any]] = {
    "plain": {},
    "in order": {"shuffle": False},
    "said": {
        "metadata": ["number"],
        "pad": "edge",
        "dilation": (1, 2),
        "reverse": 0.5,
        "clip_transform": seqrecord.RandomCrop((4, 5)),
    },
    "frames": {"clip_len": None, "windows": {"image": [0], "id": range(3)}},
}


@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
@pytest.mark.parametrize("size", [4, 50])
def test_batches_are_those_of_clips_that_others_see(
    path: Path, more: dict[str, Any], size: int
) -> None:
    def chain(collate: Any) -> Any:
        pipe: Any = SeqRecordPipe(path, **{**CLIPS, **more})
        return pipe.batch(size).collate(collate)

    def shuffled(collate: Any) -> Any:
        pipe: Any = SeqRecordPipe(path, **{**CLIPS, **more})
        return pipe.shuffle(buffer_size=20).set_seed(5).batch(size).collate(collate)

    def loader(collate: Any) -> Any:
        stream = SeqRecordStream(path, **{**CLIPS, **more})
        return DataLoader(stream, batch_size=size, collate_fn=collate)

    for make in (chain, shuffled, loader):
        batches, expected = list(make(seqrecord.collate)), list(make(seen))
        assert [list(batch) for batch in batches] == [list(batch) for batch in expected]
        assert [digest(batch) for batch in batches] == [digest(batch) for batch in expected]
        types = [{n: (type(v), getattr(v, "dtype", 0)) for n, v in b.items()} for b in batches]
        assert types == [
            {n: (type(v), getattr(v, "dtype", 0)) for n, v in b.items()} for b in expected
        ]


@pytest.mark.parametrize("size", [4, 20, 40])
def test_batches_in_order_are_not_copied(path: Path, size: int) -> None:
    """Not even those whose size does not divide how many clips are made at once otherwise."""
    pipe: Any = SeqRecordPipe(path, **CLIPS)
    options: dict[str, Any] = {"batch_size": size, "collate_fn": seqrecord.collate}
    for made in (
        pipe.batch(size).collate(seqrecord.collate),
        DataLoader(pipe, **options),
        DataLoader(SeqRecordStream(path, **CLIPS), **options),
    ):
        batches = list(made)
        begins = [batch["image"].data_ptr() for batch in batches]
        nbytes = batches[0]["image"].nbytes
        # Up to 32 batches lie side by side, and to save one is not to save all.
        assert all(begin == begins[i - i % 32] + i % 32 * nbytes for i, begin in enumerate(begins))
        assert {batch["image"].untyped_storage().nbytes() for batch in batches[:-1]} == {nbytes}


def test_shuffled_batches_are_in_memory_that_is_used_again(path: Path) -> None:
    pipe: Any = SeqRecordPipe(path, **CLIPS)
    chain = pipe.shuffle(buffer_size=30).batch(4).collate(seqrecord.collate)
    addresses = []
    for _ in range(5):
        for batch in chain:
            addresses.append(address(batch))
            del batch
    assert len(set(addresses)) <= 2 / 5 * len(addresses)


@pytest.mark.parametrize("count", [1, 8, 9])
def test_a_state_counts_the_clips_of_batches(path: Path, count: int) -> None:
    expected = [name for clip in SeqRecordPipe(path, **CLIPS) for name in names(clip)]
    pipe: Any = SeqRecordPipe(path, **CLIPS)
    batches = iter(pipe.batch(4).collate(seqrecord.collate))
    found = [name for batch in islice(batches, count) for name in names(batch)]
    assert found == expected[: 4 * count]
    assert pipe.stats()["clips"] == 4 * count
    other = SeqRecordPipe(path, **CLIPS)
    other.load_state_dict(pickle.loads(pickle.dumps(pipe)).state_dict())
    assert found + [name for clip in other for name in names(clip)] == expected


def test_a_chain_that_is_pickled_while_it_runs(path: Path) -> None:
    pipe: Any = SeqRecordPipe(path, **CLIPS)
    chain = pipe.shuffle(buffer_size=20).batch(4).collate(seqrecord.collate)
    next(iter(chain))
    copy = pickle.loads(pickle.dumps(chain))
    found = [name for batch in copy for name in names(batch)]
    assert sorted(found) == sorted(name for clip in pipe for name in names(clip))


def test_a_new_iteration_ends_the_old_one_at_once(path: Path) -> None:
    stream = SeqRecordStream(path, **CLIPS)
    loader = DataLoader(stream, batch_size=4, collate_fn=seqrecord.collate)
    first = iter(loader)
    next(first)
    iter(stream)
    with pytest.raises(ClipError, match="was ended"):
        next(first)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_gives_none_of_the_clips_at_hand(path: Path) -> None:
    clips = iter(SeqRecordPipe(path, **CLIPS))
    next(clips)
    child = os.fork()
    if child == 0:
        try:
            next(clips)
        except ClipError as error:
            os._exit(7 if "forked process" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert len(list(clips)) == len(SeqRecordPipe(path, **CLIPS)) - 1


def test_what_only_looks_like_a_row() -> None:
    for clips in ([(1, 2)], [()], [(torch.zeros(1), 0)]):
        with pytest.raises(ClipError, match="nothing to collate"):
            seqrecord.collate(clips)  # type: ignore[arg-type]
