"""Loaders with a state: the rows of docs/loaders.md, and torchdata's contracts.

Each row of the table has a test here, with the decorator `row`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata import nodes
from torchdata.nodes import BaseNode, Batcher, Loader, Mapper, ParallelMapper, Prefetcher
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordNode, SeqRecordPipe, StateError
from tests.kit.clip_data import all_names, begun, names, resumed
from tests.loader.resume_contract import check_node, check_stateful_loader

PAGE = Path(__file__).parents[2] / "docs" / "loaders.md"
SETTINGS: dict[str, Any] = {"clip_len": 3, "seed": 2, "features": ["id"]}
BATCHES: dict[str, Any] = {**SETTINGS, "batch_size": 4}
ROWS: dict[str, Callable[..., None]] = {}

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


def row(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register the test of the row with this first cell, without Markdown."""

    def add(test: Callable[..., None]) -> Callable[..., None]:
        assert name not in ROWS
        ROWS[name] = test
        return test

    return add


def test_every_row_has_a_test() -> None:
    text = PAGE.read_text()
    table = text[text.index("| your loader |") :].split("\n\n")[0]
    cells = [re.sub("[`*]", "", line.split("|")[1]).strip() for line in table.splitlines()[2:]]
    assert cells == list(ROWS)


def shapes(batch: Any) -> list[int]:
    return list(batch["id"].shape)


def run(loader: Any, epoch: int | None = None) -> list[Any]:
    """The clips of an epoch, which is set before in workers of a stream."""
    if epoch is not None:
        loader.dataset.set_epoch(epoch)
    return [names(batch) for batch in loader]


def needs_epochs(loader: Any) -> bool:
    """Whether the loader has workers with a dataset that needs `set_epoch`."""
    is_stream = isinstance(getattr(loader, "dataset", None), SeqRecordIterableDataset)
    return is_stream and bool(loader.num_workers)


def check_reshuffles(loader: Any) -> list[list[Any]]:
    """Run three epochs, each with every clip, in different orders."""
    epochs = [run(loader, epoch if needs_epochs(loader) else None) for epoch in range(3)]
    clips = [sorted(name for batch in epoch for name in batch) for epoch in epochs]
    assert len(set(clips[0])) == 67
    assert all(set(epoch) == set(clips[0]) for epoch in clips)
    assert len({repr(epoch) for epoch in epochs}) == 3
    return epochs


def check_resumes(make: Callable[[], Any], part: Callable[[Any], Any] = lambda one: one) -> None:
    """Resume in the second epoch: its remaining batches, and the third epoch.

    `part` returns the object that has the loader's state.
    """
    epochs = check_reshuffles(make())
    loader, again = make(), make()
    run(loader)
    if needs_epochs(loader):
        loader.dataset.set_epoch(1)
    begun(loader, 5)
    part(again).load_state_dict(part(loader).state_dict())
    assert run(again) == epochs[1][5:]
    assert run(again, 2 if needs_epochs(again) else None) == epochs[2]


@row("for batch in pipe")
def test_plain_loop(path: Path) -> None:
    assert shapes(next(iter(SeqRecordPipe(path, **BATCHES)))) == [4, 3, 2]
    check_resumes(lambda: SeqRecordPipe(path, **BATCHES))


@row("DataLoader, with or without workers")
def test_loader_without_workers(path: Path) -> None:
    def make() -> Any:
        return DataLoader(SeqRecordPipe(path, **BATCHES), batch_size=None)

    assert shapes(next(iter(make()))) == [4, 3, 2]
    check_resumes(make, pipe_of)


def pipe_of(loader: Any) -> Any:
    """The pipe that the user passed to the loader."""
    return loader.dataset._datapipe


def test_loader_with_workers(path: Path) -> None:
    for kind in (SeqRecordPipe, SeqRecordIterableDataset):
        data: Any = kind(path, **BATCHES)
        loader = DataLoader(data, batch_size=None, num_workers=2)
        assert shapes(next(iter(loader))) == [4, 3, 2]
        epochs = check_reshuffles(loader)
        with pytest.raises(StateError, match="StatefulDataLoader"):
            data.state_dict()
        number = 1 if kind is SeqRecordIterableDataset else 2  # the first was for the shapes
        data.set_epoch(number, batches=5)
        assert run(loader) == epochs[1][5:]
        fewer = resumed(kind(path, **BATCHES), data.state_dict(batches=9))
        rest = run(DataLoader(fewer, batch_size=None, num_workers=1))
        delivered = {name for batch in epochs[1][:9] + rest for name in batch}
        assert delivered == {name for batch in epochs[1] for name in batch}


