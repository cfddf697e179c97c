"""Faults of the bank: small replacements of text, by file, function and text instead of lines.

`mutants.jsonl` has changes drawn by `development.mutation`, `repairs.jsonl` repairs that are taken
back. Each line is a `Fault`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = [
    "BANK",
    "Fault",
    "Replacement",
    "fault_of",
    "is_sealed",
    "read_faults",
    "read_rows",
    "room_of",
    "write_faults",
]

BANK = Path(__file__).parent
"""Folder of the bank's files."""

SEED = 96
"""Decides which third is sealed. It never changes: a new draw would show tried faults as new."""


@dataclass(frozen=True)
class Replacement:
    """Lines `old` of a function become `new`, both without their common indentation.

    `scope` is the dotted name of the function or class, "" for the whole module. If the scope has
    the text several times (`count`), `number` says which one is replaced.
    """

    file: str
    scope: str
    old: str
    new: str
    number: int = 0
    count: int = 1


@dataclass(frozen=True)
class Fault:
    """One fault. `group` is "mutant" or "repair", `about` the kind of change or the repair's title.

    `outcome` is what `development.faults` found when the fault was added, and `test` the test that
    noticed it, which is tried first.
    """

    id: str
    group: str
    room: str
    about: str
    replacements: tuple[Replacement, ...]
    outcome: str = "not tried"
    test: str = ""


def read_faults(folder: Path = BANK) -> list[Fault]:
    """All faults of a folder, sorted by their id."""
    rows = [row for path in sorted(folder.glob("*.jsonl")) for row in read_rows(path)]
    return sorted(map(fault_of, rows), key=lambda fault: fault.id)


def fault_of(row: Mapping[str, Any]) -> Fault:
    """A fault from its line of a file."""
    replacements = tuple(Replacement(**replacement) for replacement in row["replacements"])
    return Fault(**{**row, "replacements": replacements})


def write_faults(path: Path, faults: Iterable[Fault]) -> None:
    """Write a file of the bank, sorted by id."""
    rows = [asdict(fault) for fault in sorted(faults, key=lambda fault: fault.id)]
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(lines), encoding="utf-8")


def read_rows(*paths: Path) -> list[dict[str, Any]]:
    """JSON lines of several files, without the incomplete last line of an interrupted run."""
    rows: list[dict[str, Any]] = []
    for path in paths:
        lines: Sequence[str] = path.read_text("utf-8").split("\n") if path.exists() else []
        for line in lines:
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


def is_sealed(fault_id: str, seed: int = SEED) -> bool:
    """Whether a fault belongs to the third that is tried only after tests were chosen."""
    return int.from_bytes(hashlib.sha256(f"{seed}\n{fault_id}".encode()).digest(), "big") % 3 == 0


def room_of(file: str) -> str:
    """The part and room of a module, such as `store/reading`."""
    return "/".join(file.split("/")[1:-1][:2])
