"""The chunk table of one group of features, and which frames lack one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.forks import cached_property
from seqrecord.format.pages import ALIGNMENT, chunk_bytes
from seqrecord.format.rows import (
    HEADER_BYTES,
    check_gaps,
    check_lengths,
    check_pages,
    check_rows,
    present_frames,
)
from seqrecord.schema import Schema

__all__ = ["BLOCK_PAGES", "GroupIndex"]

BLOCK_PAGES = 1 << 18  # that are checked at a time
_FEATURE_BITS = 16


@dataclass(frozen=True, eq=False)
class GroupIndex:
    """All chunks of one group of features, as arrays; E episodes, C chunks, F features.

    Chunks are in the order of their episodes, front to back; they are of any length, and those of
    an episode cover its frames. Chunk i holds the frames `[first_frame[i], first_frame[i] +
    num_frames[i])` of its episode, at byte `offset[i]` of record file `file[i]` of the manifest. V
    of the features have a variable dimension: of each of their pages, `largest_frame` is the number
    of bytes of its largest frame when it is decoded.
    """

    schema: Schema  # of the group
    features: npt.NDArray[np.int64]  # [F], their places in the dataset's schema
    num_chunks: npt.NDArray[np.int64]  # [E]
    first_frame: npt.NDArray[np.uint32]  # [C]
    num_frames: npt.NDArray[np.uint32]  # [C]
    file: npt.NDArray[np.uint32]  # [C]
    offset: npt.NDArray[np.uint64]  # [C]
    page_length: npt.NDArray[np.uint32]  # [C, F]
    page_crc32c: npt.NDArray[np.uint32]  # [C, F]
    largest_frame: npt.NDArray[np.uint32]  # [C, V]
    gaps: npt.NDArray[Any]  # of GAP_ROW

    @cached_property
    def first_chunk(self) -> npt.NDArray[np.int64]:
        """An episode's first row in this table, [E]."""
        first: npt.NDArray[np.int64] = np.cumsum(self.num_chunks) - self.num_chunks
        return first

    @cached_property
    def chunk_frames(self) -> npt.NDArray[np.int64]:
        """Frames of all chunks of an episode but the last, which has no more; else 0: int64 [E].

        Of an episode of one chunk it is that chunk's.
        """
        cut = self.num_frames[self.first_chunk].astype(np.int64)
        last = self.first_chunk + self.num_chunks - 1
        for begin in range(0, len(self.file), BLOCK_PAGES):
            stop = min(begin + BLOCK_PAGES, len(self.file))
            held = self.num_frames[begin:stop].astype(np.int64)
            episode = self._episodes(begin, stop)
            end = np.zeros(stop - begin, np.bool_)
            end[last[episode[0] : episode[-1]] - begin] = True
            end[-1] = last[episode[-1]] == stop - 1
            other = (held > cut[episode]) | (~end & (held != cut[episode]))
            cut[episode[other]] = 0
        return cut

    def episode_of(self, row: int) -> int:
        """The episode of a chunk."""
        return int(np.searchsorted(self.first_chunk, row, side="right")) - 1

    def rows_of(self, episode: int) -> slice:
        """The rows of an episode's chunks."""
        first = int(self.first_chunk[episode])
        return slice(first, first + int(self.num_chunks[episode]))

    def chunks_of(
        self, episode: int, frames: npt.NDArray[np.integer[Any]]
    ) -> npt.NDArray[np.int64]:
        """Rows of the chunks that hold these frames of an episode, int64 [n]."""
        rows = self.rows_of(episode)
        starts = self.first_frame[rows]
        found: npt.NDArray[np.int64] = rows.start - 1 + np.searchsorted(starts, frames, "right")
        return found

    def present(self, row: int, feature: int) -> npt.NDArray[np.bool_] | None:
        """Which frames of a chunk have a feature, bool [frames]; `None` where all have it.

        `feature` is its place in the dataset's schema.
        """
        key = (row << _FEATURE_BITS) + feature
        start, stop = np.searchsorted(self._gap_order, [key, key + 1])
        if start == stop:
            return None
        return present_frames(self.gaps[start:stop], int(self.num_frames[row]))

    def gaps_of(self, first: int, stop: int) -> npt.NDArray[Any]:
        """The gap rows of the chunks `[first, stop)`."""
        bounds = [first << _FEATURE_BITS, stop << _FEATURE_BITS]
        rows: npt.NDArray[Any] = self.gaps[slice(*np.searchsorted(self._gap_order, bounds))]
        return rows

    @cached_property
    def _gap_order(self) -> npt.NDArray[np.int64]:
        first: npt.NDArray[np.int64] = self.gaps["chunk"].astype(np.int64) << _FEATURE_BITS
        order: npt.NDArray[np.int64] = first + self.gaps["feature"]
        return order

    def _episodes(self, begin: int, stop: int) -> npt.NDArray[np.int64]:
        """The episodes of the chunks `[begin, stop)`, int64 [stop - begin]."""
        episode = self.episode_of(begin)
        last = int(np.searchsorted(self.first_chunk, stop))
        starts = np.zeros(stop - begin, np.int64)
        starts[self.first_chunk[episode + 1 : last] - begin] = 1
        return episode + np.cumsum(starts)

    def check_frames(
        self, num_frames: npt.NDArray[np.int64], release: Callable[[], None], block_pages: int
    ) -> None:
        """The chunks of every episode follow each other and cover it; `num_frames` is int64 [E].

        Block by block: what is computed from a row is several times as large as the row.
        """
        end = 0  # of the chunk before
        for begin in range(0, len(self.file), block_pages):
            stop = min(begin + block_pages, len(self.file))
            held = self.num_frames[begin:stop].astype(np.int64)
            check_lengths(held, 0, first=begin)
            first = self.first_frame[begin:stop].astype(np.int64)
            episode = self._episodes(begin, stop)
            opens = np.diff(episode, prepend=self.episode_of(begin - 1) if begin else -1) > 0
            ends = np.concatenate(([end], first + held))
            message = "a chunk does not follow the one before it"
            check_rows(first == np.where(opens, 0, ends[:-1]), message, 0, first=begin)
            closes = np.append(opens[1:], stop == len(self.file) or self._opens(stop))
            total = num_frames[episode]
            fits = np.where(closes, ends[1:] == total, ends[1:] < total)
            check_rows(fits, "chunks that do not end with their episode", 0, first=begin)
            end = int(ends[-1])
            release()

    def check_gaps(self) -> None:
        check_gaps(self.gaps, self.num_frames, self.features, 0)

    def check_chunks(
        self, file_sizes: npt.NDArray[np.uint64], release: Callable[[], None], block_pages: int
    ) -> None:
        """Every chunk lies inside its record file, and its pages are as its frames allow."""
        step = max(1, block_pages // len(self.schema))
        for first in range(0, len(self.file), step):
            rows = slice(first, first + step)
            self._check_places(rows, file_sizes)
            gaps = self.gaps_of(first, first + step).copy()
            gaps["chunk"] -= np.uint32(first)
            check_pages(
                *(self.page_length[rows], self.largest_frame[rows], self.num_frames[rows], gaps),
                *(self.schema, self.features, 0),
                first=first,
            )
            release()

    def _opens(self, row: int) -> bool:
        """Whether a chunk is an episode's first."""
        return int(self.first_chunk[self.episode_of(row)]) == row

    def _check_places(self, rows: slice, sizes: npt.NDArray[np.uint64]) -> None:
        file, offset, first = self.file[rows], self.offset[rows], rows.start
        check_rows(file < len(sizes), "a chunk in no record file", 0, first=first)
        check_rows(offset % ALIGNMENT == 0, "a chunk at a wrong offset", 0, first=first)
        # Compared as they are stored: an offset beyond 2**63 must not turn negative.
        limit = sizes[file]
        inside = (offset >= HEADER_BYTES) & (offset <= limit)
        check_rows(inside, "a chunk outside its record file", 0, first=first)
        stop = offset + chunk_bytes(self.page_length[rows], self.schema).astype(np.uint64)
        check_rows(stop <= limit, "a chunk outside its record file", 0, first=first)
