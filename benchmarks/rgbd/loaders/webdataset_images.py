"""WebDataset: a tar of JPEG and PNG files for each recording; clips are windows over its frames."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.rgbd.frames import ONCE, decode, frame_file, resize
from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.tar_batches import tar_batches
from benchmarks.tartanair.loaders.windows import Frame, Window, collate, windows


def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    import webdataset

    for episode in recordings.episodes:
        with webdataset.TarWriter(str(folder / f"{episode.key}.tar")) as tar:
            for index in range(episode.num_frames):
                files = [
                    frame_file(recordings.root, episode.key, name, index)
                    for name in recordings.features
                ]
                parts = {f"{file.parent.name}{file.suffix}": file.read_bytes() for file in files}
                tar.write({"__key__": f"{episode.key}/{index:06d}", **parts})


def wanted(name: str, features: Sequence[str]) -> bool:
    return name.partition(".")[2].partition(".")[0] in features


def to_windows(samples: Iterable[dict[str, Any]], settings: Settings) -> Iterator[Window]:
    def frames() -> Iterator[Frame]:
        for sample in samples:
            encoded = {name.partition(".")[0]: data for name, data in sample.items()}
            arrays = {name: decode(io.BytesIO(encoded[name]), name) for name in settings.features}
            episode, index = sample["__key__"].split("/")
            yield {**resize(arrays), "episode": episode, "index": int(index)}

    return windows(frames(), settings.clip_len, settings.stride)


def open_batches(place: Place, _clips: Sequence[Clip], settings: Settings) -> Batches:
    return tar_batches(
        sorted(map(str, place.folder.glob("*.tar"))),
        settings,
        to_clips=partial(to_windows, settings=settings),
        collate=partial(collate, features=settings.features),
        wanted=partial(wanted, features=settings.features),
    )


LOADERS = [
    Loader(
        name="webdataset",
        format=one_format("webdataset-images"),
        prepare=prepare,
        open=open_batches,
        shuffles=("off", "buffer"),
        needs=("webdataset",),
        kind=ONCE,
        note="a tar a recording, JPEG and PNG",
    )
]
