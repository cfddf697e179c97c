"""The WAV files themselves, each opened anew for every clip, of which only the clip is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.audio.wav import FEATURE, read_blocks, wav_file
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
    """Clips of files with the standard library's `wave`."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, clip: Clip) -> Mapping[str, Any]:
        return {FEATURE: read_blocks(wav_file(self._root, clip.episode), clip.start, clip.stop)}


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return map_style(Reader(place.folder / "wav"), clips, settings)


LOADERS = [
    Loader(
        name="original",
        format=one_format("original"),
        prepare=prepare_link("wav"),
        open=open_batches,
        storages=("local", "cold"),
        note="WAV files, seeking to the clip",
    )
]