@row("DataLoader with batch_size=4")
def test_loader_of_single_clips(path: Path) -> None:
    options: dict[str, Any] = {"batch_size": 4, "collate_fn": seqrecord.collate}

    def make() -> Any:
        return DataLoader(SeqRecordPipe(path, **SETTINGS), **options)

    loader, again = make(), make()
    assert shapes(next(iter(make()))) == [4, 3, 2]
    whole = check_reshuffles(make())[0]
    clips = seqrecord.SeqRecordMapDataset(path, clip_len=3, features=["id"])
    check_reshuffles(DataLoader(clips, shuffle=True, **options))
    iterator = iter(loader)
    seen = [name for _ in range(5) for name in names(next(iterator))]
    pipe_of(again).load_state_dict(pipe_of(loader).state_dict())
    rest = all_names(again)
    assert len(seen) == 20
    assert sorted(seen + rest) == sorted(name for batch in whole for name in batch)
    stream = SeqRecordIterableDataset(path, **SETTINGS)
    loader = DataLoader(stream, num_workers=2, **options)
    first = run(loader)
    stream.set_epoch(0, batches=5, batch_size=4)
    assert run(loader) == first[5:]


# The row above has workers; test_worker_epochs.py has StatefulDataLoader's workers.
WITH_WORKERS = pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])


# torchdata's iterator with workers reads attributes in `__del__` that a failed `__init__` lacks.
@row("StatefulDataLoader")
@WITH_WORKERS
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_stateful_loader(path: Path, workers: int) -> None:
    def make() -> Any:
        stream = SeqRecordIterableDataset(path, **BATCHES)
        return StatefulDataLoader(stream, batch_size=None, num_workers=workers)

    assert shapes(next(iter(make()))) == [4, 3, 2]
    check_resumes(make)
    data = SeqRecordPipe(path, **BATCHES)
    pipe: Any = StatefulDataLoader(data, batch_size=None, num_workers=workers)
    for use in (iter, StatefulDataLoader.state_dict):
        with pytest.raises(ClipError, match=r"StatefulDataLoader\(SeqRecordIterableDataset\(…\)\)"):
            use(pipe)
    assert len(run(DataLoader(data, batch_size=None, num_workers=workers))) == len(pipe)
    assert data.state_dict(batches=0)["epoch"] == 0  # the refused iterations have begun none


@row("torchdata.nodes.Loader")
@pytest.mark.parametrize("batcher", [False, True])
def test_nodes(path: Path, batcher: bool) -> None:
    def make() -> Any:
        if batcher:
            return Each(Loader(Batcher(SeqRecordNode(path, **SETTINGS), 4, drop_last=False)))
        return Loader(SeqRecordNode(path, **BATCHES))

    check_resumes(make)


class Each:
    """Converts a Batcher's lists of clips to dicts of lists."""

    def __init__(self, loader: Loader[Any]) -> None:
        self.loader = loader
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self) -> Any:
        for clips in self.loader:
            starts = torch.tensor([clip["start"] for clip in clips])
            yield {"episode": [clip["episode"] for clip in clips], "start": starts}


def mapped(clip: dict[str, Any]) -> dict[str, Any]:
    return {**clip, "id": clip["id"] + 1}


@row("pipe.map(…)")
def test_chains(path: Path) -> None:
    whole: Any = SeqRecordPipe(path, **SETTINGS)
    chain = whole.shuffle(buffer_size=20).sharding_filter().map(mapped).batch(4)
    chain = chain.collate(seqrecord.collate)
    assert shapes(next(iter(chain))) == [4, 3, 2]
    check_reshuffles(chain)

    pipe: Any = SeqRecordPipe(path, **BATCHES)
    epochs = check_reshuffles(pipe.map(mapped))
    pipe.set_epoch(1)
    begun(pipe.map(mapped), 5)
    again: Any = resumed(SeqRecordPipe(path, **BATCHES), pipe.state_dict())
    assert run(again.map(mapped)) == epochs[1][5:]

    for buffering in (again.shuffle(), again.shuffle(buffer_size=2).map(mapped)):
        next(iter(buffering))
        with pytest.raises(StateError, match=r"Shuffler.*\.map\(\)"):
            again.state_dict()
    again.set_epoch(2)
    assert again.state_dict()["epoch"] == 2
    half = again.sharding_filter()  # has no effect: ranks and workers have shards of their own
    half.apply_sharding(2, 0)
    assert len(list(half.map(mapped).batch(1))) == len(again)
    assert again.state_dict()["epoch"] == 3

    with pytest.raises(AttributeError, match="state_dict"):
        pipe.map(mapped).state_dict()
    with pytest.raises(ClipError, match="SeqRecordIterableDataset"):
        iter(StatefulDataLoader(pipe.map(mapped), batch_size=None))


