"""Settings that enumerate clips: for loaders, and for counts in summaries."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from seqrecord.errors import ClipError
from seqrecord.store.text import repr_of
from seqrecord.store.units import is_integer

MAX_SETTING = 1 << 31  # exclusive limit of settings: their products fit into int64
MAX_LENGTH = 1 << 20  # frames per clip or window; windows are stored as lists


@dataclass(frozen=True)
class ClipSpec:
    """Clip settings: `length` frames, `dilation` frames apart.

    Clips start at frames `phase`, `phase + stride`, `phase + 2 * stride`, … of the episode.

    Raises `ClipError` unless `length` is in [1, 2^20], `stride` and `dilation` are in
    [1, 2^31 - 1], and `phase` is in [0, stride).

    Example:
        clips = seqrecord.ClipSpec(length=16, stride=4, dilation=2)
        print(clips.span)  # 31 frames of the episode
    """

    length: int
    stride: int = 1
    dilation: int = 1
    phase: int = 0

    def __post_init__(self) -> None:
        for name, minimum, limit in (
            ("length", 1, MAX_LENGTH + 1),
            ("stride", 1, MAX_SETTING),
            ("dilation", 1, MAX_SETTING),
            ("phase", 0, self.stride),
        ):
            value = getattr(self, name)
            if not is_integer(value):
                raise ClipError(f"{name} of a clip is not an integer", got=repr_of(value, 50))
            if not minimum <= value < limit:
                raise ClipError(
                    f"{name} of a clip is out of range",
                    expected=f"{minimum} to {limit - 1}",
                    got=int(value),
                )
            object.__setattr__(self, name, int(value))

    @property
    def span(self) -> int:
        """Number of frames from the first to the last frame of a clip, inclusive."""
        return (self.length - 1) * self.dilation + 1

    @property
    def frame_step(self) -> int:
        """Largest step such that all frames of all clips are `phase` plus a multiple of it."""
        return self.stride if self.length == 1 else gcd(self.stride, self.dilation)
