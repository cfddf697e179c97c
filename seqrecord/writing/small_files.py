"""Writing a small file whole: of the index, of edits, or a note."""

from __future__ import annotations

from seqrecord.checksum import crc32c
from seqrecord.format.manifest import IndexFile
from seqrecord.storage import Storage

__all__ = ["put_file"]


def put_file(storage: Storage, path: str, data: bytes | memoryview) -> IndexFile:
    """Write a file under a name that nobody else uses, and which nothing names yet."""
    upload = storage.create(path)
    try:
        upload.write(data)
        upload.commit()
    except BaseException:
        upload.abort()
        raise
    return IndexFile(path, len(memoryview(data).cast("B")), f"{crc32c(data):08x}")
