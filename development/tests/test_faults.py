"""`make faults`: places of faults in changed code, tests that run them, and comparisons."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from development.faults.anchoring import Tree, faulty_sources, find_anchors
from development.faults.bank import (
    Fault,
    Replacement,
    is_sealed,
    read_faults,
    read_rows,
    write_faults,
)
from development.faults.comparing import chance, summary
from development.faults.covering import statements_of
from development.faults.making.repairs import Repository, candidates
from development.faults.making.replacing import replacements_of
from development.tests.test_mutation import MODULE as PROJECT_MODULE
from development.tests.test_mutation import new_project

ROOT = Path(__file__).parents[2]

MODULE = """
LIMIT = 3

class Reader:
    def close(self):
        if self.opened:
            # closed once
            self.file.close()

    def read(self):
        self.count += 1
        self.count += 1
        return self.file.read()
"""

FILE = "seqrecord/store/reader.py"


def fault(*replacements: Replacement, name: str = "a") -> Fault:
    return Fault(name, "mutant", "store", "statement", replacements)


CLOSE = Replacement(FILE, "Reader.close", "self.file.close()", "pass")


def faulty(sources: dict[str, str], replacement: Replacement) -> dict[str, str] | None:
    """The changed lines by file, or None if the fault is gone."""
    tree = Tree(ROOT, sources)
    anchors = find_anchors(tree, fault(replacement))
    return None if anchors is None else faulty_sources(tree, anchors)


def test_a_fault_is_found_where_it_was() -> None:
    assert faulty({FILE: MODULE}, CLOSE) == {FILE: MODULE.replace("self.file.close()", "pass")}


def test_a_fault_is_found_after_its_code_has_moved() -> None:
    other = "seqrecord/companions/files.py"
    near = {"seqrecord/store/writer.py": "class Writer:\n    def close(self):\n        pass\n"}
    expected = MODULE.replace("self.file.close()", "pass")
    assert faulty({other: MODULE, **near}, CLOSE) == {other: expected}
    # Into another class, or out of it, with another indentation.
    renamed, function = (
        MODULE.replace("Reader", "FileReader"),
        "def close(self):\n  self.file.close()\n",
    )
    assert faulty({FILE: renamed}, CLOSE) == {FILE: renamed.replace("self.file.close()", "pass")}
    assert faulty({other: function, FILE: ""}, CLOSE) == {other: "def close(self):\n  pass\n"}


def test_a_fault_is_gone_if_its_text_is_not_the_only_one_or_has_changed() -> None:
    other = "seqrecord/companions/files.py"
    assert faulty({FILE: MODULE.replace("file.close", "file.end"), other: MODULE}, CLOSE) is None
    assert faulty({"seqrecord/a.py": MODULE, "seqrecord/b.py": MODULE}, CLOSE) is None
    assert faulty({FILE: ""}, CLOSE) is None
    assert faulty({FILE: MODULE.replace("self.file.close()", "pass")}, CLOSE) is None


def test_a_line_that_a_function_repeats_has_a_number() -> None:
    first = Replacement(FILE, "Reader.read", "self.count += 1", "pass", 0, 2)
    second = Replacement(FILE, "Reader.read", "self.count += 1", "pass", 1, 2)
    head, line, rest = MODULE.partition("self.count += 1")
    assert faulty({FILE: MODULE}, first) == {FILE: head + "pass" + rest}
    assert faulty({FILE: MODULE}, second) == {FILE: head + line + rest.replace(line, "pass")}
    once = MODULE.replace("        self.count += 1\n", "", 1)
    assert faulty({FILE: once}, first) is None


EDITS = {
    "a changed line": ("LIMIT = 3", "LIMIT = 4"),
    "an inserted line": ("        return", "        self.count = 0\n        return"),
    "a removed line": ("            # closed once\n", ""),
    "an inserted first line": ("\nLIMIT", "\nimport os\n\nLIMIT"),
    "a removed branch": (
        "        if self.opened:\n            # closed once\n            self.file.close()",
        "        self.file.close()",
    ),
    "one of two equal lines": ("1\n        return", "2\n        return"),
    "a removed function": (
        "\n    def close(self):\n        if self.opened:\n",
        "\n    def close(self):\n        if 1:\n",
    ),
    "an added function": (
        "\n    def read",
        "\n    def name(self):\n        return 1\n\n    def read",
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_replacements_make_the_new_source(edit: str) -> None:
    new = MODULE.replace(*EDITS[edit], 1)
    assert new != MODULE
    tree = Tree(ROOT, {FILE: MODULE})
    replacements = replacements_of(tree, FILE, new)
    anchors = find_anchors(tree, fault(*replacements))
    assert anchors is not None
    assert faulty_sources(tree, anchors) == {FILE: new}


def test_the_statements_of_lines() -> None:
    numbered = {line: number for number, line in enumerate(MODULE.split("\n"), 1)}
    close, condition = (
        numbered["            self.file.close()"],
        numbered["        if self.opened:"],
    )
    assert statements_of(MODULE, range(close, close + 1)) == {close}
    assert statements_of(MODULE, range(condition, close)) == {condition}
    head = numbered["    def close(self):"]
    assert statements_of(MODULE, range(head, head + 1)) == {condition, close}
    assert statements_of(MODULE, range(2, 3)) == set()  # runs at import
    assert statements_of(MODULE, range(3, 4)) is None


def test_a_third_is_sealed() -> None:
    names = [f"{number:016x}" for number in range(3000)]
    sealed = {name for name in names if is_sealed(name)}
    assert 1000 - 4 * 26 < len(sealed) < 1000 + 4 * 26  # four standard deviations
    assert sealed != {name for name in names if is_sealed(name, seed=1)}
    assert [is_sealed(name) for name in ("3115fe84", "7dc52fbb", "b8f314f5")] == [
        False,
        False,
        True,
    ]


def test_the_probability_of_a_difference() -> None:
    assert chance(0, 0) == 1
    assert chance(5, 0) == chance(0, 5) == 2 / 32
    assert chance(8, 1) == 2 * (1 + 9) / 512
    assert chance(3, 3) == 1


def row(name: str, outcome: str) -> dict[str, object]:
    return {"id": name, "room": "store/reading", "outcome": outcome, "test": f"test_{name}"}


def test_a_summary_compares_with_an_earlier_run() -> None:
    before = [row(name, "noticed") for name in "abcdefgh"] + [row("i", "unnoticed")]
    now = [row("a", "time-out"), row("h", "gone"), row("i", "noticed")]
    now += [row(name, "unnoticed") for name in "bcdefg"]
    text = summary(now, 12, before)
    assert "9 of 12 faults tried\n" in text
    assert "store/reading " + "".join(f"{n:13}" for n in (1, 1, 6, 0, 1)).rjust(75) in text
    assert "time-out: a by test_a\n" in text
    assert "of 8 faults in both runs, noticed before: 7, now: 2; lost: 6, gained: 1\n" in text
    assert "within chance: a difference as large has a probability of 0.125\n" in text
    assert "lost: b store/reading, noticed before by test_b\n" in text
    assert "beyond chance" in summary(now[:1] + now[3:], 12, before)


def test_faults_of_the_bank_are_faults(thorough: bool) -> None:
    """Each is in the code once, unless its code is gone, and leaves a module that compiles."""
    faults = read_faults()
    assert len({one.id for one in faults}) == len(faults) > 500
    tree = Tree(ROOT)
    for one in faults if thorough else faults[::60]:
        anchors = find_anchors(tree, one)
        for file, source in faulty_sources(tree, anchors or []).items():
            assert source != "\n".join(tree.lines(file)), one.id
            compile(source, file, "exec")


# Repairs of a small history

REPAIRED = """
def size(rows):
    \"\"\"Docs of size.\"\"\"
    found = len(rows)
    return max(found, 1)

