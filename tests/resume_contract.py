"""One test of resuming for everything that has a state: it must not matter that it was saved."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
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
    """Saves after each of `positions(n)` of the first two epochs' n items, and at their ends.

    What is run from there on in a new object must be equal, values and all, to what was run
    without interruption. `set_epoch` is called before each loop where a loader needs it.
    """
    loader = make()
    epochs = []
    for number in range(num_epochs):
        if set_epoch is not None:
            set_epoch(loader, number)
        epochs.append(_epoch(loader))
    assert len({repr(epoch) for epoch in epochs}) == num_epochs, "epochs differ"
    everything = [item for epoch in epochs for item in epoch]

    for number in range(num_epochs - 1):
        before = sum(map(len, epochs[:number]))
        for position in sorted({*positions(len(epochs[number])), 1, len(epochs[number])}):
            if position:
                state = _interrupted(make(), number, position, set_epoch)
                _check_from(make, state, number, everything[before + position :], set_epoch)
        state = _interrupted(make(), number, None, set_epoch)
        rest = everything[before + len(epochs[number]) :]
        _check_from(make, state, number + 1, rest, set_epoch)


def _epoch(loader: Resumable) -> list[Any]:
    return [digest(item) for item in loader]


def _interrupted(
    loader: Resumable,
    number: int,
    position: int | None,
    set_epoch: Callable[[Resumable, int], None] | None,
) -> dict[str, Any]:
    """The state after so many items of an epoch, or after its end."""
    for epoch in range(number + 1):
        if set_epoch is not None:
            set_epoch(loader, epoch)
        for count, _ in enumerate(loader, start=1):
            if epoch == number and count == position:
                return copy.deepcopy(loader.state_dict())
    assert position is None, "the epoch has fewer items"
    return copy.deepcopy(loader.state_dict())


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
        got += _epoch(loader)
        epoch += 1
        assert epoch < number + 10, "epochs are empty"
    assert got[: len(expected)] == expected
