"""Argument checks shared by several modules; errors have the argument, `expected` and `got`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from seqrecord.errors import ClipError
from seqrecord.text import repr_of


def raise_if(is_wrong: bool, problem: str, expected: object = None, got: object = None) -> None:
    """Raise `ClipError` for arguments that are wrong or conflict."""
    if is_wrong:
        raise ClipError(problem, expected=expected, got=got)


def check(name: str, value: Any, is_right: bool, expected: str) -> Any:
    """Return `value`; raise `ClipError` if it is not right."""
    if not is_right:  # a long list of names takes time to show
        raise ClipError(f"{name} is not valid", expected=expected, got=repr_of(value))
    return value


def check_names(name: str, value: Any) -> Any:
    """Return `None` or a collection of `str`."""
    raise_if(isinstance(value, str), f"{name} is a list of names", [value], value)
    return check(name, value, value is None or are_names(value), "a list of names")


def are_names(value: object) -> bool:
    """Whether a value is a collection of `str`."""
    # An array without dimensions is a Collection too.
    is_list = isinstance(value, Collection) and getattr(value, "ndim", 1) > 0
    return is_list and all(isinstance(name, str) for name in value)  # type: ignore[attr-defined]
