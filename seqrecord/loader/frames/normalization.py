"""Normalization of vectors: offset and scale per channel, from statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from seqrecord.errors import ClipError
from seqrecord.store.statistics.by_feature import FeatureStatistics
from seqrecord.store.statistics.moments import FloatArray, coarsest_eps, usable_scales
from seqrecord.store.statistics.sketch import Sketch, mixed_moments, mixed_quantiles
from seqrecord.store.text import repr_of
from seqrecord.store.units import is_word

MODES = ("mean_std", "quantiles")
_QUANTILES = (0.01, 0.99)  # become -1 and 1


@dataclass(frozen=True, eq=False)
class Normalization:
    """Normalization of a feature: `(x - offset) / scale` for each channel of the last axis.

    `mode` names the statistics: with "mean_std", `offset` is the mean and `scale` the standard
    deviation; with "quantiles", the quantiles 0.01 and 0.99 become -1 and 1, without clipping, as
    in LeRobot and openpi.

    The scale of a channel is 1 if it is constant, up to rounding, or without finite values. With
    "quantiles" also if the two quantiles differ by less than 1e-4 of the range: `unscaled` lists
    these channels, and loaders log a warning.

    Args:
        mode: "mean_std" or "quantiles".
        offset: float64 [C], one number per channel; C is 1 for one number for all channels.
        scale: float64 [C], above 0.
        source: origin of the statistics, for reports.
        unscaled: channels with the scale 1 because their quantiles are too close together.

    Raises `ClipError` for other modes, shapes or numbers.

    Example:
        seqrecord.add_statistics("records/")
        statistics = seqrecord.open("records/").statistics["pose"]
        normal = seqrecord.Normalization.of(statistics, "quantiles")
        vectors = {"pose": seqrecord.Vector(normalize=normal)}
        pipe = seqrecord.SeqRecordPipe("records/", clip_len=4, batch_size=2, vectors=vectors)
        pose = normal.undo(next(iter(pipe))["pose"])  # as stored
    """

    mode: str
    offset: FloatArray
    scale: FloatArray
    source: str = ""
    unscaled: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not is_word(self.mode, MODES):
            expected, got = " or ".join(map(repr, MODES)), repr_of(self.mode, 50)
            raise ClipError("not a mode of normalization", expected=expected, got=got)
        for name in ("offset", "scale"):
            try:
                values = np.array(getattr(self, name), np.float64)
            except (TypeError, ValueError, OverflowError) as error:
                got = repr_of(getattr(self, name), 50)
                raise ClipError(f"{name} of a normalization", expected="floats", got=got) from error
            values.flags.writeable = False
            object.__setattr__(self, name, values)
        shapes = self.offset.shape, self.scale.shape
        is_right = shapes[0] == shapes[1] and len(shapes[0]) == 1 and len(self.offset)
        if not is_right or not (np.isfinite(self.offset) & (self.scale > 0)).all():
            raise ClipError(
                "invalid numbers of a normalization",
                expected="finite offsets [C] and as many scales above 0",
                got=f"offset {[*shapes[0]]}, scale {[*shapes[1]]}",
            )

    @classmethod
    def of(
        cls, statistics: FeatureStatistics, mode: str = "mean_std", source: str = ""
    ) -> Normalization:
        """Create the normalization of a feature's statistics."""
        argument: Any = statistics
        if not isinstance(argument, FeatureStatistics):
            expected = 'statistics for one feature, such as dataset.statistics["action"]'
            got = repr_of(argument, 100)
            raise ClipError("Normalization.of has no statistics", expected=expected, got=got)
        channels = [WeightedChannels(statistics, 1.0)]
        return cls.merged(channels, len(statistics.sketches), mode, source)

    @classmethod
    def merged(
        cls, parts: Sequence[WeightedChannels], size: int, mode: str = "mean_std", source: str = ""
    ) -> Normalization:
        """Create the normalization of `size` channels from several statistics, by weight.

        A channel's distribution is the mixture of the parts that have it, in proportion to their
        weights w, which sum to 1: mean `m = sum(w * mean)`, variance `sum(w * (std**2 + mean**2)) -
        m**2`, and the mixture's quantiles. The parts' numbers of frames have no effect.
        """
        numbers, eps = np.full((5, size), np.nan), 0.0
        numbers[0] = 0
        for channel in range(size):
            sketches = [(s, part.weight) for part in parts for s in part.sketches_of(channel)]
            if sketches:
                numbers[:, channel] = _numbers(mode, sketches)
                eps = max(eps, coarsest_eps(sketch.dtype for sketch, _ in sketches))
        are_quantiles = mode == "quantiles"
        scale, *ends = numbers[1:]
        scale, narrow = usable_scales(scale, *ends, eps=eps, are_quantiles=are_quantiles)
        return cls(mode, numbers[0], scale, source, tuple(np.flatnonzero(narrow).tolist()))

    def at(self, places: Sequence[int]) -> Normalization:
        """The normalization of the channels `places`."""
        index = list(places) if len(self.offset) > 1 else [0] * len(places)
        unscaled = tuple(number for number, channel in enumerate(index) if channel in self.unscaled)
        offset, scale = self.offset[index], self.scale[index]
        return Normalization(self.mode, offset, scale, self.source, unscaled)

    def undo(self, values: Any) -> Any:
        """Compute `values * scale + offset` of an array or a tensor [..., C].

        A tensor keeps its dtype: pass float64 for offsets with more than seven digits.
        """
        offset, scale = self.offset, self.scale
        if not isinstance(values, np.ndarray):
            offset, scale = values.new_tensor(offset), values.new_tensor(scale)
        return values * scale + offset

    @property
    def numbers(self) -> dict[str, FloatArray]:
        """The statistics as LeRobot names them: `mean` and `std`, or `q01` and `q99`."""
        if self.mode == "mean_std":
            return {"mean": self.offset, "std": self.scale}
        return {"q01": self.offset - self.scale, "q99": self.offset + self.scale}

    def __repr__(self) -> str:
        suffix = f" of {self.source}" if self.source else ""
        return f"Normalization({self.mode!r}, {len(self.offset)} channels{suffix})"


class WeightedChannels(NamedTuple):
    """Statistics of a feature, their weight, and the places of channels in batches.

    Default places: 0, 1, … Statistics of one channel apply to all places.
    """

    statistics: FeatureStatistics
    weight: float
    places: Sequence[int] | None = None

    def sketches_of(self, place: int) -> list[Sketch]:
        """The numbers of the channel at a place in batches, if there are any."""
        sketches, places = self.statistics.sketches, self.places
        number = place if places is None else _index(places, place)
        if number is None or (len(sketches) > 1 and number >= len(sketches)):
            return []
        sketch = sketches[number if len(sketches) > 1 else 0]
        return [sketch] if sketch.count else []


def _index(places: Sequence[int], place: int) -> int | None:
    return places.index(place) if place in places else None


def _numbers(mode: str, parts: Sequence[tuple[Sketch, float]]) -> tuple[float, ...]:
    """Offset, scale, deviation, minimum and maximum of mixed numbers, by weight."""
    mean, std = mixed_moments(parts)
    minimum = min(sketch.min or 0 for sketch, _ in parts)
    maximum = max(sketch.max or 0 for sketch, _ in parts)
    if mode == "mean_std":
        return mean, std, std, minimum, maximum
    ends = mixed_quantiles(parts, _QUANTILES) / 2
    return ends[0] + ends[1], ends[1] - ends[0], std, minimum, maximum
