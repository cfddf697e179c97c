"""Epochs of DataLoader workers: a table in shared memory gives each turn its epoch.

A turn is one iteration of one iterator over a DataLoader. Its workers share it: they have one
parent process, one base seed (`get_worker_info().seed - get_worker_info().id`), and each counts its
own iterations. The first worker of a turn takes the parent's next epoch, the others get the same.
"""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from multiprocessing.context import get_spawning_popen
from multiprocessing.queues import Queue
from multiprocessing.reduction import DupFd
from struct import Struct
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError
from seqrecord.processes.forks import PerProcess
from seqrecord.units import MAX_INT

_NUM_ROWS = 256
_ROW = Struct("<12q160s")  # 256 bytes, so that no row is in two pages
_MOST_WORKERS = 160 * 8  # a bit for each
_STATES_AT, _STATE_BYTES = 1 << 20, 1 << 30  # one for each row; memory is taken by what is written
_lock = PerProcess(threading.Lock)  # `lockf` is for processes: a process's threads share it


class Start(NamedTuple):
    """Where an epoch begins: after `batches` batches of `batch_size` items, on all workers of a
    rank together; or at the position of the state that was loaded last."""

    epoch: int = 0
    batches: int = 0
    batch_size: int = 1
    is_loaded: bool = False

    @property
    def following(self) -> Start:
        """The start of the next epoch."""
        return Start(min(self.epoch + 1, MAX_INT))


class Worker(NamedTuple):
    """A DataLoader's worker, in one of its iterations."""

    parent: int
    iterator: int
    iteration: int
    number: int
    num_workers: int

    @classmethod
    def current(cls, iteration: int) -> Worker:
        """This process.

        Seeds repeat, where `torch.manual_seed` is called before each evaluation, and a worker may
        begin late: so the iterator is also known by the pipe into which its workers put batches.
        """
        info, parent = get_worker_info(), multiprocessing.parent_process()
        if info is None or parent is None or parent.pid is None:
            raise ClipError(
                "a process is a DataLoader's worker, and multiprocessing has not started it",
                expected="workers that a DataLoader starts",
            )
        if info.num_workers > _MOST_WORKERS:
            expected = f"at most {_MOST_WORKERS}"
            raise ClipError("too many workers", expected=expected, got=info.num_workers)
        given: Any = getattr(multiprocessing.current_process(), "_args", ())
        queues: list[Any] = [one for one in given if isinstance(one, Queue)]  # the last: of batches
        pipes = [os.fstat(one._writer.fileno()).st_ino for one in queues[-1:]]
        text = repr((info.seed - info.id, pipes))
        iterator = int.from_bytes(sha256(text.encode()).digest()[:7], "little") + 1
        return cls(parent.pid, iterator, iteration, info.id, info.num_workers)


class Turn(NamedTuple):
    """A row of the table: a turn, or with `iterator` 0 the start that a process has set."""

    row: int = 0  # rows are numbered as they are written, from 1
    parent: int = 0
    number: int = 0  # of the parent's turns, from 1; in other rows, of the last one
    iterator: int = 0
    iteration: int = 0
    num_workers: int = 0
    is_told: int = 0  # whether workers were given the epoch
    state: int = 0  # bytes of the state that was loaded last; 0 for none
    epoch: int = 0
    batches: int = 0
    batch_size: int = 1
    is_loaded: int = 0
    begun: int = 0  # a bit for each worker that has begun
    loaded: Any = None  # the state that was loaded last, as JSON

    @property
    def start(self) -> Start:
        return Start(self.epoch, self.batches, self.batch_size, bool(self.is_loaded))


