"""Epochs in a DataLoader's worker processes: which epoch each iteration has."""

from __future__ import annotations

import copy
import itertools
import json
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import (
    ClipError,
    SeqRecordIterableDataset,
    SeqRecordMix,
    SeqRecordPipe,
    StateError,
)
from seqrecord.pipes.worker_epochs import Start, Turns, Worker
from tests.clip_data import begun, digests, make_loader, names, resumed
from tests.resume_contract import check_resume

pytestmark = [
    pytest.mark.timeout(300),  # a spawned worker imports torch: long, on a busy machine
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
PLAIN: dict[str, Any] = {"even_batches": False, "batch_size": None}


def stream(path: Path, kind: Any = SeqRecordIterableDataset, **changes: Any) -> Any:
    return make_loader(path, kind, **{"features": ["id"], **changes})


def stateful(data: Any, workers: int = 2, **options: Any) -> Any:
    return StatefulDataLoader(data, batch_size=None, num_workers=workers, **options)


def loading(data: Any, workers: int = 2, **options: Any) -> Any:
    return DataLoader(data, batch_size=None, num_workers=workers, **options)


@cache
def _planned(path: Path, epoch: int, part: int, parts: int, **changes: Any) -> list[Any]:
    alone = stream(path, **changes, rank=part, world_size=parts)
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
    """Two whole epochs, then one from a position within it, with equal seeds."""
    workers = 2 if start == "fork" or thorough else 1
    data = stream(path, SeqRecordPipe if loader_of is loading else SeqRecordIterableDataset)
    loader = loader_of(data, workers, persistent_workers=persistent, multiprocessing_context=start)
    expected = plan(path, (0, 1, 1), workers)
    for number, epoch in enumerate(expected):
        if number == 2:
            data.set_epoch(1, batches=5)
        torch.manual_seed(0)
        assert run(loader) == epoch[5 if number == 2 else 0 :]
    assert len(loader) == len(epoch)
    assert expected[0] != expected[1]


@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.slow), True])
def test_set_epoch_reaches_workers(path: Path, persistent: bool) -> None:
    data = stream(path)
    loader = loading(data, persistent_workers=persistent)
    for epoch in (4, 5, 1, 1):
        data.set_epoch(epoch)
        assert run(loader) == planned(path, epoch)
    assert run(loader) == planned(path, 2)
    assert run(data) == planned(path, 3, 1)  # … and without workers
    assert run(loader) == planned(path, 4)


def _set_epoch(worker: int, workers: Sequence[int] = (0, 1)) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    assert info.id == worker
    if worker in workers:
        info.dataset.set_epoch(5)  # type: ignore[attr-defined]


def test_workers_may_set_the_epoch(path: Path) -> None:
    """All workers must set the same epoch."""
    data = stream(path)
    loader = loading(data, worker_init_fn=_set_epoch, persistent_workers=True)
    assert [run(loader) for _ in range(2)] == plan(path, (5, 6))
    assert run(data) == planned(path, 7, 1)
    iterator: Any = iter(loading(data, worker_init_fn=partial(_set_epoch, workers=(1,))))
    with pytest.raises(ClipError, match="were given different epochs"):
        run(iterator)
    iterator._shutdown_workers()


def test_each_iteration_has_the_next_epoch(path: Path) -> None:
    """With and without workers, after an abandoned iteration, and in copies."""
    data = stream(path, SeqRecordPipe)
    for batch in loading(data, 1):
        assert names(batch) == planned(path, 0, 1)[0]
        break
    assert run(loading(data)) == planned(path, 1)
    # `list` calls `len` before it iterates.
    assert [names(batch) for batch in list(data)] == planned(path, 2, 1)
    assert run(loading(data, 1)) == planned(path, 3, 1)
    for other in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert run(other) == planned(path, 4, 1)
    assert run(loading(other, 1)) == planned(path, 5, 1)
    assert run(loading(data, 1)) == planned(path, 4, 1)


