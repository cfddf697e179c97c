"""Which epoch worker processes begin, between them and the process that has started them.

The workers of one iterator over a DataLoader share an epoch. They cannot find out by themselves
which one: a DataLoader without persistent workers starts new ones for each epoch, as copies of a
dataset that has not changed meanwhile, several DataLoaders may iterate at the same time, and the
seeds that torch gives to workers may be equal. So the process that starts them gives each iterator
a number, its group, which its workers get: a forked one with the memory of that process, others
with what is pickled for them. A record that the processes share says what each group has begun.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from multiprocessing.reduction import DupFd
from struct import Struct
from typing import Any

from torch.utils.data import IterDataPipe

from seqrecord.errors import ClipError
from seqrecord.pipes.distributed import find_starting
from seqrecord.processes.forks import PerProcess, at_fork

_KEPT_TURNS = 256  # no worker begins so many later than others
_PLACE = Struct("<QQ")  # of the record that holds: where it begins, and its length
_SLOTS = (1 << 12, 1 << 32)  # memory is taken by what is written
_lock = PerProcess(threading.Lock)  # threads are all one owner of the lock of a file


class SharedEpochs:
    """Which epochs groups of worker processes begin: a record in memory that processes share.

    A group takes turns: each time that one of its workers begins an iteration is that worker's next
    turn. All workers of a group have the same epoch in the same turn, whenever they come to it.

    The record is JSON. `next` is the epoch of the turn that is begun next, by any group, and
    `state` what it begins with, if that is a place that was loaded. `begun` is the epoch of the
    newest turn since `set_next`, which was called so many `calls`; `loaded` is the state that was
    loaded last, whose settings hold from then on. `turns` are the newest ones of all groups: the
    epoch, its state, and whether the workers were told of the epoch, `None` as long as none has
    begun.
    """

    def __init__(self) -> None:
        self.owner = os.getpid()
        """The process whose workers these are."""
        self._open(os.memfd_create("seqrecord-epochs"))
        self._write({"calls": 0, "turns": []}, _SLOTS[0])
        self.set_next(0)

    def __getstate__(self) -> tuple[Any, ...]:
        return DupFd(self._file), self.owner, _starting_group()  # of a new process

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        global _own
        file, self.owner, _own = state
        self._open(file.detach())

    def _open(self, file: int) -> None:
        self._file = file
        weakref.finalize(self, os.close, file)

    def set_next(
        self, epoch: int, state: dict[str, Any] | None = None, loaded: dict[str, Any] | None = None
    ) -> None:
        """The next turn that any group begins is of this epoch, whatever the ones before were."""
        with self._changed() as record:
            calls = record["calls"] + 1
            record.update(next=epoch, state=state, begun=None, loaded=loaded, calls=calls)

    def begun(self) -> tuple[int | None, Any]:
        """The epoch that workers have begun last, since `set_next`, and the state loaded last."""
        with self._changed() as record:
            return record["begun"], record["loaded"]

    def allot(self, group: int) -> None:
        """Give the next epoch to the first turn of a group, unless it has one."""
        with self._changed() as record:
            _epoch_of(record, group, 1)

    def begin(
        self, group: int | None, number: int, told: int | None = None, loaded: object = None
    ) -> tuple[int, Any, Any]:
        """The epoch of a group's turn, from 1, its state, and the state that was loaded last.

        The epoch is the next one, or the one that the worker was `told`; then `loaded` is what it
        has loaded last.

        Raises `ClipError` where not all of the workers were told the same, and in a process of no
        group.
        """
        if group is None:
            raise ClipError(
                "a DataLoader's worker does not know which epoch it is to begin",
                expected="a process that an iterator over a DataLoader starts while it is made",
                got="a process that something else has started",
            )
        with self._changed() as record:
            turn = _epoch_of(record, group, number)
            if turn["told"] is None:
                turn["told"] = told is not None
                if told is not None:
                    turn.update(epoch=told, state=None)
                if told is not None and turn["calls"] == record["calls"]:
                    record.update(next=told + 1, begun=told, state=None, loaded=loaded)
            if turn["told"] != (told is not None) or told not in (None, turn["epoch"]):
                raise ClipError(
                    "the workers of a DataLoader were told to begin different epochs",
                    expected="set_epoch, or load_state_dict, with the same epoch in all of them, "
                    "or in none",
                    got=f"epoch {turn['epoch']}, and {'none' if told is None else told}",
                )
            return turn["epoch"], turn["state"], record["loaded"]

    @contextmanager
    def _changed(self) -> Iterator[dict[str, Any]]:
        """The record, which is written again."""
        with _lock.get():
            fcntl.lockf(self._file, fcntl.LOCK_EX)  # the system unlocks it when the process dies
            try:
                place, length = _PLACE.unpack(os.pread(self._file, _PLACE.size, 0))
                record = json.loads(os.pread(self._file, length, place))
                yield record
                self._write(record, sum(_SLOTS) - place)
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _write(self, record: dict[str, Any], place: int) -> None:
        """Write the record beside the one that holds, and then, in one step, that it holds now."""
        text = json.dumps(record).encode()
        os.pwrite(self._file, text, place)
        os.pwrite(self._file, _PLACE.pack(place, len(text)), 0)


def _epoch_of(record: dict[str, Any], group: int, number: int) -> dict[str, Any]:
    """A turn of a group; a new one is of the next epoch."""
    turns: list[dict[str, Any]] = record["turns"]
    for turn in turns:
        if (turn["group"], turn["number"]) == (group, number):
            return turn
    turn = {"group": group, "number": number, "epoch": record["next"], "state": record["state"]}
    turn |= {"told": None, "calls": record["calls"]}
    record.update(next=turn["epoch"] + 1, state=None, begun=turn["epoch"])
    record["turns"] = [*turns, turn][-_KEPT_TURNS:]
    return turn


_own: int | None = None  # the group of this process, if it is a worker
_numbers = count(1)
_groups: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()


def _starting_group() -> int | None:
    """The group of the worker that this thread is starting; `None` if it starts none."""
    starting = find_starting()
    return None if starting is None else _groups.setdefault(starting[0], next(_numbers))


def group_given(epochs: object) -> int | None:
    """The group of the worker that this thread is starting, if that is given these `Epochs`, or a
    chain of pipes behind them.

    Such a group has its first epoch from the start: it may begin later than others do, or never.
    """
    to_see: list[Any] = [] if (starting := find_starting()) is None else [starting[1].dataset]
    for data in to_see:
        if getattr(data, "_epochs", None) is epochs:
            return _starting_group()
        if isinstance(data, IterDataPipe):
            for value in vars(data).values():
                for one in value if isinstance(value, (list, tuple)) else [value]:
                    is_one = isinstance(one, IterDataPipe) or hasattr(one, "_epochs")
                    to_see += [one] * (is_one and all(one is not other for other in to_see))
    return None


def own_group() -> int | None:
    """The group of this process; `None` if it is no worker."""
    return _own


def _join_group() -> None:
    """In a process that was forked, and has the call stack of the thread that forked it."""
    global _own
    _own = _starting_group() or _own


at_fork(before=_starting_group, after_in_child=_join_group)
