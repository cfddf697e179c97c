"""Syntax trees of source files, for rules about code: imports, closures, lines of code.

`python -m tests.project.source_code` prints the lines of code of each room, and the modules and
lines that `SeqRecordWriter` and `SeqRecordPipe` import, without and with the imports of calls.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Module", "closure", "module_name", "parse"]

PACKAGE = Path(__file__).parents[2] / "seqrecord"
WRITER_AND_LOADER = "seqrecord.writing.writer", "seqrecord.pipes.loaders"


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


@dataclass(frozen=True)
class Module:
    """Facts of a module: lines of code, imported names, names that it imports at first use."""

    lines: int
    imported_at_start: set[str]
    imported: set[str]  # also in functions
    re_exports: dict[str, str]

    @classmethod
    def of(cls, path: Path, tree: ast.Module) -> Module:
        """Find them in a file and its syntax tree."""
        is_package = path.name == "__init__.py"
        return cls(
            lines_of_code(path.read_text(), tree),
            imported_names(tree, in_functions=False),
            imported_names(tree, in_functions=True),
            re_exports(module_name(path), tree) if is_package else {},
        )


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


def closure(roots: Iterable[str], modules: Mapping[str, Module], *, in_functions: bool) -> set[str]:
    """Return the modules that importing `roots` imports, with their packages.

    `in_functions` includes imports of calls.
    """
    lazy = {name: of for module in modules.values() for name, of in module.re_exports.items()}
    found: set[str] = set()
    waiting = [*roots]
    while waiting:
        name = waiting.pop()
        if name in modules and name not in found:
            found.add(name)
            one = modules[name]
            names = one.imported if in_functions else one.imported_at_start
            waiting += [lazy.get(each, each) for each in names] + [name.rpartition(".")[0]]
    return found


def _main() -> None:
    modules = {module_name(p): Module.of(p, parse(p)) for p in sorted(PACKAGE.rglob("*.py"))}
    root = modules.pop("seqrecord")
    rooms: Counter[str] = Counter({"(root)": root.lines})
    for name, module in modules.items():
        rooms[name.split(".")[1]] += module.lines
    for room, lines in rooms.most_common():
        sys.stdout.write(f"{room:16} {lines:7,}\n")
    sys.stdout.write(f"{'package':16} {rooms.total():7,} in {len(modules) + 1} modules\n")
    for in_functions in (False, True):
        found = closure(WRITER_AND_LOADER, modules, in_functions=in_functions)
        lines, calls = sum(modules[name].lines for name in found), " and calls" * in_functions
        sys.stdout.write(f"writer and loader import{calls}: {lines:,} in {len(found)} modules\n")


if __name__ == "__main__":
    _main()
