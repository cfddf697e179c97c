"""The cells to run: loaders by settings by consumers, and why some are skipped."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from benchmarks.tartanair.compare.tree import Tree
from benchmarks.tartanair.loaders.base import Loader, Settings

__all__ = ["AXES", "Cell", "full_grid", "product_grid", "refuses", "small_grid"]

AXES: dict[str, tuple[Any, ...]] = {
    "workers": (0, 1, 2, 4),
    "shuffle": ("off", "buffer", "full"),
    "batch_size": (1, 2, 4, 8, 16, 32),
    "clip_len": (1, 4, 16, 64),
    "stride": (1, 16),
    "features": (1, 2, 3, 4, 5),
    "storage": ("local", "cold", "mount", "adlfs", "obstore", "blobfile"),
    "codec": ("raw", "fast", "balanced", "small"),
    "prefetch": (1, 2, 4),
    "pin": (False, True),
    "consumer": ("touch", "autoencoder", "unet"),
}
"""Each axis and its values; `features` is how many of a base's features, in their order."""

PRECUT_BYTES = 20e9
_NEEDS = {"autoencoder": ("image_left",), "unet": ("image_left", "depth_left")}


@dataclass(frozen=True)
class Cell:
    """One row to measure."""

    loader: str
    settings: Settings
    consumer: str = "touch"

    @property
    def key(self) -> str:
        """The same for the same cell in another run."""
        said = json.dumps([self.loader, asdict(self.settings), self.consumer], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """The loader and what differs from the defaults."""
        settings, default = self.settings, Settings()
        differing = [
            f"{field.name}={_shown(getattr(settings, field.name))}"
            for field in fields(Settings)
            if getattr(settings, field.name) != getattr(default, field.name)
        ]
        if self.consumer != "touch":
            differing.append(self.consumer)
        return " ".join([self.loader, *differing])


def small_grid(loaders: Mapping[str, Loader], base: Settings) -> list[Cell]:
    """All loaders in order and shuffled, alone and with two workers, and where clips do not
    overlap; our own along other axes."""
    cells = [
        Cell(loader.name, replace(base, workers=workers, shuffle=shuffle))
        for loader in loaders.values()
        for workers in (0, 2)
        for shuffle in AXES["shuffle"]
        if shuffle in loader.shuffles
    ]
    cells += [
        Cell(loader.name, replace(base, stride=base.clip_len, shuffle=loader.shuffles[-1]))
        for loader in loaders.values()
    ]
    # What holds only some features runs beside others with these.
    for limited in [loader for loader in loaders.values() if loader.only_features]:
        alone = replace(base, features=tuple(limited.only_features))
        beside = [limited.name, *(n for n in ("original", "seqrecord", "memmap") if n in loaders)]
        for name in beside:
            shuffles = loaders[name].shuffles
            cells += [Cell(name, replace(alone, shuffle=s)) for s in (shuffles[0], shuffles[-1])]
    if "seqrecord" in loaders:
        shuffled = replace(base, shuffle="buffer")
        for axis in ("clip_len", "stride", "features", "storage", "codec", "consumer"):
            cells += product_grid(["seqrecord"], shuffled, {axis: AXES[axis]})
    return list(dict.fromkeys(cells))


def full_grid(loaders: Mapping[str, Loader], base: Settings) -> list[Cell]:
    """Workers by shuffle for all loaders, and every other axis alone, in order and shuffled."""
    cells = product_grid(loaders, base, {"workers": AXES["workers"], "shuffle": AXES["shuffle"]})
    for axis, values in AXES.items():
        if axis not in ("workers", "shuffle"):
            cells += product_grid(loaders, base, {axis: values, "shuffle": AXES["shuffle"]})
    return list(dict.fromkeys(cells))


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


def refuses(cell: Cell, loader: Loader, tree: Tree) -> str | None:
    """Why a cell cannot run here, or nothing."""
    return next(_reasons(cell, loader, tree), None)


def _reasons(cell: Cell, loader: Loader, tree: Tree) -> Iterator[str]:
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


def _shown(value: Any) -> str:
    return "+".join(value) if isinstance(value, tuple) else str(value)
