"""Clips of a user's list, with weights: integers, without I/O."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqrecord.clips.grids import frame_keys, run_bounds
from seqrecord.clips.tables import ClipSpec, ClipTable, IntArray
from seqrecord.processes.forks import cached_property


@dataclass(frozen=True, eq=False)
class ChosenClips:
    """Listed clips, sorted by episode, then by start. Duplicates are allowed.

    `row`, int64[n], is each clip's row in the user's list; `episode` and `start` are int64[n].
    `weight`, float64[n], is the mean number of repetitions per epoch.
    """

    row: IntArray
    episode: IntArray
    start: IntArray
    weight: npt.NDArray[np.float64]

    @classmethod
    def of(
        cls, episode: IntArray, start: IntArray, weight: npt.NDArray[np.float64] | None = None
    ) -> ChosenClips:
        """Sort a list of clips. The default weight is 1."""
        row = np.lexsort((start, episode))
        weight = np.ones(len(row)) if weight is None else weight
        return cls(row, episode[row], start[row], weight[row])

    def __len__(self) -> int:
        return len(self.row)

    def __repr__(self) -> str:
        return f"ChosenClips({len(self)} clips, {float(self.weight.sum()):g} in an epoch)"

    @cached_property
    def as_listed(self) -> IntArray:
        """Position of each row of the user's list, int64[n]."""
        return np.argsort(self.row, kind="stable")

    @property
    def most(self) -> IntArray:
        """Largest number of repetitions per epoch, int64[n]."""
        return np.ceil(self.weight).astype(np.int64)

    @property
    def least(self) -> IntArray:
        """Smallest number of repetitions per epoch, int64[n]."""
        return np.floor(self.weight).astype(np.int64)

    @property
    def repeats(self) -> bool:
        """Whether a clip may occur twice in an epoch."""
        again = (np.diff(self.episode) == 0) & (np.diff(self.start) == 0)
        return bool((self.weight > 1).any() or again.any())

    @property
    def differs_by_epoch(self) -> bool:
        """Whether epochs differ in their clips."""
        return bool((self.most != self.least).any())

    def subset(self, chosen: npt.NDArray[np.bool_]) -> ChosenClips:
        """The clips of a mask, bool[n]."""
        return ChosenClips(
            self.row[chosen], self.episode[chosen], self.start[chosen], self.weight[chosen]
        )

    def table(
        self, spec: ClipSpec, selected: IntArray, times: IntArray, *, num_incomplete: int = 0
    ) -> ClipTable:
        """The clips as a table, each repeated `times`, int64[n]; `spec` has stride 1.

        `selected` are the selected episodes. Clips with consecutive starts become one row of the
        table.
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
