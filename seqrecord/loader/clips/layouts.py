"""Lengths, chunk grids, missing frames and clips of an open dataset, as integers."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

import numpy as np

from seqrecord.loader.clips.frames import MissingFrames
from seqrecord.loader.clips.tables import (
    ClipTable,
    EpisodeLayout,
    enumerate_clips,
    missing_from_bitmaps,
)
from seqrecord.store.clip_spec import ClipSpec
from seqrecord.store.reading.contents import Contents
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.tables.grids import ChunkGrid

_LAYOUTS: WeakKeyDictionary[Contents, EpisodeLayout] = WeakKeyDictionary()


def episode_layout(contents: Contents) -> EpisodeLayout:
    """Return episode lengths and chunk grids of a dataset, for clips and plans."""
    if (layout := _LAYOUTS.get(contents)) is None:
        layout = _LAYOUTS.setdefault(contents, _make_layout(contents))
    return layout


def _make_layout(contents: Contents) -> EpisodeLayout:
    num_frames, grids = contents.index.num_frames, []
    for number in sorted({spec.group for spec in contents.features.values()}):
        table = contents.index.groups[number]
        places = (table.chunk_frames, num_frames, table.first_chunk, table.first_frame)
        grids.append(ChunkGrid.from_lengths(*places, group=number))
    return EpisodeLayout(num_frames, tuple(grids))


def missing_frames(contents: Contents, features: Iterable[str] | None = None) -> MissingFrames:
    """Return the frames that lack any of the features (default: all selected)."""
    index, layout, bitmaps, hidden = contents.index, episode_layout(contents), [], []
    columns = [index.schema.position(name) for name in features or contents.features]
    for grid in layout.groups:
        table = index.groups[grid.group]
        gaps = table.gaps[np.isin(table.gaps["feature"], columns)]
        chunk, word = gaps["chunk"].astype(np.int64), gaps["word"].astype(np.int64)
        bitmaps.append((chunk, word, gaps["present"]))
        hidden.append(np.maximum(-table.first_frame[chunk].astype(np.int64), 0))
    if not sum(map(len, hidden)):
        return MissingFrames.none()
    return missing_from_bitmaps(layout, bitmaps, hidden)


def find_clips(contents: Contents, spec: ClipSpec, episodes: EpisodeFilter = None) -> ClipTable:
    """Return the clips of selected episodes, without clips with missing features."""
    selected = contents.find_episodes(episodes)
    return enumerate_clips(spec, episode_layout(contents), selected, missing_frames(contents))
