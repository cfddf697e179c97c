"""Guard for objects that one process uses, from one thread at a time."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from seqrecord.errors import DestinationError, SeqRecordError

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Exclusive:
    """Context manager that rejects calls from another process or from two threads at once.

    Wrap each public method of an object that writes to `file`. Nested calls are allowed, and so are
    calls from different threads one after another. Never blocks. Raises `DestinationError` before
    the method runs. `what` names the object in errors.
    """

    def __init__(self, what: str, file: str) -> None:
        self._what, self._file = what, file
        self._pid = os.getpid()
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[object, ...]:
        raise self._error(
            "cannot be sent to another process",
            "a writer created there; several writers may share one destination",
            f"a pickled writer of process {self._pid}",
        )

    @property
    def is_own(self) -> bool:
        """Whether this process created the object, rather than inherited it by a fork."""
        return self._pid == os.getpid()

    def check_process(self) -> None:
        """Raise `DestinationError` in a forked process."""
        if self._pid != os.getpid():
            raise self._error(
                "belongs to another process and cannot be used after a fork",
                f"calls from process {self._pid}, or a writer created after the fork; several "
                "writers may share one destination",
                f"a call from process {os.getpid()}",
            )

    def __enter__(self) -> None:
        self.check_process()
        # Refused, not queued: frames of two threads would be mixed into one episode
        # (tests/store/test_exclusive.py::test_overlapping_calls_of_two_threads_are_refused).
        if not self._lock.acquire(blocking=False):
            raise self._error(
                "is used by two threads at the same time",
                "one call at a time: a lock around the calls, or a writer for each thread",
                f"a call from thread {threading.current_thread().name} during another call",
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _error(self, problem: str, expected: str, got: str) -> SeqRecordError:
        return DestinationError(
            f"the {self._what} {problem}", file=self._file, expected=expected, got=got
        )


class HasExclusive(Protocol):
    """An object with `exclusive` methods."""

    @property
    def _exclusive(self) -> Exclusive: ...


_Self = TypeVar("_Self", bound=HasExclusive)


def exclusive(
    method: Callable[Concatenate[_Self, _P], _T],
) -> Callable[Concatenate[_Self, _P], _T]:
    """Decorator: runs the method inside the `Exclusive` of its object."""

    @functools.wraps(method)
    def call(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._exclusive:
            return method(self, *args, **kwargs)

    return call
