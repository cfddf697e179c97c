"""Store multi-modal recordings once; stream shuffled clips of them into PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from seqrecord.benching import BenchReport, bench
from seqrecord.catalog import reindex
from seqrecord.clips import ClipSpec
from seqrecord.codecs import EncodedImage
from seqrecord.conversion import BadEpisode, ConvertReport, Progress, convert
from seqrecord.drawing import contact_sheet, draw_timeline, view
from seqrecord.errors import (
    ChecksumError,
    ClipError,
    CodecError,
    DestinationError,
    FormatError,
    FrameError,
    LocationError,
    MemoryLimitError,
    NotFoundError,
    SchemaError,
    SeqRecordError,
    SourceError,
    StateError,
    StorageError,
    VersionError,
)
from seqrecord.exporting import export
from seqrecord.reader import Dataset, Episode
from seqrecord.reader import open_dataset as open  # noqa: A004 - `seqrecord.open`, as `gzip.open`
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.summary import Summary, summarize
from seqrecord.verification import VerifyProgress, VerifyReport, verify
from seqrecord.version import __version__
from seqrecord.writer import SeqRecordWriter

if TYPE_CHECKING:
    from seqrecord.pipes import (
        SeqRecordDataset,
        SeqRecordNode,
        SeqRecordPipe,
        SeqRecordStream,
    )

__all__ = [
    "BadEpisode",
    "BenchReport",
    "ChecksumError",
    "ClipError",
    "ClipSpec",
    "CodecError",
    "ConvertReport",
    "Dataset",
    "DestinationError",
    "EncodedImage",
    "Episode",
    "FeatureSpec",
    "FormatError",
    "FrameError",
    "LocationError",
    "MemoryLimitError",
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
    "VerifyProgress",
    "VerifyReport",
    "VersionError",
    "__version__",
    "bench",
    "contact_sheet",
    "convert",
    "draw_timeline",
    "export",
    "open",
    "reindex",
    "summarize",
    "verify",
    "view",
]

_NEED_TORCH = {"SeqRecordDataset", "SeqRecordNode", "SeqRecordPipe", "SeqRecordStream"}


def __getattr__(name: str) -> Any:
    # Writing, inspecting and random access do without torch, which takes seconds to import.
    if name in _NEED_TORCH:
        return getattr(importlib.import_module("seqrecord.pipes"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
