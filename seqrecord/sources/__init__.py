"""Where episodes come from: original datasets behind one protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy
from seqrecord.sources.base import EpisodeInfo, FoundSource, Source, SourceFormat

if TYPE_CHECKING:
    from seqrecord.sources.folders import Folders
    from seqrecord.sources.registry import format_names, open_source
    from seqrecord.sources.tartanair import TartanAir

__all__ = [
    "EpisodeInfo",
    "Folders",
    "FoundSource",
    "Source",
    "SourceFormat",
    "TartanAir",
    "format_names",
    "open_source",
]

if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__,
        {
            "Folders": "folders",
            "TartanAir": "tartanair",
            "format_names": "registry",
            "open_source": "registry",
        },
    )
