"""Checked reading of HDF5 files: numbers by rows, and images that lie in them encoded.

What a file refers to outside itself is not followed: external links, external storage and virtual
datasets name other files. Nothing is unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.codecs.images import SIGNATURES
from seqrecord.errors import SeqRecordError, SourceError, located
from seqrecord.lazy import import_extra
from seqrecord.schema import MAX_FEATURES
from seqrecord.sources.common.embedded import read_rows
from seqrecord.sources.common.files import first_line, openable

_ENDINGS = (".hdf5", ".h5")
_MAX_DEPTH = 16  # groups in groups; a link to a group above would never end
_MAX_DATASETS = 4 * MAX_FEATURES
_MAX_TEXT = 4096  # characters of an attribute that goes to the metadata
_MAX_VALUES = 64
_CHUNK_EXTRA = 64 << 10  # bytes of a chunk that may be more than it declares


def load_h5py() -> Any:
    """The module h5py; raises `MissingPackageError` that says how to install it."""
    return import_extra("h5py", "HDF5 files are read by h5py, the extra `hdf5`: pip install h5py")


def is_hdf5_name(path: Path) -> bool:
    """Whether a file is named as HDF5 files are."""
    return path.suffix.lower() in _ENDINGS


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """The open file; raises `SourceError` for one that is no HDF5 file, is cut, or is damaged.

    What h5py raises while the file is read becomes one too. Each that the block raises names it.
    """
    h5py = load_h5py()
    try:
        where = openable(path)
        remote = nullcontext() if isinstance(where, Path) else where
        # Read-only mounts refuse locks.
        more = {"locking": False} if isinstance(where, Path) else {}
        file = h5py.File(where, "r", **more)
    except OSError as error:
        raise SourceError(
            "not an HDF5 file that can be read", file=str(path), got=first_line(error)
        ) from error
    with remote, reading_hdf5(path), file:
        yield file


@contextmanager
def reading_hdf5(path: Path) -> Iterator[None]:
    """What h5py raises in the block becomes a `SourceError`, and each of these names the file."""
    with located(SourceError, file=str(path)):
        try:
            yield
        except SeqRecordError:
            raise
        except (OSError, RuntimeError, ValueError, TypeError, LookupError) as error:
            raise SourceError("a damaged HDF5 file", got=first_line(error)) from error


def datasets(group: Any) -> dict[str, Any]:
    """The datasets below a group, by their paths without the group's, in the order of names."""
    found: dict[str, Any] = {}
    _collect(group, "", 0, found)
    return found


def _collect(group: Any, prefix: str, depth: int, found: dict[str, Any]) -> None:
    h5py = load_h5py()
    if depth > _MAX_DEPTH:
        raise SourceError("groups nested too deeply", expected=f"at most {_MAX_DEPTH}", got=prefix)
    for name in group:
        where = f"{prefix}{name}"
        if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
            raise SourceError("a link to another file, which is not followed")
        item = group[name]
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise SourceError(
                    f"{where} keeps its values in another file, which is not followed"
                )
            _check_chunks(item, where)
            found[where] = item
        elif isinstance(item, h5py.Group):
            _collect(item, f"{where}/", depth + 1, found)
        if len(found) > _MAX_DATASETS:
            raise SourceError("too many datasets", expected=f"at most {_MAX_DATASETS}")


def _check_chunks(dataset: Any, where: str) -> None:
    """Raises `SourceError` where a chunk stores far more than it declares.

    HDF5 itself decodes a chunk to all that lies there: deflate to a thousand times what is stored.
    """
    if dataset.chunks is None or not dataset.id.get_create_plist().get_nfilters():
        return
    declared = dataset.dtype.itemsize * math.prod(dataset.chunks)
    sizes = [0]
    dataset.id.chunk_iter(lambda chunk: sizes.append(chunk.size))
    if max(sizes) > 2 * declared + _CHUNK_EXTRA:
        raise SourceError(
            f"{where} has a chunk that stores more than it declares",
            expected=f"{declared} bytes at most",
            got=f"{max(sizes)} bytes, compressed",
        )


def encoded_row(row: Any) -> bytes | None:
    """The encoded image that a row holds, without the zeros that fill it up; `None` if it is none.

    A row is bytes (`S` of a fixed length) or uint8 [L], of a fixed length or of its own.
    """
    if isinstance(row, np.ndarray):
        if row.dtype != np.uint8 or row.ndim != 1:
            return None
        row = row.tobytes()
    if not isinstance(row, bytes):
        return None
    data = row.rstrip(b"\0")  # neither a JPEG nor a PNG ends in one
    return data if any(data.startswith(magic) for magic in SIGNATURES) else None


def first_image(dataset: Any, path: Path) -> bytes | None:
    """The first row as an encoded image, if the dataset holds such images, a row each."""
    is_padded = dataset.ndim == 2 and dataset.dtype == np.uint8
    if not is_padded and not (dataset.ndim == 1 and dataset.dtype.kind in "OS"):
        return None
    for row in read_rows(dataset, path, 0, min(1, dataset.shape[0])):
        return encoded_row(row)
    return None


def is_text(dataset: Any) -> bool:
    """Whether its values are declared as text; encoded images may be declared so too."""
    return load_h5py().check_string_dtype(dataset.dtype) is not None


def text_of(value: object) -> str | None:
    """Text as h5py gives it, of bytes or str; `None` for anything else."""
    if isinstance(value, str):  # h5py puts half surrogate pairs for bytes that are not UTF-8
        value = value.encode("utf-8", "replace")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None


def attributes(item: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The attributes that are short, as JSON; numbers that JSON does not know are left out."""
    found: dict[str, Any] = {}
    for name in item.attrs:
        plain = None if name in without else _json_value(item.attrs[name])
        if plain is not None:
            found[name] = plain
    return found


def _json_value(value: Any) -> Any:
    text = text_of(value)
    if text is not None:
        return text if len(text) <= _MAX_TEXT else None
    array: npt.NDArray[Any] = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.size > _MAX_VALUES:
        return None
    return array.tolist() if np.isfinite(array).all() else None
