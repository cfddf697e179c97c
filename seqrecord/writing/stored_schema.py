"""How frames are to be stored: features with their codecs, and sizes that can be asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from seqrecord.codecs import image_chain, probe, resolve
from seqrecord.errors import DestinationError, SchemaError
from seqrecord.format.rows import MAX_CHUNK_FRAMES
from seqrecord.schema import CodecConfig, EncodedImage, FeatureSpec, Frame, Schema
from seqrecord.units import parse_size

__all__ = [
    "DEFAULT_CODEC",
    "DEFAULT_RECORD_BYTES",
    "Codecs",
    "apply_codecs",
    "check_sizes",
    "infer_schema",
    "stored_schema",
]

DEFAULT_CODEC = "balanced"
DEFAULT_RECORD_BYTES = 1 << 30

Codecs: TypeAlias = "str | Mapping[str, str | Sequence[CodecConfig]]"
"""A codec's name for all features, or by feature name one or a chain of codec configurations."""


def apply_codecs(schema: Schema, codecs: Codecs | None) -> Schema:
    """The schema with the codecs that a writer was asked for, see `SeqRecordWriter`.

    Features that keep encoded images stay as they are unless they are named.
    """
    named = {} if codecs is None or isinstance(codecs, str) else dict(codecs)
    if unknown := [name for name in named if name not in schema]:
        raise SchemaError(
            "a codec for a feature that is not there",
            expected=f"some of {', '.join(schema)}",
            got=", ".join(unknown),
        )
    default = codecs if isinstance(codecs, str) else DEFAULT_CODEC
    return schema.with_codecs(
        {
            spec.name: resolve(
                named.get(spec.name, default), spec.dtype, spec.shape, feature=spec.name
            )
            for spec in schema.values()
            if spec.name in named or not spec.codec or (isinstance(codecs, str) and not _kept(spec))
        }
    )


def stored_schema(schema: Schema, codecs: Codecs | None, stored: Schema | None) -> Schema:
    """The schema to write under: that of the dataset, where there is one, else with its codecs.

    Raises `SchemaError` where the dataset has other features, or other codecs than asked for.
    """
    if stored is None:
        return apply_codecs(schema, codecs)
    if [str(spec) for spec in schema.values()] != [str(spec) for spec in stored.values()]:
        raise SchemaError("the dataset has other features", expected=stored, got=schema)
    if codecs is not None and apply_codecs(schema, codecs).to_json() != stored.to_json():
        raise SchemaError("the dataset has other codecs; leave them out to keep its own")
    return stored


def check_sizes(chunk_frames: int | None, record_bytes: int | str) -> int:
    """The bytes of a record file; `SchemaError` or `DestinationError` for sizes that none has."""
    if chunk_frames is not None and not 1 <= chunk_frames <= MAX_CHUNK_FRAMES:
        raise SchemaError(
            "not a number of frames a chunk", expected=f"1 to {MAX_CHUNK_FRAMES}", got=chunk_frames
        )
    try:
        size = parse_size(record_bytes)
    except ValueError as error:
        raise DestinationError(f"record_bytes: {error}", got=repr(record_bytes)[:100]) from None
    if size < 1:
        raise DestinationError("not a size of record files", expected="1 or more", got=record_bytes)
    return size


def infer_schema(frames: Sequence[Frame]) -> Schema:
    """Features in the order in which they appear; dimensions that differ between frames vary."""
    specs: dict[str, FeatureSpec] = {}
    for frame in frames:
        for name, item in frame.items():
            codec: tuple[CodecConfig, ...] = ()
            if isinstance(item, EncodedImage):
                codec = image_chain(item.data)
                header = probe(item.data)
                dtype, shape = header.dtype, header.shape
            else:
                array = np.asarray(item)
                dtype, shape = array.dtype, array.shape
            known = specs.get(name)
            if known is None:
                specs[name] = FeatureSpec(name, dtype, shape, codec)
            elif len(known.shape) == len(shape) and not known.accepts(shape):
                merged = tuple(
                    a if a == b else None for a, b in zip(known.shape, shape, strict=True)
                )
                specs[name] = replace(known, shape=merged)
    return Schema(list(specs.values()))


def _kept(spec: FeatureSpec) -> bool:
    return spec.codec[0].get("id") == "seqrecord.image"
