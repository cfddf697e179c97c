"""`SeqRecordNode` in a module of its own, because it imports torchdata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchdata.nodes import BaseNode

from seqrecord.loader.pipes.loaders import StreamingLoader
from seqrecord.loader.pipes.states import Clip


class SeqRecordNode(StreamingLoader, BaseNode[Clip]):  # type: ignore[misc]
    """`SeqRecordPipe` as a node of `torchdata.nodes`."""

    _iterator: Iterator[Clip] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator": None}

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or continue from `initial_state`."""
        super().reset(initial_state)
        self._iterator = None  # ends the threads of an iteration that was left early
        if initial_state is not None:
            self._epochs.load(initial_state, self._shard(), at_start=True, at_end=True)
        self._iterator = super().__iter__()

    def __iter__(self) -> Iterator[Clip]:
        return self

    def next(self) -> Clip:
        """The next batch or clip."""
        if self._iterator is None:  # in another process than `reset`
            self._iterator = super().__iter__()
        return next(self._iterator)

    def state_dict(
        self, batches: int | None = None, batch_size: int | None = None
    ) -> dict[str, Any]:
        """Return the position; at an epoch's end the end, from which `reset` yields nothing."""
        return self._epochs.state(
            self._shard(), batches=batches, batch_size=batch_size, at_end=True
        )

    def get_state(self) -> dict[str, Any]:
        """As `state_dict`."""
        return self.state_dict()
