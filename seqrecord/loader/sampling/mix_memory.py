"""Division of a memory limit among the batches and the sources of a mix. Pure integers."""

from __future__ import annotations

from collections.abc import Mapping

from seqrecord.errors import MemoryLimitError
from seqrecord.loader.sampling.frame_sizes import CONSUMER, PREFETCH
from seqrecord.loader.sampling.settings_choice import SettingsRequest
from seqrecord.store.units import parse_size

_MORE = (8, 4)  # batches that are filled or wait, if they are at most
_SHARE = 16  # … one part in so many of the memory: then sources seldom wait for each other
_MOST_BYTES = 1 << 60  # no machine has as many, and floats represent them exactly


def share_out(
    memory_limit: int | str,
    batch: int,
    requests: Mapping[str, SettingsRequest],
    weights: Mapping[str, float],
) -> tuple[int, dict[str, int]]:
    """How many batches of a mix may be filled or wait, and the bytes of each source.

    `batch` is the size of a batch in bytes; the rest is divided by weight. Raises
    `MemoryLimitError` if the minima of all sources do not fit.
    """
    minima = {name: request.least_limit for name, request in requests.items()}
    limit, needed = min(parse_size(memory_limit), _MOST_BYTES), sum(minima.values())

    def fits(prefetch: int) -> bool:
        batches = (prefetch + CONSUMER) * batch
        are_few = prefetch <= PREFETCH or batches <= limit // _SHARE
        return are_few and needed + batches <= limit

    prefetch = next(filter(fits, (*_MORE, *range(PREFETCH, 1, -1))), 1)
    return prefetch, divide_memory(minima, weights, (prefetch + CONSUMER) * batch, limit)


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
