"""File access for all sources, on a disk or a URL."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.in_place.limits import check_size
from seqrecord.in_place.remote import remote_files
from seqrecord.store.schema import MAX_FRAME_BYTES
from seqrecord.store.storage.open_files import with_descriptor
from seqrecord.store.storage.url import local_path
from seqrecord.store.text import repr_of

MAX_LINE_BYTES = 16 << 20
"""Maximum bytes of a line of text: numbers of an image as text, or points of an image of COLMAP."""

JUNK = ("__MACOSX",)
"""Folder names that file managers create; ignored like hidden names."""


def find_original(path: str | os.PathLike[str], *, takes_files: bool = True) -> Path:
    """Return `path` as an absolute path.

    Raises `SourceError` if neither a file, unless `takes_files` is false, nor a folder exists, and
    `LocationError` for a URL as text; pass URLs to `open_source`.
    """
    if isinstance(path, Path) and remote_files(path) is not None:
        return path
    local = local_path(path, "originals")
    absolute = Path(os.path.abspath(local))  # noqa: PTH100 - resolve() would rename links
    is_folder = is_directory(absolute)
    if not is_folder and not (takes_files and is_file(absolute)):
        raise NoOriginalError(
            "no such file or folder",
            file=os.fspath(path),
            expected=f"a local or mounted folder{', or a file' if takes_files else ''}",
        )
    if is_folder and not is_readable(absolute):
        raise SourceError(
            "no permission to list the folder or to enter it",
            file=os.fspath(path),
            expected="both, as by `chmod u+rx`",
        )
    return absolute


def is_junk(name: str) -> bool:
    """Return whether a file or folder name is ignored."""
    return name.startswith(".") or name in JUNK


def list_folder(folder: Path) -> Iterator[tuple[str, bool]]:
    """Yield name and whether it is a folder, for each entry except hidden ones and `JUNK`.

    Hidden entries include `.DS_Store` and `._000000_left.png`, metadata of macOS with an image's
    ending. A folder that cannot be listed or entered, such as `lost+found`, counts as a file: no
    reader opens it, and inventories list it.
    """
    if (files := remote_files(folder)) is not None:
        for remote_entry in files.listing(folder).values():
            if not is_junk(remote_entry.name):
                yield remote_entry.name, remote_entry.is_folder
        return
    name = ""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not is_junk(name := entry.name):
                    yield name, _is_open_folder(entry)
    except OSError as error:
        raise link_loop(folder / name) or SourceError(
            "cannot list the folder", file=str(folder), got=_reason(error)
        ) from error


def _is_open_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir() and is_readable(Path(entry.path))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise
        return False  # a link to a place without permission


def is_readable(path: Path) -> bool:
    """Return whether a local file can be read, or a local folder be listed and entered."""
    if remote_files(path) is not None:
        return True
    is_folder = os.path.isdir(path)  # noqa: PTH112 - never raises
    return os.access(path, os.R_OK) and (os.access(path, os.X_OK) or not is_folder)


class NoOriginalError(SourceError):
    """A path with no original of one supported format."""


class LinkLoopError(SourceError):
    """A symbolic link leads to a folder above it or to itself."""


def link_loop(path: Path) -> LinkLoopError | None:
    """Find a circular symbolic link among a local path and its parents, from the root downwards.

    Returns the error to raise, or `None` without such a link.
    """
    real_paths: set[str] = set()
    for ancestor in (*reversed(path.parents), path):
        real = os.path.realpath(ancestor)
        # Not `Path.is_symlink`, which raises for a name longer than the file system takes.
        if os.path.islink(ancestor) and (real in real_paths or os.path.islink(real)):  # noqa: PTH114
            return LinkLoopError(
                "the symbolic link leads to a folder above it or to itself; remove it",
                file=str(ancestor),
                got=str(ancestor.readlink()),
            )
        real_paths.add(real)
    return None


def read_bytes(path: Path, limit: int = MAX_FRAME_BYTES) -> bytes:
    """Read a whole file. Raises `SourceError` if it is unreadable or larger than `limit` bytes."""
    try:
        check_size("file", size_of(path), limit, file=str(path))
        with open_file(path) as file:
            return file.read()
    except OSError as error:
        raise unreadable(path, error) from error


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of an open file with their ends.

    Raises `SourceError` for a line of more than `MAX_LINE_BYTES`: a file without ends of lines is
    not text, and would be read whole.
    """
    while line := file.readline(MAX_LINE_BYTES + 1):
        check_size("line", len(line), MAX_LINE_BYTES)
        yield line


def stored_from(path: Path, at: int) -> int:
    """Return the first byte from `at` on that a sparse file stores, the end of the file if none.

    Bytes in between are zeros. It is `at` where the system does not tell, and on URLs.
    """
    if remote_files(path) is not None or not hasattr(os, "SEEK_DATA"):
        return at
    try:
        with open_file(path, buffered=False) as file:
            try:
                return file.seek(at, os.SEEK_DATA)
            except OSError as error:
                return file.seek(0, os.SEEK_END) if error.errno == errno.ENXIO else at
    except OSError as error:
        raise unreadable(path, error) from error


