"""How the clips of one split are counted out into batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqrecord.order import IntArray

__all__ = ["Batches"]


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
