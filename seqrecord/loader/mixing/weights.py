"""The weights of a mix's sources: numbers, sizes to a power, or clips per epoch."""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.loader.sampling.shares import exact_fraction, whole_shares
from seqrecord.store.text import repr_of
from seqrecord.store.units import (
    MAX_INT,
    check,
    check_integer,
    is_integer,
    is_probability,
    raise_if,
)

EpochWeights: TypeAlias = "Mapping[str, float | Fraction] | Literal['clips', 'frames', 'equal']"
"""The weights of a mix in an epoch."""

Weights: TypeAlias = "EpochWeights | Mapping[int, EpochWeights] | Callable[[int], EpochWeights]"
"""The argument `weights` of a mix: for all epochs, from some epochs on, or a function of the
epoch.
"""

_MAX_EPOCHS = 1 << 16  # that a function of the epoch is called for


@dataclass(frozen=True)
class SourceSize:
    """The size of a source: clips of an epoch, and frames of the selected episodes."""

    clips: int
    frames: int

    def __add__(self, other: SourceSize) -> SourceSize:
        return SourceSize(self.clips + other.clips, self.frames + other.frames)


class Phase(NamedTuple):
    """Consecutive epochs of a mix with equal weights: `counts` of the datasets, from `epoch` on."""

    epoch: int
    counts: tuple[int, ...]


