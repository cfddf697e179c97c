"""The threads of an iteration, and the channel through which its batches reach the consumer.

The scheduler's thread runs an `Executor`. That has a `WorkerPool` load the chunks of what comes
next while it builds batches, and those wait in a `Channel`::

    loading threads       load round 1    | load round 2    | load round 3
    scheduler, copies                     | gather round 1  | gather round 2
    consumer                                   batch 0  batch 1  batch 2

None of them refers to the consumer, so that all can end when the consumer is dropped.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from time import perf_counter
from typing import Any, Generic, Literal, Protocol, TypeVar

from seqrecord.engine.arena import Place
from seqrecord.engine.batches import Copy
from seqrecord.engine.copying import CopyThreads
from seqrecord.engine.gathers import Gathers
from seqrecord.engine.gil import GilWatch
from seqrecord.engine.loading import ChunkLoader, Fetched
from seqrecord.engine.loads import Load
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.turns import Turns
from seqrecord.errors import ClipError
from seqrecord.sampling.memory import Memory
from seqrecord.storage import unwanted_if
from seqrecord.threads import ThreadPool

__all__ = ["Channel", "ClosedError", "Executor", "Scheduler", "WorkerPool"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_THREAD_NAME = "seqrecord-engine"  # how the names of all these threads begin
_ENDED = "this iteration was ended: another one has begun"
_MORE_COPIERS = 1  # threads that copy beside `num_threads`, for some wait for the GIL
_MORE_BESIDE_PYTHON = 4  # … where each waits long,
_MORE_LOADERS = 2  # … as more that load


class Executor(Protocol):
    """Executes a plan: has chunks loaded, builds batches, and puts them into a channel.

    `OverlappingExecutor` and `DisjointExecutor` do. An executor keeps integers: which loads are
    under way, and where frames are. Memory is that of `Buffers`, the threads those of the
    `WorkerPool`.
    """

    def run(self, batch: int) -> None:
        """Deliver the plan's batches from `batch` on, in their order.

        Raises what a load has raised, and `ClosedError` when the channel is closed.
        """


class ClosedError(Exception):
    """The channel was closed; not for users."""


class Channel(Generic[_Item]):
    """From one producer to one consumer; at most `slots` items are being made or wait.

    The producer calls `reserve` before it makes an item, `put` when it is made, and `end` at last.
    `close`, from any thread, makes `reserve` and `check_open` raise `ClosedError`. The time that
    one side waits for the other is counted in `stats`. `spare` slots more can be had for a while.
    """

    def __init__(self, slots: int, stats: EngineStats, spare: int = 0) -> None:
        # Its lock is reentrant: `close` may be called by a finalizer, inside any other method.
        self._changed = threading.Condition()
        self._slots, self._spare = slots, spare
        self._lent = False  # the spare slots
        self._stats = stats
        self._ready: deque[_Item] = deque()
        self._error: BaseException | None = None
        self._ended = False
        self._closed = False
        self._interrupted = False

    def reserve(self, number: int, *, beside: bool = False) -> None:
        """Wait for a slot to make item `number` in: until the consumer has taken enough.

        An item that is made `beside` another, which cannot be made without it, needs no slot where
        nothing waits for the consumer.
        """
        begin = perf_counter()
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._slots > 0
                    or (beside and not self._ready)
                    or self._closed
                    or self._interrupted
                )
            )
            self.check_open()
            if self._interrupted:
                raise ClosedError
            self._slots -= 1
        end = perf_counter()
        self._stats.add(waiting_for_consumer_seconds=end - begin)
        self._stats.trace.add("wait for consumer", begin, end, batch=number)

    def lend(self, is_wanted: bool) -> None:
        """Have the spare slots too, or give them back, when their items are taken."""
        with self._changed:
            if is_wanted != self._lent:
                self._lent = is_wanted
                self._slots += self._spare if is_wanted else -self._spare

    def try_reserve(self) -> bool:
        """Take a slot if there is one now."""
        with self._changed:
            self.check_open()
            free = self._slots > 0
            self._slots -= free
            return free

    def put(self, item: _Item) -> None:
        """Deliver an item; dropped when the channel is closed."""
        with self._changed:
            if not self._closed:
                self._ready.append(item)
                self._changed.notify_all()

    def take(self, process: int) -> _Item:
        """As `get`, for users, whose iteration began in the process of this number.

        Raises `ClipError` in another process, which was forked, and once the channel was closed.
        """
        self.check_taken(process)
        try:
            return self.get()
        except ClosedError:
            raise ClipError(_ENDED) from None

    def check_taken(self, process: int) -> None:
        """Raise what `take` raises before it waits for an item."""
        if os.getpid() != process:
            raise ClipError("an iteration cannot continue in a forked process: begin another")
        if self._closed:
            raise ClipError(_ENDED)

    def end(self, error: BaseException | None = None) -> None:
        """Nothing follows; after the last item, `get` raises the error once."""
        with self._changed:
            self._ended = True
            self._error = None if self._closed else error
            self._changed.notify_all()

    def get(self) -> _Item:
        """The next item, as soon as it is there; its slot is free again.

        Raises the producer's error, `StopIteration` after the end and `ClosedError` when closed.
        """
        begin = perf_counter()
        try:
            return self._get()
        finally:
            end = perf_counter()
            self._stats.add(waiting_for_batches_seconds=end - begin)
            self._stats.trace.add("wait for batch", begin, end)

    def _get(self) -> _Item:
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._ended or self._closed)
            self.check_open()
            if self._ready:
                self._slots += 1
                self._changed.notify_all()
                return self._ready.popleft()
            error, self._error = self._error, None
        if error is None:
            raise StopIteration
        try:
            if isinstance(error, StopIteration):  # of a user's function: it would look like the end
                raise RuntimeError("StopIteration was raised where no iterator ends") from error
            raise error
        finally:
            del error  # its traceback refers to this frame

    def close(self) -> None:
        """Drop what waits, and let both sides know."""
        with self._changed:
            self._closed, self._error = True, None
            self._ready.clear()
            self._changed.notify_all()

    def interrupt(self) -> None:
        """No more items are made: `reserve` raises `ClosedError`."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check_open(self) -> None:
        """Raise `ClosedError` when the channel is closed."""
        if self.is_closed:
            raise ClosedError


