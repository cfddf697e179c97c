"""Selects the tests that run the text of a fault."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence

from development.faults.anchoring import Anchor, Tree
from development.mutation.covering import Covering, RecordedTest, spread

__all__ = ["covering_tests", "statements_of"]


def covering_tests(
    covering: Covering, tree: Tree, anchors: Sequence[Anchor], first: Collection[str]
) -> list[RecordedTest]:
    """Tests that run a changed statement, in the order in which they are tried.

    Those named in `first` come first: they noticed the fault before. Changes of code that runs at
    import, such as imports that a repair needs, count only if there are no others.
    """
    lines = [
        (file, statements_of("\n".join(tree.lines(file)), changed_lines(tree, anchor)))
        for anchor in anchors
        for file in [anchor.file]
    ]
    in_functions = any(numbers for _, numbers in lines)
    tests = {
        test.name: test
        for file, numbers in lines
        if numbers is not None and (numbers or not in_functions)
        for test in covering.tests_of_lines(file, numbers)
    }
    ordered = spread(tests.values(), anchors[0].file)
    return sorted(ordered, key=lambda test: test.name not in first)


def changed_lines(tree: Tree, anchor: Anchor) -> range:
    """The changed lines of an anchor, counted from 1; the lines around an insertion."""
    old, new = tree.lines(anchor.file)[anchor.start : anchor.end], anchor.text.split("\n")
    start, end = 0, 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    first, last = anchor.start + start + 1, anchor.end - end
    return range(first, last + 1) if first <= last else range(max(1, first - 1), first + 1)


def statements_of(source: str, lines: range) -> set[int] | None:
    """First lines of the innermost statements inside functions, on some lines.

    A function's own line, where its defaults are, stands for all its statements. An empty set means
    that the lines run at import; None that they have no statement, like comments.
    """
    innermost: dict[int, tuple[ast.stmt, ast.AST | None]] = {}
    waiting: list[tuple[ast.AST, ast.AST | None]] = [(ast.parse(source), None)]
    while waiting:
        parent, function = waiting.pop()
        for node in ast.iter_child_nodes(parent):
            inner = function
            if isinstance(node, ast.stmt):
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    if line in lines:  # parents come before their children
                        innermost[line] = (node, function)
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    inner = node
            waiting.append((node, inner))
    if not innermost:
        return None
    statements = set()
    for node, function in innermost.values():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inside = (each for each in ast.walk(node) if isinstance(each, ast.stmt))
            statements |= {each.lineno for each in inside if each is not node}
        elif function is not None:
            statements.add(node.lineno)
    return statements
