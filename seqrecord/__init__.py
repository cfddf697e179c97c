"""Store multi-modal recordings once; stream shuffled clips of them into PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from seqrecord.benching import BenchReport, bench
from seqrecord.clips import ClipSpec
from seqrecord.codecs import EncodedImage
from seqrecord.commits import reindex
from seqrecord.conversion import BadEpisode, ConvertReport, Progress, convert
from seqrecord.drawing import draw_timeline, view
from seqrecord.errors import (
    AccessError,
    ChecksumError,
    ClipError,
    CodecError,
    DeadlineError,
    DestinationError,
    FormatError,
    FrameError,
    LocationError,
    MemoryLimitError,
    MissingPackageError,
    NotFoundError,
    SchemaError,
    SeqRecordError,
    SourceError,
    StateError,
    StorageError,
    TransientError,
    VersionError,
)
from seqrecord.exporting import export
from seqrecord.reader import Dataset, Episode
from seqrecord.reader import open_dataset as open  # noqa: A004 - `seqrecord.open`, as `gzip.open`
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.storage import CacheInfo, cache_info, clear_cache
from seqrecord.summary import Summary, summarize
from seqrecord.verification import VerifyProgress, VerifyReport, verify
from seqrecord.version import __version__
from seqrecord.writer import SeqRecordWriter

if TYPE_CHECKING:
    from seqrecord.device import prefetch_to_device
    from seqrecord.pipes import (
        SeqRecordDataset,
        SeqRecordNode,
        SeqRecordPipe,
        SeqRecordStream,
    )

__all__ = [
    "AccessError",
    "BadEpisode",
    "BenchReport",
    "CacheInfo",
    "ChecksumError",
    "ClipError",
    "ClipSpec",
    "CodecError",
    "ConvertReport",
    "Dataset",
    "DeadlineError",
    "DestinationError",
    "EncodedImage",
    "Episode",
    "FeatureSpec",
    "FormatError",
    "FrameError",
    "LocationError",
    "MemoryLimitError",
    "MissingPackageError",
    "NotFoundError",
    "Progress",
    "Schema",
    "SchemaError",
    "SeqRecordDataset",
    "SeqRecordError",
    "SeqRecordNode",
    "SeqRecordPipe",
    "SeqRecordStream",
    "SeqRecordWriter",
    "SourceError",
    "StateError",
    "StorageError",
    "Summary",
    "TransientError",
    "VerifyProgress",
    "VerifyReport",
    "VersionError",
    "__version__",
    "bench",
    "cache_info",
    "clear_cache",
    "convert",
    "draw_timeline",
    "export",
    "open",
    "prefetch_to_device",
    "reindex",
    "summarize",
    "verify",
    "view",
]

_NEED_TORCH = {
    "SeqRecordDataset": "pipes",
    "SeqRecordNode": "pipes",
    "SeqRecordPipe": "pipes",
    "SeqRecordStream": "pipes",
    "prefetch_to_device": "device",
}


def __getattr__(name: str) -> Any:
    # Writing, inspecting and random access do without torch, which takes seconds to import.
    if name in _NEED_TORCH:
        return getattr(importlib.import_module(f"seqrecord.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
