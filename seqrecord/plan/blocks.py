"""Pieces of the clip sequence, and the blocks in which a cursor walks them. Pure integers.

A cursor advances by one *block*: the clips of one piece whose starts lie in one window of the
episode. Windows are a multiple or a divisor of the chunk, so that they begin where chunks do and
a run that is cut between two windows shares as few chunks as possible with the next::

    chunks of 4     |       |       |       |
    windows of 8    |               |
    block           s s s s s s s s               8 starts, stride 1
    frames          f f f f f f f f f f f         clips of 4: the last start needs 3 frames more
    loaded          f f f f f f f f f f f f       whole chunks
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

import numpy as np

from seqrecord.order import IntArray

__all__ = ["Pieces", "cut_pieces", "order_runs", "resident_window", "window_frames"]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Stretches of consecutive clip starts, in the order in which they are walked.

    Piece `i` holds `count[i]` clips of `episode[i]`, at `first_start[i]` and from there every
    `stride` frames. Pieces of one `run` (int64, never falling) follow each other in one episode
    and are walked by one cursor, which keeps what it has loaded from one to the next. `window[i]`
    is the width of the episode's windows in frames. int64[n] each.
    """

    stride: int
    episode: IntArray
    first_start: IntArray
    count: IntArray
    run: IntArray
    window: IntArray
    first_clip: IntArray = field(init=False)  # clips before the piece
    first_block: IntArray = field(init=False)  # blocks before the piece
    num_clips: int = field(init=False)
    num_blocks: int = field(init=False)

    def __post_init__(self) -> None:
        last_start = self.first_start + (self.count - 1) * self.stride
        blocks = np.where(
            self.window < self.stride,
            self.count,
            last_start // self.window - self.first_start // self.window + 1,
        )
        object.__setattr__(self, "num_clips", int(self.count.sum()))
        object.__setattr__(self, "num_blocks", int(blocks.sum()))
        object.__setattr__(self, "first_clip", np.cumsum(self.count) - self.count)
        object.__setattr__(self, "first_block", np.cumsum(blocks) - blocks)

    def __len__(self) -> int:
        return len(self.episode)

    def take(self, chosen: IntArray | slice) -> Pieces:
        """Some of the pieces, or all of them in another order."""
        columns = (self.episode, self.first_start, self.count, self.run, self.window)
        return Pieces(self.stride, *(column[chosen] for column in columns))

    def find_blocks(self, blocks: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Piece of each block, and the block's clips as `[first, stop)` counted in the piece.

        Where the window is narrower than the stride, every clip is a block of its own.
        """
        piece = np.searchsorted(self.first_block, blocks, side="right") - 1
        step = blocks - self.first_block[piece]
        start, count, window = self.first_start[piece], self.count[piece], self.window[piece]
        edge = (start // window + step) * window - start  # where the window begins
        single = window < self.stride
        first = np.where(single, step, np.maximum(-(-edge // self.stride), 0))
        stop = np.where(single, step + 1, np.minimum(-(-(edge + window) // self.stride), count))
        return piece, first, stop

    def snap(self, clips: IntArray, grid: IntArray) -> IntArray:
        """Each clip moved back, within its piece, to the first one at or past a grid line.

        `clips` is int64[n], counted over all pieces; `grid` is int64[pieces], in frames.
        """
        piece = np.searchsorted(self.first_clip, clips, side="right") - 1
        start = self.first_start[piece] + (clips - self.first_clip[piece]) * self.stride
        line = start // grid[piece] * grid[piece]
        step = -(-(line - self.first_start[piece]) // self.stride)
        snapped: IntArray = self.first_clip[piece] + np.maximum(step, 0)
        return snapped


def cut_pieces(pieces: Pieces, cuts: IntArray) -> Pieces:
    """The same clips with a new run, and where needed a new piece, at each of `cuts`.

    `cuts` is int64, ascending, in clips counted over all pieces.
    """
    cuts = cuts[(cuts > 0) & (cuts < pieces.num_clips)]
    bounds = np.union1d(pieces.first_clip, cuts)
    parent = np.searchsorted(pieces.first_clip, bounds, side="right") - 1
    skipped = bounds - pieces.first_clip[parent]
    return Pieces(
        pieces.stride,
        pieces.episode[parent],
        pieces.first_start[parent] + skipped * pieces.stride,
        np.diff(bounds, append=pieces.num_clips),
        pieces.run[parent] + np.searchsorted(cuts, bounds, side="right"),
        pieces.window[parent],
    )


def order_runs(pieces: Pieces, rank: IntArray) -> Pieces:
    """The runs in ascending order of `rank` (int64, by run number), each still front to back."""
    pieces = pieces.take(np.argsort(rank[pieces.run], kind="stable"))
    run = np.cumsum(np.diff(pieces.run, prepend=pieces.run[:1]) != 0)
    return Pieces(
        pieces.stride, pieces.episode, pieces.first_start, pieces.count, run, pieces.window
    )


def window_frames(block_frames: int, chunk_frames: IntArray, *, stride: int, span: int) -> IntArray:
    """Width of each episode's windows: near `block_frames`, nested with its chunks; int64[n].

    The greatest multiple of the chunk that is not above `block_frames`, or the least divisor of
    the chunk that is not below it. Where clips leave unused frames between them a window holds a
    single clip, so that those frames are not loaded.
    """
    if stride > span:
        return np.ones_like(chunk_frames)
    window = block_frames // chunk_frames * chunk_frames
    for chunk in np.unique(chunk_frames[chunk_frames > block_frames]).tolist():
        window[chunk_frames == chunk] = next(
            width for width in range(block_frames, chunk + 1) if chunk % width == 0
        )
    return window


def resident_window(
    window: IntArray,
    chunk_frames: IntArray,
    num_frames: IntArray,
    *,
    stride: int,
    phase: int | None,
    span: int,
    frame_step: int,
) -> tuple[int, int]:
    """The most frames, and the most chunks, that one cursor can hold at once in any episode.

    `window`, `chunk_frames` and `num_frames` are int64[number of episodes]; `phase=None` stands
    for any phase. A cursor holds every `frame_step`-th frame from its block's first start to the
    end of the chunk in which the block's last clip ends; that is greatest at some place where a
    window can lie in a chunk.
    """
    kinds, kind = np.unique(np.stack((window, chunk_frames)), axis=1, return_inverse=True)
    longest = np.zeros(kinds.shape[1], np.int64)
    np.maximum.at(longest, kind.ravel(), num_frames)
    most_frames = most_chunks = 0
    for (width, chunk), length in zip(kinds.T.tolist(), longest.tolist(), strict=True):
        first, last, least_phase = _places(width, chunk, stride, phase)
        chunks = -(-(last + span) // chunk)
        frames = -(-(chunks * chunk - first) // frame_step)
        frames = np.minimum(frames, -(-(length - least_phase) // frame_step))
        chunks = np.minimum(chunks - first // chunk, -(-length // chunk))
        most_frames = max(most_frames, int(frames.max()))
        most_chunks = max(most_chunks, int(chunks.max()))
    return most_frames, most_chunks


def _places(
    window: int, chunk: int, stride: int, phase: int | None
) -> tuple[IntArray, IntArray, IntArray]:
    """First and last start of a block, counted from a chunk's first frame, wherever it can lie.

    And the least phase of which it can lie there; int64[n] each.
    """
    single = window < stride
    grid = gcd(stride, chunk if single else window)
    low = np.arange(grid) if phase is None else np.array([phase % grid])
    edges = np.arange(0, chunk if single else max(window, chunk), grid if single else window)
    high = low if single else low + (window - 1 - low) // grid * grid
    first, last = (np.add.outer(edges, ends).ravel() for ends in (low, high))
    return first, last, np.tile(low if phase is None else phase, len(first) // len(low))
