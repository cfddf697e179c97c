"""Parts: small files that hold what of an upload is worth keeping, until the upload is one file.

docs/storage.md, "Parts", has their bytes. The parts of `records/a` are `parts/records/a/00000` and
so on. A part that begins before the end of those before it replaces what they have from there on.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from seqrecord.checksum import crc32c
from seqrecord.errors import LocationError, NotFoundError
from seqrecord.ranges import ByteRange
from seqrecord.storage.base import FileInfo, Unfinished, check_buffers, check_path, short_read

__all__ = ["PARTS", "KeptParts", "WholeFiles", "encode_part", "kept_uploads", "part_path"]

PARTS = "parts"

_HEAD = struct.Struct("<8sIIQQI")  # magic, CRC32C of what follows, version, start, stop, notes
_NOTE = struct.Struct("<QI")  # bytes written at the checkpoint, length of the note that follows
_MAGIC, _VERSION = b"SEQPART\0", 1
_CHECKED_FROM = 12
_MOST_BYTES = 256 << 20  # a part is smaller, and read as a whole
_NUMBER = re.compile(r"\d{5,9}")


@dataclass(frozen=True)
class WholeFiles:
    """What is asked of a storage that only takes whole files, `root` its URL as it may be shown.

    What writes and removes repeats what may pass; all raise `StorageError`s.
    """

    root: str
    send: Callable[[str, Callable[[int, int], bytes], int], None]
    """`send(path, read, size)`: a new file of `size` bytes, which `read(start, stop)` gives.

    `DestinationError` if there is one.
    """
    put: Callable[[str, bytes], None]
    """A small file under a name that nobody else uses, in place of what is there."""
    files: Callable[[str], list[FileInfo]]
    """All files below a folder, however deep."""
    read_whole: Callable[[str, int], bytes]
    """A file of at most so many bytes, as it is now: a part may have been put twice."""
    read_ranges: Callable[[str, Sequence[ByteRange], Sequence[memoryview]], None]
    remove: Callable[[str], None]
    """Remove a file, which need not be there."""


@dataclass(frozen=True)
class _Part:
    """Bytes `start` to `stop` of the upload, which begin at `offset` of the file `path`."""

    path: str
    offset: int
    start: int
    stop: int
    notes: tuple[tuple[int, bytes], ...] = ()


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


def kept_uploads(folder: str, store: WholeFiles) -> list[Unfinished]:
    """Uploads into a folder of which there are parts, sorted by path."""
    prefix = f"{PARTS}/{check_path(folder)}/"
    found: dict[str, dict[int, FileInfo]] = {}
    for file in store.files(prefix.rstrip("/")):
        name, _, number = file.path.removeprefix(prefix).partition("/")
        if file.path.startswith(prefix) and _is_clean(name) and _NUMBER.fullmatch(number):
            found.setdefault(f"{folder}/{name}", {})[int(number)] = file
    return [KeptParts(path, parts, store) for path, parts in sorted(found.items())]


class KeptParts:
    """An `Unfinished` upload, of its parts by number. Of those, the unbroken run from 0 counts."""

    def __init__(self, path: str, files: dict[int, FileInfo], store: WholeFiles) -> None:
        self._path, self._files, self._store = path, files, store
        self._run: list[_Part] | None = None

    def __repr__(self) -> str:
        return f"KeptParts({self._path!r}, {len(self._files)} parts)"

    @property
    def path(self) -> str:
        return self._path

    @property
    def modified(self) -> float:
        return max(file.modified for file in self._files.values())

    def checkpoints(self) -> list[tuple[int, bytes]]:
        return [note for part in self._parts() for note in part.notes]

    def read_ranges(self, ranges: Sequence[ByteRange], buffers: Sequence[memoryview]) -> None:
        check_buffers(ranges, buffers)
        wanted: dict[str, tuple[list[ByteRange], list[memoryview]]] = {}
        for item, buffer in zip(ranges, buffers, strict=True):
            at, view = item.start, buffer.cast("B")
            for part in self._parts():
                if not part.start <= at < min(part.stop, item.stop):
                    continue
                stop = min(part.stop, item.stop)
                offset = part.offset + at - part.start
                inside, views = wanted.setdefault(part.path, ([], []))
                inside.append(ByteRange(offset, offset + stop - at))
                views.append(view[at - item.start : stop - item.start])
                at = stop
            if at < item.stop:
                raise short_read(f"{self._store.root}/{self._path}", item, at - item.start)
        for path, (inside, views) in wanted.items():
            self._store.read_ranges(path, inside, views)

    def remove(self) -> None:
        # The last first: a kill in between leaves a run that is shorter, and whole.
        for number in sorted(self._files, reverse=True):
            self._store.remove(self._files[number].path)

    def _parts(self) -> list[_Part]:
        """The run, read and checked once; no two of its parts hold the same bytes."""
        if self._run is None:
            run: list[_Part] = []
            for part in self._read():
                run = [_cut(each, part.start) for each in run]
                run.append(part)
            self._run = run
        return self._run

    def _read(self) -> Iterator[_Part]:
        end = 0
        for number in range(len(self._files)):
            file = self._files.get(number)
            if file is None or file.size > _MOST_BYTES:
                return
            try:
                data = self._store.read_whole(file.path, _MOST_BYTES)
            except NotFoundError:  # its writer has finished the file
                return
            part = _parse(file.path, memoryview(data))
            if part is None or part.start > end:
                return
            yield part
            end = part.stop


def _parse(path: str, data: memoryview) -> _Part | None:
    """The part that a file holds, if it is a whole one."""
    if len(data) < _HEAD.size:
        return None
    magic, checked, version, start, stop, count = _HEAD.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION) or crc32c(data[_CHECKED_FROM:]) != checked:
        return None
    at, notes = _HEAD.size, []
    for _ in range(count):
        if at + _NOTE.size > len(data):
            return None
        size, length = _NOTE.unpack_from(data, at)
        at += _NOTE.size
        notes.append((size, bytes(data[at : at + length])))
        at += length
    if stop - start != len(data) - at:
        return None
    return _Part(path, at, start, stop, tuple(notes))


def _cut(part: _Part, end: int) -> _Part:
    """The part without what lies at `end` and after it."""
    if part.stop <= end:
        return part
    notes = tuple(note for note in part.notes if note[0] <= end)
    return _Part(part.path, part.offset, part.start, max(part.start, end), notes)


def _is_clean(name: str) -> bool:
    try:
        check_path(name)
    except LocationError:
        return False
    return True
