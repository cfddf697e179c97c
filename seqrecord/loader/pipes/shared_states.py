"""SharedState: the state that DataLoader workers have loaded, for the workers after them.

A StatefulDataLoader passes its state to its workers alone. The first worker writes it to memory
that the training process shares with all workers, so that new workers, which begin the next epoch,
have the same episodes, settings and normalization.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from seqrecord.errors import StateError
from seqrecord.loader.pipes.distributed import this_worker
from seqrecord.loader.pipes.shared_rows import SharedRow

_MAX_BYTES = 1 << 15  # a state has 1 kB, of normalized vectors or sources of a mix more
_NUM_BYTES, _NUMBER = 0, 1  # first integers of the row


class SharedState:
    """See the module. Picklable to start a process, which shares the memory."""

    def __init__(self) -> None:
        self._row = SharedRow(np.zeros(2 + _MAX_BYTES // 8, np.int64))
        self._seen = 0  # number of the state that this process has last

    def loaded(self, state: Mapping[str, Any]) -> None:
        """Note a state that this process has loaded; the first worker shares it."""
        row = self._row
        if row.in_worker and this_worker()[0] == 0:
            text = json.dumps(state).encode()
            is_short = len(text) <= _MAX_BYTES
            if is_short:
                row.values[2:].view(np.uint8)[: len(text)] = np.frombuffer(text, np.uint8)
            row.values[_NUM_BYTES] = len(text) if is_short else -1
            row.values[_NUMBER] += 1  # last: it is complete
        self._seen = int(row.values[_NUMBER])

    def take(self) -> Any:
        """The state that workers have loaded since this process took or loaded one, or `None`.

        Raises `StateError` if it is too long for the shared memory.
        """
        values = self._row.values
        if (number := int(values[_NUMBER])) == self._seen:
            return None
        if (num_bytes := int(values[_NUM_BYTES])) < 0:
            raise StateError(
                "the state of a StatefulDataLoader is too long for its next workers",
                expected=f"persistent_workers=True, or a state of at most {_MAX_BYTES} bytes",
            )
        self._seen = number
        return json.loads(bytes(values[2:].view(np.uint8)[:num_bytes]))
