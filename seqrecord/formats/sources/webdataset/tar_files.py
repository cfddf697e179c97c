"""Sequential reading of tar members, local or remote, and WebDataset's member names."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from seqrecord.errors import SeqRecordError, SourceError
from seqrecord.in_place.files import first_line, stored_from
from seqrecord.in_place.limits import check_size
from seqrecord.store.schema import MAX_FRAME_BYTES

_MAX_HEADER = 1 << 20  # bytes of a header, whatever the file declares
_MAX_NAME = 4096
_BLOCK = 1 << 20


class Member(NamedTuple):
    """A regular file in a tar file: offset of its header, and start and size of its bytes."""

    name: str
    offset: int
    start: int
    size: int


def members(file: BinaryIO, path: Path, offset: int = 0) -> Iterator[Member]:
    """Yield the regular files from the header at `offset` on, without folders.

    Memory: one header. Raises `SourceError` for a truncated or damaged file, for data after the
    archive's end, and for links, devices and sparse files.
    """
    headers: Any = _Headers(file)
    try:
        file.seek(offset)
        tar: Any
        with tarfile.TarFile(fileobj=headers, mode="r") as tar:
            while (header := tar.next()) is not None:
                # A detail of tarfile, which otherwise keeps every header in memory.
                tar.members.clear()  # frees the headers
                if tar.offset <= header.offset:  # an endless loop
                    raise tarfile.ReadError("negative size")
                if not header.isdir():
                    yield _check_member(header, path)
            file.seek(tar.offset)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise _broken(path, tar.offset, "missing end of the archive")
            _check_rest(file, path)
    except (SeqRecordError, OSError, GeneratorExit):
        raise
    except Exception as error:  # tarfile raises many types
        raise _broken(path, headers.tell(), first_line(error)) from error


def read_member(file: BinaryIO, member: Member, path: Path) -> bytes:
    """Read a member's bytes."""
    check_size("file", member.size, MAX_FRAME_BYTES, file=str(path / member.name))
    file.seek(member.start)
    data = file.read(member.size)
    if len(data) != member.size:
        raise _broken(path, member.start, f"{len(data)} of {member.size} bytes of {member.name}")
    return data


class _Headers:
    """File object for tarfile that limits the size of headers."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _MAX_HEADER:
            raise tarfile.ReadError(f"expected a header of at most {_MAX_HEADER} bytes, got {size}")
        return self._file.read(size)


def _check_rest(file: BinaryIO, path: Path) -> None:
    """Raise `SourceError` unless the rest of a file is zeros, as after the end of an archive."""
    offset = file.seek(stored_from(path, file.tell()))
    while block := file.read(_BLOCK):
        if block.count(0) != len(block):
            raise SourceError(
                "data after the end of a tar file, as in concatenated ones; extract it with "
                "`tar --ignore-zeros -xf FILE`, and pack the folder",
                file=str(path),
                offset=offset,
                expected="zeros",
            )
        offset = file.seek(stored_from(path, offset + len(block)))


def _check_member(header: tarfile.TarInfo, path: Path) -> Member:
    name = header.name.removeprefix("./")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise _broken(path, header.offset, "name is not UTF-8") from error
    if len(name) > _MAX_NAME or name.startswith("/") or {"", "..", "."} & {*name.split("/")}:
        raise _broken(path, header.offset, f"invalid name {name[:100]!r}")
    if not header.isreg() or header.issparse() or header.size < 0:
        raise SourceError(
            "unsupported link, device or sparse file in a tar file",
            file=str(path),
            offset=header.offset,
            expected="regular files",
            got=name,
        )
    return Member(name, header.offset, header.offset_data, header.size)


def _broken(path: Path, offset: int, got: str) -> SourceError:
    return SourceError("truncated or damaged tar file", file=str(path), offset=offset, got=got)


_TIME = re.compile(r"([^.]*(?:\d{9}\.\d+|\d\.\d{4,}))\.(.+)", re.ASCII | re.DOTALL)
"""File name of a time, whose dot does not begin a field."""
_SECONDS = re.compile(r"\d+\.\d+$", re.ASCII)
_TOTAL = re.compile(r"-of-(\d{1,6})\b", re.ASCII)
_NUMBERED = re.compile(r"(.*?)(\d{1,9})((?:-of-\d{1,6})?\D*)", re.ASCII)


def split_name(name: str) -> tuple[str, str, str]:
    """Return folder, key and field of a member: `run_1/0007.rgb.png`."""
    folder, _, file = name.rpartition("/")
    if time := _TIME.fullmatch(file):
        return folder, time[1], time[2]
    key, _, ending = file.partition(".")
    return folder, key, ending


def seconds_of(key: str) -> float | None:
    """Return the seconds at the end of a key, if it is a time."""
    seconds_match = _SECONDS.search(key)
    return None if seconds_match is None else float(seconds_match[0])


def missing_shards(names: Iterable[str]) -> list[str]:
    """Return missing names in numbered series.

    Examples: `shard-000001.tar` between others, and `train-00000-of-00004.tar` up to its total.
    """
    series: dict[tuple[str, str], dict[int, int]] = {}  # by surrounding text: digits by number
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            series.setdefault((match[1], match[3]), {})[int(match[2])] = len(match[2])
    missing_names: list[str] = []
    for (prefix, suffix), digits_by_number in series.items():
        total = _TOTAL.match(suffix)
        numbers = (
            range(int(total[1])) if total else range(min(digits_by_number), max(digits_by_number))
        )
        # Sparse numbers are not a series: dates, ids of recordings.
        if total or len(numbers) <= 2 * len(digits_by_number):
            digits = min(digits_by_number.values())
            missing_names += [
                f"{prefix}{n:0{digits}d}{suffix}" for n in numbers if n not in digits_by_number
            ]
    return missing_names
