"""The counter of lines of code that budgets are in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.code_lines import code_lines, lines_by_room


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", 0),
        ('"""A docstring\nof two lines."""\n', 0),
        ("# a comment\n\nx = 1  # another\n", 1),
        ("x = (\n    1,\n\n    # why\n    2,\n)\n", 4),
        ('def f():\n    """What."""\n    return """a\nb"""\n', 3),
        ("class A:\n    '''What.'''\n", 1),
        ('async def f():\n    """What."""\n', 1),
        ('x = 1\n"""no docstring, but a statement"""\n', 2),
        ("if x: pass; y = 1\n", 1),
    ],
)
def test_code_is_counted_and_nothing_else(source: str, expected: int) -> None:
    assert code_lines(source) == expected


def test_rooms_are_the_folders_of_a_package(tmp_path: Path) -> None:
    (tmp_path / "a/deep").mkdir(parents=True)
    (tmp_path / "one.py").write_text("x = 1\n")
    (tmp_path / "a/__init__.py").write_text('"""A room."""\n')
    (tmp_path / "a/deep/two.py").write_text("x = 1\ny = 2\n")
    assert lines_by_room(tmp_path) == {"(loose)": (1, 1), "a": (2, 2)}
