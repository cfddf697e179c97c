"""Names of modules in other parts; `tests/project/test_removal.py` tests missing ones."""

from __future__ import annotations

from seqrecord.store.areas import (
    CACHE,
    CODEC_CHECKS,
    CODEC_KINDS,
    EXTERNAL_FILES,
    FORMATS,
    IN_PLACE,
    IS_ORIGINAL,
    NAMED_CODECS,
    PAGE_KINDS,
    STORAGES,
    load_entry,
)


def test_every_entry_exists() -> None:
    for name, module in FORMATS.items():
        assert load_entry(f"seqrecord.formats.sources.{module}:FORMAT").name == name
    for entry in (IN_PLACE, IS_ORIGINAL, EXTERNAL_FILES, CACHE, *STORAGES.values()):
        assert callable(load_entry(entry))


def test_entries_of_page_kinds_and_codecs_exist() -> None:
    assert {*CODEC_KINDS.values()} <= {*PAGE_KINDS}
    assert {*CODEC_CHECKS} == {*CODEC_KINDS}
    for name, entry in PAGE_KINDS.items():
        assert load_entry(entry).name == name
    for entry in (*CODEC_CHECKS.values(), *NAMED_CODECS.values()):
        assert callable(load_entry(entry))
