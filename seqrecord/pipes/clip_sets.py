"""Features of clips that are read together, and how small raw ones are read by clip number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from seqrecord.clips import IntArray
from seqrecord.engine.buffers import HostBuffers
from seqrecord.engine.host_batches import HostBatchBuilder
from seqrecord.pipes.selection import ClipSelection
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.reading.scattered import ScatteredFrames

__all__ = ["FRAME_BITS", "Alike", "read_scattered", "sets_of"]

FRAME_BITS = 40  # an episode has fewer frames than two to this power


@dataclass(frozen=True)
class Alike:
    """Features of which clips have the same frames, and a dataset that has them.

    `scattered` reads all of them, or none.
    """

    names: tuple[str, ...]
    dataset: SeqRecordReader
    scattered: Mapping[str, ScatteredFrames]


def sets_of(selection: ClipSelection) -> list[Alike]:
    """The features of clips in sets that are read together."""
    arrays, dataset = selection.arrays, selection.dataset
    sets = selection.clip_frames.alike(arrays)
    if selection.frame_transform is not None:  # it needs whole frames
        return [Alike(names, dataset, {}) for names in sets]
    reader = dataset.chunk_reader()
    small = {name: reader.scattered(name) for name in dataset.features}
    found: list[Alike] = []
    for names in sets:
        scattered = {name: one for name in names if (one := small.get(name)) is not None}
        others = tuple(name for name in names if name not in scattered)
        for part, read in ((tuple(scattered), scattered), (others, {})):
            if part:
                stored = [name for name in part if arrays[name].mask_of is None]
                found.append(Alike(part, dataset.select(stored), read))
    return found


def read_scattered(
    alike: Alike,
    builder: HostBatchBuilder,
    buffers: HostBuffers,
    episode: IntArray,
    frames: IntArray,
) -> bool:
    """Read small raw features, of which clips have these frames; whether that was possible."""
    wanted = ((episode << FRAME_BITS)[:, None] + frames).reshape(-1)
    unique, inverse = np.unique(wanted, return_inverse=True)
    episode, frame = unique >> FRAME_BITS, unique & ((1 << FRAME_BITS) - 1)
    index, rows, chunks = alike.dataset.index, builder.rows, buffers.chunks
    for grid in alike.dataset.episode_table.groups:
        chunk = grid.row(episode, grid.place(episode, frame))
        inside = frame - index.groups[grid.group].first_frame[chunk]
        for name, scattered in alike.scattered.items():
            if alike.dataset.features[name].group != grid.group:
                continue
            memory: list[npt.NDArray[np.uint8]] = []

            def allocate(
                nbytes: int, memory: list[npt.NDArray[np.uint8]] = memory
            ) -> npt.NDArray[np.uint8]:
                memory.append(chunks.acquire(nbytes))
                return memory[0]

            try:
                found = scattered.read(chunk, inside, allocate)
                if found is None:
                    return False
                out = rows[name][: len(wanted)]
                np.take(found.frames, found.rows[inverse.reshape(-1)], 0, out=out, mode="clip")
                del found
            finally:
                for each in memory:
                    chunks.release(each)
    return True
