"""The layers that CONTRIBUTING.md draws are those of the code."""

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


@cache
def layers() -> dict[str, int]:
    """Module name to row, from CONTRIBUTING.md's table."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)
    return {name: int(row) for row, names in rows for name in re.findall(r"`(\w+)`", names)}


def module_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


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


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_every_module_has_a_row() -> None:
    assert {module_of(path) for path in FILES} == set(layers())


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    rows = layers()
    own = module_of(path)
    for name in imports(path):
        assert name != "seqrecord", "imports the package root"
        if path.name in ("__init__.py", "__main__.py"):
            continue
        other = name.split(".")[1]
        if other == own:
            assert name != f"seqrecord.{own}", "a package's modules import each other, not it"
            continue
        assert rows[other] < rows[own], f"{own} imports {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_torch_is_imported_from_arena_up(path: Path) -> None:
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
    rows = layers()
    assert rows[module_of(path)] >= rows["arena"] or not imported & {"torch", "torchdata"}


@pytest.mark.parametrize("package", ["torch", "matplotlib"])
def test_importing_the_package_does_not_import(package: str) -> None:
    code = f"import seqrecord, seqrecord.cli, sys; sys.exit({package!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_importing_the_package_says_nothing() -> None:
    code = "import seqrecord, seqrecord.pipes, seqrecord.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_public_names_are_sorted_and_there() -> None:
    import seqrecord

    assert seqrecord.__all__ == sorted(seqrecord.__all__)
    for name in seqrecord.__all__:
        assert getattr(seqrecord, name) is not None
