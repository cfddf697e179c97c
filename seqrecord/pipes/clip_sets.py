"""Features of clips that are read together, and how small raw ones are read by clip number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from seqrecord.clips import IntArray
from seqrecord.engine.buffers import HostBuffers
from seqrecord.engine.host_batches import HostBatchBuilder
from seqrecord.frame_keys import frame_keys, split_keys
from seqrecord.grids import ChunkGrid
from seqrecord.pipes.selection import ClipSelection
from seqrecord.reading.kept import KeptFrames
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.reading.scattered import ScatteredFrames

__all__ = ["Alike", "Spans", "read_scattered", "sets_of"]


@dataclass(frozen=True)
class Alike:
    """Features of which clips have the same frames, and a dataset that has them.

    `scattered` reads all of them, or none; `kept` are those of them that stay in memory.
    """

    names: tuple[str, ...]
    dataset: SeqRecordReader
    scattered: Mapping[str, ScatteredFrames]
    kept: Mapping[str, KeptFrames] = field(default_factory=dict)


def sets_of(selection: ClipSelection, memory_limit: int) -> list[Alike]:
    """The features of clips in sets that are read together.

    Frames that are kept take at most `memory_limit` bytes.
    """
    arrays, dataset = selection.arrays, selection.dataset
    sets = selection.clip_frames.alike(arrays)
    if selection.frame_transform is not None:  # it needs whole frames
        return [Alike(names, dataset, {}) for names in sets]
    reader = dataset.chunk_reader()
    small = {name: one for name in dataset.features if (one := reader.scattered(name)) is not None}
    kept = _kept(dataset, small, memory_limit)
    found: list[Alike] = []
    for names in sets:
        scattered = {name: small[name] for name in names if name in small}
        others = tuple(name for name in names if name not in scattered)
        for part, read in ((tuple(scattered), scattered), (others, {})):
            if part:
                stored = [name for name in part if arrays[name].mask_of is None]
                stay = {name: kept[name] for name in read if name in kept}
                found.append(Alike(part, dataset.select(stored), read, stay))
    return found


def _kept(
    dataset: SeqRecordReader, small: Mapping[str, ScatteredFrames], memory_limit: int
) -> dict[str, KeptFrames]:
    """Those features whose frames all fit into so many bytes: the smallest of them."""
    kept: dict[str, KeptFrames] = {}
    parts = {name: (dataset.index.group_of(name), dataset.features[name]) for name in small}
    sizes = {name: KeptFrames.bytes_of(*part) for name, part in parts.items()}
    for name in sorted(small, key=sizes.__getitem__):
        memory_limit -= sizes[name]
        if memory_limit < 0:
            break
        kept[name] = KeptFrames(small[name], *parts[name])
    return kept


def read_scattered(
    alike: Alike,
    builder: HostBatchBuilder,
    buffers: HostBuffers,
    episode: IntArray,
    frames: IntArray,
) -> bool:
    """Read small raw features, of which clips have these frames; whether that was possible.

    The clips' episodes are int64[n], by row, and their frames int64[n, T].
    """
    rows = builder.rows
    for name, kept in alike.kept.items():
        of_clips = (kept.first[episode][:, None] + frames).reshape(-1)
        if not kept.take(of_clips, rows[name][: len(of_clips)]):
            return False
    if len(alike.kept) == len(alike.scattered):
        return True
    wanted = frame_keys(episode[:, None], frames)
    length = wanted.shape[1]
    if length > 1 and not np.count_nonzero(wanted[:, 1:] - wanted[:, :-1] != 1):
        spans = Spans.of(wanted[:, 0], length)
    else:
        spans = Spans.of(wanted.reshape(-1), 1)
    index, chunks = alike.dataset.index, buffers.chunks
    others = {name: one for name, one in alike.scattered.items() if name not in alike.kept}
    for grid in alike.dataset.episode_table.groups:
        names = [n for n in others if alike.dataset.features[n].group == grid.group]
        if not names:
            continue
        chunk, first, stop, of_span = spans.in_chunks(grid)
        begin = index.groups[grid.group].first_frame[chunk]
        for name in names:
            memory: list[npt.NDArray[np.uint8]] = []

            def allocate(
                nbytes: int, memory: list[npt.NDArray[np.uint8]] = memory
            ) -> npt.NDArray[np.uint8]:
                memory.append(chunks.acquire(nbytes))
                return memory[0]

            try:
                found = others[name].read(chunk, first - begin, stop - begin, allocate)
                if found is None:
                    return False
                source = spans.rows(found.rows[of_span])
                np.take(found.frames, source, 0, out=rows[name][: len(source)], mode="clip")
                del found
            finally:
                for each in memory:
                    chunks.release(each)
    return True


@dataclass(frozen=True)
class Spans:
    """Frames of n runs of one length, each frame once: s spans that have no frame in common.

    A frame is given by its key, see `frame_keys`::

        runs of 4     2 3 4 5     14 15 16 17     4 5 6 7
        spans         2 3 4 5 6 7     14 15 16 17
    """

    first: IntArray
    """int64[s], ascending: of each span."""
    stop: IntArray
    """int64[s]: past the last frame of each span."""
    length: int
    """Frames of a run."""
    span: IntArray
    """int64[n]: the span that has each run."""
    inside: IntArray
    """int64[n]: the first frame of each run, counted from its span's."""

    @classmethod
    def of(cls, runs: IntArray, length: int) -> Spans:
        """Of runs by their first frames, int64[n], which all have so many frames."""
        order = np.argsort(runs, kind="stable")
        ascending = runs[order]
        closes = np.ones(len(runs), bool)
        np.less(ascending[:-1] + length, ascending[1:], out=closes[:-1])
        number = np.cumsum(closes) - closes
        last = closes.nonzero()[0]
        begin = np.zeros_like(last)
        begin[1:] = last[:-1] + 1
        first = ascending[begin]
        span = np.empty_like(runs)
        span[order] = number
        return cls(first, ascending[last] + length, length, span, runs - first[span])

    def in_chunks(self, grid: ChunkGrid) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """The parts of the spans that lie in one chunk each: int64[p] the row of the chunk, the
        first frame in its episode, and past the last one; int64[s] the first part of each span."""
        episode, first = split_keys(self.first)
        stop = first + (self.stop - self.first)
        place = grid.place(episode, first)
        count = grid.place(episode, stop - 1) - place + 1
        of_span = np.cumsum(count) - count
        if len(count) < (total := int(of_span[-1] + count[-1])):
            owner = np.repeat(np.arange(len(count)), count)
            episode = episode[owner]
            place = place[owner] + np.arange(total) - of_span[owner]
            begin, end = grid.bounds(episode, place)
            first, stop = np.maximum(first[owner], begin), np.minimum(stop[owner], end)
        return grid.row(episode, place), first, stop, of_span

    def rows(self, rows: IntArray) -> IntArray:
        """Where the frames of all runs are, int64[n * length], run by run, from where the first
        frame of each span is, int64[s]."""
        first = rows[self.span] + self.inside
        found: IntArray = (first[:, None] + np.arange(self.length)).reshape(-1)
        return found
