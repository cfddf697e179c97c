"""Our own record files: streamed, streamed through a chain of pipes, and by clip number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.tartanair.backends import storage_options
from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import (
    Batch,
    Batches,
    Loader,
    Order,
    Settings,
    load_remote,
    loader_arguments,
)

__all__ = ["LOADERS", "make_loader", "open_chain", "open_stream", "prepare_records"]


def prepare_records(
    recordings: Recordings, folder: Path, settings: Settings, **options: Any
) -> None:
    import seqrecord  # not in the processes of Microsoft's loader, whose package has our name

    records = folder / "records"
    with seqrecord.SeqRecordWriter(records, codecs=settings.codec, **options) as writer:
        for episode, frames in recordings.read():
            with writer.episode(episode.key) as into:
                for frame in frames:
                    into.append(frame)


def _open(folder: Path) -> Any:
    """The dataset of a folder, or of the URL that it refers to."""
    import seqrecord

    remote = load_remote(folder)
    options = storage_options(remote.get("options"))
    location = f"{remote['location']}/records" if remote else folder / "records"
    return seqrecord.open(location, storage_options=options)


def _arguments(settings: Settings) -> dict[str, Any]:
    return {
        "clip_len": settings.clip_len,
        "stride": settings.stride,
        "features": list(settings.features),
    }


class Streaming:
    """Batches of a pipe in this process, and the pipe's own statistics."""

    def __init__(self, pipe: Any) -> None:
        self.stats = pipe.stats
        self._pipe = pipe

    def __iter__(self) -> Iterator[Batch]:
        yield from self._pipe


def open_stream(
    folder: Path,
    _clips: Sequence[Clip],
    settings: Settings,
    *,
    frame_transform: Callable[[dict[str, Any]], Mapping[str, Any]] | None = None,
) -> Batches:
    import seqrecord

    buffer: dict[str, Any] = {}
    if settings.shuffle_buffer is not None and settings.shuffle != "off":
        buffer["engine"] = seqrecord.EngineOptions(shuffle_buffer=settings.shuffle_buffer)
    pipe = seqrecord.SeqRecordPipe(
        _open(folder),
        **_arguments(settings),
        **buffer,
        batch_size=settings.batch_size,
        shuffle=settings.shuffle != "off",
        memory_limit=settings.memory_limit,
        seed=settings.seed,
        frame_transform=frame_transform,
        last_batch="keep",  # every clip once, like all loaders here; workers may differ by one
    )
    if settings.workers == 0:
        return Streaming(pipe)
    return DataLoader(pipe, batch_size=None, **loader_arguments(settings))


def open_chain(
    folder: Path,
    _clips: Sequence[Clip],
    settings: Settings,
    *,
    clip_transform: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Batches:
    """Single clips through a chain of pipes, as chains are usually written."""
    import seqrecord

    shuffled = settings.shuffle != "off"
    pipe: Any = seqrecord.SeqRecordPipe(
        _open(folder),
        **_arguments(settings),
        shuffle=shuffled,
        seed=settings.seed,
        last_batch="keep",  # each clip once: a sharding_filter passes all clips of a worker
    )
    if shuffled:  # the pipe has shuffled well: more in this buffer would only take memory
        pipe = pipe.shuffle(buffer_size=settings.batch_size)
    pipe = pipe.sharding_filter()
    if clip_transform is not None:
        pipe = pipe.map(clip_transform)
    pipe = pipe.batch(settings.batch_size).collate(seqrecord.collate)
    return DataLoader(pipe, batch_size=None, **loader_arguments(settings))


def open_map(folder: Path, clips: Sequence[Clip], settings: Settings) -> Batches:
    import seqrecord

    return DataLoader(
        seqrecord.SeqRecordMapDataset(_open(folder), **_arguments(settings)),
        batch_size=settings.batch_size,
        sampler=Order(len(clips), settings),
        collate_fn=seqrecord.collate,
        **loader_arguments(settings),
    )


def make_loader(name: str, open_batches: Any, **changes: Any) -> Loader:
    """A row of ours."""
    usual: dict[str, Any] = {
        "format": "records-{codec}",
        "prepare": prepare_records,
        "shuffles": ("off", "buffer"),
        "codecs": ("raw", "fast", "balanced", "small"),
        "frames": "read or decoded once an epoch",
    }
    return Loader(name=name, open=open_batches, **{**usual, **changes})


LOADERS = [
    make_loader("seqrecord", open_stream),
    make_loader(
        "seqrecord-map", open_map, shuffles=("off", "full"), frames="read or decoded for each clip"
    ),
    make_loader("seqrecord-chain", open_chain),
]
