"""Groups of worker processes: those that one iterator over a DataLoader has started.

The process that starts them numbers its iterators, and each worker gets the number of its own: a
forked one with the memory of that process, others with what is pickled for them.
"""

from __future__ import annotations

import threading
import weakref
from itertools import count
from typing import Any

from torch.utils.data import IterDataPipe

from seqrecord.forks import at_fork
from seqrecord.pipes.callers import find_starting

__all__ = ["is_given", "join_group", "own_group", "starting_group"]

_numbers = count(1)
_known: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
_forking = threading.local()  # the thread that forks is the one that the new process has
_own: int | None = None


def starting_group() -> int | None:
    """The group of the process that this thread is starting; `None` if that is no worker."""
    if (starting := find_starting()) is None:
        return None
    iterator, _ = starting
    if iterator not in _known:
        _known[iterator] = next(_numbers)
    return _known[iterator]


def is_given(epochs: object) -> bool:
    """Whether the worker that this thread is starting is given these `Epochs`, or a chain of pipes
    behind them.

    Such a group has its first epoch from the start: it may begin later than others do, or never.
    """
    to_see: list[Any] = [] if (starting := find_starting()) is None else [starting[1].dataset]
    seen = set[int]()
    while to_see:
        data = to_see.pop()
        if getattr(data, "_epochs", None) is epochs:
            return True
        if isinstance(data, IterDataPipe) and id(data) not in seen:
            seen.add(id(data))
            for value in vars(data).values():
                to_see += value if isinstance(value, (list, tuple)) else [value]
    return False


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
