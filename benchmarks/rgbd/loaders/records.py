"""Our own record files: frames resized once, by `frame_transform`, or once for every clip."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.rgbd.frames import ONCE, PER_CLIP, frame_file, resize, resize_clip
from benchmarks.tartanair.compare.recordings import Recordings
from benchmarks.tartanair.loaders.base import OURS, Loader, Settings, one_format
from benchmarks.tartanair.loaders.records import (
    CODECS,
    format_name,
    open_chain,
    open_stream,
    prepare,
)


def prepare_encoded(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    """The files' bytes as they are: a record decodes them when it is read."""
    import seqrecord

    with seqrecord.SeqRecordWriter(folder / "records") as writer:
        for episode in recordings.episodes:
            with writer.episode(episode.key) as into:
                for index in range(episode.num_frames):
                    files = {
                        name: frame_file(recordings.root, episode.key, name, index)
                        for name in recordings.features
                    }
                    into.append(
                        {n: seqrecord.EncodedImage(file.read_bytes()) for n, file in files.items()}
                    )


def resize_tensors(clip: dict[str, Any]) -> dict[str, Any]:
    """A clip as the pipe gives it, resized."""
    names = [name for name in clip if name not in ("episode", "start")]
    resized = resize_clip({name: clip[name].numpy() for name in names})
    return {**clip, **{name: torch.from_numpy(array) for name, array in resized.items()}}


LOADERS = [
    Loader(
        name="seqrecord",
        format=format_name,
        prepare=prepare,
        open=partial(open_stream, frame_transform=resize),
        shuffles=("off", "buffer"),
        storages=OURS,
        codecs=CODECS,
        kind=ONCE,
        note="decoded frames; frame_transform resizes",
    ),
    Loader(
        name="seqrecord-encoded",
        format=one_format("records-encoded"),
        prepare=prepare_encoded,
        open=partial(open_stream, frame_transform=resize),
        shuffles=("off", "buffer"),
        storages=OURS,
        kind=ONCE,
        note="JPEG and PNG kept as they are; frame_transform resizes",
    ),
    Loader(
        name="seqrecord-per-clip",
        format=format_name,
        prepare=prepare,
        open=partial(open_chain, clip_transform=resize_tensors),
        shuffles=("off", "buffer"),
        storages=OURS,
        codecs=CODECS,
        kind=PER_CLIP,
        note="decoded frames; a map() after the pipe resizes",
    ),
]
