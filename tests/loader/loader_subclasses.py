"""Subclasses of the loaders that override a method and mark each clip or batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset

import seqrecord
from seqrecord import SeqRecordMapDataset

Clip = dict[str, Any]


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


class StreamedAgain(seqrecord.SeqRecordIterableDataset):
    def __iter__(self) -> Iterator[Clip]:
        for clip in super().__iter__():
            yield _mark(clip)


class PipedAgain(seqrecord.SeqRecordPipe):
    """Not a generator function."""

    def __iter__(self) -> Iterator[Clip]:
        return map(_mark, super().__iter__())


class NodeAgain(seqrecord.SeqRecordNode):
    def next(self) -> Clip:
        return _mark(super().next())


class MixAgain(seqrecord.SeqRecordMix):
    def __iter__(self) -> Iterator[Clip]:
        for batch in super().__iter__():
            yield _mark(batch)


def _mark(clip: Clip) -> Clip:
    return {**clip, "mark": len(clip["id"])}
