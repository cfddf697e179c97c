"""Concurrent copies of several pieces: a piece is done after its last copy, unless one fails."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.loader.engine.batches import Copy
from seqrecord.loader.engine.traces import Trace
from seqrecord.loader.engine.workers import Copies

PATIENCE = 60  # seconds


class ManualThreads(Executor):
    """Threads whose copies the test makes."""

    def __init__(self) -> None:
        self.copies: list[Callable[[], object]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.copies.append(partial(fn, *args, **kwargs))
        return Future()


def copies_by(threads: Executor, **options: Any) -> Copies:
    options = {"failed": lambda: None, "trace": Trace(), **options}
    return Copies(threads, 2, **options)


def nothing() -> None:
    pass


@given(data=st.data())
def test_a_piece_is_done_with_its_last_copy(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))  # of copies
    broken = data.draw(st.sets(st.integers(0, max(0, sum(counts) - 1)), max_size=2))
    undeliverable = data.draw(st.none() | st.integers(0, len(counts) - 1))
    threads, failed, done = ManualThreads(), [], []
    copies = copies_by(threads, failed=lambda: failed.append(True))

    def deliver(piece: int) -> None:
        if piece == undeliverable:
            raise MemoryError(piece)
        done.append(piece)

    def make(number: int) -> None:
        if number in broken:
            raise ValueError(owner[number])

    owner: list[int] = []  # piece of each copy
    pending: list[int] = []
    missing, bad = list(counts), set[int]()
    begun = 0
    while begun < len(counts) or pending:
        if begun < len(counts) and (not pending or data.draw(st.booleans())):
            numbers = range(len(owner), len(owner) + counts[begun])
            copies.copy(Copy(1, partial(make, number)) for number in numbers)
            pending += numbers
            owner += [begun] * counts[begun]
            copies.finish(partial(deliver, begun))
            begun += 1
        else:
            number = pending.pop(data.draw(st.integers(0, len(pending) - 1)))
            threads.copies[number]()
            missing[owner[number]] -= 1
            if number in broken:
                bad.add(owner[number])
                assert failed
        whole = {piece for piece in range(begun) if not missing[piece]}
        assert sorted(done) == sorted(whole - bad - {undeliverable})
    stops = sorted(bad if undeliverable is None else bad | {undeliverable})
    if not stops:
        copies.wait()
        assert not failed
        return
    assert failed
    with pytest.raises(ValueError if stops[0] in bad else MemoryError) as caught:
        copies.wait()
    assert caught.value.args == (stops[0],)
    copies.wait()  # an error is raised once


def test_a_piece_may_be_copied_in_several_steps_and_is_freed() -> None:
    threads, done = ManualThreads(), list[str]()
    copies = copies_by(threads)
    copies.copy([Copy(1, nothing)])
    threads.copies.pop()()
    assert not done  # it may get more copies
    copies.copy([Copy(1, nothing)])

    def deliver() -> None:
        done.append("piece")

    copies.finish(deliver)
    alive = weakref.ref(deliver)
    del deliver
    assert not done
    threads.copies.pop()()
    assert done == ["piece"]
    assert alive() is None
    copies.wait()


def test_time_of_overlapping_copies_counts_once() -> None:
    now = 0.0
    threads = ManualThreads()
    copies = copies_by(threads, clock=lambda: now)
    now = 5.0
    copies.copy([Copy(1, nothing)] * 2)
    now = 7.0
    threads.copies[0]()
    assert copies.lap() == 2
    now = 8.0
    threads.copies[1]()
    now = 20.0
    assert copies.lap() == 1
    assert copies.lap() == 0


def test_threads_copy_concurrently_and_report_errors() -> None:
    with ThreadPoolExecutor(2) as threads:
        copies, done = copies_by(threads), list[str]()
        meeting = threading.Barrier(3, timeout=PATIENCE)

        def fail() -> None:
            meeting.wait()
            raise ValueError("no such row")

        copies.copy([Copy(1, meeting.wait), Copy(1, fail)])  # type: ignore[arg-type]
        copies.finish(lambda: done.append("piece"))
        meeting.wait()  # both are under way
        with pytest.raises(ValueError, match="no such row"):
            copies.wait()
    assert done == []
