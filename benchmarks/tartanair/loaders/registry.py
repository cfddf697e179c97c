"""All loaders, from the files of this folder."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from benchmarks.tartanair.loaders.base import Loader

__all__ = ["all_loaders"]

BASELINE = "original"


@cache
def all_loaders() -> dict[str, Loader]:
    """Every row by its name, the baseline and ours first."""
    package = __name__.rpartition(".")[0]
    found: list[Loader] = []
    for file in sorted(Path(__file__).parent.glob("*.py")):
        if file.stem not in ("__init__", "registry"):
            found += getattr(importlib.import_module(f"{package}.{file.stem}"), "LOADERS", [])
    found.sort(key=lambda loader: (loader.name != BASELINE, "seqrecord" not in loader.name))
    names = [loader.name for loader in found]
    assert len(set(names)) == len(names), f"two loaders of one name: {names}"
    return {loader.name: loader for loader in found}
