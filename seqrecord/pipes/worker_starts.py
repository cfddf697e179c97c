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
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import get_worker_info

from seqrecord.clips.tables import IntArray
from seqrecord.errors import ClipError, StateError
from seqrecord.pipes.states import State

_MOST_WORKERS = 512
_ROW = 6  # generation, loaded states, epoch, batch, batch_size, is_set


class _Slot(NamedTuple):
    """The last iteration that a worker of this number has begun."""

    generation: int = 0
    parent: int = 0
    num_workers: int = 0
    epoch: int = 0
    iterations: int = 0


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
        self._memory: Any = RawArray("q", _ROW + _MOST_WORKERS * len(_Slot()))
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
        slots = self._slots
        begun = slots[(slots[:, 0] == self._generation) & (slots[:, 1] == os.getpid())]
        if self.in_worker or self._followed == self._generation or not len(begun):
            return None
        self._followed, slot = self._generation, _Slot(*begun[0].tolist())
        is_own = slot.epoch != self.start.epoch  # of a StatefulDataLoader's state
        return State(slot.epoch) if is_own else self.start, slot.num_workers

    def take(self) -> tuple[bool, bool]:
        """In a worker, set `start` to that of its next iteration: whether the worker has begun it
        before, and whether the worker is new, after others.

        Raises `StateError` if the training process has loaded a state since the worker started.
        """
        is_new = self._process != os.getpid()
        if is_new:
            self._process = os.getpid()
        else:
            self._generation, num_loaded, *place, is_set = self._memory[:_ROW]
            if num_loaded != self._num_loaded:
                raise StateError(
                    "a state was loaded while persistent workers run, which cannot get it",
                    expected="a new DataLoader after load_state_dict",
                    got="the DataLoader of before",
                )
            self.start, self.is_set = State(*place), bool(is_set)
        before = self._own_slot()
        return before.generation == self._generation, is_new and before.iterations == 1

    def begin(self, epoch: int) -> None:
        """In a worker: the taken start is begun, with this epoch."""
        before, info = self._own_slot(), get_worker_info()
        assert info is not None
        slot = self._slots[info.id]
        slot[1:] = (_parent(), info.num_workers, epoch, before.iterations + 1)
        slot[0] = self._generation  # last: it makes the others valid

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
        return values[_ROW:].reshape(-1, len(_Slot()))


def _parent() -> int:
    """The process that has started this worker; not its fork server."""
    parent = multiprocessing.parent_process()
    return os.getppid() if parent is None or parent.pid is None else parent.pid
