"""Checked reading of `.npy`, `.npz`, `.flo`, `.dpt`, PFM and OpenEXR files.

Nothing is unpickled. A header is compared with the file's size before anything is allocated.
Formats:

- npy is NumPy's format, npz a ZIP file of npy files:
  https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
- `.flo` is Middlebury's flow: https://vision.middlebury.edu/flow/code/flow-code/README.txt
- `.dpt` is Sintel's depth, the same with one channel.
- PFM: https://netpbm.sourceforge.net/doc/pfm.html
- OpenEXR is read by the library OpenEXR, an optional extra. Windows of a picture:
  https://openexr.com/en/latest/TechnicalIntroduction.html
"""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, StorageError, located
from seqrecord.formats.sources.common.tables import sampled
from seqrecord.in_place.boundary import skipping_unreadable
from seqrecord.in_place.files import (
    first_line,
    on_disk,
    open_file,
    opened,
    read_values,
    unreadable,
)
from seqrecord.in_place.limits import check_image_size
from seqrecord.store.codecs.images import npy_header
from seqrecord.store.lazy import import_extra
from seqrecord.store.schema import MAX_FRAME_BYTES

NO_ROWS = (0,)
"""Shape of an array without rows and with unknown columns, such as `np.array([])`."""

_FLO_MAGIC = b"PIEH"  # the float 202021.25
_PFM = re.compile(rb"(PF|Pf)\s+(\d{1,9})\s+(\d{1,9})\s+(-?[\d.]+(?:[eE][+-]?\d+)?)\s")
_PFM_HEADER = 128  # maximum bytes of a PFM header
NPZ = ".npz"
"""File name ending of ZIP files with npy files, in lower case."""

_EXR = ".exr"
_EXR_COLOURS = {frozenset(names): tuple(names) for names in ("RGB", "RGBA")}


