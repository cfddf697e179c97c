"""WorkerSlot: what a DataLoader worker tells the training process and later workers of its number.

A slot is a few integers in shared memory. There is one for each number of a worker, so workers of
two DataLoaders around one dataset write into the same slot. No lock is needed: `begin` lets at most
one of them through, and a worker whose slot another one takes over notices it at its next batch.
"""

from __future__ import annotations

import os
from collections.abc import MutableSequence
from typing import NamedTuple

import numpy as np

from seqrecord.errors import StateError

NO_EPOCH = -1
_NAMES = "generation", "num_workers", "epoch", "finished", "process", "iterations"
NUM_VALUES = len(_NAMES)
_GENERATION, _NUM_WORKERS, _EPOCH, _FINISHED, _PROCESS, _ITERATIONS = range(NUM_VALUES)


class SlotValues(NamedTuple):
    """The values of a slot.

    Attributes:
        generation: the start that was begun last, by its number; 0 before the first.
        num_workers: the number of workers that share this iteration.
        epoch: the epoch that was begun last.
        finished: that epoch once all its batches were delivered, `NO_EPOCH` before; or the epoch
            before it, if the slot's iteration follows that one.
        process: the worker's process.
        iterations: the number of iterations begun in this slot.
    """

    generation: int = 0
    num_workers: int = 0
    epoch: int = 0
    finished: int = 0
    process: int = 0
    iterations: int = 0


SLOT = np.dtype([(name, np.int64) for name in _NAMES])
"""The values of a slot in an array of slots."""


class WorkerSlot:
    """One slot, of this process's worker.

    `values` are the integers of a `SLOT`. A memoryview's items are Python's: less time per batch.
    """

    def __init__(self, values: MutableSequence[int] | memoryview) -> None:
        self._values = values

    def read(self) -> SlotValues:
        """All values. Another worker may write meanwhile; see `begin`."""
        return SlotValues(*self._values)

    def begin(
        self, generation: int, epoch: int, num_workers: int, expected: SlotValues | None
    ) -> SlotValues:
        """Write that this process begins an epoch; return the values.

        Raises `StateError` if another process has begun, or begins meanwhile, an iteration since
        the values were as `expected`. `None` allows any.
        """
        values, process = self._values, os.getpid()
        # The splitter of Lamport's fast mutual exclusion. Each process writes its number before it
        # reads the start, and the start before it reads the number again. If two got through, each
        # has found the old start, so both had written their numbers before either wrote its start:
        # then the one whose number was overwritten finds the other's in the end.
        if expected is not None and values[_PROCESS] != expected.process:
            raise overlap_error(epoch)
        values[_PROCESS] = process
        if expected is not None:
            start = values[_GENERATION], values[_EPOCH]
            if start != (expected.generation, expected.epoch):
                raise overlap_error(epoch)
        if values[_GENERATION] != generation or values[_FINISHED] != epoch - 1:
            values[_FINISHED] = NO_EPOCH
        # From one epoch to the next, workers that read the slot see one change: that of the epoch.
        values[_NUM_WORKERS], values[_EPOCH] = num_workers, epoch
        values[_ITERATIONS] += 1
        values[_GENERATION] = generation  # last: it makes the others valid
        if expected is not None and values[_PROCESS] != process:
            raise overlap_error(epoch)
        return self.read()

    def finish(self, epoch: int) -> None:
        """Write that all batches of an epoch were delivered."""
        self._values[_FINISHED] = epoch

    def uncount(self) -> None:
        """Take back one iteration, which is begun again later."""
        self._values[_ITERATIONS] -= 1

    def is_of(self, process: int) -> bool:
        """Whether the slot was begun last by a process."""
        return self._values[_PROCESS] == process

    def check_epoch(self, begun: SlotValues) -> None:
        """Raise `StateError` if another worker has begun this epoch of this start."""
        now = self.read()
        if (now.generation, now.epoch) == (begun.generation, begun.epoch):
            raise overlap_error(begun.epoch)


def overlap_error(epoch: int) -> StateError:
    """The error of two DataLoaders that share a slot."""
    return StateError(
        "two DataLoaders iterate over one loader at the same time",
        expected="a loader for each of them, for example copy.deepcopy(loader)",
        got=f"epoch {epoch} in process {os.getpid()} and another one",
    )
