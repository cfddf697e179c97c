"""Plots of clips with matplotlib, and episodes in the Rerun viewer."""

from seqrecord.viewer.rerun_log import view_rerun
from seqrecord.viewer.view import DEFAULT_CLIP_LEN, view

__all__ = [
    "DEFAULT_CLIP_LEN",
    "view",
    "view_rerun",
]
