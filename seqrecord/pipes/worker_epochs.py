"""Which epoch worker processes begin, between them and the process that has started them.

The workers of one iterator over a DataLoader share an epoch. They cannot find out by themselves
which one: a DataLoader without persistent workers starts new ones for each epoch, as copies of a
dataset that has not changed meanwhile, several DataLoaders may iterate at the same time, and the
seeds that torch gives to workers may be equal. So the process that starts them gives each iterator
a number, which its workers get: a forked one with the memory of that process, others with what is
pickled for them. In memory that the processes share stands
which epoch each iterator has begun.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing.reduction import DupFd
from typing import Any, NamedTuple

from torch.utils.data import IterDataPipe, get_worker_info

from seqrecord.errors import ClipError, StateError
from seqrecord.forks import PerProcess, at_fork, check_fork
from seqrecord.pipes.distributed import find_starting

__all__ = [
    "Begun",
    "EpochCounter",
    "WorkerEpochs",
    "is_given",
    "join_group",
    "own_group",
    "starting_group",
]

_SIZE = 1 << 20  # bytes, of which no more is taken than is written to
# uint64 each: the next epoch, and the number of the state that it begins with, if there is one; the
# epoch that workers have begun last and 1, or 0; how often `set_next` was called; two lengths.
_NEXT, _STATE, _BEGUN, _CALLS, _NOTE_SIZE, _STATE_SIZE = range(6)
_NOTE_AT, _STATE_AT, _GROUPS_AT = 1 << 6, 1 << 16, 1 << 19
# Of each group 64 uint64: its number, how many turns were begun, and four of each of the last ones.
_GROUP, _TURNS, _FIRST = 0, 1, 4
_WORDS = 64
_KEPT_TURNS = (_WORDS - _FIRST) // 4
_KEPT_GROUPS = (_SIZE - _GROUPS_AT) // (8 * _WORDS)
# How it is known which epoch a turn is of: its workers have not begun, and will be of the next one;
# they have begun; they knew it themselves.
_UNKNOWN, _ALLOTTED, _TAKEN, _TOLD = range(4)


class Begun(NamedTuple):
    """What a worker begins: an epoch, and the state to begin it with, if it has not got that."""

    epoch: int
    state: bytes | None


class WorkerEpochs:
    """What a loader tells its copies in a DataLoader's worker processes, and they tell the loader.

    They do so by a counter, which processes get that this one starts. A process that was itself
    started with a counter, as ranks are by a launcher, but is no worker, gets one of its own.
    `note` has the settings of the state that was loaded, for workers to come.
    """

    def __init__(
        self, counter: EpochCounter | None = None, note: bytes = b"", number: int = 0
    ) -> None:
        self.counter = counter
        self.note = note
        self._state = b""  # that was loaded here last, for workers that run already
        self._number = number  # of the state that was loaded last by the process with the workers
        self._turn = 0  # iterations that this worker has begun
        self._process = os.getpid()  # that has made this object, if it was not forked

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _process=os.getpid())

    def copy(self, *, shared: bool) -> WorkerEpochs:
        """For a process that is being started, where it is `shared`, or for another object."""
        return WorkerEpochs(self.counter if shared else None, self.note, self._number)

    def share(self, next_epoch: int, *, at_state: bool) -> None:
        """Have a counter, for processes to come."""
        if get_worker_info() is None and self._own is None:
            self.counter = EpochCounter()
            self.publish(next_epoch, at_state=at_state)

    def allot(self, group: int) -> None:
        """Give the next epoch to the first iteration of a group of workers to come."""
        if (own := self._own) is not None:
            own.allot(group)

    def keep(self, state: bytes) -> None:
        """A state was loaded. Workers of this process that run already get it from here."""
        self._state = state
        self._number = 0 if get_worker_info() is not None else self._number + 1

    def publish(self, next_epoch: int, *, at_state: bool) -> None:
        """Tell workers of later iterations which epoch is next, and whether a state says where."""
        if (own := self._own) is not None:
            own.set_next(next_epoch, self._number if at_state else 0, self._state)

    def begun(self) -> int | None:
        """The epoch that workers have begun since this process published last, if they have."""
        return None if (own := self._own) is None else own.begun()

    def begin(self, told: int | None) -> Begun | None:
        """Begin an epoch in a worker process: the one that it was told of, else that of its group.

        `None` in any other process, and for an object that a worker has made. Raises `ClipError`
        where it is not known which epoch that is.
        """
        worker = get_worker_info()
        if worker is None:
            return None
        check_fork()
        group, made_in = own_group(), {self._process}
        if self.counter is None or group is None:
            if self.counter is not None:
                made_in.add(self.counter.owner)
            if made_in == {os.getpid()}:
                return None
            raise ClipError(
                "a DataLoader's worker does not know which epoch it is to begin",
                expected="a process that an iterator over a DataLoader starts while it is made",
                got="no memory that is shared with the process that has started this one"
                if self.counter is None
                else "a process that something else has started",
            )
        self._turn += 1
        epoch, number = self.counter.begin(group, self._turn, told, self.note)
        if number in (0, self._number):
            return Begun(epoch, None)
        self._number = number
        return Begun(epoch, self.counter.state(number))

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
    """Which epochs groups of worker processes begin. Goes to spawned processes too.

    The workers of a group take turns: each time that one of them begins an iteration is its next
    turn. Workers of a group have the same epoch in the same turn, whenever they come to it.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        """The process whose workers count here."""
        self._open(os.memfd_create("seqrecord-epochs"))

    def __reduce__(self) -> tuple[Callable[..., EpochCounter], tuple[Any, ...]]:
        return _attach, (DupFd(self._file), self.owner)  # while a process is spawned

    def _open(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)
        os.ftruncate(file, _SIZE)
        self._memory = mmap.mmap(file, _SIZE)

    def set_next(self, epoch: int, number: int = 0, state: bytes = b"") -> None:
        """The next turn that any group begins is of this epoch, whatever the ones before were.

        It begins with this `state`, of this `number`, if that is not 0.
        """
        with self._lock():
            self._set(_NEXT, epoch)
            self._set(_STATE, number)
            self._set(_BEGUN, 0)
            self._set(_CALLS, self._get(_CALLS) + 1)
            self._write(_NOTE_AT, _NOTE_SIZE, b"")
            if number:
                self._write(_STATE_AT, _STATE_SIZE, struct.pack("Q", number) + state)

    def allot(self, group: int) -> None:
        """Give the next epoch to the first turn of a group, unless it has one."""
        with self._lock():
            if self._get((turn := self._find(group, 1)) + 1) == _UNKNOWN:
                self._take(turn, _ALLOTTED)

    def begin(
        self, group: int, number: int, told: int | None = None, note: bytes = b""
    ) -> tuple[int, int]:
        """The epoch of a group's turn of this number, from 1, and the number of its state, or 0.

        That is the next epoch, or the one that the worker was `told`; its `note` is then kept.
        Raises `ClipError` where not all of the workers were told the same, and for a turn of which
        nothing is known any more.
        """
        with self._lock():
            turn = self._find(group, number)
            known = self._get(turn + 1)
            if told is not None and known in (_UNKNOWN, _ALLOTTED):
                is_next = known == _UNKNOWN or self._get(turn + 3) == self._get(_CALLS)
                self._take(turn, _TOLD, told, is_next=is_next)
                if is_next:
                    self._write(_NOTE_AT, _NOTE_SIZE, note)
            elif told is None and known == _UNKNOWN:
                self._take(turn, _TAKEN)
            elif told is None and known == _ALLOTTED:
                self._set(turn + 1, _TAKEN)
            epoch, known, state = (self._get(turn + i) for i in range(3))
            if (told is None) != (known != _TOLD) or told not in (None, epoch):
                raise ClipError(
                    "the workers of a DataLoader were told to begin different epochs",
                    expected="set_epoch, or load_state_dict, with the same epoch in all of them, "
                    "or in none",
                    got=f"epoch {epoch}, and {'none' if told is None else told}",
                )
            return epoch, state

    def begun(self) -> int | None:
        """The epoch that workers have begun last, since `set_next`; `None` if they have not."""
        with self._lock():
            return self._get(_BEGUN) - 1 if self._get(_BEGUN) else None

    def note(self) -> bytes:
        """What was noted last."""
        with self._lock():
            return self._read(_NOTE_AT, _NOTE_SIZE)

    def state(self, number: int) -> bytes:
        """The state of this number. Raises `StateError` where another one was loaded since."""
        with self._lock():
            kept = self._read(_STATE_AT, _STATE_SIZE)
        (found,) = struct.unpack_from("Q", kept)
        if found != number:
            raise StateError(
                "another state was loaded before all workers had begun with this one",
                expected="one load_state_dict before an iteration",
                got=f"{found - number} more",
            )
        return kept[8:]

    def _find(self, group: int, number: int) -> int:
        """Where it stands what is known of a turn of a group."""
        place = _GROUPS_AT // 8 + group % _KEPT_GROUPS * _WORDS
        held = self._get(place + _GROUP)
        if held < group:
            self._memory[8 * place : 8 * (place + _WORDS)] = bytes(8 * _WORDS)
            self._set(place + _GROUP, group)
        last = self._get(place + _TURNS)
        if held > group or number <= last - _KEPT_TURNS:
            raise ClipError(
                "it is not known any more which epoch a DataLoader's worker is to begin",
                expected=f"fewer than {_KEPT_GROUPS} later iterators over DataLoaders around this "
                f"stream, and fewer than {_KEPT_TURNS} later iterations of the same one's workers",
                got=f"{held - group if held > group else last - number}",
            )
        turn = place + _FIRST + 4 * (number % _KEPT_TURNS)
        if number > last:
            self._set(place + _TURNS, number)
            self._set(turn + 1, _UNKNOWN)
        return turn

    def _take(
        self, turn: int, known: int, told: int | None = None, *, is_next: bool = True
    ) -> None:
        """Let a turn be of the next epoch, or of one that was told."""
        epoch = self._get(_NEXT) if told is None else told
        state = self._get(_STATE) if told is None else 0
        for i, value in enumerate((epoch, known, state, self._get(_CALLS))):
            self._set(turn + i, value)
        if is_next:
            self._set(_NEXT, epoch + 1)
            self._set(_STATE, 0)
            self._set(_BEGUN, epoch + 1)

    def _write(self, place: int, size: int, data: bytes) -> None:
        most = (_STATE_AT if place == _NOTE_AT else _GROUPS_AT) - place
        if len(data) > most:
            raise ClipError(
                "a state is too long for worker processes",
                expected=f"at most {most} bytes",
                got=f"{len(data)}",
            )
        self._set(size, len(data))
        self._memory[place : place + len(data)] = data

    def _read(self, place: int, size: int) -> bytes:
        return self._memory[place : place + self._get(size)]

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with _threads.get():  # which are all one owner of the lock of the file
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


