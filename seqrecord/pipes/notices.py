"""What users should know of their training, said once."""

from __future__ import annotations

import logging
import threading

from torch.utils.data import get_worker_info

from seqrecord.errors import ClipError
from seqrecord.pipes.distributed import Ranks

__all__ = ["say_once"]

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
