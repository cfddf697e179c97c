"""What the datasets of a mix agree on: features, their shapes, kinds, units and drawn sizes."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

from seqrecord.errors import ClipError
from seqrecord.loader.pipes.columns import OF_FEATURES
from seqrecord.loader.pipes.distributed import warn_once
from seqrecord.loader.pipes.view import View
from seqrecord.store.feature_kinds import differences
from seqrecord.store.schema import FeatureSpec

Join: TypeAlias = Literal["union", "intersection"]
"""The features of batches; see `SeqRecordMix`."""


def check_sizes(sources: Mapping[str, View]) -> None:
    """Raise `ClipError` if sources draw the size of a feature differently."""
    drawn: dict[str, dict[str, str]] = {}  # of each feature, the steps of each source
    for source, one in sources.items():
        steps = dict.fromkeys(one.batch_arrays, "none")
        for crops in one.draws.crops:
            text = ", ".join(repr(s.of_features(None)) for s in crops.steps if s.per_batch)
            steps |= dict.fromkeys(crops.features, text or "none")
        for name, text in steps.items():
            drawn.setdefault(name, {})[source] = text
    for name, texts in drawn.items():
        if len({*texts.values()}) > 1:
            raise ClipError(
                "the sources of a mix draw the size of a feature differently",
                feature=name,
                expected="one BatchResize in the clip_transform of every source",
                got=_listed(texts),
            )


def joined_features(sources: Mapping[str, View], join: Join) -> list[str]:
    """The features of batches. Raises `ClipError` for an empty intersection.

    In an intersection, masks and ages that `derive` stored come with their features.
    """
    counts = Counter(name for view in sources.values() for name in view.batch_arrays)
    common = {name for name, count in counts.items() if join == "union" or count == len(sources)}
    for end in OF_FEATURES:
        common |= {name for name in counts if name.removesuffix(end) in common}
    names = [name for name in counts if name in common]
    if not names:
        raise ClipError(
            "no feature is in all sources of the mix",
            expected='one, or features="union"',
            got=_listed({source: ", ".join(view.batch_arrays) for source, view in sources.items()}),
        )
    return names


def differing_shapes(
    sources: Mapping[str, View],
    formed: Mapping[str, View],
    features: Sequence[str],
    alternate: bool | None,
    own_units: Collection[str] | None,
) -> dict[str, str]:
    """The features that cannot be in one batch, with the dtype and shape of each source.

    Args:
        sources: the sources.
        formed: the sources with the steps of the mix.
        features: the features of batches.
        alternate: whether each batch comes from a single source, by the user's choice.
        own_units: features that are normalized by source, which may differ in unit. `None`: all
            normalized ones.

    Raises `ClipError` for different kinds or units of a feature, and for such features if
    `alternate` is false.
    """
    unitless = {
        name
        for view in formed.values()
        for name, step in view.vectors.items()
        if step.normalization is not None and (own_units is None or name in own_units)
    }
    _check_meanings(features, sources, unitless)
    found: dict[str, str] = {}
    for name in () if alternate else features:
        shapes = {
            source: _shape(one, name) for source, one in formed.items() if name in one.batch_arrays
        }
        if len({*shapes.values()}) > 1 or "?" in next(iter(shapes.values())):
            found[name] = _listed(shapes)
    if found and alternate is False:
        name, got = next(iter(found.items()))
        raise ClipError(
            "the sources of a mix disagree in a shape, so they cannot be in one batch",
            feature=name,
            expected="the same dtype and fixed shape in every source; or "
            "single_source_batches=True, for batches of a single source",
            got=got,
        )
    return found


def _shape(view: View, name: str) -> str:
    """Dtype and shape of a feature in a clip, with a `?` for each varying dimension."""
    spec = view.batch_arrays[name]
    frames = () if name in view.squeezed else (view.lengths[name],)
    return spec.value_kind.describe_clip(spec, frames)


def _check_meanings(
    features: Iterable[str], sources: Mapping[str, View], unitless: Collection[str]
) -> None:
    """Raise `ClipError` if kind or unit of a feature differ between sources.

    Logs a warning if only some sources declare them. Features made or changed by user functions are
    exempt, and so are texts, and units of `unitless` features.
    """
    for name in features:
        specs = dict[str, FeatureSpec]()
        for source, view in sources.items():
            spec: FeatureSpec | None = meaning(view, name) if name in view.batch_arrays else None
            if spec is not None and spec.value_kind.number_dtype(spec) is not None:
                specs[source] = spec
        for attribute in ("kind", "unit") if name not in unitless else ("kind",):
            declaring = (s for s in specs.values() if getattr(s, attribute) is not None)
            if (first_spec := next(declaring, None)) is None:
                continue
            for source, spec in specs.items():
                is_known = differences(first_spec, spec).get(attribute)
                if is_known is not None:
                    _report(name, attribute, specs, sources[source], is_known)


def _report(
    name: str, attribute: str, specs: Mapping[str, FeatureSpec], view: View, is_known: bool
) -> None:
    """Raise `ClipError` for a feature whose kind or unit differs in a source, or log a warning if
    it is unknown there.
    """
    declared = {source: getattr(spec, attribute) for source, spec in specs.items()}
    text = next(text for text in declared.values() if text is not None)
    described = f"{view.dataset.contents.stored_name(name)}={text}"
    command = f"`seqrecord edit describe {shlex.quote(view.dataset.url)} --{attribute} {described}`"
    if not is_known:
        problem = f"{attribute} of feature {name} is unknown in a source of a mix"
        warn_once(f"{problem}: {_listed(declared)}; if it is {text}: {command}")
        return
    raise ClipError(
        f"the sources of a mix disagree on the {attribute} of a feature",
        feature=name,
        expected=f"one {attribute}: rename the feature of a source (rename=), convert it, "
        f"depth by DepthToMeters({name!r}); or correct a wrong one: {command}",
        got=_listed(declared),
    )


def _listed(of_source: Mapping[str, object]) -> str:
    """A text for each source, joined for an error."""
    return "; ".join(f"{source}: {text or 'unknown'}" for source, text in of_source.items())


def meaning(view: View, name: str) -> FeatureSpec | None:
    """A feature with its kind and unit; `None` if a user function makes or changes it.

    A function may declare its unit, as `DepthToMeters` does.
    """
    spec, functions = view.dataset.features.get(name), view.draws.functions
    called = () if functions is None else functions.functions
    transform = () if view.transform is None else (view.transform.function,)
    for one in reversed((*transform, *called)):
        if spec is not None and name in (units := getattr(one, "units", {})):
            return replace(spec, unit=units[name])
    is_kept = view.transform is None or name in view.unchanged_features
    return spec if is_kept and (functions is None or name in functions.unchanged) else None
