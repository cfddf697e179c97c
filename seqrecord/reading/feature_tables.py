"""Tables that say what features are: columns of text, and the HTML that a notebook shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape

from seqrecord.schema import FeatureSpec
from seqrecord.text import codec_text, printable, shape_text

__all__ = ["described", "html_card"]

_MOST = 200  # characters of a cell of HTML; what is longer is cut


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


def html_card(
    title: str,
    facts: Iterable[tuple[str, str]],
    features: Iterable[FeatureSpec],
    columns: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """`facts` as names and values, then a table with a row for each feature.

    `columns` are further ones of the table, by their heading. All texts are escaped.
    """
    columns = columns or {}
    head = ("feature", "dtype", "shape", "codec", *columns)
    rows = [
        (spec.name, spec.dtype.name, shape_text(spec.shape), codec_text(spec.codec), *further)
        for spec, *further in zip(features, *columns.values(), strict=True)
    ]
    lines = "".join(f"<div>{_text(name)}: {_text(value)}</div>" for name, value in facts)
    table = _row("th", head) + "".join(_row("td", row) for row in rows)
    return f"<div><strong>{_text(title)}</strong>{lines}<table>{table}</table></div>"


def _row(tag: str, cells: Sequence[str]) -> str:
    style = ' style="text-align: left"'
    return f"<tr>{''.join(f'<{tag}{style}>{_text(cell)}</{tag}>' for cell in cells)}</tr>"


def _text(text: str) -> str:
    return escape(printable(text if len(text) <= _MOST else f"{text[: _MOST - 1]}…"))
