"""Computes a dataset's statistics from its frames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from seqrecord.collecting import StatisticsCollector
from seqrecord.cores import usable_cores
from seqrecord.errors import ClipError
from seqrecord.reading.reader import SeqRecordReader
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.statistics import Statistics, num_channels
from seqrecord.storage import request_threads

__all__ = ["StatisticsProgress", "compute_statistics"]

_SPAN_BYTES = 32 << 20  # decoded, of one feature, that a thread holds
_SPAN_FRAMES = 1024  # at most; a power of two, as the frames of chunks are
_TASK_FRAMES = 4096
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class StatisticsProgress:
    """Frames of features that have been looked at, of all."""

    frames: int
    total_frames: int


def compute_statistics(
    dataset: SeqRecordReader,
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
    for name, value in (("max_frames", max_frames), ("num_threads", num_threads)):
        if value is not None and value < 1:
            raise ClipError(f"not a number for {name}", expected="1 or more", got=value)
    threads = num_threads or usable_cores()
    step = 1 if max_frames is None else max(1, dataset.num_frames // max_frames)
    names = [n for n, spec in dataset.features.items() if num_channels(spec) is not None]
    total, done = len(names) * dataset.num_frames, 0
    found: dict[str, Statistics] = {}
    with request_threads(threads, "statistics") as pool:
        # In order, so that what is merged is the same.
        for task, part in pool.map(_Task.collect, _tasks(dataset, names, step), 2 * threads):
            name = task.feature
            found[name] = found[name].merged(part) if name in found else part
            done += task.num_frames
            if progress is not None:
                progress(StatisticsProgress(done, total))
    features = {name: statistics[name] for name, statistics in found.items()}
    return Statistics(dataset.num_frames, features)


@dataclass(frozen=True)
class _Task:
    """One feature of some episodes."""

    dataset: SeqRecordReader
    feature: str
    episodes: Sequence[int]
    num_frames: int
    first_span: int  # how many spans of the feature come before it
    step: int  # of so many spans one is looked at

    def collect(self) -> tuple[_Task, Statistics]:
        spec = self.dataset.features[self.feature]
        collector = StatisticsCollector(Schema([spec]))
        length, span = _span_frames(spec), self.first_span - 1
        for number in self.episodes:
            episode = self.dataset.episodes[self.dataset.index.key(number)]
            present = episode.present(self.feature)
            collector.begin(episode.key)
            for first in range(0, len(episode), length):
                last = min(first + length, len(episode))
                span += 1
                # Multiples of the golden ratio lie evenly, and in step with no length of episodes.
                collector.skip(last - first)
                if (span * _GOLDEN) % 1 * self.step >= 1:
                    continue
                there = np.flatnonzero(present[first:last]) + first
                arrays = episode.read(there.tolist(), features=[self.feature])[self.feature]
                if isinstance(arrays, np.ndarray):
                    collector.add_frames(self.feature, arrays, there)
                else:
                    for at, array in enumerate(arrays):
                        collector.add_frames(self.feature, array[None], there[at : at + 1])
            collector.keep()
        return self, collector.statistics()


def _tasks(dataset: SeqRecordReader, names: Sequence[str], step: int) -> Iterator[_Task]:
    lengths = dataset.index.num_frames.astype(np.int64)
    for name in names:
        size = _span_frames(dataset.features[name])
        episodes: list[int] = []
        frames = spans = before = 0
        for number, length in enumerate(lengths.tolist()):
            episodes.append(number)
            frames += length
            spans += -(-length // size)
            if frames >= _TASK_FRAMES or number == len(lengths) - 1:
                yield _Task(dataset, name, tuple(episodes), frames, before, step)
                before += spans
                episodes, frames, spans = [], 0, 0


def _span_frames(spec: FeatureSpec) -> int:
    """Frames that are read together: a power of two, so that most spans hold whole chunks."""
    fitting = max(1, min(_SPAN_FRAMES, _SPAN_BYTES // max(1, spec.nbytes)))
    return 1 << (fitting.bit_length() - 1)
