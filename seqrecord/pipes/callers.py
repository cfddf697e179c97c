"""Who is asking: a pipe knows those that it pulls from, not those that pull from it."""

from __future__ import annotations

import sys
from typing import TypeVar

__all__ = ["find_caller"]

_T = TypeVar("_T")


def find_caller(kind: type[_T]) -> _T | None:
    """The nearest object of a type, one of whose methods is running up the stack.

    torch offers no other sign of who has asked for an iterator or a length.
    """
    frame = sys._getframe()
    while (back := frame.f_back) is not None:
        frame = back
        if "self" in frame.f_code.co_varnames[: frame.f_code.co_argcount] and isinstance(
            owner := frame.f_locals.get("self"), kind
        ):
            return owner
    return None
