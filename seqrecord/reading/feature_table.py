"""Columns of a table that say what features are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from seqrecord.schema import FeatureSpec
from seqrecord.text import codec_text, shape_text

__all__ = ["described"]


def described(features: Iterable[FeatureSpec]) -> Iterator[tuple[str, ...]]:
    """The heads of the columns, then the cells of each feature.

    dtype, shape and codec; group, kind and unit only where they tell anything.
    """
    specs = list(features)
    columns = [
        ("dtype", [spec.dtype.name if spec.value == "array" else spec.value for spec in specs]),
        ("shape", ["" if spec.value != "array" else shape_text(spec.shape) for spec in specs]),
        ("codec", [codec_text(spec.codec) for spec in specs]),
    ]
    if len({spec.group for spec in specs}) > 1:
        columns.append(("group", [str(spec.group) for spec in specs]))
    for name, texts in (
        ("kind", [spec.kind or "" for spec in specs]),
        ("unit", [spec.unit or "" for spec in specs]),
    ):
        if any(texts):
            columns.append((name, texts))
    yield tuple(name for name, _ in columns)
    yield from zip(*(texts for _, texts in columns), strict=True)
