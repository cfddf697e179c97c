"""Imports at first use, for slow modules and optional packages."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from seqrecord.errors import MissingPackageError


def lazy(
    package: str, modules: Mapping[str, Sequence[str]], others: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a module, https://peps.python.org/pep-0562.

    Submodules of a package are attributes too. `__dir__` returns `__all__`.

    Args:
        package: name of the module.
        modules: public names by the submodule that defines them. A module name that begins with
            `seqrecord.` is absolute.
        others: further public names: submodules.
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


def import_extra(module: str, message: str, file: str | None = None) -> Any:
    """Import an optional module; without it raise `MissingPackageError` with this message."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != package:
            raise  # installed, but one of its own dependencies is missing
        raise MissingPackageError(message, file=file) from error


def is_installed(package: str) -> bool:
    """Whether a module, or a distribution such as `azure-storage-blob`, can be imported."""
    try:
        return importlib.util.find_spec(package.replace("-", ".")) is not None
    except (ImportError, ValueError):  # no parent package, or a broken one
        return False
