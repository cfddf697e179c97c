"""The threads that the running test has started, by name, and what they log.

A thread of an earlier test may be in a request that a client repeats until its deadline.
"""

from __future__ import annotations

import logging
import threading
import weakref

__all__ = ["forget_threads", "is_own", "own_threads"]

_earlier: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def forget_threads() -> None:
    """Those that there are now are of earlier tests."""
    _earlier.update(threading.enumerate())


def own_threads(*names: str) -> list[threading.Thread]:
    """Those whose names begin so."""
    found = (each for each in threading.enumerate() if each not in _earlier)
    return [each for each in found if each.name.startswith(names)]


def is_own(_record: logging.LogRecord) -> bool:
    """Whether the thread that logs now is the main one, or one that the test has started."""
    mine = threading.current_thread()
    return mine is threading.main_thread() or mine not in _earlier
