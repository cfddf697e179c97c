"""How frames are to be stored: features with codecs and groups, and sizes that can be asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from seqrecord.codecs import check_codec, image_chain, probe, resolve
from seqrecord.codecs.images import FILES
from seqrecord.errors import CodecError, DestinationError, FrameError, SchemaError
from seqrecord.feature_kinds import same_unit
from seqrecord.format.rows import MAX_CHUNK_FRAMES
from seqrecord.schema import CodecConfig, EncodedImage, FeatureSpec, Frame, Schema
from seqrecord.text import repr_of
from seqrecord.units import is_integer, parse_size
from seqrecord.writing.chunking import is_small
from seqrecord.writing.values import plain

DEFAULT_CODEC = "balanced"
DEFAULT_MAX_FILE_SIZE = 1 << 30

Codecs: TypeAlias = "str | Mapping[str, str | Sequence[CodecConfig]]"
"""A codec's name for all features, or by feature name one or a chain of codec configurations."""


Described: TypeAlias = "Mapping[str, Mapping[str, str | int | Sequence[int | None] | None]]"
"""What is said of features beside their frames, by name: `kind`, `unit`, `group` and `shape`."""

_SAID = ("kind", "unit", "group", "shape")


def apply_codecs(schema: Schema, codecs: Codecs | None) -> Schema:
    """The schema with the codecs that a writer was asked for, see `SeqRecordWriter`.

    Features that keep encoded images or video stay as they are unless they are named. Text that
    nothing is said of, or but a preset other than `small`, is not compressed: most of it is short.
    """
    named = {} if codecs is None or isinstance(codecs, str) else dict(codecs)
    _check_names("a codec for a feature that is not there", named, schema)
    default = codecs if isinstance(codecs, str) else DEFAULT_CODEC

    def chain(spec: FeatureSpec) -> tuple[CodecConfig, ...]:
        codec = named.get(spec.name, default)
        if spec.value == "text" and codec in ("fast", "balanced"):
            codec = "raw"
        return resolve(codec, spec.dtype, spec.shape, feature=spec.name)

    return schema.with_codecs(
        {
            spec.name: chain(spec)
            for spec in schema.values()
            if spec.name in named
            or not spec.codec
            or (isinstance(codecs, str) and not _is_encoded(spec))
        }
    )


def stored_schema(
    schema: Schema,
    codecs: Codecs | None,
    stored: Schema | None,
    described: Described | None = None,
) -> Schema:
    """The schema to write under: that of the dataset, where there is one, else with its codecs.

    Groups are those of `described` where it names one, or of `schema` where that has several; else
    all small features are one group and all others one, see `is_small`.

    The order of features, and a kind or unit of `schema` that the dataset does not say, do not
    count. Raises `SchemaError` where the dataset has other features, or other codecs, kinds, units
    or groups than asked for.
    """
    asked = _fresh(schema, described or {})
    is_grouped = asked.num_groups > 1 or any("group" in said for said in (described or {}).values())
    if stored is None:
        grouped = _grouped(apply_codecs(asked, codecs), by_size=not is_grouped)
        grouped.check_groups()
        return grouped
    there = stored.active
    if set(map(str, asked.values())) != set(map(str, there.values())):
        raise SchemaError("the dataset has other features", expected=there, got=asked)
    asked = asked.select(list(there))
    for spec, known in zip(asked.values(), there.values(), strict=True):
        told = (described or {}).get(spec.name, {})
        for what in ("kind", "unit"):
            wanted, said = getattr(spec, what), getattr(known, what)
            if what == "unit" and wanted and said and same_unit(wanted, said):
                continue
            if wanted not in (None, said) and (said is not None or what in told):
                keeping = f"{what}s={{{spec.name!r}: {said!r}}}"
                raise SchemaError(
                    f"the dataset has another {what}; leave it out to keep that, or pass {keeping} "
                    f"to convert (--{what} {spec.name}={said or ''}); `seqrecord edit describe` "
                    "changes the dataset",
                    feature=spec.name,
                    expected=said,
                    got=wanted,
                )
    groups = [spec.group for spec in _grouped(there, by_size=False).values()]
    given = [spec.group for spec in _grouped(asked, by_size=False).values()]
    if is_grouped and groups != given:
        raise SchemaError(
            "the dataset has other groups of features; leave them out to keep its own",
            expected=groups,
            got=given,
        )
    if codecs is not None:
        chains = [spec.codec for spec in apply_codecs(asked, codecs).values()]
        if chains != [spec.codec for spec in there.values()]:
            raise SchemaError("the dataset has other codecs; leave them out to keep its own")
    return stored


def is_passthrough(spec: FeatureSpec, stored: FeatureSpec) -> bool:
    """Whether a feature is passed on as it is encoded to one that is `stored` so: images and video
    are, of one codec, however well each is encoded."""

    def decoding(codec: Sequence[CodecConfig]) -> list[dict[str, Any]]:
        return [{k: v for k, v in each.items() if k not in ("quality", "gop")} for each in codec]

    return _is_encoded(spec) and decoding(spec.codec) == decoding(stored.codec)


def has_same_pages(spec: FeatureSpec, stored: FeatureSpec) -> bool:
    """Whether pages of a feature are also pages of one that is `stored` so."""
    values = (spec.dtype, spec.shape, spec.value) == (stored.dtype, stored.shape, stored.value)
    return values and (spec.codec == stored.codec or is_passthrough(spec, stored))


