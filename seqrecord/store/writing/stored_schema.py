"""How features are stored: codecs, groups, kinds and units; checks of size arguments."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np

from seqrecord.errors import CodecError, DestinationError, FrameError, SchemaError
from seqrecord.store.codecs.chain import check_codec, image_chain, resolve
from seqrecord.store.codecs.images import probe
from seqrecord.store.feature_kinds import check_depth, differences
from seqrecord.store.format.page_kinds import MAX_CHUNK_FRAMES, check_shared_groups, page_kind
from seqrecord.store.schema import CodecConfig, EncodedImage, FeatureSpec, Frame, Schema
from seqrecord.store.text import repr_of
from seqrecord.store.units import is_integer, parse_size
from seqrecord.store.value_kinds import object_kind
from seqrecord.store.writing.chunking import is_small
from seqrecord.store.writing.values import plain

DEFAULT_CODEC = "balanced"

Codecs: TypeAlias = "str | Mapping[str, str | Sequence[CodecConfig]]"
"""A codec name for all features, or by feature a name or a chain of codec configurations."""


FeatureInfo: TypeAlias = "Mapping[str, Mapping[str, str | int | Sequence[int | None] | None]]"
"""Properties of features by name: `kind`, `unit`, `group` and `shape`."""

_PROPERTIES = ("kind", "unit", "group", "shape")


def apply_codecs(schema: Schema, codecs: Codecs | None) -> Schema:
    """The schema with the codecs of a writer's argument, see `SeqRecordWriter`.

    Features that keep encoded images or video are unchanged unless they are named. Text is stored
    raw if its codec is `fast` or `balanced`, also by default: most texts are short.
    """
    codecs_by_name = {} if codecs is None or isinstance(codecs, str) else dict(codecs)
    _check_names("codec for an unknown feature", codecs_by_name, schema)
    default = codecs if isinstance(codecs, str) else DEFAULT_CODEC

    def chain(spec: FeatureSpec) -> tuple[CodecConfig, ...]:
        codec = codecs_by_name.get(spec.name, default)
        if spec.value_kind.are_short and codec in ("fast", "balanced"):
            codec = "raw"
        return resolve(codec, spec.dtype, spec.shape, feature=spec.name)

    return schema.with_codecs(
        {
            spec.name: chain(spec)
            for spec in schema.values()
            if spec.name in codecs_by_name
            or not spec.codec
            or (isinstance(codecs, str) and not _is_encoded(spec))
        }
    )


def stored_schema(
    schema: Schema,
    codecs: Codecs | None,
    dataset_schema: Schema | None,
    descriptions: FeatureInfo | None = None,
) -> Schema:
    """The schema to write: the existing `dataset_schema`, or else `schema` with codecs and
    groups.

    Groups come from `descriptions` if it has any, or from `schema` if it has several; otherwise all
    small features are one group, and all others another, see `is_small`.

    The order of features, and a kind or unit that the dataset lacks, may differ from
    `dataset_schema`. Raises `SchemaError` if the existing dataset has other features, codecs,
    kinds, units or groups than the arguments.
    """
    descriptions = descriptions or {}
    requested = _new_schema(schema, descriptions)
    is_grouped = requested.num_groups > 1 or "group" in set[str]().union(*descriptions.values())
    if dataset_schema is None:
        grouped = _number_groups(apply_codecs(requested, codecs), by_size=not is_grouped)
        grouped.check_groups()
        check_shared_groups(grouped)
        return grouped
    existing = dataset_schema.active
    if set(map(str, requested.values())) != set(map(str, existing.values())):
        raise SchemaError("dataset has other features", expected=existing, got=requested)
    requested = requested.select(list(existing))
    for spec, dataset_spec in zip(requested.values(), existing.values(), strict=True):
        explicit = descriptions.get(spec.name, {})
        for name, contradict in differences(spec, dataset_spec).items():
            new, old = getattr(spec, name), getattr(dataset_spec, name)
            if new is not None and (contradict or name in explicit):
                keeping = f"{name}s={{{spec.name!r}: {old!r}}}"
                raise SchemaError(
                    f"dataset has another {name}; leave it out to keep that, or pass {keeping} to "
                    f"convert (--{name} {spec.name}={old or ''}); `seqrecord edit describe` "
                    "changes the dataset",
                    feature=spec.name,
                    expected=old,
                    got=new,
                )
    group_of = attrgetter("group")
    groups = [*map(group_of, _number_groups(existing, by_size=False).values())]
    new_groups = [*map(group_of, _number_groups(requested, by_size=False).values())]
    if is_grouped and groups != new_groups:
        raise SchemaError(
            "dataset has other groups of features; leave them out to keep its own",
            expected=groups,
            got=new_groups,
        )
    if codecs is not None:
        chains = map(attrgetter("codec"), apply_codecs(requested, codecs).values())
        if [*chains] != [*map(attrgetter("codec"), existing.values())]:
            raise SchemaError("dataset has other codecs; leave them out to keep its own")
    return dataset_schema


def is_passthrough(spec: FeatureSpec, target: FeatureSpec) -> bool:
    """Whether frames are kept encoded on the way to the feature `target`.

    Images and video of the same codec and shape do, whatever their quality.
    """

    def decoding(codec: Sequence[CodecConfig]) -> list[dict[str, Any]]:
        return [
            {k: v for k, v in config.items() if k not in ("quality", "gop")} for config in codec
        ]

    is_same = spec.shape == target.shape and decoding(spec.codec) == decoding(target.codec)
    return is_same and _is_encoded(spec)


def has_same_pages(spec: FeatureSpec, target: FeatureSpec) -> bool:
    """Whether pages of a feature are valid pages of the feature `target`."""
    values = (spec.dtype, spec.shape, spec.value) == (target.dtype, target.shape, target.value)
    return values and (spec.codec == target.codec or is_passthrough(spec, target))


def loses_data(spec: FeatureSpec) -> bool:
    """Whether a feature's codec is lossy."""
    return page_kind(spec).is_lossy(spec)


