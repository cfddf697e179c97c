"""Which features the batches of a mix have, and whether its sources agree in their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from seqrecord.errors import ClipError
from seqrecord.pipes.selection import ClipSelection
from seqrecord.reading.frames import ArraySpec

__all__ = ["Features", "Join", "made_of", "missing_mask"]

Join: TypeAlias = Literal["union", "intersection"]

_MASK = "_is_missing"


def missing_mask(feature: str) -> str:
    """The name of the mask that says whose clips have no such feature."""
    return f"{feature}{_MASK}"


def made_of(selection: ClipSelection) -> dict[str, tuple[ArraySpec, int]]:
    """What a selection's clips have of each feature: dtype and shape of a frame, and frames."""
    draws = selection.draws
    specs = selection.arrays if draws is None else draws.made
    lengths = selection.clip_frames.lengths if draws is None else draws.lengths
    return {name: (spec, lengths[name]) for name, spec in specs.items()}


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


def _kind(spec: ArraySpec, length: int) -> object:
    """What must be equal in one batch; `None` for what makes no tensor of one shape."""
    return (spec.dtype, spec.shape, length) if spec.is_fixed else None


def _shown(spec: ArraySpec, length: int) -> str:
    return str(replace(spec, shape=(length, *spec.shape)))