def check_passthrough(schema: Schema, stored: Schema) -> None:
    """`SchemaError` where a source of this schema keeps video that would be stored under another
    codec: its packets are not re-encoded."""
    for spec in schema.values():
        found = stored[spec.name]
        if spec.is_video and not is_passthrough(spec, found):
            raise SchemaError(
                "the source keeps video as it is, which is of another codec",
                feature=spec.name,
                expected=f"no codec for it, or one that is {spec.codec[0]}; to encode it anew, "
                "convert the dataset that is made without one",
                got=found.codec[0] if found.codec else "raw",
            )


def check_codecs(codecs: Codecs | None) -> None:
    """`SchemaError` for what no schema can have; whether it has the features is asked later."""
    if codecs is None:
        return
    if isinstance(codecs, str):
        check_codec(codecs)
        return
    if not _is_by_name(codecs):
        raise SchemaError(
            "codecs are not what they should be",
            expected="a codec's name, or a dict of codecs by feature",
            got=repr_of(codecs, 100),
        )
    for name, codec in codecs.items():
        check_codec(codec, feature=name)


def check_described(described: Described | None) -> None:
    """`SchemaError` for what is never said of features; whether they are there is asked later."""
    if described is None:
        return
    if not _is_by_name(described):
        raise SchemaError(
            "features are not what they should be",
            expected='what is said of features by name, as {"depth": {"unit": "m"}}',
            got=repr_of(described, 100),
        )
    said: Any  # a user may give anything
    for name, said in described.items():
        if not (isinstance(said, Mapping) and set(said) <= set(_SAID)):
            raise SchemaError(
                "not what can be said of a feature",
                feature=name,
                expected=f"a dict of {', '.join(_SAID)}",
                got=repr_of(said),
            )


def _is_by_name(named: object) -> bool:
    return isinstance(named, Mapping) and all(isinstance(name, str) for name in named)


def _fresh(schema: Schema, described: Described) -> Schema:
    """The features with what is said of them, as if they were in no dataset yet."""
    if any(spec.is_dropped for spec in schema.values()):
        raise SchemaError("not a feature name: it stands for one that was dropped", got=schema)
    _check_names("a feature is described that is not there", described, schema)
    changes: Mapping[str, Any] = described
    specs = [replace(s, added=None, **changes.get(s.name, {})) for s in schema.values()]
    return Schema(specs)


def check_fps(fps: float | None) -> float | None:
    """The frames a second, as they are stored. `SchemaError` for what is none."""
    if fps is None:
        return None
    if isinstance(fps, bool) or not isinstance(fps, (int, float, np.integer, np.floating)):
        raise SchemaError("fps is not a number", expected="a number above 0", got=repr_of(fps, 50))
    try:
        number = float(fps)
    except OverflowError:  # of an integer
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise SchemaError("not a number of frames a second", expected="above 0", got=number)
    return number


def check_sizes(chunk_frames: int | None, max_file_size: int | str) -> int:
    """The bytes of a record file; `SchemaError` or `DestinationError` for sizes that none has."""
    if chunk_frames is not None and not (
        is_integer(chunk_frames) and 1 <= chunk_frames <= MAX_CHUNK_FRAMES
    ):
        raise SchemaError(
            "not a number of frames a chunk",
            expected=f"1 to {MAX_CHUNK_FRAMES}",
            got=repr_of(chunk_frames, 50),
        )
    try:
        size = parse_size(max_file_size)
    except ValueError as error:
        raise DestinationError(f"max_file_size: {error}", got=repr_of(max_file_size, 100)) from None
    if size < 1:
        raise DestinationError(
            "not a size of record files", expected="1 or more", got=max_file_size
        )
    return size


def infer_schema(frames: Sequence[Frame], described: Described | None = None) -> Schema:
    """Features in the order in which they appear, each as its first value is, or as described."""
    specs: dict[str, FeatureSpec] = {}
    for frame in frames:
        for name, item in frame.items():
            if name not in specs:
                specs[name] = _inferred(name, item)
    return _fresh(Schema(list(specs.values())), described or {})


def _inferred(name: str, item: Any) -> FeatureSpec:
    if isinstance(item, str):
        return FeatureSpec(name, np.dtype("u1"), (None,), value="text")
    if isinstance(item, (bytes, bytearray, memoryview)):
        return FeatureSpec(name, np.dtype("u1"), (None,), value="bytes")
    if isinstance(item, EncodedImage):
        try:
            chain, header = image_chain(item.data), probe(item.data)
        except CodecError as error:
            raise FrameError(error.message, feature=name, got=error.got) from error
        return FeatureSpec(name, header.dtype, header.shape, chain)
    array = np.asarray(plain(item, name))
    return FeatureSpec(name, array.dtype, array.shape)


def _grouped(schema: Schema, *, by_size: bool) -> Schema:
    """The features with the numbers of their groups, in the order of their first features.

    Video has a group of its own.
    """
    keys: list[object] = [is_small(s) if by_size else s.group for s in schema.values()]
    if by_size:
        keys = [s.name if s.is_video else key for s, key in zip(schema.values(), keys, strict=True)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return Schema(
        [replace(spec, group=numbers[key]) for spec, key in zip(schema.values(), keys, strict=True)]
    )


def _check_names(message: str, named: Mapping[str, object], schema: Schema) -> None:
    if unknown := [name for name in named if name not in schema]:
        raise SchemaError(message, expected=f"some of {', '.join(schema)}", got=", ".join(unknown))


def _is_encoded(spec: FeatureSpec) -> bool:
    """Whether frames are files of images, or video, as their codec has encoded them."""
    return spec.is_video or any(config.get("format") in FILES for config in spec.codec)
