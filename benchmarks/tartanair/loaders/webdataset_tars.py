"""WebDataset: a tar of NumPy files for each episode; clips are windows over its frames."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.blob_folder import BlobFolder
from benchmarks.tartanair.loaders.tar_batches import tar_batches
from benchmarks.tartanair.loaders.windows import Frame, Window, collate, windows

SAS = "COMPARE_WEBDATASET_SAS"  # the environment variable that holds a signature


def prepare(tree: Recordings, folder: Path, _settings: Settings) -> None:
    import webdataset

    for number, (_, frames) in enumerate(tree.read()):
        with webdataset.TarWriter(str(folder / f"{number:06d}.tar")) as tar:
            for index, frame in enumerate(frames):
                files = {f"{name}.npy": npy(array) for name, array in frame.items()}
                tar.write({"__key__": f"{number:06d}/{index:06d}", **files})
    (folder / "episodes.json").write_text(json.dumps([episode.key for episode in tree.episodes]))


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def wanted(name: str, features: Sequence[str]) -> bool:
    return name.partition(".")[2].removesuffix(".npy") in features


def to_windows(
    samples: Iterable[dict[str, Any]], episodes: Sequence[str], settings: Settings
) -> Iterator[Window]:
    def frames() -> Iterator[Frame]:
        for sample in samples:
            number, index = map(int, sample["__key__"].split("/"))
            arrays = {name: sample[f"{name}.npy"] for name in settings.features}
            yield {**arrays, "episode": episodes[number], "index": index}

    return windows(frames(), settings.clip_len, settings.stride)


def url_of(place: Place, name: str) -> str:
    """A file's path, or the command that reads it from Azure as WebDataset itself would.

    The shell adds the signature, and curl reads it from its input: neither the URL, which errors
    quote, nor the list of processes holds it.
    """
    if not place.location:
        return str(place.folder / name)
    there = BlobFolder.of(place)
    url = f"{there.endpoint}/{there.container}/{there.path}/{name}"
    curl = "curl --connect-timeout 30 --retry 30 --retry-delay 2 -f -s -L -K -"
    return f'pipe:echo "url=\\"{url}?${SAS}\\"" | {curl}'


def open_batches(place: Place, _clips: Sequence[Clip], settings: Settings) -> Batches:
    import webdataset

    if place.location:
        os.environ[SAS] = BlobFolder.of(place).sas()
    with webdataset.gopen(url_of(place, "episodes.json")) as file:
        episodes = json.loads(file.read())
    tars = [url_of(place, f"{number:06d}.tar") for number in range(len(episodes))]
    return tar_batches(
        tars,
        settings,
        to_clips=partial(to_windows, episodes=episodes, settings=settings),
        collate=partial(collate, features=settings.features),
        wanted=partial(wanted, features=settings.features),
        decode=True,
    )


LOADERS = [
    Loader(
        name="webdataset",
        format=one_format("webdataset"),
        prepare=prepare,
        open=open_batches,
        shuffles=("off", "buffer"),
        storages=("local", "cold", "mount", "own"),
        needs=("webdataset",),
        note="a tar an episode, numpy files; windows over frames; Azure: curl with a signature",
    )
]
