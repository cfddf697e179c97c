"""Copies that are made before a call returns, on as many threads as their bytes pay for."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import followed
from seqrecord.clips.tables import IntArray
from seqrecord.engine.batches import Copy
from seqrecord.processes.threads import ThreadPool

_THREAD_BYTES = 4 << 20  # one more thread for each; one thread reads what is less


@dataclass
class CallThreads:
    """`Copiers` for one call: at most `num_threads` threads, which end with each `copy`."""

    num_threads: int

    def copy(self, copies: Iterable[Copy]) -> None:
        """Make copies. Raises the first error."""
        todo = list(copies)
        paying = 1 + sum(copy.nbytes for copy in todo) // _THREAD_BYTES
        if (threads := min(len(todo), self.num_threads, paying)) <= 1:
            for copy in todo:
                copy.do()
            return
        with ThreadPool(threads, "seqrecord-clips") as pool:
            deque(pool.map(lambda copy: copy.do(), todo), maxlen=0)


def repeats(arrays: Sequence[npt.NDArray[Any]], source: IntArray) -> Iterator[Copy]:
    """Copies of repeated frames: row `i` of each array becomes its row `source[i]`."""
    target = np.flatnonzero(source != np.arange(len(source)))
    source = source[target]
    for begin, end in pairwise(followed(target, source)):
        to, of = (slice(int(rows[begin]), int(rows[end - 1]) + 1) for rows in (target, source))
        for array in arrays:
            yield Copy(array[to].nbytes, partial(np.copyto, array[to], array[of]))
