"""Which epoch worker processes have begun, between them and the process that started them.

A DataLoader without persistent workers starts new ones for each epoch, as copies of a dataset that
has not changed meanwhile: from what they were copied from they cannot tell which epoch it is. So a
number in memory that the processes share says it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from typing import Any

from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError

__all__ = ["EpochCounter", "WorkerEpochs"]

_SIZE = 1 << 17  # bytes, of which no more is taken than is written to
# uint64 each; the last one is the note's length.
_ITERATION, _SEED, _EPOCH, _NEXT, _BEGUN, _NOTE = range(6)
_NOTE_AT, _WORKERS_AT = 64, 1 << 16  # the note's bytes; a uint64 for each worker


class WorkerEpochs:
    """What a loader tells its copies in a DataLoader's worker processes, and they tell the loader.

    They do so by a counter, which processes get that this one starts. A process that was itself
    started with a counter, as ranks are by a launcher, but is no worker, gets one of its own.
    `note` has the settings of the state that was loaded, for workers to come.
    """

    def __init__(self, counter: EpochCounter | None = None, note: bytes = b"") -> None:
        self.counter = counter
        self.note = note

    def share(self, next_epoch: int) -> None:
        """Have a counter, for processes to come."""
        if get_worker_info() is None and self._own is None:
            self.counter = EpochCounter(next_epoch)

    def publish(self, next_epoch: int) -> None:
        """Tell workers of later iterations which epoch is next."""
        if (own := self._own) is not None:
            own.set_next(next_epoch)

    def begun(self) -> int | None:
        """The epoch that workers have begun since this process published last, if they have."""
        return None if (own := self._own) is None else own.begun()

    def begin(self, loaded: int | None) -> int | None:
        """Begin an epoch in a worker process: the one that was loaded here, else the next one.

        `None` in any other process.
        """
        worker = get_worker_info()
        if worker is None or self.counter is None:
            return None
        seed = worker.seed - worker.id
        if loaded is None:
            return self.counter.begin(worker.id, seed)
        return self.counter.begin(worker.id, seed, loaded, self.note)

    def new_note(self) -> bytes | None:
        """The note that workers have left, if it is another one than `note`."""
        note = b"" if self.counter is None else self.counter.note()
        return note if note and note != self.note else None

    @property
    def _own(self) -> EpochCounter | None:
        """The counter, if it is this process's workers that count there."""
        counter = self.counter
        return counter if counter is not None and counter.owner == os.getpid() else None


class EpochCounter:
    """Counts the iterations that groups of worker processes begin. Goes to spawned processes too.

    One iteration over a DataLoader is by one worker process or several. All of them get the same
    seed from the DataLoader, and each takes part once. So the same seed from the same worker a
    second time is another iteration.
    """

    def __init__(self, next_epoch: int) -> None:
        self.owner = os.getpid()
        """The process whose workers count here."""
        self._open(os.memfd_create("seqrecord-epochs"))
        self.set_next(next_epoch)

    def __reduce__(self) -> tuple[Callable[..., EpochCounter], tuple[Any, ...]]:
        return _attach, (DupFd(self._file), self.owner)  # while a process is spawned

    def _open(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)
        os.ftruncate(file, _SIZE)
        self._memory = mmap.mmap(file, _SIZE)

    def set_next(self, epoch: int) -> None:
        """The next iteration is of this epoch, whatever the ones before were."""
        with self._lock():
            self._set(_NEXT, epoch)
            self._set(_BEGUN, 0)
            self._write(b"")

    def begin(self, worker: int, seed: int, epoch: int | None = None, note: bytes = b"") -> int:
        """The epoch of the iteration that a worker begins: the same for all of its workers.

        That is the next one, or `epoch` where the worker knows it; the `note` is then kept.
        """
        slot = _WORKERS_AT // 8 + worker
        if slot >= _SIZE // 8:
            raise ClipError("too many workers", expected=f"fewer than {_SIZE // 8}", got=worker)
        with self._lock():
            iteration = self._get(_ITERATION)
            if seed != self._get(_SEED) or self._get(slot) == iteration:
                iteration += 1
                self._set(_ITERATION, iteration)
                self._set(_SEED, seed)
                self._take(self._get(_NEXT) if epoch is None else epoch)
            elif epoch is not None:
                self._take(epoch)
            if epoch is not None:
                self._write(note)
            self._set(slot, iteration)
            return self._get(_EPOCH)

    def begun(self) -> int | None:
        """The epoch that workers have begun last, since `set_next`; `None` if they have not."""
        with self._lock():
            return self._get(_EPOCH) if self._get(_BEGUN) else None

    def note(self) -> bytes:
        """What was noted last."""
        with self._lock():
            return self._memory[_NOTE_AT : _NOTE_AT + self._get(_NOTE)]

    def _take(self, epoch: int) -> None:
        self._set(_EPOCH, epoch)
        self._set(_NEXT, epoch + 1)
        self._set(_BEGUN, 1)

    def _write(self, note: bytes) -> None:
        if len(note) > _WORKERS_AT - _NOTE_AT:
            raise ClipError("the settings of a state are too long", got=f"{len(note)} bytes")
        self._set(_NOTE, len(note))
        self._memory[_NOTE_AT : _NOTE_AT + len(note)] = note

    @contextmanager
    def _lock(self) -> Iterator[None]:
        fcntl.lockf(self._file, fcntl.LOCK_EX)  # the system unlocks it when the process dies
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _get(self, place: int) -> int:
        return int(struct.unpack_from("Q", self._memory, 8 * place)[0])

    def _set(self, place: int, value: int) -> None:
        struct.pack_into("Q", self._memory, 8 * place, value)


def _attach(file: Any, owner: int) -> EpochCounter:
    counter = EpochCounter.__new__(EpochCounter)
    counter.owner = owner
    counter._open(file.detach())
    return counter
