"""The rows of a workload: loaders by settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shutil import disk_usage
from typing import Any

import psutil

from benchmarks.tartanair.compare.published import published_settings
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.compare.workloads import TARTANAIR, Workload
from benchmarks.tartanair.loaders.base import Loader, Settings

__all__ = ["Cell", "differing", "grid", "refuses"]

_OURS = "seqrecord"


@dataclass(frozen=True)
class Cell:
    """A loader and its settings."""

    loader: str
    settings: Settings

    def title(self, base: Settings) -> str:
        """The name of the row: the loader, and all settings that differ from `base`."""
        return f"{self.loader} {differing(self.settings, base)}".rstrip()


def differing(settings: Settings, base: Settings) -> str:
    """Settings that differ from `base`, as `name=value` with spaces between."""

    def shown(value: Any) -> str:
        return "+".join(value) if isinstance(value, tuple) else str(value)

    return " ".join(
        f"{field.name}={shown(getattr(settings, field.name))}"
        for field in fields(Settings)
        if getattr(settings, field.name) != getattr(base, field.name)
    )


def grid(workload: Workload) -> list[Cell]:
    """Every loader, shuffled as well as it can: clips that do not overlap, without and with
    workers, cold files; ours with each codec; of TartanAir also the cells of the published tables.
    """
    loaders, base = workload.loaders, workload.base
    cells = []
    for loader in loaders.values():
        changes: list[Mapping[str, Any]] = [{"stride": base.clip_len}, {}, {"workers": 2}]
        changes.append({"storage": "cold"})
        if loader.name == _OURS:
            changes += [{"codec": codec} for codec in loader.codecs]
        shuffled = replace(base, shuffle=loader.shuffles[-1])
        cells += [Cell(loader.name, replace(shuffled, **change)) for change in changes]
    if workload is TARTANAIR:
        cells += [Cell(name, settings) for name, settings in published_settings()]
    return list(dict.fromkeys(cells))


def refuses(settings: Settings, loader: Loader, recordings: Recordings) -> str:
    """Why a loader cannot run with these settings here; empty if it can."""
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
