"""Small single clips that are made where the batches of others will have them, which is known.

Blocks of several batches are built, and a clip of the plan is copied to its place in one of them::

    clips of the plan    0 1 2 3 4 5 6 7 8 9 …
    places               1 4 0 2 7 3 5 9 6 8 …
    blocks               [2 0 3 5 1 6 8 4] [9 7 …

So a batch is a part of a block, without another copy. A block is delivered when all of its clips
are made; later ones have some of theirs by then.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Protocol

import numpy as np

from seqrecord.clips import IntArray
from seqrecord.engine.ahead import LoadedRound
from seqrecord.engine.batches import ThisThread
from seqrecord.engine.draws import Drawn
from seqrecord.engine.host_batches import HostBatchBuilder
from seqrecord.engine.overlapping import OverlappingExecutor

__all__ = ["PlacedExecutor", "Positions"]

_RUN = 16  # clips whose places follow each other are copied by one call, if they are so many
_EARLY = 8  # so many parts of a block are copied before more are waited for


class Positions(Protocol):
    """Where the clips of an iteration will be."""

    def positions(self, numbers: IntArray) -> IntArray:
        """Of the clips of these numbers, which ascend from call to call too; each has its own."""


@dataclass
class _Block:
    """Clips that are being made: their numbers in the iteration, and how many are missing."""

    builder: HostBatchBuilder
    numbers: IntArray
    missing: int


class PlacedExecutor(OverlappingExecutor):
    """Executes a plan of single clips, `together` a block, which go to `places`.

    Features have fixed shapes, and no functions are called with clips.
    """

    def __init__(self, *arguments: Any, places: Positions, together: int) -> None:
        super().__init__(*arguments, together=together)
        self._places = places
        self._number = self._count = 0  # of the next clip, and of all
        self._open: deque[_Block] = deque()
        self._begun = 0  # blocks
        self._done: deque[_Block] = deque()  # and not delivered yet

    def run(self, batch: int) -> None:
        """See `Executor`."""
        self._count = self._plan.num_batches - batch
        try:
            super().run(batch)
        finally:
            self._deliver()

    def _emit(self, loaded: LoadedRound, skip: int) -> None:
        start, count = skip, len(loaded.round.clips)
        while start < count:
            self._workers.fetch(self._rounds.later())
            least = min(count, start + max(1, self._together // _EARLY))
            if loaded.loaded_up_to(start) < least:
                self._deliver()
            stop = min(loaded.loaded_up_to(least), start + self._together)
            self._gather(loaded, start, max(least, stop))
            start = max(least, stop)

    def _gather(self, loaded: LoadedRound, start: int, stop: int) -> None:
        """Copy the clips `[start, stop)` of a round to their places."""
        clips = loaded.round.clips.rows(start, stop)
        sources = loaded.sources(start, stop)
        numbers = np.arange(self._number, self._number + len(clips))
        self._number += len(clips)
        positions = self._places.positions(numbers)
        order = np.argsort(positions)
        blocks, slots = np.divmod(positions[order], self._together)
        for rows in _runs(blocks, slots):
            chosen, at = order[rows], slots[rows]
            block = self._find(int(blocks[rows[0]]))
            found = [replace(source, rows=source.rows[chosen]) for source in sources]
            episode, first = clips.episode[chosen], clips.start[chosen]
            drawn = Drawn() if self._draw is None else self._draw(episode, first)
            found = [replace(source, crop=drawn.crop) for source in found]
            block.builder.names.put(at, episode, first)
            block.numbers[at] = numbers[chosen]
            block.missing -= len(chosen)
            self._deliver()
            begin = perf_counter()
            nbytes = block.builder.gather(at, found, ThisThread())
            self._workers.note_gather(begin, len(chosen), nbytes)
        while self._open and not self._open[0].missing:
            self._done.append(self._open.popleft())

    def _deliver(self) -> None:
        """Deliver the blocks that are made.

        Late, just before the next copy or wait: the consumer, who then computes in Python, would
        otherwise keep this thread from coming as far as that.
        """
        while self._done:
            block = self._done.popleft()
            self._channel.put(replace(block.builder.finish(), numbers=block.numbers))

    def _find(self, number: int) -> _Block:
        """A block, which is begun with those before it."""
        while number >= self._begun:
            begun, self._begun = self._begun, self._begun + 1
            if not self._channel.try_reserve():
                self._deliver()
                self._channel.reserve(begun, beside=bool(self._open))
            size = min(self._together, self._count - begun * self._together)
            builder = self._buffers.begin_batch(size)
            assert isinstance(builder, HostBatchBuilder), "clips go to places on the host"
            self._open.append(_Block(builder, np.empty(size, np.int64), size))
        return self._open[number - self._begun]  # counted from the end


def _runs(blocks: IntArray, slots: IntArray) -> list[IntArray]:
    """Which of these places, in ascending order, are copied to together: long runs of one block,
    and all others of one."""
    edges = np.flatnonzero((np.diff(slots) != 1) | (np.diff(blocks) != 0)) + 1
    bounds = np.concatenate([[0], edges, [len(slots)]])
    length = np.diff(bounds)
    is_long = length >= _RUN
    runs = [np.arange(a, b) for a, b in zip(bounds[:-1][is_long], bounds[1:][is_long], strict=True)]
    rest = np.flatnonzero(~np.repeat(is_long, length))
    if len(rest):
        runs += np.split(rest, np.flatnonzero(np.diff(blocks[rest])) + 1)
    return runs
