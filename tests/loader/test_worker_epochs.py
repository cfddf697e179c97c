"""Epochs and positions in a DataLoader's worker processes."""

from __future__ import annotations

import copy
import itertools
import json
import multiprocessing
import os
import pickle
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ChainDataset, DataLoader, IterableDataset
from torchdata.nodes import Loader
from torchdata.stateful_dataloader import StatefulDataLoader

import seqrecord
from seqrecord import ClipError, SeqRecordIterableDataset, SeqRecordMix, SeqRecordPipe, StateError
from tests.kit.clip_data import begun, digests, make_loader, minimum_memory, names, resumed
from tests.loader.resume_contract import check_resume

pytestmark = [
    pytest.mark.timeout(300),  # a spawned worker imports torch: long, on a busy machine
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
PLAIN: dict[str, Any] = {"last_batch": "keep", "batch_size": None}
KINDS = pytest.mark.parametrize("kind", [SeqRecordPipe, SeqRecordIterableDataset])


def stream(path: Path, kind: Any = SeqRecordIterableDataset, **changes: Any) -> Any:
    return make_loader(path, kind, **{"features": ["id"], **changes})


def stateful(data: Any, workers: int = 2, **options: Any) -> Any:
    return StatefulDataLoader(data, batch_size=None, num_workers=workers, **options)


def loading(data: Any, workers: int = 2, **options: Any) -> Any:
    return DataLoader(data, batch_size=None, num_workers=workers, **options)


@cache
def _planned(path: Path, epoch: int, part: int, parts: int, **changes: Any) -> list[Any]:
    alone = stream(path, **changes, rank=(part, parts))
    alone.set_epoch(epoch)
    return run(alone)


def planned(
    path: Path, epoch: int, workers: int = 2, rank: int = 0, ranks: int = 1, **changes: Any
) -> list[Any]:
    """Batches of an epoch in the order of a rank's DataLoader: workers in turn."""
    numbers = range(rank * workers, (rank + 1) * workers)
    parts = [_planned(path, epoch, number, ranks * workers, **changes) for number in numbers]
    return [batch for turn in zip_longest(*parts) for batch in turn if batch]


def plan(path: Path, epochs: Sequence[int], workers: int = 2, **changes: Any) -> list[Any]:
    """Batches of each epoch."""
    return [planned(path, epoch, workers, **changes) for epoch in epochs]


def run(loader: Any) -> list[Any]:
    return [names(batch) for batch in loader]


def run_epochs(loader: Any, *epochs: int) -> list[Any]:
    """Batches of each of these epochs, set before."""
    found = []
    for epoch in epochs:
        loader.dataset.set_epoch(epoch)
        found.append(run(loader))
    return found


def starts() -> Iterator[Any]:
    """Loaders, start methods of workers, and whether workers persist."""
    fast = [(loading, "forkserver", True), (stateful, "fork", False)]
    methods = ("fork", "forkserver", "spawn")
    for case in itertools.product((loading, stateful), methods, (False, True)):
        yield pytest.param(*case, marks=() if case in fast else pytest.mark.slow)


@pytest.mark.parametrize(("loader_of", "start", "persistent"), list(starts()))
def test_epochs_of_workers_equal_the_plan(
    path: Path, loader_of: Any, start: str, persistent: bool, thorough: bool
) -> None:
    """With equal seeds of torch; for loops without `set_epoch` see `test_plain_loops`."""
    workers = 2 if start == "fork" or thorough else 1
    options = {"persistent_workers": persistent, "multiprocessing_context": start}
    kinds = [SeqRecordPipe if loader_of is loading else SeqRecordIterableDataset]
    if thorough and loader_of is loading:
        kinds = [SeqRecordPipe, SeqRecordIterableDataset]
    for kind in kinds:
        data = stream(path, kind)
        loader = loader_of(data, workers, **options)
        for number, epoch in enumerate((0, 1, 1, 2, 7)):
            torch.manual_seed(0)
            if number == 2:
                data.set_epoch(1, batches=5)
            elif number == 4 or (number and kind is SeqRecordIterableDataset):
                data.set_epoch(epoch)
            assert run(loader) == planned(path, epoch, workers)[5 if number == 2 else 0 :]
        assert run(loader) == planned(path, 8, workers)
        assert len(loader) == len(planned(path, 0, workers))


def test_each_iteration_of_a_pipe_has_the_next_epoch(path: Path) -> None:
    """With and without workers, after an abandoned iteration, and in copies."""
    data = stream(path, SeqRecordPipe)
    for batch in loading(data, 1):
        assert names(batch) == planned(path, 0, 1)[0]
        break
    assert run(loading(data)) == planned(path, 1)
    # `list` calls `len` before it iterates.
    assert [names(batch) for batch in list(data)] == planned(path, 2, 1)
    persistent = loading(data, 1, persistent_workers=True)
    for epoch in (3, 4, 5):
        iterator = iter(persistent)
        assert names(next(iterator)) == planned(path, epoch, 1)[0]
        if epoch != 4:  # abandoned
            assert run(iterator) == planned(path, epoch, 1)[1:]
    for other in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert run(other) == planned(path, 6, 1)
    assert run(loading(other, 1)) == planned(path, 7, 1)
    assert run(loading(data, 1)) == planned(path, 6, 1)


@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.slow), True])
def test_epochs_of_a_stream_in_workers(path: Path, persistent: bool) -> None:
    data = stream(path)
    loader = loading(data, persistent_workers=persistent)
    assert run_epochs(loader, 4, 5, 1, 1) == plan(path, (4, 5, 1, 1))
    assert run(data) == planned(path, 2, 1)  # without workers it is the next one,
    assert run(loading(data)) == planned(path, 3)  # … and so is one iteration after it
    wrong = r"set_epoch\(epoch\).*on_train_epoch_end.*a second iteration of epoch 3"
    check_fails(loading(data, 1), StateError, wrong)
    for copied in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert run(copied) == planned(path, 4, 1)
    # An order that is the same in all epochs needs none.
    fixed = loading(stream(path, shuffle=False), persistent_workers=persistent)
    assert run(fixed) == run(fixed) == planned(path, 0, shuffle=False)


