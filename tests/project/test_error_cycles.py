"""No error is in a variable of a frame of its traceback: this cycle would keep all variables of all
frames, such as buffers of frames, until the cyclic garbage collector comes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from tests.project.source_code import PACKAGE, parse

FOLDERS = (
    "camera",
    "cloud",
    "companions",
    "cuda",
    "frame_cache",
    "in_place",
    "loader",
    "recipes",
    "robots",
    "store",
    "video",
)
"""Parts that read frames. Sources keep errors of episodes, and raise them where they keep them."""

EXAMPLES = {
    "def f(e): raise e": {"e"},
    "def f():\n  e = Error()\n  raise e": {"e"},
    "def f():\n  e = Error()\n  raise located(e)": {"e"},
    "def f():\n  e = FormatError.of(1)\n  raise located(e, 2) from None": {"e"},
    "def f():\n  if (e := g()):\n    raise e": {"e"},
    "def f():\n  for e in g():\n    raise e": {"e"},
    "def f():\n  try: g()\n  except A as a: e = a\n  h()": {"e"},
    "def f():\n  try: g()\n  except A as a: e: Error = a\n  h()": {"e"},
    "def f(e):\n  try: raise e\n  finally: del e": set(),
    "def f():\n  try: g()\n  except A as a: raise a.located()": set(),
    "def f(place):\n  raise Error(place)": set(),
    "def f(self):\n  raise self.error()": set(),
    "def f(errors):\n  raise errors.pop()": set(),
}


def test_no_error_is_kept_by_its_own_frames() -> None:
    for code, expected in EXAMPLES.items():
        assert {name for _, name in found_in(ast.parse(code))} == expected, code
    paths = [path for folder in FOLDERS for path in sorted((PACKAGE / folder).rglob("*.py"))]
    assert len(paths) > 100
    assert [(str(path), *place) for path in paths for place in found_in(parse(path))] == []


def found_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of variables with errors, if their function does not delete them."""
    for function in ast.walk(tree):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _kept_errors(function)


def _kept_errors(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[int, str]]:
    nodes = list(_own_nodes(function))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    deleted = {name.id for name in names if isinstance(name.ctx, ast.Del)}
    arguments = {argument.arg for argument in ast.walk(function.args) if hasattr(argument, "arg")}
    variables = arguments | {name.id for name in names if isinstance(name.ctx, ast.Store)}
    handled = {node.name for node in nodes if isinstance(node, ast.ExceptHandler)}
    errors = set[str]()  # variables that have one, whether it is raised here or not
    made = set[str]()  # variables that have a new one
    for node in nodes:
        for target, value in _assignments(node):
            if isinstance(value, ast.Name) and value.id in handled:
                errors.add(target)
            if isinstance(value, ast.Call) and "Error" in ast.unparse(value.func):
                made.add(target)
    for node in nodes:
        if isinstance(node, ast.Raise) and node.exc is not None:
            if isinstance(node.exc, ast.Name):
                errors |= {node.exc.id} & (variables - handled)
            used = {part.id for part in ast.walk(node.exc) if isinstance(part, ast.Name)}
            errors |= used & made
    for name in sorted(errors - deleted):
        yield function.lineno, name


def _own_nodes(function: ast.AST) -> Iterator[Any]:
    """Yield the nodes of a function, without those of functions in it."""
    for node in ast.iter_child_nodes(function):
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield from _own_nodes(node)


def _assignments(node: Any) -> Iterator[tuple[str, ast.expr | None]]:
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        targets = [node.target]
    else:
        return
    for target in targets:
        if isinstance(target, ast.Name):
            yield target.id, node.value
