"""Video of the images alone, lossy: another class, for what it shows. PyAV decodes on the CPU.

torchcodec's builds for this release of torch load nothing without CUDA's libraries.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tartanair.compare.tree import Clip, Tree
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.map_style import map_style

FEATURE = "image_left"
RATE = 25  # frames a second; seeking needs times
KEY_FRAMES = 16  # frames from one that can be decoded alone to the next


def prepare(tree: Tree, folder: Path, _settings: Settings) -> None:
    import av

    for number, (_, frames) in enumerate(tree.read()):
        with av.open(str(folder / f"{number:06d}.mp4"), "w") as file:
            options = {"crf": "18", "g": str(KEY_FRAMES), "bf": "0"}
            stream = file.add_stream("libx264", rate=RATE, options=options)
            height, width, _ = tree.features[FEATURE].shape
            stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
            for frame in frames:
                picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[FEATURE]))
                file.mux(stream.encode(picture))
            file.mux(stream.encode())
    keys = [episode.key for episode in tree.episodes]
    (folder / "episodes.json").write_text(json.dumps(keys))


class Reader:
    """Decodes from the key frame before a clip; an episode's file stays open."""

    def __init__(self, folder: Path) -> None:
        keys = json.loads((folder / "episodes.json").read_text())
        self._paths = {key: str(folder / f"{i:06d}.mp4") for i, key in enumerate(keys)}
        self._files: dict[str, Any] = {}

    def read(self, clip: Clip) -> Mapping[str, Any]:
        import av

        if clip.episode not in self._files:
            self._files[clip.episode] = av.open(self._paths[clip.episode])
        file = self._files[clip.episode]
        stream = file.streams.video[0]
        first, last = (Fraction(index, RATE) for index in (clip.start, clip.stop - 1))
        file.seek(int(first / stream.time_base), stream=stream)
        frames = []
        for frame in file.decode(stream):
            index = round(frame.pts * stream.time_base * RATE)
            if index >= clip.start:
                frames.append(frame.to_ndarray(format="rgb24"))
            if frame.pts * stream.time_base >= last:
                break
        return {FEATURE: np.stack(frames)}


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    return map_style(Reader(place.folder), clips, settings)


LOADERS = [
    Loader(
        name="video",
        format=one_format("video"),
        prepare=prepare,
        open=open_batches,
        needs=("av",),
        only_features=(FEATURE,),
        lossless=False,
        note="H.264, images only, lossy: another class",
    )
]