def first(rows):
    return rows[0]
"""

TESTS = """
ROWS = [[]]

def test_rows():
    assert first([3]) == 3

def test_no_rows():
    for rows in ROWS:
        assert size(rows) == 1
"""


def committed(root: Path, title: str, **files: str) -> None:
    for name, text in files.items():
        path = root / Path(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["add", "."], [*who, "commit", "-q", "-m", title]):
        subprocess.run(["git", *command], cwd=root, check=True)


@pytest.mark.parametrize("conflicts", [False, True])
def test_a_repair_is_taken_back(conflicts: bool, tmp_path: Path) -> None:
    root, objects = tmp_path / "project", tmp_path / "objects"
    root.mkdir()
    objects.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    before = REPAIRED.replace("max(found, 1)", "found").replace("Docs of", "The")
    files = {"tests__store__test_reader": TESTS.replace("[[]]", "[]")}
    committed(root, "all", seqrecord__store__reader=before, **files)
    committed(root, "no rows", seqrecord__store__reader=REPAIRED, tests__store__test_reader=TESTS)
    committed(root, "words", seqrecord__store__reader=REPAIRED + "# end\n")
    moved = REPAIRED.replace("len(rows)", "len(list(rows))") if conflicts else REPAIRED
    subprocess.run(["git", "mv", "seqrecord/store", "seqrecord/parts"], cwd=root, check=True)
    committed(root, "moved", seqrecord__parts__reader=moved)

    repository, tree = Repository(root, objects), Tree(root)
    (candidate,) = candidates(repository, tree, "2020-01-01")
    assert candidate["tests"] == ["tests/store/test_reader.py::test_no_rows"]
    assert candidate["part"] == 1
    found = candidate["fault"]
    assert isinstance(found, Fault)
    assert (repository.without(found.id) is None) == conflicts
    assert (found.group, found.room, found.about) == ("repair", "parts", "no rows")
    # The docstring keeps its change: a fault has only the text that it needs.
    place = "seqrecord/parts/reader.py"
    returned = ("return max(found, 1)", "return found")
    assert found.replacements == (Replacement(place, "size", *returned),)


# The command, on a small project: test_mutation.py has its package and its tests.

PLACE = "seqrecord/room/module.py"

FAULTS = {
    "noticed": ("seqrecord/old/module.py", "limited", "return a", "return 9"),
    "noticed by others": (PLACE, "limited", "return LIMIT", "return 1"),
    "timeout": (PLACE, "waiting", "a += 1", "a += 0"),
    "unnoticed": (PLACE, "waiting", "a += 1", "a += 2"),
    "not covered": (PLACE, "nobody_calls", "return -LIMIT", "return 0"),
    "gone": (PLACE, "limited", "return b", "return 9"),
    "gone too": (PLACE, "nobody", "return b", "return 9"),
}

FAILING = """
import os
import pytest
from seqrecord.room.module import nobody_calls, waiting

