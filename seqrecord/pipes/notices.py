"""What users should know of their training, said once."""

from __future__ import annotations

import logging
import threading
from typing import Any

from torch.utils.data import DataLoader, default_collate, get_worker_info

from seqrecord.errors import ClipError
from seqrecord.pipes.distributed import Ranks

__all__ = ["say_once", "tell_of_collating"]

_logger = logging.getLogger("seqrecord")
_lock = threading.Lock()
_said: set[str] = set()


def say_once(notice: str) -> None:
    """Log a warning to `seqrecord`, once in a process, and not from each rank and worker again.

    Every rank and worker comes to say the same. So the first one says it, as far as a process
    knows by now which it is.
    """
    info = get_worker_info()
    try:
        rank = Ranks().current().number
    except ClipError:  # whoever needs to know the rank will raise it
        rank = 0
    with _lock:
        if rank or (info is not None and info.id) or notice in _said:
            return
        _said.add(notice)
    _logger.warning("%s", notice)


def tell_of_collating(loader: DataLoader[Any], *, batch_size: int | None, clip_len: int) -> None:
    """Say that a DataLoader makes batches of batches, or of one clip each, if it does.

    `DataLoader(pipe)` does: its own `batch_size` is 1.
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
