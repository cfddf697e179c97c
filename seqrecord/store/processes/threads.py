"""A thread pool that drops queued tasks at its end and never delays the interpreter's exit.

`concurrent.futures` joins its threads before `atexit` functions run, so all queued tasks finish
first and cannot be cancelled. This pool uses daemon threads. Its creator shuts it down. A thread
that uses a pool and may run while the main thread exits registers a shutdown with `atexit`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from seqrecord.errors import ResourceError

_P = ParamSpec("_P")
_T = TypeVar("_T")


def start(thread: threading.Thread) -> None:
    """Start a thread; raises `ResourceError` if the operating system refuses."""
    try:
        thread.start()
    except RuntimeError as error:
        raise ResourceError(
            f"no thread can be started: {error}",
            expected="a higher limit of processes and threads (ulimit -u, pids.max of a container)",
            got=f"{threading.active_count()} threads in this process",
        ) from error


def error_of(run: Callable[[], object]) -> BaseException | None:
    """Call `run` and return its error."""
    try:
        run()
    except BaseException as error:
        return error
    finally:
        del run  # the error's traceback refers to this frame
    return None


def check_room(count: int) -> None:
    """Raise `ResourceError` unless `count` more threads can start.

    For code that would hang without its threads. The started threads end before this returns.
    """
    finish = threading.Event()
    threads = []
    try:
        for _ in range(count):
            start(thread := threading.Thread(target=finish.wait, daemon=True))
            threads.append(thread)
    finally:
        finish.set()
        for thread in threads:
            thread.join()


class ThreadPool(Executor):
    """An executor of at most `count` daemon threads, started on demand and named `name_…`.

    If the system allows fewer threads, these run the tasks; if it allows none, `submit` runs them
    itself. Leaving the `with` block drops queued tasks and waits for running ones.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Schedule `fn(*args, **kwargs)`; raises `RuntimeError` after `shutdown`."""
        future: Future[_T] = Future()
        task = _Task(future, fn, args, kwargs)
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the pool has ended")
            # First, so that a thread that starts now does not count as idle.
            self._queue.put(task)
            if not self._idle.acquire(blocking=False) and len(self._threads) < self._count:
                arguments, name = (self._queue, self._idle), f"{self._name}_{len(self._threads)}"
                thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
                with suppress(ResourceError):  # the system may allow no more threads
                    start(thread)
                    self._threads.append(thread)
            if self._threads:
                return future
            self._queue.get_nowait()  # this task: there is no thread to take it
        task.do()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the threads after the queued tasks; `cancel_futures` cancels these first."""
        with self._lock:
            self._is_closed = True
            while cancel_futures:
                try:
                    task = self._queue.get_nowait()
                except queue.Empty:
                    break
                # `cancel` alone wakes no `concurrent.futures.wait`: a thread that took a task
                # behind this one, and waits for this one, would never end.
                # (test_thread_pools.py::test_a_shutdown_wakes_those_who_wait_for_a_cancelled_task)
                if task is not None and task.future.cancel():
                    task.future.set_running_or_notify_cancel()
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
            del self  # breaks the reference cycle through the traceback
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
