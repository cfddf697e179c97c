"""How the clips of one split are counted out into batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqrecord.order import IntArray

__all__ = ["Batches", "count_batches"]


@dataclass(frozen=True)
class Batches:
    """`count` batches of a stream of clips: full ones of `size`, up to the last `num_shared`.

    These share evenly what is left. `num_dropped` clips behind the last belong to no batch.
    """

    size: int
    count: int
    num_clips: int
    num_dropped: int
    num_shared: int

    def first_clip(self, batch: int) -> int:
        """How many clips come before this batch; `num_clips` for batch `count`.

        Raises `IndexError` outside `[0, count]`.
        """
        if not 0 <= batch <= self.count:
            raise IndexError(f"a batch's number is not in [0, {self.count}]: {batch}")
        return int(self.begins(np.array([batch]))[0])

    def begins(self, batches: IntArray) -> IntArray:
        """`first_clip` of many; int64[n]. Nothing is checked."""
        full, left = self._shared()
        share = -(-(batches - full) * left // max(1, self.num_shared))
        return np.where(batches > full, full * self.size + share, batches * self.size)

    def places(self, clips: IntArray) -> tuple[IntArray, IntArray]:
        """Batch, and place in the batch, of clips in `[0, num_clips)` of the stream; int64[n]."""
        full, left = self._shared()
        shared = full + (clips - full * self.size) * self.num_shared // max(1, left)
        batch = np.where(clips < full * self.size, clips // self.size, shared)
        return batch, clips - self.begins(batch)

    def _shared(self) -> tuple[int, int]:
        """How many batches are full, and how many clips are left for the others."""
        full = self.count - self.num_shared
        return full, self.num_clips - full * self.size


def count_batches(
    available: int, total: int, num_splits: int, *, size: int, drop_last: bool, repeat: int = 1
) -> Batches:
    """Equally many batches for every split of `total` clips, for the one that has `available`.

    That is `total // num_splits` clips or one more. Every clip is counted `repeat` times. Without
    `drop_last` a split that has one clip less, and none left for its last batches, shares its last
    clips out to them::

        9 clips, batches of 4    0 1 2 3 | 4 5 6 7 | 8
        8 clips                  0 1 2 3 | 4 5 | 6 7

    Only with a `size` of 1 the number of batches then is that of the split's own clips.
    """
    clips = available * repeat
    if drop_last:
        count = total // num_splits * repeat // size
        return Batches(size, count, count * size, clips - count * size, min(1, count))
    if size == 1:
        return Batches(1, clips, clips, 0, min(1, clips))
    count = -(-(-(-total // num_splits) * repeat) // size)
    # The fewest that get at least one clip each.
    shared = max(1, -(-(count * size - clips) // (size - 1)))
    return Batches(size, count, clips, 0, min(shared, count))
