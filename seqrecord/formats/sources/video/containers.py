"""Compare a video file's bytes with what its container declares, before packets are read.

FFmpeg returns what is left of a file that was cut or has holes, mostly without an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

from seqrecord.formats.sources.video.avi_chunks import check_avi
from seqrecord.formats.sources.video.file_bytes import Contents, FileBytes, StreamFacts
from seqrecord.formats.sources.video.gif_blocks import check_gif
from seqrecord.formats.sources.video.matroska import check_matroska
from seqrecord.formats.sources.video.mp4_samples import check_mp4
from seqrecord.formats.sources.video.ts_packets import check_ts
from seqrecord.in_place.files import opened
from seqrecord.in_place.remote import BLOCK_BYTES, MAX_BLOCKS

Check = Callable[[FileBytes, StreamFacts], Contents]

_CHECKS: dict[str, Check] = {
    "matroska": check_matroska,
    "mov": check_mp4,
    "avi": check_avi,
    "mpegts": check_ts,
    "gif": check_gif,
}
_MOST_CHECKED = 1 << 10


def check_container(
    format_name: str, path: Path, stream: StreamFacts, remote: BinaryIO | None = None
) -> Contents:
    """Return what a file contains whose bytes agree with its container.

    A local file is read once per process until it changes. Of files on a URL that are larger than
    the cache of their blocks, only the declared sizes and the end are checked.

    Args:
        format_name: FFmpeg's, with commas.
        path: the file.
        stream: the selected stream.
        remote: the open file of a URL; its position is kept.

    Raises `SourceError` for a file that ends early or is damaged.
    """
    check = _CHECKS[format_name.partition(",")[0]]
    if remote is not None:
        position = remote.tell()
        is_whole = remote.seek(0, os.SEEK_END) <= BLOCK_BYTES * MAX_BLOCKS
        data = FileBytes(remote, path, is_whole=is_whole)
        contents = check(data, stream)
        remote.seek(position)
        return contents
    with opened(path) as file:
        status = os.fstat(file.fileno())
    times = (status.st_mtime_ns, status.st_ctime_ns)
    return _check_local(check, path, stream, status.st_dev, status.st_ino, status.st_size, *times)


@lru_cache(_MOST_CHECKED)
def _check_local(check: Check, path: Path, stream: StreamFacts, *_identity: int) -> Contents:
    with opened(path) as file:
        return check(FileBytes(file, path), stream)
