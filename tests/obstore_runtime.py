"""obstore as a process finds it: used already, or lost in a fork."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from seqrecord.storage.clients import RUNTIME

__all__ = ["obstore_is"]


@contextmanager
def obstore_is(*, used: bool = False, lost: bool = False) -> Iterator[None]:
    """`used`: all reading goes through it, of small files too; `lost`: none, as in a fork."""
    before = RUNTIME.used, RUNTIME.lost
    RUNTIME.used, RUNTIME.lost = used, lost
    try:
        yield
    finally:
        RUNTIME.used, RUNTIME.lost = before
