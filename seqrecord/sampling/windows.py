"""Windows: which frames a clip uses of each group of features."""

from __future__ import annotations

from dataclasses import dataclass

from seqrecord.clips import ClipSpec

__all__ = ["Window"]


@dataclass(frozen=True)
class Window:
    """What clips use of a group, counted from their starts.

    A clip that starts at frame `s` uses `length` of the frames `s + offset`, `s + offset +
    frame_step`, …, which span `span` frames from the first to the last. What lies before an
    episode's first frame or behind its last one counts as that frame; where windows of clips can,
    `frame_step` is 1.
    """

    offset: int
    span: int
    frame_step: int
    length: int

    @classmethod
    def of(cls, spec: ClipSpec) -> Window:
        """That of whole clips."""
        return cls(0, spec.span, spec.frame_step, spec.length)

    @property
    def is_dense(self) -> bool:
        """Whether a clip uses all frames that are loaded for it alone."""
        return (self.span - 1) // self.frame_step + 1 == self.length