@dataclass(frozen=True)
class ArrayHeader:
    """dtype and shape that a file declares, and the byte `offset` of its values.

    Images are [H, W] or [H, W, C]. PFM stores rows from bottom to top (`is_flipped`).
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int = 0
    fortran_order: bool = False
    is_flipped: bool = False

    @property
    def nbytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def array_header(path: Path, member: str | None = None) -> ArrayHeader:
    """Read the header; raises `SourceError` if it disagrees with the file's size.

    OpenEXR files are decoded, since the library reports pixel types of decoded files only. `member`
    names the array of an npz file, by default its only one.
    """
    if path.suffix.lower() == _EXR:
        array = read_array(path)
        return ArrayHeader(array.dtype, array.shape)
    with _opened_array(path, member) as (stream, size):
        return _header(stream, path, size)


def arrays_form(
    files: Sequence[Path], member: str | None = None
) -> tuple[np.dtype[Any], tuple[int | None, ...]]:
    """Return dtype and shape of single-frame files, from a sample of the files.

    Dimensions that differ are `None`, as is the first one if a frame has no rows. Raises
    `SourceError` if the first file is unreadable.
    """
    headers = [array_header(files[0], member)]
    for path in sampled(files)[1:]:
        with skipping_unreadable():  # raised by the reader
            headers.append(array_header(path, member))
    filled_headers = [header for header in headers if header.shape != NO_ROWS]
    first_header = (filled_headers or headers)[0]
    shapes = [
        header.shape for header in filled_headers if len(header.shape) == len(first_header.shape)
    ] or [NO_ROWS]
    sizes = [{*lengths} for lengths in zip(*shapes, strict=True)]
    if len(filled_headers) < len(headers):
        sizes[:1] = [{0}] if sizes else []
    shape = [size.pop() if len(size) == 1 and size != {0} else None for size in sizes]
    return first_header.dtype, tuple(shape)


def read_array(path: Path, member: str | None = None) -> npt.NDArray[Any]:
    """Read the whole array, little-endian, in C order, of at most `MAX_FRAME_BYTES`.

    Rows of images are in top-down order. By format:

    - `.flo`: float32 [H, W, 2], pixels to the right and down; unknown flow is above 1e9, as stored.
    - `.dpt`: float32 [H, W].
    - PFM: float32 [H, W] or [H, W, 3], without the header's scale.
    - OpenEXR: float16, float32 or uint32; [H, W] for one channel, [H, W, 3] or [H, W, 4] for R, G,
      B and A. H and W are those of the display window; pixels that are not stored are 0.
    - npz: the array `member`, by default the only one.

    Raises `SourceError` for unreadable, truncated or other files, and `MissingPackageError` for
    OpenEXR files if the library is not installed.
    """
    if path.suffix.lower() == _EXR:
        with opened(path):
            return _read_exr(path)
    with _opened_array(path, member) as (stream, size):
        return _read(stream, path, size)


def npz_names(path: Path) -> list[str]:
    """Return the names of the arrays in an npz file. Raises `SourceError` if there are none."""
    with opened(path) as stream, _zip(stream) as file:
        return [name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")]


def decode_array(data: bytes, path: Path) -> npt.NDArray[Any]:
    """Like `read_array`, for bytes read from `path`; not for OpenEXR."""
    with located(SourceError, file=str(path)):
        return _read(io.BytesIO(data), path)


class NpyFile:
    """An npy file with an array [T, …]; `file[t]` reads item t as stored.

    An array of an npz file (`member`) is read whole, as is one in Fortran order, whose items are
    scattered over the file; both are limited to `MAX_FRAME_BYTES`.

    Files are not memory-mapped: truncation of a mapped file kills the process by SIGBUS, while here
    it raises `SourceError`.
    """

    def __init__(self, path: Path, member: str | None = None) -> None:
        header = array_header(path, member)
        self.dtype, self.shape = header.dtype, header.shape
        self._path, self._offset = path, header.offset
        # A mapped file that is truncated ends the process by SIGBUS; reading raises an error: see
        # tests/formats/test_folders.py::test_truncation_of_an_array_during_reading_is_an_error.
        is_read = (header.fortran_order and len(self.shape) > 1) or path.suffix.lower() == NPZ
        self._array = read_array(path, member=member) if is_read else None
        if self._array is not None:
            self.dtype = self._array.dtype
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

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> npt.NDArray[Any]:
        if self._array is not None:
            row: npt.NDArray[Any] = self._array[index]
            return row
        count = math.prod(self.shape[1:])
        begin = self._offset + index * count * self.dtype.itemsize
        try:
            self._file.seek(begin)
            values = read_values(self._file, self.dtype, count)
        except OSError as error:
            raise unreadable(self._path, error) from error
        if values.size != count:
            raise SourceError(
                "the npy file was truncated while it was read",
                file=str(self._path),
                frame=index,
                expected=f"{count * self.dtype.itemsize} bytes at {begin}",
                got=f"{values.nbytes} bytes",
            )
        return values.reshape(self.shape[1:])


def _read(stream: BinaryIO, path: Path, size: int | None = None) -> npt.NDArray[Any]:
    header = _header(stream, path, size)
    if header.nbytes > MAX_FRAME_BYTES:
        raise SourceError(
            "array too large",
            expected=f"at most {MAX_FRAME_BYTES} bytes",
            got=f"{header.nbytes} bytes",
        )
    if size is None:
        stream.seek(header.offset)
    values = read_values(stream, header.dtype, math.prod(header.shape))
    if values.nbytes != header.nbytes:  # truncated since the header was checked
        raise SourceError(
            f"truncated {_noun(path)}",
            expected=f"{header.nbytes} bytes of values",
            got=f"{values.nbytes} bytes",
        )
    array = values.reshape(header.shape, order="F" if header.fortran_order else "C")
    rows = array[::-1] if header.is_flipped else array
    return np.ascontiguousarray(rows, header.dtype.newbyteorder("<")).reshape(header.shape)


def _header(stream: BinaryIO, path: Path, size: int | None = None) -> ArrayHeader:
    """Read and check the header of a file with `size` bytes, by default the length of `stream`."""
    parse = _RASTERS.get(path.suffix.lower())
    header = (parse or _npy_header)(stream)
    if parse:
        check_image_size(header.shape, header.dtype.itemsize)
    declared = header.offset + header.nbytes
    size = stream.seek(0, os.SEEK_END) if size is None else size
    if declared != size or min(header.shape, default=0) < 0:
        raise SourceError(
            f"the size of the {_noun(path)} differs from its header",
            expected=f"{declared} bytes for {header.dtype} {list(header.shape)}"[:200],
            got=f"{size} bytes",
        )
    return header


@contextmanager
def _zip(stream: BinaryIO) -> Iterator[zipfile.ZipFile]:
    """Open a ZIP file; its various errors become `SourceError`."""
    try:
        with zipfile.ZipFile(stream) as file:
            if not any(name.endswith(".npy") for name in file.namelist()):
                raise SourceError("npz file without arrays", got=f"{len(file.namelist())} files")
            yield file
    except SourceError:
        raise
    except Exception as error:  # zipfile, zlib and struct raise many types
        raise SourceError("cannot read the npz file", got=first_line(error)) from error


@contextmanager
def _opened_array(path: Path, member: str | None) -> Iterator[tuple[BinaryIO, int | None]]:
    """Open a file; in an npz file an array's npy file, with its declared size."""
    with opened(path) as stream:
        if path.suffix.lower() != NPZ:
            yield stream, None
            return
        with _zip(stream) as file:
            names = [name for name in file.namelist() if name.endswith(".npy")]
            name = names[0] if member is None and len(names) == 1 else f"{member}.npy"
            if name not in names:
                raise SourceError(
                    "the npz file has other arrays than the first one",
                    expected=member or "one array",
                    got=", ".join(array_name.removesuffix(".npy") for array_name in names)[:200],
                )
            with file.open(name) as array:
                yield cast("BinaryIO", array), file.getinfo(name).file_size


def _noun(path: Path) -> str:
    return "image" if path.suffix.lower() in _RASTERS else "npy file"


