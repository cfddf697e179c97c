"""Who takes batches or clips, and collates them in a way that is slow or wrong: said once."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, default_collate, get_worker_info

from seqrecord.pipes.callers import find_iterating, is_in_default_chain
from seqrecord.pipes.distributed import say_once

__all__ = ["SLOW", "look_at_consumer"]

SLOW = "collates single clips into memory that is fresh each time, which is slow"


def look_at_consumer(epochs: Any) -> None:
    """Tell of who collates batches of these `Epochs`, or their clips in a slow way.

    A DataLoader is told of from where it is, not from its workers.
    """
    loader = epochs.loader
    if loader.batch_size is None and is_in_default_chain():
        say_once(
            f".collate() {SLOW}, here clips of {loader.selection.longest_window} frames: "
            "write .collate(seqrecord.collate)"
        )
    iterating = None if get_worker_info() is not None else find_iterating()
    if iterating is None:
        return
    # A DataLoader wraps DataPipes once. One that follows the pipe in a chain may undo batches.
    around = (iterating.dataset, *vars(iterating.dataset).values())
    if any(getattr(data, "_epochs", None) is epochs for data in around):
        clip_len = loader.selection.longest_window
        _tell_of_collating(iterating, batch_size=loader.batch_size, clip_len=clip_len)


def _tell_of_collating(loader: DataLoader[Any], *, batch_size: int | None, clip_len: int) -> None:
    """Say that a DataLoader makes batches of batches, or of one clip each, if it does.

    `DataLoader(pipe)` does: its own `batch_size` is 1. Also of one that collates single clips with
    torch's function, into fresh memory.
    """
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
    else:
        say_once(
            f"a DataLoader {SLOW}: write DataLoader(…, batch_size={loader.batch_size}, "
            "collate_fn=seqrecord.collate), or give batch_size to the pipe and batch_size=None to "
            "the DataLoader"
        )
