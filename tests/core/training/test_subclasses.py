"""Overridden methods of the loaders' subclasses are used, and get whole clips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchdata.nodes import Loader

import seqrecord
from seqrecord import (
    SeqRecordIterableDataset,
    SeqRecordMapDataset,
    SeqRecordMix,
    SeqRecordNode,
    SeqRecordPipe,
)
from tests.kit.clip_data import digest, digests, names

SETTINGS: dict[str, Any] = {"clip_len": 3, "features": ["id", "image"]}
Clip = dict[str, Any]


# ---- map datasets


class Marked(SeqRecordMapDataset):
    def __getitem__(self, number: int) -> Clip:
        return {**super().__getitem__(number), "mark": int(number)}


class Mark(Dataset[Clip]):
    """A base class before the dataset."""

    def __getitem__(self, number: int) -> Clip:
        return {**super().__getitem__(number), "mark": int(number)}


class Mixed(Mark, SeqRecordMapDataset):
    pass


class Both(Marked):
    """Marks a clip once for single and batched access."""

    asked = 0

    def __getitems__(self, numbers: Sequence[int]) -> list[Clip]:
        self.asked += 1
        found = SeqRecordMapDataset.__getitems__(self, numbers)
        assert not any("mark" in clip for clip in found)
        return [{**clip, "mark": int(n)} for n, clip in zip(numbers, found, strict=True)]


class Below(Marked):
    """Inherits the overridden method."""


class Twice(SeqRecordMapDataset):
    """Has each clip twice: unchanged, and marked."""

    def __len__(self) -> int:
        return 2 * super().__len__()

    def __getitem__(self, number: int) -> Clip:
        return {**super().__getitem__(number // 2), "mark": number % 2}


@pytest.mark.parametrize("kind", [Marked, Mixed, Both, Below])
def test_an_overridden_getitem_gives_the_clips_of_a_batch(path: Path, kind: Any) -> None:
    data, plain = kind(path, **SETTINGS), SeqRecordMapDataset(path, **SETTINGS)
    order = [5, 0, 11, 3, 7, 2]
    loaders: list[Any] = [
        DataLoader(data, batch_size=4, sampler=order, collate_fn=list),
        DataLoader(Subset(data, order), batch_size=4, collate_fn=list, num_workers=kind is Marked),
        DataLoader(ConcatDataset([data, plain]), batch_size=4, sampler=order, collate_fn=list),
    ]
    for loader in loaders:
        clips = [clip for batch in loader for clip in batch]
        assert [clip["mark"] for clip in clips] == order
        assert [digest(_unmarked(clip)) for clip in clips] == [digest(plain[n]) for n in order]
    batch, expected = (
        next(iter(DataLoader(each, batch_size=4, sampler=order, collate_fn=seqrecord.collate)))
        for each in (data, plain)
    )
    assert list(batch["mark"]) == order[:4]
    assert digest(_unmarked(batch)) == digest(expected)
    assert data.__getitems__([]) == []
    assert kind is not Both or data.asked > 0


def _unmarked(clip: Clip) -> Clip:
    return {name: value for name, value in clip.items() if name != "mark"}


def test_an_overridden_len_does_not_change_the_base_class(path: Path) -> None:
    data, plain = Twice(path, **SETTINGS), SeqRecordMapDataset(path, **SETTINGS)
    loader: Any = DataLoader(data, batch_size=6, collate_fn=list)
    clips = [clip for batch in loader for clip in batch]
    assert [clip["mark"] for clip in clips] == [0, 1] * len(plain)
    assert list(map(names, clips[::2])) == [names(plain[n]) for n in range(len(plain))]
    assert names(data[-1]) == names(plain[-1])
    with pytest.raises(IndexError, match=f"clip {len(plain)} of {len(plain)}"):
        data[2 * len(plain)]


# ---- streams


class StreamedAgain(SeqRecordIterableDataset):
    def __iter__(self) -> Iterator[Clip]:
        for clip in super().__iter__():
            yield _mark(clip)


class PipedAgain(SeqRecordPipe):
    """Not a generator function."""

    def __iter__(self) -> Iterator[Clip]:
        return map(_mark, super().__iter__())


class NodeAgain(SeqRecordNode):
    def next(self) -> Clip:
        return _mark(super().next())


class MixAgain(SeqRecordMix):
    def __iter__(self) -> Iterator[Clip]:
        for batch in super().__iter__():
            yield _mark(batch)


def _mark(clip: Clip) -> Clip:
    return {**clip, "mark": len(clip["id"])}


def consumers(data: Any) -> Iterator[Any]:
    """Consumers of a pipe or a stream."""
    yield (seqrecord.collate([clip]) for clip in data)
    yield DataLoader(data, batch_size=4, collate_fn=seqrecord.collate)
    yield DataLoader(data, batch_size=4, collate_fn=seqrecord.collate, num_workers=1)
    if isinstance(data, SeqRecordPipe):
        yield data.batch(4).collate(seqrecord.collate)
        yield data.shuffle(buffer_size=8).batch(4).collate(seqrecord.collate)
        batches = data.batch(4).collate(seqrecord.collate)
        yield DataLoader(batches, batch_size=None, num_workers=0, shuffle=False)


@pytest.mark.parametrize("kind", [StreamedAgain, pytest.param(PipedAgain, marks=pytest.mark.slow)])
def test_an_overridden_iter_gets_clips(path: Path, kind: Any) -> None:
    plain = SeqRecordMapDataset(path, **SETTINGS)
    number = {names(plain[n])[0]: n for n in range(len(plain))}
    for consumer in consumers(kind(path, **SETTINGS)):
        found = []
        for batch in consumer:
            assert list(batch["mark"]) == [3] * len(batch["start"])
            expected = seqrecord.collate([plain[number[name]] for name in names(batch)])
            assert digest(_unmarked(batch)) == digest(expected)
            found += names(batch)
        assert sorted(found) == sorted(number)


def test_an_overridden_next_gets_clips(path: Path) -> None:
    expected = digests(SeqRecordIterableDataset(path, **SETTINGS))
    loader: Any = Loader(NodeAgain(path, **SETTINGS))
    clips = list(loader)
    assert [clip["mark"] for clip in clips] == [3] * len(clips)
    assert [digest(_unmarked(clip)) for clip in clips] == expected


def test_a_mix_of_subclasses_and_its_own_subclass_get_clips(path: Path) -> None:
    def sources(kind: Any) -> dict[str, Any]:
        return {name: kind(path, **SETTINGS, shuffle=name == "one") for name in ("one", "two")}

    plain = SeqRecordMix(sources(SeqRecordIterableDataset), batch_size=4)
    again = MixAgain(sources(SeqRecordIterableDataset), batch_size=4)
    loader: Any = DataLoader(again, batch_size=None, num_workers=1)
    assert [batch["mark"] for batch in loader] == [4] * len(again)
    again.set_epoch(0)
    batches = list(again)
    assert [batch["mark"] for batch in batches] == [4] * len(again)
    assert [digest(_unmarked(batch)) for batch in batches] == digests(plain)
