"""A value that each process makes for itself, such as a client or a lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["PerProcess"]

_T = TypeVar("_T")


class PerProcess(Generic[_T]):
    """One value of `make()` for each process, made when it is first asked for there.

    A lock that a fork copies while another thread holds it is never released in the child, and no
    client of a cloud survives a fork. There is no lock here either: if two threads come first
    together, both make one and both get the same. What a parent has made is kept, unused, since its
    end could reach for what the child does not have. A pickle has `make` alone.
    """

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._made: dict[int, _T] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)

    def get(self) -> _T:
        pid = os.getpid()
        made = self._made.get(pid)
        return self._made.setdefault(pid, self._make()) if made is None else made

    def take(self) -> _T | None:
        """This process's value if it was made, so that the next `get` makes another."""
        return self._made.pop(os.getpid(), None)
