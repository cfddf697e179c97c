"""Store multi-modal recordings once; stream shuffled clips of them into PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy

if TYPE_CHECKING:
    __all__: list[str]

    from seqrecord import edit as edit
    from seqrecord import errors as errors
    from seqrecord import export as export
    from seqrecord import samples as samples
    from seqrecord import sources as sources
    from seqrecord import statistics as statistics
    from seqrecord import types as types
    from seqrecord.clips.depth import DepthToMeters as DepthToMeters
    from seqrecord.clips.tables import ClipSpec as ClipSpec
    from seqrecord.clips.transforms import BatchResize as BatchResize
    from seqrecord.clips.transforms import CenterCrop as CenterCrop
    from seqrecord.clips.transforms import HorizontalFlip as HorizontalFlip
    from seqrecord.clips.transforms import RandomCrop as RandomCrop
    from seqrecord.clips.transforms import RandomResizedCrop as RandomResizedCrop
    from seqrecord.clips.transforms import Resize as Resize
    from seqrecord.clips.windows import At as At
    from seqrecord.clips.windows import Latest as Latest
    from seqrecord.clips.windows import Next as Next
    from seqrecord.clips.windows import Seconds as Seconds
    from seqrecord.clips.windows import delta_timestamps as delta_timestamps
    from seqrecord.errors import ClipError as ClipError
    from seqrecord.errors import FormatError as FormatError
    from seqrecord.errors import NotFoundError as NotFoundError
    from seqrecord.errors import SeqRecordError as SeqRecordError
    from seqrecord.errors import StateError as StateError
    from seqrecord.errors import StorageError as StorageError
    from seqrecord.indexing.source_opening import open_source as open_source
    from seqrecord.pipes.collating import collate as collate
    from seqrecord.pipes.loaders import SeqRecordIterableDataset as SeqRecordIterableDataset
    from seqrecord.pipes.loaders import SeqRecordPipe as SeqRecordPipe
    from seqrecord.pipes.map_dataset import SeqRecordMapDataset as SeqRecordMapDataset
    from seqrecord.pipes.mixing.mix import SeqRecordMix as SeqRecordMix
    from seqrecord.pipes.node import SeqRecordNode as SeqRecordNode
    from seqrecord.pipes.option_values import FrameCache as FrameCache
    from seqrecord.pipes.option_values import FrameTransform as FrameTransform
    from seqrecord.pipes.option_values import MaxFrames as MaxFrames
    from seqrecord.pipes.option_values import Vector as Vector
    from seqrecord.pipes.options import EngineOptions as EngineOptions
    from seqrecord.pipes.options import LoaderOptions as LoaderOptions
    from seqrecord.pipes.rank_check import check_ranks as check_ranks
    from seqrecord.profiler.bench import bench as bench
    from seqrecord.reading.dataset import Dataset as Dataset
    from seqrecord.reading.episode import Episode as Episode
    from seqrecord.reading.opening import open as open  # noqa: A004 - as `gzip.open`
    from seqrecord.reading.opening import summarize as summarize
    from seqrecord.reading.verify import verify as verify
    from seqrecord.schema import EncodedImage as EncodedImage
    from seqrecord.schema import FeatureSpec as FeatureSpec
    from seqrecord.schema import Schema as Schema
    from seqrecord.sources import EpisodeInfo as EpisodeInfo
    from seqrecord.sources import FolderSource as FolderSource
    from seqrecord.sources import Source as Source
    from seqrecord.sources import TartanAirSource as TartanAirSource
    from seqrecord.statistics.normalization import Normalization as Normalization
    from seqrecord.version import __version__ as __version__
    from seqrecord.viewer import view as view
    from seqrecord.viewer import view_rerun as view_rerun
    from seqrecord.writing.commits import reindex as reindex
    from seqrecord.writing.convert import convert as convert
    from seqrecord.writing.recorder import SeqRecordRecorder as SeqRecordRecorder
    from seqrecord.writing.stored_statistics import add_statistics as add_statistics
    from seqrecord.writing.writer import SeqRecordWriter as SeqRecordWriter

if not TYPE_CHECKING:  # a module `__getattr__` would make type checkers accept any name
    # Modules are imported at first use, because importing torch takes seconds.
    __getattr__, __dir__, __all__ = lazy(__name__)
