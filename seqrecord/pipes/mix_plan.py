"""An epoch of a mix as integers: which source each slot of each batch is for, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.pipes.states import Rest
from seqrecord.sampling import Part
from seqrecord.sampling.shares import Shares

__all__ = ["MixPlan", "Stop", "count_batches"]

Stop: TypeAlias = Literal["first", "longest"] | int
"""When an epoch ends; see `SeqRecordMix`."""


@dataclass(frozen=True)
class MixPlan:
    """The batches of one part of one epoch.

    Slots are numbered over all epochs of the part, or from where it went on with other ranks; with
    `alternate` it is batches that are, for then a batch is of one source. `first` is the number of
    the epoch's first batch. A source's clips are numbered over all of its epochs: those that it
    gives in one epoch of the mix follow those that it gave in the one before.
    """

    epoch: int
    part: Part
    num_batches: int
    batch_size: int
    shares: Shares
    alternate: bool
    first: int
    rest: Rest | None = None

    @property
    def counts(self) -> dict[str, int]:
        """See `Plan.counts`: what sources repeat is told of each."""
        return {}

    def first_clip(self, batch: int) -> int:
        """How many clips the batches before this one hold."""
        return batch * self.batch_size

    def sources(self, batch: int) -> IntArray:
        """The source of each slot of a batch; int64[batch_size]."""
        number, size = self.first + batch, self.batch_size
        if self.alternate:
            return np.repeat(self.shares.sources(number, number + 1), size)
        return self.shares.sources(number * size, (number + 1) * size)

    def given(self, batch: int) -> IntArray:
        """How many clips each source has given before a batch; int64[sources]."""
        number, size = self.first + batch, self.batch_size
        if self.alternate:
            return self.shares.given(number) * size
        return self.shares.given(number * size)

    def places(self, source: int, start: int, stop: int) -> tuple[IntArray, IntArray]:
        """Batch and slot of the clips `[start, stop)` of a source; int64[stop - start] each."""
        size = self.batch_size
        if not self.alternate:
            batch, slot = np.divmod(self.shares.slots(source, start, stop), size)
            return batch - self.first, slot
        own, slot = np.divmod(np.arange(start, stop), size)  # the batches of this source alone
        first = start // size
        batches = self.shares.slots(source, first, max(first, -(-stop // size)))
        return batches[own - first] - self.first, slot


def count_batches(
    stop: Stop,
    lengths: Sequence[int],
    shares: Sequence[Fraction],
    batch_size: int,
    *,
    worker: int,
    workers: int,
    least: int = 1,
) -> int:
    """The batches of an epoch of one part, from counts that are the same on all ranks.

    `lengths` are the clips of an epoch of each source, in this part. A source of `n` clips with a
    share `p` gives its last one within `n / p` slots: "first" ends before the batch in which the
    first source would begin again, "longest" with the batch in which the last one has given all.
    An integer is shared among a rank's workers. "first" gives `least` batches at least.
    """
    if isinstance(stop, int):
        return (stop + workers - 1 - worker) // workers
    slots = [length / share for length, share in zip(lengths, shares, strict=True)]
    if stop == "first":
        return max(least, int(min(slots) // batch_size))
    return int(-(-max(slots) // batch_size))
