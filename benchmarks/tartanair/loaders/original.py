"""The dataset's own files, each opened anew for every frame of every clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.loaders.base import (
    Batches,
    Loader,
    Place,
    Settings,
    one_format,
    prepare_link,
)
from benchmarks.tartanair.loaders.map_style import map_style
from benchmarks.tartanair.loaders.raw_files import RawFilesDataset


class Reader:
    """Clips of a tree as it is."""

    def __init__(self, root: Path, settings: Settings) -> None:
        self._dataset = RawFilesDataset(
            root, clip_len=settings.clip_len, stride=settings.stride, features=settings.features
        )
        self._numbers = {place: number for number, place in enumerate(self._dataset.places())}

    def read(self, clip: Clip) -> Mapping[str, Any]:
        sample = self._dataset[self._numbers[clip.episode, clip.start]]
        return {name: sample[name] for name in self._dataset.features}


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return map_style(Reader(place.folder / "tree", settings), clips, settings)


LOADERS = [
    Loader(
        name="original",
        format=one_format("original"),
        prepare=prepare_link("tree"),
        open=open_batches,
        note="the dataset's own files",
    )
]
