"""Does a plan's loads without reading and decoding, to count what they would ask for.

The store, the loads and what these read are those of an epoch; only the storage leaves buffers as
they are (see `CountingStorage`), and nothing is decoded into rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.clips.tables import IntArray
from seqrecord.engine.arena import Rows
from seqrecord.engine.engine import Execution
from seqrecord.engine.loading import ChunkLoader, Fetched, present_in
from seqrecord.engine.stores import (
    AssignedLoad,
    FrameStore,
    PendingLoad,
    each_load,
    loads_of_round,
)
from seqrecord.engine.workers import chunks_at_once
from seqrecord.reading.chunks import Page
from seqrecord.reading.frames import ArraySpec
from seqrecord.sampling.memory import Memory
from seqrecord.storage.counting import Amount, Asked

_PAGE = 2 << 20  # bytes; NumPy asks Linux for pages of this size for large arrays


@dataclass(frozen=True)
class Walk:
    """What the loads of some rounds ask for, in `total`, and those that the `first` batch needs.

    Of video, `video_frames_decoded` has what lies between a chunk's first frame and those that are
    needed, too: only the page says where a decoder may begin. `clips` are those that the loads are
    for, `frames` those of the leading group that they bring. `memory` is what they use of the
    execution's, and `chunk` the bytes of the largest chunk that is held as it is stored.
    """

    total: Amount
    first: Amount
    clips: int
    frames: int
    memory: Memory
    chunk: int


def walk(execution: Execution, asked: Asked, spans: Sequence[tuple[int, int]]) -> Walk:
    """Do the loads of some rounds `[start, stop)` of a plan. Where frames stay in memory, none is
    loaded twice.

    Of several spans of rounds it is said that they use all rows. The one that begins the plan then
    tells of the first batch only, for it reads ahead, and none before it has; but where frames stay
    it counts, for the others may find all that they need.

    The dataset is one that counts what is asked for.
    """
    plan, num_frames = execution.job.plan, execution.job.clip_frames.num_frames
    resources, leading = execution.resources, plan.groups[plan.leading].group
    arenas = execution.buffers.arenas
    used = {id(arena): np.full(arena.num_rows, len(spans) > 1) for arena in arenas}
    total, first, clips, frames = Amount(), Amount(), 0, 0
    store, stays = execution.store(), bool(resources.rows)
    for start, stop in spans:
        if start and not stays:
            store = execution.store()
        loads = _Loads(execution, asked, store)
        for group, held in zip(plan.groups, plan.resident(start), strict=True):
            loads.do([PendingLoad(0, each) for each in each_load(group.group, held)])
        begin, counts = loads.counts(), start > 0 or len(spans) == 1 or stays
        left = 0 if start else plan.first_clip(min(1, plan.num_batches))
        if left:  # the first batch may take more rounds
            stop = max(stop, plan.locate_clip(left - 1)[0] + 1)
        for current in store.rounds(plan, start, stop):
            waiting = loads_of_round(current, plan.groups, num_frames)
            reached, assigned = loads.do(waiting, left or len(current.clips))
            if 0 < left <= len(current.clips):
                first = reached - begin
            left, clips = max(0, left - len(current.clips)), clips + counts * len(current.clips)
            store.finish(current, assigned)
            for item in assigned:
                used[id(item.target)][item.rows] = True
                frames += item.load.count * (counts and item.load.group == leading)
        loads.loader.close()
        total += (loads.counts() - begin) * counts
    is_local = execution.job.dataset.contents.chunks.is_local
    ahead, loaders = chunks_at_once(resources.memory, resources.num_threads, is_local=is_local)
    memory = replace(
        resources.memory,
        num_rows=tuple(_rows_given(used[id(arena)], arena.specs.values()) for arena in arenas),
        max_loads=loaders,
        max_read_ahead=ahead,
    )
    chunk = execution.buffers.chunks.largest
    return Walk(total, first, clips, frames, memory, chunk)


def _rows_given(used: npt.NDArray[np.bool_], specs: Iterable[ArraySpec]) -> int:
    """The memory that an arena takes, in rows, of which the `used` ones, bool[rows], are written
    to: all pages on which one of these lies."""
    given = of_row = 0
    for spec in specs:
        edges = np.arange(len(used) + 1) * spec.nbytes
        first, last = edges[:-1][used] // _PAGE, (edges[1:][used] - 1) // _PAGE
        size = int(edges[-1]) // _PAGE + 2
        pages = np.cumsum(
            np.bincount(first, minlength=size) - np.bincount(last + 1, minlength=size)
        )
        given += min(int(np.count_nonzero(pages)) * _PAGE, int(edges[-1]))
        of_row += spec.nbytes
    return -(-given // max(1, of_row))


class _Loads:
    """Loads of an execution into a store, and what they have asked for."""

    def __init__(self, execution: Execution, asked: Asked, store: FrameStore) -> None:
        self.loader, self._store = execution.loader(_CountingLoader), store
        self._asked, self._stats = asked, execution.stats

    def counts(self) -> Amount:
        asked, stats = self._asked, self._stats
        nbytes = asked.disk_nbytes if self.loader.is_local else asked.nbytes
        return Amount(asked.requests, nbytes, stats.frames_decoded, stats.video_frames_decoded)

    def do(self, waiting: list[PendingLoad], until: int = 0) -> tuple[Amount, list[AssignedLoad]]:
        """Do loads that have room; what was counted before the first that no clip before `until`
        needs."""
        reached, placed = None, sorted(self._store.place(waiting), key=attrgetter("first_use"))
        for item in placed:
            if reached is None and item.first_use >= until:
                reached = self.counts()
            self.loader([item.load], item.target, item.rows)
        return reached or self.counts(), placed


class _CountingLoader(ChunkLoader):
    """Reads what it would, of a dataset that counts that, and decodes nothing."""

    def _store_run(
        self,
        page: Page,
        data: memoryview,  # noqa: ARG002
        frames: list[int],
        out: Rows,  # noqa: ARG002
        row: int,  # noqa: ARG002
    ) -> None:
        if self._reader.features[page.feature].is_video:
            page.memo.setdefault("video", _CountedVideo()).read(page.positions(frames))

    def _store_transformed(
        self,
        fetched: Fetched,
        frames: IntArray,
        *_: Any,
    ) -> int:
        return int(np.count_nonzero(present_in((fetched, *fetched.others), frames)))


class _CountedVideo:
    """Stands for the reader of a page of video, whose first group of pictures begins the page."""

    def __init__(self) -> None:
        self.num_decoded = self._position = 0

    def read(self, positions: IntArray) -> None:
        """Decode frames of the page, which ascend."""
        first, stop = int(positions[0]), int(positions[-1]) + 1
        self.num_decoded += stop - (self._position if first >= self._position else 0)
        self._position = stop
