"""Plots of clips and quality tables with matplotlib, and episodes in the Rerun viewer."""

from seqrecord.tools.viewer.quality import view_quality
from seqrecord.tools.viewer.rerun_log import view_rerun
from seqrecord.tools.viewer.view import DEFAULT_CLIP_LEN, view

__all__ = [
    "DEFAULT_CLIP_LEN",
    "view",
    "view_quality",
    "view_rerun",
]
