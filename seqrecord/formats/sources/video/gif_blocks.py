"""Check the blocks of GIF files: each declares its size, and a trailer ends the file.

Format: GIF89a specification.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from seqrecord.errors import SourceError
from seqrecord.formats.sources.video.file_bytes import Contents, FileBytes, StreamFacts

_HEADER = 13
_EXTENSION, _IMAGE, _TRAILER = 0x21, 0x2C, 0x3B
_IMAGE_HEAD = 10
_MAX_BLOCKS = 1 << 22
_SIGNATURES = (b"GIF87a", b"GIF89a")
_MAX_ZEROS = 1 << 20  # bytes


def check_ends(file: BinaryIO, path: Path) -> None:
    """Raise `SourceError` unless a GIF file begins as one, and does not end with a MiB of zeros.

    FFmpeg takes any file of this name for one, and keeps what is no block in memory.
    """
    if (head := file.read(len(_SIGNATURES[0]))) not in _SIGNATURES:
        raise SourceError("not a GIF file", file=str(path), expected=_SIGNATURES, got=repr(head))
    data = FileBytes(file, path)
    at = data.nbytes - _MAX_ZEROS
    if at > 0 and data.are_zeros(at):
        expected, got = f"less than {_MAX_ZEROS} zeros at its end", f"more, in {data.nbytes} bytes"
        raise data.damaged("it is not complete", at, expected, got)


def check_gif(data: FileBytes, _stream: StreamFacts) -> Contents:
    """Return what a file of complete blocks contains.

    Raises `SourceError` for a file that ends inside of a block.
    """
    if not data.is_whole:
        return Contents()
    at, blocks = _HEADER + _table(data.read(10, 1)), 0
    while at < data.nbytes and blocks < _MAX_BLOCKS:
        kind = data.read(at, 1)[0]
        if kind == _TRAILER:
            return Contents((data.rest(at + 1),) if at + 1 < data.nbytes else ())
        if kind == _EXTENSION:
            stop = at + 2
        elif kind == _IMAGE:
            stop = at + _IMAGE_HEAD + _table(data.read(at + _IMAGE_HEAD - 1, 1)) + 1
        else:
            if data.are_zeros(at):
                return Contents((data.rest(at),))
            raise data.damaged("no block where one must begin", at, "0x21, 0x2c or 0x3b", hex(kind))
        while size := data.read(stop, 1):
            stop, blocks = stop + 1 + size[0], blocks + 1
            if not size[0]:
                break
        if not size or stop > data.nbytes:
            raise data.truncated(at, "a block", stop + 1)
        at = stop
    return Contents(("its end is not verifiable: it has no trailer",))


def _table(flags: bytes) -> int:
    """Return the bytes of a colour table."""
    return 3 << ((flags[0] & 7) + 1) if flags and flags[0] & 0x80 else 0
