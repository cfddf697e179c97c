"""One HDF5 file with a contiguous dataset for each feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.map_style import map_style


def prepare(tree: Recordings, folder: Path, _settings: Settings) -> None:
    import h5py

    with h5py.File(folder / "frames.h5", "w") as file:
        arrays = {
            name: file.create_dataset(name, (tree.num_frames, *feature.shape), feature.dtype)
            for name, feature in tree.features.items()
        }
        for row, frame in enumerate(tree.rows()):
            for name, array in frame.items():
                arrays[name][row] = array


class Reader:
    """Slices of the datasets; the file is opened by the process that reads."""

    def __init__(self, folder: Path, features: Sequence[str]) -> None:
        self._path = folder / "frames.h5"
        self._features = features
        self._file: Any = None

    def read(self, clip: Clip) -> Mapping[str, Any]:
        if self._file is None:
            import h5py

            self._file = h5py.File(self._path, "r")
        rows = slice(clip.row, clip.row + clip.stop - clip.start)
        return {name: self._file[name][rows] for name in self._features}


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return map_style(Reader(place.folder, settings.features), clips, settings)


LOADERS = [
    Loader(
        name="hdf5",
        format=one_format("hdf5"),
        prepare=prepare,
        open=open_batches,
        needs=("h5py",),
        note="contiguous datasets",
    )
]
