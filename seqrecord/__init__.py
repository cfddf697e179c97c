"""Store multi-modal recordings once; stream shuffled clips of them into PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.store.lazy import lazy

if TYPE_CHECKING:
    __all__: list[str]

    from seqrecord import edit as edit
    from seqrecord import errors as errors
    from seqrecord import export as export
    from seqrecord import samples as samples
    from seqrecord import sources as sources
    from seqrecord import statistics as statistics
    from seqrecord import types as types
    from seqrecord.camera.values import Camera as Camera
    from seqrecord.camera.values import RelativePose as RelativePose
    from seqrecord.errors import ClipError as ClipError
    from seqrecord.errors import FormatError as FormatError
    from seqrecord.errors import NotFoundError as NotFoundError
    from seqrecord.errors import SeqRecordError as SeqRecordError
    from seqrecord.errors import StateError as StateError
    from seqrecord.errors import StorageError as StorageError
    from seqrecord.formats.converting.convert import convert as convert
    from seqrecord.formats.indexing.source_opening import open_source as open_source
    from seqrecord.loader.clips.depth import DepthToMeters as DepthToMeters
    from seqrecord.loader.clips.transforms import BatchResize as BatchResize
    from seqrecord.loader.clips.transforms import CenterCrop as CenterCrop
    from seqrecord.loader.clips.transforms import HorizontalFlip as HorizontalFlip
    from seqrecord.loader.clips.transforms import RandomCrop as RandomCrop
    from seqrecord.loader.clips.transforms import RandomResizedCrop as RandomResizedCrop
    from seqrecord.loader.clips.transforms import Resize as Resize
    from seqrecord.loader.clips.windows import At as At
    from seqrecord.loader.clips.windows import Latest as Latest
    from seqrecord.loader.clips.windows import Next as Next
    from seqrecord.loader.clips.windows import Seconds as Seconds
    from seqrecord.loader.clips.windows import delta_timestamps as delta_timestamps
    from seqrecord.loader.frames.normalization import Normalization as Normalization
    from seqrecord.loader.mixing.mix import SeqRecordMix as SeqRecordMix
    from seqrecord.loader.pipes.collating import collate as collate
    from seqrecord.loader.pipes.loaders import SeqRecordIterableDataset as SeqRecordIterableDataset
    from seqrecord.loader.pipes.loaders import SeqRecordPipe as SeqRecordPipe
    from seqrecord.loader.pipes.map_dataset import SeqRecordMapDataset as SeqRecordMapDataset
    from seqrecord.loader.pipes.node import SeqRecordNode as SeqRecordNode
    from seqrecord.loader.pipes.option_values import Budget as Budget
    from seqrecord.loader.pipes.option_values import FrameCache as FrameCache
    from seqrecord.loader.pipes.option_values import FrameTransform as FrameTransform
    from seqrecord.loader.pipes.option_values import Vector as Vector
    from seqrecord.loader.pipes.options import EngineOptions as EngineOptions
    from seqrecord.loader.pipes.options import LoaderOptions as LoaderOptions
    from seqrecord.loader.pipes.rank_check import check_ranks as check_ranks
    from seqrecord.store.clip_spec import ClipSpec as ClipSpec
    from seqrecord.store.reading.dataset import Dataset as Dataset
    from seqrecord.store.reading.episode import Episode as Episode
    from seqrecord.store.reading.opening import open as open  # noqa: A004 - as `gzip.open`
    from seqrecord.store.reading.opening import summarize as summarize
    from seqrecord.store.schema import EncodedImage as EncodedImage
    from seqrecord.store.schema import FeatureSpec as FeatureSpec
    from seqrecord.store.schema import Schema as Schema
    from seqrecord.store.writing.commits import reindex as reindex
    from seqrecord.store.writing.stored_statistics import add_statistics as add_statistics
    from seqrecord.store.writing.writer import SeqRecordWriter as SeqRecordWriter
    from seqrecord.tools.derive.derive import check_derived as check_derived
    from seqrecord.tools.derive.derive import derive as derive
    from seqrecord.tools.profiler.bench import bench as bench
    from seqrecord.tools.recorder import SeqRecordRecorder as SeqRecordRecorder
    from seqrecord.tools.verify import verify as verify
    from seqrecord.tools.viewer.view import view as view
    from seqrecord.version import __version__ as __version__

if not TYPE_CHECKING:  # a module `__getattr__` would make type checkers accept any name
    # Modules are imported at first use, because importing torch takes seconds.
    __getattr__, __dir__, __all__ = lazy(__name__)
