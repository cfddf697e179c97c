"""Forks of a process that uses caches: a child starts with all of them closed.

No connection of SQLite, and no lock of a file, may be carried into a child. So a fork waits until
no thread uses one. It does not wait for ever: what is in use even then, on a disk that hangs, is
left to the parent, and the child makes its own.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any, Protocol

__all__ = ["join"]

_PATIENCE_SECONDS = 5.0


class _Forked(Protocol):
    """What is closed for a fork."""

    def hold(self, patience: float) -> bool: ...

    def release(self) -> None: ...

    def abandon(self) -> Any: ...


_all: weakref.WeakSet[_Forked] = weakref.WeakSet()
_registering = threading.Lock()
_held: list[_Forked] = []
_in_use: list[_Forked] = []
_kept: list[Any] = []  # of a parent: closing it in a child would touch what the parent uses


def join(one: _Forked) -> None:
    """Close this one for every fork, for as long as it lives."""
    with _registering:
        _all.add(one)


def _before() -> None:
    _registering.acquire()
    end = time.monotonic() + _PATIENCE_SECONDS
    for one in list(_all):
        is_held = one.hold(max(0.0, end - time.monotonic()))
        (_held if is_held else _in_use).append(one)


def _in_parent() -> None:
    _end()


def _in_child() -> None:
    _kept.extend(one.abandon() for one in _in_use)
    _end()


def _end() -> None:
    for one in _held:
        one.release()
    _held.clear()
    _in_use.clear()
    _registering.release()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
