"""Syntax trees of source files, for rules about code: imports, closures, lines of code."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

__all__ = ["closure", "imported_names", "lines_of_code", "parse", "re_exports"]


def parse(path: Path) -> ast.Module:
    """Parse a file without garbage collections, which take four times as long as the rest."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield statements, and the parts of statements that contain others."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for node in getattr(tree, field, ()):
            yield node
            yield from statements(node)


def lines_of_code(text: str, tree: ast.Module) -> int:
    """Count lines of code: all except blank lines, comments, and strings that are statements.

    The only rule by which lines of code are counted. Such strings are docstrings, of modules,
    classes and functions as of constants.
    """
    documentation = {
        number
        for node in statements(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in documentation
        for number, line in enumerate(text.splitlines(), 1)
    )


def imported_names(tree: ast.Module, *, in_functions: bool) -> set[str]:
    """Return full names of the modules that code imports, and of the names imported from them.

    Imports for type checkers are left out, and unless `in_functions`, imports at a call too.
    """
    left_out = {
        inner
        for node in statements(tree)
        if (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
        or (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not in_functions)
        for inner in statements(node)
    }
    found = set()
    for node in statements(tree):
        if node in left_out:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def re_exports(package: str, tree: ast.Module) -> dict[str, str]:
    """Return names that a package imports at first use, see `seqrecord.lazy`, with the modules."""
    return {
        f"{package}.{node.names[0].asname}": str(node.module)
        for node in statements(tree)
        if isinstance(node, ast.ImportFrom) and node.names[0].asname == node.names[0].name
    }


def closure(roots: Iterable[str], imports: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the modules that importing `roots` imports, with their packages.

    `imports` has the names that each module imports.
    """
    found: set[str] = set()
    waiting = [*roots]
    while waiting:
        name = waiting.pop()
        if name in imports and name not in found:
            found.add(name)
            waiting += [*imports[name], name.rpartition(".")[0]]
    return found
