"""Tries faults, each in a private copy of the project, with tests that run their text."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from development.faults.anchoring import Anchor, Tree, faulty_sources
from development.faults.bank import Fault, read_rows
from development.mutation.covering import RecordedTest
from development.mutation.running import run_tests
from development.mutation.trying import PATIENCE, control, share

__all__ = ["NOTICED", "FaultTrial", "try_fault", "try_faults"]

NOTICED = ("noticed", "time-out")

STEPS = (1, 11)
"""Tests of the first runs of a fault: importing more test files takes time."""


@dataclass(frozen=True)
class FaultTrial:
    """A fault, its place (None if it is gone), and the tests that are tried, best ones first.

    `covering` is the number of all tests that run its text.
    """

    fault: Fault
    anchors: Sequence[Anchor] | None
    tests: Sequence[RecordedTest]
    covering: int


def try_faults(
    trials: Sequence[FaultTrial],
    tree: Tree,
    copies: Sequence[Path],
    work: Path,
    cap: int,
    limit: float,
) -> list[dict[str, Any]]:
    """A row for each fault, from files of `work` if it was tried before.

    At most `cap` tests are tried on a fault. A test notices a fault only if it passes without one:
    tests that failed are run again on the unchanged code, and faults noticed by tests that fail
    there too are tried without these. `limit` is the time in seconds for importing package and
    tests.
    """
    results, controls = work / "results.jsonl", work / "control.jsonl"
    by_name = {test.name: test for trial in trials for test in trial.tests}
    excluded: set[str] = set()
    while True:
        rows = {row["id"]: row for row in read_rows(results)}  # the last row of a fault counts
        remaining = [
            replace(trial, tests=[test for test in trial.tests if test.name not in excluded][:cap])
            for trial in trials
            if (row := rows.get(trial.fault.id)) is None or row["test"] in excluded
        ]
        untried = [trial for trial in remaining if not trial.tests]
        with results.open("a") as file:
            file.write("".join(json.dumps(_row(trial)) + "\n" for trial in untried))
        if remaining := [trial for trial in remaining if trial.tests]:
            share(
                remaining, partial(try_fault, tree=tree, limit=limit), copies, results, len(trials)
            )
        rows = {row["id"]: row for row in read_rows(results)}
        found = [rows[trial.fault.id] for trial in trials]
        failed = _failing(
            {row["test"] for row in found} & by_name.keys(), by_name, copies, controls
        )
        if failed <= excluded:
            return found
        excluded |= failed


def _failing(
    names: Collection[str],
    tests: Mapping[str, RecordedTest],
    copies: Sequence[Path],
    controls: Path,
) -> set[str]:
    """Tests that fail on unchanged code."""
    known: dict[str, bool] = {}
    for row in read_rows(controls):
        known |= row["failed"]
    if remaining := sorted(names - known.keys()):
        part = controls.with_name(f"control-{len(known)}.jsonl")
        part.unlink(missing_ok=True)
        known |= control([tests[name] for name in remaining], copies, part)
        with controls.open("a") as file:
            file.write(part.read_text())
        part.unlink()
    return {name for name in names if known[name]}


def _row(trial: FaultTrial) -> dict[str, Any]:
    """The result if no test fails."""
    fault = trial.fault
    outcome = "unnoticed" if trial.tests else "not covered"
    return {
        "id": fault.id,
        "group": fault.group,
        "room": fault.room,
        "about": fault.about,
        "outcome": "gone" if trial.anchors is None else outcome,
        "covering": trial.covering,
        "tried": 0,
        "seconds": 0.0,
        "test": "",
        "message": "",
    }


def try_fault(copy: Path, trial: FaultTrial, *, tree: Tree, limit: float) -> dict[str, Any]:
    """Try a fault in a copy of the project."""
    row, anchors = _row(trial), trial.anchors
    assert anchors is not None
    originals = {anchor.file: (copy / anchor.file).read_bytes() for anchor in anchors}
    first, second = STEPS[0], sum(STEPS)
    try:
        for file, source in faulty_sources(tree, anchors).items():
            (copy / file).write_text(source, "utf-8")
        for tests in (trial.tests[:first], trial.tests[first:second], trial.tests[second:]):
            if not tests:
                break
            names = [test.name for test in tests]
            seconds = sum(test.seconds for test in tests)
            outcome = run_tests(copy, names, limit + PATIENCE * seconds)
            row["tried"] += len(outcome.tests)
            row["seconds"] = round(row["seconds"] + outcome.seconds, 1)
            if outcome.ended != "passed":
                row["outcome"] = "noticed" if outcome.ended == "failed" else "time-out"
                row["test"] = outcome.last
                row["message"] = outcome.message.replace(f"{copy}/", "")[:200]
                break
    finally:
        for file, data in originals.items():
            (copy / file).write_bytes(data)
    return row
