"""Which changes of a room are tried: each of its possible changes is as likely as any other."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.changes import Change, changed, changes_of

__all__ = ["Mutant", "draw", "mutants_of", "room_files"]


@dataclass(frozen=True)
class Mutant:
    """A change of one file; its `name` is the same while the lines and the function are.

    `before` and `after` are the lines that differ, without their indentation.
    """

    room: str
    file: str
    change: Change
    before: str
    after: str
    name: str


def room_files(root: Path, room: str) -> list[str]:
    """A room's modules, as sorted paths below `root`."""
    paths = (root / "seqrecord" / room).rglob("*.py")
    return sorted(str(path.relative_to(root)) for path in paths)


def draw(root: Path, room: str, seed: int, count: int) -> list[Mutant]:
    """`count` of a room's mutants, or all where it has fewer; from the same code always the same.

    Each mutant's place in the draw is a hash of the seed and of its name. So code that stays the
    same keeps its mutants when other code changes, which makes two commits easier to compare.
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
        name = f"{words}\n{seen[words]}"  # the same line may stand in a function twice
        seen[words] += 1
        mutants.append(Mutant(room, file, change, before, after, name))
    return mutants


def _difference(source: bytes, change: Change) -> tuple[str, str]:
    """The lines that a change changes, before and after it."""
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