def check_passthrough(schema: Schema, source_schema: Schema, *, in_place: bool) -> None:
    """Raise `SchemaError` if a source's video would be encoded with a lossy codec of the caller.

    With FFV1, packets are kept, and frames that must be encoded lose nothing. With a codec other
    than video, all frames are decoded, but not `in_place`.
    """
    for spec in schema.values():
        source_spec = source_schema[spec.name]
        if not page_kind(spec).decodes_in_order or is_passthrough(spec, source_spec):
            continue
        codec = source_spec.codec[0] if source_spec.codec else {}
        is_same = codec.get("codec") == spec.codec[0]["codec"]
        if in_place or (loses_data(source_spec) and not is_same):
            raise SchemaError(
                "cannot change the codec of a source's video to a lossy one, or in place; leave "
                "the codec out, or choose a lossless one such as ffv1 or balanced. Converting the "
                "new dataset encodes the video again",
                feature=spec.name,
                expected=spec.codec[0],
                got=source_spec.codec[0] if source_spec.codec else "raw",
            )


def check_schema(schema: Mapping[str, FeatureSpec] | None) -> None:
    """Raise `SchemaError` for an object that is no schema."""
    if schema is None:
        return
    if not (_is_by_name(schema) and all(isinstance(s, FeatureSpec) for s in schema.values())):
        raise SchemaError(
            "invalid schema",
            expected="a Schema, such as Schema([FeatureSpec(…)]) or the features of a dataset",
            got=repr_of(schema, 100),
        )


def check_codecs(codecs: Codecs | None) -> None:
    """Raise `SchemaError` for codecs that are invalid for any schema."""
    if codecs is None:
        return
    if isinstance(codecs, str):
        check_codec(codecs)
        return
    if not _is_by_name(codecs):
        raise SchemaError(
            "invalid codecs",
            expected="a codec name, or a dict of codecs by feature",
            got=repr_of(codecs, 100),
        )
    for name, codec in codecs.items():
        check_codec(codec, feature=name)


def check_descriptions(descriptions: FeatureInfo | None) -> FeatureInfo | None:
    """Return a copy. Raises `SchemaError` for properties that are invalid for any feature."""
    if descriptions is None:
        return None
    if not _is_by_name(descriptions):
        raise SchemaError(
            "invalid features",
            expected='properties by feature name, such as {"depth": {"unit": "m"}}',
            got=repr_of(descriptions, 100),
        )
    properties: Any  # unchecked
    for name, properties in descriptions.items():
        if not (isinstance(properties, Mapping) and set(properties) <= set(_PROPERTIES)):
            raise SchemaError(
                "invalid properties of a feature",
                feature=name,
                expected=f"a dict of {', '.join(_PROPERTIES)}",
                got=repr_of(properties),
            )
    return {name: {**properties} for name, properties in descriptions.items()}


def _is_by_name(mapping: object) -> bool:
    return isinstance(mapping, Mapping) and all(isinstance(name, str) for name in mapping)


