"""Groups of worker processes: those that one iterator over a DataLoader has started.

The process that starts them numbers its iterators, and each worker gets the number of its own: a
forked one with the memory of that process, others with what is pickled for them.
"""

from __future__ import annotations

import threading
import weakref
from itertools import count

from seqrecord.forks import at_fork
from seqrecord.pipes.callers import find_starting

__all__ = ["join_group", "own_group", "starting_group"]

_numbers = count(1)
_known: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
_forking = threading.local()  # the thread that forks is the one that the new process has
_own: int | None = None


def starting_group() -> int | None:
    """The group of the process that this thread is starting; `None` if that is no worker."""
    iterator = find_starting()
    try:
        if iterator is not None and iterator not in _known:
            _known[iterator] = next(_numbers)
        return _known.get(iterator)
    except TypeError:  # nothing of torch's, if it has no hash, or no weak references
        return None


def own_group() -> int | None:
    """The group of this process; `None` if it is no worker."""
    return _own


def join_group(number: int | None) -> None:
    """This process is a worker of that group, if one is given."""
    global _own
    if number is not None:
        _own = number


def _before_fork() -> None:
    _forking.group = None
    _forking.group = starting_group()


def _after_fork() -> None:
    join_group(getattr(_forking, "group", None))


at_fork(before=_before_fork, after_in_child=_after_fork)
