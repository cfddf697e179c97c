"""Which frames a load brings, and which of them its chunk has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from seqrecord.clip_frames import ClipFrames
from seqrecord.engine.loads import Load
from seqrecord.reading.chunks import Chunk, Page

__all__ = ["LoadFrames", "all_present"]


class LoadFrames:
    """What the clips of a plan have loads bring.

    Args:
        steps: frames between two that a load of a group brings, by the group's number.
        clip_frames: which frames clips have of each feature; by default the same of all.
    """

    def __init__(self, steps: Mapping[int, int], clip_frames: ClipFrames | None) -> None:
        self.steps = steps
        self._clip_frames = clip_frames

    def of(self, load: Load) -> npt.NDArray[np.int64]:
        """The frames that a load brings, counted in the episode; int64[count]."""
        return load.first + np.arange(load.count) * self.steps[load.group]

    def alike(self, pages: Sequence[Page]) -> list[list[Page]]:
        """The pages, together those of features of which clips have the same frames."""
        by_name = {page.feature: page for page in pages}
        if self._clip_frames is None:
            return [list(pages)]
        return [[by_name[name] for name in names] for names in self._clip_frames.alike(by_name)]

    def has_unknown(self, feature: str) -> bool:
        """Whether clips may have frames of a feature for which nothing is known: zeros."""
        known = None if self._clip_frames is None else self._clip_frames.known.get(feature)
        return known is not None and known.has_unknown


def all_present(
    chunk: Chunk, pages: Iterable[Page], frames: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Which frames, counted in the episode, lack no feature of a chunk's pages; bool[frames].

    Frames of other chunks count as lacking nothing.
    """
    present = np.ones(len(frames), bool)
    inside = frames - chunk.first_frame
    held = (inside >= 0) & (inside < chunk.num_frames)
    for page in pages:
        if page.present is not None:
            present[held] &= page.present[inside[held]]
    return present
