"""`python -m development.mutation`: draws mutants, tests them, and writes the report.

An interrupted run resumes when it is started again with the same code and settings.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from development.mutation.covering import Covering, spread
from development.mutation.drawing import draw
from development.mutation.instrumenting import write_instrumented
from development.mutation.report import report
from development.mutation.running import preload
from development.mutation.trees import copy_tree, digest, project_files, restore
from development.mutation.trying import (
    PATIENCE,
    Trial,
    control,
    identity,
    read_results,
    try_mutants,
)

ROOT = Path(__file__).parents[2]
ROOMS = (
    "loader/engine,loader/pipes,loader/mixing,loader/sampling,store/reading,store/writing,"
    "tools/edit,formats/export,camera,companions,recipes"
)


def main(arguments: Sequence[str]) -> None:
    options = parsed(arguments)
    files = project_files(ROOT)
    work = options.work / digest(ROOT, files, options.tests)
    source, code, records = work / "source", work / "code", work / "records"
    if not (work / "recorded").exists():
        shutil.rmtree(work, ignore_errors=True)
        copy_tree(ROOT, files, source)
        write_instrumented(source, code)
        record(source, code, records, options.tests, options.processes)
        (work / "recorded").write_text(described())  # the commit of the copies
    trees = [work / f"tree-{number}" for number in range(options.processes)]
    for tree in trees:
        if not (tree / "seqrecord").exists():
            copy_tree(source, files, tree)
        restore(source, tree)

    preload()
    covering = Covering(source, code, records)
    control_failed = control(covering.tests, trees, work / "control.jsonl")
    excluded = sorted({*covering.failed, *(name for name, bad in control_failed.items() if bad)})
    trials = []
    for room in options.rooms.split(","):
        for mutant in draw(source, room, options.seed, options.count):
            tests = covering.tests_of(mutant.file, mutant.change)
            tests = [test for test in tests if test.name not in excluded]
            tried = spread(tests, mutant.file)[: options.cap]
            trials.append(Trial(mutant, tried, len(tests)))
    results = work / f"results-cap-{options.cap}-limit-{options.limit:g}.jsonl"
    try_mutants(trials, trees, results, options.limit)

    found = {result["id"]: result for result in read_results(results)}
    mine = [found[identity(trial.mutant)] for trial in trials]
    settings = {
        "commit": (work / "recorded").read_text(),
        "seed": options.seed,
        "mutants": f"{options.count} in each room",
        "tests": f"{len(covering.tests)}, of which at most {options.cap} for each mutant",
        "a time-out": f"{PATIENCE:g} times what the tests took before, and {options.limit:g} s",
        "machine": f"{os.cpu_count()} cores, Python {platform.python_version()}",
    }
    against = read_results(options.against) if options.against else []
    options.to.mkdir(parents=True, exist_ok=True)
    page = report(mine, settings, excluded, against)
    (options.to / "REPORT.md").write_text(page, encoding="utf-8")
    lines = [json.dumps(result) + "\n" for result in sorted(mine, key=lambda each: each["id"])]
    (options.to / "results.jsonl").write_text("".join(lines), encoding="utf-8")
    sys.stdout.write(page.partition("## Tests left out")[0])


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m development.mutation", description=__doc__)
    add = parser.add_argument
    add("--rooms", default=ROOMS, help="folders below seqrecord/, with commas between them")
    add("--count", type=int, default=60, help="mutants in each room")
    add("--seed", type=int, default=0, help="seed of the draw")
    add("--cap", type=int, default=100, help="maximum number of tests per mutant")
    add("--limit", type=float, default=60, help="seconds added to 6 times the duration of tests")
    add("--processes", type=int, default=2, help="mutants tested at a time")
    add(
        "--work",
        type=Path,
        default=ROOT / "build" / "mutants",
        help="folder of an interrupted run's results",
    )
    add("--to", type=Path, default=ROOT / "build" / "mutants", help="folder of the report")
    add("--against", type=Path, help="results.jsonl of another commit, for comparison")
    add("--tests", nargs="*", default=[], help="test files; by default all fast tests")
    options = parser.parse_args(arguments)
    options.work = options.work.resolve()
    return options


def record(source: Path, code: Path, records: Path, tests: Sequence[str], processes: int) -> None:
    """Run the fast tests once to record the lines of each."""
    records.mkdir()
    path = os.pathsep.join([str(source / "development" / "mutation" / "on_path"), str(source)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"MUTATION_CODE": str(code), "MUTATION_RECORDS": str(records)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "development.mutation.recording"]
    command += ["-p", "no:cacheprovider", "-n", str(processes), "--dist", "loadfile", *tests]
    done = subprocess.run(command, cwd=source, env=environment, check=False)
    if done.returncode not in (0, 1):  # failing tests are excluded
        sys.exit(f"the tests could not be run: pytest ended with {done.returncode}")


def described() -> str:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # or the order of sets differs between runs
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "development.mutation", *sys.argv[1:]])
    main(sys.argv[1:])
