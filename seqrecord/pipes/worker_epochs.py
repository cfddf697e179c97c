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
from dataclasses import astuple, dataclass, replace
from hashlib import sha256
from multiprocessing.context import get_spawning_popen
from multiprocessing.queues import Queue
from multiprocessing.reduction import DupFd
from struct import Struct
from typing import Any

from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError
from seqrecord.processes.forks import PerProcess
from seqrecord.units import MAX_INT

_NUM_ROWS = 256
_ROW = Struct("<12q160s")  # 256 bytes, so that no row is in two pages
_MOST_WORKERS = 160 * 8  # a bit for each
_STATE = Struct("<qq")  # number and length of a saved state, before its JSON
_NUM_STATES, _STATES_AT, _STATE_BYTES = 8, 1 << 20, 1 << 30  # memory is taken by what is written
_lock = PerProcess(threading.Lock)  # `lockf` is for processes: a process's threads share it


@dataclass(frozen=True)
class Start:
    """Where an epoch begins: after `batches` batches of `batch_size` items, on all workers of a
    rank together; or at the place of the state that was loaded last."""

    epoch: int = 0
    batches: int = 0
    batch_size: int = 1
    is_loaded: bool = False


@dataclass(frozen=True)
class _Row:
    """A turn, or with `iterator` 0 what the parent has set. All are integers."""

    number: int  # rows are numbered as they are written, from 1
    parent: int
    turns: int  # of the parent, up to this row
    iterator: int
    iteration: int
    num_workers: int
    epoch: int
    batches: int
    batch_size: int
    is_loaded: int
    is_told: int  # the epoch is one that workers were given
    state: int  # the number of the state that was loaded last; 0 for none
    workers: bytes  # a bit for each that has begun

    @property
    def begun(self) -> int:
        """`workers` as an integer."""
        return int.from_bytes(self.workers, "little")

    @property
    def start(self) -> Start:
        return Start(self.epoch, self.batches, self.batch_size, bool(self.is_loaded))


@dataclass(frozen=True)
class Turn:
    """Where a turn begins, and the state that was loaded last, as JSON. Turns of a process are
    numbered from 1."""

    parent: int
    number: int
    start: Start
    loaded: Any
    num_workers: int


@dataclass(frozen=True)
class Worker:
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


class TurnTable:
    """Which turns have begun which epochs: rows in a file in memory that processes share.

    Each process has rows of its own, also where several ranks were started with one table: its next
    epoch follows from its newest row.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._open(os.memfd_create("seqrecord-epochs"))

    def __getstate__(self) -> tuple[Any, int]:
        return DupFd(self._file), self.owner

    def __setstate__(self, state: tuple[Any, int]) -> None:
        file, self.owner = state
        self._open(file.detach())

    def _open(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)

    def set_next(self, start: Start, loaded: Any = None) -> None:
        """This process's next turn begins there. `loaded` is the state that was loaded last."""
        with self._locked() as rows:
            self._append(rows, _row(os.getpid(), start, self._keep(rows, loaded)))

    def begun(self, parent: int) -> Turn | None:
        """The newest turn of a process; `None` if it has set its next epoch since, or has none."""
        with self._locked() as rows:
            row = _newest(rows, parent)
            if row is None or not row.iterator:
                return None
            return Turn(row.parent, row.turns, row.start, self._state(row.state), row.num_workers)

    def take(
        self, worker: Worker, start: Start, told: Start | None = None, loaded: Any = None
    ) -> Turn:
        """The turn of a worker, which is new for the first one.

        A new turn begins where its parent's newest row says, or without one at `start`; or where
        the worker was `told`, which then has `loaded` this state.

        Raises `ClipError` where not all workers of a turn were told the same epoch.
        """
        bit = 1 << worker.number
        with self._locked() as rows:
            row = _last([row for row in rows if _is_of(row, worker)])
            if row is None or row.begun & bit:
                newest, state = _newest(rows, worker.parent), 0
                if told is not None:
                    start, state = told, self._keep(rows, loaded)
                elif newest is not None:
                    following = Start(min(newest.epoch + 1, MAX_INT))
                    start = following if newest.iterator else newest.start
                    state = newest.state
                row = replace(
                    _row(worker.parent, start, state),
                    iterator=worker.iterator,
                    iteration=worker.iteration,
                    num_workers=worker.num_workers,
                    is_told=int(told is not None),
                )
                row = self._append(rows, row)
            if bool(row.is_told) != (told is not None) or (told and told.epoch != row.epoch):
                raise ClipError(
                    "the workers of a DataLoader were given different epochs",
                    expected="set_epoch, or load_state_dict, with the same epoch in all of them, "
                    "or in none",
                    got=f"epoch {row.epoch}, and {'none' if told is None else told.epoch}",
                )
            begun = (row.begun | bit).to_bytes(_MOST_WORKERS // 8, "little")
            self._write(rows, replace(row, workers=begun))
            return Turn(row.parent, row.turns, row.start, self._state(row.state), row.num_workers)

    def _append(self, rows: list[_Row], row: _Row) -> _Row:
        """Write one more row, in place of an old one: not the newest of a process, if there is
        another."""
        before = _newest(rows, row.parent)
        turns = (0 if before is None else before.turns) + (row.iterator > 0)
        made = replace(row, number=1 + max((one.number for one in rows), default=0), turns=turns)
        if len(rows) < _NUM_ROWS:
            rows.append(made)
        else:
            newest = {one.parent: one.number for one in sorted(rows, key=_number)}
            old = min(rows, key=lambda one: (newest[one.parent] == one.number, one.number))
            rows[rows.index(old)] = made
        self._write(rows, made)
        return made

    def _write(self, rows: list[_Row], row: _Row) -> None:
        place = [one.number for one in rows].index(row.number)
        os.pwrite(self._file, _ROW.pack(*vars(row).values()), place * _ROW.size)

    def _keep(self, rows: list[_Row], loaded: Any) -> int:
        """The number of a saved state, which is written unless it is the newest."""
        newest = max((row.state for row in rows), default=0)
        if loaded is None or loaded == self._state(newest):
            return 0 if loaded is None else newest
        text = json.dumps(loaded).encode()
        place = _place_of(newest + 1)
        os.pwrite(self._file, _STATE.pack(newest + 1, len(text)) + text, place)
        return newest + 1

    def _state(self, number: int) -> Any:
        """The saved state of this number."""
        if not number:
            return None
        found, length = _STATE.unpack(os.pread(self._file, _STATE.size, _place_of(number)))
        if found != number:
            raise ClipError(
                "a DataLoader's worker begins too late: the state of its epoch was replaced",
                expected=f"at most {_NUM_STATES - 1} calls of load_state_dict meanwhile",
            )
        return json.loads(os.pread(self._file, length, _place_of(number) + _STATE.size))

    @contextmanager
    def _locked(self) -> Iterator[list[_Row]]:
        with _lock.get():
            fcntl.lockf(self._file, fcntl.LOCK_EX)  # the system unlocks it when the process dies
            try:
                data = os.pread(self._file, _NUM_ROWS * _ROW.size, 0)
                whole = len(data) // _ROW.size * _ROW.size
                yield [_Row(*values) for values in _ROW.iter_unpack(data[:whole]) if values[0]]
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)


