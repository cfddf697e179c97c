"""WebDataset: tars of WAV files; each is decoded once and cut into its clips."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import default_collate

from benchmarks.audio.wav import FEATURE, read_blocks, wav_file
from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.tar_batches import tar_batches

RECORDINGS_PER_TAR = 50


def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    import webdataset

    keys = [episode.key for episode in recordings.episodes]
    for first in range(0, len(keys), RECORDINGS_PER_TAR):
        with webdataset.TarWriter(str(folder / f"{first:06d}.tar")) as tar:
            for key in keys[first : first + RECORDINGS_PER_TAR]:
                tar.write({"__key__": key, "wav": wav_file(recordings.root, key).read_bytes()})


def to_clips(samples: Iterable[dict[str, Any]], settings: Settings) -> Iterator[dict[str, Any]]:
    for sample in samples:
        blocks = read_blocks(io.BytesIO(sample["wav"]))
        for start in range(0, len(blocks) - settings.clip_len + 1, settings.stride):
            part = blocks[start : start + settings.clip_len]
            yield {FEATURE: part, "episode": sample["__key__"], "start": start}


def open_batches(place: Place, _clips: Sequence[Clip], settings: Settings) -> Batches:
    return tar_batches(
        sorted(map(str, place.folder.glob("*.tar"))),
        settings,
        to_clips=partial(to_clips, settings=settings),
        collate=default_collate,
    )


LOADERS = [
    Loader(
        name="webdataset",
        format=one_format("webdataset-wavs"),
        prepare=prepare,
        open=open_batches,
        shuffles=("off", "buffer"),
        needs=("webdataset",),
        note=f"tars of {RECORDINGS_PER_TAR} WAV files",
    )
]
