"""The rows: loaders by settings."""

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

__all__ = ["Cell", "differing", "grid", "refuses", "system_cells"]

_OURS = "seqrecord"
_APART = (_OURS, "seqrecord-map", "original", "memmap", "webdataset", "ffcv", "microsoft-seqrecord")


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


def grid(workload: Workload) -> list[Cell]:
    """Every row of a workload: its systems; of TartanAir also each loader with its best shuffle
    (without and with workers, cold files; of a loader of each kind clips that do not overlap; ours
    with each codec), and the cells of the published table.
    """
    cells = [cell for system in workload.systems for cell in system_cells(system, workload)]
    if workload is TARTANAIR:
        for loader in workload.loaders.values():
            changes: list[Mapping[str, Any]] = [{}, {"workers": 2}, {"storage": "cold"}]
            if loader.name in _APART:
                changes.append({"stride": workload.base.clip_len})
            if loader.name == _OURS:
                changes += [{"codec": codec} for codec in loader.codecs]
            cells += [_cell(loader, workload, change) for change in changes if not loader.lossy]
        cells += [Cell(name, settings) for name, settings in published_settings()]
    return list(dict.fromkeys(cells))


def system_cells(system: System, workload: Workload) -> list[Cell]:
    """The rows of a system."""
    loader = workload.loaders[system.loader]
    counts = workload.workers
    return [_cell(loader, workload, {"workers": count, **system.changes}) for count in counts]


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
