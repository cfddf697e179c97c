"""Temporaries that a thread keeps between frames: fresh memory costs more than what is done in it.

Since each thread keeps its own for as long as it lives, they are bounded.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_SCRATCH_BYTES", "scratch"]

MAX_SCRATCH_BYTES = 4 << 20
"""The most that `scratch` gives out for one purpose."""

_local = threading.local()


def scratch(purpose: str, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """This thread's temporary [count] for one purpose; it holds anything at all.

    At most `MAX_SCRATCH_BYTES`. The next call for the same purpose gives the same memory.
    """
    nbytes = count * dtype.itemsize
    if nbytes > MAX_SCRATCH_BYTES:
        raise ValueError(f"a temporary of {nbytes} bytes, at most {MAX_SCRATCH_BYTES} are kept")
    buffer: npt.NDArray[np.uint8] | None = getattr(_local, purpose, None)
    if buffer is None or buffer.size < nbytes:
        buffer = np.empty(nbytes, np.uint8)
        setattr(_local, purpose, buffer)
    return buffer[:nbytes].view(dtype)
