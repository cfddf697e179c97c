"""Computes a dataset's statistics from its frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from seqrecord.clips.grids import followed
from seqrecord.processes.machine import usable_cores
from seqrecord.reading.dataset import Dataset
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.statistics.by_feature import Statistics, num_channels
from seqrecord.statistics.collecting import StatisticsCollector
from seqrecord.storage import request_threads
from seqrecord.units import check_integer

__all__ = ["StatisticsProgress", "compute_statistics"]

_SPAN_BYTES = 32 << 20  # decoded, of one feature, that a thread holds
_SPAN_FRAMES = 1024  # at most; a power of two, as the frames of chunks are
_TASK_FRAMES = 4096
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class StatisticsProgress:
    """Frames of which all features have been looked at, of all."""

    frames: int
    total_frames: int


def compute_statistics(
    dataset: Dataset,
    *,
    max_frames: int | None = None,
    num_threads: int | None = None,
    progress: Callable[[StatisticsProgress], None] | None = None,
) -> Statistics:
    """The statistics of the features that a dataset was opened with.

    They are those that `SeqRecordWriter` makes of the same frames, but that a quantile may be
    another within its bound.

    Args:
        dataset: an open dataset.
        max_frames: look at about so many frames of each feature, spread evenly; at all by default.
        num_threads: threads; one for each core by default. Each holds 32 MiB of frames, decoded, or
            one frame.
        progress: called from this thread.

    Raises `ClipError` for another number of frames or threads than 1 or more, and what reading
    raises.
    """
    check_integer("max_frames", 1 if max_frames is None else max_frames, least=1)
    threads = usable_cores() if num_threads is None else num_threads
    check_integer("num_threads", threads, least=1)
    step = 1 if max_frames is None else max(1, dataset.num_frames // max_frames)
    names = [n for n, spec in dataset.features.items() if num_channels(spec) is not None]
    done = 0
    found: dict[str, Statistics] = {}
    collect = partial(_collect, dataset, step)
    with request_threads(threads, "statistics") as pool:
        # In order, so that what is merged is the same.
        for task, part in pool.map(collect, _tasks(dataset, names), 2 * threads):
            name = task.feature
            found[name] = found[name].merged(part) if name in found else part
            done += task.num_frames
            if progress is not None:
                progress(StatisticsProgress(done // len(names), dataset.num_frames))
    features = {name: found[name][name] for name in names if name in found}
    return Statistics(dataset.num_frames, features)


class _Task(NamedTuple):
    """One feature of some episodes, by their numbers."""

    feature: str
    episodes: range
    num_frames: int
    first_span: int  # how many spans of the feature come before it


def _tasks(dataset: Dataset, names: Sequence[str]) -> Iterator[_Task]:
    lengths = dataset.contents.index.num_frames.astype(np.int64)
    # An episode begins a task where the frames before it fill one more.
    number = (np.cumsum(lengths) - lengths) // _TASK_FRAMES
    first = dict.fromkeys(names, 0)
    for a, b in pairwise(followed(same=number)):
        for name in names:
            yield _Task(name, range(a, b), int(lengths[a:b].sum()), first[name])
            first[name] += int((-(-lengths[a:b] // _span_frames(dataset.features[name]))).sum())


def _collect(dataset: Dataset, step: int, task: _Task) -> tuple[_Task, Statistics]:
    """The statistics of a task, of one of `step` spans."""
    spec, span = dataset.features[task.feature], task.first_span - 1
    collector, length = StatisticsCollector(Schema([spec])), _span_frames(spec)
    for number in task.episodes:
        episode = dataset.episodes[dataset.contents.index.key(number)]
        present = episode.present(spec.name)
        collector.begin(episode.key)
        for first in range(0, len(episode), length):
            last = min(first + length, len(episode))
            span += 1
            # Multiples of the golden ratio lie evenly, and in step with no length of episodes.
            collector.skip(last - first)
            if (span * _GOLDEN) % 1 * step >= 1:
                continue
            there = np.flatnonzero(present[first:last]) + first
            arrays = episode.read(there.tolist(), features=[spec.name])[spec.name]
            if isinstance(arrays, np.ndarray):
                collector.add_frames(spec.name, arrays, there)
            else:
                for at, array in enumerate(arrays):
                    collector.add_frames(spec.name, array[None], there[at : at + 1])
        collector.keep()
    return task, collector.statistics()


def _span_frames(spec: FeatureSpec) -> int:
    """Frames that are read together: a power of two, so that most spans hold whole chunks."""
    fitting = max(1, min(_SPAN_FRAMES, _SPAN_BYTES // max(1, spec.nbytes)))
    return 1 << (fitting.bit_length() - 1)
