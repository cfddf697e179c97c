"""WorkerStarts: the starts of iterations in DataLoader workers, set by the training process.

A new worker gets the start with the loader. Persistent workers read the start of each later
iteration from a row of integers that the training process writes (`shared_rows`)::

    start    generation, loaded states, epoch, batch, batch_size, is_set     by the training process
    slots    of worker 0, of worker 1, …                                     by the workers

A start's generation is its number. A worker that begins it writes the generation into its slot
(`worker_slots`), so the training process sees which starts were begun. Nobody waits: each value has
one writer.

A start is for one iteration. After it, each worker continues with the next epoch, if its slot shows
that it has finished its shard; new workers, if the slots of all workers show it.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError, StateError
from seqrecord.loader.pipes.distributed import this_worker
from seqrecord.loader.pipes.shared_rows import SharedRow
from seqrecord.loader.pipes.states import Clip, State
from seqrecord.loader.pipes.worker_slots import (
    NO_EPOCH,
    NUM_VALUES,
    SLOT,
    SlotValues,
    WorkerSlot,
)

_MAX_WORKERS = 512
_START = 6  # integers of a start


class WorkerStarts:
    """See the module. Picklable to start a process, which shares the memory.

    `start` was set by `set_epoch` or `load_state_dict` if `is_set`. `row` are the shared integers.
    """

    def __init__(self, start: State) -> None:
        self.start, self.is_set = start, False
        self._generation, self._num_loaded = 1, 0
        self._followed = 0, NO_EPOCH  # generation and epoch
        values = np.zeros(_START + _MAX_WORKERS * NUM_VALUES, np.int64)
        values[:_START] = self._generation, 0, start.epoch, start.batch, start.batch_size, False
        self.row = SharedRow(values)
        self._process = os.getpid()  # which has published, or taken, the start
        self._is_new = False  # this worker, in its first iteration
        self._taken: SlotValues | None = None  # of this worker, as the start was taken
        self._finished = 0, NO_EPOCH  # generation and epoch of a state that this worker has loaded

    @property
    def is_inherited(self) -> bool:
        """Whether another process has published the start, and this one is no worker, but for
        example a rank.
        """
        return self._process != os.getpid() and not self.row.in_worker

    def publish(self, start: State, *, is_set: bool = False, is_new_state: bool = False) -> None:
        """Set the start of the next iteration in workers. No effect in a worker."""
        if self.row.in_worker:
            return
        if self.is_inherited:
            self._slots[:] = 0
            self._process = os.getpid()
        self.start, self.is_set = start, is_set
        self._generation += 1
        self._num_loaded += is_new_state
        place = start.epoch, start.batch, start.batch_size
        self.row.values[:_START] = (self._generation, self._num_loaded, *place, is_set)

    def follow(self) -> tuple[State, int] | None:
        """In the training process, the start that workers have begun last, and their number; once.

        It is the published start, or the beginning of a later epoch.
        """
        if self.row.in_worker:
            return None
        begun = self._begun_slots()
        if not len(begun):
            return None
        latest = SlotValues(*begun[begun["epoch"].argmax()].item())
        if self._followed == (self._generation, latest.epoch):
            return None
        self._followed = self._generation, latest.epoch
        is_start = latest.epoch == self.start.epoch
        return self.start if is_start else State(latest.epoch), latest.num_workers

    def take(self) -> bool:
        """In a worker, set `start` to the published one: whether the worker is new, after others.

        Raises `StateError` if the training process has set a state or samples since the worker
        started.
        """
        self._is_new = self._process != os.getpid()
        if self._is_new:
            self._process = os.getpid()
        else:
            self._generation, num_loaded, *place, is_set = self.row.values[:_START].tolist()
            if num_loaded != self._num_loaded:
                raise StateError(
                    "a state or samples were set while persistent workers run, without them",
                    expected="a new DataLoader after load_state_dict or set_samples",
                    got="the DataLoader of before",
                )
            self.start, self.is_set = State(*place), bool(is_set)
        self._taken = self._slot.read()
        return self._is_new and self._taken.iterations == 1

    def next_start(self, *, differs_by_epoch: bool) -> State:
        """In a worker, the start of its next iteration: the taken one, or if it was begun before
        the next epoch.

        Raises `StateError` if orders differ by epoch, and the iteration before has not ended, or
        had other workers.
        """
        taken = self._taken_values
        is_begun = taken.generation == self._generation
        epoch = taken.epoch if is_begun else self.start.epoch
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
        begun = self._begun_slots()
        is_newer = self._taken_values.generation > self._generation
        is_late = is_newer and self._followed[0] == self._generation
        return is_late or bool((begun["num_workers"] != this_worker()[1]).any())

    def _is_over(self, epoch: int) -> bool:
        """Whether as many workers as now have finished an epoch, which this one has begun last."""
        number, num_workers = this_worker()
        # New workers start together. Others may repeat a dataset in one iteration, at any pace.
        numbers = slice(num_workers) if self._is_new else slice(number, number + 1)
        slots = self._slots[numbers]
        is_over = (slots["epoch"] == epoch) & (slots["finished"] == epoch)
        is_over |= slots["epoch"] == State(epoch).following.epoch  # a faster worker's
        is_over &= slots["generation"] == self._generation
        is_over &= slots["num_workers"] == num_workers
        return bool(is_over.all())

    def begin(self, epoch: int, *, alone: bool = True) -> None:
        """In a worker: the taken start is begun, with this epoch.

        Raises `StateError` if it must be `alone`, and a worker of another DataLoader has begun it.
        """
        if self._is_finished(epoch):  # workers of the next iteration may have begun
            self._taken = self._taken_values._replace(epoch=epoch)
            return
        expected = self._taken if alone else None
        self._taken = self._slot.begin(self._generation, epoch, this_worker()[1], expected)

    def begin_state(self, epoch: int, *, is_over: bool) -> None:
        """In a worker that has loaded a state: its epoch is begun, and finished if it `is_over`."""
        self._finished = 0, NO_EPOCH
        self.begin(epoch)
        self._slot.uncount()  # the iteration comes
        if is_over:
            self._slot.finish(epoch)
            self._finished = self._generation, epoch

    def _is_finished(self, epoch: int) -> bool:
        """Whether this worker has loaded a state at an epoch's end since the start."""
        return self._finished == (self._generation, epoch)

    def watch(self, clips: Iterator[Clip], *, alone: bool) -> Iterator[Clip]:
        """In a worker, yield the batches of the iteration, and note its end in the slot.

        Raises `StateError` if it must be `alone`, and a worker of another DataLoader has begun the
        same epoch.
        """
        slot = self._slot
        for clip in clips:
            if alone and not slot.is_of(self._process):
                slot.check_epoch(self._taken_values)
            yield clip
        if self._is_finished(self._taken_values.epoch):
            return
        if slot.is_of(self._process):
            slot.finish(self._taken_values.epoch)
        elif alone:
            slot.check_epoch(self._taken_values)

    def differs_from_set(self, epoch: int) -> bool:
        """Whether the training process has called `set_epoch` with another epoch than this, for an
        iteration that has not begun.
        """
        is_pending = not self.row.in_worker or self._slot.read().generation != self._generation
        return is_pending and self.is_set and not self.start.is_saved and self.start.epoch != epoch

    @property
    def _taken_values(self) -> SlotValues:
        """The values of this worker's slot as it took or began its start; zeros before."""
        return self._taken or SlotValues()

    @property
    def _slot(self) -> WorkerSlot:
        """This worker's slot."""
        number, num_workers = this_worker()
        if num_workers > _MAX_WORKERS:
            expected = f"at most {_MAX_WORKERS}"
            raise ClipError("too many workers", expected=expected, got=num_workers)
        return WorkerSlot(self._slots[number : number + 1].view(np.int64).data)

    @property
    def _slots(self) -> npt.NDArray[Any]:
        """The slots of all workers, `SLOT`[workers]."""
        return self.row.values[_START:].view(SLOT)

    def _begun_slots(self) -> npt.NDArray[Any]:
        """The slots of workers that have begun the start, `SLOT`[n]."""
        slots = self._slots
        begun: npt.NDArray[Any] = slots[slots["generation"] == self._generation]
        return begun


