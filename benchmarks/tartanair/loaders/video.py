"""Video of the images alone, lossy: another class, for what it shows.

PyAV brings its own FFmpeg and writes the videos. torchcodec 0.13 is the last whose builds load
without CUDA's libraries; it takes the system's FFmpeg, with libavdevice and libavfilter.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.map_style import map_style

FEATURE = "image_left"
RATE = 25  # frames a second; seeking needs times
KEY_FRAMES = 16  # frames from one that can be decoded alone to the next


def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    import av

    for number, (_, frames) in enumerate(recordings.read()):
        with av.open(str(folder / f"{number:06d}.mp4"), "w") as file:
            options = {"crf": "18", "g": str(KEY_FRAMES), "bf": "0"}
            stream = file.add_stream("libx264", rate=RATE, options=options)
            height, width, _ = recordings.features[FEATURE].shape
            stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
            for frame in frames:
                picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame[FEATURE]))
                file.mux(stream.encode(picture))
            file.mux(stream.encode())
    keys = [episode.key for episode in recordings.episodes]
    (folder / "episodes.json").write_text(json.dumps(keys))


class Video(Protocol):
    """An episode's images, open to be read."""

    def frames(self, start: int, stop: int) -> Any:
        """Array or tensor uint8 [stop - start, H, W, 3]."""


class AvVideo:
    """Read with PyAV, from the key frame before."""

    def __init__(self, path: str) -> None:
        import av

        self._file = av.open(path)

    def frames(self, start: int, stop: int) -> Any:
        stream = self._file.streams.video[0]
        first, last = (Fraction(index, RATE) for index in (start, stop - 1))
        self._file.seek(int(first / stream.time_base), stream=stream)
        frames = []
        for frame in self._file.decode(stream):
            index = round(frame.pts * stream.time_base * RATE)
            if index >= start:
                frames.append(frame.to_ndarray(format="rgb24"))
            if frame.pts * stream.time_base >= last:
                break
        return np.stack(frames)


class TorchcodecVideo:
    """Read with torchcodec."""

    def __init__(self, path: str) -> None:
        from torchcodec.decoders import VideoDecoder

        self._decoder = VideoDecoder(path, dimension_order="NHWC")

    def frames(self, start: int, stop: int) -> Any:
        return self._decoder.get_frames_in_range(start, stop).data


class Reader:
    """Clips of videos, which stay open."""

    def __init__(self, folder: Path, open_video: Callable[[str], Video]) -> None:
        keys = json.loads((folder / "episodes.json").read_text())
        self._paths = {key: str(folder / f"{i:06d}.mp4") for i, key in enumerate(keys)}
        self._open_video = open_video
        self._videos: dict[str, Video] = {}

    def read(self, clip: Clip) -> Mapping[str, Any]:
        if clip.episode not in self._videos:
            self._videos[clip.episode] = self._open_video(self._paths[clip.episode])
        return {FEATURE: self._videos[clip.episode].frames(clip.start, clip.stop)}


def open_batches(
    place: Place, clips: Sequence[Clip], settings: Settings, *, open_video: Callable[[str], Video]
) -> Batches:
    return map_style(Reader(place.folder, open_video), clips, settings)


@cache
def torchcodec_missing() -> str | None:
    """Why torchcodec cannot be imported, or nothing."""
    try:
        importlib.import_module("torchcodec.decoders")
    except (OSError, RuntimeError):
        return "torchcodec finds no libraries of FFmpeg: apt-get install ffmpeg"
    return None


LOADERS = [
    Loader(
        name="video",
        format=one_format("video"),
        prepare=prepare,
        open=partial(open_batches, open_video=AvVideo),
        needs=("av",),
        only_features=(FEATURE,),
        lossless=False,
        note="H.264 through PyAV, images only, lossy: another class",
    ),
    Loader(
        name="video-torchcodec",
        format=one_format("video"),
        prepare=prepare,
        open=partial(open_batches, open_video=TorchcodecVideo),
        needs=("av", "torchcodec"),
        also_missing=torchcodec_missing,
        only_features=(FEATURE,),
        lossless=False,
        note="H.264 through torchcodec, images only, lossy: another class",
    ),
]
