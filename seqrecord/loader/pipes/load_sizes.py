"""The sizes of a view's frames, loads and batches, for the division of a memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from seqrecord.loader.engine.arena import FORMS
from seqrecord.loader.pipes.frame_arrays import bytes_by_group
from seqrecord.loader.pipes.view import View
from seqrecord.loader.sampling.frame_sizes import FrameSizes
from seqrecord.store.reading.chunk_sizes import (
    chunk_bytes,
    decoder_bytes,
    max_chunk_bytes,
    open_chunk_bytes,
    overlapping_chunk_bytes,
    resized_bytes,
)


def frame_sizes(view: View, batch_size: int) -> FrameSizes:
    """The sizes of a view's frames, loads and batches, for plans.

    A variable shape counts as its largest decoded frame in the selected episodes.

    With `frame_transform` the plan has one group: its arena contains transformed frames, and each
    load reads chunks of all groups. If this group is in pieces, a cursor keeps its open chunks.
    """
    transform = view.transform
    loads = _loads_of_groups(view) if transform is None else _loads_of_results(view)
    beside = loads.beside + resized_bytes(view.dataset, view.episode_rows)
    # If all frames stay, no chunk is left open, but a load decodes a whole chunk.
    whole = max(loads.chunk, loads.whole_chunk) + beside
    clip = 0
    for name, spec in view.batch_arrays.items():
        item = FORMS[spec.value_kind].item_nbytes
        clip += (spec.nbytes + item) * view.lengths[name]
    rows = tuple(np.maximum(loads.frames, 1).tolist())
    staying = tuple(np.maximum(loads.staying, 1).tolist())
    return FrameSizes(rows, loads.chunk + beside, batch_size * max(1, clip), staying, whole)


class _LoadSizes(NamedTuple):
    """Sizes of frames and loads in bytes.

    Attributes:
        staying: a frame of each group.
        frames: a frame of each group, and its cursor's open chunk.
        chunk: the largest load, with its decoder.
        whole_chunk: the largest load of whole chunks, with its decoder.
        beside: frames of a load that are in no row yet.
    """

    staying: Sequence[int]
    frames: Sequence[int]
    chunk: int
    whole_chunk: int
    beside: int


def _loads_of_groups(view: View) -> _LoadSizes:
    """The sizes of loads that each read one group."""
    features, tables = view.dataset.features, view.dataset.contents.index.groups
    staying, frames, largest = bytes_by_group(view.arrays, features), list[int](), 0
    closed = [*features.values()]
    for frame, grid in zip(staying, view.episodes.groups, strict=True):
        table, opened = tables[grid.group], 0
        largest = max(largest, int(chunk_bytes(table, features).max()))
        if grid.stored_grid is not None:  # in pieces: a cursor's chunk and its decoder stay open
            opened = open_chunk_bytes(grid, [table], features)
            closed = [spec for spec in closed if spec.group != grid.group]
        frames.append(frame + opened)
    stored = view.stored_arrays.values()
    return _LoadSizes(
        staying,
        frames,
        largest + max(decoder_bytes(closed), default=0),
        largest + max(decoder_bytes(features.values()), default=0),
        # Codecs may need room for a frame.
        sum(s.nbytes for s in stored if not FORMS[s.value_kind].is_stacked),
    )


def _loads_of_results(view: View) -> _LoadSizes:
    """The sizes of loads for a frame transform, which read all groups."""
    features, grid = view.dataset.features, view.episodes.leading_grid
    tables = view.dataset.contents.index.groups
    groups = [tables[number] for number in sorted({spec.group for spec in features.values()})]
    sizes = [(group, chunk_bytes(group, features)) for group in groups]
    frame = sum(spec.nbytes for spec in view.arrays.values())
    beside = frame + sum(spec.nbytes for spec in view.stored_arrays.values())
    decoder = sum(decoder_bytes(features.values()))
    if grid.stored_grid is None:
        lead = tables[grid.group]
        chunk = sum(int(overlapping_chunk_bytes(lead, *one).max()) for one in sizes) + decoder
        return _LoadSizes([frame], [frame], chunk, chunk, beside)
    opened = open_chunk_bytes(grid, groups, features)
    chunk, whole = (
        sum(max_chunk_bytes(*one, int(some.max_chunk_frames.max())) for one in sizes)
        for some in (grid, grid.stored_grid)
    )
    return _LoadSizes([frame], [frame + opened], chunk, whole + decoder, beside)
