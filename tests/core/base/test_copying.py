"""Concurrent copies of several pieces: a piece is done after its last copy, unless one fails."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqrecord.engine.batches import Copy
from seqrecord.engine.stats import Trace
from seqrecord.engine.workers import Copies, CopyThreads, Done
from tests.kit.processes import own_threads

PATIENCE = 60  # seconds


class ManualThreads:
    """Threads whose copies end when the test calls them."""

    def __init__(self) -> None:
        self.copies: list[Done] = []

    def begin(self, copies: Iterable[Copy], done: Done) -> None:
        self.copies += [done for _ in copies]


@given(data=st.data())
def test_a_piece_is_done_with_its_last_copy(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=6))  # of copies
    broken = data.draw(st.sets(st.integers(0, max(0, sum(counts) - 1)), max_size=2))
    undeliverable = data.draw(st.none() | st.integers(0, len(counts) - 1))
    threads, failed, done = ManualThreads(), [], []
    make: Any = threads
    copies = Copies(make, 2, lambda: failed.append(True))

    def deliver(piece: int) -> None:
        if piece == undeliverable:
            raise MemoryError(piece)
        done.append(piece)

    owner: list[int] = []  # piece of each copy
    pending: list[int] = []
    missing, bad = list(counts), set[int]()
    begun = 0
    while begun < len(counts) or pending:
        if begun < len(counts) and (not pending or data.draw(st.booleans())):
            piece = copies.begin()
            piece.copy(Copy(1, lambda: None) for _ in range(counts[begun]))
            pending += range(len(owner), len(owner) + counts[begun])
            owner += [begun] * counts[begun]
            piece.finish(lambda number=begun: deliver(number))  # type: ignore[misc]
            begun += 1
        else:
            number = pending.pop(data.draw(st.integers(0, len(pending) - 1)))
            error = ValueError(owner[number]) if number in broken else None
            threads.copies[number](error)
            missing[owner[number]] -= 1
            if error is not None:
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
    make: Any = threads
    copies = Copies(make, 2, lambda: None)
    piece = copies.begin()
    piece.copy([Copy(1, lambda: None)])
    threads.copies.pop()(None)
    assert not done  # it may get more copies
    piece.copy([Copy(1, lambda: None)])
    piece.finish(lambda: done.append("piece"))
    alive = weakref.ref(piece)
    del piece
    assert not done
    threads.copies.pop()(None)
    assert done == ["piece"]
    assert alive() is None
    copies.wait()


def test_time_of_overlapping_copies_counts_once() -> None:
    now = 0.0
    threads: Any = ManualThreads()
    copies = Copies(threads, 2, lambda: None, lambda: now)
    piece = copies.begin()
    now = 5.0
    piece.copy([Copy(1, lambda: None)] * 2)
    now = 7.0
    threads.copies[0](None)
    assert copies.lap() == 2
    now = 8.0
    threads.copies[1](None)
    now = 20.0
    assert copies.lap() == 1
    assert copies.lap() == 0


def test_threads_copy_concurrently_and_report_errors() -> None:
    threads = CopyThreads(2, "copy-test", Trace())
    meeting, results = threading.Barrier(3, timeout=PATIENCE), list[Any]()

    def fail() -> None:
        meeting.wait()
        raise ValueError("no such row")

    threads.begin([Copy(1, meeting.wait), Copy(1, fail)], results.append)  # type: ignore[arg-type]
    meeting.wait()  # both are under way
    threads.shutdown()
    assert sorted(map(repr, results)) == ["None", "ValueError('no such row')"]
    assert own_threads("copy-test") == []


def test_copies_not_begun_are_dropped() -> None:
    threads = CopyThreads(1, "copy-test", Trace())
    begun, may_continue, made = threading.Event(), threading.Event(), list[int]()

    def first() -> None:
        begun.set()
        assert may_continue.wait(PATIENCE)

    copies = [Copy(1, first), Copy(1, lambda: made.append(1))]
    threads.begin(copies, lambda error: made.append(0 if error is None else -1))
    assert begun.wait(PATIENCE)
    threading.Timer(0.05, may_continue.set).start()
    threads.shutdown()
    assert made == [0]
