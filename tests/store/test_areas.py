"""The registry of names of modules in other parts."""

from __future__ import annotations

import sys

import pytest

import seqrecord
from seqrecord import errors
from seqrecord.store.areas import FORMATS, IN_PLACE, load_entry

MISSING = "this seqrecord lacks its part `formats`"


@pytest.fixture
def without_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation whose part `formats` was deleted."""
    for name in [name for name in sys.modules if name.startswith("seqrecord.formats")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(seqrecord, "formats", raising=False)

    class Finder:
        def find_spec(self, name: str, *_: object) -> None:
            if name.split(".")[:2] == ["seqrecord", "formats"]:
                raise ModuleNotFoundError(f"No module named {name!r}", name="seqrecord.formats")

    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])


def test_every_entry_exists() -> None:
    for name, module in FORMATS.items():
        assert load_entry(f"seqrecord.formats.sources.{module}:FORMAT").name == name
    assert callable(load_entry(IN_PLACE))


def test_a_missing_part_is_named(without_formats: None) -> None:
    for call in (
        lambda: load_entry(IN_PLACE),
        lambda: seqrecord.open_source,
        lambda: seqrecord.sources.TumSource,
        lambda: seqrecord.export.to_files,
    ):
        with pytest.raises(errors.MissingPackageError, match=MISSING) as caught:
            call()
        assert caught.value.file == "seqrecord/formats"
    assert seqrecord.SeqRecordWriter.__name__ == "SeqRecordWriter"