class Turns:
    """Which turns have begun which epochs: rows in a file in memory that processes share.

    Each process has rows of its own, also where several ranks were started with one file: its next
    epoch follows from its newest row. A copy that is made to start a process shares the file;
    others have one of their own.
    """

    def __init__(self, file: Any = None, owner: int | None = None) -> None:
        self.iterations = 0  # that this process has begun
        self._file = os.memfd_create("seqrecord-epochs") if file is None else file.detach()
        weakref.finalize(self, os.close, self._file)
        self._owner = owner or os.getpid()
        self._process = os.getpid()  # whose turns these are: a fork's first are those before it
        self._seen = 0, 0  # the process and number of the turn that was given last

    def __reduce__(self) -> tuple[Any, ...]:
        is_start = get_spawning_popen() is not None
        return Turns, (DupFd(self._file), self._owner) if is_start else ()

    @property
    def in_worker(self) -> bool:
        """Whether this process is a worker of the one that has made the file."""
        return get_worker_info() is not None and self._owner != os.getpid()

    def newest(self) -> Turn | None:
        """The turn that workers have begun last, once; `None` where the next epoch was set since.

        In a worker, that of the process of which its parent is a fork.
        """
        parent = multiprocessing.parent_process() if self.in_worker else None
        here = os.getpid() if parent is None or parent.pid is None else parent.pid
        processes = [self._process] if self._process != here else []
        processes += [] if self.in_worker else [here]
        self._process = here
        found = [turn for process in processes if (turn := self.begun(process)) is not None]
        new = [turn for turn in found if (turn.parent, turn.number) != self._seen]
        if not new:
            return None
        self._seen = new[-1].parent, new[-1].number
        return new[-1]

    def set_next(self, start: Start, loaded: Any = None) -> None:
        """This process's next turn begins there. `loaded` is the state that was loaded last. In a
        worker there is none to begin."""
        if not self.in_worker:
            with self._locked() as rows:
                self._append(rows, Turn(parent=os.getpid(), **start._asdict()), loaded)

    def begun(self, parent: int) -> Turn | None:
        """The newest turn of a process; `None` if it has set its next epoch since, or has none."""
        with self._locked() as rows:
            row = _newest(rows, parent)
            return self._with_state(rows, row) if row is not None and row.iterator else None

    def take(
        self, worker: Worker, start: Start, told: Start | None = None, loaded: Any = None
    ) -> Turn:
        """The turn of a worker, which is new for the first one.

        A new turn begins where its parent's newest row says, or without one at `start`; or where
        the worker was `told`, which then has `loaded` this state.

        Raises `ClipError` where not all workers of a turn were told the same epoch.
        """
        parent, iterator, iteration, number, num_workers = worker
        is_told, bit = told is not None, 1 << number
        with self._locked() as rows:
            turns = [r for r in rows if (r.parent, r.iterator, r.iteration) == worker[:3]]
            row = max(turns, default=None)
            if row is None or row.begun & bit:
                newest = _newest(rows, parent)
                if told is not None:
                    start = told
                elif newest is not None:
                    start = newest.start.following if newest.iterator else newest.start
                    loaded = self._with_state(rows, newest).loaded
                row = Turn(0, parent, 0, iterator, iteration, num_workers, is_told, 0, *start)
                row = self._append(rows, row, loaded)
            if row.is_told != is_told or (told is not None and told.epoch != row.epoch):
                raise ClipError(
                    "the workers of a DataLoader were given different epochs",
                    expected="set_epoch, or load_state_dict, with the same epoch in all of them, "
                    "or in none",
                    got=f"epoch {row.epoch}, and {'none' if told is None else told.epoch}",
                )
            self._write(rows.index(row), row._replace(begun=row.begun | bit))
            return self._with_state(rows, row)

    def _append(self, rows: list[Turn], row: Turn, loaded: Any) -> Turn:
        """Write one more row and its state, in place of old ones: not those of the newest row of a
        process, if there are others."""
        newest = {one.parent: one for one in sorted(rows)}
        number = newest[row.parent].number if row.parent in newest else 0
        text = b"" if loaded is None else json.dumps(loaded).encode()
        last = max((one.row for one in rows), default=0)
        row = row._replace(row=last + 1, number=number + (row.iterator > 0), state=len(text))
        place = len(rows)
        if place == _NUM_ROWS:
            place = rows.index(min(rows, key=lambda one: (one in newest.values(), one)))
        rows[place : place + 1] = [row]
        os.pwrite(self._file, text, _STATES_AT + place * _STATE_BYTES)
        self._write(place, row)
        return row

    def _write(self, place: int, row: Turn) -> None:
        *numbers, begun, _ = row
        os.pwrite(self._file, _ROW.pack(*numbers, begun.to_bytes(160, "little")), place * _ROW.size)

    def _with_state(self, rows: list[Turn], row: Turn) -> Turn:
        text = os.pread(self._file, row.state, _STATES_AT + rows.index(row) * _STATE_BYTES)
        return row._replace(loaded=json.loads(text) if text else None)

    @contextmanager
    def _locked(self) -> Iterator[list[Turn]]:
        """The rows, while no other process and no other thread has them."""
        with _lock.get():
            fcntl.lockf(self._file, fcntl.LOCK_EX)  # the system unlocks it when the process dies
            try:
                data = os.pread(self._file, _NUM_ROWS * _ROW.size, 0)
                whole = len(data) // _ROW.size * _ROW.size
                rows = list[Turn]()
                for *numbers, begun in _ROW.iter_unpack(data[:whole]):
                    rows.append(Turn._make([*numbers, int.from_bytes(begun, "little"), None]))
                yield [row for row in rows if row.row]
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)


def _newest(rows: list[Turn], parent: int) -> Turn | None:
    return max((row for row in rows if row.parent == parent), default=None)
