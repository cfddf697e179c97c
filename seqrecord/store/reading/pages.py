"""Positions of chunks and their pages in record files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.store.format.pages import aligned
from seqrecord.store.processes.forks import cached_property


@dataclass(frozen=True)
class Chunk:
    """Position of a chunk, with the frames `[first_frame, first_frame + num_frames)` of an episode.

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
        """End of its frames, exclusive."""
        return self.first_frame + self.num_frames


@dataclass(frozen=True, eq=False)
class Page:
    """A page's position in its record file.

    `present`, bool [frames of the chunk], is true for frames with the feature; `None` if all have
    it. `sums` is the offset of its slice checksums, `None` unless raw. `external` is the number
    of referenced bytes in an external file, else 0. `memo` caches values computed from its bytes.
    """

    feature: str
    chunk: Chunk
    start: int
    stop: int
    crc32c: int
    digest: bytes
    present: npt.NDArray[np.bool_] | None
    max_nbytes: int | None  # decoded size of its largest frame; `None` for a fixed shape
    sums: int | None
    external: int = 0
    memo: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def nbytes(self) -> int:
        """Number of bytes read for the page."""
        return self.stop - self.start + self.external

    @property
    def buffer_bytes(self) -> int:
        """Memory in bytes while the page is read, including referenced bytes."""
        return aligned(self.stop - self.start) + self.external_buffer_bytes

    @property
    def external_buffer_bytes(self) -> int:
        """Memory in bytes for referenced bytes, with an offset table of the frames."""
        return self.external + 4 * (self.num_present + 1) if self.external else 0

    @property
    def num_present(self) -> int:
        return self.chunk.num_frames if self.present is None else int(self._ranks[-1])

    def has(self, frame: int) -> bool:
        """Return whether frame `frame` of the chunk has the feature."""
        return self.present is None or bool(self.present[frame])

    def positions(self, frames: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Convert frames of the chunk to positions in the page: int64 [...].

        All frames must have the feature.
        """
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
