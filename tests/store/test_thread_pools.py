"""Thread pools: nobody waits for ever for a task that a shutdown has cancelled."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, wait

import pytest

from seqrecord.store.processes.threads import ThreadPool


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
