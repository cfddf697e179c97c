"""How the clips of one split are counted out into batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqrecord.order import IntArray

__all__ = ["Batches", "Share", "share_of"]


@dataclass(frozen=True)
class Share:
    """The clips of one split, `[start, stop)` of a sequence that all splits share.

    The last `num_repeated` of them belong to the next split too.
    """

    start: int
    stop: int
    num_repeated: int = 0


def share_of(index: int, num_splits: int, total: int, *, fill: bool) -> Share:
    """The part of split `index` of `total` clips; all parts cover the sequence.

    Without `fill` they are disjoint and differ by at most one clip. With `fill` they are equally
    long: a split that would have one clip less has the first one of the next split too::

        8 clips, 3 splits    0 1 2 | 2 3 4 | 5 6 7
        without `fill`       0 1   | 2 3 4 | 5 6 7
        2 clips, 3 splits    0     | 0     | 1
    """
    start, stop = total * index // num_splits, total * (index + 1) // num_splits
    repeated = -(-total // num_splits) - (stop - start) if fill else 0
    return Share(start, stop + repeated, repeated)


@dataclass(frozen=True)
class Batches:
    """`num_clips` clips in consecutive batches of `size`, the last of which may have fewer."""

    size: int
    num_clips: int

    @property
    def count(self) -> int:
        return -(-self.num_clips // self.size)

    def first_clip(self, batch: int) -> int:
        """How many clips come before this batch; `num_clips` for batch `count`.

        Raises `IndexError` outside `[0, count]`.
        """
        if not 0 <= batch <= self.count:
            raise IndexError(f"a batch's number is not in [0, {self.count}]: {batch}")
        return min(batch * self.size, self.num_clips)

    def places(self, clips: IntArray) -> tuple[IntArray, IntArray]:
        """Batch, and place in the batch, of clips in `[0, num_clips)`; int64[n]."""
        batch, slot = np.divmod(clips, self.size)
        return batch, slot
