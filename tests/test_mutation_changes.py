"""What `make mutants` may change, by example, and which changes it draws."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutation.changes import changed, changes_of
from tests.mutation.drawing import draw, mutants_of, room_files

ROOT = Path(__file__).parents[1]


def expressions(source: str) -> dict[str, list[str]]:
    """By kind: what each change makes of `x = SOURCE`, without the `x = `."""
    found: dict[str, list[str]] = {}
    module = f"x = {source}".encode()
    for change in changes_of(module):
        found.setdefault(change.kind, []).append(changed(module, change).decode()[4:])
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
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
    ],
)
def test_expressions(source: str, expected: dict[str, list[str]]) -> None:
    if source == "[a for a in b if c(a)]":
        assert expressions(source)["condition"] == expected["condition"]
    else:
        assert expressions(source) == expected


def dropped(source: str) -> list[str]:
    """The statements that may be dropped."""
    module = source.encode()
    lines = module.splitlines()
    return [
        lines[change.statement - 1].decode().strip()
        for change in changes_of(module)
        if change.kind == "statement"
    ]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("f(a)", ["f(a)"]),
        ("a.b = c", ["a.b = c"]),
        ("a[b], c.d = e", ["a[b], c.d = e"]),
        ("a += b", ["a += b"]),
        ("a = b", []),  # what uses it would fail, whatever is tested
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
    ],
)
def test_statements(source: str, expected: list[str]) -> None:
    assert dropped(source) == expected


@pytest.mark.parametrize(
    "source",
    [
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
    ],
)
def test_what_is_left_alone(source: str) -> None:
    assert changes_of(source.encode()) == []


def test_where_a_change_is() -> None:
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


def test_every_change_makes_another_module(thorough: bool) -> None:
    rooms = ["engine", "pipes", "sampling", "reading", "writing"]
    files = [(room, file) for room in rooms for file in room_files(ROOT, room)]
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
    first = draw(tmp_path, "room", 0, 10)
    assert draw(tmp_path, "room", 0, 10) == first
    assert draw(tmp_path, "room", 0, 40)[:10] == first
    assert draw(tmp_path, "room", 1, 10) != first
    assert len(draw(tmp_path, "room", 0, 100)) == 40


def test_code_that_stays_keeps_its_mutants(tmp_path: Path) -> None:
    before = draw(written(tmp_path, one=LINES, two=LINES), "room", 0, 20)
    written(tmp_path, one="import moved_down\n\n" + LINES, two=LINES.replace("b", "c"))
    after = draw(tmp_path, "room", 0, 40)
    kept = [mutant.name for mutant in before if mutant.file.endswith("one.py")]
    places = [mutant.name for mutant in after if mutant.name in kept]
    assert kept
    assert places == kept


def test_every_change_is_as_likely_as_any_other(tmp_path: Path) -> None:
    """Of 40 changes, 10 are drawn with each of 100 seeds: each 25 times, give or take 4.3."""
    written(tmp_path, one=LINES, two=LINES)
    counts = Counter(
        mutant.name for seed in range(100) for mutant in draw(tmp_path, "room", seed, 10)
    )
    assert len(counts) == 40
    assert 10 < min(counts.values()) <= max(counts.values()) < 40
