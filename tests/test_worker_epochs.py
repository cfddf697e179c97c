"""Epochs in a DataLoader's worker processes: which one it is, and who knows of it."""

from __future__ import annotations

import copy
import errno
import gc
import itertools
import json
import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import (
    ClipError,
    SeqRecordError,
    SeqRecordMix,
    SeqRecordPipe,
    SeqRecordStream,
    StateError,
)
from seqrecord.pipes.worker_epochs import SharedEpochs
from seqrecord.processes.threads import ThreadPool
from tests.clip_data import begun, check, digests, leaves_nothing, make_loader, names, resumed
from tests.resume_contract import check_resume

pytestmark = [
    pytest.mark.timeout(300),  # a spawned worker imports torch: long, on a busy machine
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]
FEATURES = ["image", "flow", "note", "id"]


def stream(path: Path, kind: Any = SeqRecordStream, **changes: Any) -> Any:
    return make_loader(path, kind, **{"features": ["id"], **changes})


def stateful(data: Any, workers: int = 2, **options: Any) -> Any:
    return StatefulDataLoader(data, batch_size=None, num_workers=workers, **options)


def loading(data: Any, workers: int = 2, **options: Any) -> Any:
    return DataLoader(data, batch_size=None, num_workers=workers, **options)


def planned(path: Path, epoch: int, workers: int = 2, **changes: Any) -> list[Any]:
    """The batches of an epoch as a DataLoader gives them, each of its workers in turn."""
    parts = []
    for worker in range(workers):
        alone = stream(path, **changes, rank=worker, world_size=workers)
        alone.set_epoch(epoch)
        parts.append([names(batch) for batch in alone])
    return [batch for turn in zip_longest(*parts) for batch in turn if batch]


def plan(path: Path, epochs: Sequence[int], workers: int = 2, **changes: Any) -> list[Any]:
    """These epochs, one after the other."""
    return [planned(path, epoch, workers, **changes) for epoch in epochs]


def run(loader: Any) -> list[Any]:
    return [names(batch) for batch in loader]


def starts() -> Iterator[Any]:
    """How workers start and whether they persist, under which loader, and for so many epochs."""
    fast = [(loading, "fork", True), (stateful, "fork", False), (stateful, "forkserver", False)]
    for case in itertools.product(
        (loading, stateful), ("fork", "forkserver", "spawn"), (False, True)
    ):
        if case[1] == "spawn" and case[2] != (case[0] is loading):
            continue  # each start of a worker imports torch
        marks = () if case in fast else pytest.mark.slow
        yield pytest.param(*case, 3 if case[1] == "fork" else 2, marks=marks)


@pytest.mark.parametrize(("loader_of", "start", "persistent", "num_epochs"), list(starts()))
def test_epochs_of_workers_are_those_of_the_plan(
    path: Path, loader_of: Any, start: str, persistent: bool, num_epochs: int
) -> None:
    workers = 2 if start == "fork" else 1
    kind = SeqRecordPipe if loader_of is loading else SeqRecordStream
    expected = plan(path, range(num_epochs), workers, features=FEATURES)
    gc.collect()
    with leaves_nothing() if start == "fork" else nullcontext():
        data = stream(path, kind, features=FEATURES)
        loader = loader_of(
            data, workers, persistent_workers=persistent, multiprocessing_context=start
        )
        found = [[check(batch, FEATURES, 3) for batch in loader] for _ in range(num_epochs)]
        assert found == expected
        assert len(loader) == len(found[0])
        del loader, data
    assert expected[0] != expected[1]


def test_equal_seeds_are_not_taken_for_one_epoch(path: Path) -> None:
    data = stream(path)
    for epoch in range(2):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(7) if epoch else None
        assert run(loading(data, generator=generator)) == planned(path, epoch)


def test_an_epoch_left_early_in_workers_is_over(path: Path) -> None:
    loader = stateful(stream(path))
    for batch in loader:
        assert names(batch) == planned(path, 0)[0]
        break
    assert run(loader) == planned(path, 1)


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


