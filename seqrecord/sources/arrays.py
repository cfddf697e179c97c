"""Checked reading of `.npy` files: nothing is unpickled, and headers are not trusted.

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
from seqrecord.sources.files import check_array, open_file, read_values, unreadable

__all__ = ["NpyFile", "NpyHeader", "npy_header", "read_npy"]

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
        with open_file(path) as stream:
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
        with open_file(path) as stream:
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
            values = read_values(stream, header.dtype, math.prod(header.shape))
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


class NpyFile:
    """An npy file of an array [T, …], of which `file[t]` reads item t, as stored.

    Nothing is mapped: a mapped file that is cut meanwhile ends the process with SIGBUS, and this
    one is a `SourceError`. Of an array in Fortran order, whose items are scattered over the file,
    all is read, so it may have at most `MAX_FRAME_BYTES`.
    """

    def __init__(self, path: Path) -> None:
        header = npy_header(path)
        self.dtype, self.shape = header.dtype, header.shape
        self._path, self._offset = path, header.offset
        self._whole = read_npy(path) if header.fortran_order and len(self.shape) > 1 else None
        if self._whole is not None:
            self.dtype = self._whole.dtype
            return
        try:
            self._file = open_file(path, buffered=False)
        except OSError as error:
            raise unreadable(path, error) from error

    def __del__(self) -> None:
        if (file := getattr(self, "_file", None)) is not None:
            file.close()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        if self._whole is not None:
            item: npt.NDArray[Any] = self._whole[index]
            return item
        count = math.prod(self.shape[1:])
        begin = self._offset + index * count * self.dtype.itemsize
        try:
            self._file.seek(begin)
            values = read_values(self._file, self.dtype, count)
        except OSError as error:
            raise unreadable(self._path, error) from error
        if values.size != count:
            raise SourceError(
                "an npy file was cut while it was read",
                file=str(self._path),
                frame=index,
                expected=f"{count * self.dtype.itemsize} bytes at {begin}",
                got=f"{values.nbytes} bytes",
            )
        return values.reshape(self.shape[1:])


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
    size = stream.seek(0, os.SEEK_END)
    stream.seek(offset)
    declared = offset + dtype.itemsize * math.prod(shape)
    if any(n < 0 for n in shape) or declared != size:
        raise SourceError(
            "an npy file whose size is not what its header declares",
            file=str(path),
            expected=f"{declared} bytes for {dtype} {list(shape)}"[:200],
            got=f"{size} bytes",
        )
    return NpyHeader(dtype, shape, fortran_order, offset)
