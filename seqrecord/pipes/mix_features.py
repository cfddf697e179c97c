"""Which features the batches of a mix have, and whether its sources agree in their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from seqrecord.errors import ClipError
from seqrecord.pipes.selection import ClipSelection
from seqrecord.reading.frames import ArraySpec

__all__ = ["DATASET", "MISSING", "Features", "Join", "is_text", "made_of"]

Join: TypeAlias = Literal["union", "intersection"]

DATASET = "dataset"
"""The column that has the name of each clip's source."""

MISSING = "_is_missing"
"""How the names of masks end, of clips whose source lacks a feature."""


def made_of(selection: ClipSelection) -> dict[str, tuple[ArraySpec, int]]:
    """What a selection's clips have of each feature: dtype and shape of a frame, and frames."""
    return {name: (spec, selection.lengths[name]) for name, spec in selection.made.items()}


@dataclass(frozen=True)
class Features:
    """The features of batches: dtype and shape of a frame, and how many frames a clip has.

    `missing` has, by feature, the numbers of those sources that lack it. `disagreement` says, in
    words, which shapes do not go into one batch; then there are none.
    """

    specs: Mapping[str, ArraySpec]
    lengths: Mapping[str, int]
    missing: Mapping[str, tuple[int, ...]]
    disagreement: tuple[str, str] | None
    """A feature, and what each source has of it."""

    @classmethod
    def of(cls, sources: Mapping[str, Mapping[str, tuple[ArraySpec, int]]], join: Join) -> Features:
        """Of all sources, or with "intersection" those that all of them have.

        Raises `ClipError` where there is none that all of them have.
        """
        names = list(dict.fromkeys(name for made in sources.values() for name in made))
        if join == "intersection":
            names = [name for name in names if all(name in made for made in sources.values())]
            if not names:
                raise ClipError(
                    "no feature is in all sources of the mix",
                    expected='a common feature, or features="union"',
                    got="; ".join(f"{name}: {', '.join(made)}" for name, made in sources.items()),
                )
        specs: dict[str, ArraySpec] = {}
        lengths: dict[str, int] = {}
        missing: dict[str, tuple[int, ...]] = {}
        disagreement = None
        for name in names:
            found = {source: made[name] for source, made in sources.items() if name in made}
            kinds = {_kind(spec, length) for spec, length in found.values()}
            if disagreement is None and (len(kinds) > 1 or None in kinds):
                said = (f"{source}: {_shown(*item)}" for source, item in found.items())
                disagreement = name, "; ".join(said)
            specs[name], lengths[name] = next(iter(found.values()))
            lacking = tuple(i for i, made in enumerate(sources.values()) if name not in made)
            if lacking:
                missing[name] = lacking
        if disagreement is not None:
            return cls(specs, lengths, {}, disagreement)
        return cls(specs, lengths, missing, None)

    @property
    def arrays(self) -> dict[str, ArraySpec]:
        """Those that are arrays, not texts or bytes."""
        return {name: spec for name, spec in self.specs.items() if not is_text(spec)}


def is_text(spec: ArraySpec) -> bool:
    """Whether frames are `str` or `bytes`, which come in lists."""
    return spec.value != "array"


def _kind(spec: ArraySpec, length: int) -> object:
    """What must be equal in one batch; `None` for arrays that make no tensor of one shape."""
    if is_text(spec):
        return spec.value, length
    return (spec.dtype, spec.shape, length) if spec.is_fixed else None


def _shown(spec: ArraySpec, length: int) -> str:
    if is_text(spec):
        return f"{spec} [{length}]"
    return str(replace(spec, shape=(length, *spec.shape)))
