"""Types for annotations: reports, options and protocols that users do not construct."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.store.lazy import lazy

if TYPE_CHECKING:
    __all__: list[str]

    from seqrecord.formats.converting.convert import ConvertReport as ConvertReport
    from seqrecord.formats.converting.convert_jobs import BadEpisode as BadEpisode
    from seqrecord.loader.clips.transforms import ClipFunction as ClipFunction
    from seqrecord.loader.clips.transforms import ClipTransform as ClipTransform
    from seqrecord.loader.clips.transforms import VaryingClipFunction as VaryingClipFunction
    from seqrecord.loader.pipes.options import ClipOptions as ClipOptions
    from seqrecord.recipes.summary import MixFeatureSummary as MixFeatureSummary
    from seqrecord.recipes.summary import MixSourceSummary as MixSourceSummary
    from seqrecord.recipes.summary import MixSummary as MixSummary
    from seqrecord.store.bfloat16 import BFLOAT16 as BFLOAT16
    from seqrecord.store.reading.dataset import DatasetLike as DatasetLike
    from seqrecord.store.reading.filters import EpisodeDescription as EpisodeDescription
    from seqrecord.store.reading.filters import EpisodeFilter as EpisodeFilter
    from seqrecord.store.reading.metadata import DamagedFile as DamagedFile
    from seqrecord.store.reading.summary import ClipSummary as ClipSummary
    from seqrecord.store.reading.summary import FeatureSummary as FeatureSummary
    from seqrecord.store.reading.summary import GroupSummary as GroupSummary
    from seqrecord.store.reading.summary import Summary as Summary
    from seqrecord.store.reading.versions import DatasetVersion as DatasetVersion
    from seqrecord.store.units import Progress as Progress
    from seqrecord.store.value_kinds import FrameFunction as FrameFunction
    from seqrecord.store.writing.writer import EpisodeWriter as EpisodeWriter
    from seqrecord.tools.derive.provenance import Derivation as Derivation
    from seqrecord.tools.profiler.bench import BenchReport as BenchReport
    from seqrecord.tools.profiler.bench import StepTimes as StepTimes
    from seqrecord.tools.recorder import RecorderStats as RecorderStats
    from seqrecord.tools.recorder import RecordingEpisode as RecordingEpisode
    from seqrecord.tools.verify_report import VerifyReport as VerifyReport

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
