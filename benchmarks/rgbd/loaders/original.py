"""The camera's own files, each decoded and resized anew for every clip that it is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rgbd.frames import PER_CLIP, decode, frame_file, resize_clip
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


class Reader:
    """Clips of files."""

    def __init__(self, root: Path, features: Sequence[str]) -> None:
        self._root = root
        self._features = features

    def read(self, clip: Clip) -> Mapping[str, Any]:
        frames = range(clip.start, clip.stop)
        return resize_clip(
            {
                name: np.stack(
                    [decode(frame_file(self._root, clip.episode, name, i), name) for i in frames]
                )
                for name in self._features
            }
        )


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return map_style(Reader(place.folder / "files", settings.features), clips, settings)


LOADERS = [
    Loader(
        name="original",
        format=one_format("original"),
        prepare=prepare_link("files"),
        open=open_batches,
        storages=("local", "cold"),
        kind=PER_CLIP,
        note="JPEG and PNG files",
    )
]
