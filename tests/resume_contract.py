"""One test of resuming for everything that has a state: it must not matter that it was saved."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol

from tests.clip_data import digest

__all__ = ["Resumable", "check_resume"]


class Resumable(Protocol):
    """An iterable that is run epoch after epoch, and can be saved between any two items."""

    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> None: ...


def check_resume(
    make: Callable[[], Resumable],
    *,
    num_epochs: int = 3,
    positions: Callable[[int], Iterable[int]] = range,
    set_epoch: Callable[[Resumable, int], None] | None = None,
) -> None:
    """Saves after each of `positions(n)` of an epoch's n items, the first, the last and its end.

    In all epochs but the last. What is run from there in a new object must be equal, values and
    all, to what was run without interruption: to the epoch's end from all positions, and through
    the next epoch from the first, a middle and the last one. Nor may saving change what is run.
    `set_epoch` is called before each loop where a loader needs it.
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
    """Of each epoch its items, and the states after so many of them and, at `None`, its end."""
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
