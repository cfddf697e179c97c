"""Types for annotations: reports, options and protocols that users do not construct."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy

if TYPE_CHECKING:
    __all__: list[str]

    from seqrecord.clips.transforms import ClipFunction as ClipFunction
    from seqrecord.clips.transforms import ClipTransform as ClipTransform
    from seqrecord.clips.transforms import VaryingClipFunction as VaryingClipFunction
    from seqrecord.pipes.mixing.summary import MixFeatureSummary as MixFeatureSummary
    from seqrecord.pipes.mixing.summary import MixSourceSummary as MixSourceSummary
    from seqrecord.pipes.mixing.summary import MixSummary as MixSummary
    from seqrecord.pipes.options import ClipOptions as ClipOptions
    from seqrecord.profiler.bench import BenchReport as BenchReport
    from seqrecord.profiler.bench import StepTimes as StepTimes
    from seqrecord.reading.array_specs import FrameFunction as FrameFunction
    from seqrecord.reading.dataset import DatasetLike as DatasetLike
    from seqrecord.reading.filters import EpisodeDescription as EpisodeDescription
    from seqrecord.reading.filters import EpisodeFilter as EpisodeFilter
    from seqrecord.reading.metadata import DamagedFile as DamagedFile
    from seqrecord.reading.summary import ClipSummary as ClipSummary
    from seqrecord.reading.summary import FeatureSummary as FeatureSummary
    from seqrecord.reading.summary import GroupSummary as GroupSummary
    from seqrecord.reading.summary import Summary as Summary
    from seqrecord.reading.verify import VerifyReport as VerifyReport
    from seqrecord.reading.versions import DatasetVersion as DatasetVersion
    from seqrecord.units import Progress as Progress
    from seqrecord.writing.convert import ConvertReport as ConvertReport
    from seqrecord.writing.convert_jobs import BadEpisode as BadEpisode
    from seqrecord.writing.recorder import RecorderStats as RecorderStats
    from seqrecord.writing.recorder import RecordingEpisode as RecordingEpisode
    from seqrecord.writing.writer import EpisodeWriter as EpisodeWriter

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy(__name__)
