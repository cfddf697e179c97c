"""The samples of a user's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from seqrecord.errors import ClipError
from seqrecord.loader.clips.frames import MOST_COPIES, ClipKeys
from seqrecord.loader.clips.layouts import missing_frames
from seqrecord.loader.clips.sample_tables import read_frame_lists, read_samples, sample_columns
from seqrecord.loader.clips.samples import (
    ComputedValues,
    Samples,
    Values,
    empty_clips,
    taken,
    value_form,
)
from seqrecord.loader.clips.segments import Segments, clips_in_segments, segment_columns
from seqrecord.loader.clips.tables import IntArray
from seqrecord.loader.pipes.clip_windows import Windows, enumerate_windows, find_windows
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.options import ClipOptions
from seqrecord.loader.pipes.view_episodes import ViewEpisodes
from seqrecord.store.reading.dataset import Dataset
from seqrecord.store.tables.grids import distinct
from seqrecord.store.tables.table_places import EpisodeNames
from seqrecord.store.text import counted, shown_place
from seqrecord.store.units import raise_if


def samples_of_table(
    options: ClipOptions, dataset: Dataset, selected: IntArray
) -> tuple[ViewEpisodes, Samples]:
    """The samples in a request's table, and the selected episodes that have some."""
    if options.lists_frames:
        return _of_lists(options, dataset, selected)
    if isinstance(options.table, Segments):
        columns = segment_columns(options.table, _names(dataset))
        _check_selected(columns, selected)
        return _of_segments(options, dataset, selected, columns)
    columns = sample_columns(options.table, _names(dataset))
    _check_selected(columns, selected)
    if "start" in columns:
        return _of_starts(options, dataset, selected, columns)
    return _of_episodes(options, dataset, selected, columns)


def _check_selected(columns: Mapping[str, pa.Array], selected: IntArray) -> None:
    """Raise `ClipError` for a table of other episodes than the selected ones."""
    episode = np.asarray(columns["episode"])
    raise_if(
        not np.isin(episode, selected).any(),
        "no sample belongs to a selected episode",
        "episodes= or split= with some of the table's episodes",
        f"{counted(len(distinct(episode)), 'episode')} in the table, {len(selected):,} selected",
    )


def _names(dataset: Dataset) -> EpisodeNames:
    return dataset.contents.episode_names


def _of_lists(
    options: ClipOptions, dataset: Dataset, selected: IntArray
) -> tuple[ViewEpisodes, Samples]:
    """The samples in a table of frame lists."""
    names, missing = _names(dataset), missing_frames(dataset.contents)
    columns = sample_columns(options.table, names)
    selected, lists, row, own, lacking = read_frame_lists(columns, names, missing, selected)
    windows = find_windows(options, dataset, selected, lists)
    none = empty_clips(options.spec, np.arange(len(lists)), num_incomplete=lacking)
    episodes = ViewEpisodes(dataset, windows, selected, lists, len(columns["episode"]))
    samples = Samples.of(none, episodes, lists.owner, lists.start, own, row)
    return episodes, samples


def _of_segments(
    options: ClipOptions, dataset: Dataset, selected: IntArray, columns: Mapping[str, pa.Array]
) -> tuple[ViewEpisodes, Samples]:
    """The samples of all clips inside segments that lack no feature."""
    reaches = _windows_of_starts(options, dataset, selected, columns).extents(selected)
    names, count = _names(dataset), len(columns["episode"])
    clips, stops, segment = clips_in_segments(columns, names, reaches, options.stride or 1)
    if num_short := count - len(distinct(segment)):
        place = shown_place(dataset.url)
        warn_once(f"{place}: {num_short:,} of {count:,} segments are shorter than a clip")
    starts = replace(options, stride=1)
    episodes, samples = _of_starts(starts, dataset, selected, clips, segment, stops)
    episodes = replace(episodes, num_rows=count, stops=stops[samples.rows_listed])
    return episodes, replace(samples, episodes=episodes, segment=segment)


def _windows_of_starts(
    options: ClipOptions, dataset: Dataset, selected: IntArray, columns: Mapping[str, pa.Array]
) -> Windows:
    """The windows of a table's samples, which may have dilations of their own."""
    dilations = None
    if "dilation" in columns:
        dilations = np.unique(columns["dilation"]).tolist()
    return find_windows(options, dataset, selected, dilations=dilations)


def _of_starts(
    options: ClipOptions,
    dataset: Dataset,
    selected: IntArray,
    columns: Mapping[str, pa.Array],
    table_row: IntArray | None = None,
    stops: IntArray | None = None,
) -> tuple[ViewEpisodes, Samples]:
    """A table's samples (starts) that lack no feature.

    `table_row` is as for `read_samples`. The frames of each clip must be before the `stops` of
    segments, int64[n].
    """
    windows = _windows_of_starts(options, dataset, selected, columns)
    reaches = windows.extents(selected)
    episode, start, own = read_samples(columns, _names(dataset), reaches, table_row)
    row, is_selected = np.arange(len(episode)), np.isin(episode, selected)
    selected = distinct(episode[is_selected])
    episodes = ViewEpisodes(dataset, windows, selected, num_rows=len(row), stops=stops)
    clips, whole = ClipKeys(episode, start, row * MOST_COPIES, row), np.zeros(len(row), np.bool_)
    complete = episodes.complete(windows.dilations)
    for dilation, are_complete in zip(windows.dilations, complete, strict=True):
        has_dilation = own["dilation"] == dilation if "dilation" in own else True
        rows = np.flatnonzero(is_selected & has_dilation)
        whole[rows] |= are_complete(clips.take(rows))
    row, lacking = np.flatnonzero(whole), int((is_selected & ~whole).sum())
    own = {name: taken(column, row) for name, column in own.items()}
    none = empty_clips(options.spec, selected, num_incomplete=lacking)
    samples = Samples.of(none, episodes, episode[row], start[row], own, row)
    return episodes, samples


def _of_episodes(
    options: ClipOptions, dataset: Dataset, selected: IntArray, columns: Mapping[str, pa.Array]
) -> tuple[ViewEpisodes, Samples]:
    """All clips of a table's episodes, each with the columns of its episode."""
    index, names, count = dataset.contents.index, _names(dataset), len(columns["episode"])
    first = {"start": pa.array(np.zeros(count, np.int64))}  # a frame that every episode has
    reaches = np.zeros((len(index.num_frames), 2), np.int64)
    episode, _, own = read_samples({**columns, **first}, names, reaches)
    row = np.full(len(index.num_frames), -1)
    row[episode] = np.arange(count)
    for again in np.flatnonzero(row[episode] != np.arange(count))[:1].tolist():
        problem = f"samples without start has an episode twice, in row {again}"
        key = index.key(int(episode[again]))
        raise ClipError(problem, episode=key, expected="a column start, or a row per episode")
    selected = np.intersect1d(episode, selected)
    windows = find_windows(options, dataset, selected)
    values = {
        name: ComputedValues(partial(_of_episode, column, row), *value_form(column))
        for name, column in own.items()
    }
    episodes = ViewEpisodes(dataset, windows, selected, num_rows=count)
    clips = enumerate_windows(windows, dataset, selected, options.spec)
    samples = Samples(clips, episodes, values, episode_order=row)
    return episodes, samples


def _of_episode(values: Values, row: IntArray, clips: ClipKeys) -> Values:
    """The values for the clips' episodes; `row` is each episode's row in the table."""
    return taken(values, row[clips.episode])
