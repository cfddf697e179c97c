"""Store multi-modal recordings once; stream shuffled clips of them into PyTorch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from seqrecord.clips import ClipSpec
from seqrecord.codecs import EncodedImage
from seqrecord.convert import ConvertReport, Progress, convert
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
from seqrecord.reader import Dataset, Episode
from seqrecord.reader import open_dataset as open  # noqa: A004 - `seqrecord.open`, as `gzip.open`
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.version import __version__
from seqrecord.writer import SeqRecordWriter

__all__ = [
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
    "SeqRecordError",
    "SeqRecordWriter",
    "SourceError",
    "StateError",
    "StorageError",
    "VersionError",
    "__version__",
    "convert",
    "open",
]
