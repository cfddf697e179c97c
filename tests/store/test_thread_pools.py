"""Thread pools: nobody waits for ever for a task that a shutdown has cancelled."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait
from typing import Any

import pytest

from seqrecord.store.processes.threads import ThreadPool
from tests.kit.processes import own_threads

PATIENCE = 60  # seconds; then a test fails


def test_a_shutdown_wakes_those_who_wait_for_a_cancelled_task() -> None:
    """A load waits by `wait` for the load before it, which a shutdown may cancel meanwhile."""
    started, over = threading.Event(), threading.Event()
    pool = ThreadPool(1, "test")

    def occupy() -> None:
        started.set()
        over.wait(10)

    pool.submit(occupy)
    started.wait(10)
    queued = pool.submit(int)
    states = []

    def wait_for_it() -> None:
        states.append(wait([queued], timeout=10).done)

    waiters = [threading.Thread(target=wait_for_it) for _ in range(2)]
    for thread in waiters:
        thread.start()
    threading.Timer(0.05, over.set).start()
    pool.shutdown(cancel_futures=True)
    for thread in waiters:
        thread.join()
    assert states == [{queued}, {queued}]
    assert wait([queued], timeout=0).done == {queued}, "also for those who come later"
    with pytest.raises(CancelledError):
        queued.result(timeout=0)


def test_a_pool_drops_queued_tasks_and_waits_for_running_ones() -> None:
    begun, may_continue, done = threading.Event(), threading.Event(), []

    def work(number: int) -> int:
        begun.set()
        assert may_continue.wait(PATIENCE)
        done.append(number)
        return number

    with ThreadPool(1, "some") as pool:
        futures = [pool.submit(work, number) for number in range(5)]
        assert begun.wait(PATIENCE)
        threading.Timer(0.05, may_continue.set).start()
    assert done == [0]
    assert futures[0].result() == 0
    for future in futures[1:]:
        with pytest.raises(CancelledError):
            future.result()
    with pytest.raises(RuntimeError):
        pool.submit(work, 9)
    assert own_threads("some") == []


def test_a_pool_runs_all_tasks_in_up_to_its_number_of_threads() -> None:
    seen: set[str] = set()

    def work(number: int) -> int:
        seen.add(threading.current_thread().name)
        return number * number

    all_are_inside = threading.Barrier(4)
    with ThreadPool(4, "some") as pool:
        assert pool.submit(work, 2).result() == 4
        futures = [pool.submit(work, number) for number in range(1000)]
        assert [future.result() for future in futures] == [n * n for n in range(1000)]
        for _ in range(20):
            futures = [pool.submit(all_are_inside.wait, PATIENCE) for _ in range(4)]
            assert sorted(future.result() for future in futures) == [0, 1, 2, 3]
    assert seen <= {f"some_{i}" for i in range(4)}


def test_a_pool_raises_errors_of_tasks() -> None:
    def work(error: Any) -> None:
        raise error

    with ThreadPool(2, "some") as pool:
        for error in (ZeroDivisionError("mine"), KeyboardInterrupt()):
            with pytest.raises(type(error)):
                pool.submit(work, error).result()
        assert pool.submit(len, "after").result() == 5
    pool = ThreadPool(2, "some")
    futures = [pool.submit(len, "ab") for _ in range(50)]
    pool.shutdown()
    assert [future.result() for future in futures] == [2] * 50
