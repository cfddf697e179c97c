"""Reads the records of edits that a manifest names."""

from __future__ import annotations

from collections.abc import Sequence

from seqrecord.checksum import crc32c
from seqrecord.errors import ChecksumError, FormatError
from seqrecord.format.edits import MAX_EDIT_BYTES, Edit, Edits, parse_edit
from seqrecord.format.manifest import EDITS, IndexFile
from seqrecord.storage import Storage, map_files
from seqrecord.storage.ranges import ByteRange

__all__ = ["all_edits", "read_edits"]


def read_edits(storage: Storage, files: Sequence[IndexFile]) -> Edits:
    """What the edits of a manifest come to. Raises `FormatError` that names the file."""
    by_path = {file.path: file for file in files}
    found = map_files(storage, lambda path: _read(storage, by_path[path]), by_path)
    return Edits.of(edit for file in files for edit in found[file.path])


def all_edits(storage: Storage) -> tuple[IndexFile, ...]:
    """All files of edits that are there, in the order of their names; for a lost manifest."""
    files = sorted(storage.files(EDITS), key=lambda file: file.path)
    found = []
    for file in files:
        if file.path.endswith(".json"):
            data = _bytes(storage, file.path, file.size)
            found.append(IndexFile(file.path, len(data), f"{crc32c(data):08x}"))
    return tuple(found)


def _read(storage: Storage, file: IndexFile) -> list[Edit]:
    shown = f"{storage.url}/{file.path}"
    if (size := storage.size(file.path)) != file.size:
        raise FormatError(
            "a file of edits of the wrong length", file=shown, expected=file.size, got=size
        )
    data = _bytes(storage, file.path, size)
    if (actual := f"{crc32c(data):08x}") != file.crc32c:
        raise ChecksumError(
            "a file of edits does not match its checksum",
            file=shown,
            offset=0,
            expected=f"CRC32C {file.crc32c}",
            got=actual,
        )
    try:
        return parse_edit(data)
    except FormatError as error:
        raise error.located(file=shown) from error.__cause__


def _bytes(storage: Storage, path: str, size: int) -> bytes:
    if size > MAX_EDIT_BYTES:
        raise FormatError(
            "a file of edits that is too large",
            file=f"{storage.url}/{path}",
            expected=f"at most {MAX_EDIT_BYTES} bytes",
            got=size,
        )
    data = bytearray(size)
    storage.read_ranges(path, [ByteRange(0, size)], [memoryview(data)])
    return bytes(data)
