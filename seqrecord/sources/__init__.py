"""Where episodes come from: original datasets behind one protocol."""

from __future__ import annotations

from seqrecord.sources.base import EpisodeInfo, FoundSource, Source, SourceFormat
from seqrecord.sources.folders import Folders
from seqrecord.sources.registry import format_names, open_source
from seqrecord.sources.tartanair import CAMERAS, TartanAir

__all__ = [
    "CAMERAS",
    "EpisodeInfo",
    "Folders",
    "FoundSource",
    "Source",
    "SourceFormat",
    "TartanAir",
    "format_names",
    "open_source",
]
