"""Threads that make copies, while the thread that asked for them goes on.

Each copy is one call without the GIL. Beside a thread that computes in Python, a thread waits some
milliseconds for the GIL after each; so there are few and long ones, and several threads wait at the
same time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeAlias

from seqrecord.engine.batches import Copy
from seqrecord.engine.trace import Trace
from seqrecord.errors import ResourceError
from seqrecord.threads import start

__all__ = ["CopyThreads", "Done"]

Done: TypeAlias = Callable[[BaseException | None], None]
"""Called when a copy is made, with what it raised, by the thread that made it."""

_Task: TypeAlias = tuple[Copy, Done]


class CopyThreads:
    """At most `count` threads, started as they are needed, whose names begin with `name`.

    Where the system lets fewer start, these make the copies, and `begin` makes them where it lets
    none start.
    """

    def __init__(self, count: int, name: str, trace: Trace) -> None:
        self._count, self._name, self._trace = count, name, trace
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def begin(self, copies: Iterable[Copy], done: Done) -> None:
        """Have copies made, after those that were asked for before. `done` is called for each."""
        for copy in copies:
            if len(self._threads) < self._count:
                name = f"{self._name}_{len(self._threads)}"
                arguments = (self._tasks, self._trace)
                thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
                with suppress(ResourceError):
                    start(thread)
                    self._threads.append(thread)
            if self._threads:
                self._tasks.put((copy, done))
            else:
                _make(copy, done, self._trace)

    def shutdown(self) -> None:
        """Drop the copies that have not begun, and wait until no thread is left."""
        while True:
            try:
                self._tasks.get_nowait()
            except queue.Empty:
                break
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads:
            thread.join()


def _work(tasks: queue.SimpleQueue[_Task | None], trace: Trace) -> None:
    while (task := tasks.get()) is not None:
        _make(*task, trace)
        del task  # it refers to a batch


def _make(copy: Copy, done: Done, trace: Trace) -> None:
    error = None
    try:
        with trace.span("gather copies", bytes=copy.nbytes):
            copy.do()
    except BaseException as raised:
        error = raised
    done(error)
    del copy, done, error  # its traceback refers to this frame
