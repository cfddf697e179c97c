"""The bytes of record files that frames need, for a store of chunks.

::

    chunk     | image_left               | image_right              | pose | sums |
    frames        [ . . . . ]                [ . . . . ]
    bytes         [ ....... ]                [ ....... ]              [ .. ] [ .. ]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from seqrecord.loader.reading.chunk_store import PIECE_BYTES, Pieces
from seqrecord.store.format.index import GroupIndex
from seqrecord.store.format.page_kinds import page_kind
from seqrecord.store.format.pages import ALIGNMENT
from seqrecord.store.schema import Schema
from seqrecord.store.tables.grids import ChunkGrid, IntArray, ragged_arange, run_bounds

_MAX_GAP = ALIGNMENT - 1  # the padding between pages, as in `ChunkReader.reads`


class UsedFrames(NamedTuple):
    """Frames `[begin[i], stop[i])` of `episode[i]` in a group; int64[n] each.

    `in_whole_pages`: pages are read whole.
    """

    group: int
    episode: IntArray
    begin: IntArray
    stop: IntArray
    in_whole_pages: bool = False


def needed_bytes(
    tables: Sequence[GroupIndex],
    paths: Sequence[str],
    features: Schema,
    grids: Iterable[ChunkGrid],
    frame_sets: Iterable[UsedFrames],
) -> Pieces:
    """The bytes of the features' pages that hold the used frames, in pieces of at most 8 MiB.

    Of a raw page without gaps these are the slices with the frames; other pages are needed whole.

    Args:
        tables: chunk tables of all groups.
        paths: record files, by the tables' numbers.
        features: the selected features.
        grids: chunks of the groups in `frame_sets`.
        frame_sets: used frames of each group.
    """
    grid_of = {grid.group: grid for grid in grids}
    columns = [
        column
        for frames in frame_sets
        for column in _group_ranges(tables[frames.group], features, grid_of[frames.group], frames)
    ]
    if not columns:
        return {}
    ranges = [np.concatenate(column) for column in zip(*columns, strict=True)]
    is_filled = ranges[-1] > ranges[-2]
    file, start, stop = _merge_ranges(*(column[is_filled] for column in ranges))
    edges = run_bounds(constant=file)
    return {
        paths[int(file[a])]: _split_ranges(start[a:b], stop[a:b])
        for a, b in pairwise(edges)
        if b > a
    }


def _group_ranges(
    table: GroupIndex, features: Schema, grid: ChunkGrid, frames: UsedFrames
) -> Iterable[tuple[IntArray, IntArray, IntArray, IntArray]]:
    """File number, offset of the chunk, start and stop of the bytes in each page of a group."""
    is_filled = frames.stop > frames.begin
    _, *columns, _ = frames
    episode, begin, stop = (column[is_filled] for column in columns)
    if not len(episode):
        return
    place = grid.place(episode, begin)
    owner, chunk_place = ragged_arange(grid.place(episode, stop - 1) - place + 1)
    chunk = grid.row(episode[owner], place[owner] + chunk_place)
    file, position = table.file[chunk].astype(np.int64), table.offset[chunk].astype(np.int64)
    offset = position
    shift = table.first_frame[chunk].astype(np.int64)
    count = table.num_frames[chunk].astype(np.int64)
    begin = np.clip(begin[owner] - shift, 0, count)
    stop = np.clip(stop[owner] - shift, 0, count)
    gaps = {int(number) for number in np.unique(table.gaps["feature"])}
    sums = np.zeros_like(position)
    for column, spec in enumerate(table.schema.values()):
        length = table.page_length[chunk, column].astype(np.int64)
        kind, low, high = page_kind(spec), np.zeros_like(length), length
        size = kind.slice_bytes(spec) if kind.in_slices else 0
        if size:
            sums += 4 * -(-length // size)
        if spec.name in features:
            is_partial = size and not frames.in_whole_pages
            if is_partial and int(table.features[column]) not in gaps:
                low = begin * spec.nbytes // size * size
                high = np.minimum(-(-stop * spec.nbytes // size) * size, length)
            yield file, offset, position + low, position + high
        position = position + -(-length // ALIGNMENT) * ALIGNMENT
    yield file, offset, position, position + sums


def _merge_ranges(
    file: IntArray, offset: IntArray, start: IntArray, stop: IntArray
) -> tuple[IntArray, IntArray, IntArray]:
    """Sort ranges by file and start, and merge those of a chunk that overlap or are adjacent.

    Not those of several chunks, at other `offset`s: a load waits for its own chunk only.
    """
    order = np.lexsort((start, file))
    file, offset, start, stop = (column[order] for column in (file, offset, start, stop))
    # Ranges of later files begin after all ranges of earlier ones.
    shift = file * (int(stop.max(initial=0)) + _MAX_GAP + 1)
    reach = np.maximum.accumulate(stop + shift)
    is_new = np.ones(len(file), bool)
    is_new[1:] = start[1:] + shift[1:] > reach[:-1] + _MAX_GAP
    is_new[1:] |= offset[1:] != offset[:-1]
    first_row = np.flatnonzero(is_new)
    last_row = np.append(first_row[1:], len(file))[: len(first_row)] - 1
    return file[first_row], start[first_row], (reach - shift)[last_row]


def _split_ranges(start: IntArray, stop: IntArray) -> tuple[IntArray, IntArray]:
    """Split long ranges into equal pieces."""
    number = -(-(stop - start) // PIECE_BYTES)
    owner, piece = ragged_arange(number)
    size = -(-(stop - start) // number)
    piece_start = start[owner] + piece * size[owner]
    return piece_start, np.minimum(piece_start + size[owner], stop[owner])
