"""Which epoch worker processes have begun, between them and the process that started them."""

from __future__ import annotations

import os

from torch.utils.data import get_worker_info

from seqrecord.pipes.counter import EpochCounter

__all__ = ["WorkerEpochs"]


class WorkerEpochs:
    """What a loader tells its copies in a DataLoader's worker processes, and they tell the loader.

    They do so by a counter, which processes get that this one starts. A process that was itself
    started with a counter, as ranks are by a launcher, but is no worker, gets one of its own.
    `note` has the settings of the state that was loaded, for workers to come.
    """

    def __init__(self, counter: EpochCounter | None = None, note: bytes = b"") -> None:
        self.counter = counter
        self.note = note

    def share(self, next_epoch: int) -> None:
        """Have a counter, for processes to come."""
        if get_worker_info() is None and not self._is_own:
            self.counter = EpochCounter(next_epoch)

    def publish(self, next_epoch: int) -> None:
        """Tell workers of later iterations which epoch is next."""
        if self.counter is not None and self._is_own:
            self.counter.set_next(next_epoch)

    def begun(self) -> int | None:
        """The epoch that workers have begun since this process published last, if they have."""
        return self.counter.begun() if self.counter is not None and self._is_own else None

    def begin(self, loaded: int | None) -> int | None:
        """Begin an epoch in a worker process: the one that was loaded here, else the next one.

        `None` in any other process.
        """
        worker = get_worker_info()
        if worker is None or self.counter is None:
            return None
        seed = worker.seed - worker.id
        if loaded is None:
            return self.counter.begin(worker.id, seed)
        return self.counter.begin(worker.id, seed, loaded, self.note)

    def new_note(self) -> bytes | None:
        """The note that workers have left, if it is another one than `note`."""
        note = b"" if self.counter is None else self.counter.note()
        return note if note and note != self.note else None

    @property
    def _is_own(self) -> bool:
        """Whether this process is the one whose workers count there."""
        return self.counter is not None and self.counter.owner == os.getpid()
