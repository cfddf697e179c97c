"""The memory of an iteration, which the next one takes over: it is expensive to touch anew."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from seqrecord.arena import Arena, BufferPool
from seqrecord.device.arena import DeviceArena
from seqrecord.device.batches import DeviceBatches
from seqrecord.device.streams import side_stream
from seqrecord.engine.device_filling import DeviceGathering
from seqrecord.engine.filling import Gathering, batch_pools
from seqrecord.frames import ArraySpec

__all__ = ["Needs", "Scratch", "Workspace", "Workspaces"]


@dataclass(frozen=True)
class Needs:
    """What an iteration needs memory for: rows of frames, and batches of clips."""

    specs: Mapping[str, ArraySpec]
    num_rows: int
    batch_size: int  # clips
    clip_len: int
    num_batches: int  # that are ever in use at a time
    device: torch.device | None = None  # with its number; `None` for the host, without staging
    shared: bool = False  # batches are sent to another process


class Workspace:
    """An arena, memory for batches, and scratch memory for chunks being read."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.scratch = Scratch()
        self.pools: dict[str, BufferPool] = {}
        self._batches: DeviceBatches | None = None
        self.arena: Arena | DeviceArena
        if needs.device is None:
            self.arena = Arena(needs.specs, needs.num_rows)
            self.pools = batch_pools(
                needs.specs,
                needs.batch_size,
                needs.clip_len,
                keep=needs.num_batches,
                shared=needs.shared,
            )
        else:
            self.arena = DeviceArena(needs.specs, needs.num_rows, side_stream(needs.device))
            self._batches = DeviceBatches(self.arena, needs.clip_len)

    def begin_gathering(self, size: int) -> Gathering | DeviceGathering:
        """A batch of so many clips, to be copied from the arena."""
        if self._batches is not None:
            return DeviceGathering(size, self._batches)
        assert isinstance(self.arena, Arena), "on the host"
        return Gathering(size, self.arena, self.pools)


class Scratch:
    """Blocks of memory for reading, one for each load under way, that grow to what is needed."""

    def __init__(self) -> None:
        self._idle: deque[npt.NDArray[np.uint8]] = deque()

    def take(self, nbytes: int) -> npt.NDArray[np.uint8]:
        """A block of at least so many bytes; give it back when nothing refers to it any more."""
        try:
            block = self._idle.pop()
        except IndexError:
            return np.empty(nbytes, np.uint8)
        if len(block) < nbytes:
            del block  # before its successor is there: both would be more than the limit
            block = np.empty(nbytes, np.uint8)
        return block

    def give_back(self, block: npt.NDArray[np.uint8]) -> None:
        self._idle.append(block)


class Workspaces:
    """Keeps the workspace of the last iteration for the next. A copy in another process is empty.

    So a loader holds the memory of an epoch until it is dropped, and never that of two.
    """

    def __init__(self) -> None:
        self._idle: deque[Workspace] = deque(maxlen=1)
        self._process = os.getpid()

    def __reduce__(self) -> tuple[type[Workspaces], tuple[()]]:
        return Workspaces, ()

    def take(self, needs: Needs) -> Workspace:
        """The workspace kept, if it is what is needed, else a new one once that is gone."""
        if self._process != os.getpid():  # what a fork has of it is the other process's
            self._idle.clear()
            self._process = os.getpid()
        try:
            kept = self._idle.pop()
            if kept.needs == needs:
                return kept
            del kept
        except IndexError:
            pass
        return Workspace(needs)

    def give_back(self, workspace: Workspace) -> None:
        """Keep a workspace that this process has taken."""
        self._idle.append(workspace)
