"""What a dataset holds, counted from its manifest and index: no record file is read."""

from seqrecord.summary.dataset import ClipSummary, FeatureSummary, Summary, summarize
from seqrecord.summary.episode import EpisodeFeature, EpisodeSummary, summarize_episode
from seqrecord.summary.listing import EpisodeRow, list_episodes, listing_lines
from seqrecord.wording import codec_text

__all__ = [
    "ClipSummary",
    "EpisodeFeature",
    "EpisodeRow",
    "EpisodeSummary",
    "FeatureSummary",
    "Summary",
    "codec_text",
    "list_episodes",
    "listing_lines",
    "summarize",
    "summarize_episode",
]
