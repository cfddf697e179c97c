"""Files of an episode folder with a row per frame: text tables and npz arrays.

A file with another number of rows is not packed; the inventory gives the reason. Files of camera
parameters are recognized by their names.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.array_files import (
    NPZ,
    ArrayHeader,
    array_header,
    npz_names,
    read_array,
)
from seqrecord.formats.sources.common.cameras import camera_of_matrix
from seqrecord.formats.sources.common.specs import feature_name
from seqrecord.formats.sources.common.tables import NumberTable, count_rows, read_numbers
from seqrecord.in_place.file_types import file_type, known_type
from seqrecord.in_place.files import read_bytes

_MATRIX_ROWS = 4
"""Maximum rows of a camera matrix."""


@dataclass(frozen=True)
class RowFeature:
    """A feature with a row per frame, with the dtype and shape of one frame.

    `values` are set for text tables; npz arrays are read by `load`.
    """

    file: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    member: str | None = None
    values: npt.NDArray[Any] | None = None

    def load(self, folder: Path) -> npt.NDArray[Any]:
        """Return all rows [T, …]. Raises `SourceError` for unreadable files."""
        if self.values is not None:
            return self.values
        return read_array(folder / self.file, member=self.member)


@dataclass
class RowFiles:
    """The row files of an episode: features, reasons for unused files, column names of tables."""

    num_frames: int
    features: dict[str, RowFeature] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    columns: dict[str, list[str]] = field(default_factory=dict)

    @property
    def unused_files(self) -> str | None:
        """Unused files with the reasons, for errors; `None` if all are used."""
        return "; ".join(f"{file}: {reason}" for file, reason in self.reasons.items()) or None


def find_rows(
    folder: Path, files: Sequence[str], used_names: Collection[str], num_frames: int | None
) -> RowFiles:
    """Find the features in row files. A name that is already `used_names` gets the file's ending.

    Without `num_frames`, the most frequent length of the npz arrays is used.
    """
    arrays = {file: _arrays(folder / file) for file in files if file.lower().endswith(NPZ)}
    if num_frames is None:
        headers = (header for members in arrays.values() for header in members.values())
        lengths = Counter(header.shape[0] for header in headers if not isinstance(header, str))
        num_frames = max(lengths, key=lambda n: (lengths[n], n), default=0)
    row_files = RowFiles(num_frames)
    for file in files:
        if file in arrays:
            _add_arrays(row_files, used_names, file, arrays[file])
        elif (is_camera := is_camera_name(Path(file).name)) and num_frames <= _MATRIX_ROWS:
            continue
        elif isinstance(table := _table(folder / file, num_frames), NumberTable):
            _add_table(row_files, used_names, file, table)
        elif table and not is_camera:
            row_files.reasons[file] = table
    return row_files


def _add_arrays(
    row_files: RowFiles,
    used_names: Collection[str],
    file: str,
    arrays: Mapping[str, ArrayHeader | str],
) -> None:
    """Add the arrays of an npz file with a row per frame; reasons for the others."""
    is_alone = len(arrays) == 1
    for member, header in arrays.items():
        place = file if is_alone else f"{file}: {member}"
        if isinstance(header, str):
            row_files.reasons[place] = header
        elif header.shape[0] != row_files.num_frames:
            row_files.reasons[place] = _rows_for(header.shape[0], row_files.num_frames)
        else:
            stem = Path(file).with_suffix("").as_posix() if is_alone else member
            dtype = header.dtype.newbyteorder("<")
            rows = RowFeature(file, dtype, header.shape[1:], member)
            _add(row_files, used_names, stem, rows, member)


def _add_table(
    row_files: RowFiles, used_names: Collection[str], file: str, table: NumberTable
) -> None:
    stem = Path(file).with_suffix("").as_posix()
    for part, values in table.columns().items():
        rows = RowFeature(file, values.dtype, values.shape[1:], None, values)
        name = _add(row_files, used_names, f"{stem}/{part}", rows, part)
        if not part and table.names:
            row_files.columns[name] = table.plain_names


def _add(
    row_files: RowFiles, used_names: Collection[str], place: str, rows: RowFeature, part: str
) -> str:
    """Add a feature, named by its place; if that name is used, by its file and part."""
    name = feature_name(place)
    if name in used_names or name in row_files.features:
        name = feature_name(f"{rows.file}/{part}")
    row_files.features[name] = rows
    return name


def _arrays(path: Path) -> dict[str, ArrayHeader | str]:
    """Return the header of each array [T, …] in an npz file, or the reason against it."""
    try:
        names = npz_names(path)
    except SourceError as error:
        kind = file_type(path)
        return {"": error.message + (f"; the file is {kind}" if kind else "")}
    headers: dict[str, ArrayHeader | str] = {}
    for name in names:
        try:
            header = array_header(path, name)
        except SourceError as error:
            headers[name] = error.message
            continue
        is_number = header.dtype.kind in "biuf"
        headers[name] = header if is_number else f"dtype {header.dtype}"
        if not header.shape:
            headers[name] = "no time axis"
    return headers


def _table(path: Path, num_frames: int) -> NumberTable | str:
    """Return a text table with a row per frame, or the reason against it; "" for other text."""
    try:
        rows = count_rows(path)
    except SourceError as error:
        if error.message.startswith("decimal comma"):
            return f"{error.message}: {error.got}"
        is_table = path.suffix.lower() in (".csv", ".tsv") and known_type(path) is None
        return f"{error.message}: {error.got}" if is_table else ""
    try:
        if rows not in (num_frames, num_frames + 1):  # the first row may be column names
            return _rows_for(rows, num_frames)
        table = read_numbers(path)
    except SourceError as error:
        return f"{error.message}: {error.got}" if error.got else error.message
    if len(table.values) != num_frames:
        return _rows_for(len(table.values), num_frames)
    return table


def _rows_for(rows: int, num_frames: int) -> str:
    return f"{rows:,} rows for {num_frames:,} frames"


def find_camera(
    folder: Path, files: Sequence[str], sizes: Collection[tuple[int, int]]
) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return the `camera` of an episode's metadata, and reasons for unused files.

    `sizes` are the images' (height, width). Exactly one file must be a camera, and all images must
    have the same size.
    """
    pinholes = {file: pinhole(folder / file) for file in files}
    reasons = dict.fromkeys(files, "camera file: not fx, fy, cx, cy or a camera matrix")
    camera_files = [file for file in files if pinholes[file] is not None]
    for file in camera_files:
        reasons[file] = "camera file: several cameras or image sizes, or no images"
    if len(camera_files) != 1 or len({*sizes}) != 1:
        return None, reasons
    fx, fy, cx, cy = pinholes[camera_files[0]] or (0, 0, 0, 0)
    [(height, width)] = {*sizes}
    if not (0 < cx < width and 0 < cy < height):
        reasons[camera_files[0]] = (
            f"camera file: its centre is outside of the {width}x{height} images"
        )
        return None, reasons
    del reasons[camera_files[0]]
    camera = {"fx": fx, "fy": fy, "cx": cx, "cy": cy, "width": width, "height": height}
    return camera, reasons


