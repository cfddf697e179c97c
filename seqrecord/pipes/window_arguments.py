"""The argument `windows`: offsets in frames, seconds, or the newest values, by feature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, TypeAlias

from seqrecord.clips.tables import MAX_LENGTH, MAX_SETTING
from seqrecord.clips.windows import Latest, Seconds
from seqrecord.errors import ClipError
from seqrecord.pipes.checks import are_names, check
from seqrecord.text import repr_of
from seqrecord.units import check_integer

Windows: TypeAlias = Mapping[str, Iterable[int] | Seconds | Latest]


def check_windows(windows: Any) -> dict[str, tuple[int, ...] | Seconds | Latest]:
    """The windows with their offsets as integers.

    Raises `ClipError` for what is no dict, an empty window, and offsets that are not integers.
    """
    is_right = isinstance(windows, Mapping) and bool(windows) and are_names(windows)
    check("windows", windows, is_right, 'a dict such as {"image": [-1, 0], "action": range(16)}')
    return {name: _checked(name, window) for name, window in windows.items()}


def _checked(name: str, window: Any) -> tuple[int, ...] | Seconds | Latest:
    if not isinstance(window, Latest):
        return _frames_of(name, window)
    of = window.window
    return window if of is None else replace(window, window=_frames_of(name, of))


def _frames_of(name: str, window: Any) -> tuple[int, ...] | Seconds:
    if isinstance(window, Seconds):
        return window
    is_long = isinstance(window, range) and bool(window[MAX_LENGTH:])  # none of it is looked at
    try:
        if isinstance(window, (str, bytes, Mapping)):
            raise TypeError
        some = () if is_long else islice(window, MAX_LENGTH + 1)
        offsets = tuple(check_integer(name, one) for one in some)
    except (TypeError, ClipError):
        raise ClipError(
            "a window is not valid",
            feature=name,
            expected="offsets in frames, integers such as [-1, 0] or range(16); Seconds; or Latest",
            got=repr_of(window, 100),
        ) from None
    most = max(map(abs, offsets), default=0)
    if not 0 < len(offsets) <= MAX_LENGTH or most >= MAX_SETTING:
        raise ClipError(
            "a window is empty, or too long",
            feature=name,
            expected=f"1 to {MAX_LENGTH} offsets, each within {MAX_SETTING - 1} frames",
            got=repr_of(window, 100)
            if is_long
            else f"{len(offsets)} offsets, the furthest {repr_of(most)} frames away",
        )
    return offsets
