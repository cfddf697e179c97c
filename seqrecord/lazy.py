"""Modules that are imported at first use: they take time, and optional packages may be missing."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from typing import Any

from seqrecord.errors import MissingPackageError


def lazy(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package or module, https://peps.python.org/pep-0562.

    A package's own modules are there, too; its `__dir__` lists what it offers, `__all__`.

    Args:
        package: its name.
        modules: by the names it offers where they are, below it: `"reading.dataset"`, or
            `"reading.dataset:open_dataset"` for a name that is another one there. One that begins
            with `seqrecord.` is the module's whole name.
    """

    def found(name: str) -> Any:
        if name in modules:
            module, _, other = modules[name].partition(":")
            full = module if module.startswith("seqrecord.") else f"{package}.{module}"
            return getattr(importlib.import_module(full), other or name)
        if not name.startswith("_") and is_installed(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return found, lambda: sorted(sys.modules[package].__all__)


def required(module: str, said: str, file: str | None = None) -> Any:
    """A module of an optional package; `MissingPackageError` that says `said` without it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # it is there, and lacks something itself
        raise MissingPackageError(said, file=file) from error


def is_installed(package: str) -> bool:
    """Whether a package of the index, such as `azure-storage-blob`, or a module can be imported."""
    try:
        return importlib.util.find_spec(package.replace("-", ".")) is not None
    except (ImportError, ValueError):  # of one whose parent is missing, half gone, or no package
        return False
