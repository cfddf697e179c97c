"""Imports of submodules of packages whose `__init__` imports unneeded or missing modules."""

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
    """Make modules of these packages in `folder` importable without running their `__init__`."""
    for name in packages:
        path = str(folder.joinpath(*name.split(".")))
        module = sys.modules.get(name)
        if module is not None and list(module.__path__) != [path]:
            raise ImportError(f"another {name} is imported already, from {list(module.__path__)}")
        if module is None:
            package = ModuleType(name)
            package.__path__ = [path]
            package.__spec__ = ModuleSpec(name, None, is_package=True)
            package.__spec__.submodule_search_locations = [path]
            sys.modules[name] = package
    yield
