"""One LMDB with a value for each frame of each feature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.tartanair.compare.recordings import Clip, Feature, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.features import load_features, save_features
from benchmarks.tartanair.loaders.map_style import map_style


def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    import lmdb

    save_features(recordings, folder)
    values = recordings.num_frames * recordings.frame_nbytes(list(recordings.features))
    pages = 8192 * recordings.num_frames * len(recordings.features)  # at most two that are not full
    with lmdb.open(str(folder), map_size=values + pages + 2**24) as database:
        for row, frame in enumerate(recordings.rows()):
            with database.begin(write=True) as transaction:
                for name, array in frame.items():
                    transaction.put(key(name, row), np.ascontiguousarray(array).data)


def key(feature: str, row: int) -> bytes:
    return f"{feature}/{row:08d}".encode()


class Reader:
    """Values copied into the clip's array; the database is opened by the process that reads."""

    def __init__(self, folder: Path, features: Mapping[str, Feature]) -> None:
        self._folder = folder
        self._features = features
        self._database: Any = None

    def read(self, clip: Clip) -> Mapping[str, Any]:
        if self._database is None:
            import lmdb

            self._database = lmdb.open(
                str(self._folder), readonly=True, lock=False, readahead=False, create=False
            )
        length = clip.stop - clip.start
        arrays: dict[str, npt.NDArray[Any]] = {}
        with self._database.begin(buffers=True) as transaction:
            for name, feature in self._features.items():
                arrays[name] = np.empty((length, *feature.shape), feature.dtype)
                for i in range(length):
                    value = transaction.get(key(name, clip.row + i))
                    arrays[name][i] = np.frombuffer(value, feature.dtype).reshape(feature.shape)
        return arrays


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    features = load_features(place.folder, settings.features)
    return map_style(Reader(place.folder, features), clips, settings)


LOADERS = [
    Loader(
        name="lmdb",
        format=one_format("lmdb"),
        prepare=prepare,
        open=open_batches,
        needs=("lmdb",),
        note="a value a frame and feature",
    )
]
