"""Replacements that turn one version of a file into another."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence

from development.faults.anchoring import Tree, dedented, faulty_sources, find_anchors
from development.faults.bank import Fault, Replacement

__all__ = ["essential", "replacements_of"]

_MOST = 50
"""Equal texts in one scope."""


def replacements_of(tree: Tree, file: str, new_source: str) -> list[Replacement]:
    """Replacements from a file of `tree` to `new_source`."""
    old, new = tree.lines(file), new_source.split("\n")
    replacements = []
    for start, stop, new_start, new_stop in _blocks(old, new):
        old_text, new_text = dedented(old[start:stop], new[new_start:new_stop])
        replacements.append(_placed(tree, file, old_text, new_text, (start, stop)))
    return replacements


def _blocks(old: list[str], new: list[str]) -> Iterator[tuple[int, int, int, int]]:
    """Ranges of lines that differ.

    The line before is included where lines are inserted or removed, so that they have a place, or
    the line after at the begin of a file.
    """
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for group in matcher.get_grouped_opcodes(0):
        start, stop, new_start, new_stop = group[0][1], group[-1][2], group[0][3], group[-1][4]
        while start > 0 and not (any(old[start:stop]) and any(new[new_start:new_stop])):
            start, new_start = start - 1, new_start - 1
        while stop < len(old) and not (any(old[start:stop]) and any(new[new_start:new_stop])):
            stop, new_stop = stop + 1, new_stop + 1
        yield start, stop, new_start, new_stop


def _placed(tree: Tree, file: str, old: str, new: str, lines: tuple[int, int]) -> Replacement:
    """A replacement in the smallest scope around its lines."""
    around = [
        (end - start, name)
        for name, ranges in tree.scopes(file).items()
        for start, end in ranges
        if start <= lines[0] and lines[1] <= end
    ]
    _, scope = min(around)
    for count in range(1, _MOST):
        for number in range(count):
            replacement = Replacement(file, scope, old, new, number, count)
            anchors = find_anchors(tree, Fault("", "", "", "", (replacement,)))
            if anchors and (anchors[0].start, anchors[0].end) == lines:
                return replacement
    raise ValueError(f"{file}:{lines[0]}: the text is not found again in {scope!r}")


def essential(tree: Tree, replacements: Sequence[Replacement]) -> list[Replacement]:
    """Replacements that change what the code does.

    Without changed comments, docstrings and removed imports, a fault depends on less text that may
    change.
    """
    return [replacement for replacement in replacements if _is_essential(tree, replacement)]


def _is_essential(tree: Tree, replacement: Replacement) -> bool:
    anchors = find_anchors(tree, Fault("", "", "", "", (replacement,)))
    assert anchors is not None
    ((file, source),) = faulty_sources(tree, anchors).items()
    try:
        code, imports = _code("\n".join(tree.lines(file)))
        new_code, new_imports = _code(source)
    except SyntaxError:  # with other replacements only
        return True
    return code != new_code or not new_imports <= imports


def _code(source: str) -> tuple[str, set[str]]:
    """A module's code without docstrings and imports, and the names that it imports."""
    module = ast.parse(source)
    imports: set[str] = set()
    for node in ast.walk(module):
        for _, body in ast.iter_fields(node):
            if not isinstance(body, list) or not body or not isinstance(body[0], ast.stmt):
                continue
            for statement in body:
                if isinstance(statement, (ast.Import, ast.ImportFrom)):
                    imports |= {ast.unparse(alias) for alias in statement.names}
            body[:] = [statement for statement in body if not _says_nothing(statement)]
    return ast.dump(module), imports


def _says_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return True
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
