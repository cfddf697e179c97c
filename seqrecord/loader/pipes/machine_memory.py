"""The memory of this machine, which its ranks and workers share."""

from __future__ import annotations

from typing import NamedTuple

from torch.utils.data import get_worker_info

from seqrecord.errors import MemoryLimitError
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.store.processes.machine import local_ranks, process_memory, usable_memory
from seqrecord.store.units import format_size

_MUCH, _TOO_MUCH = 0.5, 0.8  # of the machine's memory


class _Machine(NamedTuple):
    """This machine's memory, in bytes: all, of each process, and what all processes leave.

    The processes themselves (Python, torch, the model) take as much as this one at the first call.
    """

    loaders: int
    processes: int
    memory: int
    own: int
    left: int

    @classmethod
    def of_now(cls) -> _Machine:
        """The memory for the ranks and workers on this machine."""
        info, ranks = get_worker_info(), local_ranks()
        loaders = ranks * (1 if info is None else info.num_workers)
        processes = loaders + (0 if info is None else ranks)  # a worker's parent has no loader
        own, memory = process_memory(), usable_memory()
        return cls(loaders, processes, memory, own, max(0, memory - processes * own))


def spare_memory(nbytes: int, part: float = 1.0) -> int:
    """The bytes that a loader of `nbytes` may use beside them: within half of the machine's memory,
    of which it has a `part`.
    """
    machine = _Machine.of_now()
    return max(0, int(part * _MUCH * machine.left / machine.loaders) - nbytes)


def check_machine(nbytes: int, url: str) -> None:
    """Check the memory of all ranks and workers on this machine, `nbytes` each.

    Logs a warning if loaders take over half of the memory that processes leave. Raises
    `MemoryLimitError` above 80 %.
    """
    loaders, processes, memory, own, left = _Machine.of_now()
    if loaders * nbytes <= _MUCH * left:
        return
    each = f"{format_size(nbytes)} for each loader here, {loaders} in all"
    free = f"{format_size(memory)} without {processes} x {format_size(own)} of the processes"
    most = int(_TOO_MUCH * left / loaders)
    if loaders * nbytes > _TOO_MUCH * left:
        raise MemoryLimitError(
            "frames, batches and reads would take too much of this machine's memory",
            file=url,
            expected=f"at most {_TOO_MUCH:.0%} of {free}: memory_limit={most} "
            f"({format_size(most)}), fewer workers or smaller batches",
            got=each,
        )
    warn_once(
        f"{url}: frames, batches and reads take {loaders * nbytes / left:.0%} of this machine's "
        f"memory, {free}: {each}; a smaller memory_limit or fewer workers take less"
    )
