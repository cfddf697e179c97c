"""What the documentation says of the package is there, and it is said in plain words."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "seqrecord"
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
WAYS = {"A frame's way to disk": "write", "A clip's way to a batch": "read"}
"""By heading: what `modules_that_run` calls the way."""

OBSCURE = (
    *("mood", "by heart", "quiet run", "who is asking", "what holds it", "is of no use once"),
    *("two halves", "memory that is reused", "of what the pages needed"),
    *("goes on after", "its own affair", "conductor", "handover"),
)
"""Figures of speech that once were in the text."""


def named_modules(heading: str) -> list[str]:
    """What docs/architecture.md names below a heading, as `room.module`."""
    text = ARCHITECTURE[ARCHITECTURE.index(f"## {heading}") + 3 :].partition("\n## ")[0]
    return re.findall(rf"`((?:{'|'.join(ROOMS)})(?:\.\w+)+)`", text)


@pytest.mark.parametrize("heading", [*WAYS, "Where to change what"])
def test_the_modules_that_the_map_names_are_there(heading: str) -> None:
    assert len(named_modules(heading)) >= 12
    for name in named_modules(heading):
        path = PACKAGE / name.replace(".", "/")
        assert path.with_suffix(".py").exists() or path.is_dir(), name


def test_the_map_shows_every_room() -> None:
    for room in ROOMS:
        assert re.search(rf"│ {room} ", ARCHITECTURE), room


def test_the_modules_on_the_two_ways_run_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.modules_that_run", str(tmp_path / "records")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    ran = json.loads(done.stdout)
    for heading, phase in WAYS.items():
        elsewhere = {
            "engine.device",
        }  # what the list itself says
        assert set(named_modules(heading)) - elsewhere <= set(ran[phase])


def test_the_glossary_is_short() -> None:
    words = re.findall(r"^\| (\w[\w ]*) \|", ARCHITECTURE[ARCHITECTURE.index("## Words") :], re.M)
    assert words[0] == "word"
    assert len(words) - 1 <= 16


def test_the_figures_of_how_fast_are_measured_ones() -> None:
    table = (ROOT / "docs" / "performance.md").read_text()
    measured = (ROOT / "benchmarks" / "tartanair" / "RESULTS.md").read_text()
    rows = re.findall(
        r"^\| `([\w-]+)` \| (.*?) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", table, re.M
    )
    assert len(rows) > 5
    for loader, settings, clips, rate, share in rows:
        start = re.escape(f"| {loader} | {settings} | {clips} | {rate} |")
        assert re.search(rf"^{start}.*\| copy \| {share} \|$", measured, re.M), loader


def test_plain_words() -> None:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [Path(line) for line in done.stdout.splitlines()]
    found = [
        f"{path}: {phrase}"
        for path in paths
        if path.suffix in (".md", ".py") and path.parts[0] != "tests" and (ROOT / path).exists()
        for phrase in OBSCURE
        if phrase in (ROOT / path).read_text().lower()
    ]
    assert found == []
