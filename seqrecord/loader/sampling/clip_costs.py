"""The costs of an epoch's samples under a budget, and how far batches use it. Pure integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seqrecord.loader.clips.frames import MOST_COPIES
from seqrecord.loader.clips.tables import IntArray


@dataclass(frozen=True, eq=False)
class ClipCosts:
    """The costs of an epoch's samples, and the budget of a batch.

    Attributes:
        budget: the greatest cost of a batch: the sum of its clips, or with `pads` the greatest one
            times their number.
        pads: whether all clips of a batch count as the greatest one.
        max_rows: the most clips of a batch.
        cost: of each row in the table of samples, int64[rows], at least 1 and at most `budget`.
        frames: each row's number of frames, int64[rows].
        form: how batches are stored, "stacked", "packed" or "padded".
        mean_rows: the clips of a full batch, on the average.
        most_rows: the clips of the largest batch, at most, in every epoch of costs like these.
        most_frames: … and its frames, padding included.
    """

    budget: int
    pads: bool
    max_rows: int
    cost: IntArray
    frames: IntArray
    form: str
    mean_rows: int
    most_rows: int
    most_frames: int

    def of(self, sample: IntArray) -> IntArray:
        """The costs of samples, see `ClipKeys`; int64[n] each."""
        costs: IntArray = self.cost[sample // MOST_COPIES]
        return costs

    def clips_of_length(self, length: int) -> int:
        """The clips of `length` frames that take the memory of the largest batch."""
        return self.most_rows if self.form == "stacked" else -(-self.most_frames // length)

    def lengths(self, sample: IntArray) -> IntArray:
        """The frame counts of samples; int64[n] each."""
        frames: IntArray = self.frames[sample // MOST_COPIES]
        return frames


class BudgetUse(NamedTuple):
    """The part of a budget that batches use, and the part of padding in padded batches."""

    used: float
    padding: float

    @classmethod
    def of(cls, cost: IntArray, ends: IntArray, costs: ClipCosts) -> BudgetUse:
        """Measure batches that end at `ends`, of clips with these costs; int64."""
        taken = float(costs_of_batches(cost, ends, costs).sum())
        padding = 1 - float(cost[: ends[-1]].sum()) / taken
        return cls(taken / (len(ends) * costs.budget), padding)


def costs_of_batches(cost: IntArray, ends: IntArray, costs: ClipCosts) -> IntArray:
    """The costs of batches that end at `ends`, of clips with these costs; int64[batches]."""
    begins = np.append(0, ends[:-1])
    if not costs.pads:
        return np.add.reduceat(cost, begins)
    padded: IntArray = np.maximum.reduceat(cost, begins) * np.diff(ends, prepend=0)
    return padded
