"""The loaders' formats of recordings, each made once and kept in a folder."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.loaders.base import Loader, Settings

__all__ = ["files_of", "folder_of", "prepare"]


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


def files_of(folder: Path) -> Iterator[Path]:
    """All files below a folder, behind links too: a format may be a link to the originals."""
    for top, _, names in os.walk(folder, followlinks=True):
        yield from (Path(top) / name for name in names)
