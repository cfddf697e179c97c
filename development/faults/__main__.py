"""`python -m development.faults`: which faults of the bank a set of tests notices.

The same command continues an interrupted run, if code and tests have not changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from development.faults.anchoring import Tree, find_anchors
from development.faults.bank import BANK, is_sealed, read_faults, read_rows
from development.faults.comparing import summary
from development.faults.covering import covering_tests
from development.faults.recording import Recording
from development.faults.trying import FaultTrial, try_faults
from development.mutation.running import preload

ROOT = Path(__file__).parents[2]


def main(arguments: Sequence[str], root: Path = ROOT) -> None:
    """Try the faults of a slice, and print what was noticed by now."""
    options = parsed(arguments)
    number, count = options.slice
    faults = [fault for fault in read_faults(options.bank) if is_sealed(fault.id) == options.sealed]
    if options.rooms:
        rooms = tuple(options.rooms.split(","))
        faults = [fault for fault in faults if fault.room.startswith(rooms)]
    mine = faults[number - 1 :: count]

    recording = Recording(root, options.work.resolve(), options.processes)
    selection = [*options.tests, *(["-k", options.k] if options.k else [])]
    selection += ["-m", options.m] if options.m is not None else []
    names = recording.selected(selection)
    covering = recording.covering(names, selection[len(options.tests) :])
    before = read_rows(*options.before)
    witnesses = {row["id"]: row["test"] for row in before}
    preload()
    os.environ["PYTEST_ADDOPTS"] = "-m ''"  # tests are chosen by name, also slow ones

    tree = Tree(recording.source)
    chosen = set(names)
    trials = []
    for fault in mine:
        anchors = find_anchors(tree, fault)
        first = {fault.test, witnesses.get(fault.id, "")}
        tests = covering_tests(covering, tree, anchors, first) if anchors else []
        tests = [test for test in tests if test.name in chosen]
        trials.append(FaultTrial(fault, anchors, tests, len(tests)))
    settings = f"{sorted(chosen)} {options.cap} {options.limit}"
    folder = recording.folder / hashlib.sha256(settings.encode()).hexdigest()[:12]
    folder.mkdir(exist_ok=True)
    try_faults(trials, tree, recording.copies, folder, options.cap, options.limit)

    tried = {row["id"]: row for row in read_rows(folder / "results.jsonl")}  # also by other slices
    rows = [tried[fault.id] for fault in faults if fault.id in tried]
    if options.to:
        options.to.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    sys.stdout.write(f"{len(names)} tests; " + summary(rows, len(faults), before))


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m development.faults", description=__doc__)
    add = parser.add_argument
    add("--tests", nargs="*", default=[], help="files, folders or node ids; all fast tests")
    add("-k", help="expression of pytest that selects from them")
    add("-m", help="marks of pytest that select from them; '' includes slow tests")
    add("--slice", type=_slice, default=(1, 1), help="1/6: the first of six parts of the faults")
    add("--sealed", action="store_true", help="try the sealed third instead of the others")
    add("--rooms", help="only faults in these folders below seqrecord/, with commas between them")
    add("--before", type=Path, nargs="*", default=[], help="files of an earlier run, to compare")
    add("--to", type=Path, help="file for a JSON line of each fault")
    add("--cap", type=int, default=100, help="maximum number of tests per fault")
    add("--limit", type=float, default=60, help="seconds added to 6 times the duration of tests")
    add("--processes", type=int, default=2, help="faults tried at a time")
    add("--bank", type=Path, default=BANK, help="folder of the faults")
    add(
        "--work",
        type=Path,
        default=ROOT / "build" / "faults",
        help="folder of copies, recorded lines and results",
    )
    return parser.parse_args(arguments)


def _slice(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not 1 <= int(number) <= int(count):
        raise argparse.ArgumentTypeError(f"expected a part like 1/6; got: {text}")
    return int(number), int(count)


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # or the order of sets differs between runs
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "development.faults", *sys.argv[1:]])
    main(sys.argv[1:])
