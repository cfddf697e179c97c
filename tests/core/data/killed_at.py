"""Processes killed before a given change of the disk."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["die_at_step", "killed_at", "signal_at"]


def killed_at(step: int, action: Callable[[], object]) -> bool:
    """Call `action` in a forked process, killed before its `step`-th change, counted from 0.

    Returns whether it was killed. `action` must not raise.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            die_at_step(step)
            action()
            code = 0
        os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0


def die_at_step(number: int) -> None:
    """Send SIGKILL to this process before the `number`-th call that changes the disk."""
    signal_at(number, signal.SIGKILL, _CHANGES)


def signal_at(number: int, sign: int, calls: Iterable[tuple[Any, str]]) -> None:
    """Send a signal to this process before the `number`-th call, from 0, of these functions."""
    remaining = number

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal remaining
            if remaining == 0:
                os.kill(os.getpid(), sign)
            remaining -= 1
            return function(*args, **options)

        return call

    for owner, name in calls:
        setattr(owner, name, counted(getattr(owner, name)))


_CHANGES = (
    *((os, name) for name in ("write", "fsync", "ftruncate", "open", "link")),
    *((Path, name) for name in ("replace", "unlink", "mkdir", "open")),
)
