"""check_ranks: compare the position and order of a loader between ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from seqrecord.errors import ClipError, SeqRecordError, StateError
from seqrecord.loader.pipes.loaders import EpochStream
from seqrecord.loader.pipes.states import check_same


def check_ranks(loader: object, group: Any = None) -> None:
    """Raise `StateError` on all ranks if a loader's epoch, batch, order or dataset differs.

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
    stream = loader.dataset if isinstance(loader, DataLoader) else loader
    if not isinstance(stream, EpochStream):
        raise ClipError(
            "check_ranks compares loaders of this package",
            expected="a SeqRecordPipe, SeqRecordIterableDataset, SeqRecordNode or SeqRecordMix",
            got=type(stream).__name__,
        )
    if not (dist.is_available() and dist.is_initialized()) and stream.num_ranks > 1:
        raise ClipError(
            "check_ranks compares ranks through torch.distributed",
            expected="torch.distributed.init_process_group(…) before",
            got=f"{stream.num_ranks} ranks without a process group",
        )
    compare_ranks(stream.shared_position, group)


def compare_ranks(position: Callable[[], Mapping[str, Any]], group: Any = None) -> None:
    """Raise `StateError` on all ranks if their positions, as JSON, differ. See `check_ranks`."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    try:
        own_position = dict(position())
    except SeqRecordError as error:  # on all ranks, so that none waits for this one
        own_position = {"error": str(error)}
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, own_position, group)
    failed = [
        f"rank {i}: {gathered_position['error']}"
        for i, gathered_position in enumerate(gathered)
        if "error" in gathered_position
    ]
    if failed:
        raise StateError(f"ranks without a position to compare: {'; '.join(failed)}")
    entries, *entries_of_ranks = map(_entries, gathered)
    for rank, entries_of_rank in enumerate(entries_of_ranks, 1):
        problem = f"all ranks need the same arguments, set_epoch and state; 0 and {rank} differ in"
        check_same(problem, entries, entries_of_rank, {**entries, **entries_of_rank})


def _entries(value: Any, name: str = "") -> dict[str, Any]:
    """The entries of JSON by path."""
    if isinstance(value, list):
        parts = {f"{name}[{i}]": item for i, item in enumerate(value)}
    elif isinstance(value, dict):
        parts = {f"{name}.{key}" if name else key: item for key, item in value.items()}
    else:
        return {name: value}
    return {
        path: leaf for part, item in parts.items() for path, leaf in _entries(item, part).items()
    }
