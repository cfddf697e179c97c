"""Whether `seqrecord.collate` alone takes the single clips of a loader, and how many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import Batcher, Collator, Mapper, ShardingFilter, Shuffler

from seqrecord.pipes.callers import find_fetching, find_iterating
from seqrecord.pipes.collating import collate

__all__ = ["Collated", "find_collated"]


@dataclass(frozen=True)
class Collated:
    """Nobody but `collate` takes the clips of an iteration."""

    size: int | None = None
    """Clips of a batch, if it is known that these follow each other."""


def find_collated(source: object, chain: Sequence[object]) -> Collated | None:
    """Of an iteration of `source` that begins; `None` where others may see its clips.

    It is one of a DataLoader with a `batch_size`, or of a chain of torch's pipes behind `source`,
    see `find_chain`: `.shuffle()` and `.sharding_filter()`, then `.batch()` and `.collate()`.
    """
    return _of_chain(source, chain) or _of_loader(source)


def _of_chain(source: object, chain: Sequence[object]) -> Collated | None:
    batcher: Batcher | None = None
    follow = True  # the clips of a batch, each other
    for pipe in chain:
        before = getattr(pipe, "source_datapipe", getattr(pipe, "datapipe", None))
        if before is not source or not isinstance(pipe, IterDataPipe):
            return None
        source = pipe
        if batcher is not None:
            plain = type(pipe) in (Collator, Mapper) and pipe.input_col is pipe.output_col is None
            size = batcher.batch_size if follow else None
            return Collated(size) if plain and pipe.fn is collate else None
        if type(pipe) is Batcher:
            batcher = pipe
        elif type(pipe) is Shuffler:
            follow = follow and not pipe._enabled
        elif type(pipe) is ShardingFilter:
            follow = follow and pipe.num_of_instances == 1
        else:
            return None
    return None


def _of_loader(source: object) -> Collated | None:
    fetching = find_fetching()
    if fetching is None:
        return None
    fetcher, size = fetching
    if size is None and (loader := find_iterating()) is not None:
        size = loader.batch_size
    dataset = getattr(fetcher.dataset, "_datapipe", fetcher.dataset)  # a DataLoader wraps a pipe
    if dataset is source and fetcher.auto_collation and fetcher.collate_fn is collate:
        return Collated(size)
    return None
