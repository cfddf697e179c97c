"""Contract of resumable loaders: a resumed run equals an uninterrupted one.

`check_resume` is ours. `check_node` and `check_stateful_loader` repeat torchdata's own tests
(test/nodes/utils.py and test/stateful_dataloader/test_state_dict.py of version 0.11).
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol

from torchdata.nodes import BaseNode, Loader
from torchdata.stateful_dataloader import StatefulDataLoader

from seqrecord import SeqRecordNode
from tests.kit.clip_data import digest


class Resumable(Protocol):
    """An iterable over epochs whose state can be saved between any two items."""

    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> None: ...


class Direct(SeqRecordNode):
    """A node without torchdata's Loader, as a `Resumable`."""

    def __iter__(self) -> Iterator[Any]:
        self.reset()
        return iter(self.next, None)


def check_resume(
    make: Callable[[], Resumable],
    *,
    num_epochs: int = 3,
    positions: Callable[[int], Iterable[int]] = range,
    set_epoch: Callable[[Resumable, int], None] | None = None,
) -> None:
    """Save after each of `positions(n)` of an epoch's n items, the first, the last and its end.

    In all epochs but the last. A new object that resumes there must return the same items as an
    uninterrupted run, values included: to the epoch's end from all positions, and through the next
    epoch from the first, a middle and the last one. Saving must not change the run.
    `set_epoch` is called before each loop of loaders that need it.
    """
    epochs = [items for items, _ in _run(make(), num_epochs, lambda _: (), set_epoch)]
    assert len({repr(epoch) for epoch in epochs}) == num_epochs, "epochs differ"
    saved = [{*positions(len(epoch)), 1, len(epoch)} - {0} for epoch in epochs]
    again = list(_run(make(), num_epochs, saved.__getitem__, set_epoch))
    assert [items for items, _ in again] == epochs

    for number in range(num_epochs - 1):
        states = again[number][1]
        _check_from(make, states.pop(None), number + 1, epochs[number + 1], set_epoch)
        places = sorted(position for position in states if position is not None)
        assert places == sorted(saved[number]), "the epoch has fewer items"
        for position in places:
            expected = epochs[number][position:]
            if position in (places[0], places[len(places) // 2], places[-1]):
                expected = expected + epochs[number + 1]
            _check_from(make, states[position], number, expected, set_epoch)


def _run(
    loader: Resumable,
    num_epochs: int,
    positions: Callable[[int], Collection[int]],
    set_epoch: Callable[[Resumable, int], None] | None,
) -> Iterator[tuple[list[Any], dict[int | None, dict[str, Any]]]]:
    """Items of each epoch, and the states after each position and, at `None`, its end."""
    for number in range(num_epochs):
        if set_epoch is not None:
            set_epoch(loader, number)
        items: list[Any] = []
        states: dict[int | None, dict[str, Any]] = {}
        for item in loader:
            items.append(digest(item))
            if len(items) in positions(number):
                states[len(items)] = copy.deepcopy(loader.state_dict())
        states[None] = copy.deepcopy(loader.state_dict())
        yield items, states


def _check_from(
    make: Callable[[], Resumable],
    state: dict[str, Any],
    number: int,
    expected: list[Any],
    set_epoch: Callable[[Resumable, int], None] | None,
) -> None:
    loader = make()
    loader.load_state_dict(state)
    got: list[Any] = []
    epoch = number
    while len(got) < len(expected):
        if set_epoch is not None:
            set_epoch(loader, epoch)
        got += [digest(item) for item in loader]
        epoch += 1
        assert epoch < number + 10, "epochs are empty"
    assert got == expected


def check_node(node: BaseNode[Any], middle: int) -> None:
    """Check that a node's states satisfy `torchdata.nodes.Loader`, with one node throughout.

    From the start and the middle of an epoch, its rest and the next epoch follow. From its end
    nothing follows, or with `restart_on_stop_iteration` the next epoch.
    """
    loader = Loader(node)
    states = [copy.deepcopy(loader.state_dict())]
    iterator = iter(loader)
    first = _take(iterator, middle)
    states.append(copy.deepcopy(loader.state_dict()))
    first += _all(iterator)
    states.append(copy.deepcopy(loader.state_dict()))
    second = _all(loader)
    assert len(first) > middle > 0
    assert first != second

    for place, state in zip((0, middle), states, strict=False):
        for _ in range(2):  # earlier items must not matter
            loader.load_state_dict(state)
            iterator = iter(loader)
            assert loader.state_dict() == state
            assert _all(iterator) == first[place:]
            assert _all(loader) == second
    once = Loader(node, restart_on_stop_iteration=False)
    once.load_state_dict(states[-1])
    assert _all(once) == []
    assert _all(once) == second
    again = Loader(node)
    again.load_state_dict(states[-1])
    assert _all(again) == second


def check_stateful_loader(make: Callable[..., StatefulDataLoader[Any]]) -> None:
    """Check that a StatefulDataLoader resumes as in torchdata's own tests.

    `make` is called with `snapshot_every_n_steps`. With workers, `set_epoch` is called before each
    epoch but the first one of a loader.
    """

    def set_epoch(loader: StatefulDataLoader[Any], number: int) -> None:
        if loader.num_workers:
            loader.dataset.set_epoch(number)

    def epoch(loader: StatefulDataLoader[Any], number: int) -> list[Any]:
        set_epoch(loader, number)
        return _all(loader)

    loader = make()
    iterator = iter(loader)
    states = {0: _saved(loader)}
    first = []
    for item in iterator:
        first.append(digest(item))
        states[len(first)] = _saved(loader)
    end = _saved(loader)
    second, third = epoch(loader, 1), epoch(loader, 2)
    assert len({repr(each) for each in (first, second, third)}) == 3

    for place in (0, 1, len(first) // 2, len(first) - 1):
        other = make()
        _take(iter(other), 2)  # a state may be loaded at any position
        other.load_state_dict(states[place])
        set_epoch(other, 0)
        assert _all(other) == first[place:]
        assert epoch(other, 1) == second
    other = make()
    other.load_state_dict(states[0])
    assert _all(other) == first
    other.load_state_dict(end)
    assert epoch(other, 1) == second
    assert epoch(other, 2) == third

    for every, place in itertools.product((2, 5), (1, 4)):
        loader = make(snapshot_every_n_steps=every)
        _take(iter(loader), place)
        state = _saved(loader)
        other = make(snapshot_every_n_steps=every)
        other.load_state_dict(state)
        # … and a state requested before every worker has returned another item
        iterator = iter(other)
        assert _take(iterator, 1) == first[place : place + 1]
        last = make()
        last.load_state_dict(_saved(other))
        assert _all(last) == first[place + 1 :] == _all(iterator)


def _saved(loader: Any) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


def _all(items: Iterable[Any]) -> list[Any]:
    return [digest(item) if isinstance(item, dict) else [*map(digest, item)] for item in items]


def _take(iterator: Iterator[Any], count: int) -> list[Any]:
    return _all(next(iterator) for _ in range(count))
