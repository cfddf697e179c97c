"""Checked reading of `.npy` files: nothing is unpickled and no header is believed.

The format is numpy's own, https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.
Its header is compared with the file's size before anything is allocated.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

from seqrecord.errors import SourceError
from seqrecord.schema import MAX_FRAME_BYTES
from seqrecord.sources.files import check_array, unreadable

__all__ = ["NpyHeader", "map_npy", "npy_header", "read_npy"]

_HEADERS = {
    (1, 0): npy_format.read_array_header_1_0,
    (2, 0): npy_format.read_array_header_2_0,
}


@dataclass(frozen=True)
class NpyHeader:
    """What an npy file declares of its array, and the byte `offset` at which its values start."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int


def npy_header(path: Path) -> NpyHeader:
    """The header, which agrees with the file's size; raises `SourceError` otherwise."""
    try:
        with path.open("rb") as stream:
            return _header(stream, path)
    except OSError as error:
        raise unreadable(path, error) from error


def read_npy(
    path: Path, dtype: npt.DTypeLike | None = None, shape: tuple[int, ...] | None = None
) -> npt.NDArray[Any]:
    """The whole array, little-endian and in C order, of at most `MAX_FRAME_BYTES`.

    `dtype` and `shape` are demanded where given, before any value is read.
    """
    try:
        with path.open("rb") as stream:
            header = _header(stream, path)
            want = header.dtype if dtype is None else np.dtype(dtype)
            check_array(header.dtype, header.shape, want, shape or header.shape, path)
            nbytes = header.dtype.itemsize * math.prod(header.shape)
            if nbytes > MAX_FRAME_BYTES:
                raise SourceError(
                    "an array that is too large",
                    file=str(path),
                    expected=f"at most {MAX_FRAME_BYTES} bytes",
                    got=f"{nbytes} bytes",
                )
            values = np.fromfile(stream, header.dtype, math.prod(header.shape))
    except OSError as error:
        raise unreadable(path, error) from error
    if values.nbytes != nbytes:  # cut since the header was checked
        raise SourceError(
            "a truncated npy file",
            file=str(path),
            expected=f"{nbytes} bytes of values",
            got=f"{values.nbytes} bytes",
        )
    array = values.reshape(header.shape, order="F" if header.fortran_order else "C")
    return np.ascontiguousarray(array, header.dtype.newbyteorder("<")).reshape(header.shape)


def map_npy(path: Path) -> npt.NDArray[Any]:
    """The array mapped read-only into memory, as stored; for one that is read piece by piece."""
    header = npy_header(path)
    if math.prod(header.shape) * header.dtype.itemsize == 0:
        return np.zeros(header.shape, header.dtype)  # nothing can be mapped
    try:
        return np.memmap(
            path,
            header.dtype,
            "r",
            header.offset,
            header.shape,
            "F" if header.fortran_order else "C",
        )
    except (OSError, ValueError) as error:
        raise SourceError(
            "an npy file that cannot be mapped", file=str(path), got=str(error)
        ) from error


def _header(stream: BinaryIO, path: Path) -> NpyHeader:
    try:
        version = npy_format.read_magic(stream)
        # Version 3 exists for structured dtypes with unicode field names: no frame is one.
        shape, fortran_order, dtype = _HEADERS[version](stream)
    except OSError:
        raise
    except Exception as error:  # ValueError as a rule, but it parses Python literals
        raise SourceError(
            "not an npy file that can be read",
            file=str(path),
            expected="an npy header of version 1.0 or 2.0",
            got=(str(error).splitlines() or [type(error).__name__])[0][:200],
        ) from error
    if dtype.hasobject:
        raise SourceError(
            "an npy file of pickled objects, which are never loaded",
            file=str(path),
            expected="numbers",
            got=str(dtype)[:200],
        )
    offset = stream.tell()
    size = os.fstat(stream.fileno()).st_size
    declared = offset + dtype.itemsize * math.prod(shape)
    if any(n < 0 for n in shape) or declared != size:
        raise SourceError(
            "an npy file whose size is not what its header declares",
            file=str(path),
            expected=f"{declared} bytes for {dtype} {list(shape)}"[:200],
            got=f"{size} bytes",
        )
    return NpyHeader(dtype, shape, fortran_order, offset)
