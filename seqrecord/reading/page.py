"""Where chunks and pages lie."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.forks import cached_property

__all__ = ["Chunk", "Page"]


@dataclass(frozen=True)
class Chunk:
    """Where a chunk lies and whose frames it holds: `[first_frame, first_frame + num_frames)`.

    `row` is its row in the chunk table of its group.
    """

    group: int
    row: int
    episode: int
    first_frame: int
    num_frames: int
    path: str
    offset: int

    @property
    def stop_frame(self) -> int:
        """The frame behind its last one."""
        return self.first_frame + self.num_frames


@dataclass(frozen=True, eq=False)
class Page:
    """A page's place in its record file.

    `present`, bool [frames of the chunk], says which of them have the feature; `None` where all do.
    `sums` is where the checksums of its slices lie; `None` for a page that is not raw. `memo` keeps
    what was computed of its bytes, once they are read.
    """

    feature: str
    chunk: Chunk
    start: int
    stop: int
    crc32c: int
    present: npt.NDArray[np.bool_] | None
    largest: int | None  # bytes of its largest frame, decoded; `None` for a fixed shape
    sums: int | None
    memo: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def num_present(self) -> int:
        return self.chunk.num_frames if self.present is None else int(self._ranks[-1])

    def has(self, frame: int) -> bool:
        """Whether frame `frame` of the chunk has the feature."""
        return self.present is None or bool(self.present[frame])

    def position(self, frame: int) -> int | None:
        """Position in the page of frame `frame` of the chunk, `None` if it lacks the feature."""
        if self.present is None:
            return frame
        return int(self._ranks[frame]) - 1 if self.present[frame] else None

    def positions(self, frames: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Positions in the page of frames of the chunk, all of which have it: int64 [n]."""
        numbers = np.asarray(frames, np.int64)
        if self.present is None:
            return numbers
        assert self.present[numbers].all(), "a frame lacks the feature"
        return self._ranks[numbers] - 1

    @cached_property
    def _ranks(self) -> npt.NDArray[np.int64]:
        assert self.present is not None
        ranks: npt.NDArray[np.int64] = np.cumsum(self.present, dtype=np.int64)
        return ranks