class Turns:
    """The turns of a process's workers, or in a worker its own. Picklable.

    A copy that is made to start a process shares the table; others have one of their own.
    """

    def __init__(self, table: TurnTable | None = None) -> None:
        self.iterations = 0  # that this process has begun
        self._table = table or TurnTable()
        self._process = os.getpid()  # whose turns these are: a fork's first are those before it
        self._seen = 0, 0  # the process and number of the turn that was given last

    def __reduce__(self) -> tuple[Any, ...]:
        return Turns, (self._table if get_spawning_popen() is not None else None,)

    @property
    def in_worker(self) -> bool:
        """Whether this process is a worker of the one that has made the table."""
        return get_worker_info() is not None and self._table.owner != os.getpid()

    def newest(self) -> Turn | None:
        """The turn that workers have begun last, once; `None` where the next epoch was set since.

        In a worker, that of the process of which its parent is a fork.
        """
        here = os.getpid()
        if self.in_worker:
            parent = multiprocessing.parent_process()
            here = self._process if parent is None or parent.pid is None else parent.pid
        found = None
        for process in (self._process, here) if here != self._process else (here,):
            turn = None if process == here and self.in_worker else self._table.begun(process)
            if turn is not None and (process, turn.number) != self._seen:
                found, self._seen = turn, (process, turn.number)
        self._process = here
        return found

    def set_next(self, start: Start, loaded: Any) -> None:
        """The next turn begins there. In a worker there is none to begin."""
        if not self.in_worker:
            self._table.set_next(start, loaded)

    def take(self, start: Start, told: Start | None, loaded: Any) -> Turn:
        """This worker's next turn. See `TurnTable.take`."""
        self.iterations += 1
        return self._table.take(Worker.current(self.iterations), start, told, loaded)


def _row(parent: int, start: Start, state: int) -> _Row:
    """What a process has set."""
    epoch, batches, batch_size, is_loaded = astuple(start)
    return _Row(0, parent, 0, 0, 0, 0, epoch, batches, batch_size, int(is_loaded), 0, state, b"")


def _is_of(row: _Row, worker: Worker) -> bool:
    """Whether a row is that of a worker's turn."""
    of_worker = worker.parent, worker.iterator, worker.iteration
    return (row.parent, row.iterator, row.iteration) == of_worker


def _number(row: _Row) -> int:
    return row.number


def _last(rows: list[_Row]) -> _Row | None:
    return max(rows, key=_number, default=None)


def _newest(rows: list[_Row], parent: int) -> _Row | None:
    return _last([row for row in rows if row.parent == parent])


def _place_of(state: int) -> int:
    return _STATES_AT + state % _NUM_STATES * _STATE_BYTES
