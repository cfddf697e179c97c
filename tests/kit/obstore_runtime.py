"""States of obstore in a process: in use, or lost by a fork."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seqrecord.storage.clients import RUNTIME

__all__ = ["obstore_is"]


@contextmanager
def obstore_is(*, used: bool = False, lost: bool = False) -> Iterator[None]:
    """`used`: all reads use it, even of small files; `lost`: no read can, as after a fork."""
    before = RUNTIME.used, RUNTIME.lost
    RUNTIME.used, RUNTIME.lost = used, lost
    try:
        yield
    finally:
        RUNTIME.used, RUNTIME.lost = before
