"""Finds the text of a fault in today's code, also after its module or function has moved."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from development.faults.bank import Fault, Replacement

__all__ = ["Anchor", "Tree", "dedented", "faulty_sources", "find_anchors", "scopes_of"]

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Anchor:
    """Lines [`start`, `end`) of `file`, counted from 0, and the text that replaces them."""

    file: str
    start: int
    end: int
    text: str


class Tree:
    """Modules of the package, or sources by path; read and parsed once."""

    def __init__(self, root: Path, sources: Mapping[str, str] | None = None) -> None:
        self._root = root
        self._lines = {file: text.split("\n") for file, text in (sources or {}).items()}
        paths = sorted((root / "seqrecord").rglob("*.py")) if sources is None else []
        self.files = [*self._lines, *(path.relative_to(root).as_posix() for path in paths)]
        self._scopes: dict[str, dict[str, list[tuple[int, int]]]] = {}

    def lines(self, file: str) -> list[str]:
        """Lines of a file, without their ends."""
        if file not in self._lines:
            self._lines[file] = (self._root / file).read_text("utf-8").split("\n")
        return self._lines[file]

    def scopes(self, file: str) -> dict[str, list[tuple[int, int]]]:
        """`scopes_of` a file."""
        if file not in self._scopes:
            self._scopes[file] = scopes_of("\n".join(self.lines(file)))
        return self._scopes[file]


def scopes_of(source: str) -> dict[str, list[tuple[int, int]]]:
    """Line ranges of each function and class by dotted name; "" is the module.

    A name has several ranges if it is defined several times, like a property and its setter.
    """
    scopes: dict[str, list[tuple[int, int]]] = {"": [(0, source.count("\n") + 1)]}
    waiting: list[tuple[str, ast.AST]] = [("", ast.parse(source))]
    while waiting:
        prefix, parent = waiting.pop()
        for node in ast.iter_child_nodes(parent):
            name = prefix
            if isinstance(node, SCOPES):
                name = f"{prefix}.{node.name}" if prefix else node.name
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                scopes.setdefault(name, []).append((first - 1, node.end_lineno or first))
            waiting.append((name, node))
    for ranges in scopes.values():
        ranges.sort()
    return scopes


def find_anchors(tree: Tree, fault: Fault) -> list[Anchor] | None:
    """Where a fault's text is today, or None if it is gone."""
    anchors = []
    for replacement in fault.replacements:
        found = _find(tree, replacement)
        if found is None:
            return None
        anchors.append(found)
    return anchors


def _find(tree: Tree, replacement: Replacement) -> Anchor | None:
    """The only place, or that number of several in one scope.

    Where the file has no such scope any more, the scope is searched in the whole package: by its
    dotted name, then, if no module has that, by the name of the function alone.
    """
    scope = replacement.scope
    if replacement.file in tree.files and scope in tree.scopes(replacement.file):
        return _chosen(list(_matches(tree, replacement.file, scope, replacement)), replacement)
    name = scope.rpartition(".")[2]
    places = [(file, each) for file in tree.files for each in tree.scopes(file)]
    places = [place for place in places if place[1] == scope] or [
        place for place in places if name and place[1].rpartition(".")[2] == name
    ]
    return _chosen(
        [match for file, each in places for match in _matches(tree, file, each, replacement)],
        replacement,
    )


def _chosen(anchors: Sequence[Anchor], replacement: Replacement) -> Anchor | None:
    if len(anchors) != replacement.count or len({anchor.file for anchor in anchors}) > 1:
        return None
    return anchors[replacement.number]


def _matches(tree: Tree, file: str, scope: str, replacement: Replacement) -> Iterator[Anchor]:
    lines, old = tree.lines(file), replacement.old.split("\n")
    for first, stop in tree.scopes(file)[scope]:
        for start in range(first, stop - len(old) + 1):
            shift = _shift(lines[start : start + len(old)], old)
            if shift is not None:
                margin = " " * shift
                new = [margin + line if line else line for line in replacement.new.split("\n")]
                yield Anchor(file, start, start + len(old), "\n".join(new))


def _shift(lines: Sequence[str], old: Sequence[str]) -> int | None:
    """By how many columns `lines` are further to the right than `old`; None if they differ."""
    shift: int | None = None
    for line, expected in zip(lines, old, strict=True):
        line = line.rstrip()
        if not line.endswith(expected):
            return None
        margin = line[: len(line) - len(expected)]
        if not expected:
            if margin:
                return None
        elif margin.strip() or shift not in (None, len(margin)):
            return None
        else:
            shift = len(margin)
    return shift


def dedented(*texts: Sequence[str]) -> list[str]:
    """Texts of lines without the indentation that all lines of all texts have."""
    lines = [line for text in texts for line in text if line.strip()]
    margin = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    return ["\n".join(line[margin:].rstrip() for line in text) for text in texts]


def faulty_sources(tree: Tree, anchors: Sequence[Anchor]) -> dict[str, str]:
    """The sources of the changed files with a fault, by path."""
    sources = {}
    for file in sorted({anchor.file for anchor in anchors}):
        lines = list(tree.lines(file))
        mine = [anchor for anchor in anchors if anchor.file == file]
        for anchor in sorted(mine, key=lambda anchor: anchor.start, reverse=True):
            lines[anchor.start : anchor.end] = anchor.text.split("\n")
        sources[file] = "\n".join(lines)
    return sources
