"""The rooms and floors that CONTRIBUTING.md shows are those of the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "seqrecord"


BASE = "loose modules"


@cache
def floors() -> dict[str, int]:
    """Room to floor, from CONTRIBUTING.md's table."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", text, re.MULTILINE)
    found = {name: int(floor) for floor, names in rows for name in re.findall(r"`(\w+)`", names)}
    return {BASE: 0} | found


def room_of(name: str) -> str:
    """The room of `seqrecord.x.y`; a module that lies beside the rooms is of the lowest floor."""
    top = name.split(".")[1]
    return top if (PACKAGE / top).is_dir() else BASE


def name_of(path: Path) -> str:
    return ".".join(("seqrecord", *path.relative_to(PACKAGE).with_suffix("").parts))


def imports(path: Path) -> set[str]:
    """Full names of what a file imports from this package, inside functions too."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module or "")
    return {name for name in found if name.split(".")[0] == "seqrecord"}


FILES = sorted(
    path
    for path in PACKAGE.rglob("*.py")
    if path not in (PACKAGE / "__init__.py", PACKAGE / "__main__.py")
)


def test_every_room_has_a_floor() -> None:
    assert {room_of(name_of(path)) for path in FILES} == set(floors())


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    own = room_of(name_of(path))
    for name in imports(path):
        assert name != "seqrecord", "imports the package root"
        other = room_of(name)
        if other == own:
            if path.name != "__init__.py":
                assert name != f"seqrecord.{own}", "a room's modules import each other, not it"
        else:
            assert floors()[other] < floors()[own], f"{own} imports {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_is_imported_from_the_engine_up(path: Path) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(parsed(path))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    room = room_of(name_of(path))
    may = room != "writing" and floors()[room] >= floors()["engine"]
    assert may or not imported & {"torch", "torchdata"}


WRITING = "seqrecord.tools.cli.packing, seqrecord.writing.writer"
INSPECTING = "seqrecord.tools.cli.commands, seqrecord.tools.cli.exporting"
VIDEO = "seqrecord.codecs.chain, seqrecord.format.video_pages"


@pytest.mark.parametrize(
    ("modules", "packages"),
    [
        (f"{WRITING}, {INSPECTING}, {VIDEO}", "torch matplotlib av"),
        # What takes long to import and a writer on a local disk does without.
        (WRITING, "av fsspec urllib3 PIL pyarrow.parquet pyarrow.compute seqrecord.reading.reader"),
    ],
)
def test_importing_does_not_import(modules: str, packages: str) -> None:
    code = f"import {modules}, sys; print(*set({packages.split()}) & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_importing_the_package_says_nothing() -> None:
    code = "import seqrecord, seqrecord.pipes.loaders, seqrecord.tools.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
