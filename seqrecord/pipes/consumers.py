"""DataLoaders that make batches of batches, or of one clip each: that is said once."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterDataPipe, default_collate, get_worker_info

from seqrecord.pipes.callers import find_iterating
from seqrecord.pipes.distributed import say_once

__all__ = ["is_given", "look_at_consumer"]


def is_given(epochs: Any) -> bool:
    """Whether it is with these `Epochs`, or a chain of pipes behind them, that a DataLoader makes
    an iterator."""
    loader = find_iterating()
    to_see: list[Any] = [] if loader is None else [loader.dataset]
    seen = set[int]()
    while to_see:
        data = to_see.pop()
        if getattr(data, "_epochs", None) is epochs:
            return True
        if isinstance(data, IterDataPipe) and id(data) not in seen:
            seen.add(id(data))
            for value in vars(data).values():
                to_see += value if isinstance(value, (list, tuple)) else [value]
    return False


def look_at_consumer(epochs: Any) -> None:
    """Tell of a DataLoader whose tensors have an axis that nobody wants, from these `Epochs`.

    From where the DataLoader is, not from its workers.
    """
    loader = None if get_worker_info() is not None else find_iterating()
    if loader is None:
        return
    # A DataLoader wraps DataPipes once. One that follows the pipe in a chain may undo batches.
    around = (loader.dataset, *vars(loader.dataset).values())
    if any(getattr(data, "_epochs", None) is epochs for data in around):
        size, clip_len = epochs.loader.batch_size, epochs.loader.selection.longest_window
        _tell_of_collating(loader, batch_size=size, clip_len=clip_len)


def _tell_of_collating(loader: DataLoader[Any], *, batch_size: int | None, clip_len: int) -> None:
    """`DataLoader(pipe)` collates what it is given, for its own `batch_size` is 1."""
    if loader.batch_size is None or loader.collate_fn is not default_collate:
        return
    if batch_size is not None:
        say_once(
            "a DataLoader collates what it is given, which are batches, so tensors have the shape "
            f"[{loader.batch_size}, {batch_size}, {clip_len}, …]: give it batch_size=None"
        )
    elif loader.batch_size == 1:
        say_once(
            "a DataLoader collates single clips one by one, so tensors have the shape "
            f"[1, {clip_len}, …]: give it batch_size=None, and batch_size= to the pipe"
        )
