"""The arguments `windows` and `last_known`: which frames of each feature a clip has."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from seqrecord.clips import MAX_LENGTH, MAX_SETTING, IntArray
from seqrecord.errors import ClipError
from seqrecord.pipes.checks import check, check_names
from seqrecord.seconds import Seconds
from seqrecord.text import repr_of

__all__ = ["CheckedWindows", "Windows", "check_known", "check_windows", "said_of"]

Windows: TypeAlias = Mapping[str, Iterable[int] | Seconds]
"""By feature: offsets in frames from a clip's start, or seconds."""

CheckedWindows: TypeAlias = Mapping[str, tuple[int, ...] | Seconds]
"""The same, as `check_windows` gives them."""


def check_windows(windows: Any) -> CheckedWindows:
    """The windows with their offsets as integers.

    Raises `ClipError` for what is no dict, an empty window, and offsets that are not integers.
    """
    is_right = isinstance(windows, Mapping) and bool(windows)
    check("windows", windows, is_right, 'a dict such as {"image": [-1, 0], "action": range(16)}')
    return {_name(name): _checked(name, window) for name, window in windows.items()}


def check_known(last_known: Any, unknown: Any) -> None:
    """Raise `ClipError` for `last_known` and `unknown` that make no sense."""
    expected = "names of features, or a dict of how many frames old values may be"
    check_names("last_known", last_known, expected)
    most = last_known.values() if isinstance(last_known, Mapping) else ()
    check("last_known", last_known, all(map(_is_age, most)), expected)
    check("unknown", unknown, unknown is None or unknown == "zeros", 'None or "zeros"')
    if unknown is not None and last_known is None:
        raise ClipError("unknown says nothing", expected="last_known", got=repr(unknown))


def said_of(offsets: IntArray) -> str:
    """Offsets as text: `-1,0`, or `0:16` and `0:32:2` where they are evenly spaced."""
    step = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 1
    if len(offsets) < 3 or step < 1 or (np.diff(offsets) != step).any():
        return ",".join(map(str, offsets.tolist()))
    text = f"{offsets[0]}:{offsets[-1] + 1}"
    return text if step == 1 else f"{text}:{step}"


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise ClipError(
            "windows is not by features", expected="their names", got=repr_of(name, 100)
        )
    return name


def _checked(name: str, window: Any) -> tuple[int, ...] | Seconds:
    if isinstance(window, Seconds):
        return window
    try:
        if isinstance(window, (str, bytes, Mapping)):
            raise TypeError
        offsets = tuple(_integer(offset) for offset in islice(window, MAX_LENGTH + 1))
    except TypeError:
        raise ClipError(
            "a window is not what it should be",
            feature=name,
            expected="offsets in frames, integers such as [-1, 0] or range(16); or Seconds",
            got=repr_of(window, 100),
        ) from None
    most = max(map(abs, offsets), default=0)
    if not 0 < len(offsets) <= MAX_LENGTH or most >= MAX_SETTING:
        raise ClipError(
            "a window is empty, or too long",
            feature=name,
            expected=f"1 to {MAX_LENGTH} offsets, each within {MAX_SETTING - 1} frames",
            got=f"{len(offsets)} offsets, the furthest {repr_of(most)} frames away",
        )
    return offsets


def _integer(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)):
        raise TypeError
    return operator.index(value)


def _is_age(value: Any) -> bool:
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and 0 <= value < MAX_SETTING