def _npy_header(stream: BinaryIO) -> ArrayHeader:
    try:
        dtype, shape, fortran_order = npy_header(stream)
    except ValueError as error:
        raise SourceError(
            "invalid or unsupported npy file",
            expected="an npy header of version 1.0 or 2.0",
            got=first_line(error),
        ) from error
    if dtype.hasobject:
        raise SourceError(
            "npy file of pickled objects, which are never loaded; save it as numbers",
            expected="numbers",
            got=str(dtype)[:200],
        )
    return ArrayHeader(dtype, shape, stream.tell(), fortran_order)


def _flo_header(stream: BinaryIO, *channels: int) -> ArrayHeader:
    head = stream.read(12)
    if len(head) < 12 or head[:4] != _FLO_MAGIC:
        raise SourceError("not a .flo file", expected="PIEH", got=repr(head[:4]))
    width, height = (int.from_bytes(head[i : i + 4], "little", signed=True) for i in (4, 8))
    return ArrayHeader(np.dtype("<f4"), (max(height, 0), max(width, 0), *channels), 12)


def _pfm_header(stream: BinaryIO) -> ArrayHeader:
    header_match = _PFM.match(stream.read(_PFM_HEADER))
    scale = float(header_match[4]) if header_match and header_match[4].count(b".") < 2 else 0.0
    if header_match is None or scale == 0 or not math.isfinite(scale):
        raise SourceError("not a PFM file", expected="PF or Pf, width, height, scale")
    size = (int(header_match[3]), int(header_match[2]))
    shape = (*size, 3) if header_match[1] == b"PF" else size
    dtype: np.dtype[Any] = np.dtype("<f4" if scale < 0 else ">f4")
    return ArrayHeader(dtype, shape, header_match.end(), is_flipped=True)


def _read_exr(path: Path) -> npt.NDArray[Any]:
    hint = "OpenEXR images need OpenEXR, the extra `exr`: pip install OpenEXR"
    exr = import_extra("OpenEXR", hint)
    try:
        with on_disk(path) as file:
            parts = exr.File(str(file), header_only=True).parts
            if len(parts) != 1 or parts[0].type() not in (exr.scanlineimage, exr.tiledimage):
                raise SourceError(
                    "unsupported OpenEXR file",
                    expected="one flat image: neither deep nor multi-part",
                )
            header = parts[0].header
            data_window, display_window = map(
                _window, (header["dataWindow"], header["displayWindow"])
            )
            for size in (data_window[2:], display_window[2:]):
                check_image_size((*size, len(parts[0].header["channels"])), itemsize=4)
            size = data_window[2:]
            channels = exr.File(str(file), separate_channels=True).channels()
    except (SourceError, StorageError):
        raise
    except Exception as error:  # the library raises many types
        raise SourceError("cannot decode the OpenEXR file", got=first_line(error)) from error
    names = _EXR_COLOURS.get(frozenset(channels), tuple(channels))
    planes = [np.asarray(channels[name].pixels) for name in names]
    kinds = [f"{name} ({plane.dtype})" for name, plane in zip(names, planes, strict=True)]
    plane_forms = {(plane.dtype.kind in "fu", plane.dtype, plane.shape) for plane in planes}
    if plane_forms != {(True, planes[0].dtype, size)} or (
        len(names) > 1 and frozenset(names) not in _EXR_COLOURS
    ):
        raise SourceError(
            "the OpenEXR channels are not one image",
            expected="one channel, or R, G, B and optionally A, of one dtype and not subsampled",
            got=", ".join(kinds)[:200],
        )
    pixels = np.stack(planes, axis=-1) if len(planes) > 1 else planes[0]
    return (
        pixels
        if data_window == display_window
        else _place_pixels(pixels, data_window, display_window)
    )


_Window: TypeAlias = tuple[int, int, int, int]
"""Top, left, height and width."""


def _window(corners: Any) -> _Window:
    (left, top), (right, bottom) = np.array(corners).tolist()
    return top, left, bottom - top + 1, right - left + 1


def _place_pixels(
    pixels: npt.NDArray[Any], data_window: _Window, display_window: _Window
) -> npt.NDArray[Any]:
    """Return the picture, the display window: zeros where no pixel is stored.

    The stored pixels are the data window, which renderers shrink to the part that is not
    empty, or extend beyond the picture.
    """
    picture = np.zeros((*display_window[2:], *pixels.shape[2:]), pixels.dtype)
    inner, outer = [], []
    for axis in range(2):
        shift = data_window[axis] - display_window[axis]
        begin, end = max(shift, 0), min(shift + data_window[axis + 2], display_window[axis + 2])
        outer.append(slice(begin, max(begin, end)))
        inner.append(slice(begin - shift, max(begin, end) - shift))
    picture[tuple(outer)] = pixels[tuple(inner)]
    return picture


_RASTERS: dict[str, Callable[[BinaryIO], ArrayHeader]] = {
    ".flo": lambda stream: _flo_header(stream, 2),
    ".dpt": _flo_header,
    ".pfm": _pfm_header,
}

RASTER_ENDINGS = frozenset([*_RASTERS, _EXR])
"""File name endings, lower case."""
