"""What torchdata asks of those that have a state, asked of each of our loaders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torchdata import nodes
from torchdata.nodes import BaseNode, Batcher, Mapper, ParallelMapper, Prefetcher
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import SeqRecordIterableDataset, SeqRecordNode, SeqRecordPipe
from tests.resume_contract import Resumable, check_node, check_resume, check_stateful_loader

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
SETTINGS: dict[str, Any] = {"clip_len": 3, "stride": 3, "seed": 2, "features": ["id"]}


def started(clip: dict[str, Any]) -> dict[str, Any]:
    return {"id": clip["id"], "start": clip["start"]}


NODES: dict[str, Callable[[SeqRecordNode], BaseNode[Any]]] = {
    "alone": lambda node: node,
    "Batcher": lambda node: Batcher(node, 3, drop_last=False),
    "Batcher that drops": lambda node: Batcher(node, 4),
    "Unbatcher": lambda node: nodes.Unbatcher(Batcher(node, 3, drop_last=False)),
    "Mapper": lambda node: Mapper(node, started),
    "Prefetcher": lambda node: Prefetcher(node, 2),
    "Prefetcher that saves now and then": lambda node: Prefetcher(node, 4, snapshot_frequency=3),
    "ParallelMapper": lambda node: ParallelMapper(node, started, 2, method="thread"),
    "all": lambda node: Prefetcher(
        ParallelMapper(Mapper(node, started), started, 2, method="thread"), 2
    ),
}


def names() -> Iterator[Any]:
    for name in NODES:
        is_repeated = name in ("Mapper", "Prefetcher", "ParallelMapper")  # in "all"
        yield pytest.param(name, marks=pytest.mark.slow if is_repeated else ())


@pytest.mark.parametrize("name", list(names()))
def test_nodes(path: Path, name: str) -> None:
    if name == "Unbatcher" and not hasattr(nodes, name):
        pytest.skip("torchdata 0.11 has it")
    check_node(NODES[name](SeqRecordNode(path, **SETTINGS)), 5)
    if name == "alone":
        check_node(SeqRecordNode(path, **SETTINGS, batch_size=4), 3)


@pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), pytest.param(2, True, marks=pytest.mark.slow)]
)
def test_stateful_loader(path: Path, workers: int, persistent: bool) -> None:
    def make(**options: int) -> StatefulDataLoader[Any]:
        stream = SeqRecordIterableDataset(path, **SETTINGS, batch_size=4)
        options |= {"num_workers": workers, "persistent_workers": persistent}
        return StatefulDataLoader(stream, batch_size=None, **options)

    check_stateful_loader(make)


@pytest.mark.parametrize("kind", [SeqRecordPipe, SeqRecordIterableDataset])
def test_loaders_themselves(path: Path, kind: type[Any]) -> None:
    def make() -> Resumable:
        loader: Resumable = kind(path, **SETTINGS, batch_size=4)
        return loader

    check_resume(make)
    loader: Any = make()
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = len(list(iterator))
    loader.load_state_dict(state)
    assert loader.state_dict() == state  # also before an iteration
    assert len(list(loader)) == rest


class Direct:
    """A node that is used without a Loader."""

    def __init__(self, node: SeqRecordNode) -> None:
        self.node = node
        self.saved: dict[str, Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        self.node.reset(self.saved)
        self.saved = None
        yield from self.node

    def state_dict(self) -> dict[str, Any]:
        return self.node.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self.saved = state_dict


def test_a_node_without_a_loader(path: Path) -> None:
    check_resume(lambda: Direct(SeqRecordNode(path, **SETTINGS, batch_size=4)))
