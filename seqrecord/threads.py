"""A pool of threads that drops queued tasks when it ends, and never delays the interpreter's exit.

`concurrent.futures` joins the threads of its pools when the interpreter exits. That happens before
`atexit` functions run, so nobody can cancel queued tasks, and all of them are done first. The
threads here are daemons. The maker of a pool ends it. A thread that still runs when the main
thread exits registers with `atexit` to end its pool.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

__all__ = ["ThreadPool"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ThreadPool(Executor):
    """At most `count` threads, started as they are needed, whose names begin with `name`.

    Leaving the `with` block drops what has not begun, and waits for what has.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Have `fn` called; raises `RuntimeError` after `shutdown`, and where no thread starts."""
        future: Future[_T] = Future()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the pool has ended")
            # First, or a thread that starts would count as idle beside its own task.
            self._queue.put(_Task(future, fn, args, kwargs))
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
                thread = threading.Thread(
                    target=_work,
                    args=(self._queue, self._idle),
                    name=f"{self._name}_{len(self._threads)}",
                    daemon=True,
                )
                thread.start()
                self._threads.append(thread)
        return future

    def allow(self, count: int) -> None:
        """Have at most so many threads from now on; those that there are stay."""
        self._count = count

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads, after what is queued or, with `cancel_futures`, without it."""
        with self._lock:
            self._is_closed = True
            while cancel_futures:
                try:
                    task = self._queue.get_nowait()
                except queue.Empty:
                    break
                if task is not None:
                    task.future.cancel()
            for _ in self._threads:
                self._queue.put(None)
        if wait:
            for thread in self._threads:
                thread.join()

    def __exit__(self, *exception: object) -> None:
        self.shutdown(cancel_futures=True)


class _Task:
    def __init__(
        self,
        future: Future[Any],
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.future = future
        self._function, self._args, self._kwargs = function, args, kwargs

    def do(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._function(*self._args, **self._kwargs)
        except BaseException as error:
            self.future.set_exception(error)
            del self  # the error's traceback refers to this frame
        else:
            self.future.set_result(result)


def _work(tasks: queue.SimpleQueue[_Task | None], idle: threading.Semaphore) -> None:
    while True:
        try:
            task = tasks.get_nowait()
        except queue.Empty:
            idle.release()
            task = tasks.get()
        if task is None:
            return
        task.do()
        del task
