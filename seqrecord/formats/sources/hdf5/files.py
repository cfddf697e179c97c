"""Checked reading of HDF5 files: numbers by rows, and encoded images.

References to other files are not followed: external links, external storage and virtual datasets.
Nothing is unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SeqRecordError, SourceError, located
from seqrecord.formats.sources.common.embedded import read_rows
from seqrecord.in_place.files import first_line, openable
from seqrecord.store.codecs.images import SIGNATURES
from seqrecord.store.lazy import import_extra
from seqrecord.store.schema import MAX_FEATURES

_ENDINGS = (".hdf5", ".h5")
_MAX_DEPTH = 16  # nested groups; stops at links to a group above
_MAX_DATASETS = 4 * MAX_FEATURES
_MAX_TEXT = 4096  # characters of an attribute in the metadata
_MAX_VALUES = 64
# HDF5 decodes a chunk completely, a thousand times its bytes with deflate; data that deflate
# cannot compress grows by less. tests/formats/test_hdf5.py has test_broken_images_and_files.
_CHUNK_EXTRA = 64 << 10  # tolerated bytes of a chunk beyond its declaration


def load_h5py() -> Any:
    """Import h5py. Raises `MissingPackageError` with the install command if it is missing."""
    return import_extra("h5py", "HDF5 files need h5py, the extra `hdf5`: pip install h5py")


def is_hdf5_name(path: Path) -> bool:
    """Return whether a file has the ending of HDF5 files."""
    return path.suffix.lower() in _ENDINGS


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open a file. Raises `SourceError` with the file for invalid files and errors of the block."""
    h5py = load_h5py()
    try:
        openable_file = openable(path)
        remote = nullcontext() if isinstance(openable_file, Path) else openable_file
        # Locks fail on read-only mounts.
        options = {"locking": False} if isinstance(openable_file, Path) else {}
        file = h5py.File(openable_file, "r", **options)
    except OSError as error:
        raise SourceError(
            "invalid or unreadable HDF5 file", file=str(path), got=first_line(error)
        ) from error
    with remote, reading_hdf5(path), file:
        yield file


@contextmanager
def reading_hdf5(path: Path) -> Iterator[None]:
    """Convert h5py's errors in the block to `SourceError`; each `SourceError` gets the file."""
    with located(SourceError, file=str(path)):
        try:
            yield
        except SeqRecordError:
            raise
        except (OSError, RuntimeError, ValueError, TypeError, LookupError) as error:
            raise SourceError("damaged HDF5 file", got=first_line(error)) from error


def datasets(group: Any) -> dict[str, Any]:
    """Return the datasets below a group by relative path, in the order of names."""
    datasets_by_path: dict[str, Any] = {}
    _collect(group, "", 0, datasets_by_path)
    return datasets_by_path


def _collect(group: Any, prefix: str, depth: int, datasets_by_path: dict[str, Any]) -> None:
    h5py = load_h5py()
    if depth > _MAX_DEPTH:
        raise SourceError("groups nested too deeply", expected=f"at most {_MAX_DEPTH}", got=prefix)
    for name in group:
        dataset_path = f"{prefix}{name}"
        if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
            raise SourceError("external link, which is not followed", got=dataset_path)
        child = group[name]
        if isinstance(child, h5py.Dataset):
            if child.external or child.is_virtual:
                raise SourceError(
                    f"the values of {dataset_path} are in another file, which is not followed"
                )
            _check_chunks(child, dataset_path)
            datasets_by_path[dataset_path] = child
        elif isinstance(child, h5py.Group):
            _collect(child, f"{dataset_path}/", depth + 1, datasets_by_path)
        if len(datasets_by_path) > _MAX_DATASETS:
            raise SourceError("too many datasets", expected=f"at most {_MAX_DATASETS}")


def _check_chunks(dataset: Any, dataset_path: str) -> None:
    """Raise `SourceError` if a chunk stores far more bytes than it declares.

    HDF5 decodes a chunk completely: deflate expands up to a thousand times.
    """
    if dataset.chunks is None or not dataset.id.get_create_plist().get_nfilters():
        return
    declared = dataset.dtype.itemsize * math.prod(dataset.chunks)
    sizes = [0]
    dataset.id.chunk_iter(lambda chunk: sizes.append(chunk.size))
    if max(sizes) > 2 * declared + _CHUNK_EXTRA:
        raise SourceError(
            f"a chunk of {dataset_path} stores more bytes than it declares",
            expected=f"{declared} bytes at most",
            got=f"{max(sizes)} bytes, compressed",
        )


def encoded_row(row: Any) -> bytes | None:
    """Return a row's encoded image without trailing zeros; `None` if it is not an image.

    A row is bytes (`S` of fixed length) or uint8 [L], of fixed or variable length.
    """
    if isinstance(row, np.ndarray):
        if row.dtype != np.uint8 or row.ndim != 1:
            return None
        row = row.tobytes()
    if not isinstance(row, bytes):
        return None
    data = row.rstrip(b"\0")  # JPEG and PNG end in another byte
    return data if any(data.startswith(magic) for magic in SIGNATURES) else None


def first_image(dataset: Any, path: Path) -> bytes | None:
    """Return the encoded image in the first row, or `None` if the dataset has no such images."""
    is_padded = dataset.ndim == 2 and dataset.dtype == np.uint8
    if not is_padded and not (dataset.ndim == 1 and dataset.dtype.kind in "OS"):
        return None
    for row in read_rows(dataset, path, 0, min(1, dataset.shape[0])):
        return encoded_row(row)
    return None


def is_text(dataset: Any) -> bool:
    """Return whether values are declared as text; this includes some encoded images."""
    return load_h5py().check_string_dtype(dataset.dtype) is not None


def text_of(value: object) -> str | None:
    """Return h5py's text, bytes or str, as str; `None` for other values."""
    if isinstance(value, str):  # h5py returns surrogates for invalid UTF-8
        value = value.encode("utf-8", "replace")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else None


def attributes(item: Any, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return short attributes as JSON, without non-finite numbers."""
    values: dict[str, Any] = {}
    for name in item.attrs:
        json_value = None if name in without else _json_value(item.attrs[name])
        if json_value is not None:
            values[name] = json_value
    return values


def _json_value(value: Any) -> Any:
    text = text_of(value)
    if text is not None:
        return text if len(text) <= _MAX_TEXT else None
    array: npt.NDArray[Any] = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.size > _MAX_VALUES:
        return None
    return array.tolist() if np.isfinite(array).all() else None
