"""Objects that only their own process uses, and one of its threads at a time."""

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
    """Checks that a call comes from the process that made it, and overlaps no other thread's.

    A context manager around each public call of an object that writes to `file`; calls inside calls
    are allowed, and so is a call from another thread afterwards. It never waits. Raises
    `DestinationError`, before anything is changed. `what` is the object, in errors.
    """

    def __init__(self, what: str, file: str) -> None:
        self._what, self._file = what, file
        self._pid = os.getpid()
        self._lock = threading.RLock()

    def __reduce__(self) -> tuple[object, ...]:
        raise self._error(
            "cannot be sent to another process",
            "a writer that is made there: several may write to one destination",
            f"a copy of that of process {self._pid}",
        )

    @property
    def is_own(self) -> bool:
        """Whether this is the process that made it, not a fork of that."""
        return self._pid == os.getpid()

    def check_process(self) -> None:
        """Raise `DestinationError` in a forked process."""
        if self._pid != os.getpid():
            raise self._error(
                "belongs to another process: a fork has copied it, and cannot use it",
                f"calls from process {self._pid}; or a writer that is made after the fork, for "
                "several may write to one destination",
                f"a call from process {os.getpid()}",
            )

    def __enter__(self) -> None:
        self.check_process()
        if not self._lock.acquire(blocking=False):
            raise self._error(
                "is used by two threads at the same time",
                "one call at a time: a lock around the calls, or a writer for each thread",
                f"a call from thread {threading.current_thread().name} during one of another",
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _error(self, problem: str, expected: str, got: str) -> SeqRecordError:
        return DestinationError(
            f"the {self._what} {problem}", file=self._file, expected=expected, got=got
        )


class HasExclusive(Protocol):
    """What has methods that are `exclusive`."""

    @property
    def _exclusive(self) -> Exclusive: ...


_Self = TypeVar("_Self", bound=HasExclusive)


def exclusive(
    method: Callable[Concatenate[_Self, _P], _T],
) -> Callable[Concatenate[_Self, _P], _T]:
    """The method, inside the `Exclusive` of its object."""

    @functools.wraps(method)
    def call(self: _Self, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        with self._exclusive:
            return method(self, *args, **kwargs)

    return call
