"""Cases of all source formats, collected from `tests/formats/format_cases`."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.formats import format_cases
from tests.formats.cases import Case, index_source

CASES: dict[str, Case] = {
    name: case
    for module in pkgutil.iter_modules(format_cases.__path__, f"{format_cases.__name__}.")
    for name, case in import_module(module.name).CASES.items()
}


def made(folder: Path, name: str) -> Path:
    """Write the original of a case into a new folder."""
    if name.startswith("zarr"):
        pytest.importorskip("zarr")  # it needs Python 3.11
    folder.mkdir(parents=True, exist_ok=True)
    CASES[name].write(folder)
    return folder


def indexed(place: Any, name: str, to: Path, **options: Any) -> Path:
    """Index the original of a case; `options` are those of `open_source`."""
    index_source(CASES[name].opened(place, **options), to, workers=1)
    return to
