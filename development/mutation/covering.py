"""Selects the tests that run the line of a change, in a useful order."""

from __future__ import annotations

import ast
import json
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePath
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from development.mutation.changes import Change
from development.mutation.instrumenting import read_numbers
from development.mutation.recording import packed_lines

__all__ = ["Covering", "RecordedTest", "spread"]

_Item = TypeVar("_Item")

TOGETHER = 3
"""Consecutive tests of one file, since importing a test file takes time."""


@dataclass(frozen=True)
class RecordedTest:
    """A test that passed. `breadth` is the number of lines in functions that it runs."""

    name: str
    breadth: int
    seconds: float

    @property
    def file(self) -> str:
        return self.name.partition("::")[0]

    @property
    def function(self) -> str:
        return self.name.partition("[")[0]


class Covering:
    """The results of `recording` for a tree."""

    def __init__(self, root: Path, code: Path, records: Path) -> None:
        self._root = root
        self._files, self._count = read_numbers(code)
        found = {}
        for path in sorted(records.glob("*.jsonl")):
            for line in path.read_text().splitlines():
                record = json.loads(line)
                found[record["test"]] = record
        names = sorted(name for name in found if found[name]["outcome"] != "failed")
        self.failed = sorted(found.keys() - set(names))
        rows = [packed_lines(found[name]["lines"]) for name in names]
        self._lines: npt.NDArray[np.uint8] = np.array(rows, np.uint8).reshape(len(rows), -1)
        deferred = np.packbits(self._deferred())
        self.tests = [
            RecordedTest(name, int(np.unpackbits(row & deferred).sum()), found[name]["seconds"])
            for name, row in zip(names, self._lines, strict=True)
        ]

    def tests_of(self, file: str, change: Change) -> list[RecordedTest]:
        """Tests that run the changed line.

        Code that runs at import counts as run by each test that runs a function of the module or,
        if the module has no functions, of modules that import it.
        """
        return self.tests_of_lines(file, [change.statement] if change.deferred else [])

    def tests_of_lines(self, file: str, lines: Collection[int]) -> list[RecordedTest]:
        """Tests that run one of the statements that begin on these lines of functions.

        Without lines, tests of code that runs at import.
        """
        if lines:
            return self._running(self._files[file] + np.array(sorted(lines), np.int64))
        seen, waiting = {file}, deque([file])
        while waiting:
            each = waiting.popleft()
            if tests := self._running(self._deferred_of(each)):
                return tests
            new = self._importers.get(each, set()) - seen
            seen |= new
            waiting += sorted(new)
        return []

    def _running(self, numbers: npt.NDArray[np.int64]) -> list[RecordedTest]:
        if not len(self._lines):
            return []
        bits = self._lines[:, numbers >> 3] & (128 >> (numbers & 7)).astype(np.uint8)
        return [self.tests[row] for row in np.flatnonzero(bits.any(1))]

    def _deferred(self) -> npt.NDArray[np.bool_]:
        lines = np.zeros(self._count, np.bool_)
        for file in self._files:
            lines[self._deferred_of(file)] = True
        return lines

    def _deferred_of(self, file: str) -> npt.NDArray[np.int64]:
        """Numbers of the statements in a file's functions."""
        tree = ast.parse((self._root / file).read_text("utf-8"))
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        lines = {
            inner.lineno
            for node in ast.walk(tree)
            if isinstance(node, functions)
            for statement in node.body
            for inner in ast.walk(statement)
            if isinstance(inner, ast.stmt)
        }
        return np.array(sorted(lines), np.int64) + self._files[file]

    @cached_property
    def _importers(self) -> Mapping[str, set[str]]:
        """Importing files by imported file."""
        modules = {}
        for file in self._files:
            path = PurePath(file)
            parts = path.parent.parts if path.name == "__init__.py" else path.with_suffix("").parts
            modules[".".join(parts)] = file
        importers: dict[str, set[str]] = {}
        for file in self._files:
            for name in _imported(ast.parse((self._root / file).read_text("utf-8"))):
                if name in modules:
                    importers.setdefault(modules[name], set()).add(file)
        return importers


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def spread(tests: Collection[RecordedTest], file: str) -> list[RecordedTest]:
    """Tests of a change in `file`, in the order in which they are run; depends on code alone.

    Test files take turns: first the file named like the module, then files whose tests run the
    fewest lines. Within a file, functions take turns, then the cases of a function.
    """

    def order(of: list[RecordedTest]) -> tuple[bool, int, str]:
        named = PurePath(of[0].file).stem == f"test_{PurePath(file).stem}"
        return not named, of[0].breadth, of[0].name

    files = [
        list(_in_turns(_grouped(of_file, lambda test: test.function), 1))
        for of_file in _grouped(tests, lambda test: test.file)
    ]
    return list(_in_turns(sorted(files, key=order), TOGETHER))


def _grouped(
    tests: Iterable[RecordedTest], key: Callable[[RecordedTest], str]
) -> list[list[RecordedTest]]:
    groups: dict[str, list[RecordedTest]] = {}
    for test in sorted(tests, key=lambda test: (test.breadth, test.name)):
        groups.setdefault(key(test), []).append(test)
    return list(groups.values())


def _in_turns(groups: Iterable[list[_Item]], count: int) -> Iterator[_Item]:
    """`count` items of each group in turns, until all groups are empty."""
    waiting = deque(iter(group) for group in groups)
    while waiting:
        group = waiting.popleft()
        taken = [item for _, item in zip(range(count), group, strict=False)]
        yield from taken
        if len(taken) == count:
            waiting.append(group)
