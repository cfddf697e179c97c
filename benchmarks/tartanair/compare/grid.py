"""The cells to run: loaders by settings, and why some are skipped."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from benchmarks.tartanair.compare.cell import Cell
from benchmarks.tartanair.compare.published import published_grid
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.loaders.base import USUAL, Loader, Settings

__all__ = ["AXES", "grid", "product_grid", "refuses"]

AXES = ("workers", "shuffle", "batch_size", "clip_len", "stride", "storage", "codec", "prefetch")
"""The settings that can be given values of."""

_OURS = "seqrecord"
_BESIDE = ("original", _OURS, "memmap")  # loaders that hold only some features
_MOUNTED = ("original", "webdataset")


def grid(loaders: Mapping[str, Loader], base: Settings) -> list[Cell]:
    """Every loader, shuffled as well as it can: where clips do not overlap and, unless it holds
    clips cut beforehand, without and with workers, from a cold disk, and with its own client.

    What holds only some features runs beside a few others with these alone; ours also with each
    codec and from each storage. Of TartanAir also some through a mount, and `published_grid`.
    """
    cells = []
    for loader in loaders.values():
        if loader.only_features:
            alone = tuple(loader.only_features)
            beside = [loaders[name] for name in _BESIDE if name in loaders]
            cells += [_shuffled(each, base, features=alone) for each in (loader, *beside)]
            continue
        cells.append(_shuffled(loader, base, stride=base.clip_len))
        if not loader.precut:
            cells += [_shuffled(loader, base, workers=workers) for workers in (0, 2)]
            storages = [name for name in ("cold", "own") if name in loader.storages]
            cells += [_shuffled(loader, base, storage=storage) for storage in storages]
    if ours := loaders.get(_OURS):
        cells += [_shuffled(ours, base, codec=codec) for codec in ours.codecs]
        cells += [_shuffled(ours, base, storage=storage) for storage in ours.storages]
    if base == USUAL:
        mounted = [loaders[name] for name in _MOUNTED if name in loaders]
        cells += [_shuffled(loader, base, storage="mount") for loader in mounted]
        cells += published_grid(loaders, base)
    return list(dict.fromkeys(cells))


def _shuffled(loader: Loader, base: Settings, **changes: Any) -> Cell:
    return Cell(loader.name, replace(base, shuffle=loader.shuffles[-1], **changes))


def product_grid(
    loaders: Sequence[str] | Mapping[str, Loader],
    base: Settings,
    axes: Mapping[str, Sequence[Any]],
) -> list[Cell]:
    """Every combination of the axes' values, the others as in `base`."""
    return [
        Cell(loader, replace(base, **dict(zip(axes, values, strict=True))))
        for loader in loaders
        for values in product(*axes.values())
    ]


def refuses(cell: Cell, loader: Loader, tree: Recordings) -> str | None:
    """Why a cell cannot run here, or nothing."""
    return next(_reasons(cell.settings, loader, tree), None)


def _reasons(settings: Settings, loader: Loader, tree: Recordings) -> Iterator[str]:
    if missing := loader.missing():
        yield missing
    if refused := loader.refuses(settings):
        yield refused
    if not tree.clips(settings.clip_len, settings.stride):
        yield f"no episode has {settings.clip_len} frames"
    batch = settings.batch_size * settings.clip_len * tree.frame_nbytes(settings.features)
    ahead = settings.workers * settings.prefetch
    total = psutil.virtual_memory().total
    if batch * (3 + ahead) > total / 2:
        yield f"batches ahead take {batch * (3 + ahead) / 1e9:.0f} GB of {total / 1e9:.0f}"
    if Path("/dev/shm").exists():
        shared = shutil.disk_usage("/dev/shm").total
        if batch * (1 + ahead) > shared and settings.workers:
            yield f"batches ahead take {batch * (1 + ahead) / 1e9:.0f} GB of /dev/shm"