class Scheduler:
    """A thread that calls `run`, then `release`, and then ends the channel, with `run`'s error.

    When `release` is called, none of the iteration's threads uses its memory any more.
    """

    def __init__(
        self, channel: Channel[Any], run: Callable[[], None], release: Callable[[], None]
    ) -> None:
        self.process = os.getpid()
        self._channel = channel
        name = f"{_THREAD_NAME}-scheduler"
        self._thread = threading.Thread(
            target=self._run, args=(run, release), name=name, daemon=True
        )
        try:
            self._thread.start()
        except BaseException:  # Ctrl-C while this waits until the thread runs, which it may
            channel.close()
            raise
        _running.add(self)

    def close(self, patience: float | None = None) -> None:
        """End the iteration's threads, and wait for that, for `patience` seconds or until they end.

        A finalizer must not wait without limit: the garbage collector calls it in any thread, maybe
        in one that holds a lock that the engine's threads wait for. In one of these, it returns.
        """
        if os.getpid() != self.process:
            return  # a fork's copy has no threads, and the channel's lock may be held for ever
        self._channel.close()
        if not threading.current_thread().name.startswith(_THREAD_NAME):
            self._thread.join(patience)

    def _run(self, run: Callable[[], None], release: Callable[[], None]) -> None:
        error = _error_of(run)
        del run
        release()
        del release
        self._channel.end(error)


def _error_of(run: Callable[[], None]) -> BaseException | None:
    """What a call raises, for the thread that waits for it; `None` where nobody does any more."""
    try:
        run()
    except ClosedError:
        pass
    except BaseException as error:
        return error
    finally:
        del run  # an error's traceback refers to this frame, and the user may keep it
    return None


_running: weakref.WeakSet[Scheduler] = weakref.WeakSet()
os.register_at_fork(after_in_child=_running.clear)  # a fork has none of the threads


@atexit.register
def _close_all() -> None:
    for scheduler in list(_running):
        scheduler.close()


