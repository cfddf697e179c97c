"""Threads started by the running test, by name; their log records; and forks.

A thread of an earlier test may still be in a request that a client repeats until its deadline.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator

__all__ = [
    "busy_threads",
    "forget_threads",
    "is_own",
    "join_commits",
    "own_threads",
    "succeeds_in_fork",
]

_earlier: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def forget_threads() -> None:
    """Treat all current threads as threads of earlier tests."""
    _earlier.update(threading.enumerate())


def own_threads(*names: str) -> list[threading.Thread]:
    """This test's threads with a name that begins with any of `names`."""
    found = (each for each in threading.enumerate() if each not in _earlier)
    return [each for each in found if each.name.startswith(names)]


def join_commits() -> None:
    """Wait until no record file is being committed."""
    for thread in own_threads("seqrecord-commit"):
        thread.join()


def is_own(_record: logging.LogRecord) -> bool:
    """Whether the logging thread is the main one or was started by the running test."""
    mine = threading.current_thread()
    return mine is threading.main_thread() or mine not in _earlier


def succeeds_in_fork(work: Callable[[], bool]) -> bool:
    """Result of `work` in a forked child; false if it raises or takes more than 100 s."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            signal.alarm(100)
            code = 0 if work() else 2
        os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


@contextlib.contextmanager
def busy_threads(work: Callable[[], object], count: int = 1) -> Iterator[None]:
    """Threads that repeat `work`, so that a fork often finds its locks acquired."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            work()

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
