"""Files of a mount: a local path behind which something fetches them, such as blobfuse."""

from typing import TYPE_CHECKING

from seqrecord.lazy import lazy
from seqrecord.storage.mounts.table import find_remote_mount

if TYPE_CHECKING:
    from seqrecord.storage.mounts.storage import MountStorage

__all__ = [
    "MountStorage",
    "find_remote_mount",
]

if not TYPE_CHECKING:
    __getattr__ = lazy(__name__, {"MountStorage": "storage"})
