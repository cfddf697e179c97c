"""view: a clip as one picture, features in rows and time in columns."""

from seqrecord.drawing.sheet import (
    contact_sheet,
    view,
)

__all__ = [
    "contact_sheet",
    "view",
]
