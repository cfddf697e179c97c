"""Segments: spans of episodes, of which a loader takes all clips."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import pyarrow as pa

from seqrecord.errors import ClipError
from seqrecord.loader.clips.sample_tables import sample_columns
from seqrecord.loader.clips.tables import IntArray
from seqrecord.store.storage.url import local_path
from seqrecord.store.tables.arrow_tables import TableLike
from seqrecord.store.tables.table_places import EpisodeNames

_STOPS = ("stop", "end")


@dataclass(frozen=True, eq=False)
class Segments:
    """The result of `segments`. Picklable, if the table is."""

    table: TableLike


def segments(table: TableLike) -> Segments:
    """All clips inside spans of episodes, for the argument `samples`, alone or before functions.

    The table, or Parquet file, has the columns `episode`, keys, and `start` and `stop` (or `end`),
    the frames [start, stop) of each span. A clip is inside if all frames that it needs are, also
    with a dilation that `dilate` draws; clips start every `stride` frames from the first such start
    on. Other columns hold for each clip of their span, so `repeat` is the mean number of times that
    each clip comes. Spans may overlap.

    Example:
        spans = {"episode": ["demo/000"], "start": [0], "stop": [8], "label": ["reach"]}
        spans = seqrecord.samples.segments(spans)
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, samples=spans, batch_size=2)
    """
    table_or_path: Any = table
    is_path = isinstance(table, (str, PathLike))
    return Segments(local_path(table_or_path, "table") if is_path else table_or_path)


def segment_columns(segments: Segments, episodes: EpisodeNames) -> dict[str, pa.Array]:
    """The columns of a segment table, with the column `stop`. Raises `ClipError`."""
    columns = sample_columns(segments.table, episodes, of_spans=True)
    names = [name for name in _STOPS if name in columns]
    if len(names) != 1 or "start" not in columns:
        expected = "the columns episode, start, and stop or end"
        raise ClipError("segments lack a column", expected=expected, got=", ".join(columns)[:200])
    columns["stop"] = stop = columns.pop(names[0])
    if not pa.types.is_integer(stop.type):
        expected, got = "integers", str(stop.type)
        raise ClipError(f"samples has no frames in column {names[0]}", expected=expected, got=got)
    return columns


def clips_in_segments(
    columns: Mapping[str, pa.Array],
    names: EpisodeNames,
    reaches: IntArray,
    stride: int,
) -> tuple[dict[str, pa.Array], IntArray, IntArray]:
    """A table with a row for each clip; and for each clip the end and the row of its segment,
    int64[n] each. Rows ascend.

    Arguments as for `read_samples`. Raises `ClipError` for a segment outside its episode, and if
    none has a clip.
    """
    columns = dict(columns)
    episode, num_frames = np.asarray(columns["episode"], np.int64), names.num_frames
    start, stop = (np.asarray(columns.pop(name), np.int64) for name in ("start", "stop"))
    is_wrong = (start < 0) | (stop <= start) | (stop > num_frames[episode])
    for row in np.flatnonzero(is_wrong)[:1].tolist():
        raise ClipError(
            f"samples has no segment of its episode, in row {row}",
            episode=names.keys[int(episode[row])].as_py(),
            expected=f"0 <= start < stop <= {num_frames[episode[row]]}",
            got=f"start {start[row]}, stop {stop[row]}",
        )
    reach = reaches[episode]
    if "dilation" in columns:  # of which `reaches` has the lowest one
        dilation = np.asarray(columns["dilation"], np.int64)
        reach = reach // max(1, int(dilation.min(initial=1))) * dilation[:, None]
    first_start, last_start = start + reach[:, 0], stop - 1 - reach[:, 1]
    count = np.maximum((last_start - first_start) // stride + 1, 0)
    row = np.repeat(np.arange(len(count)), count)
    if not len(row):
        min_frames = int(reach.sum(axis=1).min()) + 1
        expected = f"segments of at least {min_frames} frames"
        raise ClipError("no segment is as long as a clip", expected=expected)
    number = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    clips = {name: column.take(pa.array(row)) for name, column in columns.items()}
    clips["start"] = pa.array(first_start[row] + number * stride)
    return clips, stop[row], row
