"""What the batches of a mix have: features, where its sources agree in their shapes, and columns
that tell of clips, joined of what sources tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from seqrecord.engine.batches import Batch
from seqrecord.errors import ClipError
from seqrecord.pipes.clip_loader import ClipLoader
from seqrecord.pipes.selection import ClipSelection
from seqrecord.reading.frames import ArraySpec

__all__ = ["DATASET", "MISSING", "Features", "Join", "check_columns", "columns_of", "made_of"]

Join: TypeAlias = Literal["union", "intersection"]

DATASET = "dataset"  # the column that has the name of each clip's source
MISSING = "_is_missing"  # how the names of masks end, of clips whose source lacks a feature


def made_of(selection: ClipSelection) -> dict[str, tuple[ArraySpec, int]]:
    """What a selection's clips have of each feature: dtype and shape of a frame, and frames."""
    lengths = selection.lengths
    return {name: (spec, lengths[name]) for name, spec in selection.made.items()}


@dataclass(frozen=True)
class Features:
    """The features of batches: dtype and shape of a frame, and how many frames a clip has.

    `missing` has, by feature, the numbers of those sources that lack it. `disagreement` says, in
    words, which shapes do not go into one batch; then there are none.
    """

    specs: Mapping[str, ArraySpec]
    lengths: Mapping[str, int]
    missing: Mapping[str, tuple[int, ...]]
    disagreement: tuple[str, str] | None  # a feature, and what each source has of it

    @classmethod
    def of(cls, sources: Mapping[str, Mapping[str, tuple[ArraySpec, int]]], join: Join) -> Features:
        """Of all sources, or with "intersection" those that all of them have.

        Raises `ClipError` where there is none that all of them have.
        """
        lacking = {
            name: tuple(i for i, made in enumerate(sources.values()) if name not in made)
            for name in dict.fromkeys(name for made in sources.values() for name in made)
        }
        names = [name for name, without in lacking.items() if join == "union" or not without]
        if not names:
            raise ClipError(
                "no feature is in all sources of the mix",
                expected='a common feature, or features="union"',
                got="; ".join(f"{name}: {', '.join(made)}" for name, made in sources.items()),
            )
        specs, lengths, disagreement = {}, {}, None
        for name in names:
            found = {source: made[name] for source, made in sources.items() if name in made}
            specs[name], lengths[name] = next(iter(found.values()))
            if disagreement is None and not _agree(list(found.values())):
                said = (f"{source}: {_shown(*item)}" for source, item in found.items())
                disagreement = name, "; ".join(said)
        missing = {} if disagreement else {n: lacking[n] for n in names if lacking[n]}
        return cls(specs, lengths, missing, disagreement)

    @property
    def missing_arrays(self) -> dict[str, tuple[int, ...]]:
        """Those of `missing` that are arrays, not texts or bytes."""
        return {n: lack for n, lack in self.missing.items() if self.specs[n].value == "array"}


def check_columns(loaders: Mapping[str, ClipLoader], features: Collection[str]) -> None:
    """Raise `ClipError` where what one source tells of its clips has the name of one of these
    features of batches, or of something of another kind that another source tells."""
    kinds: dict[str, object] = dict.fromkeys(features, "feature")
    for source, loader in loaders.items():
        for name, column in loader.selection.told.items():
            kind = "list" if isinstance(column, list) else (column.dtype, column.shape[1:])
            if kinds.setdefault(name, kind) != kind:
                raise ClipError(
                    "what one source tells of its clips has the name of something else in another",
                    feature=name,
                    expected="another name",
                    got=f"a column of source {source!r}",
                )


def columns_of(
    batch: Batch,
    loaders: Mapping[str, ClipLoader],
    *,
    tellers: Collection[str],
    missing: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """Each column a list or a tensor of clips, in the order of the batch.

    `loaders` are the sources, in the order of their numbers. There are the columns of all
    `tellers`, whether or not the batch has clips of these. `missing` has, by feature, the numbers
    of the sources that lack it.
    """
    names, size = list(loaders), len(batch)
    columns: dict[str, Any] = {DATASET: [names[source] for source in batch.source.tolist()]}
    for name, lacking in missing.items():
        columns[name + MISSING] = torch.from_numpy(np.isin(batch.source, lacking))
    for teller in tellers:
        for name, column in loaders[teller].selection.told.items():
            is_list = isinstance(column, list)
            whole = [None] * size if is_list else column.new_zeros((size, *column.shape[1:]))
            columns.setdefault(name, whole)
    draws_dilations = isinstance(columns.get("dilation"), torch.Tensor)
    # Plain Python: NumPy's calls for so few numbers would each wait for the GIL.
    found: dict[tuple[int, int], list[int]] = {}
    kinds = zip(batch.source.tolist(), batch.epoch.tolist(), strict=True)
    for slot, kind in enumerate(kinds):
        found.setdefault(kind, []).append(slot)
    for (source, epoch), some in found.items():
        slots = np.array(some)
        loader = loaders[names[source]]
        told = loader.columns(batch.episode[slots], batch.start[slots], epoch)
        if draws_dilations:
            told.setdefault(
                "dilation", torch.full((len(some),), loader.options.dilations[0], device="cpu")
            )
        for name, column in told.items():
            whole = columns[name]
            if isinstance(column, torch.Tensor):
                whole.numpy()[slots] = column.numpy()
            else:
                for slot, item in zip(some, column, strict=True):
                    whole[slot] = item
    return columns


def _agree(found: Sequence[tuple[ArraySpec, int]]) -> bool:
    """Whether these go into one batch: arrays make a tensor of one shape."""
    kinds = {(spec.value, spec.dtype, spec.shape, length) for spec, length in found}
    return len(kinds) == 1 and all(spec.is_fixed or spec.value != "array" for spec, _ in found)


def _shown(spec: ArraySpec, length: int) -> str:
    if spec.value != "array":
        return f"{spec} [{length}]"
    return str(replace(spec, shape=(length, *spec.shape)))
