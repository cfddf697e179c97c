"""Memory that one process owns and others read, each by a lease that it releases at the end.

A segment is an anonymous file, memfd_create(2): it needs no room in /dev/shm, and is gone when
nobody has it open or mapped any more. It begins with a page of flags, a byte each::

    [ retired | slot 1 | slot 2 | … ][ data … ]

The owner sets a slot when it makes a lease, and the holder clears it when nothing there refers to
the data any more; while all slots are clear the owner may write. A holder keeps its mapping for the
next time, until the owner has set `retired` or is gone: finding all pages of a large batch takes
about as long as copying it.

A fork of the holder has the data too, and nobody can see when it drops them. So what the holder has
when it forks is the owner's again only when that fork and its own forks have ended.
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
from seqrecord.processes.forks import at_fork
from seqrecord.storage.open_files import with_descriptor

_FLAGS = mmap.PAGESIZE  # bytes
_RETIRED = 0  # which flag; the others are slots

# At the end of a worker, after the threads that send what is still in its queues: in the order of
# multiprocessing.util.Finalize, where those of queues have -5.
_LAST = -100


class Lease(NamedTuple):
    """What a holder needs to know: where the segment is, and which slot to clear."""

    owner: int  # process
    descriptor: int  # in that process
    inode: int  # of the file, for a descriptor's number may be given again
    nbytes: int  # of the data
    slot: int


class Segment:
    """Shared memory of this process, retired when nothing here refers to it any more."""

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
        """Whether a holder still has the data."""
        return bool(self._flags[_RETIRED + 1 :].any())

    def lease(self) -> Lease | None:
        """For one holder, once; `None` where there are too many."""
        slot = _RETIRED + 1 + int(self._flags[_RETIRED + 1 :].argmin())
        if self._flags[slot]:
            return None
        self._flags[slot] = 1
        return Lease(os.getpid(), self._descriptor, self._inode, len(self.data), slot)


_retired: deque[tuple[mmap.mmap, int]] = deque()
"""Memory and descriptor of segments still leased: a holder may not have mapped them yet."""


def _retire(memory: mmap.mmap, descriptor: int) -> None:
    memory[_RETIRED] = 1
    _retired.append((memory, descriptor))
    _release_retired()


def _release_retired() -> None:
    for _ in range(len(_retired)):
        try:
            memory, descriptor = _retired.popleft()
        except IndexError:  # a finalizer was here in between
            return
        if any(memory[_RETIRED + 1 : _FLAGS]):
            _retired.append((memory, descriptor))
            continue
        # The holder may have it mapped, and not notice for a while that it is retired.
        memory.madvise(mmap.MADV_REMOVE, _FLAGS)
        os.close(descriptor)


def _leave_retired() -> None:
    while _retired:
        os.close(_retired.popleft()[1])


at_fork(after_in_child=_leave_retired)

_mapped: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}
"""What this process has mapped so far, by owner and inode, with the flags."""


class _Fork:
    """A process that was forked, with those that it forks: whether any of them still runs.

    They have the end of a pipe open that nobody writes to. Without a descriptor for it, none of
    them is ever known to have ended.
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
    """A lease that this process has; `forks` have it too."""

    memory: npt.NDArray[np.uint8]
    lease: Lease
    forks: list[_Fork] = field(default_factory=list)


_holds: set[_Hold] = set()
"""Those of which something here refers to the data."""
_dropped: deque[_Hold] = deque()
"""Those of which only forks may do so."""
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
    # The writing end stays open as long as this process runs.
    _mapped.clear()
    _holds.clear()
    _dropped.clear()


at_fork(before=_before_fork, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


def acquire(lease: Lease) -> npt.NDArray[np.uint8]:
    """The data; uint8[nbytes]. They are the owner's again when the last reference is gone.

    Where this process has forked since, that is when that fork has ended, too.

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
        return  # the copy of a fork
    _holds.discard(hold)
    _dropped.append(hold)
    _give_back()


def _give_back() -> None:
    """Give back what no fork may have any more."""
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
    """Forget segments that were retired after their last release, and those of dead owners.

    Called for each new segment, so that mappings do not accumulate. What is still leased stays
    mapped until its release.
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
