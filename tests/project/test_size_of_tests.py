"""Test files contain cases and expectations; helpers of several files are in `tests/kit`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tests.project.source_code import TESTS, TestLines, areas_of_tests, inner_modules

MANY_HELPERS = {
    "core/data/test_clusters.py",
    "core/data/test_power_loss.py",
    "core/training/test_crops.py",
    "core/training/test_device.py",
    "core/training/test_frame_intrinsics.py",
    "core/training/test_hostile_states.py",
    "core/training/test_many_episodes.py",
    "core/training/test_sampling_page.py",
    "core/training/test_subclasses.py",
    "project/test_doc_examples.py",
    "project/test_layers.py",
    "tools/test_rerun.py",
    "tools/test_trim.py",
}
"""Files with more helpers than a quarter of their lines. Remove a file once it has fewer."""


@cache
def files() -> dict[Path, TestLines]:
    """Lines of all test files, by path relative to `tests`."""
    return {
        path.relative_to(TESTS): lines
        for area in areas_of_tests().values()
        for path, lines in area.items()
    }


def is_test(path: Path) -> bool:
    return path.name.startswith("test_")


def test_kit_is_small() -> None:
    assert sum(lines.lines for path, lines in files().items() if path.parts[0] == "kit") <= 4_000


def test_few_lines_are_outside_of_test_functions() -> None:
    """The goal is 27,000."""
    assert sum(one.lines - one.inside for one in files().values()) <= 27_550


def test_helpers_are_a_quarter_of_a_file_at_most() -> None:
    """The list of exceptions only becomes shorter."""
    found = {
        str(path) for path, one in files().items() if is_test(path) and 4 * one.helpers > one.lines
    }
    assert found - MANY_HELPERS == set()
    assert len(MANY_HELPERS) <= 13


def test_few_files_import_inner_modules() -> None:
    """The goal is 40."""
    found = {path for path in files() if is_test(path) and inner_modules(TESTS / path)}
    assert len(found) <= 42, sorted(map(str, found))
