"""What every source asks of files, of a disk or of a URL: what is there, and checked reading."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.schema import MAX_FRAME_BYTES
from seqrecord.sources.common.remote import remote_files
from seqrecord.storage import local_path
from seqrecord.storage.open_files import with_descriptor
from seqrecord.text import repr_of

JUNK = ("__MACOSX",)
"""Names that file managers leave behind, beside hidden ones."""


def find_original(path: str | os.PathLike[str]) -> Path:
    """`path` made absolute; raises `SourceError` unless a file or folder is there, and
    `LocationError` for a URL as text: `open_source` takes one.
    """
    if isinstance(path, Path) and remote_files(path) is not None:
        return path
    local = local_path(path, "originals")
    absolute = Path(os.path.abspath(local))  # noqa: PTH100 - resolve() would rename links
    if not absolute.is_dir() and not absolute.is_file():
        raise SourceError(
            "no such folder of originals",
            file=os.fspath(path),
            expected="a local or mounted folder, or a file",
        )
    return absolute


def find_root(root: str | os.PathLike[str]) -> Path:
    """As `find_original`, but it must be a folder."""
    path = find_original(root)
    if not is_directory(path):
        raise SourceError(
            "no such folder of originals",
            file=os.fspath(root),
            expected="a local or mounted folder",
        )
    return path


def is_junk(name: str) -> bool:
    """Whether a file or folder of this name is never looked at."""
    return name.startswith(".") or name in JUNK


def list_folder(folder: Path) -> Iterator[tuple[str, bool]]:
    """Name and whether it is a folder, for all entries but the junk that real copies hold.

    Hidden names are junk: `.DS_Store`, and `._000000_left.png`, which lies beside the real file
    and has its ending but is no image.
    """
    if (files := remote_files(folder)) is not None:
        found = files.listing(folder).values()
        yield from ((each.name, each.is_folder) for each in found if not is_junk(each.name))
        return
    name = ""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not is_junk(name := entry.name):
                    yield name, entry.is_dir()
    except OSError as error:
        raise link_loop(folder / name) or SourceError(
            "a folder that cannot be listed", file=str(folder), got=_reason(error)
        ) from error


class LinkLoopError(SourceError):
    """A link that leads back to where it lies, so that a walk would never end."""


def link_loop(path: Path) -> LinkLoopError | None:
    """The error of the first such link on the way to a path of this machine, if there is one."""
    seen: set[str] = set()
    for each in (*reversed(path.parents), path):
        real = os.path.realpath(each)
        if each.is_symlink() and (real in seen or Path(real).is_symlink()):
            return LinkLoopError(
                "a link that leads back to a folder above it, or to itself; remove it",
                file=str(each),
                got=str(each.readlink()),
            )
        seen.add(real)
    return None


def read_bytes(path: Path, limit: int = MAX_FRAME_BYTES) -> bytes:
    """The whole file; raises `SourceError` where it cannot be read or exceeds `limit` bytes."""
    try:
        size = size_of(path)
        if size > limit:
            raise SourceError(
                "a file that is too large",
                file=str(path),
                expected=f"at most {limit} bytes",
                got=f"{size} bytes",
            )
        with open_file(path) as file:
            return file.read()
    except OSError as error:
        raise unreadable(path, error) from error


def is_file(path: Path) -> bool:
    """Whether a file is there."""
    if (files := remote_files(path)) is None:
        return path.is_file()
    entry = files.entry(path)
    return entry is not None and not entry.is_folder


def is_directory(path: Path) -> bool:
    """Whether a folder is there."""
    if (files := remote_files(path)) is None:
        return path.is_dir()
    entry = files.entry(path)
    return entry is not None and entry.is_folder


def size_of(path: Path) -> int:
    """A file's bytes; raises `OSError` where there is none."""
    if (files := remote_files(path)) is None:
        return path.stat().st_size
    with files.open(path) as file:
        return file.seek(0, os.SEEK_END)


def open_file(path: Path, *, buffered: bool = True) -> BinaryIO:
    """The open file, of which a read gives all that was asked for, but at the end.

    Not `buffered`, it is read anew each time: what was cut meanwhile is noticed. Raises `OSError`
    where there is no file. Of a URL, at most 32 MiB are in memory at a time.
    """
    if (files := remote_files(path)) is None:
        local = regular(path)
        return with_descriptor(lambda: local.open("rb", buffering=-1 if buffered else 0))
    file = files.open(path)
    return io.BufferedReader(file) if buffered else cast("BinaryIO", file)


def openable(path: Path) -> Path | BinaryIO:
    """What a library opens: the path of a disk's file, or the open file of a URL, to be closed.

    Raises `OSError` where there is no file.
    """
    return regular(path) if remote_files(path) is None else open_file(path)


def regular(path: Path) -> Path:
    """The path of a file on a disk. Raises `OSError` where there is none, and for a pipe or a
    device, of which opening or reading may never end."""
    if not path.is_file() and not stat.S_ISDIR(path.stat().st_mode):
        raise OSError(errno.EINVAL, "a pipe or a device")
    return path


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The open file; a `SourceError` of the block, or that it cannot be read, names it."""
    try:
        with located(SourceError, file=str(path)), open_file(path) as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from error


@contextmanager
def on_disk(path: Path) -> Iterator[Path]:
    """The file on this machine's disk, for libraries that read no other; of a URL's file a copy.

    The copy is there until the block ends.
    """
    files = remote_files(path)
    copy = None if files is None else files.local_copy(path)
    yield regular(path) if copy is None else copy.path


def read_values(file: BinaryIO, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    """The next values of a file; fewer where it ends before."""
    values = np.empty(count, dtype)
    view = values.view(np.uint8).data if values.nbytes else memoryview(b"")
    done = 0
    while done < len(view):
        got = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            break
        done += got
    return values[: done // dtype.itemsize]


def unreadable(path: Path, error: OSError) -> SourceError:
    return SourceError("a file that cannot be read", file=str(path), got=_reason(error))


def check_array(
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    want: npt.DTypeLike,
    size: tuple[int, ...],
    path: Path,
) -> None:
    """Raises `SourceError` unless an array of `dtype` and `shape` is of `want` and `size`."""
    if dtype != np.dtype(want):
        raise SourceError(
            "wrong dtype", file=str(path), expected=np.dtype(want).name, got=str(dtype)
        )
    if shape != size:
        raise SourceError("wrong shape", file=str(path), expected=list(size), got=list(shape))


def json_object(data: bytes, where: str = "", **options: Any) -> dict[str, Any]:
    """The object in JSON text, which lies in line `where`; `options` are those of `json.loads`.

    Raises `SourceError` for anything else.
    """
    try:
        value = json.loads(data, **options)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"not JSON{where}", got=str(error)[:200]) from error
    if not isinstance(value, dict):
        raise SourceError("not a JSON object", got=repr_of(value, 100))
    return value


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
