"""Shared memory with one owner process, leased to readers.

A segment is an anonymous file, memfd_create(2). It needs no space in /dev/shm, and is freed when no
process has it open or mapped. It begins with a page of flags, one byte each::

    [ retired | slot 1 | slot 2 | … ][ data … ]

The owner sets a slot for each lease. The reader clears the slot after the last reference to the
data is deleted. The owner may write only while all slots are clear. Readers keep the mapping until
the owner has retired the segment or has ended, because page faults of a large batch take about
as long as copying it.

A fork of a reader also has the data, and its references cannot be observed. A lease that existed
during a fork ends only after that fork and its own forks have ended.
"""

from __future__ import annotations

import mmap
import os
import select
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field
from multiprocessing import util
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import SeqRecordError
from seqrecord.store.processes.forks import at_fork
from seqrecord.store.storage.open_files import with_descriptor

_FLAGS = mmap.PAGESIZE  # bytes
_RETIRED = 0  # index of the flag; the others are slots

# Exit priority of multiprocessing.util.Finalize: after the feeder threads of queues, which have -5.
_LAST = -100


class Lease(NamedTuple):
    """Location of a segment, and the slot to clear."""

    owner: int  # process
    descriptor: int  # in that process
    inode: int  # of the file: descriptor numbers are reused
    nbytes: int  # of the data
    slot: int


class Segment:
    """Shared memory of this process; retired after the last reference is deleted."""

    def __init__(self, nbytes: int) -> None:
        _release_retired()
        self._descriptor = with_descriptor(lambda: os.memfd_create("seqrecord", os.MFD_CLOEXEC))
        try:
            os.ftruncate(self._descriptor, _FLAGS + nbytes)
            memory = with_descriptor(lambda: mmap.mmap(self._descriptor, _FLAGS + nbytes))
        except BaseException:
            os.close(self._descriptor)
            raise
        self._inode = os.fstat(self._descriptor).st_ino
        self._flags = np.frombuffer(memory, np.uint8, _FLAGS)
        self.data = np.frombuffer(memory, np.uint8, nbytes, _FLAGS)  # begins at a page
        util.Finalize(self, _retire, (memory, self._descriptor), exitpriority=_LAST)

    @property
    def is_leased(self) -> bool:
        """Whether any lease is open."""
        return bool(self._flags[_RETIRED + 1 :].any())

    def lease(self) -> Lease | None:
        """Create a lease for one reader; `None` if all slots are in use."""
        slot = _RETIRED + 1 + int(self._flags[_RETIRED + 1 :].argmin())
        if self._flags[slot]:
            return None
        self._flags[slot] = 1
        return Lease(os.getpid(), self._descriptor, self._inode, len(self.data), slot)


_retired: deque[tuple[mmap.mmap, int]] = deque()
"""Memory and descriptor of leased segments without references here. Readers may not have mapped
them yet.
"""


def _retire(memory: mmap.mmap, descriptor: int) -> None:
    memory[_RETIRED] = 1
    _retired.append((memory, descriptor))
    _release_retired()


def _release_retired() -> None:
    for _ in range(len(_retired)):
        try:
            memory, descriptor = _retired.popleft()
        except IndexError:  # a finalizer was faster
            return
        if any(memory[_RETIRED + 1 : _FLAGS]):
            _retired.append((memory, descriptor))
            continue
        # The reader may have it mapped, and not check `retired` for a while.
        memory.madvise(mmap.MADV_REMOVE, _FLAGS)
        os.close(descriptor)


def _leave_retired() -> None:
    while _retired:
        os.close(_retired.popleft()[1])


at_fork(after_in_child=_leave_retired)

_mapped: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}
"""Mappings of this process by owner and inode, including the flags."""


