"""Cursors side by side, each walking its lane of blocks: what it holds before and after each.

A lane is an equal share of the blocks, so that all cursors finish in the same round. Round `r` is
the `r`-th block of every lane. A cursor's frames, for a block in the middle of a run::

                 first             loaded_before        loaded
                   |                     |                |
    held before    f f f f f f f f f f f
    loads                                f f f f f f f f f
    clip starts    s s s s s s s s
    frees          f f f f f f f f
    held after                     f f f f f f f f f f f f
                                   |
                                 kept = the next block's first
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np

from seqrecord.order import IntArray
from seqrecord.plan.blocks import Pieces, cut_pieces

__all__ = ["Lanes", "Walk"]

_BLOCKS_AT_ONCE = 1 << 16


@dataclass(frozen=True, eq=False)
class Walk:
    """The blocks of some rounds, by round and then by cursor; int64[n] each.

    A block's clips start at `first` and from there every stride, `count` of them. Its cursor holds
    the frames `[first, loaded_before)` when the round begins, `[first, loaded)` once it has
    loaded, and frees `[first, kept)` at its end.
    """

    round: IntArray
    cursor: IntArray
    episode: IntArray
    first: IntArray
    count: IntArray
    loaded_before: IntArray
    loaded: IntArray
    kept: IntArray

    def __len__(self) -> int:
        return len(self.round)

    def take(self, chosen: IntArray) -> Walk:
        """The same blocks in another order."""
        return Walk(*(getattr(self, column.name)[chosen] for column in fields(self)))


class Lanes:
    """The lanes of at most `num_cursors` cursors over all of `pieces`.

    `chunk_frames` is int64[number of episodes]; `span` is that of a clip.
    """

    def __init__(
        self, pieces: Pieces, num_cursors: int, *, chunk_frames: IntArray, span: int
    ) -> None:
        num_cursors = min(num_cursors, pieces.num_blocks)
        self._bounds = np.arange(num_cursors + 1) * pieces.num_blocks // max(1, num_cursors)
        piece, first, _ = pieces.find_blocks(self._bounds[:-1])
        self._pieces = pieces = cut_pieces(pieces, pieces.first_clip[piece] + first)
        self._chunk = chunk_frames[pieces.episode]
        self._span = span
        # Where each piece's run ends: past the last frame that the run's last clip uses.
        stop = pieces.first_start + (pieces.count - 1) * pieces.stride + span
        self._run_stop = stop[np.searchsorted(pieces.run, pieces.run, side="right") - 1]
        self.num_cursors = num_cursors
        self.num_rounds = int(np.diff(self._bounds).max(initial=0))

    def clips_before_rounds(self) -> IntArray:
        """How many clips come before each round, and before the end; int64[num_rounds + 1]."""
        total = np.zeros(self.num_rounds + 1, np.int64)
        for begin, blocks in self._each_lane():
            _, first, last = self._pieces.find_blocks(blocks)
            total[begin + 1 : begin + 1 + len(blocks)] += last - first
        return np.cumsum(total)

    def share_chunks(self) -> bool:
        """Whether any block needs a chunk that the next block of its run needs too."""
        pieces = self._pieces
        for _, blocks in self._each_lane(beyond=1):
            piece, first, last = pieces.find_blocks(blocks)
            begin, run = pieces.first_start[piece], pieces.run[piece]
            used = begin + (last - 1) * pieces.stride + self._span
            chunk_stop = -(-used // self._chunk[piece]) * self._chunk[piece]
            following = begin + first * pieces.stride
            if np.any((run[1:] == run[:-1]) & (following[1:] < chunk_stop[:-1])):
                return True
        return False

    def _each_lane(self, beyond: int = 0) -> Iterator[tuple[int, IntArray]]:
        """All blocks of one lane after the other, some at a time, with the first one's round.

        And so many blocks `beyond` these, as far as the lane has them.
        """
        for bound, stop in pairwise(self._bounds.tolist()):
            for start in range(bound, stop, _BLOCKS_AT_ONCE):
                yield (
                    start - bound,
                    np.arange(start, min(start + _BLOCKS_AT_ONCE + beyond, stop)),
                )

    def walk(self, start: int, stop: int, num_rounds: int) -> Walk:
        """The blocks of rounds `[start, stop)` when the lanes end after `num_rounds` rounds."""
        # One round more at either side tells what is held before and what is kept after.
        rounds = np.arange(start - 1, stop + 1)[:, None]
        blocks = self._bounds[:-1] + rounds
        exists = (rounds >= 0) & (rounds < num_rounds) & (blocks < self._bounds[1:])
        piece, first, last = self._pieces.find_blocks(np.where(exists, blocks, 0))
        begin, stride = self._pieces.first_start[piece], self._pieces.stride
        first, last, count = begin + first * stride, begin + (last - 1) * stride, last - first

        run = np.where(exists, self._pieces.run[piece], -1)
        goes_on = np.zeros_like(exists)
        goes_on[:-1] = (run[1:] == run[:-1]) & exists[1:]
        following = np.zeros_like(first)
        following[:-1] = first[1:]

        # A chunk is loaded once in a run: as far as the run needs it, or only as far as the one
        # block that uses it does.
        used = last + self._span
        chunk_stop = -(-used // self._chunk[piece]) * self._chunk[piece]
        shared = goes_on & (following < chunk_stop)
        shared[1:] |= goes_on[:-1] & (chunk_stop[:-1] == chunk_stop[1:])
        loaded = np.where(shared, np.minimum(chunk_stop, self._run_stop[piece]), used)
        kept = np.where(goes_on, np.minimum(following, loaded), loaded)
        before = first.copy()
        before[1:] = np.where(goes_on[:-1], np.maximum(loaded[:-1], first[1:]), first[1:])

        row, cursor = np.nonzero(exists[1:-1])
        at = (row + 1, cursor)
        return Walk(
            row + start,
            cursor,
            self._pieces.episode[piece[at]],
            first[at],
            count[at],
            before[at],
            loaded[at],
            kept[at],
        )
