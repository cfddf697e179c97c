"""Statistics of a mix for LeRobot's processors, and the values that these normalise.

LeRobot normalises batches with one set of statistics, which a checkpoint keeps for deployment. So a
mix leaves its batches as stored, or maps them to the values of one robot::

    statistics=         statistics of the checkpoint                   batches
    None                of all frames, as of a merged dataset          as stored
    "mix"               of the mixture by weight                       as stored
    "source"            of the source `deploy`                         (x - o) / s * S + O
    "robot_type"        of the robot in the source `deploy`, by weight (x - o) / s * S + O

with offset and scale `o, s` of a clip's source (or robot), and `O, S` of the deployed one. The
processor then gives `(x - o) / s`, as `SeqRecordMix` does by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np

from seqrecord.errors import ClipError, located
from seqrecord.formats.export.lerobot_meta import QUANTILES, STATISTIC_NAMES
from seqrecord.loader.frames.normalization import Normalization, WeightedChannels
from seqrecord.loader.mixing.form import MixForm, robot_type
from seqrecord.loader.pipes.vectors import is_stored, stored_statistics, warn_unscaled
from seqrecord.robots.lerobot.mix_sources import MixSource
from seqrecord.store.statistics.moments import FloatArray, coarsest_eps, usable_scales
from seqrecord.store.statistics.sketch import Sketch, mixed_moments, mixed_quantiles

_NOTHING = (-1.0, 1.0, 0.0, 1.0, -1.0, -0.8, 0.0, 0.8, 1.0)  # 0 stays 0 in all modes
_ENDS = {"MIN_MAX": ("min", "max"), "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90")}

Numbers = dict[str, FloatArray]
"""`STATISTIC_NAMES` of a feature, float64 [size]."""


@dataclass(frozen=True, eq=False)
class MixStatistics:
    """Statistics for the processors, and steps of sources.

    Attributes:
        entries: entries of `stats.json` by feature.
        fills: values of padding that the processors normalise to 0, float64 [size] by feature.
        normalizations: steps by source and feature.
        shown: the origin of the statistics.
    """

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    fills: dict[str, FloatArray] = field(default_factory=dict)
    normalizations: dict[str, dict[str, Normalization]] = field(default_factory=dict)
    shown: str = ""

    @classmethod
    def of(
        cls,
        sources: Sequence[MixSource],
        form: MixForm,
        weights: Mapping[str, float],
        features: Sequence[str],
        *,
        deploy: str | None,
        modes: Mapping[str, str],
    ) -> MixStatistics:
        """Compute the statistics of these features.

        Args:
            sources: the sources.
            form: the arguments of the mix.
            weights: share of each source.
            features: vectors of batches.
            deploy: name of the source whose statistics a checkpoint contains.
            modes: LeRobot's normalisation for each feature type, such as `{"ACTION": "MIN_MAX"}`.

        Raises `ClipError` for statistics "source" or "robot_type" without `deploy`, and for
        missing statistics.
        """
        names = [source.name for source in sources]
        if deploy is not None and deploy not in names:
            raise ClipError(
                "no such source to deploy to", expected=", ".join(names), got=repr(deploy)
            )
        statistics = cls(normalizations={name: {} for name in names})
        scopes = {name: _scope(form, sources, name) for name in features}
        mapped_features = [n for n, scope in scopes.items() if scope in ("source", "robot_type")]
        if mapped_features and deploy is None:
            raise ClipError(
                "a checkpoint contains the statistics of one robot, and vectors of the mix have "
                "others for each",
                feature=mapped_features[0],
                expected=f"deploy (SEQRECORD_LEROBOT_DEPLOY), one of {', '.join(names)}; or "
                "statistics: mix",
                got=f"statistics {scopes[mapped_features[0]]!r}",
            )
        for name, scope in scopes.items():
            statistics._add(name, scope, sources, weights, deploy or "", _mode(name, modes))
        return statistics

    def _add(
        self,
        name: str,
        scope: str | None,
        sources: Sequence[MixSource],
        weights: Mapping[str, float],
        deploy: str,
        mode: str,
    ) -> None:
        parts = [_Part.of(s, name, weights[s.name]) for s in sources if s.has(name)]
        if not parts:
            return
        size = parts[0].size
        if scope in (None, "mix") and len({*map(attrgetter("dtype"), parts)}) > 1:
            for part in parts:  # which become float32, as in LeRobot
                unchanged = Normalization("mean_std", np.zeros(1), np.ones(1), "the stored values")
                self.normalizations[part.source.name][name] = unchanged.at(range(len(part.places)))
        if scope is None:
            num_lacking = sum(int(s.lengths.sum()) for s in sources if not s.has(name))
            numbers = _mixture(parts, size, num_lacking)
            self.entries[name] = _entry(numbers, parts)
            return
        if scope == "mix":
            mixture = _mixture(parts, size, None)
            fitted = _Fitted.of(mixture, mode, name, parts)
            self.entries[name] = _entry(fitted.numbers, parts)
            self.fills[name] = fitted.offset
            return
        groups = {part.source.name: _group(part, parts, scope) for part in parts}
        fitted_by_source = {
            source: _Fitted.of(_mixture(group, size, None), mode, name, group)
            for source, group in groups.items()
        }
        values = np.tile(np.array(_NOTHING)[:, None], size)
        trivial = dict(zip(STATISTIC_NAMES, values, strict=True))
        deployed = (
            fitted_by_source[deploy]
            if deploy in fitted_by_source
            else _Fitted.of(trivial, mode, name, parts)
        )
        self.entries[name] = _entry(deployed.numbers, groups.get(deploy, parts))
        self.fills[name] = deployed.offset
        for part in parts:
            stored = fitted_by_source[part.source.name]
            ratio = stored.scale / deployed.scale
            step = Normalization(
                "mean_std", stored.offset - deployed.offset * ratio, ratio, f"{deploy}'s values"
            )
            self.normalizations[part.source.name][name] = step.at(part.places)


@dataclass(frozen=True, eq=False)
class _Part:
    """The statistics of a feature in a source."""

    source: MixSource
    channels: WeightedChannels
    size: int
    num_frames: int
    dtype: np.dtype[Any]

    @property
    def places(self) -> Sequence[int]:
        """The places of its channels in batches."""
        return range(self.size) if self.channels.places is None else self.channels.places

    @classmethod
    def of(cls, source: MixSource, name: str, weight: float) -> _Part:
        step, view = source.vectors.get(name), source.given
        with located(ClipError, file=source.dataset.url):
            statistics = stored_statistics(view, name)
        spec = view.batch_arrays[name] if step is None else step.made
        size = int(spec.shape[-1] or 1) if spec.shape else 1
        places = None if step is None else step.places
        dtype = view.array_before_step(name).dtype
        count = int(source.lengths.sum())
        return cls(source, WeightedChannels(statistics, weight, places), size, count, dtype)


def _scope(form: MixForm, sources: Sequence[MixSource], name: str) -> str | None:
    """The normalization of a feature in the mix."""
    sources_with_feature = [source for source in sources if source.has(name)]
    if normalizing_names := [
        source.name for source in sources_with_feature if _normalizes(source, name)
    ]:
        raise ClipError(
            f"source {normalizing_names[0]!r} normalises a feature, and LeRobot's processors "
            "normalise it too",
            feature=name,
            expected="no normalize in the source; that of the mix, if any",
        )
    steps = [source.vectors.get(name) for source in sources_with_feature]
    if not any(step is not None and step.normalization is not None for step in steps):
        return None
    vector = form.normalizing(name)
    return None if vector is None else vector.statistics


def _normalizes(source: MixSource, name: str) -> bool:
    vector = (source.options.vectors or {}).get(name)
    return vector is not None and vector.normalize is not None


def _group(part: _Part, parts: Sequence[_Part], scope: str) -> list[_Part]:
    """The parts whose statistics are merged with a part."""
    if scope == "source":
        return [part]
    robot = robot_type(part.source.given)
    return [candidate for candidate in parts if robot_type(candidate.source.given) == robot]


def _mode(name: str, modes: Mapping[str, str]) -> str:
    """LeRobot's normalisation of a feature; its types follow from the name."""
    kind = "ACTION" if name.startswith("action") else "STATE"
    if name == "observation.environment_state":
        kind = "ENV"
    return modes.get(kind, "MEAN_STD" if not modes else "IDENTITY")


