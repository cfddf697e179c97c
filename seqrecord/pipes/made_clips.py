"""Single clips as rows of the batch in which an engine has made them, for `collate` alone.

To make a dict and a tensor for each clip takes longer than all else that is done for a small one.
Where nobody but `collate` sees a clip, it is a pair: the batch, and its row there. Clips that
follow each other are then a part of the batch, which is not copied::

    made       a a a a a a a a | b b b b b b b b
    batch 0    a0 a1 a2 a3              a part of a
    batch 3    b4 a7 a6 b0              copied
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, TypeAlias

import torch

__all__ = ["MadeClips", "Row", "rows_of"]


@dataclass(frozen=True, eq=False, slots=True)
class MadeClips:
    """A batch of single clips: tensors [clips, frames, …] of features, and columns, a value of each
    clip: see `pipes.columns`."""

    features: Mapping[str, torch.Tensor]
    columns: Mapping[str, Any]
    _clips: dict[str, Sequence[torch.Tensor]] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.columns["start"])

    def part(self, first: int, stop: int) -> dict[str, Any]:
        """The batch of the clips `[first, stop)`, in the memory of this one."""
        whole = {**self.features, **self.columns}
        if stop - first == len(self):
            return whole
        return {name: values[first:stop] for name, values in whole.items()}

    def clips(self, feature: str) -> Sequence[torch.Tensor]:
        """A feature of each clip: tensors [frames, …]."""
        found = self._clips.get(feature)
        if found is None:
            found = self._clips[feature] = self.features[feature].unbind()
        return found


Row: TypeAlias = tuple[MadeClips, int]
"""A clip: the batch that has it, and which row there."""


def rows_of(made: MadeClips) -> list[Row]:
    """All clips of a batch."""
    return list(zip(repeat(made), range(len(made))))
