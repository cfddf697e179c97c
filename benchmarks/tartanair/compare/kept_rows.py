"""Rows of the published tables that a later run does not have stay as they were, with a mark."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

__all__ = ["keep_rows"]

_MARK = " †"
_NOT_RUN = "not run"


class _Row(NamedTuple):
    """One of our rows: its line's number, its table and published row, and its cells by column."""

    line: int
    place: tuple[str, int, str]
    cells: dict[str, str]


def keep_rows(new: str, old: str, commits: Sequence[str]) -> str:
    """The new text of the published part, with figures of the old one for rows that did not run.

    A row stays if it has no figure in the new text and the same codec in both; a codec that the old
    text does not name is a format of the loader's own. `commits` are those of the old text.
    """
    before = {row.place: row.cells for row in _rows(old)}
    lines = new.splitlines()
    is_kept = False
    for row in _rows(new):
        known = before.get(row.place)
        if known is None or not _is_empty(row.cells) or _is_empty(known):
            continue
        if known.get("codec", "its own") != row.cells.get("codec"):
            continue
        cells = {**row.cells, **{name: known[name] for name in row.cells if name in known}}
        cells["method"] = row.cells["method"] + _MARK
        lines[row.line] = f"| {' | '.join(cells.values())} |"
        is_kept = True
    if is_kept:
        of = ", ".join(dict.fromkeys([*commits, *_commits_of_kept(old)]))
        lines += ["", f"†: from an earlier run, of commit {of}, on a machine of the same kind."]
    return "\n".join(lines) + "\n"


def _rows(text: str) -> Iterator[_Row]:
    title, published, columns = "", 0, []
    for number, line in enumerate(text.splitlines()):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("### "):
            title, published = line, 0
        elif line.startswith("| method |"):
            columns = cells
        elif line.startswith("| **"):
            published += 1
        elif line.startswith("| `"):
            by_column = dict(zip(columns, cells, strict=True))
            method = by_column["method"].removesuffix(_MARK)
            yield _Row(number, (title, published, method), by_column)


def _is_empty(cells: dict[str, str]) -> bool:
    return all(cell == _NOT_RUN for name, cell in cells.items() if name.startswith("here: "))


def _commits_of_kept(text: str) -> list[str]:
    found = re.search(r"^†: from an earlier run, of commit (.*?), on", text, re.MULTILINE)
    return found[1].split(", ") if found else []
