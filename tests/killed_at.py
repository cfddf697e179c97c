"""Processes that are killed just before any one of their changes of the disk."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

__all__ = ["die_at_step", "killed_at"]


def killed_at(step: int, action: Callable[[], object]) -> bool:
    """Do it in a forked process, killed before its `step`-th change, from 0; whether it was.

    It must not raise.
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
    """In this process: SIGKILL before the `number`-th call of one of the functions below."""
    left = number

    def counted(function: object) -> object:
        def call(*args: object, **options: object) -> object:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return function(*args, **options)  # type: ignore[operator]

        return call

    for owner, names in (
        (os, ("write", "fsync", "ftruncate", "open", "link")),
        (Path, ("replace", "unlink", "mkdir", "open")),
    ):
        for name in names:
            setattr(owner, name, counted(getattr(owner, name)))
