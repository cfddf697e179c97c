"""Draws the changes to be tested: all changes of a subpackage have the same probability."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from development.mutation.changes import Change, changed, changes_of

__all__ = ["Mutant", "draw", "mutants_of", "room_files"]


@dataclass(frozen=True)
class Mutant:
    """A change of one file; its `name` depends only on the changed lines and the function.

    `before` and `after` are the lines that differ, without their indentation.
    """

    room: str
    file: str
    change: Change
    before: str
    after: str
    name: str


def room_files(root: Path, room: str) -> list[str]:
    """Modules of a room (a subpackage), as sorted paths below `root`."""
    paths = (root / "seqrecord" / room).rglob("*.py")
    return sorted(str(path.relative_to(root)) for path in paths)


def draw(root: Path, room: str, seed: int, count: int) -> list[Mutant]:
    """`count` of a room's mutants, or all if there are fewer; reproducible for the same code.

    Mutants are ordered by a hash of the seed and their name. Unchanged code keeps its mutants when
    other code changes, so that two commits can be compared.
    """

    def place(mutant: Mutant) -> bytes:
        return hashlib.sha256(f"{seed}\n{mutant.name}".encode()).digest()

    found = (mutant for file in room_files(root, room) for mutant in mutants_of(root, room, file))
    return sorted(found, key=place)[:count]


def mutants_of(root: Path, room: str, file: str) -> list[Mutant]:
    """All mutants of a file."""
    source = (root / file).read_bytes()
    return _named(room, file, source, changes_of(source))


def _named(room: str, file: str, source: bytes, changes: Iterable[Change]) -> list[Mutant]:
    mutants = []
    seen: Counter[str] = Counter()
    for change in changes:
        before, after = _difference(source, change)
        words = "\n".join((file, change.scope, change.kind, before, after))
        name = f"{words}\n{seen[words]}"  # a function may repeat a line
        seen[words] += 1
        mutants.append(Mutant(room, file, change, before, after, name))
    return mutants


def _difference(source: bytes, change: Change) -> tuple[str, str]:
    """The changed lines, before and after."""
    start = source.rfind(b"\n", 0, min(edit.start for edit in change.edits)) + 1
    end = source.find(b"\n", max(edit.end for edit in change.edits))
    end = len(source) if end < 0 else end
    rest = len(source) - end
    new = changed(source, change)
    return _dedented(source[start:end]), _dedented(new[start : len(new) - rest])


def _dedented(lines: bytes) -> str:
    text = lines.decode().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in text if line.strip()), default=0)
    return "\n".join(line[margin:].rstrip() for line in text)
