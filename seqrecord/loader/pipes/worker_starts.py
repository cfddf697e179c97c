"""WorkerStarts: the starts of iterations in DataLoader workers, set by the training process.

A new worker gets the start with the loader. Persistent workers read the start of each later
iteration from shared memory: a row of integers that the training process writes. Each worker writes
the generation of the row that it begins into its own slot, so the training process sees which
starts were begun. Nobody waits, and no lock is needed: each value has one writer.
"""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.reduction import ForkingPickler
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np
from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError, StateError
from seqrecord.loader.pipes.distributed import this_worker
from seqrecord.loader.pipes.states import State
from seqrecord.store.clips.tables import IntArray

_MOST_WORKERS = 512
_ROW = 6  # generation, loaded states, epoch, batch, batch_size, is_set

_GENERATION, _PARENT, _NUM_WORKERS, _EPOCH, _ITERATIONS = range(5)
"""Columns of slots: the last iteration that a worker of this number has begun."""


class WorkerStarts:
    """See the module. Picklable to start a process, which shares the memory.

    `start` was set by `set_epoch` or `load_state_dict` if `is_set`.
    """

    def __init__(self, start: State) -> None:
        self._generation = self._num_loaded = self._followed = 0
        self._allocate()
        self.publish(start)

    def _allocate(self) -> None:
        # No tensor: torch shares one under a lock that another thread may have during a fork.
        self._memory: Any = RawArray("q", _ROW + _MOST_WORKERS * (_ITERATIONS + 1))
        self._owner = self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        # torch pickles a DataPipe alone, which would copy the memory.
        return {**self.__dict__, "_memory": bytes(ForkingPickler.dumps(self._memory))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _memory=ForkingPickler.loads(state["_memory"]))

    @property
    def in_worker(self) -> bool:
        """Whether this process is a worker, and another one owns the memory."""
        return get_worker_info() is not None and self._owner != os.getpid()

    def publish(self, start: State, *, is_set: bool = False, is_new_state: bool = False) -> None:
        """Set the start of the next iteration in workers. No effect in a worker."""
        if self.in_worker:
            return
        if self._owner != os.getpid():  # a process with workers of its own
            self._allocate()
        self.start, self.is_set = start, is_set
        self._generation += 1
        self._num_loaded += is_new_state
        place = start.epoch, start.batch, start.batch_size
        self._memory[:_ROW] = (self._generation, self._num_loaded, *place, is_set)

    def follow(self) -> tuple[State, int] | None:
        """In the training process, the published start and the number of workers that have begun
        it; once.
        """
        if not self.in_worker and self._owner != os.getpid():  # a rank, with a copy
            self.publish(self.start, is_set=self.is_set)
        slots = self._slots
        is_begun = slots[:, _GENERATION] == self._generation
        begun = slots[is_begun & (slots[:, _PARENT] == os.getpid())].tolist()
        if self.in_worker or self._followed == self._generation or not begun:
            return None
        self._followed, (*_, num_workers, epoch, _) = self._generation, begun[0]
        is_own = epoch != self.start.epoch  # of a StatefulDataLoader's state
        return State(epoch) if is_own else self.start, num_workers

    def take(self) -> tuple[bool, bool]:
        """In a worker, set `start` to that of its next iteration: whether the worker has begun it
        before, and whether the worker is new, after others.

        Raises `StateError` if the training process has set a state or samples since the worker
        started.
        """
        is_new = self._process != os.getpid()
        if is_new:
            self._process = os.getpid()
        else:
            self._generation, num_loaded, *place, is_set = self._memory[:_ROW]
            if num_loaded != self._num_loaded:
                raise StateError(
                    "a state or samples were set while persistent workers run, without them",
                    expected="a new DataLoader after load_state_dict or set_samples",
                    got="the DataLoader of before",
                )
            self.start, self.is_set = State(*place), bool(is_set)
        slot = self._slot
        is_used = slot[_GENERATION] == self._generation
        return bool(is_used), is_new and bool(slot[_ITERATIONS] == 1)

    def begin(self, epoch: int) -> None:
        """In a worker: the taken start is begun, with this epoch."""
        _, num_workers = this_worker()
        slot = self._slot
        slot[_PARENT:] = (_parent(), num_workers, epoch, slot[_ITERATIONS] + 1)
        slot[_GENERATION] = self._generation  # last: it makes the others valid

    @property
    def _slot(self) -> IntArray:
        """This worker's slot; emptied if another process has started the last worker."""
        number, num_workers = this_worker()
        if num_workers > _MOST_WORKERS:
            expected = f"at most {_MOST_WORKERS}"
            raise ClipError("too many workers", expected=expected, got=num_workers)
        slot: IntArray = self._slots[number]
        if slot[_PARENT] != _parent():
            slot[:] = 0
        return slot

    @property
    def _slots(self) -> IntArray:
        values: IntArray = np.frombuffer(self._memory, np.int64)
        return values[_ROW:].reshape(-1, _ITERATIONS + 1)


def _parent() -> int:
    """The process that has started this worker; not its fork server."""
    parent = multiprocessing.parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid
