"""Counts the lines of code of the package by room: `python -m tests.code_lines [FOLDER]`.

A line of code holds a token that is no comment and no docstring: a statement over three lines
counts three. Budgets of rooms are in these lines. Modules that hold no code are counted too.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

__all__ = ["code_lines", "lines_by_room"]

_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENCODING),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
_LOOSE = "(loose)"
_WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(source: str) -> int:
    """Lines of Python source that hold code: no blank lines, comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def lines_by_room(package: Path) -> dict[str, tuple[int, int]]:
    """Modules and lines of code of each folder directly in a package, and of what lies beside."""
    modules: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for path in sorted(package.rglob("*.py")):
        first, *rest = path.relative_to(package).parts
        room = first if rest else _LOOSE
        modules[room] += 1
        lines[room] += code_lines(path.read_text())
    return {room: (modules[room], lines[room]) for room in sorted(modules)}


def _main(folder: str) -> None:
    rooms = lines_by_room(Path(folder))
    rooms["all"] = (sum(m for m, _ in rooms.values()), sum(n for _, n in rooms.values()))
    for room, (modules, lines) in rooms.items():
        sys.stdout.write(f"{room:<12} {modules:>4} modules {lines:>7,} lines\n")


if __name__ == "__main__":
    _main(*(sys.argv[1:] or ["seqrecord"]))
