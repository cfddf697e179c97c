"""SharedRow: integers that a process shares with copies of it in DataLoader workers.

torch does not tell a dataset that workers start, but every start copies it: `fork` with the memory
of the process, `spawn` and `forkserver` as a pickle. Only then does a row become shared memory.
Other copies have values of their own: a pickle, a `copy.deepcopy`, and a copy in a started process
that is no worker, such as a rank.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any, Protocol

import numpy as np
from torch.utils.data import get_worker_info

from seqrecord.errors import ResourceError
from seqrecord.loader.clips.tables import IntArray
from seqrecord.store.processes.forks import at_fork
from seqrecord.store.storage.open_files import with_descriptor


class _Memory:
    """Memory behind a file descriptor, which it closes at its end.

    Each has a file of its own. `RawArray` puts several into one, whose descriptor a process that
    spawns refuses to pass twice (`bad value(s) in fds_to_keep`).
    """

    def __init__(self, nbytes: int, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = with_descriptor(_new_file)
        weakref.finalize(self, os.close, descriptor)
        self._descriptor, self._nbytes = descriptor, nbytes
        os.ftruncate(descriptor, max(nbytes, mmap.PAGESIZE))
        self.values: IntArray = np.frombuffer(mmap.mmap(descriptor, nbytes), np.int64)

    def for_started_process(self, popen: Any) -> tuple[Any, int]:
        """A descriptor that `popen` passes to the process that it starts, and the size."""
        descriptor = with_descriptor(lambda: os.dup(self._descriptor))  # see the class
        weakref.finalize(popen, os.close, descriptor)
        return DupFd(descriptor), self._nbytes


def _new_file() -> int:
    """A descriptor of a file in memory; elsewhere than on Linux, of one without a name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("positions")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class SharedRow:
    """See the module. Picklable."""

    def __init__(self, values: IntArray) -> None:
        self._values = values
        self._memory: dict[int, _Memory] = {}  # by the process that has allocated it
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
            made = _Memory(values.nbytes)
            memory = self._memory.setdefault(self._owner, made)  # another thread may be faster
            memory.values[:] = values
            self._values = memory.values

    def __reduce__(self) -> tuple[Callable[..., SharedRow], tuple[Any, ...]]:
        popen = get_spawning_popen()
        if popen is None:
            return SharedRow, (self.values.copy(),)
        try:
            self._share()
            descriptor, nbytes = self._memory[self._owner].for_started_process(popen)
        except OSError as error:
            raise _no_memory(self._values.nbytes, error) from error
        return _in_started_process, (descriptor, nbytes, self._owner)


def _in_started_process(descriptor: Any, nbytes: int, owner: int) -> SharedRow:
    """The row of a pickle for a process that starts."""
    memory = _Memory(nbytes, descriptor.detach())
    row = SharedRow(memory.values)
    row._memory, row._owner = {owner: memory}, owner
    return row


def _no_memory(nbytes: int, error: OSError | None) -> ResourceError:
    return ResourceError(
        "no shared memory for DataLoader workers",
        expected=f"{nbytes} bytes of memory, and two file descriptors; or num_workers=0, for this "
        "loader has threads of its own",
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
