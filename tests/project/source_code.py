"""Syntax trees of source files, for rules about code."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "seqrecord"
PUBLIC_FILES = {
    "__init__", "__main__", "cli", "edit", "export", "lerobot", "samples", "sources", "statistics",
    "types", "viewer",
}  # fmt: skip
"""Files of public names beside the parts, which import at first use. `errors` and `version` are
public too, but belong to the store."""


def parse(path: Path) -> ast.Module:
    """Parse a file without garbage collections, which take four times as long as the rest."""
    gc.disable()
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


def module_name(path: Path) -> str:
    """`seqrecord.x.y` of a file of the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(("seqrecord", *(part for part in parts if part != "__init__")))


def statements(tree: ast.AST) -> Iterator[Any]:
    """Yield statements, and the parts of statements that contain others."""
    for field in ("body", "orelse", "handlers", "finalbody", "cases"):
        for node in getattr(tree, field, ()):
            yield node
            yield from statements(node)


def imported_names(tree: ast.Module, *, in_functions: bool, for_types: bool = False) -> set[str]:
    """Return full names of the modules that code imports, and of the names imported from them.

    Imports for type checkers are left out unless `for_types`, imports at a call unless
    `in_functions`.
    """
    left_out = {
        inner
        for node in statements(tree)
        if (
            isinstance(node, ast.If) and not for_types and ast.unparse(node.test) == "TYPE_CHECKING"
        )
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
