"""How well an epoch is mixed: its steps, compared with a full shuffle of the dataset.

A *step* is what one optimizer step sees: the batches of all ranks with one number. With DataLoader
workers it is one batch of each rank, which one worker has made::

    rank 0, workers 0 and 1     batch 0 of worker 0    batch 0 of worker 1    batch 1 of worker 0
    rank 1, workers 0 and 1     batch 0 of worker 0    batch 0 of worker 1    batch 1 of worker 0
                                step 0                 step 1                 step 2

`measure` takes the clips of an epoch by step and rank, and nothing of the order that made them. A
full shuffle deals the same clips to the same batches at random. Its figures are expectations in
closed form, so only those of the order depend on a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["EpochRows", "Figure", "Mixing", "mean", "measure", "shuffled_episodes"]

IntArray = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

TAIL = 20  # the last steps are one in so many
WINDOW = 100  # steps whose composition counts


@dataclass(frozen=True, eq=False)
class EpochRows:
    """The clips of an epoch, of all ranks, in any order; int64[n] each.

    Attributes:
        step: number of the step, from 0 on.
        rank: number of the rank.
        episode: number of the episode.
        start: first frame in the episode.
        reader: whoever decodes a frame once for all its clips: a cursor in a run of clips, or a
            process if frames are resident. Numbers differ between ranks and workers. `None`: no
            frame is decoded.
    """

    step: IntArray
    rank: IntArray
    episode: IntArray
    start: IntArray
    reader: IntArray | None = None

    def __len__(self) -> int:
        return len(self.step)


class Figure(NamedTuple):
    """A figure of an order, and of a full shuffle of the dataset."""

    value: float
    full: float

    @property
    def ratio(self) -> float:
        """The figure in parts of the full shuffle's."""
        return self.value / self.full if self.full else float("nan")


@dataclass(frozen=True)
class Mixing:
    """Figures of an epoch.

    Attributes:
        num_steps: number of steps.
        step_episodes: distinct episodes in a step, averaged over steps.
        rank_episodes: distinct episodes in a batch of a rank, averaged over batches.
        tail_episodes: distinct episodes in a step of the last twentieth.
        phase: share of the variance of `start / length` that lies between steps; 1 if the clips of
            each step are at one place of their episodes.
        tail_phase: the same of the steps of the last twentieth: the mean square of their distance
            from the epoch's mean, in parts of the variance.
        neighbours: other clips of its step that share frames with a clip, averaged over clips.
        composition: variance of an episode's clips in 100 steps, summed over episodes and averaged
            over the epoch's whole hundreds; `None` for an epoch of less than 200 steps.
        decodes: frames decoded, those from the keyframe on included, for each frame that clips
            need; 0 if nothing is decoded.
    """

    num_steps: int
    step_episodes: Figure
    rank_episodes: Figure
    tail_episodes: Figure
    phase: Figure
    tail_phase: Figure
    neighbours: Figure
    composition: Figure | None
    decodes: float


