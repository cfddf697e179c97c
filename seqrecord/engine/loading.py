"""Loads: a chunk's pages read, and the frames that clips need decoded into their rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from seqrecord.clip_frames import ClipFrames
from seqrecord.engine.arena import Place
from seqrecord.engine.buffers import Buffers
from seqrecord.engine.chunk_errors import ChunkErrors
from seqrecord.engine.decoding import FrameStorer, Transform
from seqrecord.engine.direct import Direct
from seqrecord.engine.fetching import Fetched, PageFetcher
from seqrecord.engine.load_frames import LoadFrames
from seqrecord.engine.loads import Load
from seqrecord.engine.raw_loads import RawLoads
from seqrecord.engine.stats import EngineStats
from seqrecord.reading.chunks import Chunk
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.storage.stopping import check_wanted

__all__ = ["ChunkLoader", "Fetched"]


class ChunkLoader:
    """Does loads, from many threads at once. An error names episode, frame and record file.

    At most `num_threads` of them decode at a time, however many read.

    A transform is called with whole frames. So each load of a group, which is then the only one of
    the plan, reads what chunks of other groups have of its frames too.

    Args:
        dataset: with the requested features.
        buffers: where loads get memory from.
        frame_steps: frames between two that a load of a group brings, by the group's number.
        leading: of which group to count the frames.
        transform: called with each frame, for what is stored instead; and what that is, of which
            dtypes and shapes.
        num_threads: that decode.
        stats: counts what is done.
        clip_frames: which frames clips have of each feature; by default the same of all.
        in_pieces: numbers of groups of which a chunk stays open from one load of a cursor to the
            next, which decodes more of its frames: long chunks of video.
    """

    def __init__(
        self,
        dataset: SeqRecordReader,
        buffers: Buffers[Any],
        frame_steps: Mapping[int, int],
        leading: int,
        transform: Transform | None,
        num_threads: int,
        stats: EngineStats,
        clip_frames: ClipFrames | None = None,
        in_pieces: Collection[int] = (),
    ) -> None:
        self.in_pieces = in_pieces
        self._open: dict[tuple[int, int], tuple[int, Fetched]] = {}  # by group and cursor
        self._dataset = dataset
        self._reader = reader = dataset.chunk_reader()
        self.is_local = reader.is_local
        self._buffers = buffers
        self._frames = frames = LoadFrames(frame_steps, clip_frames)
        self._transform = transform
        self._stats = stats
        self._errors = errors = ChunkErrors(dataset)
        self._pages = PageFetcher(reader, buffers.chunks, frames, errors)
        self._storer = FrameStorer(
            reader, frames, errors, transform, leading=leading, num_threads=num_threads, stats=stats
        )
        self._raw: dict[int, RawLoads] = {}
        if transform is None:
            self._raw = {
                group: RawLoads(
                    buffers,
                    raw,
                    stats,
                    step=frame_steps.get(group, 1),
                    is_leading=group == leading,
                )
                for group, raw in reader.raw.items()
            }

    def __call__(self, load: Load, places: Sequence[Place], fetched: Fetched | None = None) -> None:
        """Read the load's chunk, unless it is `fetched`, and decode its frames into `places`.

        Frames of the load that have no place are not decoded.
        """
        with self._buffers.storing(places) as targets:
            still_open = self._take(load)
            if fetched is None and still_open is not None:
                fetched = self._go_on(load, still_open)
            fetched = fetched or self.fetch(load, targets)
            try:
                self._storer.store(load, targets, fetched)
            except BaseException:
                self._pages.release(fetched)
                raise
            self._keep(load, fetched)

    def load_together(self, loads: Sequence[Load], places: Sequence[Place]) -> None:
        """Do loads of one group, each into one place, one after the other.

        Small chunks of raw pages are found together. That spares most of their time.
        """
        raw = self._raw.get(loads[0].group)
        left = range(len(loads)) if raw is None else raw.load(loads, places)
        for number in left:
            check_wanted(self._dataset.url)
            self(loads[number], [places[number]])

    def begins_chunk(self, load: Load) -> bool:
        """Whether the load is certain to need a read: no load before it has kept its chunk open."""
        if load.group not in self.in_pieces:
            return True
        chunk = self._reader.chunk_at(load.group, load.chunk, load.episode)
        return load.first == chunk.first_frame

    def _take(self, load: Load) -> Fetched | None:
        """The load's chunk, where the cursor's load before has left it open."""
        run, fetched = self._open.pop((load.group, load.cursor), (-1, None))
        if fetched is None or (run == load.run and fetched.chunk.row == load.chunk):
            return fetched
        self._pages.release(fetched)
        return None

    def _keep(self, load: Load, fetched: Fetched) -> None:
        """Leave a chunk open for the cursor's next load, where it has more frames; and beside it
        those of other groups that have more."""
        stop = load.first + load.count * self._frames.steps[load.group]
        if load.group not in self.in_pieces or stop >= fetched.chunk.stop_frame:
            self._pages.release(fetched)
            return
        kept = []
        for other in fetched.others:
            if other.chunk.stop_frame > stop:
                kept.append(other)
            else:
                self._pages.release(other)
        self._open[load.group, load.cursor] = (load.run, replace(fetched, others=kept))

    def close(self) -> None:
        """Let go of the chunks that are open, when nothing is loaded any more."""
        for _, fetched in self._open.values():
            self._pages.release(fetched)
        self._open.clear()

    def fetch(self, load: Load, places: Sequence[Place] = ()) -> Fetched:
        """Read the load's chunk; with `places`, large raw pages, or parts of these, straight into
        them."""
        begin = perf_counter()
        chunk = self._reader.chunk_at(load.group, load.chunk, load.episode)
        pages = self._reader.pages(chunk)
        direct = Direct({}, ())
        if self._transform is None:
            direct = self._pages.direct(load, chunk, pages, places)
        fetched = self._pages.read(chunk, pages, direct)
        nbytes = fetched.nbytes
        if self._transform is not None:
            fetched, more = self._with_others(load, fetched)
            nbytes += more
        self._note_fetch(load, begin, nbytes)
        return fetched

    def _go_on(self, load: Load, still_open: Fetched) -> Fetched:
        """An open chunk, for a load of the frames that follow: what is beside it of these is
        read."""
        if self._transform is None:
            return still_open
        begin = perf_counter()
        fetched, nbytes = self._with_others(load, still_open)
        if nbytes:
            self._note_fetch(load, begin, nbytes)
        return fetched

    def _with_others(self, load: Load, fetched: Fetched) -> tuple[Fetched, int]:
        """A chunk beside those of other groups that have the load's frames, of which it has some;
        and how many bytes were read of the rest."""
        had = {(other.chunk.group, other.chunk.row): other for other in fetched.others}
        others: list[Fetched] = []
        nbytes = 0
        try:
            for chunk in self._chunks_of_others(load):
                other = had.pop((chunk.group, chunk.row), None)
                if other is None:
                    other = self._pages.read(chunk, self._reader.pages(chunk), Direct({}, ()))
                    nbytes += other.nbytes
                others.append(other)
        except BaseException:
            self._pages.release(replace(fetched, others=[*others, *had.values()]))
            raise
        for other in had.values():
            self._pages.release(other)
        return replace(fetched, others=others), nbytes

    def _note_fetch(self, load: Load, begin: float, nbytes: int) -> None:
        end = perf_counter()
        self._stats.trace.add("fetch", begin, end, chunk=load.chunk)
        self._stats.add(bytes_read=nbytes, fetch_seconds=end - begin)

    def _chunks_of_others(self, load: Load) -> Iterator[Chunk]:
        """The chunks of other groups that have the load's frames."""
        index, frames = self._dataset.index, self._frames.of(load)
        for group in sorted({spec.group for spec in self._dataset.features.values()}):
            if group != load.group:
                rows = index.groups[group].chunks_of(load.episode, frames)
                for row in np.unique(rows).tolist():
                    yield self._reader.chunk_at(group, row, load.episode)