class Wrapped(IterableDataset[Any]):
    """A user's dataset: `epochs` epochs of a stream per iteration."""

    def __init__(self, data: Any, epochs: int = 1) -> None:
        self.data, self.epochs = data, epochs

    def __iter__(self) -> Iterator[Any]:
        # Each worker creates its own stream from a pickle.
        data = pickle.loads(self.data) if isinstance(self.data, bytes) else self.data
        for _ in range(self.epochs):
            yield from data


@pytest.mark.slow
def test_a_stream_inside_another_dataset(path: Path) -> None:
    loader = loading(Wrapped(stream(path)), persistent_workers=True)
    assert [run(loader) for _ in range(2)] == plan(path, range(2))
    made_in_workers = loading(Wrapped(pickle.dumps(stream(path))))
    assert [run(made_in_workers) for _ in range(2)] == plan(path, (0, 0))


def _rank(data: SeqRecordIterableDataset, rank: int, queue: Any) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    # Otherwise each rank would start its own fork server, which imports torch.
    loader = loading(data, 1 + rank, multiprocessing_context="fork")
    queue.put((rank, [run(loader) for _ in range(2 + rank)]))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_ranks_with_a_copied_stream_count_epochs_separately(path: Path, method: str) -> None:
    data = stream(path)
    assert run(loading(data, 1)) == planned(path, 0, 1)
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    ranks = [context.Process(target=_rank, args=(data, rank, queue)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = dict(queue.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(60)
    for rank, epochs in found.items():
        expected = plan(path, range(1, 3 + rank), 1 + rank, rank=rank, ranks=2)
        assert epochs == expected


# ---- several DataLoaders around one stream, whose workers begin in any order

Who = tuple[str, int, int]
"""A loader's name, its worker's number, and the number of the worker's iteration."""


class Gates:
    """Enforces an order of events across processes; passed to them at their start."""

    def __init__(self, order: Sequence[Who], method: str = "fork") -> None:
        context = multiprocessing.get_context(method)
        self.order = list(order)
        self.condition = context.Condition()
        self.next = context.Value("i", 0)

    def go(self, who: Who, begin: Callable[[], Any]) -> Any:
        """Returns `begin()`, called after all earlier events."""
        if who not in self.order:
            return begin()
        place = self.order.index(who)
        with self.condition:
            assert self.condition.wait_for(lambda: self.next.value >= place, 100)
            begun = begin()
            self.next.value += 1
            self.condition.notify_all()
        return begun


MAIN: Who = ("main", 0, 1)
_name = ""  # of the loader that has started this worker
_turn = 0


def set_name(name: str, _worker: int) -> None:
    """Stores the loader's name in a worker, as `worker_init_fn`."""
    global _name
    _name = name


class GatedStream(SeqRecordIterableDataset):
    """A stream whose iterations in workers begin in the order of the gates."""

    gates: Gates

    def __iter__(self) -> Iterator[Any]:
        global _turn
        begin = super().__iter__
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return begin()
        _turn += 1
        return iter(self.gates.go((_name, worker.id, _turn), begin))


def same(item: Any) -> Any:
    return item


def gated(path: Path, *order: Who, method: str = "fork") -> Any:
    data = stream(path, GatedStream)
    data.gates = Gates(order, method)
    return data


def loader_named(name: str, data: Any, workers: int = 2, **options: Any) -> Any:
    return loading(data, workers, worker_init_fn=partial(set_name, name), **options)


ORDERS: list[list[Who]] = [
    [("one", 0, 1), ("two", 0, 1), ("one", 1, 1), ("two", 1, 1)],
    [("two", 1, 1), ("two", 0, 1), ("one", 1, 1), ("one", 0, 1)],
    [("two", 0, 1), ("one", 1, 1), ("one", 0, 1), ("two", 1, 1)],
]


def interleaved(loaders: Sequence[Any]) -> list[list[Any]]:
    """Batches of each loader, iterated over at the same time."""
    found: list[list[Any]] = [[] for _ in loaders]
    for turn in zip_longest(*loaders):
        for given, batch in zip(found, turn, strict=True):
            given += [names(batch)] * (batch is not None)
    return found


@pytest.mark.parametrize(
    ("method", "order"),
    [
        ("fork", ORDERS[1]),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("fork", ORDERS[0]), ("forkserver", ORDERS[0]), ("spawn", ORDERS[1]))
        ),
    ],
)
def test_two_loaders_at_once(path: Path, method: str, order: list[Who]) -> None:
    """The loader whose worker begins first gets the first epoch for all its workers."""
    data = gated(path, *order, method=method)
    options: dict[str, Any] = {"multiprocessing_context": method}
    loaders = [
        loader_named(name, data, generator=torch.Generator().manual_seed(7), **options)
        for name in ("one", "two")
    ]
    assert interleaved(loaders) == plan(path, (0, 1) if order[0][0] == "one" else (1, 0))
    assert run(data) == planned(path, 2, 1)


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_two_loaders_at_once_with_persistent_workers(path: Path, method: str) -> None:
    data = gated(path, *ORDERS[2], method=method)
    options: dict[str, Any] = {"multiprocessing_context": method, "persistent_workers": True}
    loaders = [loader_named(name, data, **options) for name in ("one", "two")]
    assert interleaved(loaders) == plan(path, (1, 0))
    # From here on, the two loaders may have either epoch.
    assert sorted(interleaved(loaders)) == sorted(planned(path, e) for e in (2, 3))
    assert run(loaders[1]) == planned(path, 4)


def test_a_worker_does_not_join_another_iterator_of_the_same_seed(path: Path) -> None:
    """A worker of the first iterator begins after those of the second."""
    data = gated(path, ("one", 0, 1), ("two", 1, 1), ("two", 0, 1), ("one", 1, 1))
    torch.manual_seed(0)
    left = iter(loader_named("one", data))
    torch.manual_seed(0)
    assert run(loader_named("two", data)) == planned(path, 1)
    assert run(left) == planned(path, 0)
    # The second has more workers, and its last worker begins first.
    data = gated(path, ("two", 1, 1), ("two", 0, 1))
    for epoch, (name, workers) in enumerate([("one", 1), ("two", 2)]):
        torch.manual_seed(0)
        assert run(loader_named(name, data, workers)) == planned(path, epoch, workers)


def test_a_worker_may_be_an_epoch_ahead_of_another(path: Path) -> None:
    order: list[Who] = [("one", 0, 1), ("one", 0, 2), ("one", 1, 1), ("one", 1, 2)]
    found = run(loader_named("one", Wrapped(gated(path, *order), 2), prefetch_factor=30))
    for worker in range(2):
        first, second = (planned(path, epoch)[worker::2] for epoch in range(2))
        assert found[worker::2] == first + second


@pytest.mark.slow
def test_threads_that_iterate_at_the_same_time(path: Path) -> None:
    data, together, given = stream(path), threading.Barrier(2), list[Any]()

    def iterate() -> None:
        loader = loading(data)
        together.wait(60)
        given.extend([run(loader) for _ in range(2)])

    # Not `concurrent.futures`: a process forked from its thread joins itself and exits with code 1,
    # which torch may see in the main thread before it ends its workers.
    threads = [threading.Thread(target=iterate) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == sorted(planned(path, epoch) for epoch in range(4))


# ---- positions set by `set_epoch`


def items(given: Any) -> list[Any]:
    """The clips of a DataLoader's batch."""
    return [name for one in (given if isinstance(given, list) else [given]) for name in names(one)]


def check_fails(loader: Any, error: type[Exception], message: str) -> None:
    """Beginning an iteration raises the error, in a worker too."""
    iterator: Any = None
    with pytest.raises(error, match=message):
        next(iterator := iter(loader))
    if iterator is not None and loader.num_workers:
        iterator._shutdown_workers()  # on garbage collection, torch waits 5 s per worker


@pytest.mark.parametrize(
    ("workers", "size", "changes"),
    [
        (3, None, {"batch_size": None, "even_batches": False}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (2, 4, {"batch_size": None, "even_batches": False}),
                (2, None, {}),
                (2, None, {"even_batches": False}),
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
    whole, following = ([items(batch) for batch in loader] for _ in range(2))
    for batches in (0, 5, len(whole) // 2, len(whole) - 1, len(whole)):
        data.set_epoch(0, batches, size)
        data.set_epoch(0)  # keeps the position
        assert [items(batch) for batch in loader] == whole[batches:]
    assert [items(batch) for batch in loader] == following
    data.set_epoch(0)  # … and a started epoch restarts
    assert [items(batch) for batch in loader] == whole
    data.set_epoch(0, len(whole) + 1, size)
    check_fails(loader, StateError, f"beyond the end of its epoch.*at most {len(whole)}")


def test_positions_without_workers_and_in_chains(path: Path) -> None:
    data = stream(path)
    iterator = begun(data, 3)
    assert data.state_dict(batches=3) == data.state_dict()
    assert data.state_dict(batches=2) == {**data.state_dict(), "batch": 2}
    assert data.state_dict(batches=1, batch_size=2)["batch"] == 2
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
    for mixed in (pipe.shuffle(), pipe.sharding_filter()):
        pipe.set_epoch(0, batches=7)
        check_fails(loading(mixed), StateError, "set_epoch")


def test_state_dict_after_a_number_of_batches(path: Path) -> None:
    """It has the order's settings and each worker's position; see also `test_elastic`."""
    data = stream(path, num_cursors=5)
    loader = loading(data, 2, persistent_workers=True)
    whole = run(loader)
    for batches, expected in ((0, [0, 0]), (5, [3, 2])):
        state = json.loads(json.dumps(data.state_dict(batches=batches)))
        assert (state["epoch"], state["sharing"]["workers"]) == (0, 2)
        assert state["batch"] == expected
    first = data.state_dict(batches=5)
    data.load_state_dict(first)
    assert run(loader) == whole[5:]
    assert run(loader) == planned(path, 1, num_cursors=5)
    assert data.state_dict(batches=len(whole))["epoch"] == 2
    with pytest.raises(StateError, match="beyond the end"):
        data.state_dict(batches=len(whole) + 1)
    # … after an elastic resume, too
    data.load_state_dict(first)
    rest = run(loading(data, 1))
    given, every = ({clip for batch in one for clip in batch} for one in (whole[:5] + rest, whole))
    assert given == every
    assert run(resumed(stream(path), data.state_dict(batches=2))) == rest[2:]
    assert data.state_dict(batches=len(rest))["epoch"] == 1


# ---- StatefulDataLoader


def test_resuming_with_workers(path: Path) -> None:
    """With StatefulDataLoader, also from a state saved after an elastic resume."""
    first = stream(path, **PLAIN)
    left = begun(first, 9)
    loader = stateful(resumed(stream(path, **PLAIN), first.state_dict()))
    iterator = begun(loader, 3)
    state = json.loads(json.dumps(loader.state_dict()))
    rest, later = run(iterator), run(loader)
    again = stateful(stream(path, **PLAIN), persistent_workers=True)
    again.load_state_dict(state)
    assert [run(again) for _ in range(2)] == [rest, later]
    assert len(rest) + 3 == len(run(left))
    assert len({clip for batch in later for clip in batch}) == len(later) == len(rest) + 3 + 9
    with pytest.raises(StateError, match=r"with as many workers.*state_dict\(batches=…\)"):
        stream(path, **PLAIN).load_state_dict(state)


def test_resuming_after_one_worker_has_ended(path: Path) -> None:
    """An odd number of single clips: the second worker has one fewer."""
    loader, again = (stateful(stream(path, **PLAIN), persistent_workers=True) for _ in "ab")
    assert len(loader) % 2 == 1
    first, states = [], []
    for clip in loader:
        first.append(names(clip))
        states.append(loader.state_dict())
    second = run(loader)
    for place in (len(first) - 2, len(first) - 1):
        again.load_state_dict(states[place - 1])
        assert [run(again) for _ in range(2)] == [first[place:], second]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("persistent", "method", "is_set"),
    [
        (False, "fork", False),
        (True, "fork", False),
        (False, "fork", True),
        (False, "forkserver", False),
    ],
)
def test_resuming_after_many_batches(
    path: Path, persistent: bool, method: str, is_set: bool
) -> None:
    options: dict[str, Any] = {"persistent_workers": persistent}
    options["multiprocessing_context"] = method
    check_resume(
        lambda: stateful(stream(path), **options),
        num_epochs=3 if method == "fork" else 2,
        positions=lambda n: [n // 2, n - 1],
        set_epoch=(lambda one, epoch: one.dataset.set_epoch(epoch)) if is_set else None,  # type: ignore[attr-defined]
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
        rests.append(run(iterator) + run(loader))
    assert rests[0] != rests[1]
    loader = resumed(stateful(stream(path), persistent_workers=True), states[0])
    assert run(loader) + run(loader) == rests[1]


def test_the_settings_of_a_state_reach_the_workers_of_later_epochs(path: Path) -> None:
    few = {"num_cursors": 5}
    one = stateful(stream(path, **few), persistent_workers=True)
    iterator = begun(one)
    other = resumed(stateful(stream(path)), one.state_dict())
    assert [run(other) for _ in range(2)] == [run(iterator), run(one)]
    assert planned(path, 2) != planned(path, 2, 2, **few)


def mix(path: Path) -> SeqRecordMix:
    sources = {
        name: SeqRecordIterableDataset(
            path, clip_len=3, features=["id"], episodes=[f"set/{number}"]
        )
        for number, name in ((0, "one"), (3, "two"))
    }
    return SeqRecordMix(sources, batch_size=4, seed=2, stopping_strategy="all_exhausted")


@pytest.mark.parametrize(("make", "workers"), [(stream, 2), (mix, 1)])
def test_persistent_workers_resume_from_a_loaded_state(
    path: Path, make: Callable[[Path], Any], workers: int
) -> None:
    """They resume once, with its settings, like new workers."""
    first, data = make(path), make(path)
    iterator = begun(first, 4)
    state = json.loads(json.dumps(first.state_dict()))
    del iterator
    fresh = resumed(make(path), state)
    new = loading(fresh, workers, persistent_workers=True)
    expected = [run(new) for _ in range(2)]
    persistent = loading(data, workers, persistent_workers=True)
    assert len(expected[0]) < len(run(persistent))
    data.load_state_dict(state)
    data.set_epoch(0)  # the position stays
    assert [run(persistent) for _ in range(2)] == expected
    data.load_state_dict(state)
    data.set_epoch(5)
    fresh.set_epoch(5)
    assert run(persistent) == run(loading(fresh, workers))


@pytest.mark.slow
def test_all_workers_use_the_state_loaded_when_the_first_began(path: Path) -> None:
    """A state loaded before the other workers begin has no effect on them."""
    first = stream(path)
    iterator = begun(first)
    state = first.state_dict()
    del iterator
    data = gated(path, ("one", 0, 2), MAIN, ("one", 1, 2))
    loader = loader_named("one", data, persistent_workers=True)
    assert run(loader) == planned(path, 0)
    data.load_state_dict(state)
    later = iter(loader)
    data.gates.go(MAIN, lambda: data.load_state_dict({**state, "epoch": 9}))
    assert run(later) == run(loading(resumed(stream(path), state)))


# ---- the state of the main process


@pytest.mark.parametrize("kind", [SeqRecordPipe, SeqRecordIterableDataset])
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


@pytest.mark.parametrize("kind", [SeqRecordPipe, SeqRecordIterableDataset])
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


# ---- the table


def epoch_of(table: Turns, number: int, iterator: int, iteration: int, parent: int = 1) -> int:
    return table.take(Worker(parent, iterator, iteration, number, 3), Start()).start.epoch


def test_the_table_of_turns_has_a_fixed_size() -> None:
    """A worker may be many turns behind others, and an idle rank keeps its epoch."""
    table = Turns()
    assert epoch_of(table, 0, 1, 1, 2) == 0
    for iteration in range(1, 400):
        assert epoch_of(table, 0, 1, iteration) == iteration - 1
    assert [epoch_of(table, 1, 1, iteration) for iteration in (200, 399)] == [199, 398]
    assert epoch_of(table, 0, 1, 2, 2) == 1
    for number in range(40):
        table.set_next(Start(number), {"epoch": number})
    found = table.take(Worker(os.getpid(), 3, 1, 0, 3), Start())
    assert (found.start.epoch, found.loaded) == (39, {"epoch": 39})
