"""Batches on a device while they are filled."""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np
import numpy.typing as npt

from seqrecord.device.batches import DeviceBatches
from seqrecord.engine.filling import Batch, ClipNames
from seqrecord.engine.trace import NO_TRACE, Trace

__all__ = ["DeviceGathering"]


class DeviceGathering:
    """As `Gathering`, for a batch that the device copies from its arena."""

    def __init__(self, size: int, batches: DeviceBatches) -> None:
        self._batch = batches.begin(size)
        self._names = ClipNames(size)

    @property
    def is_full(self) -> bool:
        return self._names.is_full

    def gather(
        self,
        episode: npt.NDArray[np.int64],
        start: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        executor: Executor,
        threads: int,
        trace: Trace = NO_TRACE,
    ) -> int:
        """As `Gathering.gather`. The copies are queued when it returns: the device's threads do
        them, and what is loaded into the rows is queued behind."""
        del executor, threads, trace
        nbytes = self._batch.gather(rows)
        self._names.append(episode, start)
        return nbytes

    def finish(self) -> Batch:
        """The batch, which the thread that takes it must have `arrive`."""
        batch = self._batch
        return Batch(batch.features, self._names.episode, self._names.start, batch.hand_over)