_NAME = re.compile(
    r"(?:(?:.*[_.\- ])?(?:K|intrinsics?|extrinsics?|calib\w*|cameras?)(?:[_.\- ].*|\d*))"
    r"\.(?:txt|csv|json|ya?ml|xml|ini)",
    re.IGNORECASE,
)
_MAX_BYTES = 1 << 20
_FIELDS = ("fx", "fy", "cx", "cy")


def is_camera_name(name: str) -> bool:
    """Return whether a file name is that of camera parameters: `K.txt`, `intrinsics.json`, …"""
    return bool(_NAME.fullmatch(name))


def pinhole(path: Path) -> tuple[float, float, float, float] | None:
    """Read fx, fy, cx, cy of a single camera; `None` for any other file.

    Text: four numbers, or a 3x3 or 4x4 camera matrix in rows or in one row. JSON: an object with
    `fx`, `fy`, `cx` and `cy`.
    """
    if "extrinsic" in path.name.lower():
        return None
    try:
        if path.suffix.lower() == ".json":
            content: Any = json.loads(read_bytes(path, _MAX_BYTES))
            values = [content[name] for name in _FIELDS] if isinstance(content, dict) else []
            numbers = np.array(values, np.float64)
        else:
            numbers = np.asarray(read_numbers(path).matrix())
    except (SourceError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    if numbers.size in (9, 16):
        side = int(numbers.size**0.5)
        try:
            camera = camera_of_matrix(numbers.reshape(side, side), (1, 1), path)
        except SourceError:  # skewed, or no camera
            return None
        numbers = np.array(camera.intrinsics)
    if numbers.shape != (4,) or not np.isfinite(numbers).all() or numbers[:2].min() <= 0:
        return None
    fx, fy, cx, cy = numbers.tolist()
    return fx, fy, cx, cy