def _new_schema(schema: Schema, descriptions: FeatureInfo) -> Schema:
    """The features with these properties, as for a new dataset."""
    if any(spec.is_dropped for spec in schema.values()):
        raise SchemaError("invalid feature name: reserved for dropped features", got=schema)
    _check_names("properties of an unknown feature", descriptions, schema)
    changes: Mapping[str, Any] = descriptions
    specs = [replace(s, added=None, **changes.get(s.name, {})) for s in schema.values()]
    for spec in specs:
        check_depth(spec)
    return Schema(specs)


def check_fps(fps: float | None) -> float | None:
    """The frame rate as a float. Raises `SchemaError` unless it is a finite number above 0."""
    if fps is None:
        return None
    if isinstance(fps, bool) or not isinstance(fps, (int, float, np.integer, np.floating)):
        raise SchemaError("fps is not a number", expected="a number above 0", got=repr_of(fps, 50))
    try:
        number = float(fps)
    except OverflowError:  # a large integer
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise SchemaError("invalid number of frames per second", expected="above 0", got=number)
    return number


def check_sizes(chunk_frames: int | None, max_file_size: int | str | None) -> int | None:
    """Bytes of a record file, `None` for the default.

    Raises `SchemaError` or `DestinationError` for invalid sizes.
    """
    if chunk_frames is not None and not (
        is_integer(chunk_frames) and 1 <= chunk_frames <= MAX_CHUNK_FRAMES
    ):
        raise SchemaError(
            "invalid number of frames per chunk",
            expected=f"1 to {MAX_CHUNK_FRAMES}",
            got=repr_of(chunk_frames, 50),
        )
    if max_file_size is None:
        return None
    try:
        size = parse_size(max_file_size)
    except ValueError as error:
        raise DestinationError(f"max_file_size: {error}", got=repr_of(max_file_size, 100)) from None
    if size < 1:
        raise DestinationError(
            "invalid size of record files", expected="1 or more", got=max_file_size
        )
    return size


def infer_schema(frames: Sequence[Frame], descriptions: FeatureInfo | None = None) -> Schema:
    """Features in order of appearance, each by its first value, with the properties in
    `descriptions`."""
    descriptions = descriptions or {}
    specs: dict[str, FeatureSpec] = {}
    for frame in frames:
        for name, item in frame.items():
            if name not in specs:
                specs[name] = _infer_spec(name, item, descriptions.get(name, {}).get("shape"))
    return _new_schema(Schema(list(specs.values())), descriptions)


def _infer_spec(name: str, item: Any, shape: Any) -> FeatureSpec:
    """The specification of a value; `shape` is the declared one, if any."""
    if (kind := object_kind(item)) is not None:
        return FeatureSpec(name, np.dtype("u1"), (None,), value=kind.value)
    if isinstance(item, EncodedImage):
        try:
            chain, header = image_chain(item.data), probe(item.data)
        except CodecError as error:
            raise FrameError(error.message, feature=name, got=error.got) from error
        return FeatureSpec(name, header.dtype, header.shape, chain)
    array = np.asarray(plain(item, name))
    if shape is None and not array.size:
        declared = tuple(size or None for size in array.shape)
        raise SchemaError(
            "the first value has no rows; declare the dimension that varies",
            feature=name,
            expected=f'features={{"{name}": {{"shape": {declared}}}}}, or a schema',
            got=f"{array.dtype} {list(array.shape)}",
        )
    return FeatureSpec(name, array.dtype, array.shape if shape is None else shape)


def _number_groups(schema: Schema, *, by_size: bool) -> Schema:
    """The features with group numbers, in the order of each group's first feature.

    `by_size`: small features are a group, each video is a group, the others are a group.
    """
    keys: list[object] = [is_small(s) if by_size else s.group for s in schema.values()]
    if by_size:
        specs = zip(schema.values(), keys, strict=True)
        keys = [key if page_kind(spec).shares_chunks else spec.name for spec, key in specs]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return Schema(
        [replace(spec, group=numbers[key]) for spec, key in zip(schema.values(), keys, strict=True)]
    )


def _check_names(message: str, names: Mapping[str, object], schema: Schema) -> None:
    if unknown_names := [name for name in names if name not in schema]:
        raise SchemaError(
            message, expected=f"some of {', '.join(schema)}", got=", ".join(unknown_names)
        )


def _is_encoded(spec: FeatureSpec) -> bool:
    """Whether frames keep the encoding of their source: image files or video."""
    return page_kind(spec).keeps_encoding(spec)
