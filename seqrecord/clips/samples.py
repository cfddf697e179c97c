"""Samples of a user's table, with their columns: integers, without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqrecord.clips.frames import COPIES, ClipKeys
from seqrecord.clips.grids import ragged_arange
from seqrecord.clips.tables import ClipSpec, ClipTable, IntArray
from seqrecord.processes.forks import cached_property

Column: TypeAlias = npt.NDArray[Any] | pa.Array
"""A value of each sample: an array [n, …], or texts."""

OF_CLIPS = ("dilation", "reverse")
"""Columns that change the frames of a clip. All others are in batches."""


@dataclass(frozen=True, eq=False)
class SampleTable:
    """Samples, sorted by episode, then by start. Duplicates are allowed.

    `row`, int64[n], is each sample's row in the user's table; `episode` and `start` are int64[n].
    `repeat`, float64[n], is the mean number of occurrences in an epoch. `columns` are the others.
    """

    row: IntArray
    episode: IntArray
    start: IntArray
    repeat: npt.NDArray[np.float64]
    columns: Mapping[str, Column]

    @classmethod
    def of(
        cls,
        episode: IntArray,
        start: IntArray,
        repeat: npt.NDArray[np.float64] | None = None,
        columns: Mapping[str, Column] | None = None,
    ) -> SampleTable:
        """Sort samples; each comes once by default."""
        row = np.lexsort((start, episode))
        repeat = np.ones(len(row)) if repeat is None else repeat
        table = cls(np.arange(len(row)), episode, start, repeat, columns or {})
        return table.take(row)

    def __len__(self) -> int:
        return len(self.row)

    def __repr__(self) -> str:
        return f"SampleTable({len(self)} samples, {float(self.repeat.sum()):g} in an epoch)"

    @cached_property
    def as_listed(self) -> IntArray:
        """Number of each sample in the order of the user's table, int64[n]."""
        return np.argsort(self.row, kind="stable")

    @property
    def most(self) -> IntArray:
        """Largest number of occurrences per epoch, int64[n]."""
        return np.ceil(self.repeat).astype(np.int64)

    @property
    def least(self) -> IntArray:
        """Smallest number of occurrences per epoch, int64[n]."""
        return np.floor(self.repeat).astype(np.int64)

    @property
    def repeats(self) -> bool:
        """Whether an epoch may have several clips with one start in an episode."""
        again = (np.diff(self.episode) == 0) & (np.diff(self.start) == 0)
        return bool((self.repeat > 1).any() or again.any())

    @property
    def differs_by_epoch(self) -> bool:
        """Whether epochs differ in their samples."""
        return bool((self.most != self.least).any())

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the columns in batches."""
        return tuple(name for name in self.columns if name not in OF_CLIPS)

    def values(self, name: str, clips: ClipKeys) -> npt.NDArray[Any] | list[str]:
        """Values of a column for clips: an array [n, …], or texts."""
        values = taken(self.columns[name], clips.row)
        return values if isinstance(values, np.ndarray) else values.to_pylist()

    def take(self, chosen: IntArray) -> SampleTable:
        """The samples with these numbers, int64[k], which get new numbers."""
        columns = {name: taken(column, chosen) for name, column in self.columns.items()}
        row, episode, start = (each[chosen] for each in (self.row, self.episode, self.start))
        return SampleTable(row, episode, start, self.repeat[chosen], columns)

    def table(
        self, spec: ClipSpec, selected: IntArray, times: IntArray, *, num_incomplete: int = 0
    ) -> ClipTable:
        """The clips of the samples, each repeated `times`, int64[n]; `spec` has stride 1.

        `selected` are the selected episodes. Clips with consecutive starts become one row of the
        table.
        """
        row, copy = ragged_arange(times)
        none = np.zeros(0, np.int64)
        empty = ClipTable(spec, selected, none, none, none, num_incomplete=num_incomplete)
        columns = self.episode[row], self.start[row], np.ones_like(row), row * COPIES + copy
        return empty.joined(*columns)


def taken(column: Column, chosen: IntArray) -> Column:
    """The values of chosen rows."""
    return column[chosen] if isinstance(column, np.ndarray) else column.take(pa.array(chosen))
