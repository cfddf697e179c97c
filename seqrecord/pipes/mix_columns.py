"""What a batch of a mix tells of its clips beside their features, joined of what sources tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from seqrecord.clips import IntArray
from seqrecord.engine.batches import Batch
from seqrecord.engine.mix_channel import MixedBatch
from seqrecord.errors import ClipError
from seqrecord.pipes.clip_loader import ClipLoader
from seqrecord.pipes.mix_features import DATASET, MISSING

__all__ = ["columns_of"]


def columns_of(
    batch: MixedBatch, loaders: Mapping[str, ClipLoader], missing: Mapping[str, Sequence[int]]
) -> dict[str, Any]:
    """Each column a list or a tensor of clips, in the order of the batch.

    `loaders` are the sources, in the order of their numbers; `missing` has, by feature, the numbers
    of those that lack it. Raises `ClipError` where what one source tells has the name of a feature
    of another, or of something of another kind.
    """
    names = list(loaders)
    columns: dict[str, Any] = {DATASET: [names[source] for source in batch.source.tolist()]}
    for name, lacking in missing.items():
        columns[name + MISSING] = torch.from_numpy(np.isin(batch.source, lacking))
    # Plain Python: NumPy's calls for so few numbers would each wait for the GIL.
    found: dict[tuple[int, int], list[int]] = {}
    kinds = zip(batch.source.tolist(), batch.epoch.tolist(), strict=True)
    for slot, kind in enumerate(kinds):
        found.setdefault(kind, []).append(slot)
    for (source, epoch), some in found.items():
        slots = np.array(some)
        clips = Batch({}, batch.episode[slots], batch.start[slots])
        for name, column in loaders[names[source]].columns(clips, epoch).items():
            if name in batch.features or not _put(columns, name, column, slots, len(batch)):
                raise ClipError(
                    "what one source tells of its clips has the name of something else in another",
                    feature=name,
                    expected="another name",
                    got=f"a column of source {names[source]!r}",
                )
    _say_dilations(columns, batch.source, loaders)
    return columns


def _say_dilations(
    columns: dict[str, Any], sources: IntArray, loaders: Mapping[str, ClipLoader]
) -> None:
    """Say the dilation of clips of sources that draw none, where others draw theirs."""
    steps = [loader.selection.steps for loader in loaders.values()]
    draws = [own is not None and "dilation" in own.names for own in steps]
    if not any(draws[source] for source in set(sources.tolist())):
        return
    for source, loader in enumerate(loaders.values()):
        if not draws[source]:
            columns["dilation"].numpy()[sources == source] = loader.options.dilations[0]


def _put(columns: dict[str, Any], name: str, column: Any, slots: IntArray, size: int) -> bool:
    """Put what one source says of its clips, at `slots`, into a column of the batch.

    Returns whether that is of the same kind as what is there of others.
    """
    if not isinstance(column, torch.Tensor):
        texts = columns.setdefault(name, [None] * size)
        if not isinstance(texts, list):
            return False
        for slot, item in zip(slots.tolist(), column, strict=True):
            texts[slot] = item
        return True
    if name not in columns:
        columns[name] = column.new_zeros((size, *column.shape[1:]))
    whole = columns[name]
    if not (
        isinstance(whole, torch.Tensor)
        and whole.dtype == column.dtype
        and whole.shape[1:] == column.shape[1:]
    ):
        return False
    whole.numpy()[slots] = column.numpy()
    return True
