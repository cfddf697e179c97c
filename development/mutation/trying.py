"""Runs tests on mutants, one mutant per copy of the project at a time, and writes the results."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any

from development.mutation.changes import changed
from development.mutation.covering import RecordedTest
from development.mutation.drawing import Mutant
from development.mutation.running import adopt_orphans, run_tests

__all__ = ["PATIENCE", "Trial", "control", "identity", "read_results", "share", "try_mutants"]

FIRST = 12
"""Tests in a first run: most mutants need no more, and importing test files takes time."""

PATIENCE = 6.0
"""Time-out of a run as a multiple of its tests' recorded time, without imports."""

CONTROL = 120.0
"""Seconds for imports when all tests are run."""

FILES = 8
"""Test files per process when all tests are run."""


@dataclass(frozen=True)
class Trial:
    """A mutant and the selected tests, with the number of tests that run its line."""

    mutant: Mutant
    tests: Sequence[RecordedTest]
    covering: int


def identity(mutant: Mutant) -> str:
    """A mutant's id in files."""
    return hashlib.sha256(mutant.name.encode()).hexdigest()[:16]


def read_results(path: Path) -> list[dict[str, Any]]:
    """Lines of a results file, without an incomplete last line."""
    results = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        try:
            results.append(json.loads(line))
        except ValueError:
            continue
    return results


def try_mutants(
    trials: Sequence[Trial], trees: Sequence[Path], results: Path, limit: float
) -> None:
    """Test the mutants missing in `results`, and append a line for each.

    `limit` is the time in seconds for importing the package and the tests.
    """
    done = {result["id"] for result in read_results(results)}
    remaining = [trial for trial in trials if identity(trial.mutant) not in done]
    share(remaining, partial(_try, limit=limit), trees, results, len(trials))


def _try(tree: Path, trial: Trial, limit: float) -> dict[str, Any]:
    mutant = trial.mutant
    path = tree / mutant.file
    source = path.read_bytes()
    tried, seconds = 0, 0.0
    ended, outcome = ("survived" if trial.tests else "not covered"), None
    path.write_bytes(changed(source, mutant.change))
    try:
        for tests in (trial.tests[:FIRST], trial.tests[FIRST:]):
            if tests:
                names = [test.name for test in tests]
                outcome = run_tests(tree, names, limit + PATIENCE * _seconds(tests))
                tried += len(outcome.tests)
                seconds += outcome.seconds
                if outcome.ended != "passed":
                    ended = "noticed" if outcome.ended == "failed" else "time-out"
                    break
    finally:
        path.write_bytes(source)
    noticed = ended in ("noticed", "time-out") and outcome is not None
    return {
        "id": identity(mutant),
        "room": mutant.room,
        "file": mutant.file,
        "line": mutant.change.line,
        "scope": mutant.change.scope,
        "kind": mutant.change.kind,
        "before": mutant.before,
        "after": mutant.after,
        "outcome": ended,
        "covering": trial.covering,
        "tried": tried,
        "seconds": round(seconds, 1),
        "test": outcome.last if noticed and outcome else "",
        # Without this machine's path.
        "message": outcome.message.replace(f"{tree}/", "")[:200] if noticed and outcome else "",
    }


def _seconds(tests: Sequence[RecordedTest]) -> float:
    return sum(test.seconds for test in tests)


def control(tests: Sequence[RecordedTest], trees: Sequence[Path], results: Path) -> dict[str, bool]:
    """Run all tests like those of a mutant, but without a change: whether each failed, by name."""
    files = [list(of_file) for _, of_file in groupby(tests, key=lambda test: test.file)]
    jobs = [list(chain(*files[start : start + FILES])) for start in range(0, len(files), FILES)]
    done = {result["job"] for result in read_results(results)}
    remaining = [job for job in jobs if job[0].name not in done]
    share(remaining, _control, trees, results, len(jobs))
    failed: dict[str, bool] = {}
    for result in read_results(results):
        failed |= result["failed"]
    return failed


def _control(tree: Path, tests: Sequence[RecordedTest]) -> dict[str, Any]:
    failed: dict[str, bool] = {}
    seconds = 0.0
    remaining = list(tests)
    while remaining:
        names = [test.name for test in remaining]
        limit = CONTROL + PATIENCE * _seconds(remaining)
        outcome = run_tests(tree, names, limit, stop=False, keep=True)
        seconds += outcome.seconds
        failed |= {name: has_failed for name, (has_failed, _) in outcome.tests.items()}
        remaining = [test for test in remaining if test.name not in failed]
        if remaining:  # a test ended the process, or lasted too long
            ended = outcome.last in names
            failed |= dict.fromkeys([outcome.last] if ended else names, True)
            remaining = [test for test in remaining if test.name not in failed]
    return {"job": tests[0].name, "seconds": round(seconds, 1), "failed": failed}


def share(
    jobs: Sequence[Any],
    do: Callable[[Path, Any], Mapping[str, Any]],
    trees: Sequence[Path],
    results: Path,
    count: int,
) -> None:
    """Do jobs in one process per tree; each process takes the next job when it is free.

    A job's result is a line of `results`. `count` includes the jobs that were done before.
    """
    taking, giving = os.pipe()
    workers = []
    for tree in trees:
        worker = os.fork()
        if worker == 0:
            status = 1
            try:
                os.close(giving)
                adopt_orphans()
                for number in _numbers(taking):
                    result = do(tree, jobs[number])
                    _append(results, json.dumps(result) + "\n")
                    _append(None, _line(number + 1 + count - len(jobs), count, result))
                status = 0
            except KeyboardInterrupt:
                pass
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        workers.append(worker)
    os.close(taking)
    with os.fdopen(giving, "wb") as numbers:  # each read of four bytes takes one number
        numbers.write(b"".join(number.to_bytes(4, "little") for number in range(len(jobs))))
    statuses = [os.waitpid(worker, 0)[1] for worker in workers]
    if any(statuses):
        raise RuntimeError("a process that runs mutants has failed")


def _numbers(handle: int) -> Iterator[int]:
    while taken := os.read(handle, 4):
        yield int.from_bytes(taken, "little")


def _append(path: Path | None, text: str) -> None:
    """Append lines in one write, since several processes append."""
    if path is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    with path.open("ab", buffering=0) as file:
        file.write(text.encode())


def _line(number: int, count: int, result: Mapping[str, Any]) -> str:
    if "job" in result:
        return f"{number}/{count} without a change: {result['seconds']:.0f} s, {result['job']}\n"
    place = f"{result['file']}:{result['line']}" if "line" in result else result["id"]
    return f"{number}/{count} {result['outcome']}: {place}, {result['seconds']:.0f} s\n"
