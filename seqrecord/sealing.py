"""Makes a record file of what a kill has left of one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqrecord.checksum import crc32c
from seqrecord.errors import ChecksumError, FormatError
from seqrecord.format import (
    HEADER_BYTES,
    Footer,
    parse_footer,
    parse_header,
)
from seqrecord.format.pages import aligned, page_offsets
from seqrecord.ranges import ByteRange
from seqrecord.record_file import finish_upload
from seqrecord.storage import Storage

__all__ = ["seal"]


def seal(storage: Storage, path: str) -> Footer | None:
    """Finish a record file that a kill has cut, with the episodes that had ended in it.

    Header, notes and every page of those episodes are read and checked first, since nothing tells
    what of a file a machine had on disk when it went down. Returns `None`, and removes what is
    there, if no episode had ended. Raises `StorageError`, and leaves it, where it cannot be read:
    that may pass.
    """
    cut = storage.reopen(path)
    written = cut.upload.tell()
    kept: list[Footer] = []
    size = HEADER_BYTES
    try:
        header = ByteRange(0, min(HEADER_BYTES, written))
        file_id = parse_header(_read(storage, cut.readable, header))
        for stop, note in cut.checkpoints:
            if stop > written:
                break
            footer = parse_footer(note, aligned(stop))
            if not _goes_on(kept, footer, file_id, size):
                break
            _check_pages(storage, cut.readable, footer)
            kept.append(footer)
            size = stop
    except FormatError:
        pass  # what is kept is what was whole
    if not kept:
        cut.upload.abort()
        return None
    merged = _merged(kept)
    cut.upload.rewind(size)
    finish_upload(cut.upload, merged)
    return merged


def _goes_on(kept: Sequence[Footer], footer: Footer, file_id: str, size: int) -> bool:
    """Whether a note is of one more episode of the same file, after the first `size` bytes."""
    return (
        footer.file_id == file_id
        and len(footer.episodes) == 1
        and int(footer.chunks["offset"][0]) >= size
        and all(footer.schema == before.schema for before in kept[:1])
        and all(footer.episodes[0].uid != before.episodes[0].uid for before in kept[-1:])
    )


def _check_pages(storage: Storage, path: str, footer: Footer) -> None:
    """Read every page of a record file. Raises `ChecksumError` for one that is not as written."""
    for row in footer.chunks:
        offsets = int(row["offset"]) + page_offsets(row["pages"]["length"])
        data = _read(storage, path, ByteRange(int(offsets[0]), int(offsets[-1])))
        for start, page in zip(offsets - offsets[0], row["pages"], strict=False):
            if crc32c(data[start : start + int(page["length"])]) != page["crc32c"]:
                raise ChecksumError("a page does not match its checksum", offset=int(start))


def _read(storage: Storage, path: str, part: ByteRange) -> memoryview:
    data = memoryview(bytearray(part.length))
    storage.read_ranges(path, [part], [data])
    return data


def _merged(footers: Sequence[Footer]) -> Footer:
    """One footer of all the episodes of consecutive ones of the same file."""
    chunks, gaps, count = [], [], 0
    for number, footer in enumerate(footers):
        rows, holes = footer.chunks.copy(), footer.gaps.copy()
        rows["episode"] = number
        holes["chunk"] += np.uint32(count)
        chunks.append(rows)
        gaps.append(holes)
        count += len(rows)
    return Footer(
        footers[0].schema,
        footers[0].file_id,
        tuple(footer.episodes[0] for footer in footers),
        np.concatenate(chunks),
        np.concatenate(gaps),
    )
