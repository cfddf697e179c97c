"""The memory of a mix: its batches, and the limit of each source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from seqrecord.loader.frames.array_specs import clip_nbytes
from seqrecord.loader.mixing.mixed_batches import MixedBatches
from seqrecord.loader.mixing.sources import SourceLoader
from seqrecord.loader.pipes.options import LoaderOptions
from seqrecord.loader.pipes.view_order import ViewOrder
from seqrecord.loader.sampling.frame_sizes import CONSUMER, PREFETCH, usual_limit
from seqrecord.loader.sampling.mix_memory import share_out
from seqrecord.loader.sampling.settings_choice import SettingsRequest


@dataclass(frozen=True, eq=False)
class MixMemory:
    """A memory limit, divided for each number of workers. Picklable.

    Attributes:
        limit: bytes of a worker. Default: enough to mix the sources well.
        batch_bytes: bytes of a batch.
        requests: the needs of each source.
        weights: the ratio in which sources share the memory that batches leave.
    """

    limit: int | str | None
    batch_bytes: int
    requests: Mapping[str, SettingsRequest]
    weights: Mapping[str, float]
    _divisions: dict[int, tuple[int, dict[str, int]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        options: LoaderOptions,
        loaders: Mapping[str, SourceLoader],
        shares: Mapping[str, Fraction],
        batches: Sequence[MixedBatches],
    ) -> MixMemory:
        """Compute sizes and needs of loaders, and of their mixed batches."""
        assert options.most_clips is not None
        size, draws, weights = options.most_clips, options.draws, dict[str, float]()
        if draws is not None:  # in clips of the greatest length
            size = -(-draws.most_frames(size) // draws.most)
        for name, loader in loaders.items():
            nbytes = clip_nbytes(loader.view.batch_arrays, loader.view.lengths)
            weights[name] = float(shares[name]) * max(1, nbytes)
        batch_bytes = sum(size * one.clip_bytes for one in batches)
        requests = {name: loader.order.memory_request() for name, loader in loaders.items()}
        return cls(options.memory_limit, batch_bytes, requests, weights)

    def division(self, num_workers: int) -> tuple[int, dict[str, int]]:
        """The result of `share_out` for a rank's `num_workers` workers."""
        if num_workers not in self._divisions:  # each source asks, several times
            limit, batch = self.limit, self.batch_bytes
            if limit is None:
                wanted = sum(request.wanted_limit for request in self.requests.values())
                limit = usual_limit(wanted + (PREFETCH + CONSUMER) * batch, num_workers)
            self._divisions[num_workers] = share_out(limit, batch, self.requests, self.weights)
        return self._divisions[num_workers]


@dataclass(eq=False)
class SourceLimits:
    """Memory limits of a mix's sources. These exist before the `memory` of the mix. Picklable."""

    memory: MixMemory | None = None

    def of(self, name: str, num_workers: int) -> int:
        """The memory limit of a source in each worker, for this number of workers, in bytes."""
        assert self.memory is not None, "set by the mix"
        return self.memory.division(num_workers)[1][name]


def most_bytes(order: ViewOrder, num_shards: int) -> int:
    """The greatest memory of any epoch for a source with `num_shards` shards, in bytes."""
    division = order.plan_memory(num_shards).division
    return division.nbytes(division.memory)
