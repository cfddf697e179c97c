"""Syntax trees of source files, for rules about code: imports, closures, lines of code.

`python -m tests.project.source_code` prints the lines of code of each room, the modules and
lines that `SeqRecordWriter` and `SeqRecordPipe` import, without and with the imports of calls, and
the lines of code of tests inside and outside of test functions.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2] / "seqrecord"
TESTS = Path(__file__).parents[1]
OPEN_ROOMS = {"format", "storage", "codecs", "sampling"}
"""Rooms whose modules tests import: their contracts are documented, and tested one by one."""

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


def statements(tree: ast.AST) -> Iterator[Any]:
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
    return len(code_line_numbers(text, tree))


def code_line_numbers(text: str, tree: ast.Module) -> set[int]:
    """Numbers of the lines that `lines_of_code` counts."""
    documentation = {
        number
        for node in statements(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node.value.value, str)
        for number in line_numbers(node)
    }
    return {
        number
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#") and number not in documentation
    }


def line_numbers(node: Any) -> range:
    """Lines of a statement with its decorators."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min(part.lineno for part in (node, *decorators))
    return range(first, (node.end_lineno or node.lineno) + 1)


@dataclass(frozen=True)
class TestLines:
    """Lines of code of a file of tests; also methods of contracts are test functions.

    `inside`: in test functions and their decorators. `helpers`: in other functions and classes;
    `lines - inside` also counts imports and constants.
    """

    __test__ = False  # not a test class

    lines: int
    inside: int
    helpers: int

    @classmethod
    def of(cls, path: Path, tree: ast.Module) -> TestLines:
        """Count them in a file and its syntax tree."""
        code = code_line_numbers(path.read_text(), tree)
        functions = ast.FunctionDef, ast.AsyncFunctionDef
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
        nodes = [*tree.body, *(node for each in classes for node in each.body)]
        inside = {
            number
            for node in nodes
            if isinstance(node, functions) and node.name.startswith("test")
            for number in line_numbers(node)
        }
        others = [node for node in tree.body if isinstance(node, (*functions, ast.ClassDef))]
        helpers = {number for node in others for number in line_numbers(node)} - inside
        return cls(len(code), len(code & inside), len(code & helpers))


def areas_of_tests() -> dict[str, dict[Path, TestLines]]:
    """Files and their lines by folder of `tests`, for example `kit` and `core/data`."""
    found: dict[str, dict[Path, TestLines]] = {}
    for path in sorted(TESTS.rglob("*.py")):
        parts = path.relative_to(TESTS).parts
        area = "/".join(parts[: 2 if parts[0] == "core" else 1])
        if not area.endswith(".py"):
            found.setdefault(area, {})[path] = TestLines.of(path, parse(path))
    return found


@cache
def lines_of_tests() -> dict[Path, TestLines]:
    """Lines of all files of tests, by path relative to `tests`."""
    areas = areas_of_tests().values()
    return {path.relative_to(TESTS): lines for area in areas for path, lines in area.items()}


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


def inner_modules(path: Path) -> set[str]:
    """Modules of rooms that a test imports, without faces of rooms, and without `OPEN_ROOMS`."""
    found = set()
    for name in imported_names(parse(path), in_functions=True):
        parts = name.split(".")
        if parts[0] == "seqrecord" and len(parts) > 2 and parts[1] not in OPEN_ROOMS:
            module = PACKAGE.joinpath(*parts[1:])
            if module.is_dir() or module.with_suffix(".py").is_file():
                found.add(name)
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
    sys.stdout.write("tests             inside outside of test functions\n")
    all_inside = all_outside = 0
    for area, files in areas_of_tests().items():
        inside = sum(one.inside for one in files.values())
        outside = sum(one.lines for one in files.values()) - inside
        sys.stdout.write(f"{area:16} {inside:7,} {outside:7,}\n")
        all_inside, all_outside = all_inside + inside, all_outside + outside
    sys.stdout.write(f"{'all tests':16} {all_inside:7,} {all_outside:7,}\n")


if __name__ == "__main__":
    _main()
