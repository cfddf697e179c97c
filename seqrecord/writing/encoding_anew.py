"""Encodes episodes anew, as another dataset stores the same features."""

from __future__ import annotations

from collections.abc import Iterator

from seqrecord.errors import SchemaError
from seqrecord.format import EpisodePart
from seqrecord.reading.episode import Episode
from seqrecord.reading.in_order import values_in_order
from seqrecord.schema import FeatureSpec, Schema
from seqrecord.storage import Storage
from seqrecord.writing.feature_values import loses_data
from seqrecord.writing.record_file import RecordFileWriter
from seqrecord.writing.stored_schema import DEFAULT_RECORD_BYTES

__all__ = ["check_mergeable", "difference", "encode_episode", "encoder_of"]


def check_mergeable(first: Schema, other: Schema, first_url: str, url: str) -> None:
    """`SchemaError` unless the features mean the same, and can be stored as the first ones are.

    They do with equal names, dtypes, shapes and values, and with kinds and units that are equal
    where both datasets say one.
    """
    for name in dict.fromkeys((*first.kept, *other.kept)):
        if name not in first or name not in other:
            lacks, has = (first_url, url) if name not in first else (url, first_url)
            raise SchemaError(
                "datasets cannot be merged: only one has a feature; `seqrecord edit` adds and "
                "drops features",
                file=lacks,
                feature=name,
                expected=f"{(other if name not in first else first)[name]}, as in {has}",
                got=f"{', '.join(first.kept if name not in first else other.kept)}"[:200],
            )
        a, b = first[name], other[name]
        pairs = (
            ("values", str(a).partition(": ")[2], str(b).partition(": ")[2]),
            ("kind", a.kind, b.kind),
            ("unit", a.unit, b.unit),
        )
        for what, want, got in pairs:
            if want != got and None not in (want, got):
                raise SchemaError(
                    f"datasets cannot be merged: they have a feature of other {what}",
                    file=url,
                    feature=name,
                    expected=f"{want}, as in {first_url}",
                    got=got,
                )
        if first != other and loses_data(a):
            raise SchemaError(
                "datasets cannot be merged: they store features otherwise, and to encode this one "
                "anew would lose data",
                file=url,
                feature=name,
                expected=f"the schema of {first_url}, or there a codec that loses nothing",
                got=difference(url, other, first),
            )


def difference(url: str, schema: Schema, wanted: Schema) -> str:
    """Says which features of a dataset are encoded anew as `wanted`, and why; `None` in no line."""
    ours, theirs = schema.kept, wanted.kept
    reasons = [
        f"{name} ({', '.join(why)})"
        for name in ours
        if (why := list(_reasons(ours[name], theirs[name])))
    ]
    if list(ours) != list(theirs):
        reasons.append("order of the features")
    return f"{url}: encoded anew, since it stores otherwise: {', '.join(reasons) or 'dropped ones'}"


def _reasons(spec: FeatureSpec, wanted: FeatureSpec) -> Iterator[str]:
    if spec.codec != wanted.codec:
        yield f"codec {_chain(spec)} becomes {_chain(wanted)}"
    if spec.group != wanted.group:
        yield f"group {spec.group} becomes {wanted.group}"
    if (spec.kind, spec.unit) != (wanted.kind, wanted.unit):
        yield f"kind and unit {spec.kind}, {spec.unit} become {wanted.kind}, {wanted.unit}"
    if spec.added != wanted.added:
        yield "added at another time"


def _chain(spec: FeatureSpec) -> str:
    return "+".join(str(config["id"]).removeprefix("seqrecord.") for config in spec.codec) or "raw"


def encoder_of(schema: Schema, storage: Storage, writer: str) -> RecordFileWriter:
    """Writes record files under this schema, of frames that may lack all features that are left."""
    return RecordFileWriter(
        storage,
        schema,
        writer=writer,
        record_bytes=DEFAULT_RECORD_BYTES,
        only=range(schema.num_groups),
    )


def encode_episode(files: RecordFileWriter, episode: Episode, part: EpisodePart) -> None:
    """Write all frames of an episode, as one of the uid, key and metadata of `part`."""
    files.begin_again(part)
    names = list(episode.features)
    frames = range(len(episode))
    columns = [values_in_order(episode, name, frames) for name in names]
    for values in zip(*columns, strict=True):
        found = zip(names, values, strict=True)
        files.append({name: value for name, value in found if value is not None})
    files.end()