class Wrapped(IterableDataset[Any]):
    """A user's dataset, which torch does not see through."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        # Each worker creates its own stream from a pickle.
        yield from pickle.loads(self.data) if isinstance(self.data, bytes) else self.data


@pytest.mark.slow
@KINDS
def test_a_loader_inside_another_dataset(path: Path, kind: Any) -> None:
    data = stream(path, kind)
    loader = loading(Wrapped(data), persistent_workers=True)
    for epoch in range(2):
        data.set_epoch(epoch)
        assert run(loader) == planned(path, epoch)
    assert run(loader) == planned(path, 2)
    made_in_workers = loading(Wrapped(pickle.dumps(data)))
    assert [run(made_in_workers) for _ in range(2)] == plan(path, (3, 3))


class WithState(Wrapped):
    """A user's dataset with the state of its stream."""

    def state_dict(self) -> Any:
        return self.data.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.data.load_state_dict(state)


@KINDS
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stateful_loader_around_another_dataset(path: Path, kind: Any, workers: int) -> None:
    """It resumes in the saved epoch if the dataset passes the state on, or the epoch is set."""
    rest = planned(path, 1, max(workers, 1))[4:]
    for wrapper in (WithState, Wrapped):
        first, second = (stream(path, kind) for _ in range(2))
        loader, resumed = (stateful(wrapper(data), workers) for data in (first, second))
        for number in range(2):
            if wrapper is Wrapped:
                first.set_epoch(number)
            iterator = iter(loader)
            for _ in islice(iterator, 4 if number else None):
                pass
        if wrapper is Wrapped:
            second.set_epoch(1)
        resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert run(resumed) == rest
    for other in (Wrapped(stream(path, kind)), ChainDataset([stream(path, kind)])):
        name = type(other).__name__
        with pytest.raises(StateError, match=rf"another epoch; expected: .*{name} that call"):
            next(iter(stateful(other, workers)))
    fixed = Wrapped(stream(path, kind, shuffle=False))
    assert run(stateful(fixed, workers)) == planned(path, 0, max(workers, 1), shuffle=False)


