"""Store multi-modal recordings once; stream shuffled clips of them into PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord import errors
from seqrecord.errors import (
    ClipError,
    FormatError,
    NotFoundError,
    SeqRecordError,
    StateError,
    StorageError,
)
from seqrecord.lazy import lazy
from seqrecord.version import __version__

if TYPE_CHECKING:
    from seqrecord import edit, export, sources, statistics, storage, types
    from seqrecord.clips.depth import DepthToMeters
    from seqrecord.clips.tables import ClipSpec
    from seqrecord.clips.transforms import (
        CenterCrop,
        HorizontalFlip,
        RandomCrop,
        RandomResizedCrop,
        Resize,
    )
    from seqrecord.clips.windows import Latest, Seconds, delta_timestamps
    from seqrecord.engine.device.prefetch import prefetch_to_device
    from seqrecord.indexing.opening import open_dataset as open  # noqa: A004 - as `gzip.open`
    from seqrecord.indexing.opening import summarize, verify
    from seqrecord.pipes.collating import collate
    from seqrecord.pipes.loaders import SeqRecordDataset, SeqRecordPipe, SeqRecordStream
    from seqrecord.pipes.mix import SeqRecordMix
    from seqrecord.pipes.node import SeqRecordNode
    from seqrecord.pipes.options import EngineOptions, LoaderOptions
    from seqrecord.reading.dataset import Dataset
    from seqrecord.reading.episode import Episode
    from seqrecord.schema import EncodedImage, FeatureSpec, Schema
    from seqrecord.sources import EpisodeInfo, Folders, Source, TartanAir, open_source
    from seqrecord.storage import cache_info, clear_cache
    from seqrecord.tools.bench import bench
    from seqrecord.tools.drawing import draw_timeline, view, view_rerun
    from seqrecord.tools.plan import plan
    from seqrecord.writing.commits import reindex
    from seqrecord.writing.convert import convert
    from seqrecord.writing.recorder import SeqRecordRecorder
    from seqrecord.writing.stored_statistics import add_statistics
    from seqrecord.writing.writer import SeqRecordWriter

__all__ = [
    "CenterCrop",
    "ClipError",
    "ClipSpec",
    "Dataset",
    "DepthToMeters",
    "EncodedImage",
    "EngineOptions",
    "Episode",
    "EpisodeInfo",
    "FeatureSpec",
    "Folders",
    "FormatError",
    "HorizontalFlip",
    "Latest",
    "LoaderOptions",
    "NotFoundError",
    "RandomCrop",
    "RandomResizedCrop",
    "Resize",
    "Schema",
    "Seconds",
    "SeqRecordDataset",
    "SeqRecordError",
    "SeqRecordMix",
    "SeqRecordNode",
    "SeqRecordPipe",
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
    "delta_timestamps",
    "draw_timeline",
    "edit",
    "errors",
    "export",
    "open",
    "open_source",
    "plan",
    "prefetch_to_device",
    "reindex",
    "sources",
    "statistics",
    "storage",
    "summarize",
    "types",
    "verify",
    "view",
    "view_rerun",
]

_IMPORTED_LATER = {
    "CenterCrop": "clips.transforms",
    "ClipSpec": "clips.tables",
    "Dataset": "reading.dataset",
    "DepthToMeters": "clips.depth",
    "EncodedImage": "schema",
    "EngineOptions": "pipes.options",
    "Episode": "reading.episode",
    "EpisodeInfo": "sources.base",
    "FeatureSpec": "schema",
    "Folders": "sources.folders",
    "HorizontalFlip": "clips.transforms",
    "Latest": "clips.windows",
    "LoaderOptions": "pipes.options",
    "RandomCrop": "clips.transforms",
    "RandomResizedCrop": "clips.transforms",
    "Resize": "clips.transforms",
    "Schema": "schema",
    "Seconds": "clips.windows",
    "SeqRecordDataset": "pipes.loaders",
    "SeqRecordMix": "pipes.mix",
    "SeqRecordNode": "pipes.node",
    "SeqRecordPipe": "pipes.loaders",
    "SeqRecordRecorder": "writing.recorder",
    "SeqRecordStream": "pipes.loaders",
    "SeqRecordWriter": "writing.writer",
    "Source": "sources.base",
    "TartanAir": "sources.tartanair",
    "add_statistics": "writing.stored_statistics",
    "bench": "tools.bench",
    "cache_info": "storage",
    "clear_cache": "storage",
    "collate": "pipes.collating",
    "convert": "writing.convert",
    "delta_timestamps": "clips.windows",
    "draw_timeline": "tools.drawing",
    "open": "indexing.opening:open_dataset",
    "open_source": "sources.registry",
    "plan": "tools.plan",
    "prefetch_to_device": "engine.device.prefetch",
    "reindex": "writing.commits",
    "summarize": "indexing.opening",
    "verify": "indexing.opening",
    "view": "tools.drawing",
    "view_rerun": "tools.drawing",
}


if not TYPE_CHECKING:  # or a type checker would take any name for one that is there
    # Each part of this package costs time to import, torch seconds: nothing is, before it is used.
    __getattr__, __dir__ = lazy(__name__, _IMPORTED_LATER)
