"""Parts: small files that hold the bytes of an upload until the upload is one file.

docs/storage_details.md, "Parts", has their bytes. The parts of `records/a` are
`parts/records/a/00000` and so on. A part that begins before the end of those before it replaces
what they have from there on.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from seqrecord.checksum import crc32c
from seqrecord.errors import NotFoundError
from seqrecord.processes.forks import cached_property
from seqrecord.storage.base import FileInfo, Unfinished, check_buffers, check_path, short_read
from seqrecord.storage.ranges import ByteRange

__all__ = [
    "PARTS",
    "Content",
    "UploadParts",
    "WholeFiles",
    "encode_part",
    "part_path",
    "unfinished_uploads",
]

PARTS = "parts"

_HEAD = struct.Struct("<8sIIQQI")  # magic, CRC32C of what follows, version, start, stop, notes
_NOTE = struct.Struct("<QI")  # bytes written at the checkpoint, length of the note that follows
_MAGIC, _VERSION = b"SEQPART\0", 1
_CHECKED_FROM = 12
_MOST_BYTES = 256 << 20  # a part is smaller, and read as a whole
_NUMBER = re.compile(r"\d{5,9}")


class Content(Protocol):
    """The bytes of a file, which may still be written while they are sent."""

    @property
    def size(self) -> int | None:
        """How many bytes the file has; `None` while it is written."""

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop`, as soon as they are there; fewer only at the file's end.

        Who sends reads front to back, and begins anew at 0. `StorageError` where bytes that were
        read before have been taken back, and where the upload has ended.
        """


@dataclass(frozen=True)
class WholeFiles:
    """What is asked of a storage that only takes whole files, `root` its URL as it may be shown.

    What writes and removes repeats what may pass; all raise `StorageError`s.
    """

    root: str
    send: Callable[[str, Content], None]
    """A new file, which may still be written: then it is there when it is whole.

    `DestinationError` if there is one.
    """
    put: Callable[[str, bytes], None]
    """A small file under a name that nobody else uses, in place of what is there."""
    files: Callable[[str], list[FileInfo]]
    """All files below a folder, however deep, whose paths are clean."""
    read_whole: Callable[[str, int], bytes]
    """A file of at most so many bytes, as it is now: a part may have been put twice."""
    read_ranges: Callable[[str, Sequence[ByteRange], Sequence[memoryview]], None]
    remove: Callable[[str], None]
    """Remove a file, which need not be there."""


class _Part(NamedTuple):
    """Bytes `start` to `stop` of the upload, which begin at `offset` of the file `path`."""

    path: str
    offset: int
    start: int
    stop: int
    notes: list[tuple[int, bytes]]


def part_path(path: str, number: int) -> str:
    return f"{PARTS}/{path}/{number:05d}"


def encode_part(start: int, data: bytes, notes: Sequence[tuple[int, bytes]]) -> bytes:
    """The part that holds `data`, from byte `start` on, and notes of checkpoints."""
    pieces = [_HEAD.pack(_MAGIC, 0, _VERSION, start, start + len(data), len(notes))]
    for size, note in notes:
        pieces += [_NOTE.pack(size, len(note)), note]
    pieces.append(data)
    checked = crc32c(pieces[0][_CHECKED_FROM:], *pieces[1:])
    pieces[0] = _HEAD.pack(_MAGIC, checked, *_HEAD.unpack(pieces[0])[2:])
    return b"".join(pieces)


def unfinished_uploads(folder: str, store: WholeFiles) -> list[Unfinished]:
    """Uploads into a folder of which there are parts, sorted by path."""
    prefix = f"{PARTS}/{check_path(folder)}/"
    found: dict[str, dict[int, FileInfo]] = {}
    for file in store.files(prefix.rstrip("/")):
        name, _, number = file.path.removeprefix(prefix).partition("/")
        if file.path.startswith(prefix) and _NUMBER.fullmatch(number):
            found.setdefault(f"{folder}/{name}", {})[int(number)] = file
    return [UploadParts(path, parts, store) for path, parts in sorted(found.items())]


class UploadParts:
    """An `Unfinished` upload, of its parts by number. Of those, the unbroken run from 0 counts."""

    def __init__(self, path: str, files: dict[int, FileInfo], store: WholeFiles) -> None:
        self.path = path
        self.modified = max(file.modified for file in files.values())
        self._files, self._store = files, store

    def __repr__(self) -> str:
        return f"UploadParts({self.path!r}, {len(self._files)} parts)"

    def checkpoints(self) -> list[tuple[int, bytes]]:
        return [note for part in self._run for note in part.notes]

    def read_ranges(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        check_buffers(ranges, buffers)
        wanted: dict[str, tuple[list[ByteRange], list[memoryview]]] = {}
        end = self._run[-1].stop if self._run else 0
        for item, buffer in zip(ranges, buffers, strict=True):
            if item.length and item.stop > end:
                shown = f"{self._store.root}/{self.path}"
                raise short_read(shown, item, max(0, end - item.start))
            for part in self._run:
                start, stop = max(item.start, part.start), min(item.stop, part.stop)
                if start < stop:
                    inside, views = wanted.setdefault(part.path, ([], []))
                    offset = part.offset - part.start
                    inside.append(ByteRange(offset + start, offset + stop))
                    views.append(buffer.cast("B")[start - item.start : stop - item.start])
        for path, (inside, views) in wanted.items():
            self._store.read_ranges(path, inside, views)

    def remove(self) -> None:
        # The last first: a kill in between leaves a run that is shorter, and whole.
        for number in sorted(self._files, reverse=True):
            self._store.remove(self._files[number].path)

    @cached_property
    def _run(self) -> list[_Part]:
        """Read and checked once; together its parts hold each byte once, up to the last's end."""
        run: list[_Part] = []
        for number in range(len(self._files)):
            part = _read(self._store, self._files.get(number))
            if part is None or part.start > (run[-1].stop if run else 0):
                break
            run = [*(_cut(each, part.start) for each in run), part]
        return run


def _read(store: WholeFiles, file: FileInfo | None) -> _Part | None:
    """The part that a file holds, if it is a whole one."""
    if file is None or file.size > _MOST_BYTES:
        return None
    notes = []
    try:
        data = memoryview(store.read_whole(file.path, _MOST_BYTES))
        magic, checked, version, start, stop, count = _HEAD.unpack_from(data)
        if (magic, version) != (_MAGIC, _VERSION) or crc32c(data[_CHECKED_FROM:]) != checked:
            return None
        at = _HEAD.size
        for _ in range(count):
            size, length = _NOTE.unpack_from(data, at)
            at += _NOTE.size + length
            notes.append((size, bytes(data[at - length : at])))
    except (NotFoundError, struct.error):  # its writer has finished the file, or it is cut
        return None
    return _Part(file.path, at, start, stop, notes) if stop - start == len(data) - at else None


def _cut(part: _Part, end: int) -> _Part:
    """The part without what lies at `end` and after it."""
    if part.stop <= end:
        return part
    notes = [note for note in part.notes if note[0] <= end]
    return part._replace(stop=max(part.start, end), notes=notes)
