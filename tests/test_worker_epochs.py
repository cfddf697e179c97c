"""Epochs in a DataLoader's worker processes: which one it is, and who knows of it."""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
import os
import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import SeqRecordPipe, SeqRecordStream, StateError
from seqrecord.pipes.worker_epochs import EpochCounter
from tests.clip_data import digest, leaves_nothing, names
from tests.resume_contract import check_resume

pytestmark = [
    pytest.mark.timeout(
        300
    ),  # each spawned worker imports torch, which takes long on a busy machine
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
SETTINGS: dict[str, Any] = {"clip_len": 3, "shuffle_buffer": 16, "seed": 2, "batch_size": 4}


def stream(path: Path, **changes: Any) -> SeqRecordStream:
    return SeqRecordStream(path, **{**SETTINGS, "features": ["id"], **changes})


def planned(path: Path, epoch: int, workers: int, **changes: Any) -> list[Any]:
    """The batches of an epoch as a DataLoader gives them, each of its workers in turn."""
    parts = []
    for worker in range(workers):
        alone = stream(path, **changes, rank=worker, world_size=workers)
        alone.set_epoch(epoch)
        parts.append([names(batch) for batch in alone])
    return [batch for turn in zip_longest(*parts) for batch in turn if batch]


def run(loader: Any) -> list[Any]:
    return [names(batch) for batch in loader]


def starts() -> Iterator[Any]:
    """How workers start and whether they persist, under which loader, and for so many epochs."""
    quick = [(DataLoader, "fork", True), (StatefulDataLoader, "fork", False)]
    for case in itertools.product(
        (DataLoader, StatefulDataLoader), ("fork", "forkserver", "spawn"), (False, True)
    ):
        if case[1] == "spawn" and case[2] != (case[0] is DataLoader):
            continue  # each start of a worker imports torch
        marks = () if case in quick else pytest.mark.slow
        yield pytest.param(*case, 3 if case[1] == "fork" else 2, marks=marks)


@pytest.mark.parametrize(("loader_of", "start", "persistent", "num_epochs"), list(starts()))
def test_epochs_of_workers_are_those_of_the_plan(
    path: Path, loader_of: Any, start: str, persistent: bool, num_epochs: int
) -> None:
    expected = [planned(path, epoch, 2) for epoch in range(num_epochs)]
    gc.collect()
    with leaves_nothing() if start == "fork" else nullcontext():
        loader = loader_of(
            stream(path),
            batch_size=None,
            num_workers=2,
            persistent_workers=persistent,
            multiprocessing_context=start,
        )
        assert [run(loader) for _ in range(num_epochs)] == expected
        del loader
    assert expected[0] != expected[1]


def test_epochs_of_workers_of_a_forkserver(path: Path) -> None:
    """As Python 3.14 starts them."""
    loader = StatefulDataLoader(
        stream(path), batch_size=None, num_workers=1, multiprocessing_context="forkserver"
    )
    assert [run(loader) for _ in range(2)] == [planned(path, epoch, 1) for epoch in range(2)]


@pytest.mark.parametrize("reseed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_equal_seeds_are_not_taken_for_one_epoch(path: Path, reseed: bool) -> None:
    data = stream(path)
    for epoch in range(3):
        if reseed:
            torch.manual_seed(0)
        generator = None if reseed else torch.Generator().manual_seed(7)
        loader = DataLoader(data, batch_size=None, num_workers=2, generator=generator)
        assert run(loader) == planned(path, epoch, 2)


def test_an_epoch_left_early_in_workers_is_over(path: Path) -> None:
    loader = StatefulDataLoader(stream(path), batch_size=None, num_workers=2)
    for batch in loader:
        assert names(batch) == planned(path, 0, 2)[0]
        break
    assert run(loader) == planned(path, 1, 2)


@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.slow), True])
def test_set_epoch_reaches_workers(path: Path, persistent: bool) -> None:
    data = stream(path)
    loader = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=persistent)
    for epoch in (4, 5, 1, 1):
        data.set_epoch(epoch)
        assert run(loader) == planned(path, epoch, 2)
    assert run(loader) == planned(path, 2, 2)
    assert run(data) == planned(path, 3, 1)  # … and without workers
    assert run(loader) == planned(path, 4, 2)


