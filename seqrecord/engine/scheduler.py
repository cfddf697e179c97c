"""Threads that execute plans, and end when nobody wants their batches any more.

None of them refers to the consumer, so that all can end when the consumer is dropped.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable

from seqrecord.engine.channel import Channel, ClosedError
from seqrecord.engine.workers import THREAD_NAME
from seqrecord.forks import at_fork
from seqrecord.threads import start

__all__ = ["Scheduler"]


class Scheduler:
    """A thread that calls `run`, and then tells the channel that it has ended, with what it raised.

    Raises `ResourceError` where the system lets none start; the channel is then closed.
    """

    def __init__(self, channel: Channel, run: Callable[[], None]) -> None:
        self.process = os.getpid()
        self._channel = channel
        name = f"{THREAD_NAME}-scheduler"
        self._thread = threading.Thread(target=self._run, args=(run,), name=name, daemon=True)
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

    def _run(self, run: Callable[[], None]) -> None:
        error = _error_of(run)
        del run
        if isinstance(error, ClosedError) or (error is not None and self._channel.is_closed):
            # Nobody gets it. The futures of loads hold it, and its frames hold the futures.
            error.__traceback__ = None
            error = None
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
