"""Rows of HDF5 and Zarr arrays that are ranges of files: those of chunks that hold whole rows and
have no filter. A row of a chunk that is not there is the array's fill value, and lies nowhere."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqrecord.checksum import crc32c
from seqrecord.codecs.images import IMAGE
from seqrecord.errors import SourceError
from seqrecord.format.references import ExternalFile, ReferencedFile
from seqrecord.schema import FeatureSpec
from seqrecord.sources.common.files import is_directory, is_file, opened, size_of, unreadable
from seqrecord.sources.common.images import SMALL_ARRAY
from seqrecord.sources.common.originals import find_files
from seqrecord.sources.common.references import MOST_COPIED, external_files, external_folders

_FILTERED = "its chunks are compressed, or went through another filter"
_PARTS = "its chunks do not hold whole frames"
_OTHERWISE = "its numbers are stored in another way than they are read, or behind a user block"
_SHARD_INDEX = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
_NOT_THERE = 2**64 - 1  # in the index of a shard

_Rows = Iterator[ReferencedFile | npt.NDArray[Any]]


def hdf5_spec(spec: FeatureSpec, dataset: Any, path: Path) -> FeatureSpec:
    """The feature, with the codec of rows that stay where they are; small ones are copied.

    Raises `SourceError` for a large array whose rows are no ranges of the file.
    """
    from h5py import h5d, h5t

    plan, why = dataset.id.get_create_plist(), ""
    if plan.get_nfilters():
        why = _FILTERED
    elif dataset.chunks is not None and dataset.chunks[1:] != dataset.shape[1:]:
        why = _PARTS
    elif (
        plan.get_layout() not in (h5d.CONTIGUOUS, h5d.CHUNKED)
        or dataset.file.userblock_size  # from which not all versions count places
        or not dataset.id.get_type().equal(h5t.py_create(dataset.dtype, logical=True))
    ):
        why = _OTHERWISE
    return _with_codec(spec, dataset.dtype.byteorder == ">", why, path)


def hdf5_rows(dataset: Any, path: Path, spec: FeatureSpec) -> _Rows:
    """Where the rows lie; the values of those that were never written.

    In a file with a damaged tree of chunks, HDF5 lists chunks that it does not find when it reads:
    these are where they were. Raises `SourceError` for a row behind the end of the file, and for a
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
        found: list[Any] = []
        dataset.id.chunk_iter(found.append)
        for chunk in found:
            if chunk.size != length * nbytes or any(chunk.chunk_offset[1:]):
                raise SourceError(
                    "a chunk of another size or place than others",
                    file=str(path),
                    offset=chunk.byte_offset,
                    expected=f"{length * nbytes} bytes at its rows",
                    got=f"{chunk.size} bytes at {chunk.chunk_offset}",
                )
            begins[chunk.chunk_offset[0]] = chunk.byte_offset
    for row in range(len(dataset)):
        inside = row % length
        begin = begins.get(row - inside)
        if begin is None:
            yield np.asarray(dataset[row], spec.dtype)
        else:
            yield _row(path, begin + inside * nbytes, nbytes, size)


def zarr_spec(spec: FeatureSpec, array: Any, path: Path) -> FeatureSpec:
    """As `hdf5_spec`, of an array of the group at `path`."""
    is_big, why = array.dtype.byteorder == ">", ""
    metadata, files = array.metadata, (array.shards or array.chunks)
    if is_file(path):
        why = "it lies in a ZIP file"
    elif (array.chunks[1:], files[1:]) != (array.shape[1:], array.shape[1:]):
        why = _PARTS
    elif metadata.zarr_format == 2:
        is_filtered = metadata.filters or metadata.compressor
        why = _FILTERED if is_filtered else _OTHERWISE if metadata.order != "C" else ""
    else:
        from zarr.codecs import BytesCodec

        first, *others = metadata.codecs
        if array.shards is not None:
            if [codec.to_dict() for codec in first.index_codecs] != _SHARD_INDEX:
                why = _OTHERWISE
            first, *others = first.codecs
        if others or not isinstance(first, BytesCodec):
            why = _FILTERED
        else:
            is_big = getattr(first.endian, "value", "little") == "big"
    return _with_codec(spec, is_big, why, path)