@dataclass(frozen=True, eq=False)
class _Fitted:
    """Offset and scale of LeRobot's normalisation, and statistics that give both in a processor."""

    numbers: Numbers
    offset: FloatArray
    scale: FloatArray

    @classmethod
    def of(cls, numbers: Numbers, mode: str, name: str, parts: Sequence[_Part]) -> _Fitted:
        """Create from true statistics. `usable_scales` replaces deviations or ends: a processor
        divides by 1e-8 for a scale of 0.
        """
        ends, std = _ENDS.get(mode), numbers["std"]
        offset, scale = (numbers["mean"], std) if mode == "MEAN_STD" else (0 * std, 0 * std)
        if ends is not None:
            low, high = (numbers[end_name] for end_name in ends)
            offset, scale = (low + high) / 2, (high - low) / 2
        eps = coarsest_eps(s.dtype for part in parts for s in part.channels.statistics.sketches)
        usable, narrow = usable_scales(
            *(scale, std, numbers["min"], numbers["max"]),
            eps=eps,
            are_quantiles=mode.startswith("QUANTILE"),
        )
        source_names = ", ".join(part.source.name for part in parts)
        warn_unscaled(name, np.flatnonzero(narrow).tolist(), source_names)
        replaced = {"std": usable} if mode == "MEAN_STD" else {}
        if ends is not None:
            at_ends = zip(ends, (offset - usable, offset + usable), strict=True)
            replaced = {
                end_name: np.where(usable == scale, numbers[end_name], end)
                for end_name, end in at_ends
            }
        return cls(numbers | replaced, offset, usable)


