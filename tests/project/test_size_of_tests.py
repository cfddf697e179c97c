"""Test files contain cases and expectations; helpers of several files are in `tests/kit`."""

from __future__ import annotations

from pathlib import Path

from tests.project.source_code import TESTS, inner_modules, lines_of_tests

MANY_HELPERS = {
    "project/test_doc_examples.py",
    "tools/test_rerun.py",
    "tools/test_trim.py",
}
"""Files with more helpers than a quarter of their lines. Remove a file once it has fewer."""


def is_test(path: Path) -> bool:
    return path.name.startswith("test_")


def test_helpers_are_a_quarter_of_a_file_at_most() -> None:
    """The list of exceptions only becomes shorter."""
    found = {
        str(path)
        for path, one in lines_of_tests().items()
        if is_test(path) and 4 * one.helpers > one.lines
    }
    assert found - MANY_HELPERS == set()
    assert len(MANY_HELPERS) <= 3


def test_few_files_import_inner_modules() -> None:
    found = {path for path in lines_of_tests() if is_test(path) and inner_modules(TESTS / path)}
    assert len(found) <= 40, sorted(map(str, found))
