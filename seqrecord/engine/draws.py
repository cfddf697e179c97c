"""What is drawn for clips: windows of their frames, and the seeds of functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from seqrecord.clips import IntArray
from seqrecord.engine.calls import Calls
from seqrecord.engine.crops import Crop

__all__ = ["DrawClips", "Drawn"]


@dataclass(frozen=True, eq=False)
class Drawn:
    """Of some clips: the windows, if there are crops, and the calls, if there are functions."""

    crop: Crop | None = None
    calls: Calls | None = None


DrawClips: TypeAlias = Callable[[IntArray, IntArray], Drawn]
"""What is drawn for clips by the rows of their episodes and their first frames, int64[n] each."""
