"""Byte ranges of HDF5 and Zarr rows, for references.

Requires unfiltered chunks of whole rows. Rows of missing chunks have the array's fill value and no
byte range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.images import SMALL_ARRAY
from seqrecord.formats.sources.common.originals import find_files
from seqrecord.formats.sources.common.specs import UnsupportedError
from seqrecord.in_place.files import is_directory, is_file, opened, size_of, unreadable
from seqrecord.in_place.references import MOST_COPIED, external_files, external_folders
from seqrecord.store.checksum import crc32c
from seqrecord.store.codecs.images import IMAGE
from seqrecord.store.format.references import ExternalFile, ReferencedFile
from seqrecord.store.schema import FeatureSpec

_FILTERED = "its chunks are compressed or filtered"
_PARTS = "its chunks contain only parts of frames"
_OTHERWISE = "its storage layout or number format is not supported"
_SHARD_INDEX = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
_NOT_THERE = 2**64 - 1  # missing chunk in a shard's index

_Rows = Iterator[ReferencedFile | npt.NDArray[Any]]


def hdf5_spec(spec: FeatureSpec, dataset: Any, path: Path) -> FeatureSpec:
    """Return the spec with the codec for referenced rows; small arrays are copied.

    Raises `UnsupportedError` for a large array whose rows are not byte ranges of the file.
    """
    from h5py import h5d, h5t

    plan, reason = dataset.id.get_create_plist(), ""
    if plan.get_nfilters():
        reason = _FILTERED
    elif dataset.chunks is not None and dataset.chunks[1:] != dataset.shape[1:]:
        reason = _PARTS
    elif (
        plan.get_layout() not in (h5d.CONTIGUOUS, h5d.CHUNKED)
        or dataset.file.userblock_size  # library versions disagree on offsets
        or not dataset.id.get_type().equal(h5t.py_create(dataset.dtype, logical=True))
    ):
        reason = _OTHERWISE
    return _with_codec(spec, dataset.dtype.byteorder == ">", reason, path)


def hdf5_rows(dataset: Any, path: Path, spec: FeatureSpec) -> _Rows:
    """Yield the byte range of each row, or the values of rows never written.

    If the file's chunk tree is damaged, HDF5 still lists chunks that reading does not find; their
    listed ranges are used. Raises `SourceError` for a row beyond the end of the file and for a
    chunk of another size.
    """
    nbytes, size = _row_bytes(dataset), size_of(path)
    begins: dict[int, int] = {}
    if dataset.chunks is None:
        length = len(dataset)
        if (offset := dataset.id.get_offset()) is not None:
            begins[0] = offset
    else:
        length = dataset.chunks[0]
        chunks: list[Any] = []
        dataset.id.chunk_iter(chunks.append)
        for chunk in chunks:
            if chunk.size != length * nbytes or any(chunk.chunk_offset[1:]):
                raise SourceError(
                    "a chunk has another size or position than the others",
                    file=str(path),
                    offset=chunk.byte_offset,
                    expected=f"{length * nbytes} bytes at its rows",
                    got=f"{chunk.size} bytes at {chunk.chunk_offset}",
                )
            begins[chunk.chunk_offset[0]] = chunk.byte_offset
    for row in range(len(dataset)):
        row_in_chunk = row % length
        begin = begins.get(row - row_in_chunk)
        if begin is None:
            yield np.asarray(dataset[row], spec.dtype)
        else:
            yield _row(path, begin + row_in_chunk * nbytes, nbytes, size)


def zarr_spec(spec: FeatureSpec, array: Any, path: Path) -> FeatureSpec:
    """Like `hdf5_spec`, for an array of the group at `path`."""
    is_big, reason = array.dtype.byteorder == ">", ""
    metadata, files = array.metadata, (array.shards or array.chunks)
    if is_file(path):
        reason = "it is inside a ZIP file"
    elif (array.chunks[1:], files[1:]) != (array.shape[1:], array.shape[1:]):
        reason = _PARTS
    elif metadata.zarr_format == 2:
        is_filtered = metadata.filters or metadata.compressor
        reason = _FILTERED if is_filtered else _OTHERWISE if metadata.order != "C" else ""
    else:
        from zarr.codecs import BytesCodec

        main_codec, *other_codecs = metadata.codecs
        if array.shards is not None:
            if [codec.to_dict() for codec in main_codec.index_codecs] != _SHARD_INDEX:
                reason = _OTHERWISE
            main_codec, *other_codecs = main_codec.codecs
        if other_codecs or not isinstance(main_codec, BytesCodec):
            reason = _FILTERED
        else:
            is_big = getattr(main_codec.endian, "value", "little") == "big"
    return _with_codec(spec, is_big, reason, path)


def zarr_rows(array: Any, folder: Path, row_range: range, spec: FeatureSpec) -> _Rows:
    """Yield byte ranges for the rows `row_range` of an array in `folder`, or values if missing.

    Raises `SourceError` for a chunk or shard index that differs from its declaration.
    """
    nbytes, length, are_files = _row_bytes(array), array.chunks[0], _are_whole_files(array)
    for number, rows in groupby(row_range, lambda row: row // _rows_of_file(array)):
        path = folder / array.metadata.encode_chunk_key((number, *[0] * (array.ndim - 1)))
        begins, size = _begins(array, path)
        for row in rows:
            row_in_file = row % _rows_of_file(array)
            begin = begins[row_in_file // length]
            if begin is None:
                yield np.asarray(array[row], spec.dtype)
            elif are_files:
                yield ReferencedFile(str(path))
            else:
                yield _row(path, begin + row_in_file % length * nbytes, nbytes, size)


def zarr_files(root: Path, array: Any, folder: Path) -> dict[str, ExternalFile]:
    """Return the files with an array's rows, or their folder; see `external_files`."""
    if _are_whole_files(array):
        return external_folders(root, filter(is_directory, [folder]))
    return external_files(root, find_files(folder, lambda _: True))


