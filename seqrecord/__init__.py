"""Store multi-modal recordings once; stream shuffled clips of them into PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from seqrecord import errors
from seqrecord.clip_transforms import CenterCrop, HorizontalFlip, RandomCrop
from seqrecord.clips import ClipSpec
from seqrecord.errors import (
    ClipError,
    FormatError,
    NotFoundError,
    SeqRecordError,
    StateError,
    StorageError,
)
from seqrecord.reading.reader import Episode, SeqRecordReader
from seqrecord.reading.reader import open_dataset as open  # noqa: A004 - `seqrecord.open`, as `gzip.open`
from seqrecord.reading.summary import summarize
from seqrecord.reading.verification import verify
from seqrecord.schema import EncodedImage, FeatureSpec, Schema
from seqrecord.seconds import Seconds
from seqrecord.sources import EpisodeInfo, Folders, Source, TartanAir, open_source
from seqrecord.storage import cache_info, clear_cache
from seqrecord.version import __version__
from seqrecord.writing.commits import reindex
from seqrecord.writing.convert import convert
from seqrecord.writing.export import export
from seqrecord.writing.recorder import SeqRecordRecorder
from seqrecord.writing.statistics import add_statistics
from seqrecord.writing.writer import SeqRecordWriter

if TYPE_CHECKING:
    from seqrecord.engine.device import prefetch_to_device
    from seqrecord.pipes.collating import collate
    from seqrecord.pipes.elastic import elastic_state
    from seqrecord.pipes.loaders import (
        SeqRecordDataset,
        SeqRecordNode,
        SeqRecordPipe,
        SeqRecordStream,
    )
    from seqrecord.pipes.mix import SeqRecordMix
    from seqrecord.pipes.options import LoaderOptions
    from seqrecord.tools.bench import bench
    from seqrecord.tools.drawing import draw_timeline, view

__all__ = [
    "CenterCrop",
    "ClipError",
    "ClipSpec",
    "EncodedImage",
    "Episode",
    "EpisodeInfo",
    "FeatureSpec",
    "Folders",
    "FormatError",
    "HorizontalFlip",
    "LoaderOptions",
    "NotFoundError",
    "RandomCrop",
    "Schema",
    "Seconds",
    "SeqRecordDataset",
    "SeqRecordError",
    "SeqRecordMix",
    "SeqRecordNode",
    "SeqRecordPipe",
    "SeqRecordReader",
    "SeqRecordRecorder",
    "SeqRecordStream",
    "SeqRecordWriter",
    "Source",
    "StateError",
    "StorageError",
    "TartanAir",
    "__version__",
    "add_statistics",
    "bench",
    "cache_info",
    "clear_cache",
    "collate",
    "convert",
    "draw_timeline",
    "elastic_state",
    "errors",
    "export",
    "open",
    "open_source",
    "prefetch_to_device",
    "reindex",
    "summarize",
    "verify",
    "view",
]

_IMPORTED_LATER = {
    "LoaderOptions": "pipes.options",
    "SeqRecordDataset": "pipes.loaders",
    "SeqRecordMix": "pipes.mix",
    "SeqRecordNode": "pipes.loaders",
    "SeqRecordPipe": "pipes.loaders",
    "SeqRecordStream": "pipes.loaders",
    "bench": "tools.bench",
    "collate": "pipes.collating",
    "draw_timeline": "tools.drawing",
    "elastic_state": "pipes.elastic",
    "prefetch_to_device": "engine.device",
    "view": "tools.drawing",
}


if not TYPE_CHECKING:  # or a type checker would take any name for one that is there

    def __getattr__(name: str) -> Any:
        # Writing, inspecting and random access do without torch, which takes seconds to import, and
        # without the tools.
        if name in _IMPORTED_LATER:
            return getattr(importlib.import_module(f"seqrecord.{_IMPORTED_LATER[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
