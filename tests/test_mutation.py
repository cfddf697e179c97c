"""The tool of `make mutants`: which tests run a line, which are tried, and what comes of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.covering import RecordedTest, spread
from tests.mutation.instrumenting import instrumented
from tests.mutation.report import report

MUTATION = Path(__file__).parent / "mutation"

SOURCE = '''"""Docs."""
from __future__ import annotations

def f(a):
    """Docs."""
    global seen
    if a:
        seen = 1
    elif b:
        seen = 2
    else:
        seen = [
            3
        ]
    return seen
'''


@pytest.mark.parametrize(
    ("call", "lines"), [("", {4}), ("f(1)", {4, 6, 7, 8, 15}), ("f(0)", {4, 6, 7, 9, 12, 15})]
)
def test_statements_note_that_they_run(call: str, lines: set[int]) -> None:
    tree = instrumented(SOURCE, 100)
    tree.body = [node for node in tree.body if "mutation_hits" not in str(vars(node))]
    hits: dict[int, int] = {}
    names: dict[str, object] = {"__hits__": hits, "b": 0}
    exec(compile(tree, "module", "exec"), names)
    exec(call, names)
    assert {number - 100 for number in hits} == lines
    assert names["__doc__"] == "Docs."


def test_the_tests_of_a_change_are_spread_over_files() -> None:
    tests = [
        RecordedTest(name, breadth, 0.1)
        for name, breadth in [
            ("tests/test_a.py::f[1]", 5),
            ("tests/test_a.py::f[2]", 6),
            ("tests/test_a.py::g", 7),
            ("tests/test_a.py::h", 8),
            ("tests/test_b.py::f", 2),
            ("tests/test_c.py::f", 900),
        ]
    ]
    names = [test.name.removeprefix("tests/test_") for test in spread(tests, "seqrecord/x/c.py")]
    assert names == ["c.py::f", "b.py::f", "a.py::f[1]", "a.py::g", "a.py::h", "a.py::f[2]"]


def result(outcome: str, line: int, room: str = "engine") -> dict[str, object]:
    place = {"room": room, "file": f"seqrecord/{room}/a.py", "line": line, "kind": "sign"}
    lines = {"before": "x = -a", "after": "x = a"}
    return {**place, **lines, "outcome": outcome, "covering": 7, "tried": 5}


def test_report() -> None:
    results = [
        *(result("noticed", line) for line in range(5)),
        *(result("time-out", 5), result("survived", 6), result("not covered", 7)),
        result("noticed", 0, "pipes"),
    ]
    page = report(results, {"seed": 0}, ["tests/test_a.py::f"], results[:1])
    assert "| engine | 8 | 6 | 1 | 2 | 1 | 75.0 ± 15.3 | 100.0 ± 0.0 |" in page
    assert "| pipes | 1 | 1 | 0 | 0 | 0 | 100.0 ± 0.0 | - |" in page
    assert "| all | 9 | 7 | 1 | 2 | 1 | 77.8 ± 13.9 | 100.0 ± 0.0 |" in page
    assert "- seed: 0\n" in page
    assert "- `tests/test_a.py::f`\n" in page
    assert page.count("```diff\n-x = -a\n+x = a\n```") == 2
    assert "`seqrecord/engine/a.py:6` sign, 5 of 7 tests\n" in page


MODULE = """
LIMIT = 3

def limited(a):
    if a < LIMIT:
        return a
    return LIMIT

def waiting(a):
    while a < LIMIT:
        a += 1

def nobody_calls():
    return -LIMIT
"""

TESTS = """
import os, subprocess, sys
import pytest
from seqrecord.room.module import limited, waiting

@pytest.fixture(scope="session")
def made():
    return limited(2)

def test_first(made):
    assert made == 2

def test_second(made):
    assert made == 2

def test_forked():
    pid = os.fork()
    if pid == 0:
        os._exit(limited(7))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3

def test_started():
    code = "from seqrecord.room.module import *; waiting(0)"
    subprocess.run([sys.executable, "-c", code], check=True)

def test_that_fails():
    assert limited(1) == 2
"""

SETTINGS = """
[tool.pytest.ini_options]
addopts = "-m 'not slow'"
markers = ["slow: "]
"""

CONFTEST = """
import hypothesis
hypothesis.settings.register_profile("few", max_examples=25)
"""


OUTCOMES = {
    "LIMIT = 4": "noticed",
    "LIMIT = 2": "noticed",  # by the test that forks
    "if a <= LIMIT:": "survived",
    "if not (a < LIMIT):": "noticed",
    "pass": "noticed",  # in place of `return a`
    "while a <= LIMIT:": "survived",  # in the process that a test starts
    "while not (a < LIMIT):": "survived",
    "a -= 1": "time-out",
    "a += 2": "survived",
    "a += 0": "time-out",
    "pass ": "time-out",  # in place of `a += 1`
    "return LIMIT": "not covered",
}
"""By what each mutant of `MODULE` makes of a line."""


def new_project(root: Path) -> Path:
    for name, text in {
        "pyproject.toml": SETTINGS,
        "seqrecord/__init__.py": "",
        "seqrecord/room/__init__.py": "",
        "seqrecord/room/module.py": MODULE,
        "tests/__init__.py": "",
        "tests/conftest.py": CONFTEST,
        "tests/test_module.py": TESTS,
        ".gitignore": "build/\n__pycache__/\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.copytree(MUTATION, root / "tests" / "mutation")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_whole_run(tmp_path: Path) -> None:
    root = new_project(tmp_path / "project")
    build = root / "build" / "mutants"
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "tests.mutation", "--rooms", "room", "--limit", "20"]
    for times in range(2):
        done = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0
        tried = re.findall(r"^\d+/\d+ ", done.stdout, re.MULTILINE)
        assert len(tried) == (1 + 12 if times == 0 else 0)  # the second time all is there
    results = [json.loads(line) for line in (build / "results.jsonl").read_text().splitlines()]
    after = {
        result["after"] + " " * (result["before"] == "a += 1" and result["after"] == "pass"): result
        for result in results
    }
    assert {line: result["outcome"] for line, result in after.items()} == OUTCOMES
    assert after["LIMIT = 2"]["test"] == "tests/test_module.py::test_forked"
    assert (
        after["if a <= LIMIT:"]["covering"] == 3
    )  # also the second test that takes what a fixture made
    assert after["a += 0"]["covering"] == 1
    page = (build / "REPORT.md").read_text()
    assert "| room | 12 | 7 | 3 | 5 | 1 | 58.3 ± 14.2 |" in page
    assert "- `tests/test_module.py::test_that_fails`" in page
    assert (root / "seqrecord" / "room" / "module.py").read_text() == MODULE
