"""Our own record files: streamed, streamed through a chain of pipes, and by clip number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import (
    Batch,
    Batches,
    Loader,
    Order,
    Settings,
    loader_arguments,
)

__all__ = ["LOADERS"]


def prepare_records(recordings: Recordings, folder: Path, settings: Settings) -> None:
    import seqrecord  # not in the processes of Microsoft's loader, whose package has our name

    with seqrecord.SeqRecordWriter(folder / "records", codecs=settings.codec) as writer:
        for episode, frames in recordings.read():
            with writer.episode(episode.key) as into:
                for frame in frames:
                    into.append(frame)


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


def open_stream(folder: Path, _clips: Sequence[Clip], settings: Settings) -> Batches:
    import seqrecord

    buffer: dict[str, Any] = {}
    if settings.shuffle_buffer is not None and settings.shuffle != "off":
        buffer["engine"] = seqrecord.EngineOptions(shuffle_buffer=settings.shuffle_buffer)
    pipe = seqrecord.SeqRecordPipe(
        seqrecord.open(folder / "records"),
        **_arguments(settings),
        **buffer,
        batch_size=settings.batch_size,
        shuffle=settings.shuffle != "off",
        memory_limit=settings.memory_limit,
        seed=settings.seed,
        even_batches=False,  # every clip once, like all loaders here; workers may differ by one
    )
    if settings.workers == 0:
        return Streaming(pipe)
    return DataLoader(pipe, batch_size=None, **loader_arguments(settings))


def open_chain(folder: Path, _clips: Sequence[Clip], settings: Settings) -> Batches:
    """Single clips through a chain of pipes, as chains are usually written."""
    import seqrecord

    shuffled = settings.shuffle != "off"
    pipe: Any = seqrecord.SeqRecordPipe(
        seqrecord.open(folder / "records"),
        **_arguments(settings),
        shuffle=shuffled,
        seed=settings.seed,
    )
    if shuffled:  # the pipe has shuffled well: more in this buffer would only take memory
        pipe = pipe.shuffle(buffer_size=settings.batch_size)
    pipe = pipe.sharding_filter().batch(settings.batch_size).collate(seqrecord.collate)
    return DataLoader(pipe, batch_size=None, **loader_arguments(settings))


def open_map(folder: Path, clips: Sequence[Clip], settings: Settings) -> Batches:
    import seqrecord

    return DataLoader(
        seqrecord.SeqRecordMapDataset(seqrecord.open(folder / "records"), **_arguments(settings)),
        batch_size=settings.batch_size,
        sampler=Order(len(clips), settings),
        collate_fn=seqrecord.collate,
        **loader_arguments(settings),
    )


LOADERS = [
    Loader(
        name,
        "records-{codec}",
        prepare_records,
        open_batches,
        shuffles=("off", shuffle),
        codecs=("raw", "fast", "balanced", "small"),
    )
    for name, open_batches, shuffle in (
        ("seqrecord", open_stream, "buffer"),
        ("seqrecord-map", open_map, "full"),
        ("seqrecord-chain", open_chain, "buffer"),
    )
]
