"""Cancelling requests: the caller gives a condition, and retries check it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from seqrecord.errors import StorageError

__all__ = ["check_wanted", "unwanted_if"]

_is_unwanted: ContextVar[Callable[[], bool]] = ContextVar("is_unwanted", default=lambda: False)


@contextmanager
def unwanted_if(condition: Callable[[], bool]) -> Iterator[None]:
    """In this context, requests to a storage are cancelled once `condition()` is true.

    A cancelled request raises `StorageError` soon, instead of being repeated until its deadline.
    Requests of other users of the storage continue. Any thread may call the condition, and often.
    """
    outer = _is_unwanted.get()
    token = _is_unwanted.set(lambda: condition() or outer())
    try:
        yield
    finally:
        _is_unwanted.reset(token)


def check_wanted(file: str) -> None:
    """Raise `StorageError` if nobody waits for what this thread reads or writes."""
    if _is_unwanted.get()():
        raise StorageError("given up, since nobody waits for it any more", file=file)
