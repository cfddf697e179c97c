"""Pieces of the clip sequence, and how they are cut. Pure integers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from seqrecord.order import IntArray

__all__ = ["Pieces", "cut_pieces", "order_runs", "slice_pieces"]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Stretches of consecutive clip starts, in the order in which they are walked.

    Piece `i` holds `count[i]` clips of `episode[i]`, at `first_start[i]` and from there every
    `stride` frames. Pieces of one `run` (int64, never falling) follow each other in one episode
    and are walked by one cursor, which keeps what it has loaded from one to the next. int64[n]
    each.
    """

    stride: int
    episode: IntArray
    first_start: IntArray
    count: IntArray
    run: IntArray
    first_clip: IntArray = field(init=False)  # clips before the piece
    num_clips: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_clips", int(self.count.sum()))
        object.__setattr__(self, "first_clip", np.cumsum(self.count) - self.count)

    def __len__(self) -> int:
        return len(self.episode)

    @property
    def last_start(self) -> IntArray:
        """Of each piece's last clip; int64[n]."""
        return self.first_start + (self.count - 1) * self.stride

    def take(self, chosen: IntArray | slice) -> Pieces:
        """Some of the pieces, or all of them in another order."""
        columns = (self.episode, self.first_start, self.count, self.run)
        return Pieces(self.stride, *(column[chosen] for column in columns))

    def find(self, clips: IntArray) -> tuple[IntArray, IntArray]:
        """Piece and start, int64[n] each, of clips counted over all pieces."""
        piece = np.searchsorted(self.first_clip, clips, side="right") - 1
        return piece, self.first_start[piece] + (clips - self.first_clip[piece]) * self.stride

    def snap(self, clips: IntArray, grid: IntArray) -> IntArray:
        """Each clip moved back, within its piece, to the first one at or past a grid line.

        `clips` is int64[n], counted over all pieces; `grid` is int64[pieces], in frames.
        """
        piece, start = self.find(clips)
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
    parent, start = pieces.find(bounds)
    return Pieces(
        pieces.stride,
        pieces.episode[parent],
        start,
        np.diff(bounds, append=pieces.num_clips),
        pieces.run[parent] + np.searchsorted(cuts, bounds, side="right"),
    )


def slice_pieces(pieces: Pieces, starts: IntArray, stops: IntArray) -> tuple[Pieces, IntArray]:
    """The clips `[starts[i], stops[i])`, one stretch after the other; and each piece's stretch.

    `starts` and `stops` are int64[n], in clips counted over all pieces; stretches of no clip are
    fine. Runs are numbered anew: each stretch begins one.
    """
    first = np.searchsorted(pieces.first_clip, starts, side="right") - 1
    number = np.searchsorted(pieces.first_clip, stops, side="left") - first
    number = np.where(stops > starts, number, 0)
    stretch = np.repeat(np.arange(len(starts)), number)
    piece = first[stretch] + np.arange(len(stretch)) - (np.cumsum(number) - number)[stretch]
    begin = np.maximum(pieces.first_clip[piece], starts[stretch])
    end = np.minimum(pieces.first_clip[piece] + pieces.count[piece], stops[stretch])
    change = (np.diff(stretch, prepend=-1) != 0) | (np.diff(pieces.run[piece], prepend=-1) != 0)
    return (
        Pieces(
            pieces.stride,
            pieces.episode[piece],
            pieces.first_start[piece] + (begin - pieces.first_clip[piece]) * pieces.stride,
            end - begin,
            np.cumsum(change) - 1,
        ),
        stretch,
    )


def order_runs(pieces: Pieces, rank: IntArray) -> Pieces:
    """The runs in ascending order of `rank` (int64, by run number), each still front to back."""
    pieces = pieces.take(np.argsort(rank[pieces.run], kind="stable"))
    run = np.cumsum(np.diff(pieces.run, prepend=pieces.run[:1]) != 0)
    return Pieces(pieces.stride, pieces.episode, pieces.first_start, pieces.count, run)