def is_file(path: Path) -> bool:
    """Return whether a file exists at the path."""
    return _is(path, Path.is_file, is_folder=False)


def is_directory(path: Path) -> bool:
    """Return whether a folder exists at the path."""
    return _is(path, Path.is_dir, is_folder=True)


def _is(path: Path, ask: Callable[[Path], bool], *, is_folder: bool) -> bool:
    if (files := remote_files(path)) is not None:
        entry = files.entry(path)
        return entry is not None and entry.is_folder == is_folder
    try:
        return ask(path)
    except OSError as error:
        # A link to a place without permission, or a name longer than the file system takes.
        if error.errno == errno.ENAMETOOLONG or os.access(path.parent, os.X_OK):
            return False
        raise unreadable(path, error) from error


def size_of(path: Path) -> int:
    """Return a file's size in bytes. Raises `OSError` if it does not exist."""
    if (files := remote_files(path)) is None:
        return _status(path).st_size
    with files.open(path) as file:
        return file.seek(0, os.SEEK_END)


def version_of(path: Path) -> Hashable:
    """Return a value that differs if the file was replaced, for caches. Raises `SourceError`.

    At a URL it stands for one opening of the original, which lists each folder once.
    """
    if (files := remote_files(path)) is not None:
        return weakref.ref(files)
    try:
        status = _status(path)
    except OSError as error:
        raise unreadable(path, error) from error
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def open_file(path: Path, *, buffered: bool = True) -> BinaryIO:
    """Open a file for reading. Reads are complete, except at the end of the file.

    With `buffered=False` each read goes to the file, so truncation meanwhile is detected. Raises
    `OSError` if it does not exist. For URLs at most 32 MiB are kept in memory.
    """
    if (files := remote_files(path)) is None:
        local = regular(path)
        return with_descriptor(lambda: local.open("rb", buffering=-1 if buffered else 0))
    file = files.open(path)
    return io.BufferedReader(file) if buffered else cast("BinaryIO", file)


def openable(path: Path) -> Path | BinaryIO:
    """Return the argument for a library's open function: a local path, or an open file of a URL.

    Close an open file after use. Raises `OSError` if it does not exist.
    """
    return regular(path) if remote_files(path) is None else open_file(path)


def regular(path: Path) -> Path:
    """Return the local path. Raises `OSError` for missing files, pipes and devices.

    Opening or reading a pipe may block forever.
    """
    if not path.is_file() and not stat.S_ISDIR(_status(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file but a pipe or device")
    return path


def _status(path: Path) -> os.stat_result:
    """Return a local file's status. Raises `OSError` if it does not exist."""
    try:
        return path.stat()
    except ValueError as error:  # a null byte in a name that a file lists
        raise FileNotFoundError(errno.ENOENT, str(error)) from error


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file; a `SourceError` of the block, or of a failed read, gets the file's name."""
    try:
        with located(SourceError, file=str(path)), open_file(path) as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from error


@contextmanager
def on_disk(path: Path) -> Iterator[Path]:
    """Provide the file on a local disk, for libraries that read local files only.

    A file of a URL is copied; the copy exists until the block ends.
    """
    files = remote_files(path)
    copy = None if files is None else files.local_copy(path)
    yield regular(path) if copy is None else copy.path


def read_values(file: BinaryIO, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    """Read the next `count` values, or fewer at the end of the file."""
    values = np.empty(count, dtype)
    view = values.view(np.uint8).data if values.nbytes else memoryview(b"")
    num_read = 0
    while num_read < len(view):
        count_read = file.readinto(view[num_read:])  # type: ignore[attr-defined]
        if not count_read:
            break
        num_read += count_read
    return values[: num_read // dtype.itemsize]


def unreadable(path: Path, error: OSError) -> SourceError:
    """Return the error of a file that cannot be read."""
    return SourceError("cannot read the file", file=str(path), got=_reason(error))


def check_array(
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    expected_dtype: npt.DTypeLike,
    size: Sequence[int | None],
    path: Path,
) -> None:
    """Raise `SourceError` unless an array has `expected_dtype` and shape `size`; `None` is any."""
    if dtype != np.dtype(expected_dtype):
        raise SourceError(
            "wrong dtype", file=str(path), expected=np.dtype(expected_dtype).name, got=str(dtype)
        )
    if len(shape) != len(size) or any(n not in (None, m) for n, m in zip(size, shape, strict=True)):
        sizes = ["any" if n is None else n for n in size]
        raise SourceError("wrong shape", file=str(path), expected=sizes, got=list(shape))


def json_object(data: bytes, where: str = "", **options: Any) -> dict[str, Any]:
    """Parse a JSON object; `options` are passed to `json.loads`.

    Raises `SourceError` otherwise; `where` is appended to the message: " in line 3".
    """
    try:
        value = json.loads(data, **options)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"invalid JSON{where}", got=str(error)[:200]) from error
    if not isinstance(value, dict):
        raise SourceError("not a JSON object", got=repr_of(value, 100))
    return value


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, at most 200 characters."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
