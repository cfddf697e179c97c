"""Names of modules in other parts; `tests/project/test_removal.py` tests missing ones."""

from __future__ import annotations

from seqrecord.store.areas import FORMATS, IN_PLACE, load_entry


def test_every_entry_exists() -> None:
    for name, module in FORMATS.items():
        assert load_entry(f"seqrecord.formats.sources.{module}:FORMAT").name == name
    assert callable(load_entry(IN_PLACE))
