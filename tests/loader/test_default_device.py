"""`torch.set_default_device` affects the user's tensors only: loaders return host tensors."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import seqrecord
from seqrecord import SeqRecordIterableDataset, SeqRecordPipe
from seqrecord.samples import dilate, reverse
from tests.kit.clip_data import digest

PACKAGE = Path(__file__).parents[2] / "seqrecord"
CLIPS: dict[str, Any] = {"clip_len": 3, "pad": "edge", "metadata": ["number"]}


@pytest.fixture
def on_meta() -> Iterator[Callable[[], None]]:
    """Sets a default device without data."""
    yield lambda: torch.set_default_device("meta")
    torch.set_default_device(None)


def by_index(path: Path, **more: Any) -> Any:
    dataset = seqrecord.SeqRecordMapDataset(path, **CLIPS, **more)
    several = [range(i, i + 4) for i in range(0, 20, 4)]
    return (seqrecord.collate(dataset.__getitems__(numbers)) for numbers in several)


def mixed(path: Path) -> Any:
    few = SeqRecordIterableDataset(
        path, **{**CLIPS, "metadata": None}, features=["id"], samples=dilate(1, 2)
    )
    many = SeqRecordIterableDataset(path, **CLIPS, features=["id", "image"])
    return seqrecord.SeqRecordMix({"few": few, "many": many}, batch_size=4)


LOADERS: dict[str, Callable[[Path], Any]] = {
    "single clips": lambda path: SeqRecordPipe(path, **CLIPS),
    "node": lambda path: seqrecord.SeqRecordNode(path, **CLIPS, batch_size=4),
    "sequences": lambda path: SeqRecordIterableDataset(
        path, **CLIPS, batch_size=2, order="sequences"
    ),
    "ragged": lambda path: SeqRecordPipe(path, **CLIPS, ragged="nested", batch_size=4),
    "chain": lambda path: (
        SeqRecordPipe(path, **CLIPS).shuffle().set_seed(1).batch(4).collate(seqrecord.collate)
    ),
    "crops": lambda path: by_index(path, clip_transform=seqrecord.CenterCrop((4, 5))),
    "steps": lambda path: by_index(path, samples=reverse(0.5)),
    "mix": mixed,
    "device argument": lambda path: SeqRecordPipe(path, **CLIPS, batch_size=4, device="cpu"),
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
def test_every_loader(path: Path, make: Callable[[Path], Any], on_meta: Callable[[], None]) -> None:
    def found() -> list[Any]:
        torch.manual_seed(1)  # map datasets draw from torch's own generator
        return [digest({n: flat(value) for n, value in batch.items()}) for batch in make(path)]

    expected = found()
    on_meta()
    assert torch.zeros(1).is_meta
    assert found() == expected


def flat(value: Any) -> Any:
    """Values and offsets of a nested tensor; other values unchanged."""
    if getattr(value, "is_nested", False):
        return [value.values(), value.offsets()]
    return value


def test_collate_returns_numbers(on_meta: Callable[[], None]) -> None:
    on_meta()
    batch = seqrecord.collate([{"start": i, "time": i / 2, "is_last": i == 1} for i in range(2)])
    found = {name: value.tolist() for name, value in batch.items()}
    assert found == {"start": [0, 1], "time": [0, 0.5], "is_last": [False, True]}


FACTORIES = re.compile(
    r"torch\.(nested\.)?(arange|as_tensor|asarray|empty(_permuted|_strided)?|eye|full|linspace|"
    r"logspace|nested_tensor|ones|rand(int|n|perm)?|range|scalar_tensor|tensor|tri[lu]_indices|zeros)"
)


def test_every_tensor_factory_call_has_a_device() -> None:
    texts = {file: file.read_text() for file in PACKAGE.rglob("*.py")}
    for file in (file for file, text in texts.items() if FACTORIES.search(text)):
        for node in ast.walk(ast.parse(texts[file])):
            if isinstance(node, ast.Call) and FACTORIES.fullmatch(ast.unparse(node.func)):
                assert "device" in [w.arg for w in node.keywords], (file, ast.unparse(node))
