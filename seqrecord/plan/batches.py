"""How the clips of one split are counted out into batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqrecord.order import IntArray

__all__ = ["Batches", "count_batches"]


@dataclass(frozen=True)
class Batches:
    """`count` batches of a stream of clips: full ones of `size`, up to the last or last two.

    The last begins at clip `last`. `num_dropped` clips behind the last belong to no batch.
    """

    size: int
    count: int
    num_clips: int
    num_dropped: int
    last: int

    def first_clip(self, batch: int) -> int:
        """How many clips come before this batch; `num_clips` for batch `count`.

        Raises `IndexError` outside `[0, count]`.
        """
        if not 0 <= batch <= self.count:
            raise IndexError(f"a batch's number is not in [0, {self.count}]: {batch}")
        if batch == self.count:
            return self.num_clips
        return self.last if batch == self.count - 1 else batch * self.size

    def places(self, clips: IntArray) -> tuple[IntArray, IntArray]:
        """Batch, and place in the batch, of clips in `[0, num_clips)` of the stream; int64[n]."""
        batch = np.where(clips >= self.last, max(0, self.count - 1), clips // self.size)
        return batch, clips - np.minimum(batch * self.size, self.last)


def count_batches(
    available: int, total: int, num_splits: int, *, size: int, drop_last: bool
) -> Batches:
    """Equally many batches for every split of `total` clips, for the one that has `available`.

    That is `total // num_splits` clips or one more. Without `drop_last` a split that has one clip
    less, and none left for its last batch, shares its last clips out to the last two::

        9 clips, batches of 4    0 1 2 3 | 4 5 6 7 | 8
        8 clips                  0 1 2 3 | 4 5 | 6 7

    Only with a `size` of 1 the number of batches then is that of the split's own clips.
    """
    if drop_last:
        count = total // num_splits // size
        return Batches(size, count, count * size, available - count * size, _last(count, size))
    largest = -(-total // num_splits)
    count = -(-largest // size) if size > 1 else available
    last = _last(count, size)
    if 0 < available <= last:
        last = available - size // 2
    return Batches(size, count, available, 0, last)


def _last(count: int, size: int) -> int:
    return max(0, count - 1) * size
