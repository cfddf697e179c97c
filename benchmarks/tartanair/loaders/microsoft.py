"""Microsoft's `seqrecord`, which has our name: it is installed in a folder of its own."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterDataPipe

from benchmarks.tartanair.compare.recordings import Clip, Recordings
from benchmarks.tartanair.loaders.base import Batches, Loader, Place, Settings, one_format
from benchmarks.tartanair.loaders.map_style import loader_arguments
from benchmarks.tartanair.loaders.rootless import without_roots
from benchmarks.tartanair.loaders.windows import Window, collate

FOLDER = Path(sys.prefix) / "microsoft-seqrecord"


def load_class() -> Any:
    """Its class of records; its package imports pipes that torchdata no longer has."""
    with without_roots(FOLDER, "seqrecord", "seqrecord.robot"):
        module = importlib.import_module("seqrecord.robot.seqrecord")
    return module.RSeqRecord


def prepare(recordings: Recordings, folder: Path, _settings: Settings) -> None:
    record = load_class()(str(folder / "records"))
    frame = None
    for _, frames in recordings.read():
        for index, frame in enumerate(frames):
            record.write_item(frame, is_seq_start=index == 0)
    # It loses the last episode's last clips, so one more frame follows, an episode of its own.
    record.write_item(frame, is_seq_start=True)
    record.close_recordfile()
    record.dump()


class Segments(IterDataPipe[Window]):
    """What its own pipe yields, and which clip it is; it makes every clip, whatever the stride."""

    def __init__(self, folder: str, clips: Sequence[Clip], settings: Settings) -> None:
        self._folder = folder
        self._clips = {clip.row: clip for clip in clips}
        self._settings = settings

    def __iter__(self) -> Iterator[Window]:
        record = load_class().load_record_from_dict(self._folder)
        features = list(self._settings.features)
        plan = record.get_metadata4segment(self._settings.clip_len, features)
        segments = record.read_segments(plan)
        for row, segment in zip(plan["head4segment"], segments, strict=True):
            if clip := self._clips.get(row):
                place = {"episode": clip.episode, "index": clip.start}
                yield [
                    {**dict(zip(features, frame, strict=True)), **place}
                    for frame in zip(*(segment[name] for name in features), strict=True)
                ]


def open_batches(place: Place, clips: Sequence[Clip], settings: Settings) -> Batches:
    """Its chain: a shuffle buffer of clips, whose frames are mapped files, then a filter."""
    pipe: Any = Segments(str(place.folder / "records"), clips, settings)
    if settings.shuffle != "off":
        pipe = pipe.shuffle(buffer_size=settings.shuffle_buffer)
    pipe = pipe.sharding_filter().batch(settings.batch_size)
    pipe = pipe.collate(partial(collate, features=settings.features))
    return DataLoader(pipe, batch_size=None, **loader_arguments(settings))


def not_there() -> str | None:
    return None if FOLDER.exists() else "not in its folder: make install-bench"


LOADERS = [
    Loader(
        name="microsoft-seqrecord",
        format=one_format("microsoft-seqrecord"),
        prepare=prepare,
        open=open_batches,
        shuffles=("off", "buffer"),
        also_missing=not_there,
        alone=True,
        note="0.1.8 of the package index; its chain of pipes on torch's",
    )
]
