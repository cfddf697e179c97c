"""Makes `repairs.jsonl`: repairs of git's history that are taken back.

    python -m development.faults.making.repairs --candidates FILE
    python -m development.faults.making.repairs --candidates FILE --chosen FILE --to FILE

A candidate is a commit with a small change of package and tests whose reverse still merges with
today's package, or has text that is still the same. Tests stay as they are. Somebody judges whether
the reverse is a fault, and lists the chosen commits. The second command tries them with the tests
of their commits, and writes the noticed ones. Run again with fewer commits chosen, it tries none
again.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from development.faults.anchoring import Anchor, Tree, faulty_sources, find_anchors, scopes_of
from development.faults.bank import (
    BANK,
    Fault,
    Replacement,
    fault_of,
    read_rows,
    room_of,
    write_faults,
)
from development.faults.making.replacing import essential, replacements_of
from development.faults.recording import Recording
from development.faults.trying import NOTICED, FaultTrial, try_fault
from development.mutation.covering import RecordedTest
from development.mutation.running import adopt_orphans, preload, run_tests
from development.mutation.trying import PATIENCE

ROOT = Path(__file__).parents[3]

SECONDS = 10.0
"""Expected duration of a test function with all its cases."""

MOST_LINES = 200
MOST_FILES = 8
"""Of the package, in a commit: larger changes are more than one repair."""


class Repository:
    """Git's history; objects of merges go to a temporary folder."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root = root
        self._environment: dict[str, str] = {}
        common = self._git("rev-parse", "--path-format=absolute", "--git-common-dir").strip()
        self._environment = {
            "GIT_OBJECT_DIRECTORY": str(folder),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{common}/objects",
        }

    def _git(self, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self._root,
            env={**os.environ, **self._environment},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in codes:
            raise RuntimeError(f"git {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def commits(self, since: str) -> list[tuple[str, str, dict[str, int]]]:
        """Hash, title and changed lines by file of each commit, the newest first."""
        log = self._git(
            "log",
            "--no-merges",
            "--min-parents=1",
            f"--since={since}",
            "--no-renames",
            "--numstat",
            "--format=@%h %s",
            "--abbrev=12",
        )
        commits: list[tuple[str, str, dict[str, int]]] = []
        for line in log.splitlines():
            if line.startswith("@"):
                name, _, title = line[1:].partition(" ")
                commits.append((name, title, {}))
            elif line and not line.startswith("-"):
                added, removed, file = line.split("\t")
                commits[-1][2][file] = int(added) + int(removed)
        return commits

    def without(self, commit: str) -> dict[str, str] | None:
        """The package's files that differ when a commit is taken back; None if it conflicts.

        A merge with the commit's parent as a change of the commit: it follows renamed files.
        """
        tree = self._git("rev-parse", f"{commit}^^{{tree}}").strip()
        reverse = self._git("commit-tree", tree, "-p", commit, "-m", "reverse").strip()
        merged = self._git(
            "merge-tree", "--write-tree", "--name-only", "HEAD", reverse, codes=(0, 1)
        )
        merged_tree, *messages = merged.split("\n\n")[0].splitlines()
        if any(name.startswith("seqrecord/") for name in messages):
            return None
        names = self._git(
            "diff", "--name-status", "--no-renames", "HEAD", merged_tree, "--", "seqrecord"
        )
        sources = {}
        for line in names.splitlines():
            status, file = line.split("\t")
            if status != "M" or not file.endswith(".py"):
                return None
            sources[file] = self._git("show", f"{merged_tree}:{file}")
        return sources

    def source(self, commit: str, file: str) -> str:
        """A file at a commit, "" if it has none."""
        return self._git("show", f"{commit}:{file}", codes=(0, 128))


def candidates(repository: Repository, tree: Tree, since: str) -> Iterator[dict[str, object]]:
    """Faults with the tests of their commits, as rows of a file.

    `part` is the share of the commit's replacements that the fault takes back.
    """
    for commit, title, files in repository.commits(since):
        package = [file for file in files if re.fullmatch(r"seqrecord/.*\.py", file)]
        tests = [file for file in files if re.fullmatch(r"tests/.*\.py", file)]
        lines = sum(files[file] for file in package)
        if not package or not tests or lines > MOST_LINES or len(package) > MOST_FILES:
            continue
        own_tests = {name for file in tests for name in changed_tests(repository, commit, file)}
        if not own_tests:
            continue
        sources, part = repository.without(commit), 1.0
        if sources is None:
            sources, part = without_by_text(repository, tree, commit, package)
        replacements: list[Replacement] = []
        for file, source in sources.items():
            found = replacements_of(tree, file, source.rstrip("\n") + "\n")
            replacements += essential(tree, found)
        if replacements and not any(map(has_undefined_names, sources.values())):
            room = room_of(replacements[0].file)
            fault = Fault(commit, "repair", room, title, tuple(replacements))
            yield {"fault": fault, "part": round(part, 2), "tests": sorted(own_tests)}


def has_undefined_names(source: str) -> bool:
    """Whether a module uses names that it lacks, because only a part was taken back."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return done.returncode != 0


def without_by_text(
    repository: Repository, tree: Tree, commit: str, package: Sequence[str]
) -> tuple[dict[str, str], float]:
    """Today's files without the texts of a commit that are still the same, and their share."""
    anchors: list[Anchor] = []
    count = 0
    for file in package:
        before, after = (repository.source(name, file) for name in (f"{commit}^", commit))
        if not before or not after:
            return {}, 0
        try:
            replacements = replacements_of(Tree(ROOT, {file: after}), file, before)
        except ValueError:
            return {}, 0
        count += len(replacements)
        for replacement in replacements:
            fault = Fault("", "", "", "", (replacement,))
            anchors += find_anchors(tree, fault) or []
    ordered = sorted(anchors, key=lambda anchor: (anchor.file, anchor.start))
    for first, second in pairwise(ordered):
        if first.file == second.file and first.end > second.start:
            return {}, 0
    return faulty_sources(tree, anchors), len(anchors) / count


def changed_tests(repository: Repository, commit: str, file: str) -> list[str]:
    """Names of tests in a file that a commit changed, or that use what it changed."""
    if not Path(file).name.startswith("test_"):
        return []
    try:
        before = _definitions(repository.source(f"{commit}^", file))
        after = _definitions(repository.source(commit, file))
    except SyntaxError:
        return []
    changed = {name for name, text in after.items() if before.get(name) != text}
    for _ in range(2):  # a table that a helper or a test reads
        changed |= {
            name
            for name, text in after.items()
            if any(re.search(rf"\b{re.escape(used)}\b", text) for used in changed)
        }
    return [f"{file}::{name}" for name in changed if name.startswith(("test_", "Test"))]


def _definitions(source: str) -> dict[str, str]:
    """Source of each function, class and table of a module, by name."""
    definitions = {}
    for node in ast.parse(source).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        text = "\n".join(source.split("\n")[first - 1 : node.end_lineno])
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            definitions[node.name] = text
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                definitions[ast.unparse(target)] = text
    return definitions


def tried(rows: Sequence[dict[str, Any]], recording: Recording, to: Path) -> None:
    """Append each candidate to `to`, with the outcome of the tests of its commit."""
    tree, copy = Tree(recording.source), recording.copies[0]
    known = {row["fault"]["id"] for row in read_rows(to)}
    tests_of = {
        path.relative_to(copy).as_posix(): set(scopes_of(path.read_text("utf-8")))
        for path in sorted((copy / "tests").rglob("test_*.py"))
    }
    adopt_orphans()
    preload()
    for row in rows:
        fault = fault_of(row["fault"])
        if fault.id in known:
            continue
        anchors = find_anchors(tree, fault)
        names = sorted({place for name in row["tests"] for place in places(name, tests_of)})
        tests = [RecordedTest(name, 0, SECONDS) for name in names]
        result = try_fault(copy, FaultTrial(fault, anchors, tests, len(tests)), tree=tree, limit=60)
        if result["test"]:  # it must pass without the fault
            control = run_tests(copy, [result["test"]], 60 + PATIENCE * SECONDS)
            result["control"] = control.ended
        with to.open("a") as file:
            file.write(json.dumps({**row, "result": result}, ensure_ascii=False) + "\n")


def noticed_faults(path: Path, chosen: Collection[str]) -> list[Fault]:
    """Those that a test of their commit notices; no errors of imports, which every test notices."""
    return [
        replace(fault, outcome=row["result"]["outcome"], test=row["result"]["test"])
        for row in read_rows(path)
        for fault in [fault_of(row["fault"])]
        if fault.id in chosen
        and row["result"]["outcome"] in NOTICED
        and "::" in row["result"]["test"]
        and row["result"]["control"] == "passed"
    ]


def places(name: str, tests: Mapping[str, Collection[str]]) -> list[str]:
    """Where a test is today: in its file, or in the only one that has a test of its name."""
    file, _, test = name.partition("::")
    if test in tests.get(file, ()):
        return [name]
    files = [each for each, names in tests.items() if test in names]
    return [f"{files[0]}::{test}"] if len(files) == 1 else []


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m development.faults.making.repairs")
    parser.add_argument("--since", default="2026-11-26", help="date of the first commit")
    parser.add_argument("--candidates", type=Path, required=True, help="file that is made")
    parser.add_argument("--chosen", type=Path, help="hashes of the commits to try, one a line")
    parser.add_argument("--to", type=Path, help="file for the outcomes of the chosen ones")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "faults")
    options = parser.parse_args(arguments)
    if options.chosen is None:
        with tempfile.TemporaryDirectory() as folder, options.candidates.open("w") as output:
            repository = Repository(ROOT, Path(folder))
            for row in candidates(repository, Tree(ROOT), options.since):
                output.write(json.dumps(row, default=vars, ensure_ascii=False) + "\n")
        return
    by_id = {row["fault"]["id"]: row for row in read_rows(options.candidates)}
    chosen = options.chosen.read_text().split()
    recording = Recording(ROOT, options.work.resolve(), 1)
    tried([by_id[name] for name in chosen], recording, options.to)
    write_faults(BANK / "repairs.jsonl", noticed_faults(options.to, chosen))


if __name__ == "__main__":
    main(sys.argv[1:])
