"""Division of a memory limit among the batches and the sources of a mix. Pure integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from seqrecord.errors import MemoryLimitError
from seqrecord.loader.sampling.frame_sizes import CONSUMER, PREFETCH, usual_limit
from seqrecord.loader.sampling.settings_choice import SettingsRequest
from seqrecord.store.units import parse_size

_SHARE = 16  # more batches are filled or wait if they are at most one part in so many
_MOST_BYTES = 1 << 60  # no machine has as many, and floats represent them exactly


class MixDivision(NamedTuple):
    """A memory limit, divided.

    Attributes:
        prefetch: items that are filled or wait.
        together: batches of an item.
        limits: bytes of each dataset.
    """

    prefetch: int
    together: int
    limits: dict[str, int]


@dataclass(eq=False)
class MixMemory:
    """The memory limit of a mix, divided for each number of workers. Picklable.

    Attributes:
        limit: bytes of a worker. Default: enough to mix the datasets well.
        batch_bytes: bytes of a batch.
        most_together: the most batches of an item.
        requests: the needs of each dataset.
        weights: the ratio in which datasets share the memory that batches leave.
    """

    limit: int | str | None
    batch_bytes: int = 0
    most_together: int = 1
    requests: dict[str, SettingsRequest] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    _divisions: dict[int, MixDivision] = field(default_factory=dict)

    def limit_of(self, name: str, num_workers: int) -> int:
        """The bytes of a dataset in each of a rank's `num_workers` workers."""
        return self.division(num_workers).limits[name]

    def division(self, num_workers: int) -> MixDivision:
        """The limit of each of a rank's `num_workers` workers, divided.

        Raises `MemoryLimitError` if the minima of all datasets do not fit.
        """
        if num_workers not in self._divisions:  # each dataset asks, several times
            limit, batch = self.limit, self.batch_bytes
            if limit is None:
                wanted = sum(request.wanted_limit for request in self.requests.values())
                limit = usual_limit(wanted + (PREFETCH + CONSUMER) * batch, num_workers)
            self._divisions[num_workers] = self._divide(min(parse_size(limit), _MOST_BYTES))
        return self._divisions[num_workers]

    def _divide(self, limit: int) -> MixDivision:
        minima = {name: request.least_limit for name, request in self.requests.items()}
        batch, needed = self.batch_bytes, sum(minima.values())

        def fits(prefetch: int, together: int) -> bool:
            batches = (prefetch + CONSUMER) * together * batch
            are_few = prefetch * together <= PREFETCH or batches <= limit // _SHARE
            return together <= self.most_together and are_few and needed + batches <= limit

        ways = [(PREFETCH, 8), (PREFETCH, 4), (PREFETCH, 2), (8, 1), (4, 1)]
        ways += [(prefetch, 1) for prefetch in range(PREFETCH, 1, -1)]
        prefetch, together = next((way for way in ways if fits(*way)), (1, 1))
        batches = (prefetch + CONSUMER) * together * batch
        return MixDivision(prefetch, together, divide_memory(minima, self.weights, batches, limit))


def divide_memory(
    minima: Mapping[str, int], weights: Mapping[str, float], batches: int, limit: int
) -> dict[str, int]:
    """Divide a limit by weight, with at least `least` bytes for each source.

    `batches` bytes are reserved. Raises `MemoryLimitError` if the minima do not fit.
    """
    room = limit - batches
    if room < sum(minima.values()):
        raise MemoryLimitError(
            "memory_limit is too small for this mix",
            expected=f"at least {sum(minima.values()) + batches} bytes: {batches} of batches, and "
            + ", ".join(f"{nbytes} of {name}" for name, nbytes in minima.items()),
            got=f"{limit} bytes",
        )
    settled: dict[str, int] = {}
    while True:
        unsettled = {name: weight for name, weight in weights.items() if name not in settled}
        unsettled_bytes = room - sum(settled.values())
        shares = {
            name: int(unsettled_bytes * weight / sum(unsettled.values()))
            for name, weight in unsettled.items()
        }
        small = [name for name, nbytes in shares.items() if nbytes < minima[name]]
        if not small:
            return {**settled, **shares}
        settled.update((name, minima[name]) for name in small)
