"""HTML that a notebook shows for an object: facts, and a table of features."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from seqrecord.schema import FeatureSpec
from seqrecord.text import codec_text, printable, shape_text

__all__ = ["html_card"]

_MOST = 200  # characters of a cell; what is longer is cut


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