def measure(
    rows: EpochRows, num_frames: Sequence[int] | IntArray, span: int, gop: int = 1
) -> Mixing:
    """Measure the steps of an epoch.

    Args:
        rows: its clips, at least one.
        num_frames: length of each episode, [episodes].
        span: consecutive frames of a clip.
        gop: frames from a keyframe to the next one, counted from an episode's first frame; 1 for
            frames that decode alone.
    """
    lengths = np.asarray(num_frames, np.int64)
    num_steps = int(rows.step.max()) + 1
    tail = slice(num_steps - max(1, num_steps // TAIL), None)
    clips = np.bincount(rows.episode, minlength=len(lengths))
    _, batch = np.unique(rows.rank * num_steps + rows.step, return_inverse=True)
    step_episodes = _episodes(rows.step, rows.episode, clips)
    phase = _phase(rows.step, rows.start / lengths[rows.episode])
    return Mixing(
        num_steps,
        Figure(*step_episodes.mean(axis=1).tolist()),
        Figure(*_episodes(batch, rows.episode, clips).mean(axis=1).tolist()),
        Figure(*step_episodes[:, tail].mean(axis=1).tolist()),
        Figure(*phase.mean(axis=1).tolist()),
        Figure(*phase[:, tail].mean(axis=1).tolist()),
        _neighbours(rows, span),
        _composition(rows, clips, num_steps),
        _decodes(rows, lengths, span, gop),
    )


def mean(mixings: Sequence[Mixing]) -> Mixing:
    """The mean of epochs with equal numbers of steps, figure by figure."""
    figures: dict[str, Any] = {}
    for field in fields(Mixing):
        values = [getattr(mixing, field.name) for mixing in mixings]
        figures[field.name] = values[0]
        if isinstance(values[0], Figure):
            figures[field.name] = Figure(*np.mean(values, axis=0).tolist())
    decodes = float(np.mean([mixing.decodes for mixing in mixings]))
    return Mixing(**{**figures, "decodes": decodes})


def shuffled_episodes(clips: IntArray, size: int) -> float:
    """Expected distinct episodes among `size` random clips, by each episode's number of `clips`."""
    total = int(clips.sum())
    # The logarithm of n! for each n, because binomial coefficients are beyond floats.
    factorial = np.append(0.0, np.cumsum(np.log(np.arange(1, total + 1))))
    others = total - clips
    is_avoidable = others >= size
    few = np.where(is_avoidable, others - size, 0)
    avoided = factorial[others] - factorial[few] + factorial[total - size] - factorial[total]
    return float((1 - np.where(is_avoidable, np.exp(avoided), 0.0)).sum())


def _episodes(group: IntArray, episode: IntArray, clips: IntArray) -> Floats:
    """Distinct episodes in each group of clips, and in a random group of its size; [2, groups]."""
    sizes = np.bincount(group)
    pairs = _distinct(group * len(clips) + episode)
    found = np.bincount(pairs // len(clips), minlength=len(sizes))
    different, number = np.unique(sizes, return_inverse=True)
    full = np.array([shuffled_episodes(clips, size) for size in different.tolist()])
    return np.stack((found, full[number]))


def _phase(step: IntArray, phase: Floats) -> Floats:
    """Each step's share of the variance of phases between steps, times the number of steps, and
    that of a full shuffle; [2, steps].
    """
    sizes, total = np.bincount(step), len(step)
    variance = phase.var()
    distance = np.bincount(step, phase - phase.mean()) / sizes
    weight = sizes * len(sizes) / total
    found = weight * distance**2 / (variance or 1.0)
    # The variance of the mean of `sizes` phases, drawn without replacement.
    full = weight * (total - sizes) / (max(1, total - 1) * sizes)
    return np.stack((found, full * (variance > 0)))


def _neighbours(rows: EpochRows, span: int) -> Figure:
    """Other clips of its step that share frames with a clip, averaged over clips."""
    sizes, total = np.bincount(rows.step), len(rows)
    everywhere = _overlapping(np.zeros_like(rows.step), rows, span)
    together = float((sizes * (sizes - 1)).sum()) / (total * max(1, total - 1))
    return Figure(_overlapping(rows.step, rows, span), everywhere * together)


def _overlapping(group: IntArray, rows: EpochRows, span: int) -> float:
    """Other clips of its group that share frames with a clip, averaged over clips."""
    width = int(rows.start.max()) + 2 * span  # of an owner's keys: no clip reaches another owner's
    owner = group * (int(rows.episode.max()) + 1) + rows.episode
    keys = np.sort(owner * width + rows.start)
    stop = np.searchsorted(keys, keys + span, side="left")
    begin = np.searchsorted(keys, keys - span, side="right")
    return float((stop - begin - 1).mean())


def _composition(rows: EpochRows, clips: IntArray, num_steps: int) -> Figure | None:
    """Variance of the clips of an episode in `WINDOW` steps, summed over episodes."""
    num_windows = num_steps // WINDOW
    if num_windows < 2:
        return None
    window, episode = rows.step // WINDOW, rows.episode
    is_whole = window < num_windows
    pairs = window[is_whole] * len(clips) + episode[is_whole]
    counts = np.bincount(pairs, minlength=num_windows * len(clips)).reshape(num_windows, -1)
    sizes, total = counts.sum(axis=1), len(rows)
    parts = clips / total
    found = ((counts - sizes[:, None] * parts) ** 2).sum(axis=1)
    # The variances of hypergeometric distributions.
    full = sizes * (total - sizes) / (total - 1) * (parts * (1 - parts)).sum()
    return Figure(float(found.mean()), float(full.mean()))


def _decodes(rows: EpochRows, lengths: IntArray, span: int, gop: int) -> float:
    """Frames that readers decode, for each frame that clips need."""
    if rows.reader is None:
        return 0.0
    _, reader = np.unique(rows.reader, return_inverse=True)
    width = int(lengths.max()) + span + gop  # … of an owner's frames
    width += -width % gop
    first = rows.episode * width + rows.start
    needed_begin, needed_stop = _united(first, span)
    begin, stop = _united(reader * (len(lengths) * width) + first, span)
    # An interval passes through groups of pictures, and two of them may end in one group.
    first_group, last_group = begin // gop, (stop - 1) // gop
    counts = last_group - first_group + 1
    interval = np.repeat(np.arange(len(begin)), counts)
    group = np.arange(len(interval)) + (first_group - np.cumsum(counts) + counts)[interval]
    decoded = np.minimum(stop[interval], (group + 1) * gop) - group * gop
    is_last = np.append(np.diff(group) > 0, True)
    return int(decoded[is_last].sum()) / int((needed_stop - needed_begin).sum())


def _distinct(values: IntArray) -> IntArray:
    """The distinct values, ascending. `numpy.unique` hashes, which takes ten times as long."""
    values = np.sort(values)
    different: IntArray = values[np.append(True, np.diff(values) > 0)]
    return different


def _united(first: IntArray, span: int) -> tuple[IntArray, IntArray]:
    """The union of the intervals `[first, first + span)`, as intervals that do not touch."""
    begin = _distinct(first)
    is_new = np.diff(begin) > span
    return begin[np.append(True, is_new)], begin[np.append(is_new, True)] + span
