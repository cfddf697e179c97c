"""PNG and JPEG images that lie inside another file: a bag, a parquet table, a record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from seqrecord.codecs.images import SIGNATURES
from seqrecord.errors import SourceError
from seqrecord.schema import EncodedImage, FeatureSpec
from seqrecord.sources.images import decode_image, encoded_header, kept_codec
from seqrecord.sources.specs import feature_spec

__all__ = ["embedded_format", "embedded_spec", "embedded_value"]


def embedded_spec(name: str, data: bytes, path: Path, *, keep_encoded: bool) -> FeatureSpec:
    """The feature of images like this one: its dtype and shape, [H, W] or [H, W, C].

    With `keep_encoded` RGB images of 8 bits get the codec that keeps them. Raises `SourceError`
    that names `path` for what is neither a PNG nor a JPEG.
    """
    header = encoded_header(data, path, embedded_format(data, path))
    codec = kept_codec(header) if keep_encoded else ()
    return feature_spec(name, header.dtype, header.shape, path, codec=codec, kind="image")


def embedded_value(data: bytes, spec: FeatureSpec, path: Path) -> npt.NDArray[Any] | EncodedImage:
    """An image as a frame of `spec`, decoded to be checked even where it stays encoded."""
    found = embedded_format(data, path)
    array = decode_image(data, path, format=found)
    if array.dtype.newbyteorder("<") != spec.dtype or not spec.accepts(array.shape):
        raise SourceError(
            "an image that differs from the first one",
            file=str(path),
            feature=spec.name,
            expected=str(spec),
            got=f"{array.dtype.name} {list(array.shape)}",
        )
    if not spec.codec:
        return array
    if found != spec.codec[0]["format"]:
        raise SourceError(
            "an image of another format than the one kept",
            file=str(path),
            feature=spec.name,
            expected=spec.codec[0]["format"],
            got=found,
        )
    return EncodedImage(bytes(data))


def embedded_format(data: bytes, path: Path) -> str:
    """`png` or `jpeg`; raises `SourceError` that names `path` for anything else."""
    for signature, name in SIGNATURES.items():
        if data[: len(signature)] == signature:
            return name
    raise SourceError("neither a PNG nor a JPEG image", file=str(path), got=repr(bytes(data[:8])))