def check_stored_alike(array_spec: FeatureSpec, spec: FeatureSpec) -> None:
    """Raise `SourceError` if an array's codec differs from the first array's."""
    if spec.codec != array_spec.codec:
        raise SourceError(
            "the array is stored differently from the first one, so it cannot be read "
            "in place; pack it with `seqrecord write --src`",
            expected=spec.codec[0]["format"],
            got=array_spec.codec[0]["format"] if array_spec.codec else "chunks of another kind",
        )


def _with_codec(spec: FeatureSpec, is_big: bool, reason: str, path: Path) -> FeatureSpec:
    if spec.nbytes < SMALL_ARRAY or (reason and spec.nbytes <= MOST_COPIED):
        return spec
    if reason:
        raise UnsupportedError(
            f"cannot read the array in place: {reason}; pack it with "
            "`seqrecord write --src`, or exclude the feature (--features)",
            file=str(path),
            feature=spec.name,
        )
    return replace(spec, codec=({"id": IMAGE, "format": "raw_big_endian" if is_big else "raw"},))


def _row_bytes(array: Any) -> int:
    nbytes: int = array.dtype.itemsize * math.prod(array.shape[1:])
    return nbytes


def _row(path: Path, start: int, nbytes: int, size: int) -> ReferencedFile:
    if not 0 <= start <= size - nbytes:
        raise SourceError(
            "a chunk is beyond the end of its file",
            file=str(path),
            offset=start,
            expected=f"at most {size}",
            got=start + nbytes,
        )
    return ReferencedFile(str(path), start, start + nbytes)


def _rows_of_file(array: Any) -> int:
    rows: int = (array.shards or array.chunks)[0]
    return rows


def _are_whole_files(array: Any) -> bool:
    """Return whether each row is a file, all in one folder."""
    is_plain = array.shards is None and _rows_of_file(array) == 1
    return is_plain and "/" not in array.metadata.encode_chunk_key((0,) * array.ndim)


def _begins(array: Any, path: Path) -> tuple[list[int | None], int]:
    """Return the offset of each chunk in a file, `None` for missing ones, and the file's size."""
    chunk = array.dtype.itemsize * math.prod(array.chunks)
    count = _rows_of_file(array) // array.chunks[0]
    try:
        size = size_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return [None] * count, 0
    except OSError as error:
        raise unreadable(path, error) from error
    if array.shards is None:
        ranges = [[0, size]]
    else:  # https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/
        is_first = array.metadata.codecs[0].index_location.value == "start"
        with opened(path) as stream:
            stream.seek(0 if is_first else max(0, size - 16 * count - 4))
            index = stream.read(16 * count + 4)
        stored_crc = int.from_bytes(index[-4:], "little")
        if len(index) != 16 * count + 4 or crc32c(index[:-4]) != stored_crc:
            raise SourceError("truncated or damaged shard index", file=str(path))
        ranges = np.frombuffer(index[:-4], "<u8").reshape(-1, 2).tolist()
    begins: list[int | None] = []
    for begin, nbytes in ranges:
        is_there = (begin, nbytes) != (_NOT_THERE, _NOT_THERE)
        if is_there and nbytes != chunk:
            raise SourceError(
                "a chunk's size differs from the array's declaration",
                file=str(path),
                expected=f"{chunk} bytes",
                got=f"{nbytes} bytes",
            )
        begins.append(begin if is_there else None)
    return begins, size
