"""Types of what this package takes and gives: for annotations, and for what is not made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy

if TYPE_CHECKING:
    from seqrecord.clips.transforms import ClipFunction, ClipTransform
    from seqrecord.pipes.options import ClipOptions
    from seqrecord.reading.amount import Amount
    from seqrecord.reading.compute_statistics import StatisticsProgress
    from seqrecord.reading.dataset import DatasetLike
    from seqrecord.reading.filters import EpisodeFacts, EpisodeFilter
    from seqrecord.reading.frames import FrameTransform
    from seqrecord.reading.metadata import DamagedFile
    from seqrecord.reading.summary import ClipSummary, FeatureSummary, GroupSummary, Summary
    from seqrecord.reading.verified import Verified
    from seqrecord.reading.verify import VerifyProgress, VerifyReport
    from seqrecord.reading.versions import DatasetVersion
    from seqrecord.tools.bench import BenchReport, StepTimes
    from seqrecord.tools.plan import PlanReport
    from seqrecord.writing.convert import ConvertReport
    from seqrecord.writing.convert_jobs import BadEpisode, Progress
    from seqrecord.writing.recorder import RecorderStats, RecordingEpisode
    from seqrecord.writing.writer import EpisodeWriter

__all__ = [
    "Amount",
    "BadEpisode",
    "BenchReport",
    "ClipFunction",
    "ClipOptions",
    "ClipSummary",
    "ClipTransform",
    "ConvertReport",
    "DamagedFile",
    "DatasetLike",
    "DatasetVersion",
    "EpisodeFacts",
    "EpisodeFilter",
    "EpisodeWriter",
    "FeatureSummary",
    "FrameTransform",
    "GroupSummary",
    "PlanReport",
    "Progress",
    "RecorderStats",
    "RecordingEpisode",
    "StatisticsProgress",
    "StepTimes",
    "Summary",
    "Verified",
    "VerifyProgress",
    "VerifyReport",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Amount": "seqrecord.reading.amount",
            "BadEpisode": "seqrecord.writing.convert_jobs",
            "BenchReport": "seqrecord.tools.bench",
            "ClipFunction": "seqrecord.clips.transforms",
            "ClipOptions": "seqrecord.pipes.options",
            "ClipSummary": "seqrecord.reading.summary",
            "ClipTransform": "seqrecord.clips.transforms",
            "ConvertReport": "seqrecord.writing.convert",
            "DamagedFile": "seqrecord.reading.metadata",
            "DatasetLike": "seqrecord.reading.dataset",
            "DatasetVersion": "seqrecord.reading.versions",
            "EpisodeFacts": "seqrecord.reading.filters",
            "EpisodeFilter": "seqrecord.reading.filters",
            "EpisodeWriter": "seqrecord.writing.writer",
            "FeatureSummary": "seqrecord.reading.summary",
            "FrameTransform": "seqrecord.reading.frames",
            "GroupSummary": "seqrecord.reading.summary",
            "PlanReport": "seqrecord.tools.plan",
            "Progress": "seqrecord.writing.convert_jobs",
            "RecorderStats": "seqrecord.writing.recorder",
            "RecordingEpisode": "seqrecord.writing.recorder",
            "StatisticsProgress": "seqrecord.reading.compute_statistics",
            "StepTimes": "seqrecord.tools.bench",
            "Summary": "seqrecord.reading.summary",
            "Verified": "seqrecord.reading.verified",
            "VerifyProgress": "seqrecord.reading.verify",
            "VerifyReport": "seqrecord.reading.verify",
        },
    )