@pytest.mark.slow
def test_slow():
    assert nobody_calls() == -3

def test_that_fails_where_faults_are_tried():
    waiting(0)
    assert "MUTATION_CODE" in os.environ
"""
"""The last test passes where its lines are recorded: it must not notice `unnoticed`."""

OUTCOMES = {
    "noticed": "noticed",
    "noticed by others": "noticed",
    "timeout": "time-out",
    "unnoticed": "unnoticed",
    "not covered": "not covered",
    "gone too": "gone",
}
"""Of the faults that are not sealed, with all tests."""

UNCOVERED = dict.fromkeys(["noticed by others", "timeout", "unnoticed"], "not covered")
"""With few tests."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_complete_run(tmp_path: Path) -> None:
    root = new_project(tmp_path / "project")
    ignored = shutil.ignore_patterns("*.jsonl", "__pycache__")
    shutil.copytree(
        ROOT / "development" / "faults", root / "development" / "faults", ignore=ignored
    )
    write_faults(
        root / "development" / "faults" / "mutants.jsonl",
        [fault(Replacement(*text), name=name) for name, text in FAULTS.items()],
    )

    (root / "tests" / "test_other.py").write_text(FAILING)

    def run(to: str, *arguments: str) -> tuple[dict[str, str], str]:
        command = [sys.executable, "-m", "development.faults", "--limit", "20", "--to", to]
        environment = {**os.environ, "PYTHONPATH": str(root)}
        done = subprocess.run(
            [*command, *arguments], cwd=root, env=environment, stdout=subprocess.PIPE, text=True
        )
        assert done.returncode == 0
        return {row["id"]: row["outcome"] for row in read_rows(root / to)}, done.stdout

    first, _ = run("build/first.jsonl", "--slice", "1/2")
    assert 0 < len(first) < len(OUTCOMES)
    every, output = run("build/all.jsonl")
    assert every == OUTCOMES
    assert "passed" not in output  # lines were recorded by the first run
    # One fast test, and a slow one that runs another function.
    few = [
        "--tests",
        "tests/test_module.py::test_first",
        "tests/test_other.py::test_slow",
        "-m",
        "",
    ]
    fewer, output = run("build/fewer.jsonl", *few, "--before", "build/all.jsonl")
    assert fewer == {**OUTCOMES, **UNCOVERED, "not covered": "noticed"}
    assert "noticed before: 3, now: 2; lost: 2, gained: 1\nwithin chance" in output
    assert run("build/sealed.jsonl", *few, "--sealed")[0] == {"gone": "gone"}
    assert (root / PLACE).read_text() == PROJECT_MODULE