class _Fork:
    """Detects the end of a forked process and of its own forks.

    They inherit the write end of a pipe, which closes with the last of them. If no pipe can be
    created, their end is never detected.
    """

    def __init__(self) -> None:
        self.reading, self.writing = -1, -1
        try:
            self.reading, self.writing = os.pipe()
        except OSError:
            return

    def has_ended(self) -> bool:
        if self.reading < 0:
            return False
        poll = select.poll()
        poll.register(self.reading, select.POLLIN)
        return bool(poll.poll(0))

    def __del__(self) -> None:
        if self.reading >= 0:
            os.close(self.reading)


@dataclass(eq=False)
class _Hold:
    """A lease of this process, shared with `forks`."""

    memory: npt.NDArray[np.uint8]
    lease: Lease
    forks: list[_Fork] = field(default_factory=list)


_holds: set[_Hold] = set()
"""Leases with references in this process."""
_dropped: deque[_Hold] = deque()
"""Leases with possible references in forks only."""
_forking = threading.local()


def _before_fork() -> None:
    _forking.fork = None
    if holds := list(_holds):
        _forking.fork = fork = _Fork()
        for hold in holds:
            hold.forks.append(fork)


def _after_in_parent() -> None:
    fork, _forking.fork = _forking.fork, None
    if fork is not None and fork.writing >= 0:
        os.close(fork.writing)


def _after_in_child() -> None:
    # The write end stays open until this process ends.
    _mapped.clear()
    _holds.clear()
    _dropped.clear()


at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


def acquire(lease: Lease) -> npt.NDArray[np.uint8]:
    """Map the data of a lease, uint8[nbytes]. The lease ends with the last reference.

    If this process forks meanwhile, the lease also lasts until that fork has ended.

    Raises `SeqRecordError` if the owner has ended before the first lease of its segment arrived.
    """
    key = lease.owner, lease.inode
    memory = _mapped.get(key)
    if memory is None:
        _forget_retired()
        memory = _mapped[key] = _map(lease)
    _give_back()
    data = memory[_FLAGS:]
    _holds.add(hold := _Hold(memory, lease))
    finalizer = weakref.finalize(data, _release, hold, os.getpid())
    finalizer.atexit = False
    return data


def _map(lease: Lease) -> npt.NDArray[np.uint8]:
    path = Path(f"/proc/{lease.owner}/fd/{lease.descriptor}")
    try:
        if path.stat().st_ino != lease.inode:
            raise FileNotFoundError
        # Unlike Python's mmap, torch keeps no descriptor open for each of its mappings.
        size = _FLAGS + lease.nbytes
        memory = torch.from_file(str(path), shared=True, size=size, dtype=torch.uint8, device="cpu")
        return memory.numpy()
    except (OSError, RuntimeError) as error:
        raise SeqRecordError(
            "the worker process that filled a batch has ended before it was received",
            file=str(path),
            expected=f"its shared memory of {lease.nbytes} bytes",
            got=repr(error),
        ) from error


def _release(hold: _Hold, holder: int) -> None:
    if os.getpid() != holder:
        return  # a fork's copy
    _holds.discard(hold)
    _dropped.append(hold)
    _give_back()


def _give_back() -> None:
    """End leases whose forks have ended."""
    for _ in range(len(_dropped)):
        try:
            hold = _dropped.popleft()
        except IndexError:  # a finalizer was here in between
            return
        hold.forks = [fork for fork in hold.forks if not fork.has_ended()]
        if hold.forks:
            _dropped.append(hold)
            continue
        hold.memory[hold.lease.slot] = 0
        if hold.memory[_RETIRED]:
            _mapped.pop((hold.lease.owner, hold.lease.inode), None)
        _forget_the_dead()


def _forget_retired() -> None:
    """Unmap segments that were retired after their last release, and segments of ended owners.

    Called for each new segment, so that mappings do not accumulate. Leased segments are kept mapped
    until their release.
    """
    for key, memory in list(_mapped.items()):
        if memory[_RETIRED]:
            _mapped.pop(key, None)
    _forget_the_dead()


def _forget_the_dead() -> None:
    dead = {owner for owner in {owner for owner, _ in list(_mapped)} if not _is_alive(owner)}
    for key in list(_mapped):
        if key[0] in dead:
            _mapped.pop(key, None)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
