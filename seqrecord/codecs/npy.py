"""npy files, NumPy's format with a Python literal as header; pickled objects are refused.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import io
import math
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy_format

MAGIC = b"\x93NUMPY"

# Version 3 is for structured dtypes with Unicode field names, which frames cannot have.
_HEADERS = {(1, 0): npy_format.read_array_header_1_0, (2, 0): npy_format.read_array_header_2_0}


def npy_header(stream: BinaryIO) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    """dtype, shape and whether the order is Fortran's; leaves the stream at the first value.

    Raises `ValueError` for an invalid header, and `OSError`.
    """
    try:
        shape, fortran_order, dtype = _HEADERS[npy_format.read_magic(stream)](stream)
    except (OSError, ValueError):
        raise
    except Exception as error:  # usually ValueError, but NumPy parses Python literals
        raise ValueError(str(error)) from error
    return dtype, shape, fortran_order


def decode_npy_into(data: bytes | memoryview, out: npt.NDArray[Any]) -> None:
    """Decode an npy file of either byte order into `out`; raises `ValueError` on a mismatch."""
    view = memoryview(data)
    stream = io.BytesIO(view[:_MOST_HEADER])
    dtype, shape, fortran_order = npy_header(stream)
    if dtype.hasobject or dtype.newbyteorder("<") != out.dtype or shape != out.shape:
        raise ValueError(
            f"the array is {dtype} {list(shape)}, expected {out.dtype} {list(out.shape)}"[:200]
        )
    begin = stream.tell()
    if len(view) - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"an npy file of {len(view)} bytes does not match its header")
    values = np.frombuffer(view, dtype, offset=begin).reshape(
        shape, order="F" if fortran_order else "C"
    )
    np.copyto(out, values)


def encode_npy(frame: npt.NDArray[Any]) -> bytes:
    """Encode an array as an npy file."""
    file = io.BytesIO()
    npy_format.write_array(file, frame, allow_pickle=False)
    return file.getvalue()


_MOST_HEADER = 1 << 16
