"""What is public: the names of the package root, each described in docs/reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import seqrecord

REFERENCE = Path(seqrecord.__file__).parents[1] / "docs" / "reference"
DESCRIBED = {
    name
    for page in REFERENCE.glob("*.md")
    for name in re.findall(r"^::: seqrecord\.([\w.]+)$", page.read_text(), re.MULTILINE)
}


def test_the_root_is_small() -> None:
    assert len(seqrecord.__all__) < 48
    assert seqrecord.__all__ == sorted(seqrecord.__all__)
    assert set(seqrecord.__all__) <= set(dir(seqrecord))


@pytest.mark.parametrize("name", [name for name in seqrecord.__all__ if name != "__version__"])
def test_every_name_is_there_and_described(name: str) -> None:
    found = getattr(seqrecord, name)
    assert found.__doc__
    if isinstance(found, type) and issubclass(found, seqrecord.SeqRecordError):
        assert getattr(seqrecord.errors, name) is found
        name = "errors"
    assert name in {described.rpartition(".")[2] for described in DESCRIBED}


def test_what_is_described_is_there() -> None:
    for name in DESCRIBED - {"errors"}:
        module, _, last = name.rpartition(".")
        imported = __import__(f"seqrecord.{module}", fromlist=[last]) if module else seqrecord
        assert hasattr(imported, last), name


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Dataset'"):
        _ = seqrecord.Dataset  # type: ignore[attr-defined]
