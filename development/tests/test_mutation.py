"""`make mutants`: recorded lines of tests, drawn changes, and outcomes."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from development.mutation.changes import changed, changes_of
from development.mutation.covering import RecordedTest, spread
from development.mutation.drawing import draw, mutants_of, room_files
from development.mutation.instrumenting import instrumented

MUTATION = Path(__file__).parents[1] / "mutation"

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


def test_instrumented_statements_record_their_lines() -> None:
    tree = instrumented(SOURCE, 100)
    tree.body = [node for node in tree.body if "mutation_hits" not in str(vars(node))]
    code = compile(tree, "module", "exec")
    for call, lines in (("", {4}), ("f(1)", {4, 6, 7, 8, 15}), ("f(0)", {4, 6, 7, 9, 12, 15})):
        hits: dict[int, int] = {}
        names: dict[str, object] = {"__hits__": hits, "b": 0}
        exec(code, names)
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
    "LIMIT = 2": "noticed",  # by the forking test
    "if a <= LIMIT:": "survived",
    "if not (a < LIMIT):": "noticed",
    "pass": "noticed",  # in place of `return a`
    "while a <= LIMIT:": "survived",  # in a test's child process
    "while not (a < LIMIT):": "survived",
    "a -= 1": "time-out",
    "a += 2": "survived",
    "a += 0": "time-out",
    "pass ": "time-out",  # in place of `a += 1`
    "return LIMIT": "not covered",
}
"""Outcome of each mutant of `MODULE`, by the changed line."""


def new_project(root: Path) -> Path:
    for name, text in {
        "pyproject.toml": SETTINGS,
        "seqrecord/__init__.py": "",
        "seqrecord/room/__init__.py": "",
        "seqrecord/room/module.py": MODULE,
        "development/__init__.py": "",
        "tests/__init__.py": "",
        "tests/conftest.py": CONFTEST,
        "tests/test_module.py": TESTS,
        ".gitignore": "build/\n__pycache__/\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    shutil.copytree(MUTATION, root / "development" / "mutation")
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_complete_run(tmp_path: Path) -> None:
    root = new_project(tmp_path / "project")
    build = root / "build" / "mutants"
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "development.mutation", "--rooms", "room", "--limit", "20"]
    for times in range(2):
        done = subprocess.run(command, cwd=root, env=environment, stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0
        tried = re.findall(r"^\d+/\d+ ", done.stdout, re.MULTILINE)
        assert len(tried) == (1 + 12 if times == 0 else 0)  # the second run has all results already
    results = [json.loads(line) for line in (build / "results.jsonl").read_text().splitlines()]
    after = {
        result["after"] + " " * (result["before"] == "a += 1" and result["after"] == "pass"): result
        for result in results
    }
    assert {line: result["outcome"] for line, result in after.items()} == OUTCOMES
    assert after["LIMIT = 2"]["test"] == "tests/test_module.py::test_forked"
    assert after["if a <= LIMIT:"]["covering"] == 3  # also the second test with the fixture's value
    assert after["a += 0"]["covering"] == 1
    page = (build / "REPORT.md").read_text()
    assert "| room | 12 | 7 | 3 | 5 | 1 | 58.3 ± 14.2 |" in page
    assert "- `tests/test_module.py::test_that_fails`" in page
    assert (root / "seqrecord" / "room" / "module.py").read_text() == MODULE


# Possible changes, by example, and the draw

ROOT = Path(__file__).parents[2]


def expressions(source: str) -> dict[str, list[str]]:
    """By kind: each change of `x = SOURCE`, without the `x = `."""
    found: dict[str, list[str]] = {}
    module = f"x = {source}".encode()
    for change in changes_of(module):
        found.setdefault(change.kind, []).append(changed(module, change).decode()[4:])
    return found


EXPRESSIONS: list[tuple[str, dict[str, list[str]]]] = [
    ("a < b", {"comparison": ["a <= b"]}),
    ("a >= b", {"comparison": ["a > b"]}),
    ("a == b != c", {"comparison": ["a != b != c", "a == b == c"]}),
    ("(a)\\\n not  in (b)", {"comparison": ["(a)\\\n in (b)"]}),
    ("a is None", {"comparison": ["a is not None"]}),
    ("a in b", {"comparison": ["a not in b"]}),
    ("8", {"constant": ["9", "7"]}),
    ("0x10", {"constant": ["17", "15"]}),
    ("0.5", {"constant": ["1.5", "-0.5"]}),
    ("True", {"constant": ["False"]}),
    ("a + b * c", {"arithmetic": ["a - b * c", "a + b // c"]}),
    ("a // b", {"arithmetic": ["a * b"]}),
    ("a & b == c", {"arithmetic": ["(a | b) == c"], "comparison": ["a & b != c"]}),
    ("(a) - (b)", {"arithmetic": ["(a) + (b)"]}),
    ("-a", {"sign": ["a"]}),
    ("a and b and c", {"and/or": ["a or b or c"]}),
    ("not a", {"condition": [" a"]}),
    ("a if b else c", {"condition": ["a if not (b) else c"]}),
    ("a if b == c else d", {"comparison": ["a if b != c else d"]}),
    ("[a for a in b if c(a)]", {"condition": ["[a for a in b if not (c(a))]"]}),
    ("f(a, b, key=c)", {"arguments": ["f(b, a, key=c)"]}),
    ("f(a, g(b), *c)", {"arguments": ["f(g(b), a, *c)"]}),
    ("min(a, b)", {"opposite": ["max(a, b)"]}),
    ("np.floor(a)", {"opposite": ["np.ceil(a)"]}),
    ("a[i:j]", {"slice": ["a[:j]", "a[i:]"]}),
    ("a[(i):]", {"slice": ["a[:]"]}),
    ("f(lambda b: -b)", {"sign": ["f(lambda b: b)"]}),
]


def test_expressions() -> None:
    for source, expected in EXPRESSIONS:
        assert expressions(source) == expected


def removable(source: str) -> list[str]:
    """Statements that may be removed."""
    module = source.encode()
    lines = module.splitlines()
    return [
        lines[change.statement - 1].decode().strip()
        for change in changes_of(module)
        if change.kind == "statement"
    ]


STATEMENTS: list[tuple[str, list[str]]] = [
    ("f(a)", ["f(a)"]),
    ("a.b = c", ["a.b = c"]),
    ("a[b], c.d = e", ["a[b], c.d = e"]),
    ("a += b", ["a += b"]),
    ("a = b", []),  # without it, later uses fail in any test
    ("def f(a):\n  a = b\n  c = d\n  c = e", ["a = b", "c = e"]),
    ("def f():\n  if a:\n    return b\n  return c", ["return b"]),
    ("def f():\n  raise E", ["raise E"]),
    ("while a:\n  break", ["break"]),
    ("def f():\n  yield a", ["yield a"]),
    ("del a", []),
    ("del a[b]", ["del a[b]"]),
    ("_logger.warning(a)", ["_logger.warning(a)"]),
    ("_logger.info(a)", []),
    ("'docs'", []),
    ("class A:\n  def f(self):\n    self.a = b", ["self.a = b"]),
    ("try:\n  f(a)\nexcept E:\n  g(a)\nfinally:\n  h(a)", ["f(a)", "g(a)", "h(a)"]),
    ("match a:\n  case 1:\n    f(a)", ["f(a)"]),
]


def test_statements() -> None:
    for source, expected in STATEMENTS:
        assert removable(source) == expected


UNCHANGED = [
    "def f(a: Literal[1, 2] = b) -> Literal[3]: ...",
    "a: Literal[1]",
    "Mode = Literal[1, 2] | None",
    "Row: TypeAlias = A | B",
    "__all__ = [1]",
    "assert a < 1",
    "if TYPE_CHECKING:\n  a = 1",
    "@dataclass(frozen=True)\nclass A: ...",
    "x = f'{a + 1}'",
    "x = FormatError(1, a < b)",
    "x = cast(A | B, c)",
    "x = isinstance(a, B | C)",
    "_logger.debug(1, a + b)",
    "def f():\n  x = a",
    "@overload\ndef f(a=1): ...",
    "x = 'a' + b",
    "x = [a] * b",
]


def test_code_without_changes() -> None:
    for source in UNCHANGED:
        assert changes_of(source.encode()) == [], source


def test_the_place_of_a_change() -> None:
    source = """
