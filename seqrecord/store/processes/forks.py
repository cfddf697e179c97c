"""Fork safety: values per process, and hooks whose failures the child process reports.

A lock that another thread has acquired during a fork is never released in the child.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from seqrecord.errors import SeqRecordError

__all__ = ["PerProcess", "at_fork", "cached_property", "check_fork"]

_T = TypeVar("_T")


class PerProcess(Generic[_T]):
    """One value of `make()` per process, created at first use.

    For locks, and for cloud clients, which do not survive a fork. Uses no lock: two threads may
    both call `make` at first use, but both get the same value. The parent's value remains
    referenced, since its destructor could use resources that the child lacks. Pickles contain
    `make` only.
    """

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._values: dict[int, _T] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return PerProcess, (self._make,)

    def get(self) -> _T:
        pid = os.getpid()
        value = self._values.get(pid)
        # Atomic, and no lock: one that another thread holds during a fork is never released in the
        # child (tests/store/test_forked_locks.py::test_a_child_waits_for_no_lock_of_its_parent).
        return self._values.setdefault(pid, self._make()) if value is None else value

    def take(self) -> _T | None:
        """Remove and return this process's value, if any; the next `get` makes a new one."""
        return self._values.pop(os.getpid(), None)


if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:

    class cached_property(functools.cached_property):  # noqa: N801 - name of the standard library
        """The version of Python 3.12, without the lock that all instances of a class share."""

        def __init__(self, func: Callable[[Any], Any]) -> None:
            super().__init__(func)
            self.lock = contextlib.nullcontext()


_parent_errors: list[BaseException] = []  # errors of hooks before a fork in progress
_own_errors: list[BaseException] = []  # errors of hooks before and after the fork of this process


def at_fork(
    *,
    before: Callable[[], object] | None = None,
    after_in_parent: Callable[[], object] | None = None,
    after_in_child: Callable[[], object] | None = None,
) -> None:
    """`os.register_at_fork`, but errors of hooks are recorded, not only printed to stderr.

    `check_fork` raises in the child if a `before` or `after_in_child` hook failed.
    """
    hooks = {
        "before": None if before is None else _note_errors(before, _parent_errors),
        "after_in_parent": after_in_parent,
        "after_in_child": None
        if after_in_child is None
        else _note_errors(after_in_child, _own_errors),
    }
    os.register_at_fork(**{when: hook for when, hook in hooks.items() if hook is not None})


def check_fork() -> None:
    """Raise `SeqRecordError` in a forked process if a fork hook of it failed."""
    if _own_errors:
        raise SeqRecordError(
            "a hook of this package failed when this process was forked",
            expected="a worker process that is not forked (multiprocessing_context='spawn'), or "
            "no error of the hook",
            got=repr(_own_errors[0]),
        ) from _own_errors[0]


def _note_errors(hook: Callable[[], object], errors: list[BaseException]) -> Callable[[], None]:
    def call() -> None:
        try:
            hook()
        except BaseException as error:
            errors.append(error)
            raise

    return call


def _begin_child() -> None:
    _own_errors.extend(_parent_errors)
    _parent_errors.clear()


os.register_at_fork(after_in_parent=_parent_errors.clear, after_in_child=_begin_child)
