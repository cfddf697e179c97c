"""Rounds: what an engine does in each round of a plan, as columns of integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.grids import ChunkGrid, numbered
from seqrecord.sampling.needs import Blocks

__all__ = ["Clips", "Frees", "GroupRound", "Loads", "Round", "frees_of", "loads_of"]

_Rows = TypeVar("_Rows", bound="_Columns")


@dataclass(frozen=True, eq=False)
class _Columns:
    """Columns of equal length, int64 each; a row is one thing to do, for one cursor."""

    cursor: IntArray

    def __len__(self) -> int:
        return len(self.cursor)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)})"

    def rows(self: _Rows, start: int, stop: int) -> _Rows:
        """Rows `[start, stop)`, without a copy."""
        return type(self)(*(column[start:stop] for column in vars(self).values()))


@dataclass(frozen=True, eq=False, repr=False)
class Loads(_Columns):
    """Chunks to read, and which of their frames to decode, roughly in the order of their use.

    Row `i` brings `count[i]` frames, `first[i]`, `first[i] + frame_step`, … of `episode[i]`, all of
    row `chunk[i]` of the group's chunk table, to cursor `cursor[i]`, for run `run[i]`. A cursor may
    hold frames of several runs, even the same frames for two of them; runs are numbered over all
    cursors, and are the same in all groups. A frame that lacks a requested feature is used by no
    clip: it keeps its place but nothing need be decoded for it.
    """

    run: IntArray
    episode: IntArray
    chunk: IntArray
    first: IntArray
    count: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Clips(_Columns):
    """Clips in the order in which they are emitted.

    Clip `i` consists of the frames of each group's window at `start[i]` which cursor `cursor[i]`
    holds for run `run[i]`, and is place `slot[i]` of batch `batch[i]` of the epoch. With
    `batch_size=None` every clip counts as a batch of its own.
    """

    run: IntArray
    episode: IntArray
    start: IntArray
    batch: IntArray
    slot: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Frees(_Columns):
    """Frames that no later clip of the run needs, `first`, `first + frame_step`, …

    They come in the order in which the cursor has loaded them.
    """

    run: IntArray
    first: IntArray
    count: IntArray


@dataclass(frozen=True, eq=False)
class GroupRound:
    """What a round does with one group: do `loads`, and when its clips are emitted, `frees`."""

    loads: Loads
    frees: Frees


@dataclass(frozen=True, eq=False)
class Round:
    """One round, in this order: do all groups' loads, emit `clips`, then do their frees.

    `groups` may be empty where nothing is to be loaded.
    """

    index: int
    clips: Clips
    groups: tuple[GroupRound, ...]


def loads_of(
    blocks: Blocks, start: IntArray, stop: IntArray, grid: ChunkGrid, step: int, phase: int
) -> tuple[IntArray, Loads]:
    """The round, int64[n], and the load of each chunk that has wanted frames in `[start, stop)`.

    `start` and `stop` are int64[rows of blocks]. Wanted are frames `phase`, `phase + step`, ….
    """
    some = stop > start
    first_place = grid.place(blocks.episode, start)
    last_place = grid.place(blocks.episode, np.maximum(stop - 1, start))
    row, inside = numbered(np.where(some, last_place - first_place + 1, 0))
    place, episode = first_place[row] + inside, blocks.episode[row]
    begin, end = grid.bounds(episode, place)
    first = np.maximum(start[row], begin)
    first += (phase - first) % step
    count = -(-(np.minimum(stop[row], end) - first) // step)
    some = count > 0
    row, episode = row[some], episode[some]
    return blocks.round[row], Loads(
        blocks.cursor[row],
        blocks.run[row],
        episode,
        grid.row(episode, place[some]),
        first[some],
        count[some],
    )


def frees_of(blocks: Blocks, frame_step: int) -> tuple[IntArray, Frees]:
    """The round, int64[n], and what is freed in it, of each row that frees something."""
    some = blocks.kept > blocks.held
    first = blocks.held[some]
    count = -(-(blocks.kept[some] - first) // frame_step)
    return blocks.round[some], Frees(blocks.cursor[some], blocks.run[some], first, count)
