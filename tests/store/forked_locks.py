"""Forks while other threads hold locks of the package, to check that the children do not hang.

Call `watch` before the package is imported.
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

PATIENCE = 30.0  # timeout in seconds for a child
_PAUSE = 5.0  # maximum seconds for which a lock is kept; the fork itself needs some locks
_PACKAGE = str(Path(__file__).parents[2] / "seqrecord")
_BY_PROCESS = str(Path(_PACKAGE, "processes", "forks.py"))  # creates locks for other modules
_DEPTH = 5  # maximum calls between the package and its lock, as for a Condition or a dataclass

_parent = os.getpid()
_acquired: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
_seen: set[str] = set()
_is_on = False


class _Watched:
    """A lock of the package: the first thread that acquires it waits for a fork."""

    def __init__(self, lock: Any, place: str) -> None:
        self._lock, self._place = lock, place

    def acquire(self, *arguments: Any, **options: Any) -> bool:
        found: bool = self._lock.acquire(*arguments, **options)
        is_main = threading.current_thread() is threading.main_thread()
        is_new = _is_on and self._place not in _seen and os.getpid() == _parent
        if found and is_new and not is_main:
            _seen.add(self._place)
            forked: queue.SimpleQueue[None] = queue.SimpleQueue()
            _acquired.put((self._place, forked))
            with suppress(queue.Empty):  # timeout: the fork itself needs this lock
                forked.get(timeout=_PAUSE)
        return found

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:  # `release`, and methods for a Condition
        return getattr(self._lock, name)


def watch() -> None:
    """Watch all locks that the package creates from now on."""

    def watched(make: Callable[[], Any]) -> Callable[[], Any]:
        def make_one() -> Any:
            place = _place(inspect.currentframe())
            return make() if place is None else _Watched(make(), place)

        return make_one

    for module, name in ((threading, "Lock"), (threading, "RLock"), (functools, "RLock")):
        if hasattr(module, name):  # functools has no RLock from Python 3.12 on
            setattr(module, name, watched(getattr(module, name)))


def _place(frame: FrameType | None) -> str | None:
    """Line of the package that creates a lock; `None` for other creators."""
    depth = _DEPTH
    while frame is not None and depth and frame.f_code is not threading.Thread.__init__.__code__:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE) and name != _BY_PROCESS:
            return f"{Path(name).relative_to(_PACKAGE)}:{frame.f_lineno}"
        depth -= name != _BY_PROCESS
        frame = frame.f_back
    return None


def stuck_children(do: Callable[[], None]) -> tuple[list[str], list[str]]:
    """Call `do` in a thread, fork at each lock that it acquires, and call `do` in the child.

    Returns the places of all locks, and the places at which a child did not finish.
    """
    global _is_on
    _is_on, stuck = True, []

    def work() -> None:
        try:
            do()
        finally:
            _acquired.put(None)

    threading.Thread(target=work, daemon=True).start()
    while (acquired := _acquired.get()) is not None:
        place, forked = acquired
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
