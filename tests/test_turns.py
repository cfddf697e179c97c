"""Tasks of one line follow each other, and no thread waits for that."""

from __future__ import annotations

import threading
import time
from concurrent.futures import CancelledError, Future
from functools import partial

import pytest

from seqrecord.engine.turns import Turns
from seqrecord.threads import ThreadPool

PATIENCE = 60  # seconds; what hangs fails


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_tasks_of_a_line_come_one_after_the_other(threads: int) -> None:
    running: dict[int, int] = {}
    done: list[tuple[int, int]] = []

    def task(line: int, number: int) -> int:
        assert running.setdefault(line, 0) == 0
        running[line] = 1
        time.sleep(0.0005)
        done.append((line, number))
        running[line] = 0
        return number

    with ThreadPool(threads, "test") as pool:
        turns = Turns(pool)
        futures = []
        for n in range(60):  # a third of them in no line
            line = n % 3 or None
            futures.append(turns.submit(line, partial(task, line or -n - 1, n)))
        assert [future.result(PATIENCE) for future in futures] == list(range(60))
    for line in (1, 2):
        assert [n for at, n in done if at == line] == list(range(line, 60, 3))
    if threads == 1:
        assert [n for _, n in done] == list(range(60))


def test_a_thread_that_could_wait_takes_what_can_begin() -> None:
    first, others = threading.Event(), threading.Event()
    with ThreadPool(2, "test") as pool:
        turns = Turns(pool)
        waiting = [turns.submit("a", lambda: first.wait(PATIENCE)), turns.submit("a", lambda: 1)]
        free = turns.submit("b", others.set)
        # Though both threads were free when the second of "a" was asked for.
        assert others.wait(PATIENCE)
        assert not waiting[1].done()
        first.set()
        assert [future.result(PATIENCE) for future in waiting] == [True, 1]
        free.result(PATIENCE)


def test_a_task_that_fails_lets_the_next_one_begin() -> None:
    with ThreadPool(1, "test") as pool:
        turns = Turns(pool)
        bad, good = turns.submit("a", lambda: 1 // 0), turns.submit("a", lambda: 2)
        with pytest.raises(ZeroDivisionError):
            bad.result(PATIENCE)
        assert good.result(PATIENCE) == 2


def test_cancelled_tasks_do_not_begin() -> None:
    begun, go = threading.Event(), threading.Event()
    called: list[int] = []

    def hold() -> None:
        begun.set()
        go.wait(PATIENCE)

    with ThreadPool(1, "test") as pool:
        turns = Turns(pool)
        held = turns.submit("a", hold)
        rest: list[Future[None]] = [turns.submit("a", lambda: called.append(1))]
        rest.append(turns.submit(None, lambda: called.append(2)))
        assert begun.wait(PATIENCE)
        turns.cancel()
        go.set()
        held.result(PATIENCE)
        for future in rest:
            with pytest.raises(CancelledError):
                future.result(PATIENCE)
    assert not called


def test_what_the_pool_was_given_before_has_begun() -> None:
    """A task may wait for it: also one that had to wait for its line."""
    with ThreadPool(1, "test") as pool:
        turns = Turns(pool)
        first = turns.submit("a", lambda: time.sleep(0.01))
        other = pool.submit(lambda: 5)
        second = turns.submit("a", lambda: other.result(PATIENCE))
        assert (first.result(PATIENCE), second.result(PATIENCE)) == (None, 5)
