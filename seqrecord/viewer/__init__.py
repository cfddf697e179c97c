"""Plots of clips and quality tables with matplotlib, and episodes in the Rerun viewer."""

from seqrecord.viewer.quality import view_quality
from seqrecord.viewer.rerun_log import view_rerun
from seqrecord.viewer.view import DEFAULT_CLIP_LEN, view

__all__ = [
    "DEFAULT_CLIP_LEN",
    "view",
    "view_quality",
    "view_rerun",
]