def _set_epoch(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    assert info.id == worker
    assert isinstance(info.dataset, SeqRecordStream)
    info.dataset.set_epoch(5)


def test_workers_may_set_the_epoch(path: Path) -> None:
    data = stream(path)
    loader = loading(data, worker_init_fn=_set_epoch)
    assert run(loader) == planned(path, 5) == run(loader)
    assert run(loading(data)) == planned(path, 6)


def test_a_new_number_of_workers_goes_on_with_the_next_epoch(path: Path) -> None:
    data = stream(path)
    for epoch, workers in enumerate((2, 3, 1)):
        loader = loading(data, workers)
        assert run(loader) == planned(path, epoch, workers)


class Wrapped(IterableDataset[Any]):
    """What users write."""

    def __init__(self, data: SeqRecordStream) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        yield from self.data


def test_a_stream_inside_another_dataset(path: Path) -> None:
    loader = loading(Wrapped(stream(path)))
    assert [run(loader) for _ in range(2)] == plan(path, range(2))


def test_copies_go_their_own_way(path: Path) -> None:
    data = stream(path)
    loader = loading(data, 1)
    run(loader)
    for other in (copy.deepcopy(data), pickle.loads(pickle.dumps(data))):
        assert run(other) == planned(path, 1, 1)
        assert run(loading(other)) == planned(path, 2)
    assert run(loader) == planned(path, 1, 1)


def _rank(data: SeqRecordStream, rank: int, queue: Any) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    # Else each rank of a fork server would start one of its own, which imports torch.
    loader = loading(data, 1 + rank, multiprocessing_context="fork")
    queue.put((rank, [run(loader) for _ in range(2 + rank)]))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_ranks_that_were_sent_one_stream_count_alone(path: Path, method: str) -> None:
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
        for number, epoch in enumerate(epochs):
            parts = []
            for worker in range(1 + rank):
                part = rank * (1 + rank) + worker
                alone = stream(path, rank=part, world_size=2 * (1 + rank))
                alone.set_epoch(1 + number)
                parts.append([names(batch) for batch in alone])
            assert epoch == [b for turn in zip_longest(*parts) for b in turn if b]


# ---- several DataLoaders around one stream, whose workers begin in any order

Who = tuple[str, int, int]
"""A loader's name, its worker, and which iteration it is that this one begins."""


class Gates:
    """Lets things happen in a given order. Goes to processes that are being started."""

    def __init__(self, order: Sequence[Who], method: str = "fork") -> None:
        context = multiprocessing.get_context(method)
        self.order = list(order)
        self.condition = context.Condition()
        self.next = context.Value("i", 0)

    def go(self, who: Who, begin: Callable[[], Any]) -> Any:
        """What `begin()` gives, once all that come before have begun."""
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


def call_it(name: str, _worker: int) -> None:
    """The loader's name, for `worker_init_fn`."""
    global _name
    _name = name


class Gated:
    """A loader whose iterations in workers begin in the order of the gates."""

    gates: Gates

    def __iter__(self) -> Iterator[Any]:
        global _turn
        begin = super().__iter__  # type: ignore[misc]
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return iter(begin())
        _turn += 1
        return iter(self.gates.go((_name, worker.id, _turn), begin))


class GatedStream(Gated, SeqRecordStream):
    pass


class GatedPipe(Gated, SeqRecordPipe):
    pass


class GatedMix(Gated, SeqRecordMix):
    pass


def same(item: Any) -> Any:
    return item


def make_gated(path: Path, kind: Any, order: Sequence[Who], method: str = "fork") -> Any:
    made: Any
    if kind is GatedMix:
        made = kind({"one": SeqRecordStream(path, clip_len=3, features=["id"])}, batch_size=4)
    else:
        made = stream(path, kind)
    made.gates = Gates(order, method)
    return made.map(same) if kind is GatedPipe else made


def gated(path: Path, *order: Who, method: str = "fork") -> Any:
    return make_gated(path, GatedStream, order, method)


def loader_named(name: str, data: Any, workers: int = 2, **options: Any) -> Any:
    return loading(data, workers, worker_init_fn=partial(call_it, name), **options)


ORDERS: list[list[Who]] = [
    [("one", 0, 1), ("two", 0, 1), ("one", 1, 1), ("two", 1, 1)],
    [("two", 1, 1), ("two", 0, 1), ("one", 1, 1), ("one", 0, 1)],
    [("two", 0, 1), ("one", 1, 1), ("one", 0, 1), ("two", 1, 1)],
]


def interleaved(loaders: Sequence[Any]) -> list[list[Any]]:
    """What each loader gives, when they are iterated over at the same time."""
    found: list[list[Any]] = [[] for _ in loaders]
    for turn in zip_longest(*loaders):
        for given, batch in zip(found, turn, strict=True):
            given += [names(batch)] * (batch is not None)
    return found


@pytest.mark.parametrize(
    ("kind", "method", "order"),
    [
        *(pytest.param(GatedStream, "fork", ORDERS[i], id=f"stream-fork{i}") for i in range(3)),
        pytest.param(GatedPipe, "fork", ORDERS[1], id="pipe-fork1"),
        pytest.param(GatedMix, "fork", ORDERS[1], id="mix-fork1"),
        *(
            pytest.param(
                GatedStream, method, ORDERS[i], marks=pytest.mark.slow, id=f"stream-{method}{i}"
            )
            for method, i in (("forkserver", 0), ("spawn", 1))
        ),
    ],
)
def test_two_loaders_at_once(path: Path, kind: Any, method: str, order: list[Who]) -> None:
    """The one that was iterated over first has the first epoch, whoever's workers begin first."""
    alone = make_gated(path, kind, [], method)
    loader = loader_named("", alone, multiprocessing_context=method)
    expected = [run(loader) for _ in range(4)]
    data = make_gated(path, kind, order, method)
    loaders = [loader_named(n, data, multiprocessing_context=method) for n in ("one", "two")]
    assert interleaved(loaders) == expected[:2]
    gates: Any = data if kind is not GatedPipe else data.datapipe
    gates.gates = Gates([], method)
    assert interleaved(loaders) == expected[2:]
    if kind is GatedStream:
        assert expected == plan(path, range(4))
        assert run(data) == planned(path, 4, 1)


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_two_loaders_at_once_whose_workers_persist(path: Path, method: str) -> None:
    data = gated(path, *ORDERS[2], method=method)
    options: dict[str, Any] = {"multiprocessing_context": method, "persistent_workers": True}
    loaders = [loader_named(name, data, **options) for name in ("one", "two")]
    assert interleaved(loaders) == plan(path, range(2))
    # Which of the two has which epoch is not promised from here on.
    for epochs in ((2, 3), (4, 5)):
        assert sorted(interleaved(loaders)) == sorted(planned(path, e) for e in epochs)
    assert run(loaders[1]) == planned(path, 6)


def test_equal_seeds_before_a_loader_with_more_workers(path: Path) -> None:
    data = gated(path, ("two", 2, 1), ("two", 1, 1), ("two", 0, 1))
    for epoch, (name, workers) in enumerate([("one", 2), ("two", 3)]):
        torch.manual_seed(0)
        assert run(loader_named(name, data, workers)) == planned(path, epoch, workers)


def test_equal_seeds_of_two_loaders_at_once(path: Path) -> None:
    data = gated(path, *ORDERS[0])
    loaders = [
        loader_named(name, data, generator=torch.Generator().manual_seed(7))
        for name in ("one", "two")
    ]
    assert interleaved(loaders) == plan(path, range(2))


def test_a_worker_that_begins_when_another_loader_is_done(path: Path) -> None:
    data = gated(path, ("two", 0, 1), ("two", 1, 1), ("one", 1, 1))
    first = iter(loader_named("one", data))
    assert names(next(first)) == planned(path, 0)[0]
    assert run(loader_named("two", data)) == planned(path, 1)
    assert run(first) == planned(path, 0)[1:]
    assert run(loader_named("three", data)) == planned(path, 2)


@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_an_iterator_that_gives_nothing_has_its_epoch(path: Path, method: str) -> None:
    loader = loading(stream(path), multiprocessing_context=method)
    iter(loader)
    first, second = iter(loader), iter(loader)
    assert run(second) == planned(path, 2)
    assert run(first) == planned(path, 1)
    assert run(loader) == planned(path, 3)


@pytest.mark.parametrize("reset", [True, False])
def test_workers_that_begin_late(path: Path, reset: bool) -> None:
    """What the process with the loader does meanwhile is of later iterations."""
    data = gated(path, MAIN, ("one", 1, 1), ("one", 0, 1))
    loader = loader_named("one", data)
    iterator = iter(loader)
    if reset:
        data.gates.go(MAIN, lambda: data.set_epoch(7))
    else:
        assert data.gates.go(MAIN, lambda: run(data)) == planned(path, 1, 1)
    assert run(iterator) == planned(path, 0)
    assert run(loader) == planned(path, 7 if reset else 2, 2)


class TwiceOver(IterableDataset[Any]):
    """Has two epochs in each iteration."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> Iterator[Any]:
        for _ in range(2):
            yield from self.data


def test_a_worker_that_is_an_epoch_ahead_of_another(path: Path) -> None:
    order: list[Who] = [("one", 0, 1), ("one", 0, 2), ("one", 1, 1), ("one", 1, 2)]
    data = gated(path, *order)
    found = run(loader_named("one", TwiceOver(data), prefetch_factor=30))
    assert found[::2] == planned(path, 0)[::2] + planned(path, 1)[::2]
    assert found[1::2] == planned(path, 0)[1::2] + planned(path, 1)[1::2]


def test_streams_inside_other_datasets_at_once(path: Path) -> None:
    """The loader whose worker begins first has the first epoch."""
    data = Wrapped(gated(path, *ORDERS[1]))
    loaders = [loader_named(name, data) for name in ("one", "two")]
    assert interleaved(loaders) == plan(path, (1, 0))


def test_threads_that_iterate_at_the_same_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = stream(path)
    together, other = threading.Barrier(2), threading.Event()
    create, callers = os.memfd_create, list[int]()

    def create_slowly(name: str, *flags: int) -> int:
        callers.append(threading.get_ident())
        if len(callers) > 1:
            other.set()
        other.wait(0.5)  # the other thread comes meanwhile, if nothing holds it
        return create(name, *flags)

    monkeypatch.setattr(os, "memfd_create", create_slowly)

    def epochs() -> list[Any]:
        loader = loading(data)
        together.wait(60)
        return [run(loader) for _ in range(2)]

    # Not threads of `concurrent.futures`: a process that is forked from one ends with exit code 1,
    # for it joins itself, and torch may see that in the main thread before it ends its workers.
    with ThreadPool(2, "iterating") as pool:
        found = [pool.submit(epochs) for _ in range(2)]
        given = [epoch for future in found for epoch in future.result(100)]
    assert len(callers) == 1
    assert sorted(given) == sorted(planned(path, epoch) for epoch in range(4))


class Unpickled(IterableDataset[Any]):
    """Makes a stream of its own in each worker."""

    def __init__(self, data: SeqRecordStream) -> None:
        self.pickled = pickle.dumps(data)

    def __iter__(self) -> Iterator[Any]:
        yield from pickle.loads(self.pickled)


def test_a_stream_that_a_worker_has_made_counts_alone(path: Path) -> None:
    loader = loading(Unpickled(stream(path)))
    assert [run(loader) for _ in range(2)] == [planned(path, 0)] * 2


def tell_one(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    if worker == 1:
        info.dataset.set_epoch(5)  # type: ignore[attr-defined]


def test_workers_that_are_told_different_epochs(path: Path) -> None:
    loader = loading(stream(path), worker_init_fn=tell_one)
    iterator: Any = iter(loader)
    with pytest.raises(ClipError, match="were told to begin different epochs"):
        run(iterator)
    iterator._shutdown_workers()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_without_shared_memory_workers_raise(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    data = stream(path)
    loader = loading(data)
    with monkeypatch.context() as patched:
        patched.setattr(os, "memfd_create", refuse)
        iterator: Any = iter(loader)
        with pytest.raises(SeqRecordError, match=r"was forked.*too many open files"):
            next(iterator)
        iterator._shutdown_workers()  # left to the garbage collector, torch waits 5 s for each
    assert run(loader) == planned(path, 0)


# ---- resuming


@pytest.mark.parametrize("persistent", [pytest.param(False, marks=pytest.mark.slow), True])
def test_resuming_with_workers(path: Path, persistent: bool, thorough: bool) -> None:
    check_resume(
        lambda: stateful(stream(path), persistent_workers=persistent),
        num_epochs=3 if thorough else 2,
        positions=lambda n: [n // 2, n - 1] if thorough else [n // 2],
    )


@pytest.mark.slow
def test_resuming_with_workers_that_are_not_forked(path: Path) -> None:
    options: dict[str, Any] = {"multiprocessing_context": "forkserver"}
    loader = stateful(stream(path), **options)
    iterator = begun(loader, 3)
    again = resumed(stateful(stream(path), **options), loader.state_dict())
    del iterator
    assert run(again) == planned(path, 0)[3:]
    assert run(again) == planned(path, 1)


def test_resuming_with_set_epoch(path: Path, thorough: bool) -> None:
    with leaves_nothing():
        check_resume(
            lambda: stateful(stream(path)),
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
        loader = stateful(stream(path))
        iterator = begun(loader, 3)
        states.append(loader.state_dict())
        rests.append(run(iterator) + run(loader))
    assert rests[0] != rests[1]
    loader = resumed(stateful(stream(path)), states[0])
    assert run(loader) + run(loader) == rests[1]
    alone = resumed(
        stream(path), states[0]["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]
    )
    with pytest.raises(StateError, match="one worker does not say how far the others are"):
        iter(alone)


def test_the_settings_of_a_state_reach_the_workers_of_later_epochs(path: Path) -> None:
    few = {"num_cursors": 5}
    one = stateful(stream(path, **few))
    iterator = begun(one)
    other = resumed(stateful(stream(path)), one.state_dict())
    assert [run(other) for _ in range(3)] == [run(iterator), run(one), run(one)]
    assert planned(path, 2) != planned(path, 2, 2, **few)


def mix(path: Path) -> SeqRecordMix:
    sources = {
        name: SeqRecordStream(path, clip_len=3, features=["id"], episodes=[f"set/{number}"])
        for number, name in ((0, "one"), (3, "two"))
    }
    return SeqRecordMix(sources, batch_size=4, seed=2, stop="longest")


@pytest.mark.parametrize(("make", "workers"), [(stream, 2), (mix, 1)])
def test_a_state_that_is_loaded_beside_workers_that_persist(
    path: Path, make: Callable[[Path], Any], workers: int
) -> None:
    """They begin there, as new ones do, with its settings; and so once."""
    first = make(path)
    iterator = begun(first, 4)
    state = json.loads(json.dumps(first.state_dict()))
    del iterator
    fresh = resumed(make(path), state)
    expected = [run(loading(fresh, workers)) for _ in range(2)]
    data = make(path)
    persistent = loading(data, workers, persistent_workers=True)
    whole = run(persistent)
    assert len(expected[0]) < len(whole)
    for again in (False, True):
        data.load_state_dict(state)
        if again:
            data.set_epoch(0)  # the position stays
        assert [run(persistent) for _ in range(2)] == expected
    data.load_state_dict(state)
    data.set_epoch(5)
    fresh.set_epoch(5)
    assert run(persistent) == run(loading(fresh, workers))


def test_a_state_that_is_loaded_before_all_workers_have_begun_with_another(path: Path) -> None:
    """They begin with the one that was there when the first of them has begun."""
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


def test_the_settings_of_a_state_reach_workers_that_persist(path: Path) -> None:
    """In later epochs, too."""
    few = stream(path, num_cursors=5)
    next(iter(few))
    data = stream(path)
    loader = loading(data, 1, persistent_workers=True)
    run(loader)
    data.load_state_dict(few.state_dict())
    assert run(loader) == planned(path, 0, 1, num_cursors=5)[1:]
    assert run(loader) == planned(path, 1, 1, num_cursors=5) != planned(path, 1, 1)


# ---- the state of the process that has the workers


@pytest.mark.parametrize("kind", [SeqRecordPipe, SeqRecordStream])
def test_a_state_asked_beside_workers_is_an_error(path: Path, kind: type[Any]) -> None:
    data = make_loader(path, kind)
    loader = loading(data)
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
    pipe = make_loader(path)
    iterator = begun(loading(pipe, 0))
    assert digests(resumed(make_loader(path), pipe.state_dict())) == digests(iterator)


def test_stateful_loader_over_a_pipe_warns(path: Path) -> None:
    for pipe in (make_loader(path), make_loader(path).map(len)):
        with pytest.warns(UserWarning, match="resumes SeqRecordStream exactly"):
            next(iter(stateful(pipe, 0)))


# ---- the record


def test_workers_of_a_turn_are_told_the_same_epoch() -> None:
    shared, state = SharedEpochs(), {"epoch": 3}
    shared.set_next(5)
    assert shared.begun() == (None, None)
    assert [shared.begin(1, 1) for _worker in range(3)] == [(5, None, None)] * 3
    assert shared.begun() == (5, None)
    found = [shared.begin(1, 2)[0], shared.begin(2, 1)[0], shared.begin(1, 2)[0]]
    assert found == [6, 7, 6]
    assert shared.begun() == (7, None)
    shared.set_next(3, state, state)
    assert shared.begun() == (None, state)
    assert shared.begin(1, 2) == (6, None, state)  # a late one
    assert shared.begin(1, 1) == (5, None, state)
    assert shared.begun() == (None, state)
    shared.allot(4)
    shared.allot(4)
    assert shared.begin(3, 1) == (4, None, state)
    assert shared.begin(4, 1) == (3, state, state)
    with pytest.raises(ClipError, match="does not know which epoch it is to begin"):
        shared.begin(None, 1)


def test_workers_that_are_told_an_epoch() -> None:
    shared, state, late = SharedEpochs(), {"epoch": 4}, {"epoch": 3}
    shared.allot(1)
    assert [shared.begin(1, 1, 4, state) for _worker in range(2)] == [(4, None, state)] * 2
    assert shared.begun() == (4, state)
    assert shared.begin(1, 2) == (5, None, state)
    for turn, told in ((1, None), (1, 5), (2, 5)):
        with pytest.raises(ClipError, match="were told to begin different epochs"):
            shared.begin(1, turn, told)
    shared.allot(2)
    shared.set_next(9)  # before the workers come
    assert shared.begin(2, 1, 3, late) == (3, None, None)
    assert shared.begun() == (None, None)
    assert shared.begin(3, 1) == (9, None, None)


def test_a_worker_may_be_many_turns_behind_others() -> None:
    shared = SharedEpochs()
    for turn in range(1, 40):
        shared.begin(1, turn)
    for group in range(2, 200):
        shared.begin(group, 1)
    assert [shared.begin(1, turn)[0] for turn in (1, 30)] == [0, 29]
    assert shared.begin(200, 1)[0] == 39 + 198
