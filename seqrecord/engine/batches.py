"""Batches, what they are made of, and what builds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.engine.calls import Calls
from seqrecord.engine.crops import Crop
from seqrecord.engine.ragged import RaggedFrames

__all__ = [
    "Batch",
    "BatchBuilder",
    "ClipNames",
    "Copiers",
    "Copy",
    "Source",
    "ThisThread",
    "slots_from",
]

_ArenaT = TypeVar("_ArenaT")


@dataclass(frozen=True)
class Batch:
    """Clips as tensors [clips, frames, …] by feature, and where each clip comes from.

    Of texts a list of clips, each a list of `str` or `bytes`.
    """

    features: dict[str, torch.Tensor | RaggedFrames | list[list[Any]]]
    episode: npt.NDArray[np.int64]  # [clips], row of the index
    start: npt.NDArray[np.int64]  # [clips], first frame
    arrive: Callable[[], object] = lambda: None
    """To be called by the thread that takes the batch, before it uses the features."""

    def __len__(self) -> int:
        return len(self.episode)


class Copy(NamedTuple):
    """Something to copy, without the GIL, in any thread."""

    nbytes: int
    do: Callable[[], None]


class Copiers(Protocol):
    """Threads that copy: a `WorkerPool`."""

    num_threads: int

    def copy(self, copies: Iterable[Copy]) -> None:
        """Make copies; all are made when it returns."""


class ThisThread:
    """`Copiers` that copy in the thread that asks for it."""

    num_threads = 1

    def copy(self, copies: Iterable[Copy]) -> None:
        """Make copies."""
        for copy in copies:
            copy.do()


@dataclass(frozen=True, eq=False)
class Source(Generic[_ArenaT]):
    """Where some clips' frames of some of an arena's features are: `rows`, int64 [clips, frames].

    Of features that `crop` has, the batch gets the windows.
    """

    arena: _ArenaT
    rows: npt.NDArray[np.int64]
    features: Sequence[str]
    crop: Crop | None = None


class BatchBuilder(Protocol[_ArenaT]):
    """A batch while clips are gathered from arenas into it, one after the other.

    `HostBatchBuilder` and `DeviceBatchBuilder` do so. Clips may come from any arenas that together
    have the features of the batch: those of the groups of a dataset.
    """

    @property
    def is_full(self) -> bool:
        """Whether all clips are there."""

    def gather(
        self,
        slot: int | npt.NDArray[np.int64],
        sources: Sequence[Source[_ArenaT]],
        copiers: Copiers,
        calls: Calls | None = None,
    ) -> int:
        """Copy clips, which go to `slot` and those after it, from the arenas of their features.

        Or they go to the slots `slot`, int64[clips], in ascending order: then batches have no
        features of variable shape.

        With `calls`, the batch gets what functions make of the clips. Clips with a feature of
        variable shape come in the order of their slots. The rows may be loaded into again when this
        returns. Returns how many bytes that brings to a device.
        """

    def append(self, episode: npt.NDArray[np.int64], start: npt.NDArray[np.int64]) -> None:
        """Say which clips these were, int64[clips] each; others come next."""

    def finish(self) -> Batch:
        """The batch, whose clips are all there, in memory that is released when it is dropped."""


class ClipNames:
    """Where the clips of a batch of `size` come from, in any order or one after the other."""

    def __init__(self, size: int) -> None:
        self.episode = np.empty(size, np.int64)
        self.start = np.empty(size, np.int64)
        self.count = 0  # of clips that were appended

    @property
    def is_full(self) -> bool:
        return self.count == len(self.episode)

    def put(
        self,
        slots: npt.NDArray[np.int64] | slice,
        episode: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
    ) -> None:
        """Say which clips are at these slots; int64[n] each."""
        self.episode[slots], self.start[slots] = episode, start

    def append(self, episode: npt.NDArray[np.int64], start: npt.NDArray[np.int64]) -> None:
        """Say which clips come next."""
        self.put(slice(self.count, self.count + len(episode)), episode, start)
        self.count += len(episode)


def slots_from(slot: int | npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """The slots of so many clips, int64[count]: these, or those from one on."""
    return slot + np.arange(count) if isinstance(slot, int) else slot
