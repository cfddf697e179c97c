"""What every source needs of the file system: checked listing and reading of originals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.storage import local_path

__all__ = [
    "JUNK",
    "check_array",
    "is_junk",
    "list_folder",
    "local_original",
    "local_root",
    "read_bytes",
    "unreadable",
]

JUNK = ("__MACOSX",)
"""Names that file managers leave behind, beside hidden ones."""


def local_original(path: str | os.PathLike[str]) -> Path:
    """`path` made absolute; raises `SourceError` unless a file or folder is there, and
    `LocationError` for a URL.
    """
    local = local_path(path, "originals")
    absolute = Path(os.path.abspath(local))  # noqa: PTH100 - resolve() would rename links
    if not absolute.is_dir() and not absolute.is_file():
        raise SourceError(
            "no such folder of originals",
            file=os.fspath(path),
            expected="a local or mounted folder, or a file",
        )
    return absolute


def local_root(root: str | os.PathLike[str]) -> Path:
    """As `local_original`, but it must be a folder."""
    path = local_original(root)
    if not path.is_dir():
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
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not is_junk(entry.name):
                    yield entry.name, entry.is_dir()
    except OSError as error:
        raise SourceError(
            "a folder that cannot be listed", file=str(folder), got=_reason(error)
        ) from error


def read_bytes(path: Path, limit: int) -> bytes:
    """The whole file; raises `SourceError` where it cannot be read or exceeds `limit` bytes."""
    try:
        size = path.stat().st_size
        if size > limit:
            raise SourceError(
                "a file that is too large",
                file=str(path),
                expected=f"at most {limit} bytes",
                got=f"{size} bytes",
            )
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from error


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


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
