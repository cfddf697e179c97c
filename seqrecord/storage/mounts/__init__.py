"""Files of a mount: a local path behind which something fetches them, such as blobfuse."""

from seqrecord.storage.mounts.storage import MountStorage
from seqrecord.storage.mounts.table import find_remote_mount

__all__ = [
    "MountStorage",
    "find_remote_mount",
]
