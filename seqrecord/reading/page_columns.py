"""Where the pages of chosen features lie among those of a chunk."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from seqrecord.format.index import Index
from seqrecord.format.pages import num_slices
from seqrecord.schema import Schema

__all__ = ["PageColumns", "group_numbers"]


class PageColumns:
    """Where the chosen features of one group stand in its tables."""

    def __init__(self, index: Index, features: Schema, group: int) -> None:
        table = index.groups[group]
        variable = {spec.name: column for column, spec in enumerate(table.schema.variable)}
        self.chosen = [
            (name, column, int(table.features[column]), variable.get(name))
            for name, column in (
                (n, table.schema.position(n)) for n in features if n in table.schema
            )
        ]
        self._raw = [(i, spec) for i, spec in enumerate(table.schema.values()) if spec.is_raw]

    def sums(self, lengths: npt.NDArray[np.uint32], start: int) -> dict[int, int]:
        """Where the checksums of the slices of each raw page lie, by column."""
        found = {}
        for column, spec in self._raw:
            found[column] = start
            start += 4 * num_slices(spec, int(lengths[column]) // spec.nbytes)
        return found


def group_numbers(features: Schema) -> list[int]:
    """The groups that features lie in."""
    return list(dict.fromkeys(spec.group for spec in features.values()))
