"""Whether obstore can be used in this process, and whether it has been."""

from __future__ import annotations

import multiprocessing
import sys

from seqrecord.errors import LocationError
from seqrecord.forks import at_fork

__all__ = ["RUNTIME", "Runtime", "use_obstore"]


class Runtime:
    """obstore's Rust runtime in this process: `used`, or `lost`.

    There is one in a process, whose threads a fork does not copy: in a child of a process that had
    used obstore every call would wait forever. `told` says that the log says so.
    """

    def __init__(self) -> None:
        self.used = self.lost = self.told = False

    def after_fork(self) -> None:
        self.lost = self.lost or self.used or "obstore" in sys.modules
        self.used = self.told = False

    @property
    def is_wanted(self) -> bool:
        """Whether all reading may go through obstore: nobody will fork here after it.

        A daemonic process, such as a DataLoader's worker, may have no children.
        """
        return self.used or multiprocessing.current_process().daemon


RUNTIME = Runtime()
at_fork(after_in_child=RUNTIME.after_fork)


def use_obstore(file: str) -> None:
    """Note that this process uses obstore, for `file`; `LocationError` where it cannot."""
    if RUNTIME.lost:
        raise LocationError(
            "obstore was used before this process was forked, and cannot be used here",
            file=file,
            expected="a process that is spawned, as workers are with multiprocessing_context="
            '"forkserver"; or only to read, and no option of obstore alone',
        )
    RUNTIME.used = True
