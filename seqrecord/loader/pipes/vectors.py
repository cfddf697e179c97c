"""Steps of vectors from a loader's argument `vectors`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from seqrecord.errors import ClipError, located
from seqrecord.loader.engine.vectors import VectorStep
from seqrecord.loader.frames.array_specs import ArraySpec
from seqrecord.loader.frames.normalization import Normalization
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.option_values import Vector
from seqrecord.loader.pipes.view import View
from seqrecord.store.feature_kinds import is_picture
from seqrecord.store.statistics.by_feature import FeatureStatistics
from seqrecord.store.units import raise_if


def vector_steps(view: View, vectors: Mapping[str, Vector]) -> dict[str, VectorStep]:
    """The steps of a loader's vectors.

    Raises `ClipError` for features that are not in clips, are no vectors of numbers, or whose
    values differ in number, and for missing statistics.
    """
    steps: dict[str, VectorStep] = {}
    for name, one in vectors.items():
        if one.place is not None or one.pad_to is not None:
            steps[name] = placed(view, name, one.place, one.pad_to)
        is_own = one.statistics == "source"
        raise_if(not is_own, "statistics of a Vector is for mixes", "none", repr(one.statistics))
        if (normalization := one.normalize) is None:
            checked_vector(view, name, "pad_to")
            continue
        spec = checked_vector(view, name, "normalize")
        if not isinstance(normalization, Normalization):
            statistics = stored_statistics(view, name)
            dataset = view.dataset.url
            normalization = Normalization.of(statistics, normalization, source=dataset)
            warn_unscaled(name, normalization.unscaled, normalization.source)
        steps[name] = normalized(steps.get(name, VectorStep(spec)), name, normalization)
    return steps


def warn_unscaled(name: str, channels: Sequence[int], source: str) -> None:
    """Log one warning with the channels that quantiles leave unscaled, if there are any."""
    if channels:
        warn_once(
            f"quantiles leave channels {[*channels]} of feature {name} unscaled (statistics of "
            f"{source}): two quantiles differ by less than 1e-4 of max - min, so rare values would "
            "become thousands; mean and deviation scale them"
        )


def placed(view: View, name: str, places: Sequence[int] | None, size: int | None) -> VectorStep:
    """The step that places a feature. Raises `ClipError`."""
    spec = checked_vector(view, name, "pad_to" if places is None else "place")
    with located(ClipError, feature=name):
        count = int(spec.shape[-1] or 0)
        places = tuple(range(count)) if places is None else tuple(places)
        raise_if(
            len(places) != count,
            "place has an index for each value of the feature",
            f"{count} indices",
            f"{len(places)}: {[*places]}",
        )
        needed = max(places, default=0) + 1
        size = needed if size is None else size
        raise_if(
            size < needed,
            "pad_to is smaller than the feature in batches",
            f"a size of at least {needed}",
            size,
        )
    return VectorStep(spec, places, size)


def normalized(step: VectorStep, name: str, normalization: Any) -> VectorStep:
    """A step with a normalization. Raises `ClipError` if the numbers of channels differ."""
    channels, values = len(normalization.offset), step.given.shape[-1] if step.given.shape else 1
    if channels not in (1, values):
        raise ClipError(
            "a normalization with another number of channels",
            feature=name,
            expected=f"{values} channels, as in {step.given}; or 1",
            got=f"{channels} channels",
        )
    return replace(step, normalization=normalization)


def checked_vector(view: View, name: str, argument: str) -> ArraySpec:
    """The spec of a feature before its step.

    Raises `ClipError` unless it is a vector, or, to be placed, vectors [T, D] of a kept window.
    """
    if name not in view.batch_arrays:
        raise ClipError(
            f"{argument}: clips have no such feature",
            feature=name,
            expected=f"some of {', '.join(view.batch_arrays)}",
        )
    spec, padded = view.array_before_step(name), {one.mask_of for one in view.batch_arrays.values()}
    is_scaled = argument == "normalize"
    is_whole = spec.is_fixed and spec.mask_of is None and name not in padded
    dtype = spec.value_kind.number_dtype(spec)
    are_numbers = dtype is not None and dtype.kind in ("iuf" if is_scaled else "biuf")
    kind = view.dataset.features[name].kind if name in view.dataset.features else None
    # Statistics of two axes may be those of a map or of latents: `derive` normalizes windows.
    counts = (0, 1) if is_scaled else (1,) if is_picture(name, spec, kind) else (1, 2)
    if is_whole and are_numbers and len(spec.shape) in counts:
        return spec
    expected = "numbers [D] of each frame; a frame_transform or a clip_transform can make them"
    if is_scaled and are_numbers and len(spec.shape) > 1:
        expected = (
            "at most one axis per frame; images are smaller as stored: normalize them on the "
            f'device, by dataset.statistics["{name}"].normalize(batch["{name}"]); windows that '
            "derive keeps: normalize them there, with its vectors"
        )
    got = str(spec) if is_whole else f"{spec}, of variable shape or its mask"
    raise ClipError(f"{argument} is for vectors", feature=name, expected=expected, got=got)


def is_stored(view: View, name: str) -> bool:
    """Whether clips have a feature's stored values, which its statistics describe."""
    functions = view.draws.functions
    if name not in view.dataset.features or name in view.draws.changed:
        return False
    is_kept = view.transform is None or name in view.unchanged_features
    return is_kept and (functions is None or name in functions.unchanged)


def stored_statistics(view: View, name: str) -> FeatureStatistics:
    """The dataset's statistics of a feature. Raises `ClipError` if they are missing, or if a crop
    or a function changes the values.
    """
    dataset = view.dataset
    if not is_stored(view, name):
        changing = "a crop, flip or resize" if name in view.draws.changed else "a function"
        raise ClipError(
            f"{changing} changes this feature, and the dataset's statistics are of stored values",
            file=dataset.url,
            feature=name,
            expected="Vector(normalize=seqrecord.Normalization.of(statistics)) with "
            "statistics of the changed values, such as loader.compute_statistics() of a "
            "frame_transform",
        )
    if name not in dataset.statistics:
        raise ClipError(
            "normalize needs statistics, and the dataset has none of this feature",
            file=dataset.url,
            feature=name,
            expected=f"`seqrecord stats {dataset.url}`, which stores them; or a "
            "seqrecord.Normalization",
        )
    return dataset.statistics[name]
