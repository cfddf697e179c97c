"""What a forked process must not take over: locks that other threads held, clients, failed hooks.

A lock that a fork copies while another thread holds it is never released in the child.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from seqrecord.errors import SeqRecordError

__all__ = ["PerProcess", "at_fork", "cached_property", "check_fork"]

_T = TypeVar("_T")


class PerProcess(Generic[_T]):
    """One value of `make()` for each process, made when it is first asked for there.

    For locks, and for clients of a cloud, of which none survives a fork. There is no lock here
    either: if two threads come first together, both make one and both get the same. What a parent
    has made is kept, unused, since its end could reach for what the child does not have. A pickle
    has `make` alone.
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


if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801 - as it is called there
        """As it is from Python 3.12 on: without a lock, which all instances of a class share."""

        def __get__(self, instance: object, owner: type | None = None) -> Any:
            if instance is None:
                return self
            found = instance.__dict__
            if self.attrname not in found:
                found[self.attrname] = self.func(instance)
            return found[self.attrname]


_before: list[BaseException] = []  # what hooks have raised before a fork that is under way
_own: list[BaseException] = []  # … before the fork that has made this process, and after it


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """As `os.register_at_fork`, which tells nobody but stderr what a hook raises.

    What those for the child raise is known there: see `check_fork`.
    """
    given = {
        "before": None if before is None else _noting(before, _before),
        "after_in_parent": after_in_parent,
        "after_in_child": None if after_in_child is None else _noting(after_in_child, _own),
    }
    os.register_at_fork(**{when: hook for when, hook in given.items() if hook is not None})


def check_fork() -> None:
    """Raise `SeqRecordError` in a process that was forked, if a hook has failed for it."""
    if _own:
        raise SeqRecordError(
            "this process was forked, and what the package has to do for that has failed",
            expected="a worker process that is not forked (multiprocessing_context='spawn'), or "
            "what the error lacked",
            got=repr(_own[0]),
        ) from _own[0]


def _noting(hook: Callable[[], object], errors: list[BaseException]) -> Callable[[], None]:
    def call() -> None:
        try:
            hook()
        except BaseException as error:
            errors.append(error)
            raise

    return call


def _begin_child() -> None:
    _own.extend(_before)
    _before.clear()


os.register_at_fork(after_in_parent=_before.clear, after_in_child=_begin_child)
