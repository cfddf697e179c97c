"""Files of points, one per frame: PLY, PCD and KITTI's `.bin`.

- PLY: http://paulbourke.net/dataformats/ply, ASCII or binary, with vertices only
- PCD: https://pointclouds.org/documentation/tutorials/pcd_file_format.html, ASCII or binary
- `.bin`: float32 rows without a header, x y z reflectance in folders named `velodyne…`

The size that a header declares is compared with the file before anything is allocated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError, located
from seqrecord.formats.sources.common.points import Points, split_points
from seqrecord.formats.sources.common.specs import UnsupportedError
from seqrecord.in_place.files import opened, read_bytes

POINT_ENDINGS = frozenset((".ply", ".pcd", ".bin"))
"""File name endings, in lower case."""

_SCANS = ("x", "y", "z", "reflectance")  # of KITTI
_PLY_NAMES = {
    "i1": ("char", "int8"),
    "u1": ("uchar", "uint8"),
    "i2": ("short", "int16"),
    "u2": ("ushort", "uint16"),
    "i4": ("int", "int32"),
    "u4": ("uint", "uint32"),
    "f4": ("float", "float32"),
    "f8": ("double", "float64"),
}
_PLY = {name: kind for kind, names in _PLY_NAMES.items() for name in names}
_PLY_ORDERS = {"ascii": "<", "binary_little_endian": "<", "binary_big_endian": ">"}
_PCD = {f"{kind.upper()}{size}": f"<{kind}{size}" for kind in "iuf" for size in "1248"}
_HEADER_BYTES = 1 << 16
_MARKS = {".ply": b"end_header", ".pcd": b"DATA"}  # at the end of headers
_PAGE = 4096


_Field: TypeAlias = tuple[str, str, int]
"""Name of a column, its dtype such as `<f4`, and the number of its numbers."""


def read_points(path: Path, columns: Sequence[str] | None = None) -> Mapping[str, Points]:
    """Read the points by feature name suffix, see `split_points`; `columns` are for `.bin`.

    Raises `SourceError` for damaged files, and `UnsupportedError` for compressed PCD, PLY with
    faces, and `.bin` of unknown columns.
    """
    with located(SourceError, file=str(path)):
        ending = path.suffix.lower()
        try:
            data = _read_file(path, _MARKS.get(ending, b""))
            if ending == ".bin":
                return split_points(_read_bin(path, data, columns))
            return split_points(_read_ply(data) if ending == ".ply" else _read_pcd(data))
        except (ValueError, OverflowError, IndexError, KeyError) as error:
            raise SourceError(f"invalid {ending[1:].upper()} file", got=str(error)[:200]) from error


def _read_file(path: Path, mark: bytes) -> bytes:
    """Read a file whose header has a mark; nothing behind the header if it does not."""
    with opened(path) as file:
        if mark not in (head := file.read(_HEADER_BYTES)):
            raise ValueError(f"no header of {path.suffix[1:].upper()}: {head[:16]!r}")
    return read_bytes(path)


def _read_bin(path: Path, data: bytes, columns: Sequence[str] | None) -> npt.NDArray[np.void]:
    if columns is None and not any(part.startswith("velodyne") for part in path.parts[-3:-1]):
        raise UnsupportedError(
            "unknown columns; name the float32 columns, --source-option columns=x,y,z,intensity"
        )
    names = columns or _SCANS
    if len(data) % (4 * len(names)):
        raise SourceError(
            "truncated scan, or other columns",
            expected=f"a multiple of {4 * len(names)} bytes, float32 {', '.join(names)}"[:300],
            got=f"{len(data)} bytes",
        )
    return np.frombuffer(data, np.dtype([(name, "<f4") for name in names]))


def _read_ply(data: bytes) -> npt.NDArray[np.void]:
    header = re.match(rb"ply(?=[\r\n])(.*?)\nend_header\r?\n", data[:_HEADER_BYTES], re.DOTALL)
    if header is None:
        raise ValueError(f"no header of PLY: {data[:16]!r}")
    lines = header[1].decode("ascii", "replace").splitlines()
    encoding, order = "ascii", "<"
    counts, columns = dict[str, int](), dict[str, list[list[str]]]()  # by element
    for keyword, *words in map(str.split, filter(None, lines)):
        if keyword == "format":
            encoding, order = words[0], _PLY_ORDERS[words[0]]
        elif keyword == "element":
            counts[words[0]], columns[words[0]] = int(words[1]), []
        elif keyword == "property":
            columns[[*counts][-1]].append(words)
    filled_elements = [name for name, count in counts.items() if count or name == "vertex"]
    vertex_columns = columns.get("vertex", [])
    if filled_elements != ["vertex"] or any(words[0] == "list" for words in vertex_columns):
        raise UnsupportedError(
            "PLY of more than points; save the points alone",
            expected="one element, vertex, without lists",
            got=", ".join(
                f"{element} {' '.join(words)}"
                for element, element_columns in columns.items()
                for words in element_columns
            )[:300],
        )
    fields = [(name, f"{order}{_PLY[kind]}", 1) for kind, name in vertex_columns]
    read_rows = {"ascii": _text_rows}.get(encoding, _binary_rows)
    return read_rows(fields, counts["vertex"], data[header.end() :])


def _read_pcd(data: bytes) -> npt.NDArray[np.void]:
    head: dict[str, list[str]] = {}
    start = 0
    while "DATA" not in head:
        end = data.index(b"\n", start, start + _HEADER_BYTES) + 1
        words = data[start:end].decode("ascii").split()
        start = end
        if words and not words[0].startswith("#"):
            head[words[0]] = words[1:]
    if head["DATA"] not in (["ascii"], ["binary"]):
        raise UnsupportedError(
            "compressed PCD; convert it by `pcl_convert_pcd_ascii_binary IN.pcd OUT.pcd 1`",
            expected="DATA ascii or DATA binary",
            got=" ".join(head["DATA"]),
        )
    counts = head.get("COUNT", ["1"] * len(head["FIELDS"]))
    columns = zip(head["FIELDS"], head["TYPE"], head["SIZE"], counts, strict=True)
    fields = [(name, _PCD[kind + size], int(number)) for name, kind, size, number in columns]
    count = int(head["WIDTH"][0]) * int(head["HEIGHT"][0])
    if head["DATA"] == ["ascii"]:
        return _text_rows(fields, count, data[start:])
    end = start + count * sum(number * int(kind[2:]) for _, kind, number in fields)
    is_padded = len(data) - end < _PAGE and not any(data[end:])  # by PCL, to a page of memory
    return _binary_rows(fields, count, data[start : end if is_padded else None])


def _binary_rows(fields: Sequence[_Field], count: int, body: bytes) -> npt.NDArray[np.void]:
    """Return rows of a structured dtype; columns named `_` are padding."""
    dtype = _row_dtype(fields)
    _check_points(count, dtype.itemsize, len(body), "bytes")
    return np.frombuffer(body, dtype, count)


def _text_rows(fields: Sequence[_Field], count: int, body: bytes) -> npt.NDArray[np.void]:
    """Return rows like `_binary_rows`, of numbers as text."""
    dtype, words = _row_dtype(fields), body.split()
    width = sum(number for _, _, number in fields)
    _check_points(count, width, len(words), "numbers")
    rows, place = np.zeros(count, dtype), 0
    for name, (_, kind, number) in zip(dtype.names or (), fields, strict=True):
        for column in range(number):
            rows[name][:, column] = _parse_column(words[place::width], kind, name)
            place += 1
    return rows


def _row_dtype(fields: Sequence[_Field]) -> np.dtype[np.void]:
    return np.dtype(
        [
            (f"_{i}" if name == "_" else name, kind, (number,))
            for i, (name, kind, number) in enumerate(fields)
        ]
    )


def _check_points(count: int, width: int, got: int, unit: str) -> None:
    if not width or count < 0 or got != count * width:
        raise ValueError(f"{got} {unit}, expected {count} points of {width} {unit}")


def _parse_column(words: Sequence[bytes], kind: str, name: str) -> npt.NDArray[Any]:
    """Convert words to numbers of a dtype. Raises `ValueError` for numbers that it cannot have."""
    convert = float if kind[1] == "f" else int
    values = [convert(word) for word in words]
    if convert is int:  # NumPy 1 wraps numbers outside of their type
        limits = np.iinfo(kind)
        if any(not limits.min <= value <= limits.max for value in values):
            raise ValueError(f"column {name} has a number outside of {limits.dtype}")
    return np.array(values, kind)
