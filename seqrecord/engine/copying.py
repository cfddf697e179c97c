"""Copies for batches, made by threads while the thread that asked for them goes on.

Each copy is one call without the GIL. Beside a thread that computes in Python, a thread waits some
milliseconds for the GIL after each; so there are few and long ones, and several threads wait at the
same time. The thread that makes the last copy of some clips says that they are there::

    executor        begin 0  begin 1  begin 2
    copying              0 0 0 1 | 1 2 …
                         0 0 1 1 | 2 2 …
    filled                    0    1
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import perf_counter
from typing import TypeAlias

from seqrecord.engine.batches import Copy
from seqrecord.engine.trace import Trace
from seqrecord.errors import ResourceError
from seqrecord.threads import start

__all__ = ["Copies", "CopyThreads", "Done", "PieceCopies"]

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


class Copies:
    """The copies that one thread asks for, piece by piece: some clips of one batch each.

    Args:
        threads: make the copies.
        num_threads: for how many of them the work should do.
        failed: called when a copy has raised, or what was to be done after it.
        clock: seconds.
    """

    def __init__(
        self,
        threads: CopyThreads,
        num_threads: int,
        failed: Callable[[], object],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._threads, self._failed, self._clock = threads, failed, clock
        self.num_threads = num_threads
        self._changed = threading.Condition()
        self._num_begun = 0  # pieces
        self._copying = 0  # copies that are not made yet
        self._error: tuple[int, BaseException] | None = None  # the first piece's that has one
        self._since = 0.0  # up to when the time was counted
        self._seconds = 0.0

    def begin(self) -> PieceCopies:
        """The next piece: what copies for it are asked of."""
        self._num_begun += 1
        return PieceCopies(self, self._num_begun)

    def wait(self) -> None:
        """Until all copies are made that were asked for; raises, once, what the first piece that
        has failed has raised."""
        with self._changed:
            self._changed.wait_for(lambda: not self._copying)
            error, self._error = self._error, None
        if error is not None:
            try:
                raise error[1]
            finally:
                del error  # its traceback refers to this frame

    def lap(self) -> float:
        """For how many seconds copies have been made since the last call."""
        if not self._copying and not self._seconds:
            return 0.0
        with self._changed:
            self._count()
            seconds, self._seconds = self._seconds, 0.0
        return seconds

    def add(self, piece: PieceCopies, copies: Iterable[Copy]) -> None:
        """Have copies made for a piece."""
        asked = list(copies)
        with self._changed:
            self._count()
            self._copying += len(asked)
            piece.missing += len(asked)
        self._threads.begin(asked, piece.note)

    def note(self, piece: PieceCopies, error: BaseException | None, *, copies: int) -> None:
        """A piece misses one thing less; `copies` of it is a copy, or none."""
        with self._changed:
            piece.missing -= 1
            piece.has_failed = piece.has_failed or error is not None
            is_done = not piece.missing and not piece.has_failed
        if is_done:
            error = piece.try_done()
        with self._changed:
            if error is not None and (self._error is None or piece.number < self._error[0]):
                self._error = piece.number, error
            if copies:
                self._count()
                self._copying -= copies
            if error is not None:
                self._failed()
            del error
            if not self._copying:
                self._changed.notify_all()

    def _count(self) -> None:
        """Count the time if copies are being made."""
        now = self._clock()
        if self._copying:
            self._seconds += now - self._since
        self._since = now


class PieceCopies:
    """`Copiers` of one piece, which do not wait for its copies."""

    def __init__(self, copies: Copies, number: int) -> None:
        self.num_threads = copies.num_threads
        self.number = number
        self.is_idle = True  # no copy was asked for
        self.missing = 1  # copies that are not made, and that more may come
        self.has_failed = False
        self._copies = copies
        self._done: Callable[[], object] = lambda: None

    def copy(self, copies: Iterable[Copy]) -> None:
        """Have copies made for this piece, by other threads."""
        self.is_idle = False
        self._copies.add(self, copies)

    def finish(self, done: Callable[[], object]) -> None:
        """Nothing more is copied: `done` is called by the thread that makes the last copy, unless
        one has failed."""
        if self.is_idle:
            done()
            return
        self._done = done
        self._copies.note(self, None, copies=0)

    def note(self, error: BaseException | None) -> None:
        """One of its copies is made, or has raised an error."""
        self._copies.note(self, error, copies=1)

    def try_done(self) -> BaseException | None:
        """Do what is to be done when all copies are made; what that raises."""
        done, self._done = self._done, lambda: None
        try:
            done()
        except BaseException as error:
            return error
        finally:
            del done
        return None
