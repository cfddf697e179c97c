"""One NumPy file for each feature with the frames of all episodes, mapped into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.map_style import map_style


def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    files = {
        name: np.lib.format.open_memmap(
            folder / f"{name}.npy",
            mode="w+",
            dtype=feature.dtype,
            shape=(recordings.num_frames, *feature.shape),
        )
        for name, feature in recordings.features.items()
    }
    for row, frame in enumerate(recordings.rows()):
        for name, array in frame.items():
            files[name][row] = array
    for file in files.values():
        file.flush()


class Reader:
    """Slices of the maps, copied: what a loader gives must not hang on a map that is read-only."""

    def __init__(self, folder: Path, features: Sequence[str]) -> None:
        self._paths = {name: folder / f"{name}.npy" for name in features}
        self._maps: dict[str, npt.NDArray[Any]] = {}

    def read(self, clip: Clip) -> Mapping[str, Any]:
        if not self._maps:
            self._maps = {name: np.load(path, mmap_mode="r") for name, path in self._paths.items()}
        rows = slice(clip.row, clip.row + clip.stop - clip.start)
        return {name: np.array(array[rows]) for name, array in self._maps.items()}


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return map_style(Reader(place.folder, settings.features), clips, settings)


LOADERS = [
    Loader(
        name="memmap",
        format=one_format("memmap"),
        prepare=prepare,
        open=open_batches,
        note="a .npy a feature",
    )
]
