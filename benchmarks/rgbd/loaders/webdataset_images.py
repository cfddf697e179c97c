"""WebDataset: a tar of JPEG and PNG files for each recording; clips are windows over its frames."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.rgbd.frames import decode, frame_file, resize
from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.map_style import loader_arguments
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
    import webdataset

    tars = sorted(map(str, place.folder.glob("*.tar")))
    shuffled = settings.shuffle != "off"
    dataset = webdataset.WebDataset(
        tars,
        shardshuffle=len(tars) if shuffled else False,
        seed=settings.seed,
        empty_check=False,
        select_files=partial(wanted, features=settings.features),
    )
    dataset = dataset.compose(partial(to_windows, settings=settings))
    if shuffled:
        dataset = dataset.shuffle(settings.shuffle_buffer)
    dataset = dataset.batched(
        settings.batch_size, collation_fn=partial(collate, features=settings.features)
    )
    return DataLoader(dataset, batch_size=None, **loader_arguments(settings))


LOADERS = [
    Loader(
        name="webdataset",
        format=one_format("webdataset-images"),
        prepare=prepare,
        open=open_batches,
        shuffles=("off", "buffer"),
        needs=("webdataset",),
        note="a tar a recording, JPEG and PNG; decodes and resizes each frame once",
    )
]
