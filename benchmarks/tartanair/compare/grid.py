"""The cells to run: loaders by settings by consumers, and why some are skipped."""

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
from benchmarks.tartanair.loaders.base import Loader, Settings

__all__ = [
    "AXES",
    "CLIP_BUFFERS",
    "LENGTHS",
    "Cell",
    "full_grid",
    "product_grid",
    "published_grid",
    "refuses",
    "small_grid",
]

AXES: dict[str, tuple[Any, ...]] = {
    "workers": (0, 1, 2, 4),
    "shuffle": ("off", "buffer", "full"),
    "shuffle_buffer": (50, 100, 200, 400),
    "batch_size": (1, 2, 4, 8, 16, 32),
    "clip_len": (1, 4, 16, 64),
    "stride": (1, 16),
    "features": (1, 2, 3, 4, 5),
    "storage": ("local", "cold", "mount", "adlfs", "obstore", "blobfile", "own"),
    "codec": ("raw", "fast", "balanced", "small"),
    "prefetch": (1, 2, 4),
    "pin": (False, True),
    "consumer": ("touch", "autoencoder", "unet"),
}
"""Each axis and its values; `features` is how many of a base's features, in their order."""

CLIP_BUFFERS = ("seqrecord", "microsoft-seqrecord", "webdataset")
"""Loaders that shuffle in a buffer of `shuffle_buffer` clips."""

LENGTHS = ("original", "seqrecord", "memmap", "webdataset")
"""Loaders that run along clip lengths and strides: one of each kind."""

MOUNTED = ("original", "seqrecord", "seqrecord-map", "memmap", "webdataset", "hdf5", "zarr")
"""Loaders that run through a mount: all would fill a disk with copies of their formats."""

PRECUT_BYTES = 20e9
_NEEDS = {"autoencoder": ("image_left",), "unet": ("image_left", "depth_left")}


def small_grid(loaders: Mapping[str, Loader], base: Settings) -> list[Cell]:
    """All loaders in order and shuffled, alone and with two workers, from a cold disk, and where
    clips do not overlap; some along clip lengths and strides; our own along other axes.

    Of TartanAir also some through a mount and their own clients, memory by shuffle buffer, and
    `published_grid`.
    """
    cells = [
        Cell(loader.name, replace(base, workers=workers, shuffle=shuffle))
        for loader in loaders.values()
        for workers in (0, 2)
        for shuffle in AXES["shuffle"]
        if shuffle in loader.shuffles
    ]
    for loader in loaders.values():
        shuffled = replace(base, shuffle=loader.shuffles[-1])
        cells.append(Cell(loader.name, replace(shuffled, stride=base.clip_len)))
        cells.append(Cell(loader.name, replace(shuffled, storage="cold")))
    # What holds only some features runs beside others with these.
    for limited in [loader for loader in loaders.values() if loader.only_features]:
        alone = replace(base, features=tuple(limited.only_features))
        for name in [limited.name, *_known(loaders, ("original", "seqrecord", "memmap"))]:
            shuffles = loaders[name].shuffles
            cells += [Cell(name, replace(alone, shuffle=s)) for s in (shuffles[0], shuffles[-1])]
    for name in _known(loaders, LENGTHS):
        cells += _lengths(name, replace(base, shuffle=loaders[name].shuffles[-1]))
    shuffled = replace(base, shuffle="buffer")
    for axis in ("features", "storage", "codec", "consumer"):
        cells += product_grid(_known(loaders, ("seqrecord",)), shuffled, {axis: AXES[axis]})
    if base.features == Settings().features:  # not another workload
        remote = [(name, "mount") for name in _known(loaders, MOUNTED)]
        remote += [(name, "own") for name in loaders if "own" in loaders[name].storages]
        for name, storage in remote:
            shuffle = loaders[name].shuffles[-1]
            cells.append(Cell(name, replace(base, shuffle=shuffle, storage=storage)))
        one = replace(shuffled, features=base.features[:1])
        buffers = {"shuffle_buffer": AXES["shuffle_buffer"]}
        cells += product_grid(_known(loaders, CLIP_BUFFERS), one, buffers)
        cells += published_grid(loaders, base)
    return list(dict.fromkeys(cells))


def full_grid(loaders: Mapping[str, Loader], base: Settings) -> list[Cell]:
    """Workers by shuffle for all loaders, every other axis alone, in order and shuffled, and all
    of the small grid."""
    cells = product_grid(loaders, base, {"workers": AXES["workers"], "shuffle": AXES["shuffle"]})
    for axis, values in AXES.items():
        if axis not in ("workers", "shuffle", "shuffle_buffer"):
            cells += product_grid(loaders, base, {axis: values, "shuffle": AXES["shuffle"]})
    return list(dict.fromkeys([*cells, *small_grid(loaders, base)]))


def product_grid(
    loaders: Sequence[str] | Mapping[str, Loader],
    base: Settings,
    axes: Mapping[str, Sequence[Any]],
) -> list[Cell]:
    """Every combination of the axes' values, the others as in `base`."""
    return [
        _cell(loader, base, dict(zip(axes, values, strict=True)))
        for loader in loaders
        for values in product(*axes.values())
    ]


def _cell(loader: str, base: Settings, values: dict[str, Any]) -> Cell:
    consumer = values.pop("consumer", "touch")
    if isinstance(count := values.get("features"), int):
        values["features"] = base.features[:count]
    return Cell(loader, replace(base, **values), consumer)


def _lengths(loader: str, base: Settings) -> list[Cell]:
    """Clip lengths by strides, in batches of as many frames, for the same memory."""
    frames = base.batch_size * base.clip_len
    return [
        Cell(loader, replace(base, clip_len=n, stride=stride, batch_size=max(1, frames // n)))
        for n in AXES["clip_len"]
        for stride in AXES["stride"]
    ]


def _known(loaders: Mapping[str, Loader], names: Sequence[str]) -> list[str]:
    return [name for name in names if name in loaders]


def refuses(cell: Cell, loader: Loader, tree: Recordings) -> str | None:
    """Why a cell cannot run here, or nothing."""
    return next(_reasons(cell, loader, tree), None)


def _reasons(cell: Cell, loader: Loader, tree: Recordings) -> Iterator[str]:
    settings = cell.settings
    if missing := loader.missing():
        yield missing
    if refused := loader.refuses(settings):
        yield refused
    if lacking := sorted({*_NEEDS.get(cell.consumer, ())} - {*settings.features}):
        yield f"{cell.consumer} needs {', '.join(lacking)}"
    if not tree.clips(settings.clip_len, settings.stride):
        yield f"no episode has {settings.clip_len} frames"
    if settings.pin and not _has_cuda():
        yield "no GPU to pin memory for"
    if loader.precut:
        clips = len(tree.clips(settings.clip_len, settings.stride))
        nbytes = clips * settings.clip_len * tree.frame_nbytes(list(tree.features))
        if nbytes > PRECUT_BYTES:
            yield f"all clips take {nbytes / 1e9:.0f} GB"
    batch = settings.batch_size * settings.clip_len * tree.frame_nbytes(settings.features)
    ahead = settings.workers * settings.prefetch
    total = psutil.virtual_memory().total
    if batch * (3 + ahead) > total / 2:
        yield f"batches ahead take {batch * (3 + ahead) / 1e9:.0f} GB of {total / 1e9:.0f}"
    if Path("/dev/shm").exists():
        shared = shutil.disk_usage("/dev/shm").total
        if batch * (1 + ahead) > shared and settings.workers:
            yield f"batches ahead take {batch * (1 + ahead) / 1e9:.0f} GB of /dev/shm"


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()
