"""Values inside container files: images in bags, tables and records, rows in HDF5 and Zarr."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt

from seqrecord.errors import SourceError
from seqrecord.formats.sources.common.images import (
    UnsupportedImageError,
    decode_image,
    encoded_header,
    image_format,
    passthrough_codec,
)
from seqrecord.formats.sources.common.orientation import shape_of
from seqrecord.formats.sources.common.palettes import Palettes, form_of
from seqrecord.formats.sources.common.specs import (
    UnsupportedError,
    check_like_first,
    feature_spec,
)
from seqrecord.in_place.files import first_line
from seqrecord.in_place.limits import check_size
from seqrecord.store.feature_kinds import pixel_kind
from seqrecord.store.schema import MAX_FRAME_BYTES, EncodedImage, FeatureSpec

_BLOCK_BYTES = 8 << 20  # read at once, unless a chunk is larger
_CHUNK_BYTES = 64 << 20  # larger chunks are read in pieces


def embedded_spec(
    name: str,
    data: bytes,
    path: Path,
    *,
    keep_encoded: bool,
    endings: Collection[str] = (),
    exif: str | None = None,
    palettes: Palettes,
) -> FeatureSpec:
    """Return the feature spec of images like this one: dtype and [H, W] or [H, W, C].

    A palette is recorded in `palettes`.

    With `keep_encoded`, 8-bit RGB images get the codec that keeps them, and images of the other
    `endings`, encoded. Raises `SourceError` with `path` for damaged data, and `UnsupportedError`
    for images without a reader: of other formats than `EMBEDDED_FORMATS`, or in CMYK.
    """
    try:
        header = form_of(encoded_header(data, path), name, None, path, palettes)
    except UnsupportedImageError as error:
        raise UnsupportedError(error.message, **{**error.context(), "feature": name}) from error
    codec = passthrough_codec(header, endings, exif=exif) if keep_encoded else ()
    shape = shape_of(header, exif, is_kept=bool(codec))
    kind = pixel_kind(name, header.dtype, shape) or (None if palettes.get(name) else "image")
    return feature_spec(name, header.dtype, shape, path, codec=codec, kind=kind)


def embedded_value(
    data: bytes, spec: FeatureSpec, path: Path, exif: str | None = None
) -> npt.NDArray[Any] | EncodedImage:
    """Return an image as a value of `spec`. Encoded images are decoded to check them."""
    array = decode_image(data, path, spec, exif=exif)
    check_like_first("the image", array.dtype.newbyteorder("<"), array.shape, spec, path)
    if not spec.codec:
        return array
    kept_format = spec.codec[0]["format"]
    if (actual_format := image_format(data, path)) != kept_format != "any":
        raise SourceError(
            "the image format differs from the feature's",
            file=str(path),
            feature=spec.name,
            expected=kept_format,
            got=actual_format,
        )
    return EncodedImage(bytes(data))


def read_rows(array: Any, path: Path, start: int, stop: int) -> Iterator[Any]:
    """Yield rows `start` to `stop` (exclusive) of an h5py or zarr array, each chunk read once.

    `array.chunks` is `None` if the values are contiguous. Raises `SourceError` for unreadable data.
    """
    row_bytes = max(1, array.dtype.itemsize * math.prod(array.shape[1:]))
    # Checked before allocation.
    check_size(f"rows of {array.name}", row_bytes, MAX_FRAME_BYTES, file=str(path))
    block = max(1, _BLOCK_BYTES // row_bytes)
    if array.chunks is not None:
        chunk = int(array.chunks[0])
        block = block - block % chunk or min(chunk, max(1, _CHUNK_BYTES // row_bytes))
    block_start = start
    while block_start < stop:
        block_stop = min(block_start - block_start % block + block, stop)
        try:
            rows = array[block_start:block_stop]
        except Exception as error:  # the libraries and their codecs raise many types
            raise SourceError(
                f"cannot read {array.name}[{block_start}:{block_stop}]",
                file=str(path),
                got=first_line(error),
            ) from error
        yield from rows
        block_start = block_stop
