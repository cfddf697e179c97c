"""Files of a local disk."""

from seqrecord.storage.local.storage import LocalStorage

__all__ = [
    "LocalStorage",
]
