"""Modules that are imported at first use: they take time, and optional packages may be missing."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seqrecord.errors import MissingPackageError


def lazy(
    package: str, modules: Mapping[str, Sequence[str]], others: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package or module, https://peps.python.org/pep-0562.

    A package's own modules are there, too; its `__dir__` lists what it offers, `__all__`.

    Args:
        package: its name.
        modules: by the modules below it the names that they have. A module that begins with
            `seqrecord.` is a whole name.
        others: the names that it offers beside these.
    """
    module_of = {name: module for module, names in modules.items() for name in names}
    offered = sorted({*module_of, *others})

    def found(name: str) -> Any:
        if (module := module_of.get(name)) is not None:
            full = module if module.startswith("seqrecord.") else f"{package}.{module}"
            return getattr(importlib.import_module(full), name)
        if not name.startswith("_") and is_installed(f"{package}.{name}"):
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return found, lambda: list(offered), offered


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
