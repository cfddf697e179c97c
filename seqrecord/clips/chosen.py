"""Clips that somebody has chosen one by one, and how often each comes: integers, without I/O."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import frame_keys, run_bounds
from seqrecord.clips.tables import ClipSpec, ClipTable, IntArray
from seqrecord.processes.forks import cached_property


@dataclass(frozen=True, eq=False)
class ChosenClips:
    """Clips in canonical order, by episode and then by start, the same one maybe several times.

    `row`, int64[n], says which one of the user's list each is; `episode` and `start` are int64[n].
    Each comes `weight` times in an epoch, float64[n], on average.
    """

    row: IntArray
    episode: IntArray
    start: IntArray
    weight: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls, episode: IntArray, start: IntArray, weight: npt.NDArray[np.float64] | None = None
    ) -> ChosenClips:
        """From a list in any order; without `weight` each comes once."""
        row = np.lexsort((start, episode))
        weight = np.ones(len(row)) if weight is None else weight
        return cls(row, episode[row], start[row], weight[row])

    def __len__(self) -> int:
        return len(self.row)

    def __repr__(self) -> str:
        return f"ChosenClips({len(self)} clips, {float(self.weight.sum()):g} in an epoch)"

    @cached_property
    def as_listed(self) -> IntArray:
        """Where each clip of the user's list is, in the order of the list; int64[n]."""
        return np.argsort(self.row, kind="stable")

    @property
    def most(self) -> IntArray:
        """How often each comes at most in an epoch; int64[n]."""
        return np.ceil(self.weight).astype(np.int64)

    @property
    def least(self) -> IntArray:
        """How often each comes at least in every epoch; int64[n]."""
        return np.floor(self.weight).astype(np.int64)

    @property
    def repeats(self) -> bool:
        """Whether a clip may come more than once in an epoch."""
        again = (np.diff(self.episode) == 0) & (np.diff(self.start) == 0)
        return bool((self.weight > 1).any() or again.any())

    @property
    def differs_by_epoch(self) -> bool:
        """Whether an epoch has other clips than the next."""
        return bool((self.most != self.least).any())

    def subset(self, chosen: npt.NDArray[np.bool_]) -> ChosenClips:
        """Some of them."""
        return ChosenClips(
            self.row[chosen], self.episode[chosen], self.start[chosen], self.weight[chosen]
        )

    def table(
        self, spec: ClipSpec, selected: IntArray, times: IntArray, *, num_incomplete: int = 0
    ) -> ClipTable:
        """The clips, each `times`, int64[n], of the `selected` episodes; `spec` has stride 1.

        Clips that start at frames in a row make one row of the table.
        """
        episode, start = np.repeat(self.episode, times), np.repeat(self.start, times)
        place = frame_keys(episode, start)
        edges = np.array(run_bounds(place), np.int64)
        begins = edges[:-1]
        return ClipTable(
            spec,
            selected,
            episode[begins],
            start[begins],
            np.diff(edges),
            num_incomplete=num_incomplete,
        )