_threads = PerProcess(threading.Lock)


_numbers = count(1)
_known: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
_forking = threading.local()  # the thread that forks is the one that the new process has
_own: int | None = None


def starting_group() -> int | None:
    """The group of the process that this thread is starting; `None` if that is no worker."""
    if (starting := find_starting()) is None:
        return None
    iterator, _ = starting
    if iterator not in _known:
        _known[iterator] = next(_numbers)
    return _known[iterator]


def is_given(epochs: object) -> bool:
    """Whether the worker that this thread is starting is given these `Epochs`, or a chain of pipes
    behind them.

    Such a group has its first epoch from the start: it may begin later than others do, or never.
    """
    to_see: list[Any] = [] if (starting := find_starting()) is None else [starting[1].dataset]
    seen = set[int]()
    while to_see:
        data = to_see.pop()
        if getattr(data, "_epochs", None) is epochs:
            return True
        if isinstance(data, IterDataPipe) and id(data) not in seen:
            seen.add(id(data))
            for value in vars(data).values():
                to_see += value if isinstance(value, (list, tuple)) else [value]
    return False


def own_group() -> int | None:
    """The group of this process; `None` if it is no worker."""
    return _own


def join_group(number: int | None) -> None:
    """This process is a worker of that group, if one is given."""
    global _own
    if number is not None:
        _own = number


def _before_fork() -> None:
    _forking.group = None
    _forking.group = starting_group()


def _after_fork() -> None:
    join_group(getattr(_forking, "group", None))


at_fork(before=_before_fork, after_in_child=_after_fork)
