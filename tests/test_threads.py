"""The pool of threads."""

from __future__ import annotations

import threading

from seqrecord.threads import ThreadPool


def test_a_pool_may_be_allowed_more_threads() -> None:
    both = threading.Barrier(2)
    with ThreadPool(1, "test") as pool:
        first = pool.submit(both.wait, 60)
        pool.allow(2)
        second = pool.submit(both.wait, 60)
        assert {first.result(60), second.result(60)} == {0, 1}
        names = {thread.name for thread in threading.enumerate()}
        assert {"test_0", "test_1"} <= names
        pool.allow(1)
        pool.submit(int).result(60)
