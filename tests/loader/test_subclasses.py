"""Overridden methods of the loaders' subclasses are used, and get whole clips."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchdata.nodes import Loader

import seqrecord
from seqrecord import SeqRecordIterableDataset, SeqRecordMapDataset
from tests.kit.clip_data import digest, digests, names
from tests.loader.loader_subclasses import (
    Below,
    Both,
    Clip,
    Marked,
    MixAgain,
    Mixed,
    NodeAgain,
    PipedAgain,
    StreamedAgain,
    Twice,
)

SETTINGS: dict[str, Any] = {"clip_len": 3, "features": ["id", "image"]}


# ---- map datasets


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


@pytest.mark.parametrize("kind", [StreamedAgain, pytest.param(PipedAgain, marks=pytest.mark.slow)])
def test_an_overridden_iter_gets_clips(path: Path, kind: Any) -> None:
    plain = SeqRecordMapDataset(path, **SETTINGS)
    number = {names(plain[n])[0]: n for n in range(len(plain))}
    data = kind(path, **SETTINGS)
    consumers: list[Callable[[], Any]] = [
        lambda: (seqrecord.collate([clip]) for clip in data),
        lambda: DataLoader(data, batch_size=4, collate_fn=seqrecord.collate),
        lambda: DataLoader(data, batch_size=4, collate_fn=seqrecord.collate, num_workers=1),
    ]
    if isinstance(data, seqrecord.SeqRecordPipe):
        consumers += [
            lambda: data.batch(4).collate(seqrecord.collate),
            lambda: data.shuffle(buffer_size=8).batch(4).collate(seqrecord.collate),
            lambda: DataLoader(data.batch(4).collate(seqrecord.collate), None, shuffle=False),
        ]
    for make in consumers:
        found = []
        for batch in make():
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

    plain = seqrecord.SeqRecordMix(sources(SeqRecordIterableDataset), batch_size=4)
    again = MixAgain(sources(SeqRecordIterableDataset), batch_size=4)
    loader: Any = DataLoader(again, batch_size=None, num_workers=1)
    assert [batch["mark"] for batch in loader] == [4] * len(again)
    again.set_epoch(0)
    batches = list(again)
    assert [batch["mark"] for batch in batches] == [4] * len(again)
    assert [digest(_unmarked(batch)) for batch in batches] == digests(plain)
