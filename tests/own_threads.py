"""The threads that the running test has started, by name.

A thread of an earlier test may be in a request that a client repeats until its deadline.
"""

from __future__ import annotations

import threading
import weakref

__all__ = ["forget_threads", "own_threads"]

_earlier: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def forget_threads() -> None:
    """Those that there are now are of earlier tests."""
    _earlier.update(threading.enumerate())


def own_threads(*names: str) -> list[threading.Thread]:
    """Those whose names begin so."""
    found = (each for each in threading.enumerate() if each not in _earlier)
    return [each for each in found if each.name.startswith(names)]
