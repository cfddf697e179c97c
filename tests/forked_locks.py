"""Forks the process whenever another thread holds a lock of the package: a child must go on.

`watch` comes before anything imports the package.
"""

from __future__ import annotations

import faulthandler
import functools
import inspect
import os
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["stuck_children", "watch"]

PATIENCE = 30.0  # seconds in which a child does what takes a moment
_PAUSE = 5.0  # … for which a lock is held at most; a fork waits for some, and then has them free
_PACKAGE = str(Path(__file__).parents[1] / "seqrecord")
_BY_PROCESS = str(Path(_PACKAGE, "processes", "forks.py"))  # makes locks for others
_DEPTH = 5  # calls between the package and a lock of it: of a condition, a dataclass

_parent = os.getpid()
_held: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
_seen: set[str] = set()
_is_on = False


class _Watched:
    """A lock of a place in the package: who gets it first waits until the process was forked."""

    def __init__(self, lock: Any, place: str) -> None:
        self._lock, self._place = lock, place

    def acquire(self, *arguments: Any, **options: Any) -> bool:
        found: bool = self._lock.acquire(*arguments, **options)
        is_main = threading.current_thread() is threading.main_thread()
        is_new = _is_on and self._place not in _seen and os.getpid() == _parent
        if found and is_new and not is_main:
            _seen.add(self._place)
            forked: queue.SimpleQueue[None] = queue.SimpleQueue()
            _held.put((self._place, forked))
            with suppress(queue.Empty):  # what is needed to fork comes free first
                forked.get(timeout=_PAUSE)
        return found

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:  # `release`, and what a condition asks for
        return getattr(self._lock, name)


def watch() -> None:
    """Watch the locks that the package makes from now on."""

    def watched(make: Callable[[], Any]) -> Callable[[], Any]:
        def make_one() -> Any:
            place = _place(inspect.currentframe())
            return make() if place is None else _Watched(make(), place)

        return make_one

    for module, name in ((threading, "Lock"), (threading, "RLock"), (functools, "RLock")):
        if hasattr(module, name):  # functools has none from Python 3.12 on
            setattr(module, name, watched(getattr(module, name)))


def _place(frame: FrameType | None) -> str | None:
    """Where the package makes a lock; `None` where somebody else does."""
    left = _DEPTH
    while frame is not None and left and frame.f_code is not threading.Thread.__init__.__code__:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE) and name != _BY_PROCESS:
            return f"{Path(name).relative_to(_PACKAGE)}:{frame.f_lineno}"
        left -= name != _BY_PROCESS
        frame = frame.f_back
    return None


def stuck_children(do: Callable[[], None]) -> tuple[list[str], list[str]]:
    """Do it in a thread, and fork whenever that holds a lock: a child does it, too.

    Returns the places of all locks, and of those with which a child did not do it.
    """
    global _is_on
    _is_on, stuck = True, []

    def work() -> None:
        try:
            do()
        finally:
            _held.put(None)

    threading.Thread(target=work, daemon=True).start()
    while (held := _held.get()) is not None:
        place, forked = held
        if not (child := os.fork()):
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
            try:
                do()
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(child, 0)[1]:
            stuck.append(place)
        forked.put(None)
    return sorted(_seen), stuck
