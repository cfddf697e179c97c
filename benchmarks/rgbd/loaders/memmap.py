"""Frames of full size in a mapped NumPy file a feature, resized for every clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.rgbd.frames import PER_CLIP, resize_clip
from benchmarks.tartanair.compare.recordings import Clip
from benchmarks.tartanair.loaders import memmap
from benchmarks.tartanair.loaders.base import Batches, Place, Settings
from benchmarks.tartanair.loaders.map_style import map_style


class Reader(memmap.Reader):
    """Resized slices of the maps."""

    def read(self, clip: Clip) -> Mapping[str, Any]:
        return resize_clip(super().read(clip))


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return map_style(Reader(place.folder, settings.features), clips, settings)


LOADERS = [
    replace(loader, open=open_batches, kind=PER_CLIP, note=f"{loader.note} at full size")
    for loader in memmap.LOADERS
]
