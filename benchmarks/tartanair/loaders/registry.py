"""The loaders of a workload, from the files of its folder."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from benchmarks.tartanair.loaders.base import Loader

__all__ = ["all_loaders", "loaders_in"]

BASELINE = "original"


def all_loaders() -> dict[str, Loader]:
    """Every row of this folder by its name, the baseline and ours first."""
    return loaders_in(__name__.rpartition(".")[0])


@cache
def loaders_in(package: str) -> dict[str, Loader]:
    """Every row that the modules of a package hold, by its name, the baseline and ours first."""
    found: list[Loader] = []
    for file in sorted(Path(*importlib.import_module(package).__path__).glob("*.py")):
        if file.stem not in ("__init__", "registry"):
            found += getattr(importlib.import_module(f"{package}.{file.stem}"), "LOADERS", [])
    found.sort(key=lambda loader: (loader.name != BASELINE, "seqrecord" not in loader.name))
    names = [loader.name for loader in found]
    assert len(set(names)) == len(names), f"two loaders of one name: {names}"
    return {loader.name: loader for loader in found}
