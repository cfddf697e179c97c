"""Counts what the loads of a plan read and decode, from index and plan alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np

from seqrecord.clips.tables import IntArray
from seqrecord.engine.arena import Rows
from seqrecord.engine.decoding import Fetched
from seqrecord.engine.engine import Job, loader_of, whole_chunks
from seqrecord.engine.loading import ChunkLoader
from seqrecord.engine.stats import EngineStats
from seqrecord.engine.stores import AllFrames, FrameRows, Load, loads_of_round
from seqrecord.format.references import HEAD_BYTES, named_file
from seqrecord.reading.chunks import Chunk, Page
from seqrecord.reading.raw_frames import frame_runs
from seqrecord.reading.read_cost import ReadCost
from seqrecord.storage import Storage
from seqrecord.storage.parallel import parallel_of, requests_by_file
from seqrecord.storage.ranges import ByteRange

_NO_BUFFERS: Any = SimpleNamespace(
    chunks=SimpleNamespace(release=lambda _: None), storing=lambda _, rows: nullcontext(({}, rows))
)


def count_loads(job: Job, rows: Sequence[FrameRows]) -> tuple[ReadCost, ReadCost]:
    """Count all loads of a job's plan, and those that its first batch needs.

    With `rows`, of each group of the plan, frames stay in memory; see `AllFrames`.
    """
    plan, store = job.plan, None
    if rows:
        arenas = [SimpleNamespace(specs={}, is_read=np.zeros(of.num_rows, np.bool_)) for of in rows]
        store = AllFrames(plan, job.clip_frames, arenas, rows, whole_chunks(job))
    counter = loader_of(LoadCounter, job, _NO_BUFFERS, 1, EngineStats(), are_resident=bool(rows))
    total, batch, left = ReadCost(), ReadCost(), plan.first_clip(min(1, plan.num_batches))
    for current in plan.rounds() if store is None else store.rounds(plan, 0):
        waiting = loads_of_round(current, plan.groups, job.clip_frames.num_frames)
        for item in waiting if store is None else store.place(waiting):
            amount = counter.count(item.load)
            total += amount
            if item.first_use < left:
                batch += amount
        left -= len(current.clips)
    return total, batch


class LoadCounter(ChunkLoader):
    """Does loads like its base class, but counts byte ranges and frames instead of reading them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._found, self._files = ReadCost(), set[object]()  # files that were read

    def count(self, load: Load) -> ReadCost:
        """What one load takes, after those before it."""
        self._found = ReadCost(0, 0, load.count if load.group == self._leading else 0)
        self([load], None, np.arange(load.count))
        return self._found

    def _read_raw(
        self, group: int, chunk: IntArray, frame: IntArray, _: Rows, rows: IntArray
    ) -> set[str]:
        raw, begin = self._reader.raw[group], self._dataset.contents.index.groups[group].first_frame
        for path, ranges in raw.reads(frame_runs(chunk, frame - begin[chunk], rows)):
            self._ask(path, ranges)
        return set(raw.specs)

    def _read(self, chunk: Chunk, pages: Sequence[Page], without: Collection[str] = ()) -> Fetched:
        wanted = [page for page in pages if page.feature not in without]
        if wanted:
            self._ask(chunk.path, [whole for whole, _ in self._reader.reads(wanted)])
        for page in wanted:
            if page.external:
                self._refer(page)
        return Fetched(chunk, pages, {}, np.empty(0, np.uint8))

    def _decode(self, fetched: Fetched, frames: IntArray, *_: object) -> None:
        """A decoder goes on behind the frames that it decoded before."""
        stop = int(frames[-1]) + 1 - fetched.chunk.first_frame
        for page in fetched.pages:
            if self._reader.features[page.feature].is_video:
                decoded = stop - page.memo.get("decoded", 0)
                self._found += ReadCost(video_frames_decoded=decoded)
                page.memo["decoded"] = stop

    def _ask(self, path: str, ranges: Sequence[ByteRange]) -> None:
        """Count a call to the storage of record files, but for a local index of files elsewhere."""
        storage = self._dataset.contents.storage
        if self.is_local or storage.local_path(path) is None:
            self._found += _requested(storage, ranges)
        if path not in self._files:
            self._found += ReadCost(requests_by_file(storage))
        self._files.add(path)

    def _refer(self, page: Page) -> None:
        """Count the file that a page's head names, or the files of a folder."""
        of, head = self._dataset.contents, np.empty(HEAD_BYTES, np.uint8).data
        place = ByteRange(page.start, page.start + HEAD_BYTES)
        of.storage.read_ranges(page.chunk.path, [place], [head])
        assert of.externals is not None
        file = of.externals.file_of(*(name := named_file(head)))
        found = _requested(of.externals.storage_for(file), [ByteRange(0, page.external)])
        if found.requests and not file.size:
            found = ReadCost(2 * page.chunk.num_frames, found.bytes)
        elif found.requests and name not in self._files:  # it is compared
            found += ReadCost(1)
        self._files.add(name)
        self._found += found


def _requested(storage: Storage, ranges: Sequence[ByteRange]) -> ReadCost:
    """The requests of a call, and its bytes, with gaps that are read along."""
    if (parallel := parallel_of(storage)) is None:
        return ReadCost(0, sum(item.length for item in ranges))
    parts = parallel.requests(ranges, [memoryview(b"")] * len(ranges))
    return ReadCost(len(parts), sum(item.length for items, _ in parts for item in items))
