"""view: a clip as one picture; draw_timeline: a trace as one."""

from seqrecord.drawing.sheet import (
    contact_sheet,
    view,
)
from seqrecord.drawing.timeline import (
    draw_timeline,
)

__all__ = [
    "contact_sheet",
    "draw_timeline",
    "view",
]
