"""Instruments the package's modules: each statement records that it runs.

Each statement is preceded by `__hits__[n] = 1`. `__hits__` is a file in memory, shared with all
child processes: killed workers lose no hits, and it costs less than a trace function.
`on_path/sitecustomize.py` makes Python load these modules.
"""

from __future__ import annotations

import ast
import json
import marshal
from collections.abc import Iterator
from pathlib import Path

__all__ = ["instrumented", "read_numbers", "write_instrumented"]

_NUMBERS = "numbers.json"


def write_instrumented(root: Path, folder: Path) -> None:
    """Write the code of all modules of `root`/seqrecord, named by module, and `numbers.json`."""
    folder.mkdir()
    first, numbers = 0, {}
    for path in sorted((root / "seqrecord").rglob("*.py")):
        source = path.read_text("utf-8")
        file = path.relative_to(root)
        names = file.parent.parts if path.name == "__init__.py" else file.with_suffix("").parts
        code = compile(instrumented(source, first), str(path), "exec", dont_inherit=True)
        (folder / ".".join(names)).write_bytes(marshal.dumps(code))
        numbers[str(file)] = first
        first += source.count("\n") + 2
    (folder / _NUMBERS).write_text(json.dumps({"files": numbers, "count": first}))


def read_numbers(folder: Path) -> tuple[dict[str, int], int]:
    """The number of line 0 of each file, and the total of numbers."""
    read = json.loads((folder / _NUMBERS).read_text())
    return read["files"], read["count"]


def instrumented(source: str, first: int) -> ast.Module:
    """A module whose statement on line n sets `__hits__[first + n]` when it runs."""
    tree = ast.parse(source)
    for body in list(_bodies(tree)):
        start = _prologue(body)
        new = body[:start]
        if body is tree.body:
            new.append(ast.parse("from mutation_hits import HITS as __hits__").body[0])
        for statement in body[start:]:
            new += [_noting(statement, first), statement]
        body[:] = new
    return ast.fix_missing_locations(tree)


def _bodies(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def _prologue(body: list[ast.stmt]) -> int:
    """Number of statements that must stay first: a docstring and `from __future__`."""
    for number, statement in enumerate(body):
        docs = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not future and not (docs and number == 0):
            return number
    return len(body)


def _noting(statement: ast.stmt, first: int) -> ast.stmt:
    (noting,) = ast.parse(f"__hits__[{first + statement.lineno}] = 1").body
    for node in ast.walk(noting):
        ast.copy_location(node, statement)
    return noting
