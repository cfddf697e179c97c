"""Work that nobody waits for any more: who starts it says when that is, who repeats it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from seqrecord.errors import StorageError

__all__ = ["check_wanted", "unwanted_if"]

_is_unwanted: ContextVar[Callable[[], bool]] = ContextVar("is_unwanted", default=lambda: False)


@contextmanager
def unwanted_if(condition: Callable[[], bool]) -> Iterator[None]:
    """In this context, what is asked of a storage is of no use once `condition()`.

    Then it fails soon with `StorageError`, instead of being tried again until its deadline. Other
    users of the storage notice nothing. The condition is asked by any thread, and often.
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
