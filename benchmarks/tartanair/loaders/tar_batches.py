"""Batches from tars with WebDataset, whatever their samples are: its own shuffles, and workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.tartanair.loaders.base import Batches, Settings
from benchmarks.tartanair.loaders.map_style import loader_arguments

__all__ = ["tar_batches"]


def tar_batches(
    tars: Sequence[str],
    settings: Settings,
    *,
    to_clips: Callable[[Iterable[dict[str, Any]]], Iterator[Any]],
    collate: Callable[[list[Any]], Any],
    wanted: Callable[[str], bool] | None = None,
    decode: bool = False,
) -> Batches:
    """Batches of the clips that `to_clips` makes of the tars' samples.

    Only files whose names are `wanted` are read; with `decode`, WebDataset decodes them.
    """
    import webdataset

    shuffled = settings.shuffle != "off"
    dataset = webdataset.WebDatasetSource(
        list(tars),
        shardshuffle=len(tars) if shuffled else False,
        seed=settings.seed,
        empty_check=False,
        select_files=wanted,
    )
    if decode:
        dataset = dataset.decode()
    dataset = dataset.compose(to_clips)
    if shuffled:
        dataset = dataset.shuffle(settings.shuffle_buffer)
    dataset = dataset.batched(settings.batch_size, collation_fn=collate)
    return DataLoader(dataset, batch_size=None, **loader_arguments(settings))
