"""Single clips as rows of the batch in which an engine has made them, for `collate` alone.

To make a dict and a tensor for each clip takes longer than all else that is done for a small one.
Where nobody but `collate` sees a clip, it is a pair: the batch, and its row there. Clips that
follow each other are then a part of the batch, which is not copied::

    made       a a a a a a a a | b b b b b b b b
    batch 0    a0 a1 a2 a3              a part of a
    batch 3    b4 a7 a6 b0              copied

Where it is known how they will be shuffled, they are made in that order. A clip is then given
before it is made: it is a pair of `ClipsToCome` and its number.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, TypeAlias

import torch

from seqrecord.engine.batches import Batch
from seqrecord.errors import ClipError

__all__ = ["ClipsToCome", "MadeClips", "Row", "rows_of"]


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
        """The batch of the clips `[first, stop)`, in the memory of this one, as users get it."""
        if stop - first == len(self):
            return {**self.features, **self.columns}
        columns = {name: values[first:stop] for name, values in self.columns.items()}
        # Tensors whose storage ends where they do: to save one is not to save all.
        arrays = {name: tensor.numpy() for name, tensor in self.features.items()}
        return {n: torch.from_numpy(array[first:stop]) for n, array in arrays.items()} | columns

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


_NONE: Iterator[Batch] = iter(())


class ClipsToCome:
    """The clips of an iteration that are given before they are made. A copy has none.

    Args:
        batches: in which they are made, in any order; each has its clips' numbers.
        make: what is in a batch.
    """

    def __init__(
        self, batches: Iterator[Batch] = _NONE, make: Callable[[Batch], MadeClips] | None = None
    ) -> None:
        self._batches, self._make = batches, make
        self._made: deque[tuple[MadeClips, list[int]]] = deque()  # with their clips' numbers
        self._next = 0  # clip of the first of these, that was not asked for yet
        self._rows: dict[int, Row] = {}  # of batches whose clips were asked for in another order

    def __reduce__(self) -> tuple[type[ClipsToCome], tuple[()]]:
        return ClipsToCome, ()

    def __len__(self) -> int:
        """Clips that are made, and that were not asked for yet."""
        return sum(len(numbers) for _, numbers in self._made) - self._next + len(self._rows)

    def find(self, numbers: list[int]) -> dict[str, Any] | list[Row]:
        """The clips of these numbers, each of which is asked for once, as soon as they are made:
        the batch of them, or which rows of which batches they are."""
        if not self._rows and (self._made or self._receive()):
            made, known = self._made[0]
            begin, stop = self._next, self._next + len(numbers)
            if known[begin:stop] == numbers:
                self._next = stop
                if stop == len(known):
                    self._made.popleft()
                    self._next = 0
                return made.part(begin, stop)
        return self._find(numbers)

    def finish(self) -> None:
        """Wait for all clips: nothing refers to the batches to come any more."""
        while self._receive():
            pass
        self._batches, self._make = _NONE, None

    def clear(self) -> None:
        """Drop what was not asked for: nobody will."""
        self._batches, self._make = _NONE, None
        self._made.clear()
        self._rows.clear()
        self._next = 0

    def _find(self, numbers: list[int]) -> list[Row]:
        while True:
            while self._made:
                made, known = self._made.popleft()
                self._rows.update(
                    zip(known[self._next :], rows_of(made)[self._next :], strict=True)
                )
                self._next = 0
            if self._rows.keys() >= set(numbers):
                return [self._rows.pop(number) for number in numbers]
            if not self._receive():
                raise ClipError("this iteration was ended: another one has begun")

    def _receive(self) -> bool:
        """Take the next batch, if there is one."""
        if self._make is None or (batch := next(self._batches, None)) is None:
            return False
        assert batch.numbers is not None, "the clips say which they are"
        self._made.append((self._make(batch), batch.numbers.tolist()))
        return True
