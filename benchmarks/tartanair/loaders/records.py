"""Our own record files: streamed, streamed through a chain of pipes, and by clip number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import OURS, Batch, Batches, Loader, Place, Settings
from benchmarks.tartanair.loaders.map_style import Order, loader_arguments

CODECS = ("raw", "fast", "balanced", "small")


def format_name(settings: Settings) -> str:
    return f"records-{settings.codec}"


def prepare(recordings: Recordings, folder: Path, settings: Settings) -> None:
    import seqrecord

    with seqrecord.SeqRecordWriter(folder / "records", codecs=settings.codec) as writer:
        for episode, frames in recordings.read():
            with writer.episode(episode.key) as into:
                for frame in frames:
                    into.append(frame)


def records_of(place: Place) -> Any:
    import seqrecord

    return seqrecord.open(f"{place.at}/records", storage_options=place.options or None)


def arguments(settings: Settings) -> dict[str, Any]:
    return {
        "clip_len": settings.clip_len,
        "stride": settings.stride,
        "features": list(settings.features),
    }


class Streaming:
    """Batches of a pipe, in this process or in workers, and the pipe's own statistics."""

    def __init__(self, pipe: Any, batches: Batches | None = None) -> None:
        self._pipe = pipe
        self._batches = pipe if batches is None else batches

    def __iter__(self) -> Iterator[Batch]:
        yield from self._batches

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self._pipe.stats()
        return stats


def open_stream(
    place: Place,
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
        records_of(place),
        **arguments(settings),
        **buffer,
        batch_size=settings.batch_size,
        shuffle=settings.shuffle != "off",
        memory_limit=settings.memory_limit,
        seed=settings.seed,
        frame_transform=frame_transform,
        even_batches=False,  # every clip once, as all loaders here; workers may differ by one
    )
    if settings.workers == 0:
        return Streaming(pipe)
    return DataLoader(pipe, batch_size=None, **loader_arguments(settings))


def open_chain(
    place: Place,
    _clips: Sequence[Clip],
    settings: Settings,
    *,
    clip_transform: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Batches:
    """Single clips through a chain of pipes, as chains are usually written."""
    import seqrecord

    shuffled = settings.shuffle != "off"
    pipe: Any = seqrecord.SeqRecordPipe(
        records_of(place), **arguments(settings), shuffle=shuffled, seed=settings.seed
    )
    if shuffled:  # the pipe has shuffled well: more in this buffer would only take memory
        pipe = pipe.shuffle(buffer_size=settings.batch_size)
    pipe = pipe.sharding_filter()
    if clip_transform is not None:
        pipe = pipe.map(clip_transform)
    pipe = pipe.batch(settings.batch_size).collate(seqrecord.collate)
    return DataLoader(pipe, batch_size=None, **loader_arguments(settings))


def open_map(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    import seqrecord

    return DataLoader(
        seqrecord.SeqRecordMapDataset(records_of(place), **arguments(settings)),
        batch_size=settings.batch_size,
        sampler=Order(len(clips), settings),
        collate_fn=seqrecord.collate,
        **loader_arguments(settings),
    )


LOADERS = [
    Loader(
        name="seqrecord",
        format=format_name,
        prepare=prepare,
        open=open_stream,
        shuffles=("off", "buffer"),
        storages=OURS,
        codecs=CODECS,
        note="SeqRecordPipe with batch_size",
    ),
    Loader(
        name="seqrecord-map",
        format=format_name,
        prepare=prepare,
        open=open_map,
        storages=OURS,
        codecs=CODECS,
        note="clips by number",
    ),
    Loader(
        name="seqrecord-chain",
        format=format_name,
        prepare=prepare,
        open=open_chain,
        shuffles=("off", "buffer"),
        storages=OURS,
        codecs=CODECS,
        note="SeqRecordPipe().shuffle().sharding_filter().batch().collate()",
    ),
]
