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
_STATES_AT, _STATE_BYTES = 1 << 20, 1 << 30  # one per row; only written pages take memory
_lock = PerProcess(threading.Lock)  # `lockf` is for processes: a process's threads share it


class Start(NamedTuple):
    """The start of an epoch: after `batches` batches of `batch_size` items, over all workers of a
    rank; or at the position of the last loaded state.
    """

    epoch: int = 0
    batches: int = 0
    batch_size: int = 1
    is_loaded: bool = False

    @property
    def following(self) -> Start:
        """The start of the next epoch."""
        return Start(min(self.epoch + 1, MAX_INT))


class Worker(NamedTuple):
    """A DataLoader worker in its current iteration."""

    parent: int
    iterator: int
    iteration: int
    number: int
    num_workers: int

    @classmethod
    def current(cls, iteration: int) -> Worker:
        """This worker process.

        Base seeds may repeat (`torch.manual_seed` before each evaluation), and a worker may begin
        late, so the iterator is identified by its seed and its queue of batches.
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
    """A row of the table: a turn, or with `iterator` 0 the next start set by a process."""

    row: int = 0  # rows are numbered as they are written, from 1
    parent: int = 0
    number: int = 0  # of the parent's turns, from 1; in other rows, of the last one
    iterator: int = 0
    iteration: int = 0
    num_workers: int = 0
    is_assigned: int = 0  # whether workers were given the epoch
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
    """A table of turns and their epochs, in a memory file shared between processes.

    Each process has its own rows, also if ranks share a file: its next epoch follows from its
    newest row. A copy pickled to start a process shares the file; other copies get a new one.
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
        """Whether this process is a worker of the file's creator."""
        return get_worker_info() is not None and self._owner != os.getpid()

    def newest(self) -> Turn | None:
        """The turn that workers have begun last, once; `None` if the next epoch was set afterwards.

        In a worker: of the process that its parent was forked from.
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
        """Set the start of this process's next turn, and the last loaded state. No effect in a
        worker.
        """
        if not self.in_worker:
            with self._locked() as rows:
                self._append(rows, Turn(parent=os.getpid(), **start._asdict()), loaded)

    def begun(self, parent: int) -> Turn | None:
        """The newest turn of a process; `None` if it has none, or has set its next epoch since."""
        with self._locked() as rows:
            row = _newest(rows, parent)
            return self._with_state(rows, row) if row is not None and row.iterator else None

    def take(
        self, worker: Worker, start: Start, assigned: Start | None = None, loaded: Any = None
    ) -> Turn:
        """The turn of a worker; its first worker creates it.

        A new turn begins at the start in its parent's newest row, by default at `start`; or at
        `assigned` with the state `loaded`, if this worker has its own epoch.

        Raises `ClipError` if workers of a turn were assigned different epochs.
        """
        parent, iterator, iteration, number, num_workers = worker
        is_assigned, bit = assigned is not None, 1 << number
        with self._locked() as rows:
            turns = [r for r in rows if (r.parent, r.iterator, r.iteration) == worker[:3]]
            row = max(turns, default=None)
            if row is None or row.begun & bit:
                newest = _newest(rows, parent)
                if assigned is not None:
                    start = assigned
                elif newest is not None:
                    start = newest.start.following if newest.iterator else newest.start
                    loaded = self._with_state(rows, newest).loaded
                row = Turn(0, parent, 0, iterator, iteration, num_workers, is_assigned, 0, *start)
                row = self._append(rows, row, loaded)
            if row.is_assigned != is_assigned or (
                assigned is not None and assigned.epoch != row.epoch
            ):
                raise ClipError(
                    "the workers of a DataLoader were given different epochs",
                    expected="set_epoch, or load_state_dict, with the same epoch in every worker, "
                    "or in none",
                    got=f"epoch {row.epoch}, and {'none' if assigned is None else assigned.epoch}",
                )
            self._write(rows.index(row), row._replace(begun=row.begun | bit))
            return self._with_state(rows, row)

    def _append(self, rows: list[Turn], row: Turn, loaded: Any) -> Turn:
        """Append a row and its state, and return it.

        In a full table it replaces an old row, but not the newest row of a process if there are
        others.
        """
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
        """The rows, exclusively locked among processes and threads."""
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
