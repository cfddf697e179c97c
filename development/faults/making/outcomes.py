"""Notes in the bank what a run of `development.faults` found.

    python -m development.faults --tests tests --to FILE
    python -m development.faults.making.outcomes FILE

Faults of the files get their outcome and the test that noticed them, which later runs try first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from development.faults.bank import BANK, Fault, fault_of, read_rows, write_faults


def noted(fault: Fault, outcomes: dict[str, tuple[str, str]]) -> Fault:
    """A fault with its outcome, if it was tried and is not gone."""
    outcome, test = outcomes.get(fault.id, ("gone", ""))
    return fault if outcome == "gone" else replace(fault, outcome=outcome, test=test)


def main(files: Sequence[str]) -> None:
    rows = read_rows(*map(Path, files))
    outcomes = {row["id"]: (row["outcome"], row["test"]) for row in rows}
    for path in sorted(BANK.glob("*.jsonl")):
        write_faults(path, [noted(fault_of(row), outcomes) for row in read_rows(path)])


if __name__ == "__main__":
    main(sys.argv[1:])
