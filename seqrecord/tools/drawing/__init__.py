"""Pictures: a clip as a matplotlib figure, episodes in the Rerun viewer."""

from seqrecord.tools.drawing.picture_files import picture_file
from seqrecord.tools.drawing.rerun_log import view_rerun
from seqrecord.tools.drawing.view import DEFAULT_CLIP_LEN, view

__all__ = [
    "DEFAULT_CLIP_LEN",
    "picture_file",
    "view",
    "view_rerun",
]
