"""Windows: which frames a clip uses of each group of features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqrecord.clips import ClipSpec, IntArray

__all__ = ["Window"]


@dataclass(frozen=True)
class Window:
    """What clips use of a group, counted from their starts.

    A clip that starts at frame `s` uses `length` of the frames `s + offset`, `s + offset +
    frame_step`, …, which span `span` frames from the first to the last. What lies before an
    episode's first frame or behind its last one counts as that frame; where windows of clips can,
    `frame_step` is 1. From the frame that counts, clips may look back by `reach` frames, which
    `offset` and `span` have in them already. `length` is 0 where clips do not use evenly spaced
    frames, the same of all features.
    """

    offset: int
    span: int
    frame_step: int
    length: int
    reach: int = 0

    @classmethod
    def of(cls, spec: ClipSpec) -> Window:
        """That of whole clips."""
        return cls(0, spec.span, spec.frame_step, spec.length)

    @classmethod
    def around(
        cls, offsets: Sequence[IntArray], stride: int, *, pad: bool, reach: int = 0
    ) -> Window:
        """That of features with these offsets from a clip's start, int64[T] each.

        Clips start `stride` frames apart. With `pad` they may use frames beyond an episode's ends,
        or any frames between the first and the last; only then they may look back by `reach`.
        """
        every = np.unique(np.concatenate(offsets))
        first, last = int(every[0]) - reach, int(every[-1])
        if pad:
            return cls(first, last - first + 1, 1, 0, reach)
        step = int(np.gcd.reduce(every - first, initial=stride))
        even = np.arange(len(offsets[0])) * (every[1] - every[0] if len(every) > 1 else 1) + first
        same = all(np.array_equal(one, even) for one in offsets)
        return cls(first, last - first + 1, step, len(even) if same else 0)

    def begin(self, start: IntArray, last: IntArray) -> IntArray:
        """The first frame that each clip uses, int64[n], by its start and its episode's last."""
        if not self.offset and not self.reach:
            return start
        found: IntArray = np.clip(start + (self.offset + self.reach), 0, last)
        return np.maximum(found - self.reach, 0) if self.reach else found

    @property
    def is_dense(self) -> bool:
        """Whether a clip uses all frames that are loaded for it alone."""
        return (self.span - 1) // self.frame_step + 1 == self.length