def _rank(data: Any, rank: int, queue: Any) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    # Otherwise each rank would start its own fork server, which imports torch.
    loader, found = loading(data, 1 + rank, multiprocessing_context="fork"), []
    for number in range(2 + rank):
        if number and isinstance(data, SeqRecordIterableDataset):
            data.set_epoch(1 + number)
        found.append(run(loader))
    queue.put((rank, found))


@pytest.mark.slow
@KINDS
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_ranks_with_a_copied_loader_have_epochs_of_their_own(
    path: Path, method: str, kind: Any
) -> None:
    data = stream(path, kind)
    assert run(loading(data, 1)) == planned(path, 0, 1)
    data.set_epoch(1)
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    ranks = [context.Process(target=_rank, args=(data, rank, queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = dict(queue.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(60)
    for rank, epochs in found.items():
        assert epochs == plan(path, range(1, 3 + rank), 1 + rank, rank=rank, ranks=2)


# ---- positions set by `set_epoch`


def same(item: Any) -> Any:
    return item


def items(given: Any) -> list[Any]:
    """The clips of a DataLoader's batch."""
    return [name for one in (given if isinstance(given, list) else [given]) for name in names(one)]


def check_fails(loader: Any, error: type[Exception], message: str) -> None:
    """Beginning an iteration raises the error, in a worker too."""
    iterator: Any = None
    with pytest.raises(error, match=message):
        next(iterator := iter(loader))
    if iterator is not None and loader.num_workers and not loader.persistent_workers:
        iterator._shutdown_workers()  # on garbage collection, torch waits 5 s per worker


@pytest.mark.parametrize(
    ("workers", "size", "changes"),
    [
        (3, None, {"batch_size": None, "last_batch": "keep"}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (2, 4, {"batch_size": None, "last_batch": "keep"}),
                (2, None, {}),
                (2, None, {"last_batch": "keep"}),
                (3, None, {"order": "sequences", "shuffle_buffer": None}),
                (1, 5, {"batch_size": None}),
                (0, 4, {"batch_size": None}),
            )
        ),
    ],
    ids=str,
)
def test_an_epoch_starts_at_any_batch(
    path: Path, workers: int, size: int | None, changes: dict[str, Any]
) -> None:
    """All later batches, in their order; then the next epoch."""
    data = stream(path, **changes)
    options: Any = {"persistent_workers": True} if workers else {}
    loader = DataLoader(data, batch_size=size, num_workers=workers, collate_fn=list, **options)
    if size is None:
        loader = loading(data, workers, **options)
    whole = [items(batch) for batch in loader]
    for batches in (0, 5, len(whole) // 2, len(whole) - 1, len(whole)):
        data.set_epoch(0, batches, size)
        data.set_epoch(0)  # keeps the position
        assert [items(batch) for batch in loader] == whole[batches:]
    data.set_epoch(0)  # … and a started epoch restarts
    assert [items(batch) for batch in loader] == whole
    data.set_epoch(0, len(whole) + 1, size)
    check_fails(loader, StateError, f"beyond the end of its epoch.*at most {len(whole)}")


def test_positions_without_workers_and_in_chains(path: Path) -> None:
    data = stream(path)
    iterator = begun(data, 3)
    assert data.state_dict(batches=3) == data.state_dict()
    assert data.state_dict(batches=2) == {**data.state_dict(), "batch": 2}
    assert data.state_dict(batches=1, batch_size=3)["batch_size"] == 3
    del iterator
    before = data.state_dict()
    for wrong in (-1, 0.5, "3", None, 1 << 70):
        with pytest.raises(ClipError, match=r"^batches is (not an integer|too small|too large)"):
            data.set_epoch(1, wrong)
    with pytest.raises(ClipError, match=r"^batch_size is too small"):
        data.set_epoch(1, 2, 0)
    assert data.state_dict() == before

    pipe = stream(path, SeqRecordPipe, batch_size=None)
    chain = pipe.map(same).batch(4)
    whole = [items(batch) for batch in loading(chain)]
    pipe.set_epoch(0, batches=7, batch_size=4)
    assert [items(batch) for batch in loading(chain)] == whole[7:]
    pipe.set_epoch(0, batches=7)
    check_fails(loading(pipe.shuffle()), StateError, "set_epoch")


def test_state_dict_after_a_number_of_batches(path: Path) -> None:
    """It has the order's settings and each worker's position; see also `test_elastic`."""
    data = stream(path, num_cursors=5)
    whole = run(loading(data))
    for batches in (0, 5):
        state = data.state_dict(batches=batches)
        assert (state["epoch"], state["batch"], state["workers"]) == (0, batches, 2)
    first = data.state_dict(batches=5)
    data.load_state_dict(first)
    assert run(loading(data)) == whole[5:]
    assert data.state_dict(batches=len(whole))["epoch"] == 1
    with pytest.raises(StateError, match="beyond the end"):
        data.state_dict(batches=len(whole) + 1)
    # … after an elastic resume, too
    data.load_state_dict(first)
    rest = run(loading(data, 1))
    given, every = ({clip for batch in one for clip in batch} for one in (whole[:5] + rest, whole))
    assert given == every
    assert run(resumed(stream(path), data.state_dict(batches=2))) == rest[2:]
    assert data.state_dict(batches=len(rest))["epoch"] == 1


# ---- loaded states


def test_resuming_with_workers(path: Path) -> None:
    """With StatefulDataLoader, also from a state saved after an elastic resume."""
    first = stream(path, **PLAIN)
    left = begun(first, 9)
    loader = stateful(resumed(stream(path, **PLAIN), first.state_dict()))
    iterator = begun(loader, 3)
    state = json.loads(json.dumps(loader.state_dict()))
    rest = run(iterator)
    [later] = run_epochs(loader, 1)
    for is_set in (False, True):
        again = stateful(stream(path, **PLAIN), persistent_workers=True)
        again.load_state_dict(state)
        if is_set:
            again.dataset.set_epoch(0)  # as in a loop over epochs: the state has the position
        assert run(again) == rest
        assert run(again) == later
        assert run_epochs(again, 1) == [later]
    assert len(rest) + 3 == len(run(left))
    assert len({clip for batch in later for clip in batch}) == len(later) == len(rest) + 3 + 9
    with pytest.raises(StateError, match=r"with as many workers.*state_dict\(batches=…\)"):
        stream(path, **PLAIN).load_state_dict(state)


def nodes_of(data: Any) -> Any:
    """A Loader of nodes, as a loader with a dataset."""
    loader: Any = Loader(data)
    loader.dataset, loader.num_workers = data, 0
    return loader


def mixed(path: Path) -> SeqRecordMix:
    options: Any = {"features": ["id"], "clip_len": 3}
    sources = {name: SeqRecordIterableDataset(path, **options) for name in "ab"}
    return SeqRecordMix(sources, batch_size=4, stopping_strategy=6)


AROUND: dict[str, tuple[Any, Any]] = {
    "stream": (stream, partial(stateful, workers=0)),
    "stream, 2 workers": (stream, stateful),
    "mix": (mixed, partial(stateful, workers=0)),
    "mix, 2 workers": (mixed, stateful),
    "node": (partial(stream, kind=seqrecord.SeqRecordNode), nodes_of),
}


WHERE = {"inside": 2, "last": -1, "end": None}
STATES = [
    pytest.param(
        *(place, around),
        id=f"{name}-{around}",
        marks=[pytest.mark.slow] if "workers" in around and name != "inside" else [],
    )
    for name, place in WHERE.items()
    for around in AROUND
]


@pytest.mark.parametrize(("given", "around"), STATES)
@pytest.mark.parametrize(
    "is_set_first", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["load", "set"]
)
def test_a_state_that_a_loader_loads_and_set_epoch(
    path: Path, around: str, is_set_first: bool, given: int | None
) -> None:
    """The position counts in its own epoch, whichever call came first. Another epoch is an error,
    and after it the set epoch follows. A finished epoch has no position.
    """
    make, wrap = AROUND[around]
    whole = [run_epochs(wrap(make(path)), epoch)[0] for epoch in (0, 1)]
    saved = wrap(make(path))
    iterator: Any = begun(saved, len(whole[0]) if given in (-1, None) else given)
    if given is None:
        assert not list(iterator)
    state = json.loads(json.dumps(saved.state_dict()))
    if saved.num_workers:
        iterator._shutdown_workers()  # see `check_fails`
    del iterator

    def resumed_at(epoch: int) -> Any:
        loader = wrap(make(path))
        if is_set_first:
            loader.dataset.set_epoch(epoch)
        loader.load_state_dict(state)
        if not is_set_first:
            loader.dataset.set_epoch(epoch)
        return loader

    loader = resumed_at(1)
    if given is not None and not (given == -1 and around == "node"):
        check_fails(loader, StateError, r"different epochs.*set_epoch\(0\).*set_epoch\(1\)")
    assert run(loader) == whole[1]
    if given == 2:
        loader = resumed_at(0)
        assert run(loader) == whole[0][given:]
        assert run_epochs(loader, 1) == whole[1:]


@pytest.mark.parametrize("kind", [SeqRecordPipe, SeqRecordIterableDataset])
def test_the_last_call_of_set_epoch_and_load_state_dict_counts(path: Path, kind: Any) -> None:
    kept = begun(saved := stream(path, kind), 5)
    state = saved.state_dict()
    every = [planned(path, epoch, 1) for epoch in range(2)]
    for epochs, expected in (
        ([None], every[0][5:]),
        ([1, None], every[0][5:]),
        ([None, 1], every[1]),
        ([None, 0], every[0][5:]),
        ([None, 1, 0], every[0]),
        ([2, None, 1, None], every[0][5:]),
    ):
        again = stream(path, kind)
        for epoch in epochs:
            if epoch is None:
                again.load_state_dict(state)
            else:
                again.set_epoch(epoch)
        assert run(again) == expected
    del kept


@pytest.mark.parametrize(
    ("persistent", "method", "changes"),
    [
        (True, "fork", PLAIN),  # an odd number of single clips: the second worker has one fewer
        pytest.param(False, "fork", {}, marks=pytest.mark.slow),
        pytest.param(True, "fork", {}, marks=pytest.mark.slow),
        pytest.param(False, "forkserver", {}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_resuming_after_many_batches(
    path: Path, persistent: bool, method: str, changes: dict[str, Any]
) -> None:
    options: dict[str, Any] = {"persistent_workers": persistent}
    options["multiprocessing_context"] = method
    check_resume(
        lambda: stateful(stream(path, **changes), **options),
        num_epochs=3 if method == "fork" and not changes else 2,
        positions=lambda n: [n - 2, n - 1] if changes else [n // 2, n - 1],
        set_epoch=lambda one, epoch: one.dataset.set_epoch(epoch),  # type: ignore[attr-defined]
    )


def test_a_rank_resumes_from_another_s_state(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning saves only the first rank's state."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    rests, states = [], []
    for rank in "01":
        monkeypatch.setenv("RANK", rank)
        loader = stateful(stream(path), persistent_workers=True)
        iterator = begun(loader, 3)
        states.append(loader.state_dict())
        rests.append(run(iterator) + run_epochs(loader, 1)[0])
    assert rests[0] != rests[1]
    loader = resumed(stateful(stream(path), persistent_workers=True), states[0])
    assert run(loader) + run_epochs(loader, 1)[0] == rests[1]


def test_persistent_workers_keep_the_settings_of_their_state(path: Path) -> None:
    def of_path(options: dict[str, Any]) -> Any:
        return stream(path, **options)

    few = {"memory_limit": minimum_memory(partial(stream, path))}
    one = stateful(stream(path, **few), persistent_workers=True)
    iterator = begun(one)
    other = resumed(stateful(stream(path), persistent_workers=True), one.state_dict())
    assert run(other) == run(iterator)
    assert run_epochs(other, 1) == plan(path, [1], **few)
    settings = [one.state_dict()["sources"][0]["settings"] for one in map(of_path, (few, {}))]
    assert settings[0] != settings[1]


def mix(path: Path) -> SeqRecordMix:
    sources = {
        name: SeqRecordIterableDataset(
            path, clip_len=3, features=["id"], episodes=[f"set/{number}"]
        )
        for number, name in ((0, "one"), (3, "two"))
    }
    return SeqRecordMix(sources, batch_size=4, seed=2, stopping_strategy="all_exhausted")


@pytest.mark.parametrize(("make", "workers"), [(stream, 2), (mix, 1)])
def test_new_workers_resume_from_a_loaded_state(path: Path, make: Any, workers: int) -> None:
    """They have its settings, in later epochs too; persistent workers cannot get it."""
    first, data = make(path), make(path)
    persistent = loading(data, workers, persistent_workers=True)
    whole = run(persistent)
    list(begun(loading(first, workers)))
    state = json.loads(json.dumps(first.state_dict(batches=4)))
    data.load_state_dict(state)
    data.set_epoch(0)  # the position stays
    check_fails(persistent, StateError, "samples were set while persistent workers.*new Data")
    data.set_epoch(1)
    check_fails(persistent, StateError, "a state or samples were set")
    data.load_state_dict(state)
    loader = loading(data, workers, persistent_workers=True)
    assert run(loader) == whole[4:]
    first.set_epoch(1)
    assert run_epochs(loader, 1)[0] == run(loading(first, workers))
    data.load_state_dict(state)
    data.set_epoch(5)
    first.set_epoch(5)
    assert run(loading(data, workers)) == run(loading(first, workers))


# ---- the state of the main process


@KINDS
def test_state_dict_while_workers_run_is_an_error(path: Path, kind: type[Any]) -> None:
    data = make_loader(path, kind)
    loader = loading(data, 1)
    start = data.state_dict()
    iterator = begun(loader)
    for each in (data, copy.deepcopy(data)):
        with pytest.raises(StateError, match=r"state_dict\(batches=…\).*epoch 0"):
            each.state_dict()
    list(iterator)
    with pytest.raises(StateError, match="worker processes"):
        data.state_dict()
    data.set_epoch(1)
    assert data.state_dict() == {**start, "epoch": 1}
    data.load_state_dict(start)
    assert data.state_dict() == start
    iterator = begun(loading(data, 0))
    assert data.state_dict() == {**start, "batch": 1}
    assert digests(resumed(make_loader(path, kind), data.state_dict())) == digests(iterator)


# ---- batches of batches


@KINDS
def test_batches_of_batches_are_refused(path: Path, kind: Any) -> None:
    wrong = r"both have a batch_size; expected: DataLoader\(SeqRecord.*batch_size=None\)"
    data = stream(path, kind)
    if kind is SeqRecordPipe:
        loaders: list[Any] = [DataLoader(data), DataLoader(data.map(same), batch_size=2)]
    else:
        loaders = [StatefulDataLoader(data, batch_size=4), DataLoader(data, 2, num_workers=1)]
    for loader in loaders:
        check_fails(loader, ClipError, wrong)
    assert len(list(DataLoader(Wrapped(data), batch_size=2, collate_fn=list))) == 9
    assert run(loading(data, 0)) == planned(path, 1, 1)
