"""WorkerStarts: the starts of iterations in DataLoader workers, set by the training process.

A new worker gets the start with the loader. Persistent workers read the start of each later
iteration from a row of integers that the training process writes (`shared_rows`). Each worker
writes the generation of the row that it begins into its own slot, so the training process sees
which starts were begun. Nobody waits, and no lock is needed: each value has one writer. If workers
of two DataLoaders write into one slot, at least one of them notices it at its next batch.

A start is for one iteration. After it, each worker continues with the next epoch, if its slot shows
that it has finished its shard; new workers, if the slots of all workers show it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from seqrecord.errors import ClipError, StateError
from seqrecord.loader.pipes.distributed import this_worker
from seqrecord.loader.pipes.shared_rows import SharedRow
from seqrecord.loader.pipes.states import Clip, State
from seqrecord.store.clips.tables import IntArray

_MOST_WORKERS = 512
_ROW = 6  # generation, loaded states, epoch, batch, batch_size, is_set

_GENERATION, _NUM_WORKERS, _EPOCH, _ENDED, _PROCESS, _ITERATIONS = range(6)
"""Columns of slots: the last iteration that a worker of this number has begun, the last epoch that
it has finished, its process, and the number of its iterations.
"""
_NEVER = -1  # no epoch


class WorkerStarts:
    """See the module. Picklable to start a process, which shares the memory.

    `start` was set by `set_epoch` or `load_state_dict` if `is_set`.
    """

    def __init__(self, start: State) -> None:
        self.start, self.is_set = start, False
        self._generation, self._num_loaded = 1, 0
        self._followed = 0, _NEVER  # generation and epoch
        values = np.zeros(_ROW + _MOST_WORKERS * (_ITERATIONS + 1), np.int64)
        values[:_ROW] = self._generation, 0, start.epoch, start.batch, start.batch_size, False
        self._row = SharedRow(values)
        self._process = os.getpid()  # which has published, or taken, the start
        self._is_new = False  # this worker, in its first iteration
        self._taken: list[int] = []  # this worker's slot, as the start was taken
        self._finished = 0, _NEVER  # generation and epoch of a state that this worker has loaded

    @property
    def in_worker(self) -> bool:
        """Whether this process is a worker, and another one owns the memory."""
        return self._row.in_worker

    @property
    def is_inherited(self) -> bool:
        """Whether another process has published the start, and this one is no worker, but for
        example a rank.
        """
        return self._process != os.getpid() and not self.in_worker

    def share(self) -> None:
        """Share the memory with workers that this process starts."""
        self._row.share()

    def publish(self, start: State, *, is_set: bool = False, is_new_state: bool = False) -> None:
        """Set the start of the next iteration in workers. No effect in a worker."""
        if self.in_worker:
            return
        if self.is_inherited:
            self._slots[:] = 0
            self._process = os.getpid()
        self.start, self.is_set = start, is_set
        self._generation += 1
        self._num_loaded += is_new_state
        place = start.epoch, start.batch, start.batch_size
        self._row.values[:_ROW] = (self._generation, self._num_loaded, *place, is_set)

    def follow(self) -> tuple[State, int] | None:
        """In the training process, the start that workers have begun last, and their number; once.

        It is the published start, or the beginning of a later epoch.
        """
        if self.in_worker:
            return None
        slots = self._slots
        begun = slots[slots[:, _GENERATION] == self._generation]
        if not len(begun):
            return None
        _, num_workers, epoch, *_ = begun[begun[:, _EPOCH].argmax()].tolist()
        if self._followed == (self._generation, epoch):
            return None
        self._followed = self._generation, epoch
        return self.start if epoch == self.start.epoch else State(epoch), num_workers

    def take(self) -> bool:
        """In a worker, set `start` to the published one: whether the worker is new, after others.

        Raises `StateError` if the training process has set a state or samples since the worker
        started.
        """
        self._is_new = self._process != os.getpid()
        if self._is_new:
            self._process = os.getpid()
        else:
            self._generation, num_loaded, *place, is_set = self._row.values[:_ROW].tolist()
            if num_loaded != self._num_loaded:
                raise StateError(
                    "a state or samples were set while persistent workers run, without them",
                    expected="a new DataLoader after load_state_dict or set_samples",
                    got="the DataLoader of before",
                )
            self.start, self.is_set = State(*place), bool(is_set)
        self._taken = self._slot.tolist()
        return self._is_new and self._taken[_ITERATIONS] == 1

    def next_start(self, *, differs_by_epoch: bool) -> State:
        """In a worker, the start of its next iteration: the taken one, or if it was begun before
        the next epoch.

        Raises `StateError` if orders differ by epoch, and the iteration before has not ended, or
        had other workers.
        """
        is_begun = self._taken[_GENERATION] == self._generation
        epoch = self._taken[_EPOCH] if is_begun else self.start.epoch
        if is_begun and self._is_over(epoch):
            return State(epoch).following
        if not differs_by_epoch or not (is_begun or self._is_begun_by_others()):
            return self.start
        raise StateError(
            "an iteration in DataLoader workers needs its epoch",
            expected="set_epoch(epoch) of the dataset before each iteration that follows an "
            "unfinished one, or one with another number of workers; with Lightning a Callback "
            "whose on_train_epoch_end(trainer, module) calls "
            "set_epoch(trainer.current_epoch + 1); or a SeqRecordPipe, which counts",
            got=f"a second iteration of epoch {epoch}",
        )

    def _is_begun_by_others(self) -> bool:
        """Whether another number of workers has begun the taken start, or workers had begun it when
        this one was started, and have begun another one since.
        """
        slots = self._slots
        begun = slots[slots[:, _GENERATION] == self._generation]
        is_newer = self._taken[_GENERATION] > self._generation
        is_late = is_newer and self._followed[0] == self._generation
        return is_late or bool((begun[:, _NUM_WORKERS] != this_worker()[1]).any())

    def _is_over(self, epoch: int) -> bool:
        """Whether as many workers as now have finished an epoch, which this one has begun last."""
        _, num_workers = this_worker()
        # New workers start together. Others may repeat a dataset in one iteration, at any pace.
        slots = self._slots[:num_workers] if self._is_new else self._slot[np.newaxis]
        is_over = (slots[:, _EPOCH] == epoch) & (slots[:, _ENDED] == epoch)
        is_over |= slots[:, _EPOCH] == State(epoch).following.epoch  # a faster worker's
        is_over &= slots[:, _GENERATION] == self._generation
        is_over &= slots[:, _NUM_WORKERS] == num_workers
        return bool(is_over.all())

    def begin(self, epoch: int, *, alone: bool = True) -> None:
        """In a worker: the taken start is begun, with this epoch.

        Raises `StateError` if it must be `alone`, and a worker of another DataLoader has begun it.
        """
        if self._is_finished(epoch):  # workers of the next iteration may have begun
            self._taken[_EPOCH] = epoch
            return
        slot, (_, num_workers) = self._slot, this_worker()
        alone = alone and bool(self._taken)
        # At most one of the workers that begin a start together gets through these three checks,
        # the splitter of Lamport's fast mutual exclusion: it writes its process before it reads the
        # start, and the start before it reads the process.
        if alone and slot[_PROCESS] != self._taken[_PROCESS]:
            raise _overlap(epoch)
        slot[_PROCESS] = os.getpid()
        if alone and any(slot[i] != self._taken[i] for i in (_GENERATION, _EPOCH)):
            raise _overlap(epoch)
        if slot[_GENERATION] != self._generation or slot[_ENDED] != epoch - 1:
            slot[_ENDED] = _NEVER
        # From one epoch to the next, workers that read the slot see one change: that of the epoch.
        slot[_NUM_WORKERS], slot[_EPOCH] = num_workers, epoch
        slot[_ITERATIONS] += 1
        slot[_GENERATION] = self._generation  # last: it makes the others valid
        if alone and slot[_PROCESS] != os.getpid():
            raise _overlap(epoch)
        self._taken = slot.tolist()

    def begin_state(self, epoch: int, *, is_over: bool) -> None:
        """In a worker that has loaded a state: its epoch is begun, and finished if it `is_over`."""
        self._finished = 0, _NEVER
        self.begin(epoch)
        slot = self._slot
        slot[_ITERATIONS] -= 1  # which comes
        if is_over:
            slot[_ENDED] = epoch
            self._finished = self._generation, epoch

    def _is_finished(self, epoch: int) -> bool:
        """Whether this worker has loaded a state at the end of an epoch of the start."""
        return self._finished == (self._generation, epoch)

    def watch(self, clips: Iterator[Clip], *, alone: bool) -> Iterator[Clip]:
        """In a worker, yield the batches of the iteration, and note its end in the slot.

        Raises `StateError` if it must be `alone`, and a worker of another DataLoader has begun the
        same epoch.
        """
        slot = self._slot.data  # whose items are integers of Python: less time per item
        for clip in clips:
            if alone and slot[_PROCESS] != self._process:
                self._check_epoch(slot)
            yield clip
        if self._is_finished(self._taken[_EPOCH]):
            return
        if slot[_PROCESS] == self._process:
            slot[_ENDED] = self._taken[_EPOCH]
        elif alone:
            self._check_epoch(slot)

    def _check_epoch(self, slot: memoryview) -> None:
        """Raise `StateError` if the slot of another worker has this one's epoch."""
        begun = self._taken
        if (slot[_GENERATION], slot[_EPOCH]) == (begun[_GENERATION], begun[_EPOCH]):
            raise _overlap(begun[_EPOCH])

    def differs_from_set(self, epoch: int) -> bool:
        """Whether the training process has called `set_epoch` with another epoch than this, for an
        iteration that has not begun.
        """
        is_pending = not self.in_worker or self._slot[_GENERATION] != self._generation
        return is_pending and self.is_set and not self.start.is_saved and self.start.epoch != epoch

    @property
    def _slot(self) -> IntArray:
        """This worker's slot."""
        number, num_workers = this_worker()
        if num_workers > _MOST_WORKERS:
            expected = f"at most {_MOST_WORKERS}"
            raise ClipError("too many workers", expected=expected, got=num_workers)
        slot: IntArray = self._slots[number]
        return slot

    @property
    def _slots(self) -> IntArray:
        return self._row.values[_ROW:].reshape(-1, _ITERATIONS + 1)


def _overlap(epoch: int) -> StateError:
    return StateError(
        "two DataLoaders iterate over one loader at the same time",
        expected="a loader for each of them, for example copy.deepcopy(loader)",
        got=f"epoch {epoch} in process {os.getpid()} and another one",
    )