def _set_epoch(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    assert info.id == worker
    assert isinstance(info.dataset, SeqRecordStream)
    info.dataset.set_epoch(5)


def test_workers_may_set_the_epoch(path: Path) -> None:
    data = stream(path)
    loader = DataLoader(data, batch_size=None, num_workers=2, worker_init_fn=_set_epoch)
    assert run(loader) == planned(path, 5, 2) == run(loader)
    assert run(DataLoader(data, batch_size=None, num_workers=2)) == planned(path, 6, 2)


def test_a_new_number_of_workers_goes_on_with_the_next_epoch(path: Path) -> None:
    data = stream(path)
    for epoch, workers in enumerate((2, 3, 1)):
        loader = DataLoader(data, batch_size=None, num_workers=workers)
        assert run(loader) == planned(path, epoch, workers)


class Wrapped(IterableDataset[Any]):
    """What users write."""

    def __init__(self, data: SeqRecordStream) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        yield from self.data


def test_a_stream_inside_another_dataset(path: Path) -> None:
    loader = DataLoader(Wrapped(stream(path)), batch_size=None, num_workers=2)
    assert [run(loader) for _ in range(2)] == [planned(path, epoch, 2) for epoch in range(2)]


def test_copies_go_their_own_way(path: Path) -> None:
    data = stream(path)
    loader = DataLoader(data, batch_size=None, num_workers=1)
    run(loader)
    for other in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert run(other) == planned(path, 1, 1)
        assert run(DataLoader(other, batch_size=None, num_workers=2)) == planned(path, 2, 2)
    assert run(loader) == planned(path, 1, 1)


def _rank(data: SeqRecordStream, rank: int, queue: Any) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    # Else each rank of a fork server would start one of its own, which imports torch.
    loader = DataLoader(data, batch_size=None, num_workers=1 + rank, multiprocessing_context="fork")
    queue.put((rank, [run(loader) for _ in range(2 + rank)]))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_ranks_that_were_sent_one_stream_count_alone(path: Path, method: str) -> None:
    data = stream(path)
    assert run(DataLoader(data, batch_size=None, num_workers=1)) == planned(path, 0, 1)
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    ranks = [context.Process(target=_rank, args=(data, rank, queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = dict(queue.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(60)
    for rank, epochs in found.items():
        for number, epoch in enumerate(epochs):
            parts = []
            for worker in range(1 + rank):
                part = rank * (1 + rank) + worker
                alone = stream(path, rank=part, world_size=2 * (1 + rank))
                alone.set_epoch(1 + number)
                parts.append([names(batch) for batch in alone])
            assert epoch == [b for turn in zip_longest(*parts) for b in turn if b]


# ---- resuming


@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.slow), True])
def test_resuming_with_workers(path: Path, persistent: bool, thorough: bool) -> None:
    check_resume(
        lambda: StatefulDataLoader(
            stream(path), batch_size=None, num_workers=2, persistent_workers=persistent
        ),
        num_epochs=3 if thorough else 2,
        positions=lambda n: [n // 2, n - 1] if thorough else [n // 2],
    )


@pytest.mark.slow
def test_resuming_with_workers_that_are_not_forked(path: Path) -> None:
    def make() -> StatefulDataLoader[Any]:
        return StatefulDataLoader(
            stream(path), batch_size=None, num_workers=2, multiprocessing_context="forkserver"
        )

    loader = make()
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    again = make()
    again.load_state_dict(loader.state_dict())
    assert run(again) == planned(path, 0, 2)[3:]
    assert run(again) == planned(path, 1, 2)


def test_resuming_with_set_epoch(path: Path, thorough: bool) -> None:
    with leaves_nothing():
        check_resume(
            lambda: StatefulDataLoader(stream(path), batch_size=None, num_workers=2),
            num_epochs=3 if thorough else 2,
            positions=lambda n: [n // 2, n - 1] if thorough else [],
            set_epoch=lambda loader, epoch: loader.dataset.set_epoch(epoch),  # type: ignore[attr-defined]
        )


def test_a_rank_takes_up_the_state_of_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning saves the first rank's for all."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    rests, states = [], []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        loader = StatefulDataLoader(stream(path), batch_size=None, num_workers=2)
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        states.append(loader.state_dict())
        rests.append(run(iterator) + run(loader))
    assert rests[0] != rests[1]
    loader = StatefulDataLoader(stream(path), batch_size=None, num_workers=2)
    loader.load_state_dict(states[0])
    assert run(loader) + run(loader) == rests[1]
    alone = stream(path)
    alone.load_state_dict(states[0]["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"])
    with pytest.raises(StateError, match="one worker does not say how far the others are"):
        iter(alone)


def test_the_settings_of_a_state_reach_the_workers_of_later_epochs(path: Path) -> None:
    def loader(**changes: Any) -> Any:
        return StatefulDataLoader(stream(path, **changes), batch_size=None, num_workers=2)

    few = {"num_cursors": 3}
    one = loader(**few)
    iterator = iter(one)
    next(iterator)
    state = one.state_dict()
    expected = run(iterator) + run(one) + run(one)
    other = loader()
    other.load_state_dict(state)
    assert [batch for _ in range(3) for batch in run(other)] == expected
    assert planned(path, 2, 2) != planned(path, 2, 2, **few)


# ---- the state of the process that has the workers


@pytest.mark.parametrize("kind", [SeqRecordPipe, SeqRecordStream])
def test_a_state_asked_beside_workers_is_an_error(path: Path, kind: type[Any]) -> None:
    data = kind(path, **SETTINGS)
    loader = DataLoader(data, batch_size=None, num_workers=2)
    start = data.state_dict()
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
        for asked in (data, copy.deepcopy(data)):
            with pytest.raises(StateError, match=r"StatefulDataLoader\(SeqRecordStream.*epoch 0"):
                asked.state_dict()
    list(iterator)
    with pytest.raises(StateError, match="worker processes"):
        data.state_dict()
    data.set_epoch(1)
    assert data.state_dict() == {**start, "epoch": 1}
    data.load_state_dict(start)
    assert data.state_dict() == start
    first = next(iter(data))  # without workers
    assert names(first) == planned(path, 0, 1, features=None)[0]
    assert data.state_dict() == {**start, "batch": 1}


def test_a_loader_without_workers_has_a_state(path: Path) -> None:
    pipe = SeqRecordPipe(path, **SETTINGS)
    loader = DataLoader(pipe, batch_size=None)
    iterator = iter(loader)
    next(iterator)
    again = SeqRecordPipe(path, **SETTINGS)
    again.load_state_dict(pipe.state_dict())
    assert [digest(b) for b in again] == [digest(b) for b in iterator]


def test_stateful_loader_over_a_pipe_warns(path: Path) -> None:
    for pipe in (SeqRecordPipe(path, **SETTINGS), SeqRecordPipe(path, **SETTINGS).map(len)):
        loader = StatefulDataLoader(pipe, batch_size=None)
        with pytest.warns(UserWarning, match="resumes SeqRecordStream exactly"):
            next(iter(loader))


# ---- the counter


def test_workers_of_a_turn_are_told_the_same_epoch() -> None:
    counter = EpochCounter(5)
    assert counter.begun() is None
    assert [counter.begin(worker, 7) for worker in (1, 0, 2)] == [5, 5, 5]
    assert counter.begun() == 5
    assert [counter.begin(worker, 7) for worker in (0, 1, 2)] == [6, 6, 6]
    assert [counter.begin(worker, 8) for worker in (0, 1)] == [7, 7]
    counter.set_next(3)
    assert counter.begun() is None
    assert counter.begin(2, 8) == 7  # a late one
    assert [counter.begin(worker, 9, 1, b"note") for worker in (0, 1)] == [1, 1]
    assert (counter.begun(), counter.note()) == (1, b"note")
    assert [counter.begin(worker, 10) for worker in (0, 1)] == [2, 2]
    counter.set_next(3)
    assert (counter.begun(), counter.note()) == (None, b"")
    assert counter.begin(0, 11) == 3
