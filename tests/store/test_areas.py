"""Names of modules in other parts; `tests/project/test_removal.py` tests missing ones."""

from __future__ import annotations

from seqrecord.store.areas import (
    CACHE,
    EXTERNAL_FILES,
    FORMATS,
    IN_PLACE,
    IS_ORIGINAL,
    STORAGES,
    load_entry,
)


def test_every_entry_exists() -> None:
    for name, module in FORMATS.items():
        assert load_entry(f"seqrecord.formats.sources.{module}:FORMAT").name == name
    for entry in (IN_PLACE, IS_ORIGINAL, EXTERNAL_FILES, CACHE, *STORAGES.values()):
        assert callable(load_entry(entry))
