"""view: a clip as one figure; draw_timeline: a trace as one. Both are drawn by matplotlib."""

from seqrecord.tools.drawing.picture_files import (
    picture_file,
)
from seqrecord.tools.drawing.timeline import (
    draw_timeline,
)
from seqrecord.tools.drawing.view import (
    DEFAULT_CLIP_LEN,
    view,
)

__all__ = [
    "DEFAULT_CLIP_LEN",
    "draw_timeline",
    "picture_file",
    "view",
]
