"""Imports of submodules whose packages import more than is needed, or than is there."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

__all__ = ["without_roots"]


@contextlib.contextmanager
def without_roots(folder: Path, *packages: str) -> Iterator[None]:
    """Let modules of these packages, which lie in `folder`, be imported without their roots."""
    for name in packages:
        path = str(folder.joinpath(*name.split(".")))
        known = sys.modules.get(name)
        if known is not None and list(known.__path__) != [path]:
            raise ImportError(f"another {name} is imported already, from {list(known.__path__)}")
        if known is None:
            package = ModuleType(name)
            package.__path__ = [path]
            package.__spec__ = ModuleSpec(name, None, is_package=True)
            package.__spec__.submodule_search_locations = [path]
            sys.modules[name] = package
    yield
