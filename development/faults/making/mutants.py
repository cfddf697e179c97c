"""Makes `mutants.jsonl`: noticed mutants of a report, and fresh ones of other rooms.

    python -m development.faults.making.mutants

Fresh ones are drawn from the code of today, as `development.mutation` does, and are not tried yet:
`development.faults` tries them, and `making.outcomes` notes what it found.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from development.faults.anchoring import Tree, find_anchors
from development.faults.bank import (
    BANK,
    Fault,
    Replacement,
    fault_of,
    read_rows,
    room_of,
    write_faults,
)
from development.faults.making.replacing import replacements_of
from development.faults.trying import NOTICED
from development.mutation.changes import changed
from development.mutation.drawing import Mutant, draw, mutants_of
from development.mutation.trying import identity

ROOT = Path(__file__).parents[3]

REPORT = ROOT / "development" / "mutation" / "results.jsonl"

ROOMS = {"formats": 40, "video": 40, "store/codecs": 40, "store/storage": 40, "cloud": 40}
"""Fresh mutants by room."""

SEED = 96


def noticed_mutants(tree: Tree) -> list[Fault]:
    """Faults of the report's noticed mutants whose text is still in the code."""
    faults = []
    for row in read_rows(REPORT):
        if row["outcome"] not in NOTICED:
            continue
        replacement = Replacement(row["file"], row["scope"], row["before"], row["after"])
        found = (row["outcome"], row["test"])
        fault = Fault(row["id"], "mutant", row["room"], row["kind"], (replacement,), *found)
        if find_anchors(tree, fault) is None:  # gone, or a line that the function repeats
            mutants = {identity(one): one for one in mutants_of(ROOT, row["room"], row["file"])}
            if (mutant := mutants.get(fault.id)) is None:
                sys.stderr.write(f"gone: {row['id']} {row['file']} {row['scope']}\n")
                continue
            fault = replace(fault, replacements=_fault(ROOT, tree, mutant).replacements)
        faults.append(fault)
    return faults


def fresh_mutants(root: Path, tree: Tree, room: str, count: int, seed: int) -> list[Fault]:
    """Drawn mutants of a room that the report lacks."""
    known = {row["id"] for row in read_rows(REPORT)}
    drawn = draw(root, room, seed, 2 * count)
    fresh = [mutant for mutant in drawn if identity(mutant) not in known]
    return [_fault(root, tree, mutant) for mutant in fresh[:count]]


def _fault(root: Path, tree: Tree, mutant: Mutant) -> Fault:
    new = changed((root / mutant.file).read_bytes(), mutant.change).decode()
    replacements = tuple(replacements_of(tree, mutant.file, new))
    return Fault(identity(mutant), "mutant", room_of(mutant.file), mutant.change.kind, replacements)


def main() -> None:
    tree = Tree(ROOT)
    faults = noticed_mutants(tree)
    for room, count in ROOMS.items():
        faults += fresh_mutants(ROOT, tree, room, count, SEED)
    # Those of the bank stay as they are, with what was found since.
    path = BANK / "mutants.jsonl"
    by_id = {fault.id: fault for fault in [*faults, *map(fault_of, read_rows(path))]}
    write_faults(path, by_id.values())
    sys.stdout.write(f"{len(by_id)} faults\n")


if __name__ == "__main__":
    main()
