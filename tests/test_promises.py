"""The table of promises in docs/storage_details.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_the_tests_that_the_table_names_are_there() -> None:
    text = (TESTS.parent / "docs/storage_details.md").read_text("utf-8")
    table, _, rest = text.partition("## What each storage guarantees")[2].partition(
        "The tests that show it:"
    )
    lines = re.findall(r"^(\d+)\. (.*)$", rest.partition("**How")[0], re.MULTILINE)
    marks = {mark for group in re.findall(r"\((\d[\d, ]*)\)", table) for mark in group.split(", ")}
    assert marks == {number for number, _ in lines}
    for number, line in lines:
        source, names = "", 0
        for name in re.findall(r"`(\w+(?:\.py)?)`", line):
            if name.endswith(".py"):
                source = (TESTS / name).read_text("utf-8")
            else:
                assert re.search(rf"(def|class) {name}\b", source), f"{number}: {name}"
                names += 1
        assert names, number
