"""What is public: the root's names and those of its faces, all described in docs/reference."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import seqrecord

ROOT = Path(seqrecord.__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
USERS = [page for page in PAGES if page.name not in ("architecture.md", "format.md")]
DESCRIBED = {
    name
    for page in PAGES
    for name in re.findall(r"^::: (seqrecord[\w.]+)$", page.read_text(), re.MULTILINE)
}
DEEP = re.compile(r"\bseqrecord(?:\.[a-z_]\w*){2,}\.\w+|\bfrom seqrecord(?:\.\w+){2,} import")


def found(path: str) -> Any:
    """What lies at `seqrecord.name` or `seqrecord.module.name`."""
    value: Any = seqrecord
    for name in path.split(".")[1:]:
        value = getattr(value, name)
    return value


def test_the_root_is_small() -> None:
    assert len(seqrecord.__all__) < 54
    assert seqrecord.__all__ == sorted(seqrecord.__all__)
    assert set(seqrecord.__all__) <= set(dir(seqrecord))
    with pytest.raises(AttributeError, match="no attribute 'Reader'"):
        found("seqrecord.Reader")


def test_every_name_is_described() -> None:
    for name in set(seqrecord.__all__) - {"__version__"}:
        value = found(f"seqrecord.{name}")
        assert value.__doc__, name
        if isinstance(value, type) and issubclass(value, seqrecord.SeqRecordError):
            assert getattr(seqrecord.errors, name) is value
        elif isinstance(value, ModuleType):
            assert any(path.startswith(f"seqrecord.{name}") for path in DESCRIBED), name
        else:
            assert f"seqrecord.{name}" in DESCRIBED
    for name in seqrecord.types.__all__:
        assert f"seqrecord.types.{name}" in DESCRIBED
        assert getattr(seqrecord.types, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'storage'"):
        found("seqrecord.types.storage")


def test_what_is_described_is_there() -> None:
    for path in DESCRIBED:
        module, _, name = path.rpartition(".")
        if path != "seqrecord.errors":
            assert name in importlib.import_module(module).__all__
            found(path)


def test_at_most_one_module_lies_between_the_package_and_a_name() -> None:
    for page in USERS:
        assert not DEEP.search(page.read_text()), page
    for path in DESCRIBED:
        for text in docstrings(found(path)):
            assert not DEEP.search(text), path


def docstrings(value: Any) -> Iterator[str]:
    """Those of a class, of its public methods, or of a function; a type has none."""
    if isinstance(value, type):
        for name, member in vars(value).items():
            if not name.startswith("_"):
                yield inspect.getdoc(member) or ""
    if inspect.isroutine(value) or isinstance(value, (type, ModuleType)):
        yield inspect.getdoc(value) or ""


def test_the_help_of_a_dataset_has_what_a_user_needs_and_no_internals() -> None:
    public = {name for name in vars(seqrecord.Dataset) if not name.startswith("_")}
    assert public == {
        *("close", "episodes", "features", "find_episodes", "fingerprint", "num_frames", "schema"),
        *("compute_statistics", "renamed", "select", "splits", "statistics", "url"),
    }
    text = pydoc.plain(pydoc.render_doc(seqrecord.Dataset))
    for name in public:
        assert re.search(rf"^ \|  {name}\b", text, re.MULTILINE), name
        assert vars(seqrecord.Dataset)[name].__doc__
    assert "contents" not in text


@pytest.mark.parametrize("face", [seqrecord.edit, seqrecord.export])
def test_a_face_lists_its_names_before_they_are_used(face: ModuleType) -> None:
    assert dir(face) == sorted(face.__all__)
    assert all(getattr(face, name).__doc__ for name in face.__all__)
