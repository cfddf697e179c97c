"""The loaders' formats of recordings, each made once and kept in a folder."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.loaders.base import Loader, Settings

__all__ = ["folder_of", "prepare"]


def folder_of(loader: Loader, recordings: Recordings, work: Path, settings: Settings) -> Path:
    """Where a loader's data lies when `prepare` has made it."""
    return work / "prepared" / recordings.name / loader.format(settings)


def prepare(loader: Loader, recordings: Recordings, work: Path, settings: Settings) -> float | None:
    """Make a loader's data unless it is there; the seconds it took, if so.

    It appears under its name only when it is whole.
    """
    folder = folder_of(loader, recordings, work, settings)
    if folder.exists():
        return None
    making = folder.with_name(f"{folder.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    begin = time.perf_counter()
    loader.prepare(recordings, making, settings)
    making.rename(folder)
    return time.perf_counter() - begin
