"""SharedRow: integers that a process shares with copies of it in DataLoader workers.

torch does not tell a dataset that workers start, but every start copies it: `fork` with the memory
of the process, `spawn` and `forkserver` as a pickle. Only then does a row become shared memory.
Other copies have values of their own: a pickle, a `copy.deepcopy`, and a copy in a started process
that is no worker, such as a rank.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from multiprocessing.sharedctypes import RawArray
from typing import Any, Protocol

import numpy as np
from torch.utils.data import get_worker_info

from seqrecord.errors import ResourceError
from seqrecord.store.clips.tables import IntArray
from seqrecord.store.processes.forks import at_fork
from seqrecord.store.storage.open_files import with_descriptor


class SharedRow:
    """See the module. Picklable."""

    def __init__(self, values: IntArray) -> None:
        self._values = values
        self._memory: dict[int, Any] = {}  # by the process that has allocated it
        self._owner = os.getpid()
        self._error: OSError | None = None  # of the allocation before a fork
        share_before_forks(self)

    @property
    def in_worker(self) -> bool:
        """Whether this process is a DataLoader worker with a copy."""
        return get_worker_info() is not None and self._owner != os.getpid()

    @property
    def values(self) -> IntArray:
        """The integers, int64[n], to read and write.

        Raises `ResourceError` in a worker if there was no shared memory.
        """
        if self._owner != os.getpid():
            if get_worker_info() is None:  # a rank, with a copy
                self._values = self._values.copy()
                self._memory, self._owner, self._error = {}, os.getpid(), None
            elif not self._memory:
                raise _no_memory(self._values.nbytes, self._error)
        return self._values

    def share(self) -> None:
        """Move the values to shared memory, before this process is forked. An error is raised by
        `values` in the worker: a fork would only print it.
        """
        try:
            self._share()
        except OSError as error:
            self._error = error

    def _share(self) -> None:
        values = self._values if self.in_worker else self.values
        if not self._memory and not self.in_worker:
            # No tensor: torch shares one under a lock that another thread may have during a fork.
            made = with_descriptor(lambda: RawArray("q", len(values)))
            memory = self._memory.setdefault(self._owner, made)  # another thread may be faster
            shared: IntArray = np.frombuffer(memory, np.int64)
            shared[:] = values
            self._values = shared

    def __reduce__(self) -> tuple[Callable[..., SharedRow], tuple[Any, ...]]:
        if get_spawning_popen() is None:
            return SharedRow, (self.values.copy(),)
        try:
            self._share()
        except OSError as error:
            raise _no_memory(self._values.nbytes, error) from error
        # torch pickles a DataPipe alone, which would copy the memory.
        memory = ForkingPickler.dumps(self._memory[self._owner])
        return _in_started_process, (bytes(memory), self._owner)


def _in_started_process(memory: bytes, owner: int) -> SharedRow:
    """The row of a pickle for a process that starts."""
    shared = ForkingPickler.loads(memory)
    row = SharedRow(np.frombuffer(shared, np.int64))
    row._memory, row._owner = {owner: shared}, owner
    return row


def _no_memory(nbytes: int, error: OSError | None) -> ResourceError:
    return ResourceError(
        "no shared memory for DataLoader workers",
        expected=f"{nbytes} bytes in /dev/shm or the folder of temporary files, writable (for "
        "example docker run --shm-size=1g); or num_workers=0, for this loader has threads of its "
        "own",
        got=error or "a process that was forked in an unusual way",
    )


class Shareable(Protocol):
    """What a process shares with its workers."""

    def share(self) -> None:
        """Called before each fork of this process; raises nothing."""


_shareable: weakref.WeakValueDictionary[int, Shareable] = weakref.WeakValueDictionary()


def share_before_forks(thing: Shareable) -> None:
    """Call `thing.share()` before each fork, as long as it lives."""
    _shareable[id(thing)] = thing


def _share_all() -> None:
    for reference in _shareable.valuerefs():
        if (thing := reference()) is not None:
            thing.share()


at_fork(before=_share_all)