_MAX_BYTES = 1 << 15  # of a compressed state, 0.1 kB for each dataset of a mix
_NUM_BYTES, _NUMBER = 0, 1  # first integers of the row


class SharedState:
    """The state that DataLoader workers have loaded, for the workers after them. Picklable to start
    a process, which shares the memory.

    A StatefulDataLoader passes its state to its workers alone. The first worker writes it to
    memory that the training process shares with all workers, so that new workers, which begin the
    next epoch, have the same episodes, settings and normalization.
    """

    def __init__(self) -> None:
        self._row = SharedRow(np.zeros(2 + _MAX_BYTES // 8, np.int64))
        self._seen = 0  # number of the state that this process has last

    def loaded(self, state: Mapping[str, Any]) -> None:
        """Note a state that this process has loaded; the first worker shares it."""
        row = self._row
        if row.in_worker and this_worker()[0] == 0:
            data = zlib.compress(json.dumps(state).encode())
            is_short = len(data) <= _MAX_BYTES
            if is_short:
                row.values[2:].view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)
            row.values[_NUM_BYTES] = len(data) if is_short else -1
            row.values[_NUMBER] += 1  # last: it is complete
        self._seen = int(row.values[_NUMBER])

    def take(self) -> Any:
        """The state that workers have loaded since this process took or loaded one, or `None`.

        Raises `StateError` if it is too long for the shared memory.
        """
        values = self._row.values
        if (number := int(values[_NUMBER])) == self._seen:
            return None
        if (num_bytes := int(values[_NUM_BYTES])) < 0:
            raise StateError(
                "the state of a StatefulDataLoader is too long for its next workers",
                expected="persistent_workers=True, or a state of at most "
                f"{_MAX_BYTES} bytes compressed by zlib",
            )
        self._seen = number
        return json.loads(zlib.decompress(bytes(values[2:].view(np.uint8)[:num_bytes])))
