"""Pictures: a clip or a trace as a figure of matplotlib's, episodes in the Rerun viewer."""

from seqrecord.tools.drawing.picture_files import picture_file
from seqrecord.tools.drawing.rerun_log import view_rerun
from seqrecord.tools.drawing.timeline import draw_timeline
from seqrecord.tools.drawing.view import DEFAULT_CLIP_LEN, view

__all__ = [
    "DEFAULT_CLIP_LEN",
    "draw_timeline",
    "picture_file",
    "view",
    "view_rerun",
]
