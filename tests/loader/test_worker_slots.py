"""A slot lets a single process begin a start, in every order of their accesses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from seqrecord.errors import StateError
from seqrecord.loader.pipes.worker_slots import NO_EPOCH, NUM_VALUES, SlotValues, WorkerSlot

MAX_ACCESSES = 24  # more than `begin` has


class SharedValues(list[int]):
    """Values of a slot; each access of a thread waits for its turn, if it has turns."""

    def __init__(self, values: SlotValues) -> None:
        super().__init__(values)
        self.before: Callable[[], None] = lambda: None

    def __getitem__(self, index: int) -> int:  # type: ignore[override]
        self.before()
        return super().__getitem__(index)

    def __setitem__(self, index: int, value: int) -> None:  # type: ignore[override]
        self.before()
        super().__setitem__(index, value)


class Turns:
    """Runs two functions in threads, one access at a time: `switches` after so many accesses."""

    def __init__(self, switches: tuple[int, int]) -> None:
        self._switches = switches
        self._turn = 0
        self._counts = [0, 0]
        self._ended = [False, False]
        self._changed = threading.Condition()
        self._own = threading.local()

    def before(self) -> None:
        own = self._own.number
        with self._changed:
            if own == self._turn and self._counts[own] == self._switches[own]:
                self._pass_on(own)
            assert self._changed.wait_for(lambda: self._turn == own, 10)
            self._counts[own] += 1

    def _pass_on(self, own: int) -> None:
        if not self._ended[1 - own]:
            self._turn = 1 - own
            self._changed.notify_all()

    def run(self, number: int, do: Callable[[], None]) -> None:
        self._own.number = number
        do()
        with self._changed:
            self._ended[number] = True
            self._pass_on(number)


@contextmanager
def process_numbers(monkeypatch: pytest.MonkeyPatch, numbers: dict[int, int]) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: numbers.get(threading.get_ident(), 1))
        yield


def begin_together(
    monkeypatch: pytest.MonkeyPatch, before: SlotValues, switches: tuple[int, int]
) -> tuple[list[int], list[int]]:
    """The numbers of the processes that have begun, and the slot's values."""
    values, turns, begun, numbers = SharedValues(before), Turns(switches), list[int](), {0: 0}
    values.before = turns.before

    def begin(number: int) -> None:
        numbers[threading.get_ident()] = 100 + number
        with suppress(StateError):
            WorkerSlot(values).begin(7, 3, 2, before)
            begun.append(100 + number)

    threads = [
        threading.Thread(target=turns.run, args=(number, lambda number=number: begin(number)))
        for number in range(2)
    ]
    with process_numbers(monkeypatch, numbers):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    return begun, [*list.__iter__(values)]


@pytest.mark.parametrize(
    "before",
    [
        SlotValues(),  # of a new row
        SlotValues(6, 2, 2, 2, 99, 5),  # another start, by a process that has ended
        SlotValues(7, 2, 2, 2, 99, 5),  # the epoch before it
    ],
    ids=["new", "other-start", "epoch-before"],
)
def test_a_single_process_begins(monkeypatch: pytest.MonkeyPatch, before: SlotValues) -> None:
    """The first pauses after some accesses, the second after others: with two pauses, all orders.

    Both may fail; then both iterations raise the error.
    """
    num_begun = set[int]()
    for first in range(MAX_ACCESSES):
        for second in range(MAX_ACCESSES):
            begun, values = begin_together(monkeypatch, before, (first, second))
            assert len(begun) <= 1, (first, second)
            num_begun.add(len(begun))
            if begun:
                assert values[:3] == [7, 2, 3], (first, second)
    assert 1 in num_begun


def test_a_process_alone_begins_and_finishes() -> None:
    values = [0] * NUM_VALUES
    slot = WorkerSlot(values)
    begun = slot.begin(1, 4, 2, slot.read())
    assert begun == (1, 2, 4, NO_EPOCH, os.getpid(), 1)
    slot.finish(4)
    assert slot.read().finished == 4
    # The following epoch keeps the mark: other workers may not have read it yet.
    following = slot.begin(1, 5, 2, slot.read())
    assert (following.epoch, following.finished, following.iterations) == (5, 4, 2)
    assert slot.begin(2, 5, 2, slot.read()).finished == NO_EPOCH


def test_a_process_after_another_is_refused() -> None:
    values = [0] * NUM_VALUES
    slot = WorkerSlot(values)
    before = slot.read()
    values[:] = [1, 2, 0, NO_EPOCH, os.getpid() + 1, 1]  # as another process begins
    with pytest.raises(StateError, match="at the same time"):
        slot.begin(1, 0, 2, before)
    begun = slot.begin(1, 0, 2, None)  # any may, for example with an order without epochs
    assert slot.is_of(os.getpid())
    values[4] += 1
    assert not slot.is_of(os.getpid())
    with pytest.raises(StateError, match="epoch 0"):
        slot.check_epoch(begun)
    values[2] = 1  # the other process has another epoch
    slot.check_epoch(begun)