def _entry(numbers: Numbers, parts: Sequence[_Part]) -> dict[str, Any]:
    count = sum(part.num_frames for part in parts)
    return {**{name: values.tolist() for name, values in numbers.items()}, "count": [count]}


def _mixture(parts: Sequence[_Part], size: int, num_missing: int | None) -> Numbers:
    """Statistics of a mixture, for each place in batches.

    With `missing`, parts count by frames, and padding and `missing` more frames are zeros, as in a
    merged dataset; with `None` by weight, and without padding.
    """
    columns = [_channel(parts, place, num_missing) for place in range(size)]
    return {
        name: np.array(numbers)
        for name, numbers in zip(STATISTIC_NAMES, zip(*columns, strict=True), strict=True)
    }


def _channel(parts: Sequence[_Part], place: int, num_missing: int | None) -> Sequence[float]:
    """`STATISTIC_NAMES` of the values at a place."""
    weighted_sketches: list[tuple[Sketch, float]] = []
    zeros = 0.0 if num_missing is None else float(num_missing)
    for part in parts:
        weight = part.channels.weight if num_missing is None else float(part.num_frames)
        sketches = part.channels.sketches_of(place)
        weighted_sketches += [(sketch, weight) for sketch in sketches]
        if not sketches and num_missing is not None:
            zeros += weight
    if not weighted_sketches:
        return _NOTHING if num_missing is None else (0.0,) * len(STATISTIC_NAMES)
    sketches = [sketch for sketch, _ in weighted_sketches]
    low = min(sketch.min or 0.0 for sketch in sketches)
    high = max(sketch.max or 0.0 for sketch in sketches)
    if zeros:
        low, high = min(low, 0.0), max(high, 0.0)
    mean, std = mixed_moments(weighted_sketches, zeros)
    return (low, high, mean, std, *mixed_quantiles(weighted_sketches, QUANTILES, zeros).tolist())


def are_stored(source: MixSource, name: str) -> bool:
    """Whether the dataset of a source has statistics of a feature in its batches."""
    return is_stored(source.given, name) and name in source.dataset.statistics
