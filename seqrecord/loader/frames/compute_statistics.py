"""Computes statistics of frames, of a dataset or split, optionally after a transform."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqrecord.errors import ClipError
from seqrecord.loader.frames.array_specs import (
    ArraySpec,
    add_place,
    apply_transform,
    bind_schema,
    check_arrays,
)
from seqrecord.loader.frames.trials import check_signature
from seqrecord.store.processes.machine import usable_cores
from seqrecord.store.reading.contents import Contents, Episodes
from seqrecord.store.reading.episode import Episode
from seqrecord.store.reading.filters import EpisodeFilter
from seqrecord.store.schema import FeatureSpec, Schema
from seqrecord.store.statistics.by_feature import Statistics, num_channels
from seqrecord.store.statistics.collecting import StatisticsCollector
from seqrecord.store.storage.parallel import request_threads
from seqrecord.store.tables.grids import run_bounds
from seqrecord.store.units import Progress, check_integer
from seqrecord.store.value_kinds import FrameFunction

_SPAN_BYTES = 32 << 20  # decoded frames of one feature in a thread
_SPAN_FRAMES = 1024  # maximum; a power of two, like the frames in a chunk
_TASK_FRAMES = 4096
_GOLDEN = 0.6180339887498949


def compute_statistics(
    contents: Contents,
    episodes: EpisodeFilter,
    split: str | None,
    frame_transform: FrameFunction | None,
    max_frames: int | None,
    num_threads: int | None,
    progress: Callable[[Progress], None] | None,
) -> Statistics:
    """See `Dataset.compute_statistics`."""
    check_integer("max_frames", 1 if max_frames is None else max_frames, least=1)
    threads = usable_cores() if num_threads is None else num_threads
    check_integer("num_threads", threads, least=1)
    rows = contents.find_episodes(episodes, split)
    total = int(contents.index.num_frames[rows].sum(dtype=np.int64))
    step = 1 if max_frames is None else max(1, total // max_frames)
    frame_transform = bind_schema(frame_transform, contents.features)
    if frame_transform is None:
        columns = [
            _FeatureSet(contents, (spec,), Schema([spec])) for spec in contents.features.values()
        ]
    else:
        columns = [_transformed_features(contents, rows, frame_transform)]
    columns = [column for column in columns if any(map(num_channels, column.schema.values()))]
    statistics: dict[int, Statistics] = {}
    num_done = 0
    with request_threads(threads, "statistics") as pool:
        # In order, for reproducible merging.
        for task, part in pool.map(partial(_collect, step), _tasks(columns, rows), 2 * threads):
            number = task.column
            statistics[number] = statistics[number].merged(part) if number in statistics else part
            num_done += task.num_frames
            if progress is not None:
                progress(Progress(num_done // len(columns), total))
    features = {name: feature for part in statistics.values() for name, feature in part.items()}
    return Statistics(total, features)


@dataclass(frozen=True)
class _FeatureSet:
    """Features read together. Statistics are computed of them, or of the transform's arrays."""

    contents: Contents
    read: tuple[FeatureSpec, ...]
    schema: Schema
    transform: FrameFunction | None = None
    arrays: Mapping[str, ArraySpec] | None = None

    @property
    def span_frames(self) -> int:
        """Frames read together: a power of two, so that most spans consist of whole chunks."""
        nbytes = max(1, sum(spec.nbytes for spec in self.read))
        max_frames = max(1, min(_SPAN_FRAMES, _SPAN_BYTES // nbytes))
        return 1 << (max_frames.bit_length() - 1)

    def present(self, episode: Episode) -> npt.NDArray[np.bool_]:
        """Return which frames have all features."""
        present = np.ones(len(episode), bool)
        for spec in self.read:
            present &= episode.present(spec.name)
        return present

    def frames(
        self, episode: Episode, numbers: npt.NDArray[np.int64]
    ) -> Iterator[tuple[str, npt.NDArray[Any], npt.NDArray[np.int64]]]:
        """Yield the values of frames `numbers`: name, array [n, …], frame numbers [n]."""
        names = [spec.name for spec in self.read]
        columns = episode.read(numbers.tolist(), features=names)
        if self.transform is None:
            [(name, values)] = columns.items()
            if isinstance(values, np.ndarray):
                yield name, values, numbers
                return
            yield from ((name, v[None], numbers[i : i + 1]) for i, v in enumerate(values))
            return
        for i, number in enumerate(numbers.tolist()):
            frame = {
                n: v[i, ...] if isinstance(v, np.ndarray) else v[i] for n, v in columns.items()
            }
            for name, array in self.results(episode.key, number, frame).items():
                yield name, array[None], numbers[i : i + 1]

    def results(self, key: str, number: int, frame: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
        """Apply `frame_transform` to a frame; checks the result against the first one."""
        assert self.transform is not None
        try:
            results = apply_transform(self.transform, frame)
            arrays = {
                name: value for name, value in results.items() if isinstance(value, np.ndarray)
            }
            specs = self.arrays or {n: ArraySpec(v.dtype, v.shape) for n, v in arrays.items()}
            check_arrays("frame_transform", "frame", arrays, specs)
        except Exception as error:
            add_place(
                error, "frame_transform", file=self.contents.storage.url, episode=key, frame=number
            )
            raise
        return arrays


def _transformed_features(
    contents: Contents, rows: npt.NDArray[np.int64], transform: FrameFunction
) -> _FeatureSet:
    """Determine the results of `frame_transform` with the first complete frame."""
    check_signature("frame_transform", transform, "frame")
    column = _FeatureSet(contents, tuple(contents.features.values()), contents.features, transform)
    for key in contents.index.keys_of(rows):
        complete_frames = np.flatnonzero(column.present(episode := Episodes(contents)[key]))
        if not len(complete_frames):
            continue
        first_frame = int(complete_frames[0])
        results = column.results(key, first_frame, dict(episode[first_frame]))
        kinds = {name: spec.kind for name, spec in contents.features.items()}
        specs = [FeatureSpec(n, v.dtype, v.shape, kind=kinds.get(n)) for n, v in results.items()]
        arrays = {name: ArraySpec(value.dtype, value.shape) for name, value in results.items()}
        return replace(column, schema=Schema(specs), arrays=arrays)
    raise ClipError(
        "no frame has all features", file=contents.storage.url, expected="other features"
    )


class _EpisodeBatch(NamedTuple):
    """Episodes of a column, by row."""

    column: int
    feature_set: _FeatureSet
    episodes: npt.NDArray[np.int64]
    num_frames: int
    first_span: int  # number of the column's spans in preceding tasks


def _tasks(columns: Sequence[_FeatureSet], rows: npt.NDArray[np.int64]) -> Iterator[_EpisodeBatch]:
    if not columns:
        return
    lengths = columns[0].contents.index.num_frames[rows].astype(np.int64)
    # A new task begins after each `_TASK_FRAMES` frames, at an episode's start.
    number = (np.cumsum(lengths) - lengths) // _TASK_FRAMES
    first_spans = [0] * len(columns)
    for a, b in pairwise(run_bounds(constant=number)):
        for place, column in enumerate(columns):
            yield _EpisodeBatch(
                place, column, rows[a:b], int(lengths[a:b].sum()), first_spans[place]
            )
            first_spans[place] += int((-(-lengths[a:b] // column.span_frames)).sum())


def _collect(step: int, task: _EpisodeBatch) -> tuple[_EpisodeBatch, Statistics]:
    """Compute the statistics of a task, from one of `step` spans."""
    column, span = task.feature_set, task.first_span - 1
    collector, length = StatisticsCollector(column.schema), column.span_frames
    contents = column.contents
    for key in contents.index.keys_of(task.episodes):
        episode = Episodes(contents)[key]
        present = column.present(episode)
        collector.begin(key)
        for start in range(0, len(episode), length):
            stop = min(start + length, len(episode))
            span += 1
            # Multiples of the golden ratio are evenly spread, with no period in episode lengths.
            collector.skip(stop - start)
            if (span * _GOLDEN) % 1 * step >= 1:
                continue
            complete_frames = np.flatnonzero(present[start:stop]) + start
            if len(complete_frames):
                for name, frames, numbers in column.frames(episode, complete_frames):
                    collector.add_frames(name, frames, numbers)
        collector.keep()
    return task, collector.statistics()
