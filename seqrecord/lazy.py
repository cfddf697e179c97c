"""Modules that are imported at first use: they take time, and optional packages may be missing."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from typing import Any

from seqrecord.errors import MissingPackageError

_IMPORT = re.compile(r"^    from ([\w.]+) import (\w+) as \2\b", re.MULTILINE)


def lazy(
    package: str,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package or module, https://peps.python.org/pep-0562.

    The imports under `if TYPE_CHECKING:` in its source, each a line `from module import name as
    name`, are made when a name is first used. A package's own modules are there, too; its `__dir__`
    lists the public names, `__all__`.

    Raises `ImportError` without the source: an application must include the `.py` files, as torch
    requires, too.
    """
    loader: Any = sys.modules[package].__loader__
    if (source := loader.get_source(package)) is None:
        raise ImportError(f"{package} needs its .py files; include them in the application")
    module_of = {name: module for module, name in _IMPORT.findall(source)}
    offered = sorted(module_of)

    def found(name: str) -> Any:
        if (module := module_of.get(name, package)) != package:
            return getattr(importlib.import_module(module), name)
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
