"""A NumPy file of samples [T] for each recording, mapped anew for every clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.audio.wav import BLOCK, FEATURE
from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.map_style import map_style

__all__ = ["FORMAT", "npy_file", "prepare"]

FORMAT = "numpy-recordings"


def npy_file(folder: Path, key: str) -> Path:
    return folder / f"{key}.npy"


def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    for episode, frames in recordings.read():
        np.save(npy_file(folder, episode.key), np.concatenate([f[FEATURE] for f in frames]))


class Reader:
    """Slices of the maps, copied."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, clip: Clip) -> Mapping[str, Any]:
        samples = np.load(npy_file(self._folder, clip.episode), mmap_mode="r")
        part = samples[clip.start * BLOCK : clip.stop * BLOCK]
        return {FEATURE: np.array(part).reshape(-1, BLOCK)}


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return map_style(Reader(place.folder), clips, settings)


LOADERS = [
    Loader(
        name="numpy-files",
        format=one_format(FORMAT),
        prepare=prepare,
        open=open_batches,
        note="a .npy a recording",
    )
]
