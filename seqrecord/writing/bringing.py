"""Brings a record file as it is to another dataset: a hard link, or a copy."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from dataclasses import replace
from pathlib import Path

from seqrecord.errors import FormatError, NotFoundError
from seqrecord.format import RECORDS
from seqrecord.format.manifest import RecordFile
from seqrecord.reading.metadata import read_footer
from seqrecord.storage import Storage, copy_on_server
from seqrecord.storage.local import LocalStorage
from seqrecord.storage.local_upload import local_errors, make_folder, sync_folder
from seqrecord.storage.ranges import ByteRange

__all__ = ["bring", "link_source"]

_COPY_BYTES = 8 << 20
# Another file system, one without links, or a file that has as many as it may.
_NO_LINKS = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP}


def link_source(source: Storage, made: Storage, path: str) -> str | None:
    """Where a record file can be linked from to the destination, if it can."""
    if not isinstance(made, LocalStorage) or (found := source.local_path(path)) is None:
        return None
    there = made.root
    with local_errors(str(there)):
        while not there.exists():
            there = there.parent
        device = there.stat().st_dev
    with local_errors(found):
        return found if Path(found).stat().st_dev == device else None


def bring(
    source: Storage, made: Storage, file: RecordFile, ordinal: int, link: bool, writer: str
) -> RecordFile:
    """Link or copy a record file, under a new name of this writer's; the file as it is there.

    `ordinal` is that of its first episode.
    """

    def named() -> RecordFile:
        token = secrets.token_hex(8)
        return replace(file, path=f"{RECORDS}/{ordinal:05d}-{writer}{token}.seqrec")

    brought = named()
    found = link_source(source, made, file.path) if link else None
    if found is not None and _link(made, found, brought.path):
        return brought
    if copy_on_server(source, file.path, made, brought.path):
        # A service may say that it has begun to copy.
        with contextlib.suppress(FormatError, NotFoundError):
            if read_footer(made, brought.path).file_id == file.file_id:
                return brought
        made.remove(brought.path)
    brought = named()
    _copy(source, file, made, brought.path)
    return brought


def _copy(source: Storage, file: RecordFile, made: Storage, path: str) -> None:
    """Copy a record file through this machine."""
    upload = made.create(path)
    try:
        for start in range(0, file.size, _COPY_BYTES):
            item = ByteRange(start, min(start + _COPY_BYTES, file.size))
            buffer = bytearray(item.length)
            source.read_ranges(file.path, [item], [memoryview(buffer)])
            upload.write(buffer)
        upload.commit()
    except BaseException:
        upload.abort()
        raise


def _link(made: Storage, found: str, path: str) -> bool:
    """Whether the file could be linked; not where the file system has no link for it."""
    assert isinstance(made, LocalStorage)
    target = made.root / path
    with local_errors(str(target), writing=True):
        make_folder(target.parent)
        try:
            os.link(os.path.realpath(found), target)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
        sync_folder(target.parent)
    return True
