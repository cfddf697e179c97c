"""Imports between parts follow the table in docs/architecture.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.project.source_code import PACKAGE, PUBLIC_FILES, imported_names, module_name, parse

ROOT = Path(__file__).parents[2]

REGISTRIES = {"seqrecord.store.areas"}
"""Modules with strings that name modules, beside the files of public names."""


def may_import() -> dict[str, set[str]]:
    """Part to the parts that it may import, from the table in docs/architecture.md."""
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|", text, re.MULTILINE)
    parts = {part for part, _ in rows}
    return {
        part: parts if allowed.strip() == "all" else {*re.findall(r"`(\w+)`", allowed)}
        for part, allowed in rows
    }


def part_of(module: str) -> str:
    """The part of `seqrecord.x.y`. `seqrecord.errors` and `.version` belong to the store."""
    top = module.split(".")[1]
    return "store" if top in {"errors", "version"} else top


@pytest.fixture(scope="module")
def modules() -> dict[str, Path]:
    """Modules of the parts, by name."""
    public = {PACKAGE / f"{name}.py" for name in PUBLIC_FILES}
    return {module_name(path): path for path in PACKAGE.rglob("*.py") if path not in public}


def test_every_folder_is_a_part() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    files = {path.stem for path in PACKAGE.glob("*.py")}
    assert folders == {*may_import()}
    assert files == PUBLIC_FILES | {"errors", "version"}


def test_parts_follow_the_table(modules: dict[str, Path]) -> None:
    """Imports of types and imports inside functions count too."""
    allowed = may_import()
    forbidden: dict[str, set[str]] = {}
    for module, path in modules.items():
        part = part_of(module)
        for name in imported_names(parse(path), in_functions=True, for_types=True):
            if name in modules and part_of(name) not in allowed[part] | {part}:
                forbidden.setdefault(module, set()).add(name)
    assert forbidden == {}


def test_tools_alone_import_public_files(modules: dict[str, Path]) -> None:
    public = {f"seqrecord.{name}" for name in PUBLIC_FILES - {"__init__", "__main__"}}
    for module, path in modules.items():
        imports = imported_names(parse(path), in_functions=True, for_types=True)
        assert "seqrecord" not in imports, module
        assert part_of(module) == "tools" or not imports & public, module


def test_strings_name_modules_in_registries_only(modules: dict[str, Path]) -> None:
    """Loading a module by its name would hide an import from these tests."""
    for module, path in modules.items():
        texts = {
            node.value.partition(":")[0]
            for node in ast.walk(parse(path))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert module in REGISTRIES or not texts & {*modules}, module
