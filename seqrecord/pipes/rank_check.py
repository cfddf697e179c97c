"""check_ranks: compare the position and order of a loader between ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from seqrecord.errors import ClipError, SeqRecordError, StateError
from seqrecord.pipes.loaders import EpochStream
from seqrecord.text import repr_of


def check_ranks(loader: object, group: Any = None) -> None:
    """Raise `StateError` on all ranks if a loader's epoch, batch, order or dataset differs between
    them.

    All ranks of `torch.distributed` call it, for example before each epoch. Without a process group
    it does nothing in a single process.

    Example:
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2)
        seqrecord.check_ranks(pipe)

    Args:
        loader: a pipe, dataset, node or mix of this package, or a DataLoader around an
            `IterableDataset` of it.
        group: a process group of `torch.distributed`; default: all ranks.

    Raises `ClipError` for another object, and with several ranks without a process group.
    """
    found = loader.dataset if isinstance(loader, DataLoader) else loader
    if not isinstance(found, EpochStream):
        raise ClipError(
            "check_ranks compares loaders of this package",
            expected="a SeqRecordPipe, SeqRecordIterableDataset, SeqRecordNode or SeqRecordMix",
            got=type(found).__name__,
        )
    if not (dist.is_available() and dist.is_initialized()) and found.num_ranks > 1:
        raise ClipError(
            "check_ranks compares ranks through torch.distributed",
            expected="torch.distributed.init_process_group(…) before",
            got=f"{found.num_ranks} ranks without a process group",
        )
    compare_ranks(found.shared_position, group)


def compare_ranks(position: Callable[[], Mapping[str, Any]], group: Any = None) -> None:
    """Raise `StateError` on all ranks if their positions, as JSON, differ. See `check_ranks`."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    try:
        own = dict(position())
    except SeqRecordError as error:  # on all ranks, so that none waits for this one
        own = {"error": str(error)}
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, own, group)
    for rank, other in enumerate(gathered):
        if differ := list(_differences(gathered[0], other)):
            raise StateError(
                f"ranks 0 and {rank} differ in {', '.join(name for name, *_ in differ)}: give all "
                "ranks the same arguments, set_epoch and state",
                expected=", ".join(f"{name}={repr_of(one)}" for name, one, _ in differ),
                got=", ".join(f"{name}={repr_of(one)}" for name, _, one in differ),
            )
    if "error" in own:
        raise StateError(f"no rank has a position to compare: {own['error']}")


def _differences(one: Any, other: Any, name: str = "state") -> Iterator[tuple[str, Any, Any]]:
    """Name and both values of each difference."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from _differences(one.get(key), other.get(key), key)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for pair in zip(one, other, strict=True):
            yield from _differences(*pair, name)
    elif one != other:
        yield name, one, other
