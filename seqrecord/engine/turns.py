"""Tasks of which some follow each other: the pieces of a cursor's chunk, which one decoder gives.

No thread waits for the task before: it takes one that can begin::

    asked for in this order     A0 A1 A2 B0 B1 C0
    thread 0                    A0 A1 A2
    thread 1                    B0 B1 C0
"""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from seqrecord.threads import ThreadPool

__all__ = ["Turns"]


@dataclass(order=True)
class _Task:
    number: int
    line: Hashable = field(compare=False)
    do: Callable[[], Any] = field(compare=False)
    done: Future[Any] = field(compare=False, default_factory=Future)

    def run(self) -> None:
        if not self.done.set_running_or_notify_cancel():
            return
        try:
            result = self.do()
        except BaseException as error:
            self.done.set_exception(error)
            del self  # the error's traceback refers to this frame
        else:
            self.done.set_result(result)


class Turns:
    """Tasks for the threads of a pool: of each line one at a time, in the order of submission.

    Of those that can begin, the one that was submitted first does. When it begins, whatever the
    pool was given before its submission has begun.
    """

    def __init__(self, pool: ThreadPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._numbers = count()
        self._ready: list[_Task] = []  # a heap; the pool has a call of `_next` for each
        self._lines: dict[Hashable, deque[_Task]] = {}  # by line: what waits for one before it

    def submit(self, line: Hashable | None, do: Callable[[], Any]) -> Future[Any]:
        """Have `do` called once the tasks of this line that were submitted before are done.

        `None` is no line. Raises `RuntimeError` after the pool has ended.
        """
        with self._lock:
            task = _Task(next(self._numbers), line, do)
            if line in self._lines:
                self._lines[line].append(task)
                return task.done
            if line is not None:
                self._lines[line] = deque()
            heapq.heappush(self._ready, task)
        self._pool.submit(self._next)
        return task.done

    def cancel(self) -> None:
        """Drop the tasks that have not begun."""
        with self._lock:
            dropped = [*self._ready, *(task for tasks in self._lines.values() for task in tasks)]
            self._ready, self._lines = [], {}
        for task in dropped:
            task.done.cancel()

    def _next(self) -> None:
        with self._lock:
            if not self._ready:  # they were dropped
                return
            task = heapq.heappop(self._ready)
        line = task.line
        task.run()
        del task
        with self._lock:
            waiting = self._lines.get(line)
            if not waiting:
                self._lines.pop(line, None)
                return
            heapq.heappush(self._ready, waiting.popleft())
        with suppress(RuntimeError):  # the pool has ended
            self._pool.submit(self._next)
