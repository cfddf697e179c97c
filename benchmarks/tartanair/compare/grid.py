"""The rows: loaders by settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from shutil import disk_usage
from typing import Any

import psutil

from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.loaders import arrays, records, streams
from benchmarks.tartanair.loaders.base import BASELINE, USUAL, Loader, Settings

__all__ = ["LOADERS", "Cell", "differing", "grid", "refuses"]

_OURS = "seqrecord"
_ALL = [*records.LOADERS, *arrays.LOADERS, *streams.LOADERS]
_ALL.sort(key=lambda loader: (loader.name != BASELINE, "seqr" not in loader.name))
LOADERS = {loader.name: loader for loader in _ALL}
"""By name: the baseline and ours first."""


@dataclass(frozen=True)
class Cell:
    """A loader and its settings."""

    loader: str
    settings: Settings

    @property
    def title(self) -> str:
        """Name of the row: the loader and all settings other than `USUAL`."""
        return f"{self.loader} {differing(self.settings)}".rstrip()


def differing(settings: Settings) -> str:
    """Settings that differ from `USUAL`, as `name=value`, separated by spaces."""

    def shown(value: Any) -> str:
        return "+".join(value) if isinstance(value, tuple) else str(value)

    return " ".join(
        f"{field.name}={shown(getattr(settings, field.name))}"
        for field in fields(Settings)
        if getattr(settings, field.name) != getattr(USUAL, field.name)
    )


def grid() -> list[Cell]:
    """Every loader with its best shuffle: clips that do not overlap, without and with workers,
    cold files; ours with each codec.
    """
    cells = []
    for loader in LOADERS.values():
        changes: list[Mapping[str, Any]] = [{"stride": USUAL.clip_len}, {}, {"workers": 2}]
        changes.append({"storage": "cold"})
        if loader.name == _OURS:
            changes += [{"codec": codec} for codec in loader.codecs]
        shuffled = replace(USUAL, shuffle=loader.shuffles[-1])
        cells += [Cell(loader.name, replace(shuffled, **change)) for change in changes]
    return list(dict.fromkeys(cells))


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
