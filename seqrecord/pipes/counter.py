"""The epoch that a DataLoader's worker processes are in, in memory shared with its process.

A DataLoader without persistent workers starts new ones for each epoch, as copies of a dataset that
has not changed meanwhile: from what they were copied from they cannot tell which epoch it is.
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

from seqrecord.errors import ClipError

__all__ = ["EpochCounter"]

_SIZE = 1 << 17  # bytes, of which no more is taken than is written to
_ITERATION, _SEED, _EPOCH, _NEXT, _BEGUN, _NOTE = range(
    6
)  # uint64 each; the note's length, at the end
_NOTE_AT, _WORKERS_AT = 64, 1 << 16  # the note's bytes; a uint64 for each worker


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
