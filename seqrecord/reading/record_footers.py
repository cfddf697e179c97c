"""Reads header and footer of record files: all that they say of themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from seqrecord.errors import FormatError
from seqrecord.format import (
    HEADER_BYTES,
    RECORDS,
    TAIL_BYTES,
    Footer,
    parse_footer,
    parse_header,
    parse_tail,
)
from seqrecord.storage import Storage, forget_cached, map_files
from seqrecord.storage.ranges import ByteRange

__all__ = ["read_file_id", "read_footer", "read_footers", "record_sizes"]


def record_sizes(storage: Storage) -> dict[str, int]:
    """Paths of all finished record files, in order, with their lengths in bytes."""
    files = storage.files(RECORDS)
    return {file.path: file.size for file in files if file.path.endswith(".seqrec")}


def read_footers(storage: Storage, sizes: Mapping[str, int]) -> dict[str, Footer]:
    """The footers of finished record files, by path; see `read_footer`."""
    return map_files(storage, lambda path: read_footer(storage, path, sizes[path]), sizes)


def read_file_id(storage: Storage, path: str) -> str:
    """The id in a record file's header. Raises `FormatError` that names the file."""
    data = bytearray(HEADER_BYTES)
    storage.read_ranges(path, [ByteRange(0, HEADER_BYTES)], [memoryview(data)])
    try:
        return parse_header(data)
    except FormatError as error:
        raise error.located(file=f"{storage.url}/{path}") from error.__cause__


def read_footer(storage: Storage, path: str, size: int | None = None) -> Footer:
    """The footer of a finished record file, whose header must belong to it.

    Three reads, none of a page; the file's `size` is asked for unless it is given. Raises
    `FormatError` that names file, offset, expected and got.
    """
    done: list[ByteRange] = []

    def read(start: int, stop: int) -> bytes:
        data, item = bytearray(stop - start), ByteRange(start, stop)
        storage.read_ranges(path, [item], [memoryview(data)])
        done.append(item)
        return bytes(data)

    size = storage.size(path) if size is None else size
    try:
        try:
            return _footer(read, size)
        except FormatError:
            if not forget_cached(storage, path, done):
                raise
        return _footer(read, size)
    except FormatError as error:
        raise error.located(file=f"{storage.url}/{path}") from error.__cause__


def _footer(read: Callable[[int, int], bytes], size: int) -> Footer:
    start, _ = parse_tail(read(max(0, size - TAIL_BYTES), size), size)
    file_id = parse_header(read(0, HEADER_BYTES))
    footer = parse_footer(read(start, size), start)
    if footer.file_id != file_id:
        raise FormatError(
            "header and footer are of different files",
            offset=start,
            expected=file_id,
            got=footer.file_id,
        )
    return footer
