"""Detect files that must be unpacked, downloaded or converted first, by their first bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seqrecord.errors import SourceError
from seqrecord.in_place.files import is_file, open_file, size_of

_HEAD = 512
_GZIP = b"\x1f\x8b"
_READ_AS_GZIP = ".jgz"  # ending of Co3D's annotations

_TYPES: tuple[tuple[bytes, str], ...] = (
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git LFS pointer instead of the data: run `git lfs pull`",
    ),
    (_GZIP, "compressed with gzip: unpack it (`tar -xzf FILE`, or `gunzip FILE`)"),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard: unpack it (`zstd -d FILE`)"),
    (b"BZh", "compressed with bzip2: unpack it (`bunzip2 FILE`)"),
    (b"\xfd7zXZ\0", "compressed with xz: unpack it (`xz -d FILE`)"),
    (b"\x04\x22\x4d\x18", "compressed with LZ4: unpack it (`lz4 -d FILE`)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive: unpack it (`7z x FILE`)"),
    (b"Rar!", "a RAR archive: unpack it (`unrar x FILE`)"),
    (b"<!DOCTYPE html", "an HTML page, not data: download the file again"),
    (b"<!doctype html", "an HTML page, not data: download the file again"),
    (b"<html", "an HTML page, not data: download the file again"),
)
_NAMES = {
    ".zip": (b"PK\x03\x04", "a ZIP archive: unpack it (`unzip FILE`)"),
    ".pkl": (b"", "a Python pickle, which is never loaded: save its arrays as npy files"),
    ".pickle": (b"", "a Python pickle, which is never loaded: save its arrays as npy files"),
    ".mat": (b"", "a MATLAB file: save its arrays as npy files"),
    ".rosbag": (b"#ROSBAG V", "a ROS 1 bag: rename it to .bag"),
    ".svo": (b"", "a ZED recording: export it as images or video by the ZED SDK"),
    ".svo2": (b"", "a ZED recording: export it as images or video by the ZED SDK"),
}


def file_type(path: Path) -> str | None:
    """Return the type and remedy of a file that must be unpacked, downloaded or converted first.

    Reads the first bytes. `None` for other and for unreadable files.
    """
    try:
        if not is_file(path):
            return None
        if not size_of(path):
            return "empty"
        with open_file(path) as file:
            head = file.read(_HEAD)
    except OSError:
        return None
    if (kind := type_of(head, path.name)) is not None:
        return kind
    magic, text = _NAMES.get(path.suffix.lower(), (b"", ""))
    if text and head.startswith(magic):
        return text.replace("FILE", path.name)
    return None


def type_of(head: bytes, name: str) -> str | None:
    """Like `file_type`, from the first bytes; `name` is the file's name in the remedy."""
    if head.startswith(_GZIP) and name.endswith(_READ_AS_GZIP):
        return None
    for magic, text in _TYPES:
        if head.startswith(magic):
            return text.replace("FILE", name)
    return None


def known_type(path: Path) -> str | None:
    """Like `file_type`, but `None` for empty files."""
    kind = file_type(path)
    return None if kind == "empty" else kind


@contextmanager
def explained() -> Iterator[None]:
    """Add the file's type to a `SourceError` of the block, if the file must be unpacked first."""
    try:
        yield
    except SourceError as error:
        kind = file_type(Path(error.file)) if error.file else None
        if kind is not None and kind not in error.message:
            error.message = f"{error.message}; the file is {kind}"
        raise
