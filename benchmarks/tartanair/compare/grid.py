"""The rows: loaders by settings, and the settings that are tried for each line of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shutil import disk_usage
from typing import Any

import psutil

from benchmarks.tartanair.compare.published import published_settings
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.compare.workloads import TARTANAIR, System, Workload
from benchmarks.tartanair.loaders.base import Loader, Settings

__all__ = [
    "Cell",
    "Choice",
    "differing",
    "loader_cells",
    "others",
    "refuses",
    "sections",
    "system_cells",
]

_OURS = "seqrecord"
_APART = (
    _OURS,
    "seqrecord-map",
    "original",
    "by-hand",
    "webdataset",
    "ffcv",
    "microsoft-seqrecord",
)


@dataclass(frozen=True)
class Cell:
    """A loader and its settings."""

    loader: str
    settings: Settings

    def title(self, base: Settings) -> str:
        """Name of the row: the loader and all settings that differ from `base`."""
        return f"{self.loader} {differing(self.settings, base)}".rstrip()


def differing(settings: Settings, base: Settings) -> str:
    """Settings that differ from `base`, as `name=value`, separated by spaces."""

    def shown(value: Any) -> str:
        return "+".join(value) if isinstance(value, tuple) else str(value)

    return " ".join(
        f"{field.name}={shown(getattr(settings, field.name))}"
        for field in fields(Settings)
        if getattr(settings, field.name) != getattr(base, field.name)
    )


@dataclass(frozen=True)
class Choice:
    """A line of a table: the settings that are tried for it, of which the best is shown."""

    label: str
    cells: tuple[Cell, ...]


def sections(workload: Workload) -> dict[str, list[Choice]]:
    """Lines of each table of a workload. `loaders`: each with its best shuffle; `systems`: those of
    published comparisons; of TartanAir also the cells of the `published` table.
    """
    tables = {"systems": [Choice(s.label, system_cells(s, workload)) for s in workload.systems]}
    if workload is TARTANAIR:
        plain = [loader for loader in workload.loaders.values() if not loader.lossy]
        tables["loaders"] = [Choice(x.name, loader_cells(x, workload)) for x in plain]
        beside = dict.fromkeys(Cell(name, settings) for name, settings in published_settings())
        tables["published"] = [Choice(cell.title(workload.base), (cell,)) for cell in beside]
    return dict(sorted(tables.items()))


def others(workload: Workload, best: Mapping[str, Cell]) -> list[Choice]:
    """Each loader's best cell with cold files; of a loader of each kind with clips that do not
    overlap; of ours with each codec. `best` has the cells by loader.
    """
    cells = []
    for name, cell in best.items():
        changes: list[Mapping[str, Any]] = [{"storage": "cold"}]
        if name in _APART:
            changes.append({"stride": workload.base.clip_len})
        if name == _OURS:
            changes += [{"codec": codec} for codec in workload.loaders[name].codecs[1:]]
        cells += [Cell(name, replace(cell.settings, **change)) for change in changes]
    return [Choice(cell.title(workload.base), (cell,)) for cell in cells]


def loader_cells(loader: Loader, workload: Workload) -> tuple[Cell, ...]:
    """The settings that are tried of a loader."""
    return tuple(_cell(loader, workload, cell) for cell in loader.grid)


def system_cells(system: System, workload: Workload) -> tuple[Cell, ...]:
    """The settings that are tried of a system."""
    loader = workload.loaders[system.loader]
    grid = [{**cell, **system.changes} for cell in loader.grid]
    if "storage" in system.changes:  # a service's rows take long, and more workers share its cores
        grid = grid[:1]
    return tuple(_cell(loader, workload, cell) for cell in grid)


def _cell(loader: Loader, workload: Workload, changes: Mapping[str, Any]) -> Cell:
    """Shuffled as well as the loader can."""
    shuffled = replace(workload.base, shuffle=loader.shuffles[-1])
    return Cell(loader.name, replace(shuffled, **changes))


def refuses(settings: Settings, loader: Loader, recordings: Recordings) -> str:
    """Reason that a loader cannot run with these settings here; empty if it can."""
    if text := loader.missing() or loader.refuses(settings):
        return text
    if not recordings.clips(settings.clip_len, settings.stride):
        return f"no episode has {settings.clip_len} frames"
    batch = settings.batch_size * settings.clip_len * recordings.frame_nbytes(settings.features)
    ahead = settings.workers * settings.prefetch
    total = psutil.virtual_memory().total
    if batch * (3 + ahead) > total / 2:
        return f"batches ahead take {batch * (3 + ahead) / 1e9:.0f} GB of {total / 1e9:.0f}"
    shared = Path("/dev/shm")
    if ahead and shared.exists() and batch * (1 + ahead) > disk_usage(shared).total:
        return f"batches ahead take {batch * (1 + ahead) / 1e9:.0f} GB of /dev/shm"
    return ""
