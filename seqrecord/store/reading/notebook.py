"""HTML of datasets and episodes for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from seqrecord.store.bfloat16 import dtype_name
from seqrecord.store.schema import FeatureSpec
from seqrecord.store.text import codec_text, printable, shape_text

MAX_ROWS = 20  # of keys or metadata
_MAX_CHARACTERS = 200  # in a cell; longer text is cut


def html_card(
    title: str,
    facts: Iterable[tuple[str, str]],
    features: Iterable[FeatureSpec],
    columns: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return HTML: `facts` as names and values, and a table with a row for each feature.

    `columns` are additional columns, by heading. All text is escaped.
    """
    columns = columns or {}
    head = ("feature", "dtype", "shape", "codec", *columns)
    rows = [
        (spec.name, dtype_name(spec.dtype), shape_text(spec.shape), codec_text(spec.codec), *cells)
        for spec, *cells in zip(features, *columns.values(), strict=True)
    ]
    lines = "".join(f"<div>{_cell(name)}: {_cell(value)}</div>" for name, value in facts)
    table = _row("th", head) + "".join(_row("td", row) for row in rows)
    return f"<div><strong>{_cell(title)}</strong>{lines}<table>{table}</table></div>"


def _row(tag: str, cells: Sequence[str]) -> str:
    style = ' style="text-align: left"'
    return f"<tr>{''.join(f'<{tag}{style}>{_cell(cell)}</{tag}>' for cell in cells)}</tr>"


def _cell(text: str) -> str:
    is_long = len(text) > _MAX_CHARACTERS
    return escape(printable(f"{text[: _MAX_CHARACTERS - 1]}…" if is_long else text))
