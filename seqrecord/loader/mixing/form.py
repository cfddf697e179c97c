"""The form of vectors in a mix's batches: sizes, and normalization over sources."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeAlias

from seqrecord.errors import ClipError
from seqrecord.loader.engine.vectors import VectorStep
from seqrecord.loader.frames.normalization import MODES, Normalization, WeightedChannels
from seqrecord.loader.mixing.mix_datasets import naming_source
from seqrecord.loader.pipes.option_values import Vector, check_vectors
from seqrecord.loader.pipes.vectors import (
    checked_vector,
    normalized,
    placed,
    stored_statistics,
    warn_unscaled,
)
from seqrecord.loader.pipes.view import View
from seqrecord.store.units import check_flag, raise_if

_KINDS = (None, "action", "state", "imu")  # of features that are normalized unless named
_ROBOT = "robot_type"  # the metadata entry

Steps: TypeAlias = dict[str, dict[str, VectorStep]]
"""Steps by source and feature."""


@dataclass(frozen=True)
class MixForm:
    """Arguments of a mix: `vectors`, `camera_padding_masks` and `number_tasks`.

    Raises `ClipError` for invalid values.
    """

    vectors: Vector | Mapping[str, Vector] | None = None
    camera_padding_masks: bool = False
    number_tasks: bool = False

    def __post_init__(self) -> None:
        if self.vectors is not None and not isinstance(self.vectors, Vector):
            object.__setattr__(self, "vectors", check_vectors("vectors", self.vectors))
        own = [self.vectors] if isinstance(self.vectors, Vector) else self._listed.values()
        for vector in own:
            is_wrong, expected = vector.place is not None, "vectors of the source"
            raise_if(is_wrong, "place is an argument of sources", expected, vector)
            is_wrong = isinstance(vector.normalize, Normalization)
            expected = " or ".join(map(repr, MODES))
            raise_if(is_wrong, "normalize of a mix takes stored statistics", expected, vector)
        for argument in ("camera_padding_masks", "number_tasks"):
            object.__setattr__(self, argument, check_flag(argument, getattr(self, argument)))
        if isinstance(self.vectors, Vector):
            problem = "a Vector for all features has no pad_to"
            raise_if(self.vectors.pad_to is not None, problem, "a dict by feature", self.vectors)

    @property
    def _listed(self) -> Mapping[str, Vector]:
        return self.vectors if isinstance(self.vectors, Mapping) else {}

    def normalizing(self, name: str) -> Vector | None:
        """The vector that determines the normalization of a feature; `None` for none."""
        one = self.vectors if isinstance(self.vectors, Vector) else self._listed.get(name)
        return None if one is None or one.normalize is None else one

    @property
    def own_units(self) -> frozenset[str] | None:
        """Features whose units may differ between sources; `None`: all normalized ones."""
        if isinstance(self.vectors, Vector):
            is_own = self.vectors.normalize is not None and self.vectors.statistics == "source"
            return None if is_own else frozenset()
        each = ((name, self.normalizing(name)) for name in self._listed)
        return frozenset(n for n, one in each if one is not None and one.statistics == "source")

    def views(
        self,
        sources: Mapping[str, View],
        shares: Mapping[str, Fraction],
        features: Sequence[str],
    ) -> Mapping[str, View]:
        """The views of the sources in batches with these features: with the steps of the mix after
        their own.

        Raises `ClipError` for features that are not in batches or are no vectors, for sizes that
        are too small, and for missing statistics.
        """
        if self.vectors is None:
            return sources
        steps: Steps = {source: dict(view.vectors) for source, view in sources.items()}
        for name, one in self._listed.items():
            if one.pad_to is not None:
                for source in _having(name, "pad_to", sources, features):
                    with naming_source(source):
                        steps[source][name] = _padded(
                            sources[source], name, steps[source], one.pad_to
                        )
        for name, vector in self._normalized(sources, features).items():
            having = _having(name, "normalize", sources, features)
            for group in _groups(vector.statistics, {source: sources[source] for source in having}):
                weights = {source: float(shares[source]) for source in group}
                self._normalize(name, vector, weights, sources, steps)
        return {source: view.with_vectors(steps[source]) for source, view in sources.items()}

    def _normalized(
        self, sources: Mapping[str, View], features: Sequence[str]
    ) -> dict[str, Vector]:
        """The vectors of normalized features."""
        if not isinstance(self.vectors, Vector):
            return {n: one for n, one in self._listed.items() if one.normalize is not None}
        if self.vectors.normalize is None:
            return {}
        found = [n for n in features if all(_is_usual(one, n) for one in sources.values())]
        problem = "vectors finds none to normalize: features [D] of floats, with the kinds "
        problem += "action, state, imu, or none"
        expected = 'a dict by feature, such as {"action": Vector(normalize="mean_std")}'
        raise_if(not found, problem, expected, ", ".join(features))
        return dict.fromkeys(found, self.vectors)

    def _normalize(
        self,
        name: str,
        vector: Vector,
        weights: Mapping[str, float],
        sources: Mapping[str, View],
        steps: Steps,
    ) -> None:
        """Add the normalization by merged statistics of these sources to their steps."""
        scope, mode = vector.statistics, vector.normalize
        assert isinstance(mode, str)
        parts: list[WeightedChannels] = []
        given: dict[str, VectorStep] = {}
        for source, weight in weights.items():
            view = sources[source]
            with naming_source(source):
                spec = checked_vector(view, name, "normalize")
                given[source] = step = steps[source].get(name, VectorStep(spec))
                if step.normalization is not None:
                    if scope == "source" and not self._listed:
                        return  # by the source's own argument
                    raise ClipError(
                        "normalize of the mix, and of a source",
                        feature=name,
                        expected="normalize of the mix, or of its sources",
                    )
                statistics = stored_statistics(view, name)
                places = step.places or tuple(range(_channels(step) or 0)) or None
                parts.append(WeightedChannels(statistics, weight, places))
        sizes = [int(one or 1) for step in given.values() for one in step.made.shape or (1,)]
        origin = ", ".join(weights)
        if scope != "source":
            total = sum(weights.values())
            origin = ", ".join(f"{n} {w / total:.3g}" for n, w in weights.items())
        merged = Normalization.merged(parts, max(sizes), mode, f"{scope}: {origin}")
        warn_unscaled(name, merged.unscaled, merged.source)
        for source, step in given.items():
            places = step.places or tuple(range(_channels(step) or 1))
            with naming_source(source):
                steps[source][name] = normalized(step, name, merged.at(places))


def _channels(step: VectorStep) -> int | None:
    """The values of a vector before its step; `None` if their number varies."""
    return step.given.shape[0] if step.given.shape else 1


def _is_usual(view: View, name: str) -> bool:
    """Whether a feature is normalized unless named, or not in the source."""
    if name not in view.batch_arrays:
        return True
    spec = view.array_before_step(name)
    padded = {one.mask_of for one in view.batch_arrays.values()}
    is_whole = spec.is_fixed and spec.mask_of is None and name not in padded
    stored = view.dataset.features.get(name)
    kind = None if stored is None else stored.kind
    is_vector = is_whole and len(spec.shape) == 1
    dtype = spec.value_kind.number_dtype(spec)
    return is_vector and dtype is not None and dtype.kind == "f" and kind in _KINDS


def _padded(view: View, name: str, steps: Mapping[str, VectorStep], size: int) -> VectorStep:
    own = steps.get(name)
    step = placed(view, name, None if own is None else own.places, size)
    return step if own is None else replace(step, normalization=own.normalization)


def _having(
    name: str, argument: str, sources: Mapping[str, View], features: Sequence[str]
) -> list[str]:
    """The sources that have a feature. Raises `ClipError` if none has it."""
    if name not in features:
        raise ClipError(
            f"{argument}: batches of the mix have no such feature",
            feature=name,
            expected=f"some of {', '.join(features)}",
        )
    return [source for source, one in sources.items() if name in one.batch_arrays]


def _groups(scope: str, sources: Mapping[str, View]) -> list[list[str]]:
    """The sources whose statistics are merged."""
    if scope == "mix":
        return [list(sources)]
    if scope == "source":
        return [[source] for source in sources]
    groups: dict[str, list[str]] = defaultdict(list)
    for source, view in sources.items():
        with naming_source(source):
            groups[robot_type(view)].append(source)
    return list(groups.values())


def robot_type(view: View) -> str:
    """The metadata `robot_type` of all selected episodes. Raises `ClipError` unless it is one."""
    index, found = view.dataset.contents.index, dict[str, str]()
    for row in view.episode_rows.tolist():
        found.setdefault(repr(index.episode_metadata(row).get(_ROBOT)), index.key(row))
    one = next(iter(found))
    if len(found) > 1 or one == repr(None):
        raise ClipError(
            'statistics="robot_type" takes one robot_type from the metadata of all episodes',
            file=view.dataset.url,
            expected='metadata {"robot_type": …} for each episode, see `seqrecord edit`; or '
            'statistics="source"',
            got=", ".join(f"{robot} ({key})" for robot, key in found.items()),
        )
    return one
