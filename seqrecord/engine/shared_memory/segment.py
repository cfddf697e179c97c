"""Memory that one process owns and others read, each by a lease that it releases at the end.

A segment is an anonymous file, memfd_create(2): it needs no room in /dev/shm, and is gone when
nobody has it open or mapped any more. It begins with a page of flags, a byte each::

    [ retired | slot 1 | slot 2 | … ][ data … ]

The owner sets a slot when it makes a lease, and the holder clears it when nothing there refers to
the data any more; while all slots are clear the owner may write. A holder keeps its mapping for the
next time, until the owner has set `retired` or is gone: finding all pages of a large batch takes
about as long as copying it.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from multiprocessing import util
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.errors import SeqRecordError

__all__ = ["Lease", "Segment", "acquire"]

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
        self._descriptor = os.memfd_create("seqrecord", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._descriptor, _FLAGS + nbytes)
            memory = mmap.mmap(self._descriptor, _FLAGS + nbytes)
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


os.register_at_fork(after_in_child=_leave_retired)

_mapped: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}
"""What this process has mapped so far, by owner and inode, with the flags."""

os.register_at_fork(after_in_child=_mapped.clear)


def acquire(lease: Lease) -> npt.NDArray[np.uint8]:
    """The data; uint8[nbytes]. They are the owner's again when the last reference is gone.

    Raises `SeqRecordError` if the owner has ended before the first lease of its segment arrived.
    """
    key = lease.owner, lease.inode
    memory = _mapped.get(key)
    if memory is None:
        memory = _mapped[key] = _map(lease)
        _forget_the_dead()
    data = memory[_FLAGS:]
    finalizer = weakref.finalize(data, _release, memory, lease, os.getpid())
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


def _release(memory: npt.NDArray[np.uint8], lease: Lease, holder: int) -> None:
    if os.getpid() != holder:
        return  # the copy of a fork: what it has copied is still in use
    memory[lease.slot] = 0
    if memory[_RETIRED]:
        _mapped.pop((lease.owner, lease.inode), None)
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