@row("Lightning's Trainer")
@pytest.mark.filterwarnings("ignore")
@WITH_WORKERS
@pytest.mark.parametrize("is_stateful", [False, True])
def test_lightning(path: Path, tmp_path: Path, workers: int, is_stateful: bool) -> None:
    lightning = pytest.importorskip("pytorch_lightning")

    class Model(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self, save_at: int = -1) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.seen: list[Any] = []
            self.save_at = save_at
            self.begin = 0, 0

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-9)

        def training_step(self, batch: dict[str, Any]) -> torch.Tensor:
            self.seen.append(names(batch))
            loss: torch.Tensor = self.layer(batch["id"].float()).sum()
            return loss

        def train_dataloader(self) -> Any:
            self.stream = SeqRecordIterableDataset(path, **BATCHES)
            if is_stateful:
                return StatefulDataLoader(self.stream, batch_size=None, num_workers=workers)
            self.stream.set_epoch(*self.begin)
            return DataLoader(self.stream, batch_size=None, num_workers=workers)

        def on_train_epoch_end(self) -> None:
            self.stream.set_epoch(self.current_epoch + 1)

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["begin"] = self.trainer.current_epoch, len(self.seen) % count

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.begin = checkpoint["begin"]

        def on_train_batch_end(self, *_: Any) -> None:
            if len(self.seen) == self.save_at:
                self.trainer.save_checkpoint(tmp_path / "saved.ckpt")

    def fit(model: Model, **options: Any) -> list[Any]:
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=3,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model, **options)
        return model.seen

    stream = SeqRecordIterableDataset(path, **BATCHES)
    epochs = check_reshuffles(StatefulDataLoader(stream, batch_size=None, num_workers=workers))
    count = len(epochs[0])
    assert fit(Model(save_at=count + 5)) == epochs[0] + epochs[1] + epochs[2]
    resumed = fit(Model(), ckpt_path=tmp_path / "saved.ckpt", weights_only=False)
    assert resumed == epochs[1][5:] + epochs[2]


@row("Accelerate")
@pytest.mark.filterwarnings("ignore")
@WITH_WORKERS
def test_accelerate(path: Path, tmp_path: Path, workers: int) -> None:
    accelerate = pytest.importorskip("accelerate")
    from accelerate.utils import DataLoaderConfiguration

    def prepared(stateful: bool = True, **position: int) -> tuple[Any, Any]:
        configuration = DataLoaderConfiguration(
            use_stateful_dataloader=stateful, dispatch_batches=False
        )
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=configuration)
        stream = SeqRecordIterableDataset(path, **BATCHES, rank=(0, 1))
        if position:  # before `prepare`, in which a StatefulDataLoader starts workers
            stream.set_epoch(**position)
        loader = DataLoader(stream, batch_size=None, num_workers=workers)
        return accelerator, accelerator.prepare(loader)

    accelerator, loader = prepared()
    epochs = check_reshuffles(loader)
    accelerator.free_memory()
    accelerator, loader = prepared()
    run(loader)
    for number, batch in enumerate(loader):
        assert names(batch) == epochs[1][number]
        if number == 4:
            accelerator.save_state(str(tmp_path / "state"))
            break
    accelerator.free_memory()
    accelerator, loader = prepared()
    accelerator.load_state(str(tmp_path / "state"))
    for epoch in (1, 2):
        loader.set_epoch(epoch)
        assert run(loader) == epochs[epoch][5 if epoch == 1 else 0 :]
    accelerator.free_memory()
    # Resume from two integers without a state: Accelerate counts epochs from 0 after a restart.
    for stateful in (False, True):
        accelerator, loader = prepared(stateful, epoch=1, batches=5)
        loader.set_epoch(1)
        assert run(loader) == epochs[1][5:]
        assert run(loader) == epochs[2]
        accelerator.free_memory()


CLIPS: dict[str, Any] = {"clip_len": 3, "stride": 3, "seed": 2, "features": ["id"]}


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


def named() -> Iterator[Any]:
    for name in NODES:
        is_repeated = name in ("Mapper", "Prefetcher", "ParallelMapper")  # covered by "all"
        yield pytest.param(name, marks=pytest.mark.slow if is_repeated else ())


@pytest.mark.parametrize("name", list(named()))
def test_nodes_of_torchdata(path: Path, name: str) -> None:
    if name == "Unbatcher" and not hasattr(nodes, name):
        pytest.skip("new in torchdata 0.11")
    check_node(NODES[name](SeqRecordNode(path, **CLIPS)), 5)
    if name == "alone":
        check_node(SeqRecordNode(path, **CLIPS, batch_size=4), 3)


@pytest.mark.parametrize(
    ("workers", "persistent"), [(0, False), pytest.param(2, True, marks=pytest.mark.slow)]
)
def test_stateful_loader_contract(path: Path, workers: int, persistent: bool) -> None:
    def make(**options: int) -> StatefulDataLoader[Any]:
        stream = SeqRecordIterableDataset(path, **CLIPS, batch_size=4)
        options |= {"num_workers": workers, "persistent_workers": persistent}
        return StatefulDataLoader(stream, batch_size=None, **options)

    check_stateful_loader(make)
