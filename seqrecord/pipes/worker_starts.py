"""WorkerStarts: the starts of iterations in DataLoader workers, set by the training process.

A new worker gets the start as integers, copied with the loader. Persistent workers read the start
of each later iteration from shared memory: a row of integers that the training process writes. Each
worker writes the generation of the row that it begins into its own slot, so the training process
sees which starts were begun. Nobody waits, and no lock is needed: each value has one writer.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from multiprocessing.sharedctypes import RawArray
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

from seqrecord.clips.tables import IntArray
from seqrecord.errors import ClipError, StateError
from seqrecord.units import MAX_INT

_MOST_WORKERS = 512


class Start(NamedTuple):
    """The start of an epoch: after `batches` batches of `batch_size` items, over all workers of a
    rank; or at the position of the last loaded state.

    `is_set` if by `set_epoch` or a state; `is_automatic` if torch announces each iteration.
    """

    epoch: int = 0
    batches: int = 0
    batch_size: int = 1
    is_loaded: bool = False
    is_set: bool = False
    is_automatic: bool = False

    @property
    def following(self) -> Start:
        """The start of the next epoch."""
        return Start(min(self.epoch + 1, MAX_INT))


class _Slot(NamedTuple):
    """The last iteration that a worker of this number has begun."""

    generation: int = 0
    parent: int = 0
    num_workers: int = 0
    epoch: int = 0
    iterations: int = 0


_ROW = 2 + len(Start())  # generation, loaded states, start
_SIZE = len(_Slot())


class WorkerStarts:
    """See the module. A copy that is pickled to start a process shares the memory; others get new
    memory.
    """

    def __init__(self) -> None:
        self.generation = self._num_loaded = 0
        self._allocate()
        self.publish(Start())

    def _allocate(self) -> None:
        # No tensor: torch shares one under a lock that another thread may have during a fork.
        self._memory: Any = RawArray("q", _ROW + _MOST_WORKERS * _SIZE)
        self._owner = self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        # torch pickles a DataPipe alone, which would copy the memory.
        is_start = get_spawning_popen() is not None
        memory = bytes(ForkingPickler.dumps(self._memory)) if is_start else None
        return {**self.__dict__, "_memory": memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if state["_memory"] is None:
            self._allocate()
            self.publish(self.start)
        else:
            self._memory = ForkingPickler.loads(state["_memory"])

    @property
    def in_worker(self) -> bool:
        """Whether this process is a worker, and another one owns the memory."""
        return get_worker_info() is not None and self._owner != os.getpid()

    def publish(self, start: Start, *, is_new_state: bool = False) -> None:
        """Set the start of the next iteration in workers. No effect in a worker."""
        if self.in_worker:
            return
        if self._owner != os.getpid():  # a process with workers of its own
            self._allocate()
        self.start = start
        self.generation += 1
        self._num_loaded += is_new_state
        self._memory[:_ROW] = (self.generation, self._num_loaded, *map(int, start))

    def begun(self) -> tuple[int, int] | None:
        """The epoch and the number of workers that have begun the published start, if any has."""
        slots = self._slots
        found = slots[(slots[:, 0] == self.generation) & (slots[:, 1] == os.getpid())]
        slot = _Slot(*found[0].tolist()) if len(found) else None
        return None if slot is None else (slot.epoch, slot.num_workers)

    def take(self) -> tuple[Start, bool, bool]:
        """In a worker: the start of its next iteration, whether the worker has begun this start
        before, and whether the worker is new, after others.

        Raises `StateError` if the training process has loaded a state since the worker started.
        """
        if self._process != os.getpid():
            self._process = os.getpid()
            before = self._own_slot
            return self.start, before.generation == self.generation, before.iterations == 1
        self.generation, num_loaded, *start = self._memory[:_ROW]
        if num_loaded != self._num_loaded:
            raise StateError(
                "a state was loaded while persistent workers run, which cannot get it",
                expected="a new DataLoader after load_state_dict",
                got="the DataLoader of before",
            )
        self.start = Start(*start[:3], *map(bool, start[3:]))
        return self.start, self._own_slot.generation == self.generation, False

    def begin(self, epoch: int) -> None:
        """In a worker: the taken start is begun, with this epoch."""
        info, before = get_worker_info(), self._own_slot
        assert info is not None
        own = self._slots[info.id]
        own[1:] = (_parent(), info.num_workers, epoch, before.iterations + 1)
        own[0] = self.generation  # last: it makes the others valid

    @property
    def _own_slot(self) -> _Slot:
        """This worker's slot; an unused one if another process has started the last worker."""
        info = get_worker_info()
        assert info is not None
        if info.num_workers > _MOST_WORKERS:
            expected = f"at most {_MOST_WORKERS}"
            raise ClipError("too many workers", expected=expected, got=info.num_workers)
        slot = _Slot(*self._slots[info.id].tolist())
        return slot if slot.parent == _parent() else _Slot()

    @property
    def _slots(self) -> IntArray:
        values: IntArray = np.frombuffer(self._memory, np.int64)
        return values[_ROW:].reshape(-1, _SIZE)


def _parent() -> int:
    """The process that has started this worker; not its fork server."""
    parent = multiprocessing.parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid
