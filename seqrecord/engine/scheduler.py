"""The thread that executes a plan, beside those that load and copy.

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
from collections.abc import Callable
from typing import Any, Protocol

from seqrecord.engine.channel import Channel, ClosedError
from seqrecord.engine.workers import THREAD_NAME
from seqrecord.forks import at_fork
from seqrecord.threads import start

__all__ = ["Executor", "Scheduler"]


class Executor(Protocol):
    """Executes a plan: has chunks loaded, builds batches, and puts them into a channel.

    An executor keeps integers: which loads are under way, and where frames are. Memory is that of
    `Buffers`, the threads those of the `WorkerPool`.
    """

    def run(self, batch: int) -> None:
        """Deliver the plan's batches from `batch` on, in their order.

        Raises what a load has raised, and `ClosedError` when the channel is closed.
        """


class Scheduler:
    """A thread that calls `run`, then `release`, and then ends the channel, with `run`'s error.

    Raises `ResourceError` where the system lets none start; the channel is then closed. When
    `release` is called, none of the iteration's threads uses its memory any more.
    """

    def __init__(
        self, channel: Channel[Any], run: Callable[[], None], release: Callable[[], None]
    ) -> None:
        self.process = os.getpid()
        self._channel = channel
        name = f"{THREAD_NAME}-scheduler"
        self._thread = threading.Thread(
            target=self._run, args=(run, release), name=name, daemon=True
        )
        try:
            start(self._thread)
        except BaseException:  # or Ctrl-C while this waits until the thread runs, which it may
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
        if not threading.current_thread().name.startswith(THREAD_NAME):
            self._thread.join(patience)

    def _run(self, run: Callable[[], None], release: Callable[[], None]) -> None:
        error = _error_of(run)
        del run
        if isinstance(error, ClosedError) or (error is not None and self._channel.is_closed):
            # Nobody gets it. The futures of loads hold it, and its frames hold the futures.
            error.__traceback__ = None
            error = None
        release()
        del release
        self._channel.end(error)


def _error_of(run: Callable[[], None]) -> BaseException | None:
    """What a call raises, for the thread that waits for it."""
    try:
        run()
    except BaseException as error:
        return error
    finally:
        del run  # an error's traceback refers to this frame, and the user may keep it
    return None


_running: weakref.WeakSet[Scheduler] = weakref.WeakSet()
at_fork(after_in_child=_running.clear)  # a fork has none of the threads


@atexit.register
def _close_all() -> None:
    for scheduler in list(_running):
        scheduler.close()