@dataclass(eq=False)
class WeightSchedule:
    """The weights of a mix's datasets by epoch. Picklable if the function is.

    Attributes:
        names: the datasets.
        counts_in: integers in the ratio of an epoch's weights, for each dataset.
        changes: the epochs from which on weights differ, beginning with 0; `None`: any.
    """

    names: tuple[str, ...]
    counts_in: Callable[[int], tuple[int, ...]]
    changes: tuple[int, ...] | None = (0,)
    _counts: dict[int, tuple[int, ...]] = field(default_factory=dict, repr=False)

    @property
    def is_constant(self) -> bool:
        """Whether all epochs have the same weights."""
        return self.changes == (0,)

    def counts(self, epoch: int) -> tuple[int, ...]:
        """Integers in the ratio of an epoch's weights.

        Raises `ClipError` for an epoch that a function of the epoch is not called for.
        """
        if self.changes is not None:
            epoch = self.changes[bisect_right(self.changes, epoch) - 1]
        elif epoch >= _MAX_EPOCHS:
            raise ClipError(
                "the epoch is too far for weights that are a function, called for each epoch",
                expected=f"an epoch below {_MAX_EPOCHS:,}; or weights={{0: …, 10: …}}",
                got=epoch,
            )
        if epoch not in self._counts:
            self._counts[epoch] = self.counts_in(epoch)
        return self._counts[epoch]

    def phases(self, first: int, epoch: int) -> Sequence[Phase]:
        """The phases from epoch `first` on, up to the one with an epoch, the last."""
        self.counts(epoch)  # an error is better than all epochs before
        starts: Iterable[int] = range(first, epoch + 1)
        if self.changes is not None:
            starts = (first, *(one for one in self.changes if first < one <= epoch))
        phases = list[Phase]()
        for start in starts:
            counts = self.counts(start)
            if not phases or phases[-1].counts != counts:
                phases.append(Phase(start, counts))
        return phases

    def shares(self, epoch: int) -> dict[str, Fraction]:
        """The share of each dataset in an epoch."""
        counts = self.counts(epoch)
        return {n: Fraction(k, sum(counts)) for n, k in zip(self.names, counts, strict=True)}

    def typical_shares(self) -> dict[str, Fraction]:
        """The greatest share of each dataset, as parts of their sum: of all epochs, or, for a
        function, of epoch 0 and of equal weights. Constant weights are themselves.
        """
        epochs = [self.shares(epoch) for epoch in self.changes or (0,)]
        if self.changes is None:
            epochs.append(dict.fromkeys(self.names, Fraction(1, len(self.names))))
        greatest = {name: max(shares[name] for shares in epochs) for name in self.names}
        return {name: share / sum(greatest.values()) for name, share in greatest.items()}

    def describe(self, first: int, epoch: int) -> Any:
        """The weights of the epochs from `first` up to this one, as JSON: pairs, or a hash if they
        change.
        """
        if self.is_constant:
            return [list(pair) for pair in zip(self.names, self.counts(0), strict=True)]
        text = json.dumps([self.names, self.phases(first, epoch)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class Weighting:
    """The weights of a mix by epoch, from its arguments and the sizes of its datasets. Picklable
    if the user's function is.

    Attributes:
        names: the datasets.
        parts: the source of each dataset, and its part of the source's weight.
        other_sizes: the sizes of sources without a dataset.
        source_clips: clips per epoch, of sources that are mixes and determine them.
        weights_at: the argument `weights`, of an epoch.
        changes: see `WeightSchedule`.
        others: the other arguments of `Proportions.of`.
        max_slots: the greatest sum of integer weights.
    """

    names: tuple[str, ...]
    parts: tuple[tuple[str, Fraction], ...]
    other_sizes: Mapping[str, SourceSize]
    source_clips: Mapping[str, int]
    weights_at: Callable[[int], Any]
    changes: tuple[int, ...] | None
    others: Mapping[str, Any]
    max_slots: int

    def proportions(self, sizes: Sequence[SourceSize], epoch: int) -> Proportions:
        """The weights of sources in an epoch, for datasets of these sizes. Raises `ClipError`."""
        of_sources = dict(self.other_sizes)
        for (source, _), size in zip(self.parts, sizes, strict=True):
            of_sources[source] = of_sources.get(source, SourceSize(0, 0)) + size
        for source, clips in self.source_clips.items():
            of_sources[source] = replace(of_sources[source], clips=clips)
        return Proportions.of(of_sources, weights=self.weights_at(epoch), **self.others)

    def schedule(self, sizes: Sequence[SourceSize]) -> WeightSchedule:
        """The weights by epoch of datasets of these sizes."""
        return WeightSchedule(self.names, partial(self._counts_in, tuple(sizes)), self.changes)

    def _counts_in(self, sizes: Sequence[SourceSize], epoch: int) -> tuple[int, ...]:
        weights = self.proportions(sizes, epoch).weights
        by_dataset = [weights[source] * part for source, part in self.parts]
        expected, got = "a weight above 0 of some source", f"none in epoch {epoch}"
        raise_if(not any(by_dataset), "a mix draws from no source", expected, got)
        return tuple(whole_shares(by_dataset, self.max_slots))


def by_epoch(weights: Any) -> tuple[Callable[[int], Any], tuple[int, ...] | None]:
    """A function of the epoch to its weights, and the epochs from which on they differ.

    These are `None` for a user's function. Raises `ClipError` for epochs that are no numbers from 0
    on.
    """
    if callable(weights):
        return weights, None
    if not isinstance(weights, Mapping) or not any(map(is_integer, weights)):
        weights = {0: weights}
    is_right = all(is_integer(key) and key >= 0 for key in weights) and 0 in weights
    check("weights", weights, is_right, "weights from epochs on, {0: …, 10: …}, beginning with 0")
    weights = {int(epoch): value for epoch, value in weights.items()}
    starts = sorted(weights)
    return partial(_from_epochs, starts, weights), tuple(starts)


def _from_epochs(starts: Sequence[int], weights: Mapping[int, Any], epoch: int) -> Any:
    return weights[starts[bisect_right(starts, epoch) - 1]]


@dataclass(frozen=True)
class Proportions:
    """The weights of sources, at least 0.

    `epoch_clips` is the number of clips in an epoch of the mix over all ranks; `None` without
    `repeat` and `choose`.
    """

    weights: Mapping[str, Fraction]
    epoch_clips: int | None = None

    @classmethod
    def of(
        cls,
        sizes: Mapping[str, SourceSize],
        *,
        weights: Any = None,
        alpha: Any = 1,
        repeat: Any = None,
        choose: Any = None,
    ) -> Proportions:
        """Compute the weights from the arguments of a mix. Raises `ClipError`."""
        if repeat is not None or choose is not None:
            return _chosen(sizes, weights, alpha, repeat, choose)
        if isinstance(weights, Mapping):
            is_right = set(weights) == set(sizes)
            check("weights", weights, is_right, f"weights by source, of {', '.join(sizes)}")
            amounts = {
                name: amount(f"the weight of source {name!r}", weights[name]) for name in sizes
            }
        elif weights == "equal" and isinstance(weights, str):
            amounts = dict.fromkeys(sizes, Fraction(1))
        else:
            is_right = weights is None or (isinstance(weights, str) and weights in _SIZES)
            expected = '"clips", "frames", "equal", or a dict of numbers by source'
            check("weights", weights, is_right, f"{expected}; alpha=0.5 for sizes to a power")
            expected = "a number of 0 (equal weights) to 1 (by size)"
            check("alpha", alpha, is_probability(alpha), expected)
            attribute = _SIZES[weights]
            return cls({n: _power(getattr(size, attribute), alpha) for n, size in sizes.items()})
        problem, expected = (
            "alpha is the power of a size",
            'weights "clips" or "frames", or no alpha',
        )
        raise_if(alpha != 1, problem, expected, weights)
        return cls(amounts)


def amount(name: str, value: Any) -> Fraction:
    """Convert a number of at least 0 by its decimal representation: 0.1 is a tenth.

    Raises `ClipError`.
    """
    is_number = isinstance(value, Real) and not isinstance(value, (bool, np.timedelta64))
    check(name, value, is_number and 0 <= value < math.inf, "a number of at least 0")
    return exact_fraction(value)


def excluded_sources(proportions: Iterable[Any]) -> set[str]:
    """The sources with a weight, `repeat` or `choose` of 0, whatever their size."""
    return {
        name
        for by_source in proportions
        if isinstance(by_source, Mapping)
        for name, value in by_source.items()
        if isinstance(value, Real) and not value
    }


def excluded_always(weights_at: Callable[[int], Any], changes: Sequence[int] | None) -> set[str]:
    """The sources with a weight of 0 in every epoch, if the epochs with changes are known."""
    if changes is None:
        return set()
    return set.intersection(*(excluded_sources([weights_at(epoch)]) for epoch in changes))


_SIZES = {None: "clips", "clips": "clips", "frames": "frames"}
"""Attributes of `SourceSize`, by the argument `weights`."""


def _power(size: int, alpha: float) -> Fraction:
    return Fraction(size) if alpha == 1 else Fraction(str(float(size) ** float(alpha)))


def _chosen(
    sizes: Mapping[str, SourceSize], weights: Any, alpha: Any, repeat: Any, choose: Any
) -> Proportions:
    """Weights by clips per epoch: `choose`, or `repeat` times the source's clips, or all."""
    raise_if(
        weights is not None or alpha != 1,
        "repeat and choose are numbers of clips, and exclude weights",
        "weights; or repeat and choose, with which the other sources give each clip once",
        f"weights={repr_of(weights)}, alpha={repr_of(alpha)}",
    )
    times, numbers = ({} if by_source is None else by_source for by_source in (repeat, choose))
    for name, by_source in (("repeat", times), ("choose", numbers)):
        is_right = isinstance(by_source, Mapping) and set(by_source) <= set(sizes)
        check(name, by_source, is_right, f"a dict by source, of {', '.join(sizes)}")
    if both := [name for name in times if name in numbers]:
        problem = f"source {both[0]!r} of a mix has repeat and choose"
        raise ClipError(problem, expected="only one", got=(times[both[0]], numbers[both[0]]))
    clips = {name: size.clips for name, size in sizes.items()}
    for name, number in numbers.items():
        clips[name] = check_integer(f"choose of source {name!r}", number, least=0, most=MAX_INT)
    for name, value in times.items():
        factor = amount(f"repeat of source {name!r}", value)
        clips[name] = math.floor(sizes[name].clips * factor)
        problem = f"repeat of source {name!r} is too small: it gives no clip"
        expected = f"at least 1/{sizes[name].clips}, or 0 to exclude the source"
        raise_if(not clips[name] and bool(factor), problem, expected, value)
    return Proportions({name: Fraction(n) for name, n in clips.items()}, sum(clips.values()))