def zarr_rows(array: Any, folder: Path, wanted: range, spec: FeatureSpec) -> _Rows:
    """Where these rows lie of an array in `folder`; the values of those of chunks that are not
    there.

    Raises `SourceError` for a chunk, or the index of a shard, that is not as declared.
    """
    nbytes, length, are_files = _row_bytes(array), array.chunks[0], _are_whole_files(array)
    for number, rows in groupby(wanted, lambda row: row // _rows_of_file(array)):
        path = folder / array.metadata.encode_chunk_key((number, *[0] * (array.ndim - 1)))
        begins, size = _begins(array, path)
        for row in rows:
            inside = row % _rows_of_file(array)
            begin = begins[inside // length]
            if begin is None:
                yield np.asarray(array[row], spec.dtype)
            elif are_files:
                yield ReferencedFile(str(path))
            else:
                yield _row(path, begin + inside % length * nbytes, nbytes, size)


def zarr_files(root: Path, array: Any, folder: Path) -> dict[str, ExternalFile]:
    """The files in which rows of an array lie, or their folder, see `external_files`."""
    if _are_whole_files(array):
        return external_folders(root, filter(is_directory, [folder]))
    return external_files(root, find_files(folder, lambda _: True))


def check_stored_alike(found: FeatureSpec, spec: FeatureSpec) -> None:
    """Raises `SourceError` for an array of whose rows the first one's codec does not tell."""
    if spec.codec != found.codec:
        raise SourceError(
            "an array that is stored in another way than the first one, so that it cannot be read "
            "in place; make a dataset of it with `seqrecord write --src`",
            expected=spec.codec[0]["format"],
            got=found.codec[0]["format"] if found.codec else "chunks of another kind",
        )


def _with_codec(spec: FeatureSpec, is_big: bool, why: str, path: Path) -> FeatureSpec:
    if spec.nbytes < SMALL_ARRAY or (why and spec.nbytes <= MOST_COPIED):
        return spec
    if why:
        raise SourceError(
            f"an array that cannot be read in place, for {why}; make a dataset of it with "
            "`seqrecord write --src`, or choose other features (--features)",
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
            "a chunk behind the end of its file",
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
    """Whether each row is a file, all in one folder."""
    is_plain = array.shards is None and _rows_of_file(array) == 1
    return is_plain and "/" not in array.metadata.encode_chunk_key((0,) * array.ndim)


def _begins(array: Any, path: Path) -> tuple[list[int | None], int]:
    """Where in a file its chunks begin, `None` for one that is not there; and the file's size."""
    chunk = array.dtype.itemsize * math.prod(array.chunks)
    count = _rows_of_file(array) // array.chunks[0]
    try:
        size = size_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return [None] * count, 0
    except OSError as error:
        raise unreadable(path, error) from error
    if array.shards is None:
        found = [[0, size]]
    else:  # https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/
        is_first = array.metadata.codecs[0].index_location.value == "start"
        with opened(path) as stream:
            stream.seek(0 if is_first else max(0, size - 16 * count - 4))
            index = stream.read(16 * count + 4)
        stored = int.from_bytes(index[-4:], "little")
        if len(index) != 16 * count + 4 or crc32c(index[:-4]) != stored:
            raise SourceError("a shard whose index is cut or damaged", file=str(path))
        found = np.frombuffer(index[:-4], "<u8").reshape(-1, 2).tolist()
    begins: list[int | None] = []
    for begin, nbytes in found:
        is_there = (begin, nbytes) != (_NOT_THERE, _NOT_THERE)
        if is_there and nbytes != chunk:
            raise SourceError(
                "a chunk of another size than its array declares",
                file=str(path),
                expected=f"{chunk} bytes",
                got=f"{nbytes} bytes",
            )
        begins.append(begin if is_there else None)
    return begins, size
