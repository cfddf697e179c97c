"""Reads the footer of a record file: all that the file says of itself."""

from __future__ import annotations

from seqrecord.errors import FormatError
from seqrecord.format import (
    HEADER_BYTES,
    TAIL_BYTES,
    Footer,
    parse_footer,
    parse_header,
    parse_tail,
)
from seqrecord.ranges import ByteRange
from seqrecord.storage import Storage

__all__ = ["read_footer"]


def read_footer(storage: Storage, path: str) -> Footer:
    """The footer of a finished record file, whose header must belong to it.

    Three reads, none of a page. Raises `FormatError` that names file, offset, expected and got.
    """
    file = f"{storage.url}/{path}"
    size = storage.size(path)
    try:
        tail = _read(storage, path, max(0, size - TAIL_BYTES), size)
        start, _ = parse_tail(tail, size)
        file_id = parse_header(_read(storage, path, 0, HEADER_BYTES))
        footer = parse_footer(_read(storage, path, start, size), start)
        if footer.file_id != file_id:
            raise FormatError(
                "header and footer are of different files",
                offset=start,
                expected=file_id,
                got=footer.file_id,
            )
    except FormatError as error:
        raise error.located(file=file) from error.__cause__
    return footer


def _read(storage: Storage, path: str, start: int, stop: int) -> bytes:
    data = bytearray(stop - start)
    storage.read_ranges(path, [ByteRange(start, stop)], [memoryview(data)])
    return bytes(data)