class A:
  def f(self):
    a = 'ü' if g(
      a < b
    ) else c
"""
    negated, compared = changes_of(source.encode())
    place = (compared.line, compared.statement, compared.scope, compared.deferred)
    assert place == (5, 4, "A.f", True)
    assert (negated.line, negated.statement) == (4, 4)
    assert changed(source.encode(), compared).decode() == source.replace("<", "<=")


def test_every_change_gives_a_different_module(thorough: bool) -> None:
    rooms = ["loader/engine", "loader/pipes", "loader/sampling", "store/reading", "store/writing"]
    files = [(room, file) for room in rooms for file in room_files(ROOT, room)]
    assert {room for room, _ in files} == {*rooms}
    for room, file in files[:: 40 if thorough else 150]:
        source = (ROOT / file).read_bytes()
        seen = {ast.dump(ast.parse(source))}
        mutants = mutants_of(ROOT, room, file)
        for mutant in mutants:
            tree = ast.parse(changed(source, mutant.change))
            compile(tree, file, "exec")
            seen.add(ast.dump(tree))
        assert len(seen) == 1 + len(mutants), file


def written(root: Path, **modules: str) -> Path:
    room = root / "seqrecord" / "room"
    room.mkdir(parents=True, exist_ok=True)
    for name, source in modules.items():
        (room / f"{name}.py").write_text(source)
    return root


LINES = "".join(f"x{number} = a{number} < b\n" for number in range(20))


def test_a_draw_depends_on_the_seed_and_the_code(tmp_path: Path) -> None:
    written(tmp_path, one=LINES, two=LINES)
    first = draw(tmp_path, "room", 0, 20)
    assert draw(tmp_path, "room", 0, 20) == first
    assert draw(tmp_path, "room", 0, 40)[:20] == first
    assert draw(tmp_path, "room", 1, 20) != first
    assert len(draw(tmp_path, "room", 0, 100)) == 40
    # Unchanged code keeps its mutants.
    written(tmp_path, one="import moved_down\n\n" + LINES, two=LINES.replace("b", "c"))
    kept = [mutant.name for mutant in first if mutant.file.endswith("one.py")]
    after = [mutant.name for mutant in draw(tmp_path, "room", 0, 40)]
    assert [name for name in after if name in kept] == kept != []