class WorkerPool:
    """The threads that work for an executor: some load chunks, others help with copies.

    Leaving the `with` block ends them, without the loads that have not begun or that wait to be
    tried again.

    Args:
        loader: does the loads.
        num_threads: for copying, and at most so many for loading from a local disk.
        memory: chunks to load at a time, and more to hold as they are stored, where the storage
            isn't a local disk.
        channel: when it is closed, what is asked for fails with `ClosedError`.
        stats: counts the time.
    """

    def __init__(
        self,
        loader: ChunkLoader,
        *,
        num_threads: int,
        memory: Memory,
        channel: Channel[Any],
        stats: EngineStats,
    ) -> None:
        self.num_threads, self.stats = num_threads, stats
        # Reading from a disk is work for a core. Other storage is mostly waited for: there, chunks
        # are read while there is no room for their frames. `max_ahead` of them have memory of their
        # own; so that they are half as many as the loads, others take that of loads.
        spared = max(0, memory.max_loads // 2 - memory.max_ahead)
        self.num_ahead, num_loaders = spared + memory.max_ahead, memory.max_loads - spared
        if loader.is_local:
            self.num_ahead, num_loaders = 0, min(num_threads, memory.max_loads)
        stats.num_threads, stats.num_loaders = num_threads, num_loaders
        self.num_loaders = num_loaders
        self._most_loaders = memory.max_loads if loader.is_local else num_loaders
        self._loader = loader
        self._channel = channel
        self._gil = GilWatch()
        self._left = False
        self._fetching: dict[Load, Future[Fetched]] = {}
        self._ahead = threading.BoundedSemaphore(self.num_ahead) if self.num_ahead else None
        self._loaders = ThreadPool(num_loaders, f"{_THREAD_NAME}-load")
        self._turns = Turns(self._loaders)
        copiers = num_threads + _MORE_COPIERS
        self._copiers = CopyThreads(copiers, f"{_THREAD_NAME}-copy", stats.trace)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self._left = True
        self._turns.cancel()
        self._loaders.shutdown(cancel_futures=True)
        self._copiers.shutdown()

    def notice_gil(self) -> int:
        """For how many threads the copies of a batch should do from now on.

        Beside a thread that computes in Python, each waits for milliseconds after a copy. So there
        are as few as can be, and more threads make those of more batches; and more threads load.
        Large batches may be one more then.
        """
        is_late = self._gil.is_late()
        self._copiers.allow(self.num_threads + (_MORE_BESIDE_PYTHON if is_late else _MORE_COPIERS))
        more = min(self._most_loaders, self.num_loaders + _MORE_LOADERS) if is_late else 0
        self._loaders.allow(max(more, self.num_loaders))
        self._channel.lend(is_late)
        return 1 if is_late else self.num_threads

    def load(self, load: Load, places: Sequence[Place]) -> Future[None]:
        """Have a load done, after those that were asked for before."""
        self._channel.check_open()
        fetching = self._fetching.pop(load, None)
        line = None
        if load.group in self._loader.in_pieces:  # a decoder goes on where the load before ended
            line = load.group, load.cursor
        return self._turns.submit(line, partial(self._load, load, places, fetching))

    def kind_of(self, load: Load) -> Literal["alone", "small", "quick"]:
        """Whether a load is done by itself, or with others: only from a disk, for elsewhere many
        that wait are faster than one."""
        if not self._loader.is_local or load.group in self._loader.in_pieces:
            return "alone"
        return "quick" if self._loader.is_quick(load) else "small"

    def load_together(self, loads: Sequence[Load], places: Sequence[Place]) -> Future[None]:
        """Have loads of one group done by one thread, one after the other."""
        self._channel.check_open()
        return self._loaders.submit(self._run, self._loader.load_together, loads, places)

    def fetch(self, loads: Iterable[Load]) -> None:
        """Have chunks read whose frames have no room yet, `num_ahead` of them at most.

        They must be asked for by `load` later on.
        """
        self._channel.check_open()
        waiting = iter(loads)
        while self._ahead is not None and self._ahead.acquire(blocking=False):
            load = next((load for load in waiting if self._can_fetch(load)), None)
            if load is None:
                self._ahead.release()
                return
            self._fetching[load] = self._loaders.submit(self._run, self._loader.fetch, load)

    def _can_fetch(self, load: Load) -> bool:
        return load not in self._fetching and self._loader.begins_chunk(load)

    def wait(self, loads: Iterable[Future[None]]) -> None:
        """Until these loads are done; raises the error of the first that failed."""
        begin = perf_counter()
        for load in loads:
            load.result()
        self._channel.check_open()
        end = perf_counter()
        self.stats.add(waiting_for_loads_seconds=end - begin)
        self.stats.trace.add("wait for loads", begin, end)

    def note_gather(self, begin: float, num_clips: int, device_bytes: int) -> None:
        """Count clips that have been gathered since `begin`."""
        end = perf_counter()
        self.stats.add(gather_seconds=end - begin, device_bytes=device_bytes)
        self.stats.trace.add("gather", begin, end, clips=num_clips)

    def gathers(self, failed: Callable[[], object]) -> Gathers:
        """Batches that are gathered by these threads; see there."""
        return Gathers(self._copiers, self.num_threads, failed)

    def copy(self, copies: Iterable[Copy]) -> None:
        """Make copies; all are made when it returns."""
        gathers = self.gathers(lambda: None)
        gathers.begin().copy(copies)
        with self.stats.trace.span("wait for copies"):
            gathers.wait()

    def _load(
        self,
        load: Load,
        places: Sequence[Place],
        fetching: Future[Fetched] | None,
    ) -> None:
        if fetching is None:
            self._run(self._loader, load, places)
            return
        assert self._ahead is not None
        try:  # it does not wait for ever: what was asked for before this load has begun
            self._run(self._loader, load, places, fetching.result())
        finally:
            self._ahead.release()

    def _run(self, do: Callable[..., _Result], *arguments: Any) -> _Result:
        self._channel.check_open()
        with unwanted_if(lambda: self._left or self._channel.is_closed):
            return do(*arguments)
